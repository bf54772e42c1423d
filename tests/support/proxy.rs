//! A TCP proxy between a dialer and an acceptor that does planned harm: cuts a connection, flips a bit in it, loses or
//! repeats bytes of it, slows it down, or stops forwarding.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use rustix::net::connect_unspec;

use super::relay::{BUFFER_BYTES, Relay, Sockets, pass_end};

pub(crate) use super::relay::{Connection, Towards};

/// The most bytes of a dialer that are recorded on each connection.
const TAPE_BYTES: usize = 64 << 10;

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// The connection is closed on both sides.
    Cut,
    /// Both sides of the connection are reset.
    Reset,
    /// This direction ends, as if its sender had closed it. The other goes on.
    HalfClose,
    /// This bit, 0 to 7, of one byte is another.
    Flip(u8),
    /// The next bytes come twice, as many as this.
    Duplicate(usize),
    /// Nothing more passes, on either connection, and both stay open: the cable is out.
    SilenceAll,
    /// This number of bytes vanishes, and those after them pass.
    Lose(u64),
    /// All further bytes of this direction of this connection vanish: a box in the middle takes them and delivers none.
    Swallow,
    /// No further byte of this direction of this connection is taken. The kernels' buffers fill.
    Block,
    /// No byte passes in this direction for so long.
    Stall(Duration),
    /// At most this number of bytes passes in a second from here on.
    Slow(u64),
    /// Nothing happens to the network: the test does something then.
    Nothing,
}

/// The harm that a proxy does, once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// On the first connection of this kind that comes so far.
    pub(crate) connection: Connection,
    pub(crate) towards: Towards,
    /// At this byte of that direction; with [`Proxy::start_by_data`], at this byte of the data.
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
    changed: Condvar,
}

#[derive(Default)]
struct State {
    plan: Option<Plan>,
    clock: Clock,
    has_acted: bool,
    is_silent: bool,
    is_closed: bool,
    connections: Vec<Carried>,
}

/// Which bytes the byte of a plan is one of.
#[derive(Default, PartialEq)]
enum Clock {
    /// Those of the direction that the plan harms.
    #[default]
    Harmed,
    /// Those of all data connections towards the acceptor.
    Data,
}

impl State {
    /// Returns the number of bytes that the first connection of this kind has carried so far.
    fn forwarded(&self, connection: Connection, towards: Towards) -> u64 {
        let mut all = self.connections.iter();
        let first = all.find(|it| it.connection == connection);
        first.map_or(0, |it| it.forwarded[towards as usize])
    }

    /// Takes the plan if its byte is among the next `count` of this direction of a connection. Returns the number of
    /// bytes before it.
    fn take_due(&mut self, number: usize, towards: Towards, count: usize) -> Option<(Plan, usize)> {
        let plan = self.plan?;
        let carried = &self.connections[number];
        let here = (carried.connection, towards);
        let (is_due, before) = if self.clock == Clock::Data {
            let data = self.connections.iter();
            let data = data.filter(|it| it.connection == Connection::Data);
            let before = data
                .map(|it| it.forwarded[Towards::Acceptor as usize])
                .sum();
            // The end of the connection comes last, if its bytes were fewer than expected.
            let is_due = count == 0 || plan.at < before + count as u64;
            (
                here == (Connection::Data, Towards::Acceptor) && is_due,
                before,
            )
        } else {
            let before = carried.forwarded[towards as usize];
            let is_due = (before..before + count as u64).contains(&plan.at);
            (here == (plan.connection, plan.towards) && is_due, before)
        };
        let at = usize::try_from(plan.at.saturating_sub(before)).unwrap_or(usize::MAX);
        is_due.then(|| {
            self.plan = None;
            (plan, at.min(count))
        })
    }

    /// Does the harm of a plan whose byte comes next on connection `number`: to that connection, if it is of the kind.
    fn act(&mut self, plan: Plan, number: usize) {
        let is_of_kind = |it: &Carried| it.connection == plan.connection;
        let last = self.connections.iter().rposition(is_of_kind);
        let number = match last {
            Some(last) if !is_of_kind(&self.connections[number]) => last,
            _ => number,
        };
        let carried = &mut self.connections[number];
        let both = [&carried.sockets.dialer, &carried.sockets.acceptor];
        let harm = &mut carried.harm[plan.towards as usize];
        self.has_acted = true;
        match plan.act {
            Act::Cut => {
                for socket in both {
                    let _ = socket.shutdown(Shutdown::Both);
                }
            }
            Act::Reset => {
                for socket in both {
                    let _ = connect_unspec(socket);
                }
            }
            Act::HalfClose => {
                let (_, to) = carried.sockets.ends(plan.towards);
                let _ = to.shutdown(Shutdown::Write);
                harm.to_lose = u64::MAX;
            }
            Act::Lose(number) => harm.to_lose = number,
            Act::Swallow => harm.to_lose = u64::MAX,
            Act::Block => harm.is_blocked = true,
            Act::Slow(rate) => harm.rate = Some(rate),
            Act::SilenceAll => self.is_silent = true,
            Act::Nothing => {}
            Act::Flip(_) | Act::Duplicate(_) | Act::Stall(_) => {
                harm.next = Some(plan.act);
                self.has_acted = false;
            }
        }
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
    harm: [Harm; 2],
    sockets: Sockets,
}

/// What is done to one direction of one connection.
#[derive(Default)]
struct Harm {
    /// What is done to the next bytes, once.
    next: Option<Act>,
    /// The number of bytes that vanish next.
    to_lose: u64,
    is_blocked: bool,
    /// The most bytes that pass in a second.
    rate: Option<u64>,
}

impl Proxy {
    /// Starts a proxy for the acceptor that listens on `target`.
    pub(crate) fn start(target: SocketAddr, plan: Option<Plan>) -> Self {
        let state = State {
            plan,
            ..State::default()
        };
        Self::start_with(target, state)
    }

    /// Starts a proxy for the acceptor that listens on `target`. Whatever the plan harms, its byte is one of all data
    /// connections towards the acceptor: harm to the control connection comes in the middle of the data, or with the
    /// messages after the last byte.
    pub(crate) fn start_by_data(target: SocketAddr, plan: Plan) -> Self {
        let state = State {
            plan: Some(plan),
            clock: Clock::Data,
            ..State::default()
        };
        Self::start_with(target, state)
    }

    fn start_with(target: SocketAddr, state: State) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
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

    /// Returns true if the harm has been done. A byte that is changed, repeated or late has to pass for that.
    pub(crate) fn has_acted(&self) -> bool {
        self.shared.state().has_acted
    }

    /// Waits until the harm has been done, for `limit` at most. Returns false if it has not.
    pub(crate) fn acts_within(&self, limit: Duration) -> bool {
        let waits = |state: &mut State| !state.has_acted;
        let waited = (self.shared.changed).wait_timeout_while(self.shared.state(), limit, waits);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
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
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the proxy is dropped, as long as `is_blocked` is true.
    fn wait_while<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        is_blocked: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        let is_blocked = |state: &mut State| !state.is_closed && is_blocked(state);
        let waited = self.changed.wait_while(state, is_blocked);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the proxy is dropped, for `limit` at most.
    fn wait<'a>(&'a self, state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
        let is_open = |state: &mut State| !state.is_closed;
        let waited = self.changed.wait_timeout_while(state, limit, is_open);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Forwards one connection, in two threads.
    fn connect(self: Arc<Self>, connection: Connection, sockets: &Sockets) {
        let number = {
            let mut state = self.state();
            state.connections.push(Carried {
                connection,
                forwarded: [0; 2],
                tape: Vec::new(),
                harm: <[Harm; 2]>::default(),
                sockets: sockets.copies(),
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

    fn carry(&self, mut from: &TcpStream, to: &TcpStream) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let count = from.read(&mut buffer)?;
            let mut bytes = &mut buffer[..count];
            let due = (self.shared.state()).take_due(self.number, self.towards, count);
            if let Some((plan, before)) = due {
                let (first, rest) = bytes.split_at_mut(before);
                self.forward(first, to)?;
                self.shared.state().act(plan, self.number);
                self.shared.changed.notify_all();
                bytes = rest;
            }
            if count == 0 {
                let state = self.shared.state();
                drop(self.shared.wait_while(state, |state| state.is_silent));
                return Ok(());
            }
            self.forward(bytes, to)?;
        }
    }

    /// Forwards bytes as the harm to this direction leaves them, and counts them.
    fn forward(&self, bytes: &mut [u8], mut to: &TcpStream) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut state = self.shared.state();
        let harm = &mut state.connections[self.number].harm[self.towards as usize];
        let (next, rate) = (harm.next.take(), harm.rate);
        let to_lose = usize::try_from(harm.to_lose).unwrap_or(usize::MAX);
        let (lost, bytes) = bytes.split_at_mut(to_lose.min(bytes.len()));
        harm.to_lose -= lost.len() as u64;
        if next.is_some() {
            state.has_acted = true;
            self.shared.changed.notify_all();
        }
        match next {
            Some(Act::Flip(bit)) => bytes[0] ^= 1 << bit,
            Some(Act::Stall(pause)) => state = self.shared.wait(state, pause),
            _ => {}
        }
        let mut state = self.shared.wait_while(state, |state| {
            let harm = &state.connections[self.number].harm[self.towards as usize];
            state.is_silent || harm.is_blocked
        });
        let carried = &mut state.connections[self.number];
        carried.forwarded[self.towards as usize] += bytes.len() as u64;
        if self.towards == Towards::Acceptor {
            let room = TAPE_BYTES.saturating_sub(carried.tape.len());
            let taped = bytes.len().min(room);
            carried.tape.extend_from_slice(&bytes[..taped]);
        }
        drop(state);
        if let Some(Act::Duplicate(count)) = next {
            to.write_all(&bytes[..count.min(bytes.len())])?;
        }
        to.write_all(bytes)?;
        if let Some(rate) = rate {
            let nanoseconds = bytes.len() as u64 * 1_000_000_000 / rate;
            thread::sleep(Duration::from_nanos(nanoseconds));
        }
        Ok(())
    }
}
