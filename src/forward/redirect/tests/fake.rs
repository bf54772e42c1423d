//! Destinations that need no network, and programs that connect to them.

use std::{
    net::SocketAddr,
    process::{Command, ExitStatus},
    sync::Arc,
    time::Duration,
};

use rustix::{io::Errno, process::Pid};
use tokio::{
    io::copy,
    net::TcpStream,
    sync::{Barrier, Semaphore, watch},
    time::timeout,
};

use crate::forward::redirect::{Destinations, RedirectedCommand};

pub(super) const ECHO: &str = "192.0.2.1";
/// Echoes what it receives, over IPv6.
pub(super) const ECHO_V6: &str = "2001:db8::1";
pub(super) const REFUSES: &str = "192.0.2.2";
/// Cannot be reached.
pub(super) const UNREACHABLE: &str = "192.0.2.5";
/// Opens a connection when the test calls [`Fake::release`].
pub(super) const WAITS: &str = "192.0.2.3";
/// Opens connections when as many are being opened as the test has said.
pub(super) const TOGETHER: &str = "192.0.2.4";
/// Is covered, and is an address of every host.
pub(super) const LOCAL: &str = "127.9.9.9";

/// A guard against a hang.
const LIMIT: Duration = Duration::from_secs(120);

#[derive(Clone)]
pub(super) struct Fake {
    state: Arc<State>,
}

struct State {
    seen: watch::Sender<Seen>,
    released: Semaphore,
    together: Barrier,
}

/// What has happened since the start.
#[derive(Default)]
pub(super) struct Seen {
    /// How often a connection was to be opened.
    pub(super) begun: usize,
    pub(super) opened: usize,
    /// How many connections are being opened or are open.
    pub(super) live: usize,
    /// The destinations that have been attached, in order.
    pub(super) attached: Vec<SocketAddr>,
    /// How many calls of processes that forbid access have not been redirected.
    pub(super) bypassed: usize,
}

/// A connection that is counted until it is dropped.
pub(super) struct Counted {
    state: Arc<State>,
    destination: SocketAddr,
}

impl Fake {
    pub(super) fn new() -> Self {
        Self::with_barrier(1)
    }

    pub(super) fn with_barrier(together: usize) -> Self {
        let state = State {
            seen: watch::Sender::new(Seen::default()),
            released: Semaphore::new(0),
            together: Barrier::new(together),
        };
        Self {
            state: Arc::new(state),
        }
    }

    /// The destinations that have been attached, in order.
    pub(super) fn attached(&self) -> Vec<String> {
        let seen = self.state.seen.borrow();
        seen.attached.iter().map(ToString::to_string).collect()
    }

    /// How many connections have been opened since the start.
    pub(super) fn opened(&self) -> usize {
        self.state.seen.borrow().opened
    }

    /// Waits until something has happened.
    pub(super) async fn until(&self, happened: impl FnMut(&Seen) -> bool) {
        let mut seen = self.state.seen.subscribe();
        let reached = timeout(LIMIT, seen.wait_for(happened)).await;
        reached.expect("in time").unwrap();
    }

    /// Waits until this many connections are being opened or are open.
    pub(super) async fn until_live(&self, count: usize) {
        self.until(|seen| seen.live == count).await;
    }

    /// Opens the connections to the address that waits.
    pub(super) fn release(&self) {
        self.state.released.add_permits(1000);
    }

    pub(super) fn start(&self, program: &str, args: &[&str]) -> RedirectedCommand {
        let mut command = Command::new(program);
        command.args(args);
        RedirectedCommand::start(command, self.clone()).expect("a program")
    }

    pub(super) async fn run(&self, program: &str, args: &[&str]) -> ExitStatus {
        end(self.start(program, args)).await
    }

    /// Runs a script, which fails if an expectation of its does not hold.
    pub(super) async fn bash(&self, script: &str) {
        let script = format!("set -e\n{script}");
        let status = self.run("bash", &["-c", &script]).await;
        assert!(status.success(), "{status}");
    }

    /// Runs a Python program, which fails if an assertion of its does not hold. Returns false where there is no Python.
    pub(super) async fn python(&self, code: &str) -> bool {
        let Some(command) = self.start_python(code) else {
            return false;
        };
        let status = end(command).await;
        assert!(status.success(), "{status}");
        true
    }

    /// Starts a Python program, unless there is no Python.
    pub(super) fn start_python(&self, code: &str) -> Option<RedirectedCommand> {
        let found = Command::new("python3").arg("--version").output();
        if !found.is_ok_and(|output| output.status.success()) {
            println!("SKIPPED: no python3 here");
            return None;
        }
        let code = format!("{PRELUDE}\n{code}");
        Some(self.start("python3", &["-c", &code]))
    }
}

/// Waits for the end of a program.
pub(super) async fn end(mut command: RedirectedCommand) -> ExitStatus {
    let status = timeout(LIMIT, command.wait()).await;
    let status = status.expect("the program ends in time").unwrap();
    assert_eq!(command.pid(), None);
    status
}

/// What the Python programs use.
const PRELUDE: &str = r"
import ctypes, errno, os, select, signal, socket, struct, sys, threading
from socket import *

def error_of(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return 'none'

def receive_all(s, count):
    received = b''
    while len(received) < count:
        part = s.recv(count - len(received))
        assert part, 'early end of file'
        received += part
    return received

def echoes(s):
    message = os.urandom(20000)
    s.setblocking(True)
    s.sendall(message)
    assert receive_all(s, len(message)) == message
    s.shutdown(SHUT_WR)
    assert s.recv(1) == b''
";

impl Destinations for Fake {
    type Opened = Counted;

    fn covers(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_string();
        [ECHO, ECHO_V6, REFUSES, UNREACHABLE, WAITS, TOGETHER, LOCAL].contains(&ip.as_str())
    }

    async fn open(&self, address: SocketAddr) -> Result<Counted, Errno> {
        let counted = Counted {
            state: Arc::clone(&self.state),
            destination: address,
        };
        self.state.seen.send_modify(|seen| {
            seen.begun += 1;
            seen.live += 1;
        });
        match address.ip().to_string().as_str() {
            REFUSES => return Err(Errno::CONNREFUSED),
            UNREACHABLE => return Err(Errno::HOSTUNREACH),
            WAITS => self.state.released.acquire().await.unwrap().forget(),
            TOGETHER => {
                self.state.together.wait().await;
            }
            _ => {}
        }
        self.state.seen.send_modify(|seen| seen.opened += 1);
        Ok(counted)
    }

    fn attach(&self, opened: Counted, socket: TcpStream) {
        let destination = opened.destination;
        let seen = &self.state.seen;
        seen.send_modify(|seen| seen.attached.push(destination));
        tokio::spawn(async move {
            let (mut reader, mut writer) = socket.into_split();
            // A program that is killed resets its connection.
            let _ = copy(&mut reader, &mut writer).await;
            drop(opened);
        });
    }

    fn bypassed(&self, _thread: Pid) {
        self.state.seen.send_modify(|seen| seen.bypassed += 1);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.state.seen.send_modify(|seen| seen.live -= 1);
    }
}
