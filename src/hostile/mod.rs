//! A client that has a key of a server and means harm: for tests, behind the feature `fault-injection`.
//!
//! [`HostileClient`] sends valid messages of every level in any order, reads or does not read, stays or dies, at any
//! point of a handshake or of its work. All of it follows from a seed. [`Attack`] has the plans that once filled a
//! server. Every message is a valid one, and passes the real library: what is invalid is the part of fuzz targets.

mod attacks;
mod copies;
mod tunnels;
mod valid;

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, copy},
    net::{TcpListener, TcpStream},
    runtime::{Builder, Runtime},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

pub use self::attacks::Attack;
use self::{copies::CopyServer, tunnels::TunnelServer, valid::Choices};
use crate::Key;

/// The connections that a hostile client has at a time.
const CONNECTIONS: u64 = 8;

/// What a hostile client attacks, with the key that it has.
#[derive(Clone)]
pub struct HostileTarget {
    /// The address of the server.
    pub address: SocketAddr,
    /// The key of the client.
    pub key: Key,
    /// What the server serves.
    pub kind: TargetKind,
}

/// What the server of a hostile client serves.
#[derive(Debug, Clone)]
pub enum TargetKind {
    /// `rdcp --serve`. The client names paths below this directory only: `""`, or a path with a slash at its end.
    Copies(String),
    /// `rdforward serve`, which connects to this port.
    Tunnels(u16),
}

/// What a hostile client has done, so that a test can check that it came far enough to do harm.
#[derive(Debug, Default)]
pub struct HostileDeeds {
    /// The connections that were begun.
    pub connections: DeedCount,
    /// The sessions that were begun.
    pub sessions: DeedCount,
    /// The orders whose edges were connected, or the tunnels that greeted.
    pub orders: DeedCount,
    /// The messages that were sent after that.
    pub messages: DeedCount,
}

/// A number of deeds.
#[derive(Debug, Default)]
pub struct DeedCount(AtomicU64);

impl DeedCount {
    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A hostile client that runs.
pub struct HostileClient {
    deeds: Arc<HostileDeeds>,
    end: CancellationToken,
    thread: Option<thread::JoinHandle<()>>,
}

impl HostileClient {
    /// Starts a client on a thread of its own, with the decisions of a seed.
    ///
    /// # Errors
    ///
    /// Fails if there is no thread or no runtime for it.
    pub fn start(target: HostileTarget, seed: u64) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (deeds, end) = (Arc::<HostileDeeds>::default(), CancellationToken::new());
        let (own_deeds, own_end) = (Arc::clone(&deeds), end.clone());
        let thread = thread::Builder::new().spawn(move || {
            let one = |number| {
                let choices = Choices::of_seed(seed.wrapping_mul(CONNECTIONS).wrapping_add(number));
                connect_without_end(&target, choices, &own_deeds)
            };
            let all = futures::future::join_all((0..CONNECTIONS).map(one));
            runtime.block_on(own_end.run_until_cancelled(all));
            // As after SIGKILL: no task runs any more, and the kernel closes the sockets.
            runtime.shutdown_background();
        })?;
        Ok(Self {
            deeds,
            end,
            thread: Some(thread),
        })
    }

    /// Returns what the client has done so far.
    #[must_use]
    pub fn deeds(&self) -> &HostileDeeds {
        &self.deeds
    }
}

impl Drop for HostileClient {
    /// Ends the client as SIGKILL would.
    fn drop(&mut self) {
        self.end.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Makes one connection after the other.
async fn connect_without_end(
    target: &HostileTarget,
    mut choices: Choices<'static>,
    deeds: &HostileDeeds,
) {
    loop {
        deeds.connections.add();
        let limit = choices.one_of(&[20, 300, 1000, 3000]);
        let connection = play(target, &mut choices, deeds);
        // The drop of what is under way is the death of that connection.
        if let Ok(Err(_)) = timeout(Duration::from_millis(limit), connection).await {
            // A server that refuses connections is not asked without a pause.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn play(
    target: &HostileTarget,
    choices: &mut Choices<'_>,
    deeds: &HostileDeeds,
) -> io::Result<()> {
    let mut address = target.address;
    let mut relays = JoinSet::new();
    if choices.once_in(4) {
        // The handshake has some hundred bytes, and a session some thousand.
        let bytes = choices.one_of(&[0, 1, 40, 100, 150, 300, 600, 2000, 10_000]);
        address = relay(&mut relays, address, bytes, choices.once_in(2)).await?;
    }
    let key = target.key.clone();
    match &target.kind {
        TargetKind::Copies(place) => {
            let place = place.clone();
            let server = CopyServer {
                address,
                key,
                place,
            };
            server.play(choices, deeds).await
        }
        TargetKind::Tunnels(port) => {
            let port = *port;
            let server = TunnelServer { address, key, port };
            server.play(choices, deeds).await
        }
    }
}

/// Returns the bytes of a session with a server of copies, which the decisions of `script` choose: an order, and valid
/// messages in any order.
#[cfg(any(test, fuzzing))]
pub(crate) fn session_bytes(script: &[u8]) -> io::Result<Vec<u8>> {
    let key = Key::generate().map_err(io::Error::other)?;
    let server = CopyServer {
        address: ([127, 0, 0, 1], 0).into(),
        key: Key::parse(key.text().to_string()).map_err(io::Error::other)?,
        place: String::new(),
    };
    server.session_bytes(&mut Choices::of_script(script))
}

/// Passes on connections to a server, and of each at most so many bytes towards it. After these the connection is cut,
/// or stays and is silent. Returns the address to connect to.
async fn relay(
    tasks: &mut JoinSet<()>,
    server: SocketAddr,
    bytes: u64,
    stays: bool,
) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((server.ip(), 0)).await?;
    let address = listener.local_addr()?;
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((near, _)) = listener.accept().await {
            connections.spawn(async move {
                let (mut from, mut to_near) = near.into_split();
                let Ok(far) = TcpStream::connect(server).await else {
                    return;
                };
                let (mut from_far, mut to) = far.into_split();
                let towards = async {
                    let _ = copy(&mut (&mut from).take(bytes), &mut to).await;
                    if stays {
                        std::future::pending::<()>().await;
                    }
                };
                tokio::select! {
                    () = towards => {}
                    _ = copy(&mut from_far, &mut to_near) => {}
                }
            });
        }
    });
    Ok(address)
}

/// The client of a fixed plan, which has sent what it had, and stays until it is dropped.
pub struct Attacker {
    taken: u64,
    runtime: Option<Runtime>,
    copies: Vec<copies::HostileCopy>,
}

impl Attacker {
    /// Carries out a plan against a server of copies: at most so many messages, until the server ends the session or
    /// takes nothing for the time of `patience`. The client names paths below `place` only.
    ///
    /// # Errors
    ///
    /// Fails if the server cannot be reached.
    pub fn run(
        attack: Attack,
        target: &HostileTarget,
        most: u64,
        patience: Duration,
    ) -> io::Result<Self> {
        let TargetKind::Copies(place) = &target.kind else {
            return Err(io::Error::other("the plans are for servers of copies"));
        };
        let server = CopyServer {
            address: target.address,
            key: target.key.clone(),
            place: place.clone(),
        };
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let (taken, copies) = runtime.block_on(attack.run(&server, most, patience))?;
        Ok(Self {
            taken,
            runtime: Some(runtime),
            copies,
        })
    }

    /// Returns the number of messages that the server took.
    pub fn taken(&self) -> u64 {
        self.taken
    }
}

impl Drop for Attacker {
    /// Ends the client as SIGKILL would.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        self.copies.clear();
    }
}
