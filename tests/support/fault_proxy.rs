//! A TCP proxy that does one fault at a chosen moment of a transfer, on either connection and in either direction.
//!
//! The moment is a byte of the data connection. So a fault comes after the handshake, and one on the control connection
//! comes in the middle of the data, or with the messages after the last byte.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use rustix::net::connect_unspec;

use super::relay::{BUFFER_BYTES, Connection, Relay, Sockets, Towards, pass_end};

/// What a fault does to a connection or to one of its directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Harm {
    /// Both sides of the connection are closed.
    Cut,
    /// Both sides of the connection are reset.
    Reset,
    /// This direction ends, as if its sender had closed it. The other goes on.
    HalfClose,
    /// The next bytes of this direction come twice, as many as this.
    Duplicate(usize),
    /// One bit, 0 to 7, of the next byte of this direction is another.
    Flip(u8),
    /// No byte passes in this direction any more. The connection stays open.
    Block,
    /// No byte passes in this direction for so long.
    Stall(Duration),
    /// Nothing happens to the network: the test kills a program.
    Nothing,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct PlannedFault {
    pub(crate) harm: Harm,
    pub(crate) connection: Connection,
    pub(crate) towards: Towards,
    /// The byte of the data connection, towards the acceptor, before which the fault happens.
    pub(crate) at: u64,
}

/// Forwards connections to one address, on its own threads. Dropping the proxy cuts all of its connections.
pub(crate) struct FaultProxy {
    relay: Relay,
    shared: Arc<Shared>,
}

struct Shared {
    fault: PlannedFault,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Bytes of the data connection that have been forwarded to the acceptor.
    data_bytes: u64,
    moment: Moment,
    is_closed: bool,
    connections: Vec<(Connection, Sockets)>,
}

/// Where the fault stands.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// The moment of the fault lies ahead.
    #[default]
    Ahead,
    /// The moment has come, and the direction does the harm to its next bytes.
    Here,
    /// The harm is done.
    Over,
}

impl FaultProxy {
    /// Forwards to the acceptor that listens on `target`.
    pub(crate) fn start(target: SocketAddr, fault: PlannedFault) -> Self {
        let shared = Arc::new(Shared {
            fault,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let serving = Arc::clone(&shared);
        let relay = Relay::start(target, move |connection, sockets| {
            Arc::clone(&serving).connect(connection, &sockets);
        });
        Self { relay, shared }
    }

    /// Returns the port on which the proxy accepts dialers.
    pub(crate) fn port(&self) -> u16 {
        self.relay.port()
    }

    /// Returns true if the harm has been done. `Duplicate`, `Flip` and `Stall` act on a byte that passes after the
    /// moment; the other kinds act at the moment.
    pub(crate) fn has_acted(&self) -> bool {
        let is_lasting = matches!(self.shared.fault.harm, Harm::Block | Harm::HalfClose);
        match self.shared.state().moment {
            Moment::Ahead => false,
            Moment::Here => is_lasting,
            Moment::Over => true,
        }
    }

    /// Waits until the moment of the fault has come. Returns false if the moment does not come within `limit`.
    pub(crate) fn wait_for_moment(&self, limit: Duration) -> bool {
        let ahead = |state: &mut State| state.moment == Moment::Ahead;
        let state = self.shared.state();
        let waited = self.shared.changed.wait_timeout_while(state, limit, ahead);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.state().is_closed = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forwards one connection, in two threads.
    fn connect(self: Arc<Self>, connection: Connection, sockets: &Sockets) {
        let kept = (connection, sockets.copies());
        self.state().connections.push(kept);
        let (there, copies) = (Arc::clone(&self), sockets.copies());
        thread::spawn(move || there.pass(connection, Towards::Acceptor, &copies));
        self.pass(connection, Towards::Dialer, sockets);
    }

    /// Passes bytes on until either side ends.
    fn pass(&self, connection: Connection, towards: Towards, sockets: &Sockets) {
        let (from, to) = sockets.ends(towards);
        pass_end(&self.carry((connection, towards), from, to), from, to);
    }

    fn carry(
        &self,
        direction: (Connection, Towards),
        mut from: &TcpStream,
        mut to: &TcpStream,
    ) -> io::Result<()> {
        let is_clock = direction == (Connection::Data, Towards::Acceptor);
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let count = from.read(&mut buffer)?;
            let mut bytes = &mut buffer[..count];
            if let Some(before) = is_clock.then(|| self.count_data(count)).flatten() {
                to.write_all(&bytes[..before])?;
                bytes = &mut bytes[before..];
                self.start_fault();
            }
            if count == 0 {
                return Ok(());
            }
            match self.due(direction) {
                None => to.write_all(bytes)?,
                // The end of this direction is already passed on, and its bytes are lost.
                Some(Harm::HalfClose) => return Ok(()),
                Some(harm) => self.harm(harm, bytes, to)?,
            }
        }
    }

    /// Counts bytes of the data connection. Returns the number of them before the moment of the fault, if it has come.
    fn count_data(&self, count: usize) -> Option<usize> {
        let mut state = self.state();
        let before = state.data_bytes;
        state.data_bytes += count as u64;
        // The end of the connection comes last, if its bytes were fewer than expected.
        let is_due =
            state.moment == Moment::Ahead && (count == 0 || self.fault.at < state.data_bytes);
        is_due.then(|| {
            usize::try_from(self.fault.at.saturating_sub(before))
                .unwrap_or(0)
                .min(count)
        })
    }

    /// The moment has come: harms the connection as a whole at once, and leaves the rest to the direction.
    fn start_fault(&self) {
        let PlannedFault {
            harm,
            connection,
            towards,
            ..
        } = self.fault;
        let mut state = self.state();
        let mut all = state.connections.iter().rev();
        let sockets = all
            .find(|(kind, _)| *kind == connection)
            .map(|(_, sockets)| sockets);
        let mut moment = Moment::Over;
        match (harm, sockets) {
            (Harm::Cut, Some(sockets)) => {
                for socket in [&sockets.dialer, &sockets.acceptor] {
                    let _ = socket.shutdown(Shutdown::Both);
                }
            }
            (Harm::Reset, Some(sockets)) => {
                for socket in [&sockets.dialer, &sockets.acceptor] {
                    let _ = connect_unspec(socket);
                }
            }
            (Harm::HalfClose, Some(sockets)) => {
                let (_, to) = sockets.ends(towards);
                let _ = to.shutdown(Shutdown::Write);
                moment = Moment::Here;
            }
            (Harm::Nothing, _) | (_, None) => {}
            _ => moment = Moment::Here,
        }
        state.moment = moment;
        drop(state);
        self.changed.notify_all();
    }

    /// Returns the harm to do to the next bytes of this direction. All but the end of a direction is done once.
    fn due(&self, direction: (Connection, Towards)) -> Option<Harm> {
        let mut state = self.state();
        let is_due = direction == (self.fault.connection, self.fault.towards)
            && state.moment == Moment::Here;
        if is_due {
            state.moment = Moment::Over;
        }
        is_due.then_some(self.fault.harm)
    }

    fn harm(&self, harm: Harm, bytes: &mut [u8], mut to: &TcpStream) -> io::Result<()> {
        match harm {
            Harm::Duplicate(count) => {
                let count = count.min(bytes.len());
                to.write_all(&bytes[..count])?;
            }
            Harm::Flip(bit) => bytes[0] ^= 1 << bit,
            Harm::Block => self.wait_for_end(None),
            Harm::Stall(pause) => self.wait_for_end(Some(pause)),
            Harm::Cut | Harm::Reset | Harm::HalfClose | Harm::Nothing => {}
        }
        to.write_all(bytes)
    }

    /// Waits until the proxy is dropped, for `limit` at most.
    fn wait_for_end(&self, limit: Option<Duration>) {
        let limit = limit.unwrap_or(Duration::from_secs(3600));
        let open = |state: &mut State| !state.is_closed;
        let waited = self.changed.wait_timeout_while(self.state(), limit, open);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}
