//! One client of a server, from its session to the end of its copy, and what all sessions share.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::block_in_place,
    time::timeout,
};

use super::{
    figures::server_totals::ServerTally,
    memory::CopyPools,
    served_copies::{ServedCopies, ServedSide},
};
use crate::{
    Listener, Stream,
    cli::{
        keys::client_keys::ClientKeys,
        shared::{
            message::Console,
            report::{amount, counted, decimal, rate},
        },
    },
    copy::order::{CopyEnd, CopyReport},
    ssh::{
        agent::{
            edges::{EdgeAcceptance, SharedListener},
            served::{ClientSession, SessionKill},
        },
        protocol::{AgentReport, Order},
        sealed::{self, SealedSession},
    },
    threads,
};

/// The time for a client to begin its session after it has connected.
const BEGIN_LIMIT: Duration = Duration::from_secs(30);

/// The most characters of a reason in the log.
const MOST_SHOWN: usize = 500;

/// Serves one client that has connected, and prints how it went.
pub(super) async fn serve(server: Arc<ServerShared>, stream: Stream) {
    let address = stream.peer_addr().ip();
    // The key may have been revoked since the handshake.
    let Some((name, key)) = server.keys.find(stream.key_id()) else {
        return;
    };
    let shown = format!("{name} ({address})");
    let session = match timeout(BEGIN_LIMIT, sealed::of_acceptor(stream, &key)).await {
        Ok(Ok(session)) => session,
        Ok(Err(error)) => return server.console.detail(&format!("{shown}: {error}")),
        Err(_) => return server.console.detail(&format!("{shown}: began no session")),
    };
    let client = server.tally.client_came();
    let started = Instant::now();
    let outcome = copy(&server, client, &name, session).await;
    server.kills.remove(client);
    server.tally.client_left(client, &outcome);
    let seconds = started.elapsed().as_secs_f64();
    match &outcome.failure {
        None => server
            .console
            .note(&format!("{shown}: {}", outcome.text(seconds))),
        Some(why) => server
            .console
            .error(&format!("{shown}: {}", shortened(why))),
    }
}

/// Returns a reason that fits into a line of the log: a client sends reasons of any length.
fn shortened(why: &str) -> String {
    let mut shown: String = why.chars().take(MOST_SHOWN).collect();
    if shown.len() < why.len() {
        shown.push('…');
    }
    shown
}

/// Carries out the order of a client. Returns how it ended.
async fn copy(
    server: &Arc<ServerShared>,
    client: u64,
    name: &str,
    session: SealedSession,
) -> ClientOutcome {
    let tally = Arc::clone(&server.tally);
    let client_session = ClientSession {
        edges: EdgeAcceptance::SharedListener(Arc::new(SharedListener {
            listener: Arc::clone(&server.listener),
            one_way: server.pools.lane.clone(),
            two_way: server.pools.control.clone(),
            connected: Box::new(move |stream| tally.connected(client, stream)),
        })),
        end: server.kills.add(client),
    };
    let mut side = ServedSide::default();
    let copies = &server.copies;
    let admit = |order: &Order| {
        side = copies.admit(order)?;
        Ok(())
    };
    let prepare = |context: &_, order: &_, edges: &_| {
        // `block_in_place` needs a thread, and panics if it gets none.
        threads::require(1).map_err(|error| error.to_string())?;
        // Opens files.
        block_in_place(|| copies.prepare(name, context, order, edges))
    };
    let serving = client_session.serve(session, place(server), admit, prepare);
    let result = Box::pin(serving).await;
    ClientOutcome::of(result, side)
}

/// Waits for one of the places of the server.
async fn place(server: &ServerShared) -> Result<OwnedSemaphorePermit, String> {
    let place = Arc::clone(&server.places).acquire_owned().await;
    place.map_err(|_| "the server is shutting down".to_owned())
}

/// The sessions that are under way, by the number of the client.
#[derive(Default)]
pub(super) struct SessionKills(Mutex<HashMap<u64, SessionKill>>);

impl SessionKills {
    /// Adds a session that begins. Returns what ends it.
    pub(super) fn add(&self, client: u64) -> SessionKill {
        let kill = SessionKill::default();
        self.lock().insert(client, kill.clone());
        kill
    }

    /// Removes a session that has ended.
    pub(super) fn remove(&self, client: u64) {
        self.lock().remove(&client);
    }

    /// Ends all sessions, and returns how many there were.
    pub(super) fn end_all(&self, reason: &str) -> usize {
        let kills = self.lock();
        for kill in kills.values() {
            kill.end(reason);
        }
        kills.len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, SessionKill>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the sessions of a server share.
pub(super) struct ServerShared {
    pub(super) copies: ServedCopies,
    pub(super) keys: ClientKeys,
    pub(super) listener: Arc<Listener>,
    /// The settings of the streams of every copy.
    pub(super) pools: CopyPools,
    /// The places of copies that run.
    pub(super) places: Arc<Semaphore>,
    pub(super) tally: Arc<ServerTally>,
    pub(super) kills: SessionKills,
    pub(super) console: Console,
}

/// How the session of a client ended.
pub(super) struct ClientOutcome {
    /// The side of the copy that the server was.
    pub(super) side: ServedSide,
    /// What the copy did, if it began.
    pub(super) report: Option<CopyReport>,
    /// The reason why not everything was copied.
    pub(super) failure: Option<String>,
}

impl ClientOutcome {
    pub(super) fn of(result: Result<AgentReport, String>, side: ServedSide) -> Self {
        let report = match result {
            Ok(report) => report,
            Err(why) => {
                return Self {
                    side,
                    report: None,
                    failure: Some(why),
                };
            }
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
        Self {
            side,
            report: done,
            failure,
        }
    }

    /// Returns what was copied, in words.
    pub(super) fn text(&self, seconds: f64) -> String {
        let done = self.report.clone().unwrap_or_default();
        let what = match self.side {
            ServedSide::Source => "sent",
            ServedSide::Destination => "received",
        };
        format!(
            "{what} {}, {} in {seconds:.1} s ({}/s)",
            counted(done.files, "file", "files"),
            amount(done.bytes),
            decimal(rate(done.bytes, seconds)),
        )
    }
}
