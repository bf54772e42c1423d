//! The connections of a stream beside that of the messages: the dialer opens them, and the acceptor waits for them.
//!
//! Each proves that it belongs to the stream ([`preamble`]). Over TCP each rail has one, and others in reserve where
//! there are several networks. Over several networks there are also, for each, one that watches it and one in reserve
//! for the connection of the messages.

use std::{future::Future, io, net::IpAddr, time::Duration};

use futures::{
    SinkExt, StreamExt,
    future::{join, join_all, join3, pending, try_join_all},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use super::{
    dial::{ADDRESS_LIMIT, PAUSE},
    handshake::AcceptError,
    networks::{self, SharedNetwork},
    preamble::{self, CHALLENGE_BYTES, Preamble, PreambleKind},
};
use crate::{
    HandshakeFault,
    config::LONGEST_LIMIT,
    transport::control::{
        connection::{Control, closed},
        message::{Message, Token},
        state::network_of,
    },
};

/// The connections of a stream for its networks. None if there is only one.
#[derive(Default)]
pub(crate) struct NetworkConnections {
    /// By network: the connection that watches it.
    pub(crate) watches: Vec<TcpStream>,
    /// By network from the second one on: the connection in reserve for the control connection.
    pub(crate) reserve: Vec<TcpStream>,
}

/// The connections of a stream beside that of the messages: those of each rail over TCP, and those for the networks.
pub(super) type OtherConnections = (Vec<Vec<TcpStream>>, NetworkConnections);

/// Sorts the data connections, which are in the order of their numbers, by rail.
fn by_rail(data: Vec<TcpStream>, rails: usize) -> Vec<Vec<TcpStream>> {
    let mut sorted: Vec<Vec<_>> = (0..rails).map(|_| Vec::new()).collect();
    for (number, socket) in data.into_iter().enumerate() {
        sorted[number % rails].push(socket);
    }
    sorted
}

/// The most connections of one rail: that in use, and those in reserve.
const MOST_CONNECTIONS: usize = 4;

/// Returns the number of data connections of a stream with so many rails over TCP and so many networks. Connection n
/// belongs to rail n modulo their number.
pub(super) fn data_connections(rails: usize, networks: usize) -> usize {
    rails * networks.clamp(1, MOST_CONNECTIONS)
}

/// How a dialer opens data connections.
pub(super) struct Connector<O> {
    /// Opens one more connection to the same acceptor.
    pub(super) open: O,
    /// True if the connections may lead to other addresses of the acceptor.
    pub(super) may_spread: bool,
}

impl<O> Connector<O> {
    /// Returns the networks beside that of the control connection.
    pub(super) fn networks(&self, control: &Control, theirs: &[IpAddr]) -> Networks {
        let socket = control.get_ref();
        let port = socket.peer_addr().map_or(0, |peer| peer.port());
        let theirs = if self.may_spread { theirs } else { &[] };
        Networks {
            beside: networks::beside(socket, theirs),
            port,
        }
    }
}

/// The networks that a stream uses beside that of the control connection.
pub(super) struct Networks {
    beside: Vec<SharedNetwork>,
    port: u16,
}

impl Networks {
    /// Returns the network of a data connection; none for that of the control connection.
    fn of_connection(&self, number: usize, rails: usize) -> Option<SharedNetwork> {
        let place = network_of(number % rails, number / rails, self.beside.len() + 1);
        self.beside.get(place.checked_sub(1)?).copied()
    }

    /// Opens a connection over a network, within a second.
    async fn open(&self, network: SharedNetwork, token: &Token) -> Option<TcpStream> {
        let opening = async { prove_data(network.connect(self.port).await?, token).await };
        let opened = timeout(ADDRESS_LIMIT, opening).await;
        match opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::debug!(?network, %error, "the network is not used");
                None
            }
        }
    }

    /// Opens the connections for the networks, and leaves out those over which the acceptor does not answer. Returns the
    /// numbers of the others, and the connections; none of both if only the first network is left.
    async fn open_all<F>(
        &mut self,
        open: &impl Fn() -> F,
        token: &Token,
        limit: Duration,
    ) -> io::Result<(Vec<u8>, NetworkConnections)>
    where
        F: Future<Output = io::Result<TcpStream>>,
    {
        let opening = self.beside.iter().zip(1..).map(async |(network, number)| {
            let tokens = [token.of_network(number), token.of_reserve(number)];
            let [watch, reserve] = tokens.each_ref().map(|token| self.open(*network, token));
            let (watch, reserve) = join(watch, reserve).await;
            Some((*network, u8::try_from(number).ok()?, watch?, reserve?))
        });
        let opened = join_all(opening).await.into_iter().flatten();
        let (mut beside, mut numbers) = (Vec::new(), Vec::new());
        let mut connections = NetworkConnections::default();
        for (network, number, watch, reserve) in opened {
            beside.push(network);
            numbers.push(number);
            connections.watches.push(watch);
            connections.reserve.push(reserve);
        }
        self.beside = beside;
        if !numbers.is_empty() {
            let first = open_data(open, token.of_network(0), limit).await?;
            connections.watches.insert(0, first);
        }
        Ok((numbers, connections))
    }
}

/// What a dialer needs to open the data connections.
pub(super) struct DataDialing<'a, O> {
    /// Opens one more connection to the same acceptor.
    pub(super) open: O,
    pub(super) networks: Networks,
    pub(super) token: &'a Token,
    /// The number of rails over TCP: none over RDMA.
    pub(super) rails: usize,
    /// The time for which a connection that breaks is tried again.
    pub(super) limit: Duration,
}

impl<O, F> DataDialing<'_, O>
where
    O: Fn() -> F,
    F: Future<Output = io::Result<TcpStream>>,
{
    /// Opens the connections, if there are any, and waits until the acceptor has them. If it `has_named` addresses, it is
    /// told which networks are used.
    pub(super) async fn run(
        mut self,
        control: &mut Control,
        has_named: bool,
    ) -> Result<OtherConnections, HandshakeFault> {
        let (mut data, mut networks) = (Vec::new(), NetworkConnections::default());
        if has_named {
            let opening = self.networks.open_all(&self.open, self.token, self.limit);
            let (numbers, opened) = unless_refused(control, opening).await?;
            control.send(Message::Networks(numbers)).await?;
            networks = opened;
        }
        // Over RDMA the acceptor waits for none, and its next message may be here: Ready, or the first one of the stream.
        if self.rails > 0 {
            let most = data_connections(self.rails, self.networks.beside.len() + 1);
            let opening = (0..most).map(|number| self.open(number));
            data = unless_refused(control, try_join_all(opening)).await?;
        }
        if has_named || self.rails > 0 {
            await_ready(control, data.first().or(networks.watches.first())).await?;
        }
        Ok((by_rail(data, self.rails), networks))
    }

    /// Opens a data connection over its network, or over the first one if that fails.
    async fn open(&self, number: usize) -> io::Result<TcpStream> {
        let token = self.token.of_rail(number);
        if let Some(network) = self.networks.of_connection(number, self.rails) {
            if let Some(socket) = self.networks.open(network, &token).await {
                return Ok(socket);
            }
        }
        open_data(&self.open, token, self.limit).await
    }
}

/// Opens connections until it succeeds, unless the acceptor ends the negotiation.
async fn unless_refused<T>(
    control: &mut Control,
    opening: impl Future<Output = io::Result<T>>,
) -> Result<T, HandshakeFault> {
    tokio::select! {
        biased;
        message = control.next() => Err(match message.ok_or_else(closed)?? {
            Message::Abort { reason, .. } => HandshakeFault::Refused(reason),
            _ => HandshakeFault::Protocol("a message before the data connection"),
        }),
        opened = opening => Ok(opened?),
    }
}

/// Opens the data connection, and proves that it belongs to the stream. The acceptor may push the connection out before
/// it has read whose it is; then this tries again for `limit`.
async fn open_data<F>(open: &impl Fn() -> F, token: Token, limit: Duration) -> io::Result<TcpStream>
where
    F: Future<Output = io::Result<TcpStream>>,
{
    let deadline = Instant::now() + limit.min(LONGEST_LIMIT);
    loop {
        match prove_data(open().await?, &token).await {
            Ok(data) => return Ok(data),
            Err(error) if Instant::now() + PAUSE >= deadline => return Err(error),
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// Tells the acceptor which stream the connection is for, reads its challenge, and answers it.
async fn prove_data(mut data: TcpStream, token: &Token) -> io::Result<TcpStream> {
    data.set_nodelay(true)?;
    let preamble = Preamble::encode(PreambleKind::Data);
    let opening = [&preamble[..], &preamble::label(token)].concat();
    data.write_all(&opening).await?;
    let mut challenge = [0; CHALLENGE_BYTES];
    data.read_exact(&mut challenge).await?;
    data.write_all(&preamble::proof(token, &challenge)).await?;
    Ok(data)
}

/// Waits until the acceptor has the connections beside that of the messages, the first of which is `other`, or one of
/// both ends.
async fn await_ready(
    control: &mut Control,
    other: Option<&TcpStream>,
) -> Result<(), HandshakeFault> {
    let mut byte = [0];
    let peeked = async {
        match other {
            Some(socket) => socket.peek(&mut byte).await,
            None => pending().await,
        }
    };
    tokio::select! {
        // The acceptor sends the first data only after Ready, which is then on its way too.
        biased;
        message = control.next() => match message.ok_or_else(closed)?? {
            Message::Ready => Ok(()),
            Message::Abort { reason, .. } => Err(HandshakeFault::Refused(reason)),
            _ => Err(HandshakeFault::Protocol("no word on the data connection")),
        },
        count = peeked => match count {
            Ok(0) => Err(broken_data("closed by the other end")),
            Ok(_) => match control.next().await.ok_or_else(closed)?? {
                Message::Ready => Ok(()),
                _ => Err(HandshakeFault::Protocol("no word on the data connection")),
            },
            Err(error) => Err(error.into()),
        },
    }
}

fn broken_data(what: &'static str) -> HandshakeFault {
    let text = format!("the data connection was {what}");
    io::Error::new(io::ErrorKind::ConnectionReset, text).into()
}

/// The connections that the dialer may open beside that of the messages, by number.
pub(super) struct ExpectedConnections<F> {
    pub(super) data: Vec<F>,
    /// By network: that which watches it, and the reserve of the control connection. None if no addresses were named.
    pub(super) networks: Vec<(F, F)>,
}

impl<F: Future<Output = Option<TcpStream>>> ExpectedConnections<F> {
    /// Waits for the connections that the dialer opens, if it opens any: those of so many rails over TCP, and those for
    /// the networks.
    pub(super) async fn bring(
        self,
        control: &mut Control,
        rails: usize,
    ) -> Result<OtherConnections, AcceptError> {
        let Self { data, networks } = self;
        if networks.is_empty() && rails == 0 {
            return Ok(OtherConnections::default());
        }
        let mut used = Vec::new();
        if !networks.is_empty() {
            used = match control.next().await.ok_or_else(closed)?? {
                Message::Networks(numbers) => numbers,
                Message::Abort { reason, .. } => return Err(AcceptError::PeerAborted(reason)),
                _ => return Err(HandshakeFault::Protocol("no word on the networks").into()),
            };
            let is_known = |number: &u8| (1..networks.len()).contains(&usize::from(*number));
            if !used.is_sorted_by(|one, next| one < next) || !used.iter().all(is_known) {
                return Err(HandshakeFault::Protocol("networks that were not named").into());
            }
            if !used.is_empty() {
                used.insert(0, 0);
            }
        }
        let (mut watches, mut reserve) = (Vec::new(), Vec::new());
        for (number, (watch, control)) in networks.into_iter().enumerate() {
            if used.iter().any(|used| usize::from(*used) == number) {
                watches.push(watch);
                // The first network has the control connection itself.
                reserve.extend((number > 0).then_some(control));
            }
        }
        let data = data.into_iter().take(data_connections(rails, used.len()));
        let (data, watches, reserve) = tokio::select! {
            brought = join3(join_all(data), join_all(watches), join_all(reserve)) => brought,
            message = control.next() => return Err(match message {
                Some(Ok(Message::Abort { reason, .. })) => AcceptError::PeerAborted(reason),
                Some(Ok(_)) => HandshakeFault::Protocol("a message before the data connection").into(),
                Some(Err(error)) => error.into(),
                None => closed().into(),
            }),
        };
        let all = |sockets: Vec<Option<TcpStream>>| -> io::Result<Vec<_>> {
            sockets
                .into_iter()
                .collect::<Option<_>>()
                .ok_or_else(closed)
        };
        let networks = NetworkConnections {
            watches: all(watches)?,
            reserve: all(reserve)?,
        };
        control.send(Message::Ready).await?;
        Ok((by_rail(all(data)?, rails), networks))
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use tokio::net::TcpListener;
    use tokio_util::codec::Framed;

    use super::*;
    use crate::{
        Key,
        transport::control::{
            connection::Codec,
            noise::{Initiator, respond},
        },
    };

    /// Returns both ends of a connection for messages: the dialer's, and the acceptor's.
    async fn control_connection() -> (Control, Control) {
        let key = Key::generate().unwrap().key().clone();
        let (initiator, first) = Initiator::start(&key, b"");
        let (acceptor, reply) = respond(&key, b"", &first).unwrap().reply();
        let session = initiator.finish(&reply).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dialing = TcpStream::connect(listener.local_addr().unwrap());
        let (dialed, accepted) = tokio::join!(dialing, listener.accept());
        (
            Framed::new(dialed.unwrap(), Codec::new(session)),
            Framed::new(accepted.unwrap().0, Codec::new(acceptor)),
        )
    }

    /// Over RDMA an acceptor that expects no connection grants slots at once, maybe before the dialer looks.
    #[tokio::test]
    async fn a_dialer_without_data_connections_leaves_the_first_message_to_the_stream() {
        let (mut dialer, mut acceptor) = control_connection().await;
        acceptor.send(Message::Credit(vec![0, 1])).await.unwrap();
        dialer.get_ref().readable().await.unwrap();
        let none = Networks {
            beside: Vec::new(),
            port: 0,
        };
        let dialing = DataDialing {
            open: || ready(Err(io::ErrorKind::ConnectionRefused.into())),
            networks: none,
            token: &Token([7; 32]),
            rails: 0,
            limit: Duration::ZERO,
        };
        let (data, networks) = dialing.run(&mut dialer, false).await.unwrap();
        assert!(data.is_empty() && networks.watches.is_empty());
        let first = dialer.next().await.unwrap().unwrap();
        assert_eq!(first, Message::Credit(vec![0, 1]));
    }
}
