//! The agent: two processes on each host, a worker that carries out one order and a guard above it.
//!
//! `rdpipe --agent` is the *guard* ([`guard`]). It starts the *worker*, waits until the worker has exited or died, and
//! kills every process that the worker left behind. The worker exchanges messages with the controller over stdin and
//! stdout ([`outbox`]), connects the order's edges ([`edges`]), runs the application that the order is for ([`job`]),
//! and reports. [`served`] does the same for a client of a server. [`stage`] is the application of rdpipe and rdcat;
//! the others come from the layers above ([`job::Applications`]).
//!
//! An agent may be a [`relay`] instead, for an edge of other agents that goes through ssh.
//!
//! The worker has one main thread for all control, and one thread for each edge, which moves the bytes of the edge. So
//! a relay uses two processors, and a disk that stalls delays only its own edge.

mod descendants;
pub(crate) mod edges;
mod guard;
pub(crate) mod job;
pub(crate) mod outbox;
pub(crate) mod relay;
pub(crate) mod served;
mod stage;
#[cfg(test)]
mod tests;

use std::{
    io::{self, Write},
    process::ExitCode,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::BytesMut;
use futures::StreamExt;
use rustix::process::{
    Signal, getpid, getppid, set_child_subreaper, set_parent_process_death_signal,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    signal::unix::{SignalKind, signal},
    time::timeout,
};
use tokio_util::{
    codec::{Decoder, FramedRead},
    task::TaskTracker,
};
use zeroize::Zeroize;

use self::{
    edges::EdgeAcceptance,
    job::{Applications, FirstFault, Job, JobContext, OrderRun, SharedExitCode},
    outbox::{ControlWriter, Outbox},
    stage::StageJob,
};
use crate::{
    fd::{Sink, Source},
    host::{host_name, machine, streams},
    process::is_signal_ignored,
    reach,
    running_time::within_running_time,
    ssh::{
        explain,
        frames::{FrameCodec, codec},
        protocol::{
            AgentHello, FaultKind, FromAgent, MessageError, Order, ToAgent, VERSION, Work, decode,
            greeting, parse_greeting,
        },
    },
    threads,
};

pub(crate) use guard::main as guard_main;
pub(crate) use stage::files::resolve;

#[cfg(any(test, fuzzing))]
pub use descendants::fuzz as fuzz_proc_stat;

/// Runs the worker: `rdpipe --agent=worker`, a child of the guard. `A` has the applications beside the stages.
pub(crate) fn worker_main<A: Applications>() -> ExitCode {
    ExitCode::from(run::<A>())
}

/// Runs the worker, and returns its exit status.
fn run<A: Applications>() -> u8 {
    work::<A>().unwrap_or_else(|error| {
        // There is no session to report in. The controller shows the lines of stderr. One that is gone has refused the
        // run, and said so, or its death is told where it was started.
        if !matches!(error, ControllerError::Gone) {
            let _ = writeln!(io::stderr(), "rdpipe: {error}");
        }
        1
    })
}

fn work<A: Applications>() -> Result<u8, ControllerError> {
    set_child_subreaper(Some(getpid())).map_err(io::Error::from)?;
    die_with_parent()?;
    let runtime = threads::runtime()?;
    let exit = runtime.block_on(async {
        let (input, output) = (Source::stdin()?, [Sink::stdout()?, Sink::stdout()?]);
        let first_fault = Arc::default();
        let exit = watch(&first_fault)?;
        hide_stdio()?;
        exchange_messages::<A, _, _>(input, output, first_fault, exit).await
    });
    // A thread that hangs in a file must not keep the process from exiting.
    runtime.shutdown_background();
    exit
}

/// Makes the kernel send SIGTERM to this process when the guard dies: without a guard, only the worker itself can
/// clean up.
fn die_with_parent() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // If the guard died before the call, the parent is now another process.
    let guard = guard::guard_process();
    if guard.is_some() && getppid() != guard {
        return Err(io::Error::other("the guard of the agent is gone"));
    }
    Ok(())
}

/// Points stdin and stdout at `/dev/null`. The session uses other descriptors, so a stray print cannot write into it.
fn hide_stdio() -> io::Result<()> {
    let null = guard::null()?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

async fn exchange_messages<A, R, W>(
    input: R,
    [output, relay_output]: [W; 2],
    first_fault: Arc<FirstFault>,
    exit: SharedExitCode,
) -> Result<u8, ControllerError>
where
    A: Applications,
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let hello = hello();
    let opening = open(input, output, hello, ORDER_LIMIT, None);
    let (order, inbox, outbox, writer) = tokio::select! {
        opened = opening => opened?,
        () = first_fault.failed() => return Ok(exit.load(Ordering::Relaxed)),
    };
    if let Work::Relay(order) = &order.work {
        let end = (outbox, writer);
        let carrying = relay::carry::<A, _, _>(order, inbox, end, relay_output);
        return tokio::select! {
            carried = carrying => carried.map(|()| 0),
            () = first_fault.failed() => Ok(exit.load(Ordering::Relaxed)),
        };
    }
    let context = JobContext {
        name: order.name.clone(),
        first_fault,
        outbox,
        // The process ends with its threads.
        threads: TaskTracker::new().token(),
    };
    let run = OrderRun {
        context: context.clone(),
        acceptance: EdgeAcceptance::OwnListeners,
        connect_limit: None,
        exit: Arc::clone(&exit),
    };
    let report = match &order.work {
        Work::Stage(_) => run.carry_out(order, inbox, StageJob::prepare).await,
        Work::Copy(_) => run.carry_out(order, inbox, A::Copy::prepare).await,
        Work::Measure(_) => run.carry_out(order, inbox, A::Measure::prepare).await,
        // A relay has been carried out above.
        Work::Forward(_) | Work::Relay(_) => run.carry_out(order, inbox, A::Forward::prepare).await,
    };
    drop(run);
    context.outbox.send(FromAgent::Report(report));
    drop(context);
    writer.finish().await;
    Ok(exit.load(Ordering::Relaxed))
}

/// The signals that end the worker: SIGINT (^C), SIGTERM (kill, or the death of the guard) and SIGHUP (a closed
/// terminal).
const SIGNALS: [u8; 3] = [2, SIGTERM, 1];

/// The signal that the kernel sends when the guard dies: it ends the worker even if its parent ignored it.
const SIGTERM: u8 = 15;

/// Starts tasks that fail `first_fault` at the first signal. Returns the exit status, which such a signal sets.
///
/// SIGINT and SIGHUP stay ignored if they were ignored at the start, for the worker and for its command: `nohup` and a
/// shell's `&` ignore them, and a handler would give the command their default.
fn watch(first_fault: &Arc<FirstFault>) -> io::Result<SharedExitCode> {
    let exit = SharedExitCode::default();
    for number in SIGNALS {
        if number != SIGTERM && is_signal_ignored(number) {
            continue;
        }
        let mut signals = signal(SignalKind::from_raw(number.into()))?;
        let (first_fault, exit) = (Arc::clone(first_fault), Arc::clone(&exit));
        threads::spawn(async move {
            if signals.recv().await.is_some() {
                exit.store(128 + number, Ordering::Relaxed);
                let text = format!("the agent was ended by {}", explain::signal(number));
                first_fault.fail(FaultKind::Local, text.clone(), text);
            }
        });
    }
    Ok(exit)
}

/// How long the agent waits for the controller's greeting and order. The controller sends both at once, so this
/// limit only has to cover a slow network.
const ORDER_LIMIT: Duration = Duration::from_secs(30);

/// The most bytes up to the end of a greeting: more than the script that starts an agent on a host. The agent receives
/// that script where a key in `authorized_keys` allows the command `rdpipe --agent` alone.
const MAX_GREETING_BYTES: usize = 16 << 10;

/// The reason why the session with the controller has failed.
#[derive(Debug, thiserror::Error)]
enum ControllerError {
    /// The messages ended: the controller exited or was killed, or the session was cut.
    #[error("the controller is gone")]
    Gone,
    #[error("received nothing from the controller for {0:.1?}")]
    Silent(Duration),
    #[error(
        "received the controller's greeting, and no order within {0:.1?}; a program between the two probably holds back its input: turn its buffering off"
    )]
    NoOrder(Duration),
    #[error("the session with the controller broke: {0}")]
    Broken(io::Error),
    #[error("the controller does not read: the messages that wait for it are more than are kept")]
    Unread,
    #[error("the controller has read nothing for {0:.1?}, and messages wait for it")]
    Stuck(Duration),
    #[error("received an invalid message from the controller ({0})")]
    Garbage(&'static str),
    #[error("received an invalid message from the controller ({0})")]
    Message(#[from] MessageError),
    #[error(
        "the agent here is rdpipe {}, the controller is rdpipe {theirs}; install the same on all hosts",
        env!("CARGO_PKG_VERSION")
    )]
    Version { theirs: String },
}

impl From<io::Error> for ControllerError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Gone,
            _ => Self::Broken(error),
        }
    }
}

/// Receives the messages of the controller.
struct ControlReader<R> {
    frames: FramedRead<R, FrameCodec>,
    outbox: Outbox,
    silence: Duration,
}

impl<R: AsyncRead + Unpin> ControlReader<R> {
    /// Returns the next message. Answers pings itself. Fails if the controller does not read those of the agent.
    /// Cancel safe: a message that was not returned is returned by the next call.
    async fn next(&mut self) -> Result<ToAgent, ControllerError> {
        loop {
            let silence = self.silence;
            let frame = if let Some(frame) = self.buffered() {
                Some(frame)
            } else {
                tokio::select! {
                    biased;
                    frame = within_running_time(silence, self.frames.next()) => {
                        frame.ok_or(ControllerError::Silent(silence))?
                    }
                    error = self.outbox.failed() => return Err(error),
                }
            };
            match parse(frame)? {
                ToAgent::Ping => self.outbox.pong(),
                message => return Ok(message),
            }
        }
    }
}

impl<R> ControlReader<R> {
    /// Returns the input behind the last message, with what was read of it.
    fn into_input(mut self) -> (BytesMut, R) {
        let rest = std::mem::take(self.frames.read_buffer_mut());
        (rest, self.frames.into_inner())
    }

    /// Returns the next frame if all of it is in the buffer already. Reads nothing.
    fn buffered(&mut self) -> Option<io::Result<BytesMut>> {
        let mut buffer = std::mem::take(self.frames.read_buffer_mut());
        let frame = self.frames.decoder_mut().decode(&mut buffer);
        *self.frames.read_buffer_mut() = buffer;
        frame.transpose()
    }
}

/// Decodes one frame, which may have held keys, and wipes it.
fn parse(frame: Option<io::Result<BytesMut>>) -> Result<ToAgent, ControllerError> {
    let mut frame = match frame {
        None => return Err(ControllerError::Gone),
        Some(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
            return Err(ControllerError::Garbage("a message too long"));
        }
        Some(frame) => frame?,
    };
    let message = decode(&frame);
    frame.as_mut().zeroize();
    Ok(message?)
}

/// Opens the session: sends the greeting and the hello, and receives the controller's greeting and its order. With a
/// `read_limit`, a controller that reads nothing for so long counts as lost.
/// Fails if the order cannot be decoded, or does not arrive within `limit`.
async fn open<R, W>(
    mut input: R,
    mut output: W,
    hello: AgentHello,
    limit: Duration,
    read_limit: Option<Duration>,
) -> Result<(Order, ControlReader<R>, Outbox, ControlWriter), ControllerError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    output.write_all(greeting("agent").as_bytes()).await?;
    let (writer, outbox) = ControlWriter::start(output, read_limit);
    outbox.send(FromAgent::Hello(hello));
    let mut is_greeted = false;
    let ordering = async {
        greet(&mut input).await?;
        is_greeted = true;
        let frames = FramedRead::new(input, codec());
        let mut inbox = ControlReader {
            frames,
            outbox: outbox.clone(),
            silence: limit,
        };
        let ToAgent::Order(order) = inbox.next().await? else {
            return Err(ControllerError::Garbage("a message before the order"));
        };
        inbox.silence = order.stream.timeout();
        Ok((*order, inbox))
    };
    let ordered = timeout(limit, ordering).await;
    let ordered = ordered.unwrap_or(Err(ControllerError::Silent(limit)));
    match ordered {
        Ok((order, inbox)) => Ok((order, inbox, outbox, writer)),
        Err(error) => {
            // The controller learns what speaks here.
            writer.finish().await;
            Err(match error {
                ControllerError::Silent(limit) if is_greeted => ControllerError::NoOrder(limit),
                error => error,
            })
        }
    }
}

/// Reads the lines up to the controller's greeting, and no byte after it.
async fn greet(input: &mut (impl AsyncRead + Unpin)) -> Result<(), ControllerError> {
    let mut line = Vec::new();
    for _ in 0..MAX_GREETING_BYTES {
        match input.read_u8().await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(ControllerError::Gone);
            }
            byte => line.push(byte?),
        }
        if !line.ends_with(b"\n") {
            continue;
        }
        // The greeting begins with an empty line, which ends any unfinished line before it.
        match parse_greeting(&String::from_utf8_lossy(&line), "controller") {
            None => line.clear(),
            Some((VERSION, _)) => return Ok(()),
            Some((version, program)) => {
                let theirs = format!("{program} (protocol {version} there, {VERSION} here)");
                return Err(ControllerError::Version { theirs });
            }
        }
    }
    Err(ControllerError::Garbage("no greeting"))
}

/// Returns the first message of an agent on this host.
pub(crate) fn hello() -> AgentHello {
    AgentHello {
        host: host_name(),
        machine: machine(),
        addresses: reach::addresses(),
        streams: streams(),
        most_streams: None,
    }
}

/// Reads `data` as everything that a controller writes, up to the first error: its end is one. Panics if reading waits
/// for more.
#[cfg(any(test, fuzzing))]
pub fn fuzz_controller(data: &[u8]) {
    let hello = AgentHello {
        host: "h".to_owned(),
        machine: "m".to_owned(),
        addresses: Vec::new(),
        streams: 1,
        most_streams: None,
    };
    let limit = Duration::from_secs(30);
    let reading = async {
        let opened = open(data, tokio::io::sink(), hello, limit, None).await;
        let Ok((_, mut inbox, outbox, writer)) = opened else {
            return;
        };
        while inbox.next().await.is_ok() {}
        drop((inbox, outbox));
        writer.finish().await;
    };
    let in_time = crate::transport::fuzzing::run(async { timeout(limit / 3, reading).await });
    in_time.expect("reading waits for more");
}
