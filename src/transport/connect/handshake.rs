//! The handshake: makes a fresh TCP connection an authenticated control connection.
//!
//! ```text
//! dialer                                    acceptor
//!   preamble, id of the key, Noise message 1  ►   wrong key, wrong version: answers so, closes
//!                              ◄───────────   preamble, Noise message 2
//!   Hello                      ───────────►   authenticates the dialer
//! ```
//!
//! The module [`negotiate`](super::negotiate) continues.

use std::{io, sync::Arc};

use futures::StreamExt;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_util::codec::Framed;

use super::preamble::{PREAMBLE_BYTES, PROTOCOL_VERSION, Preamble, PreambleKind};
use crate::{
    HandshakeFault, Key,
    key::KeyId,
    transport::control::{
        connection::{Codec, Control, ControlError, closed},
        message::{Hello, Message},
        noise::{self, HANDSHAKE_BYTES, Initiator, Responder},
        task,
    },
};

impl From<ControlError> for HandshakeFault {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Io(error) => error.into(),
            ControlError::Unopened(_) => Self::Protocol("a message does not verify"),
        }
    }
}

impl From<io::Error> for HandshakeFault {
    fn from(error: io::Error) -> Self {
        Self::Broken(Arc::new(error))
    }
}

/// A dialer's first message, made before it connects: the message follows the connection at once, so that the acceptor
/// does not take the dialer for a silent stranger.
pub(crate) struct FirstMessage {
    initiator: Initiator,
    bytes: Vec<u8>,
    /// The id of the key.
    pub(super) key_id: KeyId,
}

impl FirstMessage {
    /// Makes the preamble, the id of `key` and the first message of a dialer with `key`.
    pub(crate) fn new(key: &Key) -> Self {
        let preamble = Preamble::encode(PreambleKind::Control);
        let key_id = key.id();
        let prologue = [&preamble[..], &key_id.to_bytes()].concat();
        let (initiator, first) = Initiator::start(key, &prologue);
        let bytes = [&prologue[..], &first].concat();
        Self {
            initiator,
            bytes,
            key_id,
        }
    }
}

/// The dialer's side of the handshake. Returns the control connection, and the seeds of the digests, the sending
/// direction first.
///
/// # Errors
///
/// When the acceptor does not have the key, has another version, or is not rdpipe.
pub(crate) async fn initiate(
    mut socket: TcpStream,
    first: FirstMessage,
) -> Result<(Control, [u64; 2]), HandshakeFault> {
    socket.set_nodelay(true)?;
    socket.write_all(&first.bytes).await?;
    let session = read_reply(&mut socket, first.initiator).await?;
    let seeds = session.seeds;
    Ok((Framed::new(socket, Codec(session)), seeds))
}

async fn read_reply(
    socket: &mut TcpStream,
    initiator: Initiator,
) -> Result<noise::Session, HandshakeFault> {
    let mut preamble = [0; PREAMBLE_BYTES];
    socket.read_exact(&mut preamble).await?;
    let not_rdpipe = HandshakeFault::NotRdpipe("its first bytes are another protocol's");
    let Preamble { version, kind } = Preamble::decode(preamble).ok_or(not_rdpipe)?;
    match kind {
        _ if version != PROTOCOL_VERSION => Err(HandshakeFault::Version {
            ours: PROTOCOL_VERSION,
            theirs: version,
        }),
        Some(PreambleKind::WrongKey) => Err(HandshakeFault::Key),
        Some(PreambleKind::Reply) => {
            let mut reply = [0; HANDSHAKE_BYTES];
            socket.read_exact(&mut reply).await?;
            initiator.finish(&reply).map_err(|_| HandshakeFault::Key)
        }
        _ => Err(HandshakeFault::Protocol("an answer of an unknown kind")),
    }
}

/// A dialer that has proved that it has the key.
pub(crate) struct Authenticated {
    /// The control connection.
    pub(super) control: Control,
    /// The dialer's offer.
    pub(super) hello: Hello,
    /// The seeds of the digests, this end's sending direction first.
    pub(super) seeds: [u64; 2],
    /// The id of the dialer's key.
    pub(super) key_id: KeyId,
}

/// The acceptor's side of the handshake, from the dialer's first message, which verified, until the dialer is
/// authenticated.
///
/// # Errors
///
/// The fault of a dialer without the key, or of the network. The user of a listener is not told.
pub(super) async fn answer(
    mut socket: TcpStream,
    responder: Responder,
    key_id: KeyId,
) -> Result<Authenticated, HandshakeFault> {
    let (session, reply) = responder.reply();
    socket
        .write_all(&[&Preamble::encode(PreambleKind::Reply)[..], &reply].concat())
        .await?;
    let [to_acceptor, to_dialer] = session.seeds;
    let mut control = Framed::new(socket, Codec(session));
    match control.next().await.ok_or_else(closed)?? {
        Message::Hello(hello) => Ok(Authenticated {
            control,
            hello,
            seeds: [to_dialer, to_acceptor],
            key_id,
        }),
        _ => Err(HandshakeFault::Protocol("a first message that is no hello")),
    }
}

/// Tells a dialer why it gets no stream, and closes the connection.
pub(super) async fn refuse(mut socket: TcpStream, kind: PreambleKind) {
    if socket.write_all(&Preamble::encode(kind)).await.is_ok() {
        task::close(socket).await;
    }
}
