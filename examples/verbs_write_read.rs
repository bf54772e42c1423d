//! WRITE and READ between two hosts, with verbs: the listener sends the address and the key of its memory, and the
//! dialer writes it and reads it back. `docs/verbs.md` explains each step.
//!
//! ```console
//! hostB $ RDPIPE_KEY=... cargo run --example verbs_write_read listen PORT
//! hostA $ RDPIPE_KEY=... cargo run --example verbs_write_read HOST PORT
//! ```
//!
//! Further arguments of each end: `inline`, `unsignalled`, `event`, `device=NAME`.

mod common;
#[path = "common/verbs.rs"]
mod verbs;

use std::{ops::Range, process::ExitCode, sync::Arc};

use anyhow::{Context, Result, ensure};
use rdpipe::verbs::{
    CompletionQueue, MemoryRegion, ProtectionDomain, QueuePair, QueueSizes, RemoteRegion,
    VerbsOperation,
};

use crate::verbs::{End, NO_MEMORY, Settings, Waiter, connect, exit_code, finish};

const NAME: &str = "verbs_write_read";

/// What the dialer writes into the memory of the listener.
const TEXT: &[u8] = b"written by the dialer";

/// The bytes of the memory of each end.
const MEMORY_BYTES: usize = 4096;

/// The place of the text in the memory of each end.
const WRITTEN: Range<usize> = 0..TEXT.len();

/// The place of the byte that says that the text is there: behind the text, in a line of the processor's cache of its
/// own.
const FLAG: usize = 64;

/// The place into which the dialer reads the text back.
const READ_BACK: Range<usize> = 128..128 + TEXT.len();

/// The place of the address and the key: sent from it, and received into it.
const INTRODUCTION: Range<usize> = 256..320;

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

    let domain =
        ProtectionDomain::open(&device).with_context(|| format!("cannot open {device}"))?;
    let domain = Arc::new(domain);
    let memory = match end {
        End::Listener { .. } => MemoryRegion::register_shared(&domain, MEMORY_BYTES),
        End::Dialer { .. } => MemoryRegion::register(&domain, MEMORY_BYTES),
    };
    let memory = memory.context(NO_MEMORY)?;
    let completions = Arc::new(CompletionQueue::new(&domain, 8)?);
    let sizes = QueueSizes {
        sends: 4,
        receives: 4,
        inline_bytes: settings.inline_bytes(),
    };
    let pair = QueuePair::exact([&completions, &completions], memory, &config, sizes)?;
    let mut access = MemoryAccess {
        pair,
        completions,
        waiter: Waiter::new(&stream, &settings),
        settings,
    };
    match end {
        End::Listener { .. } => {
            connect(&mut access.pair, &mut config, &mut stream).await?;
            access.offer()?;
        }
        End::Dialer { .. } => {
            access.pair.post_receive(1, &INTRODUCTION)?;
            println!("receives: 1 posted");
            connect(&mut access.pair, &mut config, &mut stream).await?;
            access.use_offer()?;
        }
    }
    // The other end may still need this queue pair and its memory, so they are dropped after the stream.
    finish(stream).await?;
    drop(access);
    Ok(())
}

/// A connected queue pair with its memory.
struct MemoryAccess {
    pair: QueuePair,
    completions: Arc<CompletionQueue>,
    waiter: Waiter,
    settings: Settings,
}

impl MemoryAccess {
    /// Sends the address and the key of the memory, and waits until the other end has written it.
    fn offer(&mut self) -> Result<()> {
        let bytes = postcard::to_stdvec(&self.pair.remote())?;
        let range = INTRODUCTION.start..INTRODUCTION.start + bytes.len();
        self.pair.write(range.start, &bytes);
        self.pair.post(&VerbsOperation::send(1, range), None)?;
        self.waiter.next(&self.completions)?;
        println!("sent: address and key of {MEMORY_BYTES} bytes");

        while self.pair.poll_byte(FLAG) == 0 {
            self.waiter.check()?;
        }
        let mut text = vec![0; TEXT.len()];
        self.pair.read(WRITTEN.start, &mut text);
        println!("in memory: {}", String::from_utf8_lossy(&text));
        ensure!(
            self.completions.poll_one()?.is_none(),
            "a WRITE has made a completion"
        );
        println!("completions and receives for these bytes: none");
        Ok(())
    }

    /// Receives address and key of the other end's memory, writes it and reads it back.
    fn use_offer(&mut self) -> Result<()> {
        let (_, length) = self.waiter.next(&self.completions)?;
        let mut bytes = vec![0; length];
        self.pair.read(INTRODUCTION.start, &mut bytes);
        let region: RemoteRegion = postcard::from_bytes(&bytes)?;
        println!("received: address and key");

        self.pair.write(WRITTEN.start, TEXT);
        self.pair.write(FLAG, &[1]);
        let is_signalled = !self.settings.unsignalled;
        let text = VerbsOperation {
            is_signalled,
            is_inline: self.settings.inline,
            ..VerbsOperation::write(2, WRITTEN, WRITTEN.start)
        };
        let flag = VerbsOperation {
            is_signalled,
            is_inline: self.settings.inline,
            ..VerbsOperation::write(3, FLAG..FLAG + 1, FLAG)
        };
        self.pair.post(&text, Some(&region))?;
        self.pair.post(&flag, Some(&region))?;
        println!("written: {} bytes, and a byte behind them", TEXT.len());

        let read = VerbsOperation::read(4, READ_BACK, WRITTEN.start);
        self.pair.post(&read, Some(&region))?;
        let mut completed = vec![];
        while completed.last() != Some(&4) {
            let (id, _) = self.waiter.next(&self.completions)?;
            completed.push(id);
        }
        let mut text = vec![0; TEXT.len()];
        self.pair.read(READ_BACK.start, &mut text);
        ensure!(text == TEXT, "what was read is not what was written");
        println!("read back: {}", String::from_utf8_lossy(&text));
        println!("completions: {} of 3 work requests", completed.len());
        Ok(())
    }
}
