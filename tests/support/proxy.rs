//! A TCP proxy between a dialer and an acceptor that does planned harm: cuts a connection, flips a bit in it, loses
//! bytes of it, slows it down, or stops forwarding.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use super::relay::{BUFFER_BYTES, Relay, Sockets, pass_end};

pub(crate) use super::relay::{Connection, Towards};

/// The most bytes of a dialer that are recorded on each connection.
const TAPE_BYTES: usize = 64 << 10;

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// The connection is closed on both sides.
    Cut,
    /// This bit, 0 to 7, of one byte is another.
    Flip(u8),
    /// Nothing more passes, on either connection, and both stay open: the cable is out.
    SilenceAll,
    /// This number of bytes vanishes, and those after them pass.
    Lose(u64),
    /// All further bytes of this direction of this connection vanish: a box in the middle takes them and delivers none.
    Swallow,
    /// No further byte of this direction of this connection is taken. The kernels' buffers fill.
    Block,
    /// At most this number of bytes passes in a second from here on.
    Slow(u64),
}

/// The harm that a proxy does, once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// On the first connection of this kind that comes so far.
    pub(crate) connection: Connection,
    pub(crate) towards: Towards,
    /// At this byte of that direction.
    pub(crate) at: u64,
    pub(crate) act: Act,
}

/// Forwards connections to one address, on its own threads. Dropping the proxy cuts all of its connections.
pub(crate) struct Proxy {
    relay: Relay,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    closed: Condvar,
}

#[derive(Default)]
struct State {
    plan: Option<Plan>,
    has_acted: bool,
    is_silent: bool,
    is_closed: bool,
    connections: Vec<Carried>,
}

impl State {
    /// Returns the number of bytes that the first connection of this kind has carried so far.
    fn forwarded(&self, connection: Connection, towards: Towards) -> u64 {
        let mut all = self.connections.iter();
        let first = all.find(|it| it.connection == connection);
        first.map_or(0, |it| it.forwarded[towards as usize])
    }
}

/// What one connection has carried so far.
struct Carried {
    connection: Connection,
    /// Bytes to the acceptor, then to the dialer.
    forwarded: [u64; 2],
    /// The first bytes that the dialer sent.
    tape: Vec<u8>,
    /// What has been done to each direction.
    harm: [LastingHarm; 2],
}

/// What was done to one direction of one connection, and lasts.
#[derive(Default)]
struct LastingHarm {
    /// The number of bytes that vanish next.
    to_lose: u64,
    is_blocked: bool,
    /// The most bytes that pass in a second.
    rate: Option<u64>,
}

impl Proxy {
    /// Starts a proxy for the acceptor that listens on `target`.
    pub(crate) fn start(target: SocketAddr, plan: Option<Plan>) -> Self {
        let state = Mutex::new(State {
            plan,
            ..State::default()
        });
        let closed = Condvar::new();
        let shared = Arc::new(Shared { state, closed });
        let serving = Arc::clone(&shared);
        let relay = Relay::start(target, move |connection, sockets| {
            Arc::clone(&serving).connect(connection, &sockets);
        });
        Self { relay, shared }
    }

    /// Keeps the proxy until the process of the test ends.
    pub(crate) fn outlive_its_owner(self) {
        std::mem::forget(self);
    }

    /// Returns the port on which the proxy accepts dialers.
    pub(crate) fn port(&self) -> u16 {
        self.relay.port()
    }

    /// Replaces the planned harm. Its byte counts from what has been forwarded so far: no byte passes in between.
    pub(crate) fn plan_from_here(&self, plan: Plan) {
        let mut state = self.shared.state();
        let forwarded = state.forwarded(plan.connection, plan.towards);
        state.plan = Some(Plan {
            at: forwarded + plan.at,
            ..plan
        });
    }

    /// Replaces the planned harm.
    pub(crate) fn plan(&self, plan: Plan) {
        self.shared.state().plan = Some(plan);
    }

    /// Returns true if the harm has been done.
    pub(crate) fn has_acted(&self) -> bool {
        self.shared.state().has_acted
    }

    /// Returns the number of connections that were opened so far.
    pub(crate) fn connections(&self) -> usize {
        self.shared.state().connections.len()
    }

    /// Returns the first bytes that the dialer sent on the first connection of this kind.
    pub(crate) fn tape(&self, connection: Connection) -> Vec<u8> {
        let state = self.shared.state();
        let mut all = state.connections.iter();
        let first = all.find(|it| it.connection == connection);
        first.map_or_else(Vec::new, |it| it.tape.clone())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.state().is_closed = true;
        self.shared.closed.notify_all();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the proxy is dropped, if nothing may pass any more.
    fn wait_while_silent<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let is_silent = |state: &mut State| state.is_silent && !state.is_closed;
        let waited = self.closed.wait_while(state, is_silent);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Forwards one connection, in two threads.
    fn connect(self: Arc<Self>, connection: Connection, sockets: &Sockets) {
        let number = {
            let mut state = self.state();
            state.connections.push(Carried {
                connection,
                forwarded: [0; 2],
                tape: Vec::new(),
                harm: <[LastingHarm; 2]>::default(),
            });
            state.connections.len() - 1
        };
        let there = Direction {
            shared: Arc::clone(&self),
            number,
            towards: Towards::Acceptor,
        };
        let back = Direction {
            shared: self,
            number,
            towards: Towards::Dialer,
        };
        let copies = sockets.copies();
        thread::spawn(move || there.pass(&copies));
        back.pass(sockets);
    }
}

/// One direction of one connection.
struct Direction {
    shared: Arc<Shared>,
    number: usize,
    towards: Towards,
}

impl Direction {
    /// Passes bytes on until either side ends.
    fn pass(&self, sockets: &Sockets) {
        let (from, to) = sockets.ends(self.towards);
        pass_end(&self.carry(from, to), from, to);
    }

    fn carry(&self, mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let count = from.read(&mut buffer)?;
            if count == 0 {
                drop(self.shared.wait_while_silent(self.shared.state()));
                return Ok(());
            }
            let (bytes, is_cut) = self.apply_plan(&mut buffer[..count]);
            to.write_all(bytes)?;
            if let Some(pause) = self.pause(bytes.len()) {
                thread::sleep(pause);
            }
            if is_cut {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
    }

    /// Returns the time that this number of bytes takes on a slow network.
    fn pause(&self, bytes: usize) -> Option<Duration> {
        let state = self.shared.state();
        let rate = state.connections[self.number].harm[self.towards as usize].rate?;
        Some(Duration::from_nanos(bytes as u64 * 1_000_000_000 / rate))
    }

    /// Does the planned harm if its byte has come, and counts the bytes. Returns the bytes to forward, and `true` if
    /// nothing is forwarded after them.
    fn apply_plan<'b>(&self, bytes: &'b mut [u8]) -> (&'b [u8], bool) {
        let mut state = self.shared.state();
        let carried = &state.connections[self.number];
        let (connection, before) = (carried.connection, carried.forwarded[self.towards as usize]);
        let is_due = |plan: &mut Plan| {
            let here = plan.connection == connection && plan.towards == self.towards;
            here && (before..before + bytes.len() as u64).contains(&plan.at)
        };
        let due = state.plan.take_if(is_due);
        let (mut count, mut is_cut) = (bytes.len(), false);
        let mut at = 0;
        if let Some(plan) = due {
            at = usize::try_from(plan.at - before).expect("it is in the buffer");
            let harm = &mut state.connections[self.number].harm[self.towards as usize];
            match plan.act {
                Act::Cut => (count, is_cut) = (at, true),
                Act::Flip(bit) => bytes[at] ^= 1 << bit,
                Act::Lose(number) => harm.to_lose = number,
                Act::Swallow => harm.to_lose = u64::MAX,
                Act::Block => harm.is_blocked = true,
                Act::Slow(rate) => harm.rate = Some(rate),
                Act::SilenceAll => state.is_silent = true,
            }
            state.has_acted = true;
        }
        let harm = &mut state.connections[self.number].harm[self.towards as usize];
        let lost = (count - at).min(usize::try_from(harm.to_lose).unwrap_or(usize::MAX));
        harm.to_lose -= lost as u64;
        bytes.copy_within(at + lost..count, at);
        count -= lost;
        let is_blocked = |state: &State| {
            let connection = &state.connections[self.number];
            state.is_silent || connection.harm[self.towards as usize].is_blocked
        };
        while is_blocked(&state) && !state.is_closed {
            let waited = self.shared.closed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        let carried = &mut state.connections[self.number];
        carried.forwarded[self.towards as usize] += count as u64;
        if self.towards == Towards::Acceptor {
            let room = TAPE_BYTES.saturating_sub(carried.tape.len());
            carried.tape.extend_from_slice(&bytes[..count.min(room)]);
        }
        (&bytes[..count], is_cut)
    }
}
