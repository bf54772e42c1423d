//! The data connections of the streams that are being negotiated.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
};

use crate::{
    HandshakeFault,
    transport::{
        connect::data_proof::{LABEL_BYTES, PROOF_BYTES, is_proof, label, random},
        control::message::Token,
    },
};

/// The most connections that show the label of one stream at the same time. A dialer uses one at a time; an attacker
/// on the path that has read the label may add others.
const MAX_CANDIDATES: usize = 4;

/// The streams that wait for their data connection, by their label.
#[derive(Default)]
pub(crate) struct ExpectedStreams(Mutex<HashMap<[u8; LABEL_BYTES], ExpectedStream>>);

struct ExpectedStream {
    token: Token,
    /// The number of connections that showed the label and have not proved that they belong to the stream.
    candidates: usize,
    arrived: oneshot::Sender<TcpStream>,
}

impl ExpectedStreams {
    /// Waits for the data connection of the stream with this token. A token is good for one connection.
    pub(crate) fn expect(&self, token: Token) -> impl Future<Output = Option<TcpStream>> + use<'_> {
        let (arrived, data) = oneshot::channel();
        let label = label(&token);
        let stream = ExpectedStream {
            token,
            candidates: 0,
            arrived,
        };
        self.lock().insert(label, stream);
        let expectation = Expectation {
            streams: self,
            label,
        };
        async move {
            let data = data.await.ok();
            drop(expectation);
            data
        }
    }

    /// Takes a connection that showed `label`: its chance to prove that it belongs to the stream.
    ///
    /// # Errors
    ///
    /// If no stream with this label waits for a data connection, or too many connections show this label.
    pub(crate) fn candidate(
        &self,
        label: [u8; LABEL_BYTES],
    ) -> Result<DataCandidate<'_>, HandshakeFault> {
        let mut streams = self.lock();
        let stream = streams.get_mut(&label);
        let stream = stream.ok_or(HandshakeFault::Protocol("the label of no stream"))?;
        if stream.candidates == MAX_CANDIDATES {
            return Err(HandshakeFault::Protocol("a label that others show too"));
        }
        stream.candidates += 1;
        Ok(DataCandidate {
            token: stream.token.clone(),
            place: CandidatePlace {
                streams: self,
                label,
            },
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; LABEL_BYTES], ExpectedStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that showed the label of a stream.
pub(crate) struct DataCandidate<'a> {
    token: Token,
    place: CandidatePlace<'a>,
}

impl DataCandidate<'_> {
    /// Challenges the dialer of `socket`, and hands the connection to the stream if the answer is right. A wrong answer
    /// ends this connection only: the right one may still come.
    pub(crate) async fn prove(self, mut socket: TcpStream) -> Result<(), HandshakeFault> {
        let challenge = random();
        socket.write_all(&challenge).await?;
        let mut shown = [0; PROOF_BYTES];
        socket.read_exact(&mut shown).await?;
        if !is_proof(&self.token, &challenge, &shown) {
            return Err(HandshakeFault::Protocol(
                "a wrong proof of a data connection",
            ));
        }
        let CandidatePlace { streams, label } = self.place;
        let stream = streams.lock().remove(&label);
        let stream = stream.ok_or(HandshakeFault::Protocol("a second data connection"))?;
        let _ = stream.arrived.send(socket);
        Ok(())
    }
}

/// Counts one candidate of a stream, until it is dropped.
struct CandidatePlace<'a> {
    streams: &'a ExpectedStreams,
    label: [u8; LABEL_BYTES],
}

impl Drop for CandidatePlace<'_> {
    fn drop(&mut self) {
        if let Some(stream) = self.streams.lock().get_mut(&self.label) {
            stream.candidates -= 1;
        }
    }
}

/// Removes a stream that does not wait for a data connection any more.
struct Expectation<'a> {
    streams: &'a ExpectedStreams,
    label: [u8; LABEL_BYTES],
}

impl Drop for Expectation<'_> {
    fn drop(&mut self) {
        self.streams.lock().remove(&self.label);
    }
}
