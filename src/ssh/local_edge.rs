//! The controller's own edges: its standard input to the first stage, and the last stage's output to its
//! standard output.

use std::{future::pending, io};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{
    edge::{EdgePlan, about_peer, describe_link},
    protocol::{EdgeLink, FaultKind, WorkFault},
};
use crate::{
    Direction, Error, Key, Stream, StreamConfig, Watch,
    carry::{self, CarryError},
    fd::{Sink, Source},
};

/// What the supervisor tells one of the controller's own edges.
#[derive(Debug)]
pub(crate) enum LocalEdgeCommand {
    /// Connect to the first of these addresses that has the other end.
    Dial { addresses: Vec<String>, port: u16 },
    /// Move bytes.
    Go,
    /// Give up.
    Abort(String),
}

/// What happens to one of the controller's own edges.
#[derive(Debug, Clone)]
pub(crate) enum LocalEdgeEvent {
    /// The edge is connected, over this.
    Connected(EdgeLink),
    /// No address could be reached: each with what happened there.
    Unreachable(Vec<(String, String)>),
    /// The edge has ended. Nothing comes after it.
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

/// One of the controller's own edges. It reads standard input if it sends, and writes standard output if it
/// receives.
pub(crate) struct LocalEdge {
    plan: EdgePlan,
    commands: UnboundedReceiver<LocalEdgeCommand>,
    events: Box<dyn Fn(LocalEdgeEvent) + Send + Sync>,
}

impl LocalEdge {
    /// Returns an edge to [`serve`](Self::serve), and the way to command it. `config` has the direction.
    pub(crate) fn new(
        key: Key,
        peer: String,
        config: StreamConfig,
        events: impl Fn(LocalEdgeEvent) + Send + Sync + 'static,
    ) -> (Self, UnboundedSender<LocalEdgeCommand>) {
        let (sender, commands) = unbounded_channel();
        let edge = Self {
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

    /// Serves the edge to its end, on the runtime where its bytes are to move.
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
                Some(LocalEdgeCommand::Dial { addresses, port }) => {
                    let dialling = self.plan.dial(&addresses, port);
                    let dialled = tokio::select! {
                        dialled = dialling => dialled,
                        reason = aborted(&mut self.commands) => return Err(ordered(reason)),
                    };
                    match dialled {
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

    /// Waits until all edges stand, then moves the bytes.
    async fn carry(&mut self, mut stream: Stream) -> LocalEdgeEnd {
        let mut ended = LocalEdgeEnd::default();
        let watch = stream.watch();
        let work = async {
            self.wait_for_go(&watch).await?;
            let commands = &mut self.commands;
            let work = async {
                match self.plan.config.direction {
                    Direction::Send => give(&mut stream).await,
                    Direction::Receive | Direction::Both => {
                        take(&mut stream, &mut ended.reader_left).await
                    }
                }
            };
            tokio::select! {
                result = work => result,
                reason = aborted(commands) => Err(Broken::Ordered(reason)),
            }
        };
        let result = work.await;
        ended.fault = match result {
            // A reader that wants no more is content.
            Ok(()) | Err(Broken::Stream(Error::Stopped { .. })) => None,
            Err(Broken::Stream(error)) => Some(self.fault(&error)),
            Err(Broken::Own(text)) => {
                stream.abort(&format!("rdpipe: {text}"));
                let kind = FaultKind::Local;
                Some(WorkFault { kind, text })
            }
            Err(Broken::Ordered(reason)) => {
                stream.abort(&reason);
                Some(ordered(reason))
            }
        };
        stream.close().await;
        ended
    }

    async fn wait_for_go(&mut self, watch: &Watch) -> Result<(), Broken> {
        loop {
            let command = tokio::select! {
                command = self.commands.recv() => command,
                error = watch.interrupted() => return Err(Broken::Stream(error)),
            };
            match command {
                Some(LocalEdgeCommand::Go) => return Ok(()),
                Some(LocalEdgeCommand::Abort(reason)) => return Err(Broken::Ordered(reason)),
                Some(LocalEdgeCommand::Dial { .. }) => {}
                None => return Err(Broken::Ordered("rdpipe has ended".to_owned())),
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

/// Why a lane ends before its time.
enum Broken {
    Stream(Error),
    /// A file of ours: in words.
    Own(String),
    Ordered(String),
}

impl Broken {
    fn carry(error: CarryError, name: &str) -> Self {
        match error {
            CarryError::Stream(error) => Self::Stream(error),
            CarryError::Source { offset, source } => {
                Self::Own(format!("cannot read {name} at byte {offset}: {source}"))
            }
            CarryError::Sink { offset, source } => {
                Self::Own(format!("cannot write {name} at byte {offset}: {source}"))
            }
        }
    }
}

fn ordered(text: String) -> WorkFault {
    let kind = FaultKind::Ordered;
    WorkFault { kind, text }
}

/// Completes when the lane is told to give up.
async fn aborted(commands: &mut UnboundedReceiver<LocalEdgeCommand>) -> String {
    loop {
        match commands.recv().await {
            Some(LocalEdgeCommand::Abort(reason)) => return reason,
            Some(_) => {}
            None => return pending().await,
        }
    }
}

/// Standard input, to its end.
async fn give(stream: &mut Stream) -> Result<(), Broken> {
    let cannot = |error: io::Error| Broken::Own(format!("cannot read standard input: {error}"));
    let mut source = Source::stdin().map_err(cannot)?;
    let name = source.describe().to_owned();
    let sent = carry::send_all_and_finish(&mut source, stream).await;
    sent.map(drop).map_err(|error| Broken::carry(error, &name))
}

/// The last stage's output, to its end.
async fn take(stream: &mut Stream, reader_left: &mut bool) -> Result<(), Broken> {
    let cannot = |error: io::Error| Broken::Own(format!("cannot write standard output: {error}"));
    let mut sink = Sink::stdout().map_err(cannot)?;
    let name = sink.describe().to_owned();
    match carry::receive_all(stream, &mut sink).await {
        Ok(_) => {}
        // Like a death by SIGPIPE: the pipeline has nobody to work for, and that is no failure.
        Err(CarryError::Sink { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => {
            *reader_left = true;
            stream.stop();
            return Ok(());
        }
        Err(error) => return Err(Broken::carry(error, &name)),
    }
    sink.close(false)
        .await
        .map_err(|error| Broken::Own(format!("cannot finish {name}: {error}")))?;
    // The bytes are where they belong; whether the stage hears of it is its own affair.
    let _ = stream.confirm();
    Ok(())
}
