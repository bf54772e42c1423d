//! A TCP proxy that does harm where it is told to: cuts a connection, or flips a bit in it.

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

/// The number of a stream's control connection, among those that a proxy forwards.
pub(crate) const CONTROL: usize = 0;

/// The number of its data connection.
pub(crate) const DATA: usize = 1;

/// How much of each connection is recorded, in bytes.
const TAPE_BYTES: usize = 64 << 10;

/// Which way bytes travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the dialer to the acceptor.
    ToAcceptor,
    /// From the acceptor to the dialer.
    ToDialer,
}

/// What to do, and where.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mischief {
    /// On which connection, counted from 0 in the order in which they were opened.
    pub(crate) connection: usize,
    /// On its bytes in which direction.
    pub(crate) way: Way,
    /// After so many of them.
    pub(crate) at: u64,
    /// What.
    pub(crate) deed: Deed,
}

/// What can be done to a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Deed {
    /// Closes it, both ways.
    Cut,
    /// Flips this bit, 0 to 7, of one byte.
    Flip(u8),
}

/// Forwards connections to one address until it is dropped.
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

/// What one connection has carried so far.
#[derive(Default)]
struct Ledger {
    /// To the acceptor, then to the dialer.
    forwarded: [u64; 2],
    /// The beginning of what the dialer said.
    tape: Vec<u8>,
}

impl Proxy {
    /// Forwards to `target`.
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

    /// The port it listens on.
    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Changes what it will do.
    pub(crate) fn plan(&self, mischief: Mischief) {
        lock(&self.book).mischief = Some(mischief);
    }

    /// Whether what it was to do has still to come.
    pub(crate) fn is_waiting(&self) -> bool {
        lock(&self.book).mischief.is_some()
    }

    /// Bytes that a connection has carried so far.
    pub(crate) fn forwarded(&self, connection: usize, way: Way) -> u64 {
        lock(&self.book)
            .connections
            .get(connection)
            .map_or(0, |it| it.forwarded[way as usize])
    }

    /// What the dialer said on each connection, in the order in which they were opened.
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
            // Whatever ends it: both sockets are closed here, and that is what the two ends see.
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

    /// Does what was planned if it is time, and enters the bytes in the book. What is returned is
    /// to be forwarded; `true`: and nothing after it.
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
    book.lock().expect("nobody panics with the book in hand")
}
