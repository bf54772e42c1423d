//! A TCP proxy between rdsend and rdrecv that cuts a connection, flips a bit in it, or stops forwarding.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// One of the two connections of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connection {
    Control,
    Data,
}

/// The direction in which bytes pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Towards {
    Receiver,
    Sender,
}

/// The damage that the proxy does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Closes the connection on both sides.
    Cut,
    /// Flips one bit.
    Flip,
    /// Forwards nothing more on either connection, and keeps both open, like an unplugged cable.
    Silence,
}

/// The damage that a proxy does once, and its place.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub connection: Connection,
    pub towards: Towards,
    /// The byte of this direction at which the damage is done.
    pub at: u64,
    pub act: Act,
}

/// A proxy that runs until the process of the test ends.
pub struct Proxy {
    /// The port to which rdsend connects.
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    plan: Plan,
    done: AtomicBool,
    silent: AtomicBool,
}

impl Proxy {
    /// Starts a proxy for the rdrecv that listens on port `target`.
    pub fn start(target: u16, plan: Plan) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let (done, silent) = (AtomicBool::new(false), AtomicBool::new(false));
        let shared = Arc::new(Shared { plan, done, silent });
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else {
                    continue;
                };
                let shared = Arc::clone(&serving);
                thread::spawn(move || connect(&shared, &client, &server));
            }
        });
        Self { port, shared }
    }

    /// Returns true if the damage has been done.
    pub fn acted(&self) -> bool {
        self.shared.done.load(Ordering::SeqCst)
    }
}

fn connect(shared: &Arc<Shared>, client: &TcpStream, server: &TcpStream) {
    // The preamble is "RDPIPE", the version, and the kind of the connection.
    let mut preamble = [0; 8];
    while client
        .peek(&mut preamble)
        .is_ok_and(|count| (1..8).contains(&count))
    {}
    let connection = if preamble[7] == b'D' {
        Connection::Data
    } else {
        Connection::Control
    };
    for socket in [client, server] {
        socket.set_nodelay(true).expect("a socket");
    }
    for (from, to, towards) in [
        (client, server, Towards::Receiver),
        (server, client, Towards::Sender),
    ] {
        let (from, to) = (
            from.try_clone().expect("a socket"),
            to.try_clone().expect("a socket"),
        );
        let (plan, shared) = (shared.plan, Arc::clone(shared));
        let here = plan.connection == connection && plan.towards == towards;
        thread::spawn(move || pass(&shared, &from, &to, here.then_some(plan)));
    }
}

/// Passes bytes on in one direction until either side ends.
fn pass(shared: &Shared, mut from: &TcpStream, mut to: &TcpStream, plan: Option<Plan>) {
    let mut buffer = vec![0; 64 << 10];
    let mut passed = 0;
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let mut bytes = &mut buffer[..count];
        let mut cut = false;
        let due = plan.filter(|plan| passed + count as u64 > plan.at);
        let due = due.filter(|_| !shared.done.swap(true, Ordering::SeqCst));
        if let Some(plan) = due {
            let index = usize::try_from(plan.at - passed).expect("within the buffer");
            match plan.act {
                Act::Flip => bytes[index] ^= 0x10,
                Act::Silence => shared.silent.store(true, Ordering::SeqCst),
                Act::Cut => (bytes, cut) = (&mut bytes[..index], true),
            }
        }
        while shared.silent.load(Ordering::SeqCst) {
            thread::park();
        }
        passed += count as u64;
        if to.write_all(bytes).is_err() || cut {
            break;
        }
    }
    // An end of file is forwarded as a half-close, so that the last bytes of the other direction still arrive.
    let how = if plan.is_some_and(|plan| plan.act == Act::Cut) && shared.done.load(Ordering::SeqCst)
    {
        Shutdown::Both
    } else {
        Shutdown::Write
    };
    let _ = to.shutdown(how);
    if how == Shutdown::Both {
        let _ = from.shutdown(how);
    }
}
