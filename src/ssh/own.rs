//! rdpipe's own two edges: its input to the first stage, and the last stage's output to its own.

use std::{future::pending, io};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{
    agent::{EdgePlan, link, named},
    protocol::{End, Fault, FaultKind},
    supervisor::{OwnEnd, OwnEvent},
};
use crate::{
    Error, Key, Stream, StreamConfig, Watch,
    carry::{self, CarryError},
    fd::{Sink, Source},
};

/// What the driver says to a lane.
#[derive(Debug)]
pub(crate) enum Command {
    /// Connect to the first of these addresses that has the other end.
    Dial { addresses: Vec<String>, port: u16 },
    /// Move bytes.
    Go,
    /// Give up.
    Abort(String),
}

/// One of rdpipe's own edges, before it is served.
pub(crate) struct Lane {
    /// Which end of the pipeline.
    end: End,
    plan: EdgePlan,
    commands: UnboundedReceiver<Command>,
    events: Box<dyn Fn(OwnEvent) + Send + Sync>,
}

/// What a lane is made of.
pub(crate) struct Parts {
    pub(crate) end: End,
    pub(crate) key: Key,
    pub(crate) peer: String,
    pub(crate) config: StreamConfig,
}

impl Lane {
    /// A lane, and the way to command it.
    pub(crate) fn new(
        parts: Parts,
        events: impl Fn(OwnEvent) + Send + Sync + 'static,
    ) -> (Self, UnboundedSender<Command>) {
        let Parts {
            end,
            key,
            peer,
            config,
        } = parts;
        let (sender, commands) = unbounded_channel();
        let lane = Self {
            end,
            plan: EdgePlan {
                end,
                key,
                peer,
                config,
                ports: None,
            },
            commands,
            events: Box::new(events),
        };
        (lane, sender)
    }

    /// Serves the edge to its end, on the runtime where its bytes are to move.
    pub(crate) async fn serve(mut self) {
        let ended = match self.connect().await {
            Ok(stream) => self.carry(stream).await,
            Err(fault) => OwnEnd {
                fault: Some(fault),
                ..OwnEnd::default()
            },
        };
        (self.events)(OwnEvent::Ended(ended));
    }

    async fn connect(&mut self) -> Result<Stream, Fault> {
        loop {
            match self.commands.recv().await {
                Some(Command::Dial { addresses, port }) => {
                    let dialling = self.plan.dial(&addresses, port);
                    let dialled = tokio::select! {
                        dialled = dialling => dialled,
                        reason = aborted(&mut self.commands) => return Err(ordered(reason)),
                    };
                    match dialled {
                        Ok(Ok(stream)) => {
                            (self.events)(OwnEvent::Connected(link(&stream)));
                            return Ok(stream);
                        }
                        Ok(Err(tried)) => (self.events)(OwnEvent::Unreachable(tried)),
                        Err(text) => {
                            let kind = FaultKind::Edge;
                            return Err(Fault { kind, text });
                        }
                    }
                }
                Some(Command::Go) => {}
                Some(Command::Abort(reason)) => return Err(ordered(reason)),
                None => return Err(ordered("rdpipe has ended".to_owned())),
            }
        }
    }

    /// Waits until all edges stand, then moves the bytes.
    async fn carry(&mut self, mut stream: Stream) -> OwnEnd {
        let mut ended = OwnEnd::default();
        let watch = stream.watch();
        let work = async {
            self.wait_for_go(&watch).await?;
            let commands = &mut self.commands;
            let work = async {
                match self.end {
                    End::Input => give(&mut stream).await,
                    End::Output => take(&mut stream, &mut ended.reader_left).await,
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
                let kind = FaultKind::Own;
                Some(Fault { kind, text })
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
                Some(Command::Go) => return Ok(()),
                Some(Command::Abort(reason)) => return Err(Broken::Ordered(reason)),
                Some(Command::Dial { .. }) => {}
                None => return Err(Broken::Ordered("rdpipe has ended".to_owned())),
            }
        }
    }

    fn fault(&self, error: &Error) -> Fault {
        let kind = match error {
            Error::PeerAborted { .. } => FaultKind::PeerAborted,
            Error::Aborted { .. } => FaultKind::Ordered,
            _ => FaultKind::Edge,
        };
        let text = named(error.clone(), &self.plan.peer).to_string();
        Fault { kind, text }
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

fn ordered(text: String) -> Fault {
    let kind = FaultKind::Ordered;
    Fault { kind, text }
}

/// Completes when the lane is told to give up.
async fn aborted(commands: &mut UnboundedReceiver<Command>) -> String {
    loop {
        match commands.recv().await {
            Some(Command::Abort(reason)) => return reason,
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
