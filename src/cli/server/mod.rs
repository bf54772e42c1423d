//! A server for many clients that have keys of their own: the loop of `rdcp --serve` and of `rdforward serve`.
//!
//! Each client is accepted, named, counted, limited, cut off and logged here, and nowhere else. What a client gets is
//! the [`Service`] of the program.
//!
//! - *Names.* A client is the name of its key in the key file, which is read again when it changes.
//! - *Limits.* [`Limits`] says what all clients may occupy, and what one key may occupy of it: sessions, and the
//!   *places* inside sessions (copies that run, connections of tunnels). Clients that wait get places in turn by key.
//!   While the key file has one key, that key may occupy everything.
//! - *The log.* Each line about a client names it, and a client causes a few lines a second at most.
//! - *The end.* After a signal no session gets a place any more. Sessions that end by themselves have the time of
//!   [`ServerOptions::grace`]; what is left is cut, and receives the reason.

pub(in crate::cli) mod client_keys;
pub(in crate::cli) mod key_file;
pub(in crate::cli) mod new_key;
pub(in crate::cli) mod rights;

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context;
use serde_json::Value;
use tokio::{
    runtime::Builder,
    sync::oneshot,
    task::AbortHandle,
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{client_keys::ClientKeys, rights::ClientRights};
use super::shared::{
    message::{Console, Level},
    report::counted,
    run::{Exit, control_runtime},
    signals::{self, Caught},
};
use crate::{
    Key, KeyId, Listener, Stream, StreamConfig, Watch,
    carry::CarryThread,
    places::{Place, Places, Share, SharedPlaces},
    threads,
};

/// What a program does for the clients of its server.
pub(in crate::cli) trait Service: Send + Sync + Sized + 'static {
    /// The words for one session and for several.
    const SESSION: (&'static str, &'static str);

    /// True if the sessions of a key end when the key is revoked.
    const ENDS_WHEN_REVOKED: bool;

    /// Returns what the server does for `clients`, in words: the first line of the log.
    fn offer(&self, clients: &str) -> String;

    /// Returns the reason why the server does nothing for a client that has these rights; none if it serves the client.
    fn refusal(_rights: &ClientRights) -> Option<&'static str> {
        None
    }

    /// Serves a client until it ends, or until [`Client::cut`] is ready. Returns how the session ended.
    fn serve(&self, client: Client, stream: Stream) -> impl Future<Output = SessionOutcome> + Send;

    /// Reports what the server does: every 10 seconds, and `last` at its end. May block.
    fn report(&self, _status: ServerStatus, _last: bool) {}
}

/// A client whose session has begun.
pub(in crate::cli) struct Client {
    /// The name of the client in the key file.
    pub(in crate::cli) name: Arc<str>,
    pub(in crate::cli) key: Key,
    /// What the client may do, as its line said when the session began.
    pub(in crate::cli) rights: ClientRights,
    /// The number of that line, from 1.
    pub(in crate::cli) line_number: usize,
    /// The number of the session, which no other session of the server has.
    pub(in crate::cli) number: u64,
    pub(in crate::cli) listener: Arc<Listener>,
    /// The places of the client's key.
    pub(in crate::cli) places: Places,
    /// The connections of the session: its place is taken until they are closed.
    pub(in crate::cli) connections: SessionConnections,
    /// Tells when the session must end.
    pub(in crate::cli) cut: SessionCut,
    /// The log, in which each line names the client.
    pub(in crate::cli) log: ClientLog,
}

/// The connections of one session. Clones are those of the same session.
#[derive(Clone, Default)]
pub(in crate::cli) struct SessionConnections(Arc<Mutex<Vec<Watch>>>);

impl SessionConnections {
    pub(in crate::cli) fn add(&self, connection: Watch) {
        self.lock().push(connection);
    }

    fn take(&self) -> Vec<Watch> {
        std::mem::take(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Watch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How the session of a client ended. The text is a line of the log.
pub(in crate::cli) enum SessionOutcome {
    /// The session ended in order: what was done.
    Done(String),
    /// The session failed: why.
    Failed(String),
    /// The client has begun nothing: why. With `-v` only.
    Nothing(String),
}

/// What a server tells its service about itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::cli) struct ServerStatus {
    /// The sessions that are under way.
    pub(in crate::cli) sessions: u64,
    /// The connections that were refused since the start: with an unknown key, or from strangers.
    pub(in crate::cli) refused: u64,
    /// The time since the start.
    pub(in crate::cli) uptime: Duration,
}

/// The settings of a server.
pub(in crate::cli) struct ServerOptions<'a> {
    pub(in crate::cli) key_file: &'a Path,
    /// The port; 0 takes a free one.
    pub(in crate::cli) port: u16,
    /// The settings of the streams that are accepted.
    pub(in crate::cli) stream: StreamConfig,
    /// What clients may occupy.
    pub(in crate::cli) limits: Limits,
    pub(in crate::cli) workers: usize,
    /// The time for sessions to end by themselves after a signal; none for sessions that never do.
    pub(in crate::cli) grace: Option<Duration>,
}

/// What clients may occupy of a server that has several keys.
#[derive(Debug, Clone, Copy)]
pub(in crate::cli) struct Limits {
    /// The sessions at a time. If all are taken, a client waits for [`TURN_LIMIT`] at most; one whose key has its share
    /// is refused at once.
    pub(in crate::cli) sessions: Share,
    /// The places at a time.
    pub(in crate::cli) places: Share,
}

impl Limits {
    fn for_keys(self, count: usize) -> Self {
        if count > 1 {
            return self;
        }
        Self {
            sessions: Share::whole(self.sessions.all),
            places: Share::whole(self.places.all),
        }
    }
}

/// The time between two looks at the key file.
const TICK: Duration = Duration::from_secs(1);

/// The ticks between two reports of a service.
const TICKS_OF_REPORT: u32 = 10;

/// The time for a client to get a session when all are taken.
const TURN_LIMIT: Duration = Duration::from_secs(20);

/// The time for sessions to end after they were cut: an agent has four seconds, and then reports.
const END_LIMIT: Duration = Duration::from_secs(6);

/// The most characters of a line of the log that a client has a part in.
const MOST_SHOWN: usize = 500;

const REVOKED: &str = "the key was revoked";
const STOPPED: &str = "the server was stopped";

/// Serves clients until a signal ends the server. Returns how it ended.
pub(in crate::cli) fn run<S: Service>(
    options: ServerOptions<'_>,
    service: S,
    console: &Console,
) -> anyhow::Result<Exit> {
    let signal = signals::watch(&control_runtime()?, console).context("cannot catch signals")?;
    let workers = options.workers;
    // The runtime panics if it gets no thread.
    threads::require(workers + 1).context("cannot start the runtime")?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let exit = runtime.block_on(async {
        let grace = options.grace;
        let server = Server::start(options, service, console).await?;
        server.serve_clients(signal, grace).await
    });
    // A thread that hangs in a file or in a resolver must not keep the process from exiting.
    runtime.shutdown_background();
    exit
}

/// A server that listens.
struct Server<S> {
    service: S,
    keys: ClientKeys,
    listener: Arc<Listener>,
    console: Console,
    clients: ClientTable,
    tasks: TaskTracker,
    started: Instant,
    ended: CancellationToken,
}

impl<S: Service> Server<S> {
    async fn start(
        options: ServerOptions<'_>,
        service: S,
        console: &Console,
    ) -> anyhow::Result<Arc<Self>> {
        let (keys, warning) = ClientKeys::load(options.key_file)?;
        if let Some(warning) = warning {
            console.warn(&warning);
        }
        let listener = keys.listen(options.port, options.stream).await?;
        let count = keys.count();
        let clients = counted(count as u64, "client", "clients");
        console.note(&format!(
            "listening on port {}: {}",
            listener.local_addr().port(),
            service.offer(&clients)
        ));
        Ok(Arc::new(Self {
            service,
            keys,
            listener: Arc::new(listener),
            console: console.clone(),
            clients: ClientTable::new(options.limits, count),
            tasks: TaskTracker::new(),
            started: Instant::now(),
            ended: CancellationToken::new(),
        }))
    }

    /// Serves until a signal comes, and ends the sessions.
    async fn serve_clients(
        self: Arc<Self>,
        signal: oneshot::Receiver<Caught>,
        grace: Option<Duration>,
    ) -> anyhow::Result<Exit> {
        // A thread of its own, because it reads and writes files.
        let thread = CarryThread::start("periodic").context("cannot start a thread")?;
        let periodic = Arc::clone(&self).run_periodic_work();
        let periodic = threads::spawn(async move { thread.run(periodic).await });
        let accepting = threads::spawn(Arc::clone(&self).accept_all()).abort_handle();
        let Ok(caught) = signal.await else {
            // No signal can come any more: all of them were ignored at the start.
            return std::future::pending().await;
        };
        let exit = self.finish(caught, grace, &accepting).await;
        self.ended.cancel();
        // The thread may hang in a file.
        let _ = timeout(END_LIMIT, periodic).await;
        self.service.report(self.status(), true);
        Ok(exit)
    }

    /// Accepts clients for as long as the server runs.
    async fn accept_all(self: Arc<Self>) {
        loop {
            match self.listener.accept_with_place().await {
                Ok((stream, place)) => {
                    let server = Arc::clone(&self);
                    let serving = async move { server.serve_client(stream, place).await };
                    self.tasks.spawn(serving);
                }
                Err(error) => self.console.error(&error.to_string()),
            }
        }
    }

    /// Serves one client that has connected, and prints how it went. `waiting` is its place at the listener: a client
    /// keeps it until its session begins, or until it has been refused.
    async fn serve_client(&self, mut stream: Stream, waiting: Option<Place>) {
        let id = stream.key_id();
        // The key may have been revoked since the handshake.
        let Some(line) = self.keys.find(id) else {
            stream.abort(REVOKED);
            return stream.close().await;
        };
        let log = ClientLog {
            client: format!("{} ({})", line.name, stream.peer_addr().ip()),
            name: Arc::clone(&line.name),
            console: self.console.clone(),
        };
        if let Some(why) = S::refusal(&line.rights) {
            log.print(Level::Warning, why);
            stream.abort(why);
            return stream.close().await;
        }
        let session = match self.clients.session(id).await {
            Ok(session) => session,
            Err(full) => {
                let text = full.text(S::SESSION.1);
                log.print(Level::Warning, &text);
                stream.abort(&text);
                return stream.close().await;
            }
        };
        drop(waiting);
        let (entry, cut) = self.clients.enter(id, session);
        let connections = SessionConnections::default();
        connections.add(stream.watch());
        let client = Client {
            name: line.name,
            key: line.key,
            rights: line.rights,
            line_number: line.number,
            number: entry.number,
            listener: Arc::clone(&self.listener),
            places: entry.places.clone(),
            connections: connections.clone(),
            cut,
            log: log.clone(),
        };
        let outcome = self.service.serve(client, stream).await;
        entry.leave(connections.take());
        match outcome {
            SessionOutcome::Done(text) => log.print(Level::Note, &text),
            SessionOutcome::Failed(text) => log.print(Level::Error, &text),
            SessionOutcome::Nothing(text) => log.print(Level::Detail, &text),
        }
    }

    /// Reads the key file again when it changes, cuts sessions whose keys were revoked, and has the service report.
    async fn run_periodic_work(self: Arc<Self>) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for tick in 0_u32.. {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.ended.cancelled() => return,
            }
            self.reload_keys();
            self.console.report_left_out();
            if S::ENDS_WHEN_REVOKED {
                self.clients.cut(|key| match self.keys.find(key) {
                    None => Some(REVOKED),
                    Some(line) => S::refusal(&line.rights),
                });
            }
            if tick % TICKS_OF_REPORT == 0 {
                self.service.report(self.status(), false);
            }
        }
    }

    fn reload_keys(&self) {
        match self.keys.reload_if_changed() {
            Ok(None) => {}
            Ok(Some(changes)) => {
                self.clients.set_keys(self.keys.count());
                self.console.note(&changes.to_string());
                if let Some(warning) = &changes.warning {
                    self.console.warn(warning);
                }
            }
            Err(error) => self
                .console
                .error(&format!("{error}; the keys stay as they were")),
        }
    }

    /// Lets the sessions end for the time of `grace`, and cuts those that are left. Clients that come meanwhile get no
    /// place.
    async fn finish(
        &self,
        caught: Caught,
        grace: Option<Duration>,
        accepting: &AbortHandle,
    ) -> Exit {
        self.clients.close_places();
        self.tasks.close();
        let words = |count: usize| counted(count as u64, S::SESSION.0, S::SESSION.1);
        let name = caught.name;
        self.console.note(&match grace {
            None => format!("received {name}"),
            Some(grace) => {
                let running = words(self.tasks.len());
                format!("received {name}: finishes {running} within {grace:.0?}")
            }
        });
        let ended = match grace {
            Some(grace) => timeout(grace, self.tasks.wait()).await.is_ok(),
            None => false,
        };
        accepting.abort();
        if ended {
            return Exit::Ok;
        }
        let cut = self.clients.cut_all(STOPPED);
        if grace.is_some() {
            let cut = words(cut);
            self.console.error(&format!("{cut} did not end in time"));
        }
        let _ = timeout(END_LIMIT, self.tasks.wait()).await;
        grace.map_or(Exit::Ok, |_| Exit::Local)
    }

    fn status(&self) -> ServerStatus {
        let stats = self.listener.stats();
        ServerStatus {
            sessions: self.clients.lock().sessions.len() as u64,
            // Connections that only probe an address count as failed, and are no clients.
            refused: stats.wrong_keys + stats.other_versions + stats.foreign + stats.pushed_out,
            uptime: self.started.elapsed(),
        }
    }
}

/// The log of a server, in which each line names a client.
#[derive(Clone)]
pub(in crate::cli) struct ClientLog {
    client: String,
    /// The client, which has one budget for all its sessions.
    name: Arc<str>,
    console: Console,
}

impl ClientLog {
    /// Prints a line. A client has a part in the text, so it is cut to a length that fits. Lines are left out while
    /// stderr is not read, and those beyond the budget of the client.
    pub(in crate::cli) fn print(&self, level: Level, text: &str) {
        if !self.console.wants(level) {
            return;
        }
        let mut shown: String = text.chars().take(MOST_SHOWN).collect();
        if shown.len() < text.len() {
            shown.push('…');
        }
        self.console.client_notice(&self.name, |console| {
            console.say(level, &format!("{}: {shown}", self.client));
        });
    }

    /// Prints an object as JSON, with the client, if there is a report in JSON.
    pub(in crate::cli) fn event(&self, event: impl FnOnce() -> Value) {
        if !self.console.has_json() {
            return;
        }
        let mut event = event();
        if let Some(fields) = event.as_object_mut() {
            fields.insert("client".to_owned(), self.client.clone().into());
        }
        self.console
            .client_notice(&self.name, |console| console.event(&event));
    }

    pub(in crate::cli) fn is_text(&self) -> bool {
        !self.console.is_json()
    }
}

/// Tells the session of a client when it must end.
pub(in crate::cli) struct SessionCut(oneshot::Receiver<&'static str>);

impl SessionCut {
    /// Waits until the session must end. Returns the reason, for the client.
    pub(in crate::cli) async fn reason(self) -> &'static str {
        match self.0.await {
            Ok(reason) => reason,
            Err(_) => std::future::pending().await,
        }
    }
}

/// The sessions that are under way, and what their clients occupy.
struct ClientTable {
    limits: Limits,
    sessions: SharedPlaces,
    places: SharedPlaces,
    state: Mutex<TableState>,
}

#[derive(Default)]
struct TableState {
    /// The sessions that have begun so far.
    begun: u64,
    /// The sessions by their numbers.
    sessions: HashMap<u64, RunningSession>,
    /// The reason for sessions that begin after all were cut.
    over: Option<&'static str>,
}

struct RunningSession {
    key: KeyId,
    /// Sends the reason why the session must end; none once it has.
    cut: Option<oneshot::Sender<&'static str>>,
}

/// A session in the table, from which it is removed when this value is dropped.
struct TableEntry<'a> {
    table: &'a ClientTable,
    number: u64,
    places: Places,
    session: Option<Place>,
}

/// The reason why a client gets no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionsFull {
    OfKey(usize),
    /// All keys together have as many as there are.
    OfAll(usize),
}

impl SessionsFull {
    /// Returns the reason as a sentence for the client, with the word for several sessions.
    fn text(self, sessions: &str) -> String {
        match self {
            Self::OfKey(most) => format!("this client has {most} {sessions} already"),
            Self::OfAll(most) => {
                format!("the server has {most} {sessions} already; try again later")
            }
        }
    }
}

impl ClientTable {
    fn new(limits: Limits, keys: usize) -> Self {
        let Limits { sessions, places } = limits.for_keys(keys);
        Self {
            limits,
            sessions: SharedPlaces::new(sessions),
            places: SharedPlaces::new(places),
            state: Mutex::default(),
        }
    }

    /// Changes what one key may occupy to the limits for this number of keys.
    fn set_keys(&self, keys: usize) {
        let Limits { sessions, places } = self.limits.for_keys(keys);
        self.sessions.set_share(sessions);
        self.places.set_share(places);
    }

    /// Takes one of the sessions of a key, and waits for it if others have all of them.
    async fn session(&self, key: KeyId) -> Result<Place, SessionsFull> {
        let own = self.sessions.of(key);
        if let Some(session) = own.take() {
            return Ok(session);
        }
        let Share { all, of_one_key } = self.sessions.share();
        if of_one_key < all && own.have_share() {
            return Err(SessionsFull::OfKey(of_one_key));
        }
        let session = timeout(TURN_LIMIT, own.wait()).await.ok().flatten();
        session.ok_or(SessionsFull::OfAll(all))
    }

    fn enter(&self, key: KeyId, session: Place) -> (TableEntry<'_>, SessionCut) {
        let state = &mut *self.lock();
        state.begun += 1;
        let (sender, cut) = oneshot::channel();
        let mut running = RunningSession {
            key,
            cut: Some(sender),
        };
        if let Some(reason) = state.over {
            running.end(reason);
        }
        state.sessions.insert(state.begun, running);
        let entry = TableEntry {
            table: self,
            number: state.begun,
            places: self.places.of(key),
            session: Some(session),
        };
        (entry, SessionCut(cut))
    }

    /// Ends the sessions of the keys for which `reason` returns why.
    fn cut(&self, reason: impl Fn(KeyId) -> Option<&'static str>) {
        for session in self.lock().sessions.values_mut() {
            if let Some(reason) = reason(session.key) {
                session.end(reason);
            }
        }
    }

    /// Ends all sessions, also those that begin later. Returns how many there were.
    fn cut_all(&self, reason: &'static str) -> usize {
        self.lock().over = Some(reason);
        self.cut(|_| Some(reason));
        self.lock().sessions.len()
    }

    /// Gives no more places, and ends every wait for one.
    fn close_places(&self) {
        self.places.close();
    }

    fn lock(&self) -> MutexGuard<'_, TableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunningSession {
    fn end(&mut self, reason: &'static str) {
        if let Some(cut) = self.cut.take() {
            let _ = cut.send(reason);
        }
    }
}

impl TableEntry<'_> {
    /// Removes the session from the table. Its place is taken until all `connections` are closed: a client that leaves
    /// one open occupies its own share.
    fn leave(mut self, connections: Vec<Watch>) {
        if let Some(place) = self.session.take() {
            place.keep_until_closed(connections);
        }
    }
}

impl Drop for TableEntry<'_> {
    fn drop(&mut self) {
        self.table.lock().sessions.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn table(sessions: Share, places: Share) -> ClientTable {
        ClientTable::new(Limits { sessions, places }, 2)
    }

    fn ids() -> [KeyId; 2] {
        [1, 2].map(|byte| Key::from_secret(&[byte; 32]).id())
    }

    #[tokio::test]
    async fn one_key_has_its_share_of_sessions_and_places() {
        let share = Share {
            all: 4,
            of_one_key: 2,
        };
        let table = table(share, share);
        let [alice, bob] = ids();
        let (first, _cut) = table.enter(alice, table.session(alice).await.unwrap());
        let (second, _cut) = table.enter(alice, table.session(alice).await.unwrap());
        let full = table.session(alice).await.unwrap_err();
        assert_eq!(full, SessionsFull::OfKey(2));
        assert_eq!(full.text("copies"), "this client has 2 copies already");
        assert_ne!(first.number, second.number);
        let _taken = [&first, &second].map(|entry| entry.places.take().unwrap());
        assert!(first.places.take().is_none() && second.places.take().is_none());
        let (third, _cut) = table.enter(bob, table.session(bob).await.unwrap());
        assert!(third.places.take().is_some());
        drop(first);
        drop(table.session(alice).await.unwrap());
        drop((second, third));
        assert!(table.lock().sessions.is_empty());
    }

    #[tokio::test]
    async fn the_only_key_of_the_file_has_everything_until_another_is_added() {
        let quarter = Limits {
            sessions: Share::quarter(8),
            places: Share::quarter(4),
        };
        let table = ClientTable::new(quarter, 1);
        let [alice, bob] = ids();
        let mut entries = Vec::new();
        for _ in 0..4 {
            let entry = table.enter(alice, table.session(alice).await.unwrap()).0;
            let place = entry.places.take().unwrap();
            entries.push((entry, place));
        }
        table.set_keys(2);
        assert_eq!(
            table.session(alice).await.unwrap_err(),
            SessionsFull::OfKey(2)
        );
        // What is taken is not taken back, and the next place is that of the other key.
        let bobs = table.places.of(bob);
        let mut waiting = Box::pin(bobs.wait());
        assert!(waiting.as_mut().now_or_never().is_none());
        entries.pop();
        assert!(waiting.await.is_some());
    }

    #[tokio::test]
    async fn sessions_are_cut_with_a_reason() {
        let table = table(Share::whole(9), Share::whole(9));
        let [alice, bob] = ids();
        let enter = async |key| table.enter(key, table.session(key).await.unwrap());
        let (_alice, revoked) = enter(alice).await;
        let (_bob, stopped) = enter(bob).await;
        table.cut(|key| (key == alice).then_some(REVOKED));
        assert_eq!(revoked.reason().await, REVOKED);
        assert_eq!(table.cut_all(STOPPED), 2);
        assert_eq!(stopped.reason().await, STOPPED);
        let (_late, late) = enter(bob).await;
        assert_eq!(late.reason().await, STOPPED);
    }

    #[tokio::test]
    async fn a_wait_for_a_place_ends_with_the_server() {
        let table = table(Share::whole(9), Share::whole(1));
        let [alice, _] = ids();
        let (entry, _cut) = table.enter(alice, table.session(alice).await.unwrap());
        let taken = entry.places.wait().await;
        assert!(taken.is_some());
        let waiting = entry.places.wait();
        table.close_places();
        assert!(waiting.await.is_none());
    }
}
