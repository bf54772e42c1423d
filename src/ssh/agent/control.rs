//! The agent's side of the protocol: greeting, order, messages both ways, keepalive.

use std::{io, time::Duration};

use bytes::{Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::mpsc,
    task::JoinHandle,
    time::timeout,
};
use tokio_util::codec::{Decoder, FramedRead, FramedWrite, LengthDelimitedCodec};
use zeroize::Zeroize;

use crate::ssh::protocol::{
    AgentHello, FromAgent, MessageError, Order, ToAgent, VERSION, decode, encode, frames::codec,
    greeting, parse_greeting,
};

/// How long the controller may take to greet and to give its order. It does both at once; this covers
/// a slow network.
const ORDER_LIMIT: Duration = Duration::from_secs(30);

/// How long the last messages may take to leave.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// Longest greeting line.
const MAX_LINE_BYTES: usize = 256;

/// Why the controller is of no use any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum ControllerError {
    /// The end of its messages: it ended or was killed, or the session was cut.
    #[error("the controller is gone")]
    Gone,
    #[error("nothing was heard from the controller for {0:.1?}")]
    Silent(Duration),
    #[error("the session with the controller broke: {0}")]
    Broken(#[from] io::Error),
    #[error("what came from the controller made no sense ({0})")]
    Garbage(&'static str),
    #[error("what came from the controller made no sense ({0})")]
    Message(#[from] MessageError),
    #[error(
        "the agent here is rdpipe {}, the controller is rdpipe {theirs}; install the same on all hosts",
        env!("CARGO_PKG_VERSION")
    )]
    Version { theirs: String },
}

/// Sends messages to the controller, in order, without ever waiting.
#[derive(Debug, Clone)]
pub(super) struct Outbox(mpsc::UnboundedSender<FromAgent>);

impl Outbox {
    /// Where the controller is gone the message is lost: that is found out by reading.
    pub(super) fn send(&self, message: FromAgent) {
        let _ = self.0.send(message);
    }
}

/// The messages of the controller.
pub(super) struct ControlReader<R> {
    frames: FramedRead<R, LengthDelimitedCodec>,
    outbox: Outbox,
    silence: Duration,
}

impl<R: AsyncRead + Unpin> ControlReader<R> {
    /// The next message; pings are answered here.
    ///
    /// # Cancel safety
    ///
    /// Safe: a message is either returned or still to come.
    pub(super) async fn next(&mut self) -> Result<ToAgent, ControllerError> {
        loop {
            let silence = self.silence;
            let frame = match self.buffered() {
                Some(frame) => Some(frame),
                None => timeout(silence, self.frames.next())
                    .await
                    .map_err(|_| ControllerError::Silent(silence))?,
            };
            match parse(frame)? {
                ToAgent::Ping => self.outbox.send(FromAgent::Pong),
                message => return Ok(message),
            }
        }
    }
}

impl<R> ControlReader<R> {
    /// A frame that is here in full: one that came together with the greeting is not decoded by
    /// `frames` before more arrives.
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

/// Writes what is put into the outbox.
pub(super) struct ControlWriter {
    task: JoinHandle<()>,
}

impl ControlWriter {
    /// Waits until everything has left. All outboxes must be gone.
    pub(super) async fn finish(self) {
        let _ = timeout(FLUSH_LIMIT, self.task).await;
    }
}

/// Greets the controller, says hello, and takes its order.
///
/// # Errors
///
/// When it cannot be understood, or does not come in time.
pub(super) async fn open<R, W>(
    mut input: R,
    mut output: W,
    hello: AgentHello,
) -> Result<(Order, ControlReader<R>, Outbox, ControlWriter), ControllerError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    output.write_all(greeting("agent").as_bytes()).await?;
    let (sender, receiver) = mpsc::unbounded_channel();
    let outbox = Outbox(sender);
    let task = tokio::spawn(write(output, receiver));
    outbox.send(FromAgent::Hello(hello));
    let ordering = async {
        greet(&mut input).await?;
        let frames = FramedRead::new(input, codec());
        let mut inbox = ControlReader {
            frames,
            outbox: outbox.clone(),
            silence: ORDER_LIMIT,
        };
        let ToAgent::Order(order) = inbox.next().await? else {
            return Err(ControllerError::Garbage("a message before the order"));
        };
        inbox.silence = Duration::from_millis(order.stream.timeout_ms);
        Ok((*order, inbox))
    };
    let ordered = timeout(ORDER_LIMIT, ordering).await;
    let (order, inbox) = ordered.map_err(|_| ControllerError::Silent(ORDER_LIMIT))??;
    Ok((order, inbox, outbox, ControlWriter { task }))
}

/// Reads the controller's greeting, and not a byte of what follows.
async fn greet(input: &mut (impl AsyncRead + Unpin)) -> Result<(), ControllerError> {
    let mut line = Vec::with_capacity(MAX_LINE_BYTES);
    while line.len() < MAX_LINE_BYTES {
        match input.read_u8().await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(ControllerError::Gone);
            }
            byte => line.push(byte?),
        }
        // It begins with an empty line, which ends whatever stood there before.
        if line == b"\n" {
            line.clear();
        } else if line.ends_with(b"\n") {
            break;
        }
    }
    match parse_greeting(&String::from_utf8_lossy(&line), "controller") {
        None => Err(ControllerError::Garbage("no greeting")),
        Some((VERSION, _)) => Ok(()),
        Some((version, program)) => {
            let theirs = format!("{program} (protocol {version} there, {VERSION} here)");
            Err(ControllerError::Version { theirs })
        }
    }
}

async fn write(output: impl AsyncWrite + Unpin, mut messages: mpsc::UnboundedReceiver<FromAgent>) {
    let mut frames = FramedWrite::new(output, codec());
    while let Some(message) = messages.recv().await {
        let Ok(bytes) = encode(&message) else {
            continue;
        };
        // Where the controller reads no more, its messages end too: the reader reports that.
        if frames.send(Bytes::from(bytes)).await.is_err() {
            return;
        }
    }
}
