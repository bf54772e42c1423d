//! Which connections a listener keeps before they are streams. Each class has a bound of its own, so that no class can
//! take the places of another.
//!
//! | class | has shown | at most | leaves it |
//! |---|---|---|---|
//! | new | nothing yet: its first bytes have not been looked at | [`MAX_NEW`] | at once: a look never waits |
//! | [stranger](strangers) | too little, or a wrong key | [`Limits::strangers`] | when it has shown more, or pushed out by another stranger |
//! | proving | a first message that verifies | [`Limits::proving`] | with a message under the session keys |
//! | negotiating | the key | [`MAX_WAITING`], with the next class | with a stream or a failure |
//! | waiting | the stream is made | | when the program accepts it |
//! | data connection | the label of a negotiating stream | four for each stream | with its proof |
//!
//! Only strangers are pushed out. A peer with the key is a stranger only for as long as its first bytes arrive later
//! than the connection itself, and not at all if they arrive together, as they do across a network. `connect` dials
//! again if it was pushed out all the same.
//!
//! No class waits for a connection of a class before it: connections are always accepted, so the data connection of a
//! negotiating stream arrives also while thousands wait.
//!
//! - *A peer is hardly ever a stranger.* A dialer makes its first message before it connects, so the message and the
//!   end of TCP's handshake arrive together, however far away the peer is. The acceptor asks the socket for it at once
//!   (`Opening::read_arrived`), before the runtime reports that it is readable.
//! - *Who was pushed out tries again*: `connect` for `retry_for`, with a new control connection, or only a new data
//!   connection if the control connection stands.
//! - *What it costs.* To verify a first message is hashing. The answer costs two multiplications on the curve, and only
//!   a peer with the key or a recording gets it; a recording takes one place, because each place needs another first
//!   message. Argon2id runs once for each key, not for each connection.
//! - *A stream that waits for `accept` is running*: its control task sends and receives keepalives, so that its dialer,
//!   whose `connect` has returned, does not take it for dead. Its slots are granted when it is accepted, so no data
//!   arrives before. Over RDMA its pools are registered already.
//! - If the system has no descriptor left, half of the strangers are closed.

pub(super) mod opening;
pub(super) mod strangers;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::process::{Resource, getrlimit};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
};

use crate::{
    HandshakeFault,
    transport::{
        connect::preamble::{LABEL_BYTES, PROOF_BYTES, is_proof, label, random},
        control::{message::Token, noise::HANDSHAKE_BYTES},
    },
};

/// The most connections that were accepted and whose first bytes have not been looked at. A look costs some 20 µs, so
/// this many keep every processor busy. The next ones wait in the kernel's queue: what has arrived of them in the
/// meantime is there at the first look, and spares them from being strangers.
pub(super) const MAX_NEW: usize = 32;

/// The most streams that are being negotiated, or wait for the program to accept them. Over TCP a negotiation takes
/// less than three round trips, so this many at once are 200 streams a second with peers 100 ms away. A dialer beyond
/// it waits for its answer, until its own time limit.
pub(super) const MAX_WAITING: usize = 64;

/// The most connections of the classes that peers fill without showing the whole key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// The most strangers. With 256, strangers that arrive at 1,260 a second stay for 0.2 s each: twice as long as a
    /// first message needs to follow its connection across a bad network.
    pub(super) strangers: usize,
    /// The most connections that are proving the key. Each costs some ten KiB, for one round trip. Only a peer with the
    /// key gets here, or one that has recorded as many different handshakes as it fills places.
    pub(super) proving: usize,
}

impl Limits {
    const MOST: Self = Self {
        strangers: 256,
        proving: 1024,
    };

    /// Returns the limits for this process: less than half of the descriptors that it may open. So connections without
    /// the key never take the last descriptor from the program.
    pub(super) fn of_process() -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self::within(usize::try_from(descriptors).unwrap_or(usize::MAX))
    }

    fn within(descriptors: usize) -> Self {
        Self {
            strangers: (descriptors / 8).clamp(1, Self::MOST.strangers),
            proving: (descriptors / 4).clamp(1, Self::MOST.proving),
        }
    }
}

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

/// The places of the connections of one listener that are proving that they have the key.
pub(crate) struct Proving {
    places: Arc<Semaphore>,
    /// The first messages of these connections. A peer makes a new one for each connection, so one that comes twice is
    /// a recording, and a recording takes one place at most.
    messages: Mutex<HashSet<[u8; HANDSHAKE_BYTES]>>,
}

impl Proving {
    /// Keeps at most `most` connections.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            places: Arc::new(Semaphore::new(most)),
            messages: Mutex::default(),
        })
    }

    /// Returns a future that waits for a place for the connection with this first message; `None` if another connection
    /// with the same message has a place or waits for one.
    pub(crate) fn enter(
        self: &Arc<Self>,
        message: [u8; HANDSHAKE_BYTES],
    ) -> Option<impl Future<Output = ProvingPlace> + use<>> {
        let is_new = self.lock().insert(message);
        let message = is_new.then(|| UniqueMessage {
            proving: Arc::clone(self),
            message,
        })?;
        let place = Arc::clone(&self.places).acquire_owned();
        Some(async move {
            ProvingPlace {
                _message: message,
                _permit: place.await.expect("the semaphore is never closed"),
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<[u8; HANDSHAKE_BYTES]>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one connection, which ends when it is dropped.
pub(crate) struct ProvingPlace {
    _message: UniqueMessage,
    _permit: OwnedSemaphorePermit,
}

/// A first message that no other connection may show, until it is dropped.
struct UniqueMessage {
    proving: Arc<Proving>,
    message: [u8; HANDSHAKE_BYTES],
}

impl Drop for UniqueMessage {
    fn drop(&mut self) {
        self.proving.lock().remove(&self.message);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn connections_without_the_key_leave_descriptors_to_the_program() {
        for descriptors in [64, 256, 1024, 4096, 1 << 20] {
            let Limits { strangers, proving } = Limits::within(descriptors);
            assert!(strangers + proving < descriptors / 2, "{descriptors}");
        }
        assert_eq!(Limits::within(usize::MAX), Limits::MOST);
    }

    #[test]
    fn a_recording_takes_one_place() {
        let proving = Proving::new(2);
        let first = proving.enter([1; HANDSHAKE_BYTES]).unwrap().now_or_never();
        assert!(proving.enter([1; HANDSHAKE_BYTES]).is_none());
        let second = proving.enter([2; HANDSHAKE_BYTES]).unwrap().now_or_never();
        assert!(first.is_some() && second.is_some());
        drop(first);
        assert!(proving.enter([1; HANDSHAKE_BYTES]).is_some());
    }

    #[test]
    fn one_too_many_waits() {
        let proving = Proving::new(1);
        let first = proving.enter([1; HANDSHAKE_BYTES]).unwrap().now_or_never();
        let mut second = Box::pin(proving.enter([2; HANDSHAKE_BYTES]).unwrap());
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        assert!(second.now_or_never().is_some());
        assert!(proving.lock().is_empty());
    }
}
