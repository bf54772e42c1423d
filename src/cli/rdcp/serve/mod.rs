//! `rdcp --serve`: copies for many clients that have keys.
//!
//! - *Keys.* The client's key opens the session, and the order inside the session brings fresh keys for the edges, as
//!   over ssh. The listener expects these keys until the edges are connected. A stranger reaches neither.
//! - *One port, one direction.* Every edge of such a copy is fixed: the server listens, and never dials, so no client
//!   can make it connect to an address.
//! - *One process, not one for each client*: the listener and its edges stay in one place, a client costs threads and
//!   no processes, and pinned memory has one limit. So a server may run as an ordinary user. The price is that a bug in
//!   one copy could reach the others.
//! - *Confinement.* All paths of an order are resolved below the root by openat2(2) with `RESOLVE_BENEATH`, and
//!   everything else relative to directories that were opened so. On a kernel without openat2 the server does not
//!   start. A link in place of a file that the client named is not followed.
//! - *Rights.* A served destination keeps permission bits, times and attributes of the namespace `user`, and everything
//!   it makes belongs to the user of the server: clients decide on no owners, ACLs, set-user-ID and set-group-ID bits,
//!   devices and privileged attributes, unless `--privileged` says so.
//! - *Memory* is divided, not shared out on demand, so no client waits in the middle of a copy for the memory of
//!   another one. Copies beyond `--max-clients` wait before they begin.
//! - *The same destination.* A copy claims each of its top entries while it runs. The second copy is refused that
//!   entry.

mod figures;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod memory;
mod served_copies;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context;
use tokio::{task::block_in_place, time::timeout};

use self::{
    figures::{CopyTally, CopyTotals},
    memory::{CopyPools, most_lanes},
    served_copies::{OrderingClient, ServedCopies, ServedSide},
};
use super::args::{DEFAULT_CLIENTS, DEFAULT_GRACE, DEFAULT_MEMORY, DEFAULT_PORT};
use crate::{
    Direction, Stream, Watch,
    cli::{
        args::RdcpArgs,
        server::{
            self, Client, Limits, ServerOptions, ServerStatus, Service, SessionOutcome,
            new_key::{NewClientError, add_client, new_client},
            rights::Access,
        },
        shared::{
            message::{Console, Level, print_stdout, sentence},
            report::{amount, counted, decimal, rate},
            run::Exit,
        },
    },
    copy::{
        destination::DestinationClaims,
        order::{CopyEnd, CopyReport},
        path::BaseDirectory,
    },
    host,
    places::{Place, Share},
    process::{raise_descriptor_limit, return_large_blocks},
    ssh::{
        agent::{
            edges::{EdgeAcceptance, SharedListener},
            served::{ClientSession, SessionKill},
        },
        protocol::{AgentReport, Order},
        sealed::{self, SealedSession},
        session::session_config,
    },
    threads,
};

/// The sessions that may wait for a place beside those that are served. Each costs some 200 KiB.
const MOST_WAITING: usize = 256;

/// The worker threads for sessions and control messages. The bytes move on a thread of each stream.
const WORKERS: usize = 2;

/// The time for a client to begin its session after it has connected.
const BEGIN_LIMIT: Duration = Duration::from_secs(30);

/// Serves clients until a signal ends the server. Returns how it ended.
pub(super) fn run(args: &RdcpArgs, console: &Console) -> Exit {
    return_large_blocks();
    serve(args, console).unwrap_or_else(|error| {
        console.error(&sentence(&error));
        Exit::from(&error)
    })
}

fn serve(args: &RdcpArgs, console: &Console) -> anyhow::Result<Exit> {
    // Each copy needs some twenty descriptors.
    raise_descriptor_limit();
    let serve = &args.serve;
    let root = serve.root.as_deref().context("no --root was given")?;
    let key_file = args.key_file.as_deref();
    let key_file = key_file.context("no --key-file was given")?;
    let base = BaseDirectory::root(root).map_err(anyhow::Error::msg)?;
    let clients = serve.max_clients.unwrap_or(DEFAULT_CLIENTS);
    let memory = serve.memory.unwrap_or(DEFAULT_MEMORY);
    let settings = args.stream.config(Direction::Both);
    let session = session_config(settings.timeout);
    let divide = |lanes| CopyPools::divide(memory, clients, lanes, settings.clone());
    let most_lanes = match args.lanes {
        Some(lanes) => lanes,
        None => most_lanes(host::streams(), divide),
    };
    let pools = divide(most_lanes.into()).map_err(anyhow::Error::msg)?;
    let service = CopyService {
        offer: format!("at most {clients} copies at a time in {}", amount(memory)),
        root: root.to_owned(),
        copies: ServedCopies {
            base,
            claims: DestinationClaims::default(),
            access: match (serve.read_only, serve.write_only) {
                (true, _) => Access::READ_ONLY,
                (_, true) => Access::WRITE_ONLY,
                _ => Access::ALL,
            },
            most_lanes,
            is_privileged: args.privileged,
            list_bytes: pools.list_bytes,
        },
        pools,
        tally: Arc::default(),
        last: Mutex::default(),
        metrics: serve.metrics.clone(),
        console: console.clone(),
    };
    let places = usize::from(clients);
    let options = ServerOptions {
        key_file,
        port: serve.listen_port.unwrap_or(DEFAULT_PORT),
        stream: session,
        limits: Limits {
            sessions: Share::quarter(places + MOST_WAITING),
            places: Share::quarter(places),
        },
        workers: WORKERS,
        grace: Some(serve.grace.unwrap_or(DEFAULT_GRACE)),
    };
    server::run(options, service, console)
}

/// Serves copies from and to one directory.
struct CopyService {
    root: PathBuf,
    /// The most copies and their memory, in words.
    offer: String,
    copies: ServedCopies,
    /// The settings of the streams of every copy.
    pools: CopyPools,
    tally: Arc<CopyTally>,
    /// The totals of the last report.
    last: Mutex<CopyTotals>,
    metrics: Option<PathBuf>,
    console: Console,
}

impl Service for CopyService {
    const SESSION: (&'static str, &'static str) = ("copy", "copies");
    const ENDS_WHEN_REVOKED: bool = false;

    fn offer(&self, clients: &str) -> String {
        let root = self.root.display();
        format!("serves {root} to {clients}, {}", self.offer)
    }

    async fn serve(&self, client: Client, stream: Stream) -> SessionOutcome {
        let opening = sealed::of_acceptor(stream, &client.key);
        let session = match timeout(BEGIN_LIMIT, opening).await {
            Ok(Ok(session)) => session,
            Ok(Err(error)) => return SessionOutcome::Nothing(error.to_string()),
            Err(_) => return SessionOutcome::Nothing("began no session".to_owned()),
        };
        let number = client.number;
        let started = Instant::now();
        let (side, result) = self.copy(client, session).await;
        let (report, failure) = outcome(result);
        let has_failed = failure.is_some();
        self.tally.ended(number, side, report.as_ref(), has_failed);
        match failure {
            None => SessionOutcome::Done(done(side, &report.unwrap_or_default(), started)),
            Some(why) => SessionOutcome::Failed(why),
        }
    }

    fn report(&self, status: ServerStatus, is_last: bool) {
        let totals = self.tally.totals(status);
        if is_last {
            let done = totals.since_start();
            self.console.note(&format!("ended after {done}"));
        } else {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(line) = totals.log_line(&last) {
                self.console.note(&line);
            }
            *last = totals;
        }
        let Some(path) = &self.metrics else { return };
        if let Err(error) = totals.write_metrics(path) {
            let path = path.display();
            self.console
                .error(&format!("cannot write the metrics to {path}: {error}"));
        }
    }
}

impl CopyService {
    /// Carries out the order of a client. Returns the side of the copy that the server was, and how the copy ended.
    async fn copy(
        &self,
        client: Client,
        session: SealedSession,
    ) -> (ServedSide, Result<AgentReport, String>) {
        let (tally, number) = (Arc::clone(&self.tally), client.number);
        let log = client.log.clone();
        let edges = EdgeWatches::default();
        let connected = Arc::clone(&edges);
        let kill = SessionKill::default();
        let client_session = ClientSession {
            edges: EdgeAcceptance::SharedListener(Arc::new(SharedListener {
                listener: client.listener,
                owner: client.key.id(),
                one_way: self.pools.lane.clone(),
                two_way: self.pools.control.clone(),
                connected: Box::new(move |stream| {
                    tally.connected(number, stream);
                    lock(&connected).push(stream.watch());
                }),
            })),
            end: kill.clone(),
            warn: Box::new(move |text| log.print(Level::Warning, text)),
            most_streams: Some(self.copies.most_lanes),
        };
        let mut side = ServedSide::default();
        let admit = |order: &Order| {
            side = self.copies.admit(client.rights.access, order)?;
            Ok(())
        };
        let prepare = |context: &_, order: &_, edges: &_| {
            // `block_in_place` needs a thread, and panics if it gets none.
            threads::require(1).map_err(|error| error.to_string())?;
            // Opens files.
            let own = OrderingClient {
                name: &client.name,
                key: &client.key,
                line_number: client.line_number,
                rights: &client.rights,
            };
            block_in_place(|| self.copies.prepare(own, context, order, edges))
        };
        let place = async {
            let place = client.places.wait().await;
            if place.is_none() {
                return Err("the server is shutting down".to_owned());
            }
            Ok(CopyPlace { place, edges })
        };
        let serving = client_session.serve(session, place, admit, prepare);
        let mut serving = Box::pin(serving);
        let result = tokio::select! {
            result = &mut serving => result,
            reason = client.cut.reason() => {
                kill.end(reason);
                serving.as_mut().await
            }
        };
        drop(serving);
        (side, result)
    }
}

type EdgeWatches = Arc<Mutex<Vec<Watch>>>;

fn lock(edges: &EdgeWatches) -> MutexGuard<'_, Vec<Watch>> {
    edges.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The place of a copy, which is taken until the connections of its edges are closed: they hold memory for so long.
struct CopyPlace {
    place: Option<Place>,
    edges: EdgeWatches,
}

impl Drop for CopyPlace {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            place.keep_until_closed(std::mem::take(&mut *lock(&self.edges)));
        }
    }
}

/// Returns what a copy did, if it began, and the reason why not everything was copied.
fn outcome(result: Result<AgentReport, String>) -> (Option<CopyReport>, Option<String>) {
    let report = match result {
        Ok(report) => report,
        Err(why) => return (None, Some(why)),
    };
    let end: Option<CopyEnd> = report.result.and_then(|end| end.decode().ok());
    let done = end.map(|end| end.report);
    let failure = match (report.fault, &done) {
        (Some(fault), _) => Some(fault.text),
        (None, Some(done)) if done.failed > 0 => Some(format!(
            "{} not copied",
            counted(done.failed, "file was", "files were")
        )),
        (None, Some(done)) if done.complete => None,
        (None, _) => Some("the copy ended early".to_owned()),
    };
    (done, failure)
}

/// Returns what was copied since `started`, in words.
fn done(side: ServedSide, report: &CopyReport, started: Instant) -> String {
    let seconds = started.elapsed().as_secs_f64();
    let what = match side {
        ServedSide::Source => "sent",
        ServedSide::Destination => "received",
    };
    format!(
        "{what} {}, {} in {seconds:.1} s ({}/s)",
        counted(report.files, "file", "files"),
        amount(report.bytes),
        decimal(rate(report.bytes, seconds)),
    )
}

/// Makes a key for a new client, adds the client's line to the key file, if there is one, and prints the line for the
/// client. `client` is the line without the key. Returns how the program ends.
pub(super) fn new_key(client: &str, key_file: Option<&Path>, console: &Console) -> Exit {
    let made = match key_file {
        Some(path) => add_client(path, client),
        None => new_client(client).map(|client| (client.server_line, None)),
    };
    let (line, warning) = match made {
        Ok(made) => made,
        Err(error) => {
            let is_local = matches!(error, NewClientError::Write { .. });
            console.error(&sentence(&error.into()));
            return if is_local { Exit::Local } else { Exit::Usage };
        }
    };
    if let Some(warning) = warning {
        console.warn(&warning);
    }
    let printed = print_stdout(&line, console).and_then(|()| print_stdout("\n", console));
    printed.err().unwrap_or_default()
}
