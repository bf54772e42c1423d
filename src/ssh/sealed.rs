//! The encryption of a session that has no ssh around it: between a client and a server that share a key.
//!
//! A [`Stream`] encrypts nothing if both ends choose so. The messages of a session hold the keys of edges, so they
//! travel inside a second Noise session in any case, with the handshake and the framing of a control connection.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::{
    codec::{Decoder, Encoder, FramedRead, FramedWrite},
    io::{CopyToBytes, SinkWriter, StreamReader},
};

use crate::{
    Key, Stream,
    transport::control::{
        connection::{next_sealed, put_sealed},
        noise::{HANDSHAKE_BYTES, Initiator, MAX_PLAIN_BYTES, Session, respond},
    },
};

/// Both directions of an encrypted session. Dropping the output ends it; the peer reads the end of file.
pub(crate) struct SealedSession {
    pub(crate) input: Box<dyn AsyncRead + Send + Unpin>,
    pub(crate) output: Box<dyn AsyncWrite + Send + Unpin>,
}

/// What both ends mix into the handshake: a recorded control connection is no session.
const PROLOGUE: &[u8] = b"rdpipe session, version 1";

/// Encrypts the session at the end that connected.
/// Dropping the future drops the stream.
pub(crate) async fn of_dialer(mut stream: Stream, key: &Key) -> io::Result<SealedSession> {
    let (initiator, first) = Initiator::start(key, PROLOGUE);
    stream.write_all(&first).await?;
    stream.flush().await?;
    let mut reply = [0; HANDSHAKE_BYTES];
    stream.read_exact(&mut reply).await?;
    let session = initiator.finish(&reply).map_err(io::Error::other)?;
    Ok(sealed(stream, session))
}

/// Encrypts the session at the end that accepted.
/// Dropping the future drops the stream.
pub(crate) async fn of_acceptor(mut stream: Stream, key: &Key) -> io::Result<SealedSession> {
    let mut first = [0; HANDSHAKE_BYTES];
    stream.read_exact(&mut first).await?;
    let responder = respond(key, PROLOGUE, &first).map_err(io::Error::other)?;
    let (session, reply) = responder.reply();
    stream.write_all(&reply).await?;
    stream.flush().await?;
    Ok(sealed(stream, session))
}

fn sealed(stream: Stream, session: Session) -> SealedSession {
    let (reader, writer) = stream.into_split();
    let codec = SealedCodec(Arc::new(Mutex::new(session)));
    let reader = StreamReader::new(FramedRead::new(reader, codec.clone()));
    let writer = SinkWriter::new(CopyToBytes::new(FramedWrite::new(writer, codec)));
    SealedSession {
        input: Box::new(reader),
        output: Box::new(writer),
    }
}

/// Encrypts and decrypts the bytes of a session. The counters of the two directions are independent.
#[derive(Clone)]
struct SealedCodec(Arc<Mutex<Session>>);

impl SealedCodec {
    fn session(&self) -> MutexGuard<'_, Session> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Decoder for SealedCodec {
    type Item = Bytes;
    type Error = io::Error;

    fn decode(&mut self, buffer: &mut BytesMut) -> io::Result<Option<Bytes>> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let Some(sealed) = next_sealed(buffer).map_err(invalid)? else {
            return Ok(None);
        };
        let plain = self.session().open_bytes(&sealed).map_err(invalid)?;
        Ok(Some(plain.into()))
    }
}

impl Encoder<Bytes> for SealedCodec {
    type Error = io::Error;

    fn encode(&mut self, plain: Bytes, buffer: &mut BytesMut) -> io::Result<()> {
        let mut session = self.session();
        for part in plain.chunks(MAX_PLAIN_BYTES) {
            put_sealed(&session.seal_bytes(part), buffer);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, OnDrop};

    fn builder(key: &Key) -> Builder {
        Stream::builder(key).on_drop(OnDrop::Fin)
    }

    async fn pair(ours: &Key) -> (Stream, Stream) {
        let builder = builder(ours);
        let listener = builder.bind("127.0.0.1:0").await.unwrap();
        let dialing = builder.connect(listener.local_addr());
        let (dialed, accepted) = tokio::try_join!(dialing, listener.accept()).unwrap();
        (dialed, accepted)
    }

    #[tokio::test]
    async fn long_messages_cross_in_both_directions_and_the_end_is_seen() {
        let key = Key::generate().unwrap();
        let (near, far) = pair(&key).await;
        let (dialer, acceptor) = tokio::join!(of_dialer(near, &key), of_acceptor(far, &key));
        let SealedSession {
            input: mut reader,
            output: mut writer,
        } = dialer.unwrap();
        let SealedSession {
            input: mut other_reader,
            output: mut other_writer,
        } = acceptor.unwrap();
        let long: Vec<u8> = (0..300_000_u32).map(|at| at.to_le_bytes()[1]).collect();
        let sending = async {
            writer.write_all(&long).await.unwrap();
            writer.flush().await.unwrap();
            drop(writer);
        };
        let answering = async {
            let mut received = Vec::new();
            other_reader.read_to_end(&mut received).await.unwrap();
            other_writer.write_all(&received[..5]).await.unwrap();
            other_writer.flush().await.unwrap();
            drop(other_writer);
            received
        };
        let ((), received) = tokio::join!(sending, answering);
        assert_eq!(received, long);
        let mut answer = Vec::new();
        reader.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, long[..5]);
    }

    #[tokio::test]
    async fn another_key_makes_no_session() {
        let (key, other) = (Key::generate().unwrap(), Key::generate().unwrap());
        let (near, far) = pair(&key).await;
        let (dialer, acceptor) = tokio::join!(of_dialer(near, &other), of_acceptor(far, &key));
        assert!(dialer.is_err() && acceptor.is_err());
    }
}
