//! A TCP proxy that cuts a connection, or flips a bit in it, at a given byte.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The number of the control connection of a stream among the connections that a proxy forwards.
pub(crate) const CONTROL: usize = 0;

/// The number of the data connection of a stream among the connections that a proxy forwards.
pub(crate) const DATA: usize = 1;

/// The bytes of each connection that the proxy records.
const TAPE_BYTES: usize = 64 << 10;

/// The direction in which bytes pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the dialer to the acceptor.
    ToAcceptor,
    /// From the acceptor to the dialer.
    ToDialer,
}

/// The damage that a proxy does once, and its place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mischief {
    /// The connection, counted from 0 in the order in which connections are opened.
    pub(crate) connection: usize,
    /// The direction.
    pub(crate) way: Way,
    /// The number of bytes of this direction that pass before.
    pub(crate) at: u64,
    /// The damage.
    pub(crate) deed: Deed,
}

/// The damage that a proxy can do to a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Deed {
    /// Closes the connection in both directions.
    Cut,
    /// Flips this bit, 0 to 7, of one byte.
    Flip(u8),
}

/// A proxy that forwards connections to one address until it is dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    book: Arc<Mutex<Book>>,
    closing: DropGuard,
}

#[derive(Default)]
struct Book {
    mischief: Option<Mischief>,
    connections: Vec<Ledger>,
}

/// The record of one connection.
#[derive(Default)]
struct Ledger {
    /// The bytes forwarded to the acceptor, then to the dialer.
    forwarded: [u64; 2],
    /// The first bytes that the dialer sent.
    tape: Vec<u8>,
}

impl Proxy {
    /// Starts a proxy that forwards to `target`.
    pub(crate) async fn to(target: SocketAddr, mischief: Option<Mischief>) -> io::Result<Self> {
        let socket = TcpListener::bind("127.0.0.1:0").await?;
        let address = socket.local_addr()?;
        let book = Arc::new(Mutex::new(Book {
            mischief,
            connections: Vec::new(),
        }));
        let closed = CancellationToken::new();
        let serving = serve(socket, target, Arc::clone(&book), closed.clone());
        tokio::spawn(closed.clone().run_until_cancelled_owned(serving));
        Ok(Self {
            address,
            book,
            closing: closed.drop_guard(),
        })
    }

    /// Goes on forwarding until the runtime ends.
    pub(crate) fn outlive_its_owner(self) {
        self.closing.disarm();
    }

    /// Returns the port that the proxy listens on.
    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Replaces the damage that the proxy will do.
    pub(crate) fn plan(&self, mischief: Mischief) {
        lock(&self.book).mischief = Some(mischief);
    }

    /// Returns true until the planned damage has been done.
    pub(crate) fn is_waiting(&self) -> bool {
        lock(&self.book).mischief.is_some()
    }

    /// Returns the number of bytes that a connection has carried so far in one direction.
    pub(crate) fn forwarded(&self, connection: usize, way: Way) -> u64 {
        lock(&self.book)
            .connections
            .get(connection)
            .map_or(0, |it| it.forwarded[way as usize])
    }

    /// Returns the first bytes that the dialer sent on each connection, in the order in which they were opened.
    pub(crate) fn tapes(&self) -> Vec<Vec<u8>> {
        lock(&self.book)
            .connections
            .iter()
            .map(|it| it.tape.clone())
            .collect()
    }
}

async fn serve(
    socket: TcpListener,
    target: SocketAddr,
    book: Arc<Mutex<Book>>,
    closed: CancellationToken,
) {
    while let Ok((dialer, _)) = socket.accept().await {
        let number = {
            let mut book = lock(&book);
            book.connections.push(Ledger::default());
            book.connections.len() - 1
        };
        let book = Arc::clone(&book);
        let forwarding = async move {
            // However the forwarding ends, both sockets are closed here, which both ends of the stream detect.
            let _ = forward(dialer, target, &book, number).await;
        };
        tokio::spawn(closed.clone().run_until_cancelled_owned(forwarding));
    }
}

async fn forward(
    dialer: TcpStream,
    target: SocketAddr,
    book: &Mutex<Book>,
    number: usize,
) -> io::Result<()> {
    let acceptor = TcpStream::connect(target).await?;
    dialer.set_nodelay(true)?;
    acceptor.set_nodelay(true)?;
    let (from_dialer, to_dialer) = dialer.into_split();
    let (from_acceptor, to_acceptor) = acceptor.into_split();
    let there = Lane {
        book,
        number,
        way: Way::ToAcceptor,
    };
    let back = Lane {
        book,
        number,
        way: Way::ToDialer,
    };
    tokio::try_join!(
        there.carry(from_dialer, to_acceptor),
        back.carry(from_acceptor, to_dialer)
    )?;
    Ok(())
}

/// One direction of one connection.
struct Lane<'a> {
    book: &'a Mutex<Book>,
    number: usize,
    way: Way,
}

impl Lane<'_> {
    async fn carry(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> io::Result<()> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let count = from.read(&mut buffer).await?;
            if count == 0 {
                return to.shutdown().await;
            }
            let (bytes, cut) = self.meddle(&mut buffer[..count]);
            to.write_all(bytes).await?;
            if cut {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
    }

    /// Does the planned damage if `bytes` contain its place, and records the bytes. Returns the bytes to
    /// forward, and true if the connection must be cut after them.
    fn meddle<'b>(&self, bytes: &'b mut [u8]) -> (&'b [u8], bool) {
        let mut book = lock(self.book);
        let before = book.connections[self.number].forwarded[self.way as usize];
        let here = |it: &mut Mischief| {
            let mine = it.connection == self.number && it.way == self.way;
            mine && (before..before + bytes.len() as u64).contains(&it.at)
        };
        let mischief = book.mischief.take_if(here);
        let mut count = bytes.len();
        if let Some(Mischief { at, deed, .. }) = mischief {
            let at = usize::try_from(at - before).expect("it is in the buffer");
            match deed {
                Deed::Cut => count = at,
                Deed::Flip(bit) => bytes[at] ^= 1 << bit,
            }
        }
        let ledger = &mut book.connections[self.number];
        ledger.forwarded[self.way as usize] += count as u64;
        if self.way == Way::ToAcceptor {
            let room = TAPE_BYTES.saturating_sub(ledger.tape.len());
            ledger.tape.extend_from_slice(&bytes[..count.min(room)]);
        }
        (
            &bytes[..count],
            matches!(
                mischief,
                Some(Mischief {
                    deed: Deed::Cut,
                    ..
                })
            ),
        )
    }
}

fn lock(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().expect("no thread panics with this lock")
}
