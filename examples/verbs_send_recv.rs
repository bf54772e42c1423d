//! SEND and receive between two hosts, with verbs: a greeting and its answer, then messages of which one in sixteen
//! makes a completion. `docs/verbs.md` explains each step.
//!
//! ```console
//! hostB $ RDPIPE_KEY=... cargo run --example verbs_send_recv listen PORT
//! hostA $ RDPIPE_KEY=... cargo run --example verbs_send_recv HOST PORT
//! ```
//!
//! Further arguments of each end: `inline`, `unsignalled`, `event`, `messages=N`, `device=NAME`.

mod common;
#[path = "common/verbs.rs"]
mod verbs;

use std::{collections::VecDeque, ops::Range, process::ExitCode, sync::Arc};

use anyhow::{Context, Result, ensure};
use rdpipe::verbs::{
    CompletionQueue, MemoryRegion, ProtectionDomain, QueuePair, QueueSizes, VerbsOperation,
};

use crate::verbs::{End, NO_MEMORY, Settings, Waiter, connect, exchange, exit_code, finish};

const NAME: &str = "verbs_send_recv";

/// The bytes of each message.
const MESSAGE_BYTES: usize = 32;

/// The bytes of a slot: the place of one message in the memory.
const SLOT_BYTES: usize = 64;

/// The most sends that are posted at once.
const SENDS: u32 = 32;

/// The receives that are posted at once.
const RECEIVES: u32 = 32;

/// With `unsignalled`, one send in so many makes a completion. At most `SENDS`: a full queue has one to wait for.
const EVERY: u64 = 16;

/// The numbers of sends begin above those of receives, so that one completion queue can have both.
const FIRST_SEND: u64 = 1 << 32;

// Verbs block the thread. That of `main` runs no other task: the stream is kept alive by the threads of the runtime.
#[tokio::main]
async fn main() -> ExitCode {
    exit_code(NAME, run().await)
}

async fn run() -> Result<()> {
    let (end, settings) = End::from_arguments(NAME)?;
    let mut config = settings.choose_port()?;
    let device = config.device.clone();
    println!(
        "port: {device} port {}, GID {}",
        config.port, config.gid_index
    );
    let mut stream = end.meet().await?;
    let messages = settings.messages;
    let theirs: u64 = exchange(&mut stream, &messages).await?;
    ensure!(
        theirs == messages,
        "the other end has messages={theirs}, and this one has messages={messages}; give both ends the same"
    );

    let domain =
        ProtectionDomain::open(&device).with_context(|| format!("cannot open {device}"))?;
    let domain = Arc::new(domain);

    let slots = (SENDS + RECEIVES) as usize;
    let memory = MemoryRegion::register(&domain, slots * SLOT_BYTES);
    let memory = memory.context(NO_MEMORY)?;
    println!(
        "memory: {} bytes, without a key for the peer",
        slots * SLOT_BYTES
    );

    let completions = Arc::new(CompletionQueue::new(&domain, SENDS + RECEIVES)?);

    let sizes = QueueSizes {
        sends: SENDS,
        receives: RECEIVES,
        inline_bytes: settings.inline_bytes(),
    };
    let pair = QueuePair::exact([&completions, &completions], memory, &config, sizes)?;
    println!("queue pair: {SENDS} sends, {RECEIVES} receives");

    let mut conversation = Conversation {
        pair,
        completions,
        waiter: Waiter::new(&stream, &settings),
        settings,
        posted: 0,
        completed: 0,
        signalled: 0,
        arrived: VecDeque::new(),
    };
    for slot in 0..RECEIVES.into() {
        conversation.post_receive(slot)?;
    }
    println!("receives: {RECEIVES} posted");

    connect(&mut conversation.pair, &mut config, &mut stream).await?;
    match end {
        End::Dialer { .. } => conversation.dial()?,
        End::Listener { .. } => conversation.listen()?,
    }
    // The other end may still need this queue pair, so it is dropped after the stream.
    finish(stream).await?;
    drop(conversation);
    Ok(())
}

/// A connected queue pair, and what is under way.
struct Conversation {
    pair: QueuePair,
    completions: Arc<CompletionQueue>,
    waiter: Waiter,
    settings: Settings,
    /// The number of sends that were posted.
    posted: u64,
    /// The number of sends that are complete.
    completed: u64,
    /// The number of sends that make a completion.
    signalled: u64,
    /// The slots of messages that have arrived, and their lengths in bytes.
    arrived: VecDeque<(u64, usize)>,
}

impl Conversation {
    fn dial(&mut self) -> Result<()> {
        self.say("hello from the dialer")?;
        self.hear()?;
        let (messages, before) = (self.settings.messages, self.signalled);
        for number in 1..=messages {
            // The last completion says that all messages have arrived.
            let is_signalled =
                !self.settings.unsignalled || number % EVERY == 0 || number == messages;
            self.send(&message(number), is_signalled)?;
        }
        while self.completed < self.posted {
            self.take_completion()?;
        }
        let signalled = self.signalled - before;
        println!(
            "sent: {messages} messages of {MESSAGE_BYTES} bytes, {signalled} of them signalled"
        );
        Ok(())
    }

    fn listen(&mut self) -> Result<()> {
        self.hear()?;
        self.say("hello from the listener")?;
        let messages = self.settings.messages;
        for number in 1..=messages {
            let arrived = self.receive()?;
            ensure!(
                arrived == message(number),
                "message {number} is not the one that was sent"
            );
        }
        println!("received: {messages} messages of {MESSAGE_BYTES} bytes, in order");
        Ok(())
    }

    fn say(&mut self, text: &str) -> Result<()> {
        self.send(text.as_bytes(), true)?;
        let way = if self.settings.inline {
            "in the work request"
        } else {
            "from memory"
        };
        println!("sent: {text} ({way})");
        Ok(())
    }

    fn hear(&mut self) -> Result<()> {
        let text = self.receive()?;
        println!("received: {}", String::from_utf8_lossy(&text));
        Ok(())
    }

    /// Posts a SEND. While the queue is full, waits for a completion.
    fn send(&mut self, bytes: &[u8], is_signalled: bool) -> Result<()> {
        while self.posted - self.completed == u64::from(SENDS) {
            self.take_completion()?;
        }
        let start = slot(self.posted % u64::from(SENDS)).start;
        self.pair.write(start, bytes);
        self.posted += 1;
        let send = VerbsOperation {
            is_signalled,
            is_inline: self.settings.inline,
            ..VerbsOperation::send(FIRST_SEND + self.posted, start..start + bytes.len())
        };
        self.pair.post(&send, None)?;
        self.signalled += u64::from(is_signalled);
        Ok(())
    }

    /// Waits for a message, and posts its receive once more.
    fn receive(&mut self) -> Result<Vec<u8>> {
        loop {
            if let Some((slot, length)) = self.arrived.pop_front() {
                let mut bytes = vec![0; length];
                self.pair.read(receive_slot(slot).start, &mut bytes);
                self.post_receive(slot)?;
                return Ok(bytes);
            }
            self.take_completion()?;
        }
    }

    fn post_receive(&mut self, slot: u64) -> Result<()> {
        self.pair.post_receive(slot, &receive_slot(slot))?;
        Ok(())
    }

    /// Waits for a completion. That of a send completes all sends before it.
    fn take_completion(&mut self) -> Result<()> {
        let (id, bytes) = self.waiter.next(&self.completions)?;
        if id > FIRST_SEND {
            self.completed = id - FIRST_SEND;
        } else {
            self.arrived.push_back((id, bytes));
        }
        Ok(())
    }
}

/// Returns the bytes of the memory from which a message is sent.
fn slot(number: u64) -> Range<usize> {
    let start = usize::try_from(number).expect("a small number") * SLOT_BYTES;
    start..start + SLOT_BYTES
}

/// Returns the bytes of the memory into which a message is received: behind those of all sends.
fn receive_slot(number: u64) -> Range<usize> {
    slot(u64::from(SENDS) + number)
}

/// Returns the bytes of a message.
fn message(number: u64) -> Vec<u8> {
    let mut bytes = format!("message {number}").into_bytes();
    bytes.resize(MESSAGE_BYTES, b'.');
    bytes
}
