//! A TCP proxy between rdsend and rdrecv that cuts, damages or withholds what passes.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// Which of a stream's two connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connection {
    Control,
    Data,
}

/// Which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Towards {
    Receiver,
    Sender,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// The connection is closed on both sides.
    Cut,
    /// One bit is another.
    Flip,
    /// Nothing more passes, on either connection, and both stay open: the cable is out.
    Silence,
}

/// The harm that a proxy does, once.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub connection: Connection,
    pub towards: Towards,
    /// At this byte of that direction.
    pub at: u64,
    pub act: Act,
}

/// Runs until the test's process ends.
pub struct Proxy {
    /// Where rdsend finds it.
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    plan: Plan,
    done: AtomicBool,
    silent: AtomicBool,
}

impl Proxy {
    /// A proxy for the rdrecv that listens on `target`.
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

    /// Whether the harm has been done.
    pub fn acted(&self) -> bool {
        self.shared.done.load(Ordering::SeqCst)
    }
}

fn connect(shared: &Arc<Shared>, client: &TcpStream, server: &TcpStream) {
    // "RDPIPE", the version, and what the connection is for.
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
    // An end passes on as an end, so that the last words in the other direction still arrive.
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
