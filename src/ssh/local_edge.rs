//! The controller's own edges: its standard input to the first stage, the last stage's output to its
//! standard output, or what another program carries over an edge.

use std::{
    future::pending,
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncBufReadExt, AsyncWrite};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{
    edge::{EdgePlan, about_peer, describe_link},
    protocol::{EdgeLink, FaultKind, WorkFault},
};
use crate::{
    Direction, Error, Key, Stream, StreamConfig, Watch,
    advice::Advised,
    carry::{self, CarryError, StreamSink},
    fd::{Sink, Source},
    options::FlowOptions,
};

/// A command from the supervisor to one of the controller's own edges.
#[derive(Debug)]
pub(crate) enum LocalEdgeCommand {
    /// Connects to the first of these addresses at which the other end listens.
    Dial {
        addresses: Vec<String>,
        port: u16,
        /// Whether the connections go through ssh.
        is_relayed: bool,
    },
    /// Starts to move bytes.
    Go,
    /// Aborts the edge, for this reason.
    Abort(String),
}

/// An event of one of the controller's own edges.
#[derive(Debug, Clone)]
pub(crate) enum LocalEdgeEvent {
    Connected(EdgeLink),
    /// The peer was found at none of the addresses: each address, and how the attempt failed.
    Unreachable(Vec<(String, String)>),
    /// The last event: the edge has ended.
    Ended(LocalEdgeEnd),
}

/// How one of the controller's own edges ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct LocalEdgeEnd {
    /// What broke, if anything did.
    pub(crate) fault: Option<WorkFault>,
    /// Whether the reader of standard output closed it before the end.
    pub(crate) reader_left: bool,
}

/// What one of the controller's own edges carries.
pub(crate) trait LocalWork: Send {
    /// Moves the bytes of the edge, after all edges are connected, until the stream has ended in order.
    /// Dropping the future ends the work. The caller aborts the stream.
    fn carry(&mut self, stream: &mut Stream) -> impl Future<Output = Result<(), EdgeError>> + Send;

    /// Handles that the edge goes through ssh: before its stream is connected.
    fn relayed(&mut self) {}

    /// Returns true if the reader of standard output closed it before the end.
    fn reader_left(&self) -> bool {
        false
    }
}

/// An edge that sends standard input, or writes what it receives to standard output.
#[derive(Default)]
pub(crate) struct StandardStream {
    /// Called before the first byte of the output.
    pub(crate) before_output: Option<Box<dyn FnOnce() + Send>>,
    /// What limits and holds the bytes.
    pub(crate) flow: FlowOptions,
    reader_left: bool,
}

/// One of the controller's own edges.
pub(crate) struct LocalEdge<W> {
    work: W,
    plan: EdgePlan,
    commands: UnboundedReceiver<LocalEdgeCommand>,
    events: Box<dyn Fn(LocalEdgeEvent) + Send + Sync>,
}

impl<W: LocalWork> LocalEdge<W> {
    /// Returns an edge to [`serve`](Self::serve), and a sender for its commands. `config` sets the direction.
    pub(crate) fn new(
        work: W,
        key: Key,
        peer: String,
        config: StreamConfig,
        events: impl Fn(LocalEdgeEvent) + Send + Sync + 'static,
    ) -> (Self, UnboundedSender<LocalEdgeCommand>) {
        let (sender, commands) = unbounded_channel();
        let edge = Self {
            work,
            plan: EdgePlan {
                key,
                peer,
                config,
                ports: None,
            },
            commands,
            events: Box::new(events),
        };
        (edge, sender)
    }

    /// Connects the edge and carries its bytes until it ends. The bytes are moved on the current runtime.
    pub(crate) async fn serve(mut self) {
        let ended = match self.connect().await {
            Ok(stream) => self.carry(stream).await,
            Err(fault) => LocalEdgeEnd {
                fault: Some(fault),
                ..LocalEdgeEnd::default()
            },
        };
        (self.events)(LocalEdgeEvent::Ended(ended));
    }

    async fn connect(&mut self) -> Result<Stream, WorkFault> {
        loop {
            match self.commands.recv().await {
                Some(LocalEdgeCommand::Dial {
                    addresses,
                    port,
                    is_relayed,
                }) => {
                    if is_relayed {
                        self.work.relayed();
                    }
                    let dialing = self.plan.dial(&addresses, port, is_relayed);
                    let dialed = tokio::select! {
                        dialed = dialing => dialed,
                        reason = aborted(&mut self.commands) => return Err(ordered(reason)),
                    };
                    match dialed {
                        Ok(Ok(stream)) => {
                            (self.events)(LocalEdgeEvent::Connected(describe_link(&stream)));
                            return Ok(stream);
                        }
                        Ok(Err(tried)) => (self.events)(LocalEdgeEvent::Unreachable(tried)),
                        Err(text) => {
                            let kind = FaultKind::Edge;
                            return Err(WorkFault { kind, text });
                        }
                    }
                }
                Some(LocalEdgeCommand::Go) => {}
                Some(LocalEdgeCommand::Abort(reason)) => return Err(ordered(reason)),
                None => return Err(ordered("rdpipe has ended".to_owned())),
            }
        }
    }

    /// Waits for [`LocalEdgeCommand::Go`], then moves the bytes.
    async fn carry(&mut self, mut stream: Stream) -> LocalEdgeEnd {
        let mut ended = LocalEdgeEnd::default();
        let watch = stream.watch();
        let work = async {
            self.wait_for_go(&watch).await?;
            let commands = &mut self.commands;
            tokio::select! {
                result = self.work.carry(&mut stream) => result,
                reason = aborted(commands) => Err(EdgeError::Ordered(reason)),
            }
        };
        let result = work.await;
        ended.reader_left = self.work.reader_left();
        ended.fault = match result {
            // The first stage may stop reading early: that is not a failure.
            Ok(()) | Err(EdgeError::Stream(Error::Stopped { .. })) => None,
            Err(EdgeError::Stream(error)) => Some(self.fault(&error)),
            Err(EdgeError::Local(text)) => {
                stream.abort(&format!("rdpipe: {text}"));
                let kind = FaultKind::Local;
                Some(WorkFault { kind, text })
            }
            Err(EdgeError::Ordered(reason)) => {
                stream.abort(&reason);
                Some(ordered(reason))
            }
        };
        stream.close().await;
        ended
    }

    async fn wait_for_go(&mut self, watch: &Watch) -> Result<(), EdgeError> {
        loop {
            let command = tokio::select! {
                command = self.commands.recv() => command,
                error = watch.interrupted() => return Err(EdgeError::Stream(error)),
            };
            match command {
                Some(LocalEdgeCommand::Go) => return Ok(()),
                Some(LocalEdgeCommand::Abort(reason)) => return Err(EdgeError::Ordered(reason)),
                Some(LocalEdgeCommand::Dial { .. }) => {}
                None => return Err(EdgeError::Ordered("rdpipe has ended".to_owned())),
            }
        }
    }

    fn fault(&self, error: &Error) -> WorkFault {
        let kind = match error {
            Error::PeerAborted { .. } => FaultKind::PeerAborted,
            Error::Aborted { .. } => FaultKind::Ordered,
            _ => FaultKind::Edge,
        };
        let text = about_peer(error.clone(), &self.plan.peer).to_string();
        WorkFault { kind, text }
    }
}

impl LocalWork for StandardStream {
    async fn carry(&mut self, stream: &mut Stream) -> Result<(), EdgeError> {
        match stream.direction() {
            Direction::Send => send_stdin(stream, self.flow).await,
            Direction::Receive | Direction::Both => {
                if let Some(before_output) = self.before_output.take() {
                    // A failure comes again.
                    let first = stream.fill_buf().await;
                    if first.is_ok_and(|bytes| !bytes.is_empty()) {
                        before_output();
                    }
                }
                write_stdout(stream, self.flow, &mut self.reader_left).await
            }
        }
    }

    fn reader_left(&self) -> bool {
        self.reader_left
    }
}

/// The reason why one of the controller's own edges cannot carry all of its bytes.
#[derive(Debug)]
pub(crate) enum EdgeError {
    Stream(Error),
    /// Standard input or output failed: a sentence for the user.
    Local(String),
    /// The supervisor aborted the edge, for this reason.
    Ordered(String),
}

impl std::fmt::Display for EdgeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stream(error) => Advised(error.clone()).fmt(f),
            Self::Local(text) | Self::Ordered(text) => f.write_str(text),
        }
    }
}

impl EdgeError {
    fn from_carry(error: CarryError, name: &str) -> Self {
        match error {
            CarryError::Stream(error) => Self::Stream(error),
            CarryError::Buffer(error) => Self::Local(error.to_string()),
            CarryError::Source { offset, source } => {
                Self::Local(format!("cannot read {name} at byte {offset}: {source}"))
            }
            CarryError::Sink { offset, source } => {
                Self::Local(format!("cannot write {name} at byte {offset}: {source}"))
            }
        }
    }
}

fn ordered(text: String) -> WorkFault {
    let kind = FaultKind::Ordered;
    WorkFault { kind, text }
}

/// Waits for [`LocalEdgeCommand::Abort`], and returns its reason.
async fn aborted(commands: &mut UnboundedReceiver<LocalEdgeCommand>) -> String {
    loop {
        match commands.recv().await {
            Some(LocalEdgeCommand::Abort(reason)) => return reason,
            Some(_) => {}
            None => return pending().await,
        }
    }
}

/// Sends standard input to its end, and the FIN.
async fn send_stdin(stream: &mut Stream, flow: FlowOptions) -> Result<(), EdgeError> {
    let cannot =
        |error: io::Error| EdgeError::Local(format!("cannot read standard input: {error}"));
    let mut source = Source::stdin().map_err(cannot)?;
    let name = source.describe().to_owned();
    let sent = carry::send_and_finish(&mut source, stream, flow.of_sender()).await;
    sent.map(drop)
        .map_err(|error| EdgeError::from_carry(error, &name))
}

/// Writes the output of the last stage to standard output, up to a verified FIN.
async fn write_stdout(
    stream: &mut Stream,
    flow: FlowOptions,
    reader_left: &mut bool,
) -> Result<(), EdgeError> {
    let mut sink = match Sink::stdout() {
        Ok(sink) => sink,
        Err(error) => return receive_nothing(stream, &error).await,
    };
    let name = sink.describe().to_owned();
    match carry::receive(stream, &mut sink, flow.of_receiver()).await {
        Ok(_) => {}
        // The reader of our output has left. As with SIGPIPE in a shell, that ends the pipeline without a failure.
        Err(CarryError::Sink { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => {
            *reader_left = true;
            // The end may have been read already, into the buffer.
            if stream.confirm().is_err() {
                stream.stop();
            }
            return Ok(());
        }
        Err(error) => return Err(EdgeError::from_carry(error, &name)),
    }
    sink.close(false)
        .await
        .map_err(|error| EdgeError::Local(format!("cannot finish {name}: {error}")))?;
    // All bytes are written. If the confirmation does not reach the stage, the stage reports the failure itself.
    let _ = stream.confirm();
    Ok(())
}

/// Receives the output of the last stage where standard output cannot be used, for the reason `error`. An empty output
/// is complete: that of a pipeline whose last stage writes a file, for example.
async fn receive_nothing(stream: &mut Stream, error: &io::Error) -> Result<(), EdgeError> {
    let cannot = || EdgeError::Local(format!("cannot write standard output: {error}"));
    let received = carry::receive_all(stream, &mut Refusing).await;
    received.map_err(|failed| match failed {
        CarryError::Stream(error) => EdgeError::Stream(error),
        CarryError::Sink { .. } | CarryError::Source { .. } | CarryError::Buffer(_) => cannot(),
    })?;
    let _ = stream.confirm();
    Ok(())
}

/// An output that refuses every byte.
struct Refusing;

impl StreamSink for Refusing {}

impl AsyncWrite for Refusing {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
