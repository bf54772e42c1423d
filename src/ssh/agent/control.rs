//! The agent's side of the session with the controller: greeting, order, messages both ways, keepalive.

use std::{io, time::Duration};

use bytes::BytesMut;
use futures::StreamExt;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};
use tokio_util::codec::{Decoder, FramedRead};
use zeroize::Zeroize;

use super::outbox::{ControlWriter, Outbox};
use crate::{
    host::{host_name, machine, streams},
    reach,
    running_time::within_running_time,
    ssh::{
        frames::{FrameCodec, codec},
        protocol::{
            AgentHello, FromAgent, MessageError, Order, ToAgent, VERSION, decode, greeting,
            parse_greeting,
        },
    },
};

/// How long the agent waits for the controller's greeting and order. The controller sends both at once, so this
/// limit only has to cover a slow network.
pub(super) const ORDER_LIMIT: Duration = Duration::from_secs(30);

/// The most bytes up to the end of a greeting: more than the script that starts an agent on a host. The agent receives
/// that script where a key in `authorized_keys` allows the command `rdpipe --agent` alone.
const MAX_GREETING_BYTES: usize = 16 << 10;

/// The reason why the session with the controller has failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ControllerError {
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
pub(super) struct ControlReader<R> {
    frames: FramedRead<R, FrameCodec>,
    outbox: Outbox,
    silence: Duration,
}

impl<R: AsyncRead + Unpin> ControlReader<R> {
    /// Returns the next message. Answers pings itself. Fails if the controller does not read those of the agent.
    /// Cancel safe: a message that was not returned is returned by the next call.
    pub(super) async fn next(&mut self) -> Result<ToAgent, ControllerError> {
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
    pub(super) fn into_input(mut self) -> (BytesMut, R) {
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
pub(super) async fn open<R, W>(
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
pub fn fuzz(data: &[u8]) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens a session with a controller that writes `bytes`, and nothing after them. Returns the error.
    async fn refused(bytes: &[u8]) -> String {
        let (mut controller, agent) = tokio::io::duplex(4096);
        controller.write_all(bytes).await.unwrap();
        failed(agent).await
    }

    /// Opens a session with the controller at the other end, which fails. Returns the error.
    async fn failed(agent: tokio::io::DuplexStream) -> String {
        let (input, output) = tokio::io::split(agent);
        let hello = AgentHello {
            host: "h".to_owned(),
            machine: "m".to_owned(),
            addresses: Vec::new(),
            streams: 1,
            most_streams: None,
        };
        let opened = open(input, output, hello, Duration::from_millis(50), None).await;
        opened
            .err()
            .map_or_else(String::new, |error| error.to_string())
    }

    #[tokio::test]
    async fn input_that_is_held_back_after_the_greeting_is_named_as_the_likely_cause() {
        let greeting = greeting("controller");
        let silent = refused(greeting.as_bytes()).await;
        assert!(silent.contains("holds back its input"), "{silent}");
        // The length of a message, whose rest is held back.
        let begun = refused(&[greeting.as_bytes(), &[0, 0, 1, 0, 7]].concat()).await;
        assert!(begun.contains("holds back its input"), "{begun}");
        let nothing = refused(b"").await;
        assert!(nothing.starts_with("received nothing from"), "{nothing}");
    }

    #[tokio::test]
    async fn a_controller_that_ended_before_the_greeting_is_gone() {
        let (controller, agent) = tokio::io::duplex(4096);
        drop(controller);
        assert_eq!(failed(agent).await, "the controller is gone");
    }

    #[test]
    fn a_host_has_a_name_and_an_identity_that_stays_the_same() {
        let hello = super::hello();
        assert_eq!(hello.machine, super::hello().machine);
        assert!(hello.machine.contains("net:["), "{}", hello.machine);
        assert!(!hello.host.is_empty());
    }
}
