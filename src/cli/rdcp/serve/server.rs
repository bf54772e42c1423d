//! The server: accepts clients, keeps its tables, and ends.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use tokio::{
    runtime::Builder,
    sync::{Semaphore, oneshot},
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    args::{DEFAULT_CLIENTS, DEFAULT_GRACE, DEFAULT_MEMORY, DEFAULT_PORT},
    client::{self, ServerShared, SessionKills},
    figures::{
        metrics::{metrics_text, write_metrics},
        rates::RateSampler,
        server_totals::{ServerTally, ServerTotals},
    },
    memory::{CopyPools, return_large_blocks},
    served_copies::{ServedAccess, ServedCopies},
};
use crate::{
    Direction,
    carry::thread::CarryThread,
    cli::{
        args::RdcpArgs,
        keys::client_keys::ClientKeys,
        shared::{
            exit::Exit,
            message::{Console, sentence},
            report::{amount, counted},
            run::control_runtime,
            signals::{self, Caught},
        },
    },
    copy::{base::BaseDirectory, destination::DestinationClaims},
    process::raise_descriptor_limit,
    ssh::route::session_config,
    threads,
};

/// The time between two looks at the key file and two samples of the rates.
const TICK: Duration = Duration::from_secs(1);

/// The ticks between two lines of the log, and between two writes of the metrics.
const TICKS_OF_LOG: u32 = 10;

/// The sessions that may wait for a place beside those that are served. Each costs some 200 KiB. Further clients wait
/// in the queue of the listener.
const MOST_WAITING: usize = 256;

/// The time for sessions to end after they were told to: an agent has four seconds, and then reports.
const END_LIMIT: Duration = Duration::from_secs(6);

/// The worker threads for sessions and control messages. The bytes move on a thread of each stream.
const WORKERS: usize = 2;

/// A running server.
struct Server {
    shared: Arc<ServerShared>,
    sessions: TaskTracker,
    metrics: Option<PathBuf>,
    grace: Duration,
    ended: CancellationToken,
}

/// Serves clients until a signal ends the server. Returns how it ended.
///
/// Call this function first in `main`, before other threads start: it may start the program again.
pub(in crate::cli::rdcp) fn run(args: &RdcpArgs, console: &Console) -> Exit {
    return_large_blocks();
    serve(args, console).unwrap_or_else(|error| {
        console.error(&sentence(&error));
        Exit::from(&error)
    })
}

fn serve(args: &RdcpArgs, console: &Console) -> anyhow::Result<Exit> {
    // Each copy needs some twenty descriptors.
    raise_descriptor_limit();
    let signal = signals::watch(&control_runtime()?, console).context("cannot catch signals")?;
    // The runtime panics if it gets no thread.
    threads::require(WORKERS + 1).context("cannot start the runtime")?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let exit = runtime.block_on(async {
        let server = Arc::new(Server::start(args, console).await?);
        Ok(server.serve_clients(signal).await)
    });
    // A thread that hangs in a file must not keep the process from exiting.
    runtime.shutdown_background();
    exit
}

impl Server {
    async fn start(args: &RdcpArgs, console: &Console) -> anyhow::Result<Self> {
        let serve = &args.serve;
        let root = serve.root.clone().context("no --root was given")?;
        let key_file = args.key_file.clone().context("no --key-file was given")?;
        let base = BaseDirectory::root(&root).map_err(anyhow::Error::msg)?;
        let (keys, warning) = ClientKeys::load(&key_file)?;
        if let Some(warning) = warning {
            console.warn(&warning);
        }
        let clients = serve.max_clients.unwrap_or(DEFAULT_CLIENTS);
        let memory = serve.memory.unwrap_or(DEFAULT_MEMORY);
        let settings = args.stream.config(Direction::Both);
        let session = session_config(settings.timeout);
        let pools = CopyPools::divide(memory, clients, args.lanes(), settings);
        let pools = pools.map_err(anyhow::Error::msg)?;
        let port = serve.listen_port.unwrap_or(DEFAULT_PORT);
        let listener = keys.listen(port, session).await?;
        console.note(&format!(
            "listening on port {}: serves {} to {}, at most {clients} copies at a time in {}",
            listener.local_addr().port(),
            root.display(),
            counted(keys.count() as u64, "client", "clients"),
            amount(memory),
        ));
        let shared = ServerShared {
            copies: ServedCopies {
                base,
                claims: DestinationClaims::default(),
                access: match (serve.read_only, serve.write_only) {
                    (true, _) => ServedAccess::ReadOnly,
                    (_, true) => ServedAccess::WriteOnly,
                    _ => ServedAccess::Both,
                },
                most_lanes: args.lanes(),
            },
            keys,
            listener: Arc::new(listener),
            pools,
            places: Arc::new(Semaphore::new(clients.into())),
            tally: Arc::new(ServerTally::new()),
            kills: SessionKills::default(),
            console: console.clone(),
        };
        Ok(Self {
            shared: Arc::new(shared),
            sessions: TaskTracker::new(),
            metrics: serve.metrics.clone(),
            grace: serve.grace.unwrap_or(DEFAULT_GRACE),
            ended: CancellationToken::new(),
        })
    }

    /// Serves until a signal comes, then finishes what runs.
    async fn serve_clients(self: Arc<Self>, signal: oneshot::Receiver<Caught>) -> Exit {
        let accepting = tokio::spawn(Arc::clone(&self).accept_all());
        let periodic_work = Arc::clone(&self).run_periodic_work();
        let periodic_work = tokio::spawn(async move {
            // A thread of its own, because it reads and writes files.
            match CarryThread::start("periodic") {
                Ok(thread) => thread.run(periodic_work).await,
                Err(_) => periodic_work.await,
            }
        });
        let exit = match signal.await {
            Ok(caught) => self.finish(caught).await,
            // No signal can come any more: all of them were ignored at the start.
            Err(_) => std::future::pending().await,
        };
        accepting.abort();
        self.ended.cancel();
        let _ = periodic_work.await;
        let done = self.totals().since_start();
        self.shared.console.note(&format!("ended after {done}"));
        self.write_metrics(&RateSampler::default());
        exit
    }

    /// Lets the running copies end, cuts them after the time of `--grace`, and refuses new ones.
    async fn finish(&self, caught: Caught) -> Exit {
        // Ends the wait of every session that has no place, now or later.
        self.shared.places.close();
        self.sessions.close();
        let running = counted(self.sessions.len() as u64, "copy", "copies");
        self.shared.console.note(&format!(
            "received {}: finishes {running} within {:.0?}",
            caught.name, self.grace
        ));
        if timeout(self.grace, self.sessions.wait()).await.is_ok() {
            return Exit::Ok;
        }
        let cut = self.shared.kills.end_all("the server was stopped");
        let cut = counted(cut as u64, "copy", "copies");
        self.shared
            .console
            .error(&format!("{cut} did not end in time"));
        let _ = timeout(END_LIMIT, self.sessions.wait()).await;
        Exit::Local
    }

    /// Accepts clients for as long as the server runs.
    async fn accept_all(self: Arc<Self>) {
        let clients = self.shared.places.available_permits();
        let rooms = Arc::new(Semaphore::new(clients + MOST_WAITING));
        loop {
            let room = Arc::clone(&rooms).acquire_owned().await;
            match self.shared.listener.accept().await {
                Ok(stream) => {
                    let serving = client::serve(Arc::clone(&self.shared), stream);
                    self.sessions.spawn(async move {
                        serving.await;
                        drop(room);
                    });
                }
                Err(error) => self.shared.console.error(&error.to_string()),
            }
        }
    }

    /// Reads the key file again when it changes, and writes log and metrics.
    async fn run_periodic_work(self: Arc<Self>) {
        let mut rates = RateSampler::default();
        let mut last = ServerTotals::default();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for tick in 0_u32.. {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.ended.cancelled() => return,
            }
            self.reload_keys();
            let totals = self.totals();
            let now = rates.add_sample(totals.uptime, totals.bytes_received, totals.bytes_sent);
            if tick % TICKS_OF_LOG != 0 {
                continue;
            }
            self.write_metrics(&rates);
            let is_active = totals.bytes_received != last.bytes_received
                || totals.bytes_sent != last.bytes_sent
                || totals.clients_now != last.clients_now;
            if is_active && tick > 0 {
                self.shared.console.note(&totals.log_line(&now));
            }
            last = totals;
        }
    }

    fn reload_keys(&self) {
        match self.shared.keys.reload_if_changed() {
            Ok(None) => {}
            Ok(Some(changes)) => {
                self.shared.console.note(&changes.to_string());
                if let Some(warning) = &changes.warning {
                    self.shared.console.warn(warning);
                }
            }
            Err(error) => self
                .shared
                .console
                .error(&format!("{error}; the keys stay as they were")),
        }
    }

    fn totals(&self) -> ServerTotals {
        let stats = self.shared.listener.stats();
        // Connections that only probe an address count as failed, and are no clients.
        let refused = stats.wrong_keys + stats.other_versions + stats.foreign + stats.pushed_out;
        self.shared.tally.totals(refused)
    }

    fn write_metrics(&self, rates: &RateSampler) {
        let Some(path) = &self.metrics else { return };
        let text = metrics_text(&self.totals(), &rates.rates());
        if let Err(error) = write_metrics(path, &text) {
            let path = path.display();
            self.shared
                .console
                .error(&format!("cannot write the metrics to {path}: {error}"));
        }
    }
}
