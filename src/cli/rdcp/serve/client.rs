//! One client of a server, from its session to the end of its copy.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::OwnedSemaphorePermit, task::block_in_place, time::timeout};

use super::{outcome::ClientOutcome, served_copies::ServedSide, shared::ServerShared};
use crate::{
    Stream,
    ssh::{
        agent::{acceptance::SharedListener, served::ClientSession},
        protocol::Order,
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
        listener: Arc::new(SharedListener {
            listener: Arc::clone(&server.listener),
            one_way: server.pools.lane.clone(),
            two_way: server.pools.control.clone(),
            connected: Box::new(move |stream| tally.connected(client, stream)),
        }),
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
