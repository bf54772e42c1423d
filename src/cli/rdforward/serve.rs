//! Lets clients that have a key connect to ports of this host.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Context;
use tokio::{
    runtime::Builder,
    sync::Semaphore,
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{args::ForwardServeArgs, peer};
use crate::{
    Direction, Listener, Stream,
    cli::{
        keys::client_keys::ClientKeys,
        shared::{
            exit::Exit,
            message::{Console, sentence},
            report::counted,
            run::control_runtime,
            signals,
        },
    },
    forward::{
        policy::ForwardPolicy,
        tunnel::{ConnectionPlaces, TunnelRole},
    },
    process::raise_descriptor_limit,
    threads,
};

/// The tunnels that the server has at a time. Each holds at most 64 MiB of bytes that programs have not read.
const MOST_TUNNELS: usize = 256;

/// The tunnels of one key at a time, so that one client leaves room for others.
const MOST_OF_ONE_KEY: usize = 32;

/// The connections of all tunnels at a time, if there are descriptors for so many.
const MOST_CONNECTIONS: usize = 1 << 16;

/// The part of the connections that one key may have.
const SHARE_OF_ONE_KEY: usize = 4;

/// The time between two looks at the key file.
const TICK: Duration = Duration::from_secs(1);

/// The time for tunnels to tell their other ends that the server has ended.
const END_LIMIT: Duration = Duration::from_secs(3);

/// Serves clients until a signal ends the server. Returns how the program ends.
pub(super) fn run(args: &ForwardServeArgs, console: &Console) -> Exit {
    serve(args, console).unwrap_or_else(|error| {
        console.error(&sentence(&error));
        Exit::from(&error)
    })
}

fn serve(args: &ForwardServeArgs, console: &Console) -> anyhow::Result<Exit> {
    let places = places_of(raise_descriptor_limit());
    let signal = signals::watch(&control_runtime()?, console).context("cannot catch signals")?;
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    // The runtime panics if it gets no thread.
    threads::require(workers + 1).context("cannot start the runtime")?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let exit = runtime.block_on(async {
        let server = ForwardServer::start(args, places, console).await?;
        let accepting = tokio::spawn(Arc::clone(&server).accept_all());
        let reloading = tokio::spawn(Arc::clone(&server).reload_keys());
        let Ok(caught) = signal.await else {
            // No signal can come any more: all of them were ignored at the start.
            return std::future::pending().await;
        };
        accepting.abort();
        reloading.abort();
        console.note(&format!("received {}", caught.name));
        server.end().await;
        Ok(Exit::Ok)
    });
    // A thread that hangs in a resolver must not keep the process from exiting.
    runtime.shutdown_background();
    exit
}

/// Returns the number of connections that all tunnels may have, at this limit of open files.
fn places_of(descriptors: Option<u64>) -> usize {
    let limit = descriptors.and_then(|limit| usize::try_from(limit).ok());
    // A quarter is for the tunnels themselves, and for everything else.
    limit.map_or(MOST_CONNECTIONS, |limit| {
        (limit - limit / 4).clamp(1, MOST_CONNECTIONS)
    })
}

/// A client that has tunnels.
struct ServedClient {
    tunnels: usize,
    /// The places for its connections.
    places: Arc<Semaphore>,
}

/// A running server.
struct ForwardServer {
    keys: ClientKeys,
    policy: ForwardPolicy,
    listener: Listener,
    console: Console,
    tunnels: TaskTracker,
    /// The places for connections.
    places: Arc<Semaphore>,
    places_of_one_key: usize,
    /// The clients that have tunnels.
    clients: Mutex<HashMap<Arc<str>, ServedClient>>,
    ended: CancellationToken,
}

impl ForwardServer {
    async fn start(
        args: &ForwardServeArgs,
        places: usize,
        console: &Console,
    ) -> anyhow::Result<Arc<Self>> {
        let (keys, warning) = ClientKeys::load(&args.key_file)?;
        if let Some(warning) = warning {
            console.warn(&warning);
        }
        let config = args.stream.config(Direction::Both);
        let listener = keys.listen(args.listen_port, config).await?;
        let allowed: Vec<_> = args.allow.iter().map(ToString::to_string).collect();
        console.note(&format!(
            "listening on port {}: {} may connect to {}",
            listener.local_addr().port(),
            counted(keys.count() as u64, "client", "clients"),
            allowed.join(", "),
        ));
        Ok(Arc::new(Self {
            keys,
            policy: args.policy(),
            listener,
            console: console.clone(),
            tunnels: TaskTracker::new(),
            places: Arc::new(Semaphore::new(places)),
            places_of_one_key: places.div_ceil(SHARE_OF_ONE_KEY),
            clients: Mutex::default(),
            ended: CancellationToken::new(),
        }))
    }

    /// Accepts clients for as long as the server runs.
    async fn accept_all(self: Arc<Self>) {
        let places = Arc::new(Semaphore::new(MOST_TUNNELS));
        loop {
            let place = Arc::clone(&places).acquire_owned().await;
            match self.listener.accept().await {
                Ok(stream) => {
                    let serving = Arc::clone(&self).serve(stream);
                    self.tunnels.spawn(async move {
                        serving.await;
                        drop(place);
                    });
                }
                Err(error) => self.console.error(&error.to_string()),
            }
        }
    }

    /// Serves one client.
    async fn serve(self: Arc<Self>, mut stream: Stream) {
        // The key may have been revoked since the handshake.
        let Some((name, _)) = self.keys.find(stream.key_id()) else {
            return stream.abort("the key was revoked");
        };
        let shown = format!("{name} ({})", stream.peer_addr().ip());
        let Some(places) = self.enter(&name) else {
            let text = format!("this client has {MOST_OF_ONE_KEY} tunnels already");
            self.console
                .notice(|console| console.warn(&format!("{shown}: {text}")));
            stream.abort(&text);
            return stream.close().await;
        };
        self.console
            .notice(|console| console.note(&format!("{shown}: connected")));
        let cut = self.cut(&stream);
        let role = TunnelRole {
            policy: Some(self.policy.clone()),
            places: Some(places),
            ..TunnelRole::default()
        };
        let ended = peer::carry(stream, role, &self.console, cut).await;
        self.leave(&name);
        self.console.notice(|console| match ended {
            Ok(()) => console.note(&format!("{shown}: disconnected")),
            Err(error) => console.warn(&format!("{shown}: {error}")),
        });
    }

    /// Waits until the server ends or the key of a client is revoked, and returns the reason.
    fn cut(&self, stream: &Stream) -> impl Future<Output = &'static str> + use<> {
        let (keys, id) = (self.keys.clone(), stream.key_id());
        let ended = self.ended.clone();
        async move {
            let mut ticks = interval(TICK);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    () = ended.cancelled() => return "the server has ended",
                    _ = ticks.tick() => if keys.find(id).is_none() {
                        return "the key was revoked";
                    },
                }
            }
        }
    }

    /// Counts a new tunnel of a client. Returns the places for its connections; none if the client has too many
    /// tunnels.
    fn enter(&self, name: &Arc<str>) -> Option<ConnectionPlaces> {
        let mut clients = self.clients();
        let client = clients
            .entry(Arc::clone(name))
            .or_insert_with(|| ServedClient {
                tunnels: 0,
                places: Arc::new(Semaphore::new(self.places_of_one_key)),
            });
        if client.tunnels == MOST_OF_ONE_KEY {
            return None;
        }
        client.tunnels += 1;
        let (of_all, of_client) = (Arc::clone(&self.places), Arc::clone(&client.places));
        Some(ConnectionPlaces::new(of_all, of_client))
    }

    fn leave(&self, name: &Arc<str>) {
        let mut clients = self.clients();
        if let Some(client) = clients.get_mut(name) {
            client.tunnels -= 1;
            if client.tunnels == 0 {
                clients.remove(name);
            }
        }
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<Arc<str>, ServedClient>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the key file again when it changes.
    async fn reload_keys(self: Arc<Self>) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let keys = self.keys.clone();
            match threads::blocking(move || keys.reload_if_changed()).await {
                Ok(Ok(None)) | Err(_) => {}
                Ok(Ok(Some(changes))) => {
                    self.console.note(&changes.to_string());
                    if let Some(warning) = &changes.warning {
                        self.console.warn(warning);
                    }
                }
                Ok(Err(error)) => {
                    let text = format!("{error}; the keys stay as they were");
                    self.console.error(&text);
                }
            }
        }
    }

    /// Resets all connections, and tells the other ends why.
    async fn end(&self) {
        self.ended.cancel();
        self.tunnels.close();
        let _ = timeout(END_LIMIT, self.tunnels.wait()).await;
    }
}
