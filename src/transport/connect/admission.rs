//! Which connections a listener keeps before they are streams. Each class has a bound of its own, so that no class can
//! take the places of another.
//!
//! | class | has shown | at most | leaves it |
//! |---|---|---|---|
//! | new | nothing yet: its first bytes have not been looked at | [`MAX_NEW`] | at once: a look never waits |
//! | stranger | too little, or a wrong key | [`Limits::strangers`] | when it has shown more, or pushed out by another stranger |
//! | proving | a first message that verifies | [`Limits::proving`] | with a place of the next class |
//! | negotiating | the key | [`MAX_WAITING`], with the next class | with a stream or a failure |
//! | waiting | the stream is made | | when the program accepts it |
//! | data connection | the label of a negotiating stream | four for each stream | with its proof |
//!
//! The streams that a part of the program takes for itself, such as the edges of a copy, have as many places again:
//! they never wait for streams that wait for the program.
//!
//! *One key has one share.* On a listener for many keys, one key has at most a quarter of the places of each class from
//! proving on, and they are given in turn by key ([`SharedPlaces`](crate::places::SharedPlaces)). The program gets the
//! waiting streams in turn by key too. A key that a part of the program expects counts as the key of the client that
//! brought it. So the holder of one key delays other keys by the time of one negotiation at most, whatever it opens.
//! Each of these places has a limit of time, the handshake timeout, except that of a stream that waits for the program.
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
//!   message, and for [`PROVING_PATIENCE`] only while others of its key wait. Argon2id runs once for each key, not for
//!   each connection.
//! - *A stream that waits for `accept` is running*: its control task sends and receives keepalives, so that its dialer,
//!   whose `connect` has returned, does not take it for dead. Its slots are granted when it is accepted, so no data
//!   arrives before. Over RDMA its pools are registered already.
//! - If the system has no descriptor left, half of the strangers are closed.
//!
//! The stranger that is pushed out is one of the network address that has the most strangers, so that a flood from one
//! address pushes out itself. Of those it is a random one among the older half. So a stranger stays at least until half
//! of all places have been taken again; after that, waiting longer gets less likely, and no rate of strangers makes it
//! impossible.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    convert::Infallible,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::process::{Resource, getrlimit};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
    time::sleep,
};

use crate::{
    HandshakeFault,
    places::{Place, Places},
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

/// The time after which a connection that is proving the key leaves its place to another one of its key that waits. A
/// dialer's proof takes one round trip; a recording never proves anything.
const PROVING_PATIENCE: Duration = Duration::from_secs(1);

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
    /// Fails if no stream with this label waits for a data connection, or too many connections show this label.
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

/// The first messages of the connections of one listener that are proving that they have the key. A peer makes a new one
/// for each connection, so one that comes twice is a recording, and a recording takes one place at most.
#[derive(Default)]
pub(crate) struct FirstMessages(Mutex<HashSet<[u8; HANDSHAKE_BYTES]>>);

impl FirstMessages {
    /// Returns a future that waits for one of `places` for the connection with this first message; `None` if another
    /// connection with the same message has a place or waits for one.
    pub(crate) fn enter(
        self: &Arc<Self>,
        message: [u8; HANDSHAKE_BYTES],
        places: Places,
    ) -> Option<impl Future<Output = Option<ProvingPlace>> + use<>> {
        let is_new = self.lock().insert(message);
        let message = is_new.then(|| UniqueMessage {
            messages: Arc::clone(self),
            message,
        })?;
        Some(async move {
            let place = places.wait().await?;
            Some(ProvingPlace {
                _message: message,
                place,
            })
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<[u8; HANDSHAKE_BYTES]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one connection that is proving the key, which ends when it is dropped.
pub(crate) struct ProvingPlace {
    _message: UniqueMessage,
    place: Place,
}

impl ProvingPlace {
    /// Waits until this connection has been proving the key for so long that another one of its key gets the place.
    pub(crate) async fn overdue(&self) {
        loop {
            sleep(PROVING_PATIENCE).await;
            if self.place.places().are_wanted() {
                return;
            }
        }
    }
}

/// A first message that no other connection may show, until it is dropped.
struct UniqueMessage {
    messages: Arc<FirstMessages>,
    message: [u8; HANDSHAKE_BYTES],
}

impl Drop for UniqueMessage {
    fn drop(&mut self) {
        self.messages.lock().remove(&self.message);
    }
}

/// The end of a connection for which there was no place among the strangers.
pub(crate) const PUSHED_OUT: &str = "newer connections have pushed it out";

/// The strangers of one listener.
pub(crate) struct Strangers {
    most: usize,
    queue: Mutex<StrangerQueue>,
}

impl Strangers {
    /// Keeps at most `most` strangers.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        let queue = Mutex::default();
        Arc::new(Self { most, queue })
    }

    /// Adds a connection from `address`, and pushes one out if there are too many.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> StrangerPlace {
        let mut queue = self.lock();
        let (number, pushed_out) = queue.enter(network(address));
        if queue.strangers.len() > self.most {
            queue.push_out(random_place());
        }
        drop(queue);
        StrangerPlace {
            strangers: Arc::clone(self),
            number,
            pushed_out,
        }
    }

    /// Pushes out half of the strangers, to free their descriptors.
    pub(crate) fn push_out_half(&self) {
        let mut queue = self.lock();
        for _ in 0..queue.strangers.len().div_ceil(2) {
            queue.push_out(random_place());
        }
    }

    fn lock(&self) -> MutexGuard<'_, StrangerQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one connection among the strangers, which ends when it is dropped.
pub(crate) struct StrangerPlace {
    strangers: Arc<Strangers>,
    number: u64,
    /// Completes when the stranger is pushed out.
    pushed_out: oneshot::Receiver<Infallible>,
}

impl StrangerPlace {
    /// Runs `work` to its end, or until this stranger is pushed out, and then returns `None`.
    pub(crate) async fn unless_pushed_out<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::select! {
            biased;
            outcome = work => Some(outcome),
            _ = &mut self.pushed_out => None,
        }
    }
}

impl Drop for StrangerPlace {
    fn drop(&mut self) {
        let mut queue = self.strangers.lock();
        queue.strangers.retain(|one| one.number != self.number);
    }
}

/// The strangers, the oldest first.
#[derive(Default)]
struct StrangerQueue {
    entered: u64,
    strangers: VecDeque<Stranger>,
}

struct Stranger {
    number: u64,
    network: IpAddr,
    /// Dropped when the stranger is pushed out, which its place notices.
    _stay: oneshot::Sender<Infallible>,
}

impl StrangerQueue {
    fn enter(&mut self, network: IpAddr) -> (u64, oneshot::Receiver<Infallible>) {
        let (stay, pushed_out) = oneshot::channel();
        self.entered += 1;
        self.strangers.push_back(Stranger {
            number: self.entered,
            network,
            _stay: stay,
        });
        (self.entered, pushed_out)
    }

    /// Pushes one out. `random` picks it from those that may be.
    fn push_out(&mut self, random: usize) {
        let mut counts = HashMap::new();
        for stranger in &self.strangers {
            *counts.entry(stranger.network).or_insert(0_usize) += 1;
        }
        let most = counts.values().copied().max().unwrap_or(0);
        let crowded = (0..self.strangers.len())
            .filter(|at| counts[&self.strangers[*at].network] == most)
            .collect::<Vec<_>>();
        let older = &crowded[..crowded.len().div_ceil(2)];
        if !older.is_empty() {
            self.strangers.remove(older[random % older.len()]);
        }
    }
}

/// Returns the part of an address that stands for one owner: an IPv4 address, or an IPv6 network of 64 bits, in which a
/// host can use any address.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}

fn random_place() -> usize {
    // Without random numbers the oldest is pushed out.
    getrandom::u32().map_or(0, |number| number as usize)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::{
        Key,
        places::{Share, SharedPlaces},
    };

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
        let messages = Arc::<FirstMessages>::default();
        let places = SharedPlaces::new(Share::whole(2)).of(Key::from_secret(&[1; 32]).id());
        let enter = |byte| messages.enter([byte; HANDSHAKE_BYTES], places.clone());
        let first = enter(1).unwrap().now_or_never().flatten();
        assert!(enter(1).is_none());
        let second = enter(2).unwrap().now_or_never().flatten();
        assert!(first.is_some() && second.is_some());
        drop(first);
        assert!(enter(1).is_some());
    }

    #[tokio::test]
    async fn one_too_many_waits_and_a_silent_one_leaves_its_place() {
        let messages = Arc::<FirstMessages>::default();
        let places = SharedPlaces::new(Share::whole(1)).of(Key::from_secret(&[1; 32]).id());
        let enter = |byte| {
            Box::pin(
                messages
                    .enter([byte; HANDSHAKE_BYTES], places.clone())
                    .unwrap(),
            )
        };
        let first = enter(1).await.unwrap();
        let mut second = enter(2);
        assert!(second.as_mut().now_or_never().is_none());
        first.overdue().await;
        drop(first);
        assert!(second.await.is_some());
        assert!(messages.lock().is_empty());
    }

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn stays(place: &mut StrangerPlace) -> bool {
        let waiting = place.unless_pushed_out(std::future::pending::<()>());
        futures::FutureExt::now_or_never(waiting).is_none()
    }

    #[test]
    fn one_too_many_pushes_out_one() {
        let strangers = Strangers::new(8);
        let mut places: Vec<_> = (0..20).map(|_| strangers.enter(address(1))).collect();
        let left = places.iter_mut().map(stays).filter(|stays| *stays);
        assert_eq!(left.count(), 8);
        assert!(places[16..].iter_mut().all(stays), "the newer half stays");
        drop(places);
        assert!(strangers.lock().strangers.is_empty());
    }

    #[test]
    fn a_place_that_was_left_pushes_out_no_other() {
        let strangers = Strangers::new(2);
        let mut first = strangers.enter(address(1));
        for _ in 0..9 {
            drop(strangers.enter(address(1)));
        }
        assert!(stays(&mut first));
    }

    #[test]
    fn a_flood_from_one_address_pushes_out_itself() {
        let strangers = Strangers::new(8);
        let mut others: Vec<_> = (2..5).map(|last| strangers.enter(address(last))).collect();
        let _flood: Vec<_> = (0..1000).map(|_| strangers.enter(address(1))).collect();
        assert!(others.iter_mut().all(stays));
    }

    #[test]
    fn one_host_with_many_ipv6_addresses_is_one_network() {
        let strangers = Strangers::new(8);
        let mut other = strangers.enter("2001:db8:0:2::1".parse().unwrap());
        let flood = (0..1000_u128).map(|low| Ipv6Addr::from_bits((0x2001_0db8 << 96) + low));
        let _flood: Vec<_> = flood.map(|one| strangers.enter(one.into())).collect();
        assert!(stays(&mut other));
        assert_eq!(network("::ffff:10.0.0.1".parse().unwrap()), address(1));
    }

    #[test]
    fn no_rate_of_strangers_pushes_out_every_old_one() {
        let survivors = (0..100).filter(|_| {
            let strangers = Strangers::new(16);
            let mut patient = strangers.enter(address(1));
            // Twice as many as there are places: the oldest would be gone if the oldest were always pushed out.
            let _flood: Vec<_> = (0..32).map(|_| strangers.enter(address(1))).collect();
            stays(&mut patient)
        });
        assert!(survivors.count() > 0);
    }

    #[test]
    fn half_of_them_make_room_for_descriptors() {
        let strangers = Strangers::new(8);
        let mut places: Vec<_> = (0..7).map(|_| strangers.enter(address(1))).collect();
        strangers.push_out_half();
        assert_eq!(
            places.iter_mut().map(stays).filter(|stays| *stays).count(),
            3
        );
    }
}
