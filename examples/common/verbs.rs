//! Code that the examples of verbs share: their arguments, the stream between the two ends, and the wait for a
//! completion.

use std::{
    env, hint,
    process::ExitCode,
    sync::{Arc, OnceLock},
    thread,
    time::Duration,
};

use anyhow::{Context, Error, Result, bail};
use rdpipe::{
    RdmaConfig, Stream, TransportPolicy,
    verbs::{Completion, CompletionQueue, QueuePair, QueuePairAddress, QueuePairConfig},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The bytes of a message in a work request, with the argument `inline`. Every device can carry as many.
pub(crate) const INLINE_BYTES: u32 = 64;

/// The context of an error of a registration.
pub(crate) const NO_MEMORY: &str = "cannot pin memory, which `ulimit -l` limits";

/// The arguments behind host and port.
const SWITCHES: &str = "inline, unsignalled, event, messages=N, device=NAME";

/// How long a thread waits for an event before it checks that the peer is still there.
const LOOK: Duration = Duration::from_millis(50);

/// The number of polls before a thread checks that the peer is still there.
const POLLS: u32 = 1024;

/// One of the two ends.
pub(crate) enum End {
    Listener { port: String },
    Dialer { host: String, port: u16 },
}

/// The parameters of the tutorial that arguments switch.
pub(crate) struct Settings {
    /// Work requests carry their bytes.
    pub(crate) inline: bool,
    /// Only some work requests make a completion.
    pub(crate) unsignalled: bool,
    /// The thread sleeps until an event, in place of polling without a pause.
    pub(crate) event: bool,
    /// The number of messages that `verbs_send_recv` sends, the same at both ends.
    pub(crate) messages: u64,
    /// The only device that may be used.
    pub(crate) device: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            inline: false,
            unsignalled: false,
            event: false,
            messages: 1000,
            device: None,
        }
    }
}

/// What the ends send each other, so that their queue pairs can be connected.
#[derive(Serialize, Deserialize)]
pub(crate) struct Introduction {
    /// The number of the queue pair, and the addresses of its port.
    pub(crate) address: QueuePairAddress,
    /// The first packet sequence number.
    pub(crate) psn: u32,
    /// The largest packet payload of the port, in bytes.
    pub(crate) mtu: u32,
    /// The number of READs that the end answers at once.
    pub(crate) answered_reads: u8,
}

impl End {
    /// Parses the arguments of the example `name`.
    pub(crate) fn from_arguments(name: &str) -> Result<(Self, Settings)> {
        let words: Vec<String> = env::args().skip(1).collect();
        let [first, port, switches @ ..] = &words[..] else {
            bail!("usage: {name} listen PORT | {name} HOST PORT, then any of {SWITCHES}");
        };
        let mut settings = Settings::default();
        for switch in switches {
            settings.switch(switch)?;
        }
        let number = port.parse();
        let number = number.with_context(|| format!("{port} is not the number of a port"))?;
        let end = match first.as_str() {
            "listen" => Self::Listener { port: port.clone() },
            host => Self::Dialer {
                host: host.to_owned(),
                port: number,
            },
        };
        Ok((end, settings))
    }

    /// Returns a stream over TCP to the other end, which has proved that it has the key in `RDPIPE_KEY`.
    pub(crate) async fn meet(&self) -> Result<Stream> {
        let builder = crate::common::builder()?.transport(TransportPolicy::Tcp);
        match self {
            Self::Listener { port } => {
                let listener = crate::common::listen(&builder, port).await?;
                Ok(listener.accept().await?)
            }
            Self::Dialer { host, port } => Ok(builder.connect((host.as_str(), *port)).await?),
        }
    }
}

impl Settings {
    fn switch(&mut self, argument: &str) -> Result<()> {
        match argument.split_once('=') {
            None if argument == "inline" => self.inline = true,
            None if argument == "unsignalled" => self.unsignalled = true,
            None if argument == "event" => self.event = true,
            Some(("messages", count)) => {
                let parsed = count.parse();
                self.messages = parsed.with_context(|| format!("{count} is not a number"))?;
            }
            Some(("device", name)) => self.device = Some(name.to_owned()),
            _ => bail!("{argument} is not one of {SWITCHES}"),
        }
        Ok(())
    }

    /// Returns the first usable port of this host, or of the device that was named.
    pub(crate) fn choose_port(&self) -> Result<QueuePairConfig> {
        let mut rdma = RdmaConfig::default();
        rdma.device.clone_from(&self.device);
        Ok(QueuePairConfig::choose(&rdma)?)
    }

    /// Returns the bytes that a work request can carry.
    pub(crate) fn inline_bytes(&self) -> u32 {
        if self.inline { INLINE_BYTES } else { 0 }
    }
}

/// Sends `own` to the other end, and returns what the other end sends.
pub(crate) async fn exchange<T>(stream: &mut Stream, own: &T) -> Result<T>
where
    T: Serialize + DeserializeOwned,
{
    let bytes = postcard::to_stdvec(own)?;
    stream.write_u8(u8::try_from(bytes.len())?).await?;
    stream.write_all(&bytes).await?;
    stream.flush().await?;
    let mut bytes = vec![0; stream.read_u8().await?.into()];
    stream.read_exact(&mut bytes).await?;
    Ok(postcard::from_bytes(&bytes)?)
}

/// Connects the queue pair to that of the other end, and waits until the other end has done the same.
pub(crate) async fn connect(
    pair: &mut QueuePair,
    config: &mut QueuePairConfig,
    stream: &mut Stream,
) -> Result<()> {
    let own = Introduction {
        address: pair.address(config)?,
        psn: config.send_psn,
        mtu: config.mtu,
        answered_reads: pair.read_depths()?.answered,
    };
    let theirs = exchange(stream, &own).await?;
    config.receive_psn = theirs.psn;
    config.mtu = config.mtu.min(theirs.mtu);
    pair.connect_for_reads(config, theirs.address, theirs.answered_reads)?;
    exchange(stream, &()).await?;
    println!("connected: {} to {}", own.address, theirs.address);
    Ok(())
}

/// Waits for completions, for as long as the other end is there.
pub(crate) struct Waiter {
    event: bool,
    /// Why the stream to the other end has failed.
    gone: Arc<OnceLock<String>>,
}

impl Waiter {
    pub(crate) fn new(stream: &Stream, settings: &Settings) -> Self {
        let gone = Arc::new(OnceLock::new());
        let (watch, failed) = (stream.watch(), Arc::clone(&gone));
        tokio::spawn(async move {
            let error = Error::from(watch.interrupted().await);
            // There is one task that sets it.
            let _ = failed.set(format!("{error:#}"));
        });
        Self {
            event: settings.event,
            gone,
        }
    }

    /// Returns the oldest completion, and waits until there is one.
    pub(crate) fn next(&self, completions: &CompletionQueue) -> Result<(u64, usize)> {
        loop {
            if let Some(completion) = self.poll(completions)? {
                return succeeded(completion);
            }
            if self.event {
                completions.arm()?;
                // A completion that came before the queue was armed makes no event.
                if let Some(completion) = completions.poll_one()? {
                    return succeeded(completion);
                }
                completions.wait_event(LOOK)?;
            }
            self.check()?;
        }
    }

    /// Polls once before a wait for an event, else many times.
    fn poll(&self, completions: &CompletionQueue) -> Result<Option<Completion>> {
        let polls = if self.event { 1 } else { POLLS };
        for _ in 0..polls {
            if let Some(completion) = completions.poll_one()? {
                return Ok(Some(completion));
            }
            hint::spin_loop();
        }
        Ok(None)
    }

    /// Checks that the other end is still there, and lets other threads run.
    pub(crate) fn check(&self) -> Result<()> {
        thread::yield_now();
        match self.gone.get() {
            Some(why) => bail!("the other end is gone: {why}"),
            None => Ok(()),
        }
    }
}

fn succeeded(completion: Completion) -> Result<(u64, usize)> {
    let bytes = completion.result;
    let bytes = bytes.with_context(|| format!("work request {} has failed", completion.id))?;
    Ok((completion.id, bytes))
}

/// Ends the stream after the other end has ended its own: until then, both ends keep their queue pairs and their
/// memory.
pub(crate) async fn finish(stream: Stream) -> Result<()> {
    crate::common::goodbye(stream).await?;
    println!("done");
    Ok(())
}

/// Prints the error as one sentence.
pub(crate) fn exit_code(name: &str, result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
