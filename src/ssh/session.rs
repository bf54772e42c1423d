//! The controller's session with one agent: the way to it, a process that leads to it or a server that takes its place;
//! its greeting, and the messages both ways.

use std::{
    collections::VecDeque,
    future::pending,
    io::{self, Cursor},
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    process::{Child, ChildStdin, ChildStdout},
    sync::{
        OwnedSemaphorePermit, Semaphore,
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        oneshot,
    },
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::{
    codec::{Encoder, FramedRead, FramedWrite},
    sync::CancellationToken,
    task::AbortOnDropHandle,
};
use zeroize::Zeroize;

use super::{
    deploy::{self, DeployPolicy, Program, ScriptLine, StartFault},
    explain::{self, Evidence, explain},
    frames::{Found, Greeting, codec},
    launch::{self, Launch, Lines, Room, StderrPace},
    protocol::{self, AgentReport, FromAgent, Order, ToAgent, VERSION, greeting},
    sealed::{self, SealedSession},
    stage::Status,
};
use crate::{
    Error, HandshakeFault, Key, OnDrop, StreamConfig, TransportPolicy, Watch, advice::Advised,
    connect, running_time::within_running_time, threads,
};

#[derive(Clone)]
pub(crate) enum AgentRoute {
    /// A process on this machine: ssh, what replaces it, or the agent itself.
    Process(Launch),
    /// A server, to which this program connects.
    Server(ServerRoute),
}

/// The way to a server.
#[derive(Clone)]
pub(crate) struct ServerRoute {
    /// The host, as it was typed.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) key: Key,
    /// The time after which the server counts as lost.
    pub(crate) timeout: Duration,
    /// What listens there.
    pub(crate) kind: ServerKind,
}

/// What listens at the end of a way to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerKind {
    /// `rdcp --serve`, which knows the keys of many clients.
    Copies,
    /// `rdperf --listen`, which waits for one peer with its ticket.
    Measurements,
}

impl AgentRoute {
    /// Returns the way as a user can read it.
    pub(crate) fn display(&self) -> String {
        match self {
            Self::Process(launch) => launch.display(),
            Self::Server(route) => format!("the server at {}:{}", route.host, route.port),
        }
    }
}

impl AgentRoute {
    /// Returns how long the agent may take until its greeting.
    fn greeting_limit(&self, silence: Duration) -> Duration {
        match self {
            Self::Process(launch) => launch.greeting_limit(silence),
            Self::Server(_) => GREETING_LIMIT.max(silence),
        }
    }
}

impl Launch {
    /// Returns how long the agent may take until its greeting: without a limit where ssh may ask the user.
    fn greeting_limit(&self, silence: Duration) -> Duration {
        if self.is_users {
            Duration::MAX
        } else {
            GREETING_LIMIT.max(silence)
        }
    }
}

impl ServerRoute {
    /// Connects to the server, and returns an encrypted session and a watch on its stream.
    /// Dropping the future closes what it has opened.
    pub(crate) async fn connect(&self) -> Result<(SealedSession, Watch), String> {
        let config = session_config(self.timeout);
        let stream = connect((self.host.as_str(), self.port), &self.key, &config).await;
        let stream = stream.map_err(|error| self.refused(error))?;
        let watch = stream.watch();
        let sealed = sealed::of_dialer(stream, &self.key).await;
        let sealed = sealed.map_err(|error| format!("the server on {}: {error}", self.host))?;
        Ok((sealed, watch))
    }

    fn refused(&self, error: Error) -> String {
        let Self { host, port, .. } = self;
        let (unknown, program) = match self.kind {
            ServerKind::Copies => (
                "does not know this key; its --key-file needs the line of this client",
                "rdcp --serve",
            ),
            ServerKind::Measurements => ("has another ticket", "rdperf --listen"),
        };
        match error {
            Error::Handshake {
                fault: HandshakeFault::Key,
                ..
            } => format!("the server at {host}:{port} {unknown}"),
            Error::Connect { source, .. } => format!(
                "cannot connect to {host}:{port}: {source}; is `{program}` running there, and is the port open?"
            ),
            error => Advised(error).to_string(),
        }
    }
}

/// Returns the settings of the stream of a session. It carries a few small messages, so it has small pools and pins
/// none.
pub(crate) fn session_config(timeout: Duration) -> StreamConfig {
    StreamConfig {
        chunk_bytes: SESSION_CHUNK_BYTES,
        depth: SESSION_DEPTH,
        timeout,
        transport: TransportPolicy::Tcp,
        // The last message of a session says how it ended.
        on_drop: OnDrop::Fin,
        ..StreamConfig::default()
    }
}

/// A chunk of a session: most messages fit into one.
const SESSION_CHUNK_BYTES: usize = 16 << 10;

/// The chunks of a session in each direction.
const SESSION_DEPTH: usize = 4;

/// The time that an agent always has until its greeting, however short `--timeout` is: 10 s for ssh to connect, and
/// the rest for a slow login.
const GREETING_LIMIT: Duration = Duration::from_secs(30);

/// How long stderr is still read after the process has exited: what ssh itself wrote is there by then, and a process
/// that inherited stderr may hold it open forever.
const STDERR_LIMIT: Duration = Duration::from_millis(300);

/// The number of last lines that are kept to explain a failure.
const KEPT_LINES: usize = 20;

/// The controller's end of a session with an agent. Dropping it ends the session.
pub(crate) struct AgentSession {
    messages: UnboundedSender<ToAgent>,
    cut: CancellationToken,
    pace: Arc<StderrPace>,
}

/// The room for what a session reads.
pub(crate) struct SessionRoom {
    /// Waits until there is room for more lines of stderr.
    pub(crate) lines: Room,
    /// The room for messages, in KiB.
    pub(crate) messages: Arc<Semaphore>,
}

#[derive(Debug)]
pub(crate) enum SessionEvent {
    /// A line of stderr, or one that the login shell printed before the greeting.
    StderrLine(String),
    /// A fact for the user: the host has received this program.
    Note(String),
    /// A message of the agent, and its room. The session reads on while there is room for its next message.
    Message(FromAgent, OwnedSemaphorePermit),
    /// The last event: the process that led to the agent has exited, or could not be started.
    Closed(SessionEnd),
}

#[derive(Debug, Clone)]
pub(crate) struct SessionEnd {
    /// The reason why the session ended, in one sentence for the user.
    pub(crate) why: String,
    /// True if a signal from outside this program killed the agent.
    pub(crate) killed: bool,
}

impl AgentSession {
    /// Starts the process that leads to the agent, or connects to the server that takes its place, and exchanges
    /// messages with it on the current runtime. Calls `events` for each event; a process that cannot be started is one
    /// too. Reads stderr and messages only while there is `room` for them.
    pub(crate) fn open(
        route: AgentRoute,
        silence: Duration,
        room: SessionRoom,
        events: impl Fn(SessionEvent) + Send + Sync + 'static,
    ) -> Self {
        let (mut session, task) = Self::new(route.greeting_limit(silence), silence, room, events);
        let (messages, queue) = unbounded_channel();
        session.messages = messages;
        threads::spawn(task.run(route, queue));
        session
    }

    /// Returns a session and its task, before it has a queue of messages.
    fn new(
        greeting_limit: Duration,
        silence: Duration,
        room: SessionRoom,
        events: impl Fn(SessionEvent) + Send + Sync + 'static,
    ) -> (Self, SessionTask) {
        let cut = CancellationToken::new();
        let pace = Arc::new(StderrPace::new(room.lines));
        let task = SessionTask {
            silence,
            greeting_limit,
            events: Arc::new(events),
            stderr_lines: Arc::default(),
            cut: cut.clone(),
            pace: Arc::clone(&pace),
            room: room.messages,
            greeted: false,
        };
        let session = Self {
            messages: unbounded_channel().0,
            cut,
            pace,
        };
        (session, task)
    }

    /// Starts the process that leads to a host, and makes the agent there one end of a relay. The first event is
    /// [`FromAgent::Listening`]; then the session passes on to the session of the other end what the relay sends.
    pub(crate) fn open_relay(
        launch: Launch,
        ends: RelaySession,
        silence: Duration,
        room: SessionRoom,
        events: impl Fn(SessionEvent) + Send + Sync + 'static,
    ) -> Self {
        let limit = launch.greeting_limit(silence);
        let (session, mut task) = Self::new(limit, silence, room, events);
        threads::spawn(async move { task.run_launch(&launch, Talk::Relay(ends)).await });
        session
    }

    /// Queues a message to the agent. Messages arrive in the order in which they were queued.
    pub(crate) fn send(&self, message: ToAgent) {
        if matches!(message, ToAgent::Kill { .. }) {
            self.pace.end();
        }
        // A session that has ended reports that as an event.
        let _ = self.messages.send(message);
    }

    /// Kills the session's processes on this machine.
    pub(crate) fn cut(&self) {
        self.cut.cancel();
    }
}

impl Drop for AgentSession {
    fn drop(&mut self) {
        self.cut.cancel();
    }
}

/// What a session that begins as one with an agent is for.
enum Talk {
    /// Messages with the agent; these are queued for it.
    Messages(UnboundedReceiver<ToAgent>),
    Relay(RelaySession),
}

pub(crate) struct RelaySession {
    /// The order of the relay.
    pub(crate) order: Order,
    /// Takes the way to this end, for the session with the other end.
    pub(crate) own: oneshot::Sender<OwnedFd>,
    /// The way to the other end.
    pub(crate) peer: oneshot::Receiver<OwnedFd>,
}

struct SessionTask {
    /// The agent counts as lost after this much silence.
    silence: Duration,
    /// How long the agent may take until its greeting.
    greeting_limit: Duration,
    events: Arc<dyn Fn(SessionEvent) + Send + Sync>,
    stderr_lines: Arc<StderrLines>,
    cut: CancellationToken,
    pace: Arc<StderrPace>,
    room: Arc<Semaphore>,
    greeted: bool,
}

/// The lines of stderr and of the login shell.
#[derive(Default)]
struct StderrLines {
    /// The last ones, at most [`KEPT_LINES`].
    kept: Mutex<VecDeque<String>>,
    /// Lines before the greeting that would explain why the session cannot be opened: its end quotes them.
    held: Mutex<Vec<String>>,
    /// Set after the greeting or the end: every line is shown then.
    shows_all: AtomicBool,
}

impl StderrLines {
    /// Keeps a line, and shows it unless it is held back.
    fn add(&self, events: &(dyn Fn(SessionEvent) + Send + Sync), line: String) {
        let mut kept = lock(&self.kept);
        if kept.len() == KEPT_LINES {
            kept.pop_front();
        }
        kept.push_back(line.clone());
        drop(kept);
        let mut held = lock(&self.held);
        let is_held = !self.shows_all.load(Ordering::Relaxed)
            && held.len() < KEPT_LINES
            && explain::explains(&line);
        if is_held {
            held.push(line);
        } else {
            drop(held);
            events(SessionEvent::StderrLine(line));
        }
    }

    /// Shows the lines that were held back, but for those that `why` quotes, and holds back no others.
    fn release(&self, events: &(dyn Fn(SessionEvent) + Send + Sync), why: &str) {
        let held = {
            let mut held = lock(&self.held);
            self.shows_all.store(true, Ordering::Relaxed);
            std::mem::take(&mut *held)
        };
        let is_quoted = |line: &String| {
            let text = line.split_once(": ").map_or(&line[..], |(_, text)| text);
            why.contains(text.trim()) || why.contains("does not start: ")
        };
        for line in held.into_iter().filter(|line| !is_quoted(line)) {
            events(SessionEvent::StderrLine(line));
        }
    }
}

impl SessionEnd {
    fn because(why: String) -> Self {
        let killed = false;
        Self { why, killed }
    }
}

impl SessionTask {
    async fn run(mut self, route: AgentRoute, queue: UnboundedReceiver<ToAgent>) {
        match route {
            AgentRoute::Server(route) => {
                let end = self.run_server(&route, queue).await;
                (self.events)(SessionEvent::Closed(end));
            }
            AgentRoute::Process(launch) => {
                self.run_launch(&launch, Talk::Messages(queue)).await;
            }
        }
    }

    async fn run_launch(&mut self, launch: &Launch, talk: Talk) {
        let end = match launch::spawn(launch) {
            Ok(child) => self.run_process(launch, child, talk).await,
            Err(error) => {
                let program = launch.program().to_string_lossy().into_owned();
                SessionEnd::because(format!("cannot run {program}: {error}"))
            }
        };
        (self.events)(SessionEvent::Closed(end));
    }

    async fn run_process(&mut self, launch: &Launch, mut child: Child, talk: Talk) -> SessionEnd {
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return SessionEnd::because("its pipes are missing".to_owned());
        };
        let read_stderr = |stderr| {
            threads::spawn(read_stderr(
                stderr,
                Arc::clone(&self.pace),
                Arc::clone(&self.stderr_lines),
                Arc::clone(&self.events),
            ))
        };
        let stderr_lines = child.stderr.take().map(read_stderr);
        let mut passed = None;
        let failure = match talk {
            Talk::Messages(queue) => {
                self.exchange_messages(stdout, stdin, queue, Some(launch))
                    .await
            }
            Talk::Relay(ends) => {
                let cut = self.cut.clone();
                let relaying = self.relay(stdout, stdin, ends, launch);
                tokio::select! {
                    ended = relaying => {
                        passed = ended.1;
                        ended.0
                    }
                    () = cut.cancelled() => SessionFault::Cut,
                }
            }
        };
        self.pace.end();
        let is_closed = matches!(failure, SessionFault::Closed);
        let status = launch::wait(launch, &mut child, is_closed, &self.cut).await;
        if let Some(stderr_lines) = stderr_lines {
            let _ = within_running_time(STDERR_LIMIT, stderr_lines).await;
        }
        let stderr_lines: Vec<_> = lock(&self.stderr_lines.kept).iter().cloned().collect();
        let end = match failure {
            SessionFault::Closed => {
                let evidence = Evidence {
                    stderr_lines: &stderr_lines,
                    status,
                    greeted: self.greeted,
                };
                let killed = matches!(
                    status,
                    Some(Status::Signaled(_) | Status::Exited(129..=192))
                );
                let why = explain(launch, &evidence);
                SessionEnd { why, killed }
            }
            SessionFault::Unanswered(limit) => {
                SessionEnd::because(explain::unanswered(launch, limit, &stderr_lines))
            }
            SessionFault::Silent(has_message, silence) => {
                SessionEnd::because(explain::silent(launch, silence, has_message))
            }
            failure => SessionEnd::because(failure.text(&launch.host)),
        };
        self.stderr_lines.release(&*self.events, &end.why);
        // The other end of a relay ends later than this one, whose end tells the cause.
        if passed.is_some() {
            let cut = self.cut.clone();
            threads::spawn(async move {
                cut.cancelled().await;
                drop(passed);
            });
        }
        end
    }

    async fn run_server(
        &mut self,
        route: &ServerRoute,
        queue: UnboundedReceiver<ToAgent>,
    ) -> SessionEnd {
        let connected = tokio::select! {
            connected = route.connect() => connected,
            () = self.cut.cancelled() => Err(SessionFault::Cut.text(&route.host)),
        };
        let (session, watch) = match connected {
            Ok(connected) => connected,
            Err(why) => return SessionEnd::because(why),
        };
        let failure = self
            .exchange_messages(session.input, session.output, queue, None)
            .await;
        SessionEnd::because(match failure {
            SessionFault::Closed => match watch.error() {
                Some(error) => format!("the server on {}: {error}", route.host),
                None => format!("the server on {} ended the session", route.host),
            },
            failure => failure.text(&route.host),
        })
    }

    /// Exchanges messages until no more can follow from the agent.
    async fn exchange_messages(
        &mut self,
        input: impl AsyncRead + Unpin,
        output: impl AsyncWrite + Unpin + Send + 'static,
        queue: UnboundedReceiver<ToAgent>,
        launch: Option<&Launch>,
    ) -> SessionFault {
        let cut = self.cut.clone();
        let failure = tokio::select! {
            failure = self.converse(input, output, queue, launch) => failure,
            () = cut.cancelled() => SessionFault::Cut,
        };
        self.pace.end();
        failure
    }

    async fn converse(
        &mut self,
        mut input: impl AsyncRead + Unpin,
        mut output: impl AsyncWrite + Unpin + Send + 'static,
        queue: UnboundedReceiver<ToAgent>,
        launch: Option<&Launch>,
    ) -> SessionFault {
        let mut scanner = Greeting::new("agent");
        let deploys = launch.filter(|launch| launch.deploy != DeployPolicy::Never);
        if let Some(launch) = deploys {
            let started = self.start(launch, &mut scanner, &mut input, &mut output);
            if let Err(failure) = started.await {
                return failure;
            }
        }
        // The agent ends when its controller closes the session.
        let _writer = AbortOnDropHandle::new(threads::spawn(write_messages(
            output,
            queue,
            self.silence / 4,
        )));
        if deploys.is_none() {
            match self.answer(&mut scanner, &mut input).await {
                Ok(None) => {}
                Ok(Some(_)) => return SessionFault::Invalid,
                Err(failure) => return failure,
            }
        }
        self.greeted = true;
        self.stderr_lines.release(&*self.events, "");
        self.read_messages(scanner.into_rest(), input).await
    }

    /// Makes the agent one end of a relay, and passes on what it sends. Returns why that has ended, and the way to the
    /// other end, if it was passed on to that.
    async fn relay(
        &mut self,
        mut input: ChildStdout,
        mut output: ChildStdin,
        ends: RelaySession,
        launch: &Launch,
    ) -> (SessionFault, Option<OwnedFd>) {
        let begun = self.begin_relay(&mut input, &mut output, &ends.order, launch);
        let rest = match begun.await {
            Ok(rest) => rest,
            Err(fault) => return (fault, None),
        };
        let broken = |error: io::Error| (SessionFault::Program(error.to_string()), None);
        let (from, own) = match (input.into_owned_fd(), output.into_owned_fd()) {
            (Ok(from), Ok(own)) => (from, own),
            (Err(error), _) | (_, Err(error)) => return broken(error),
        };
        // An end whose other end has gone waits until it is cut.
        let _ = ends.own.send(own);
        let Ok(to) = ends.peer.await else {
            return pending().await;
        };
        let passing = threads::blocking(move || {
            let passed = launch::pass_on(&from, &to, &rest);
            (passed, from, to)
        });
        match passing.await {
            Ok((Ok(()), _, to)) => (SessionFault::Closed, Some(to)),
            // The process at the other end has ended.
            Ok((Err(_), _held, _to)) => pending().await,
            Err(error) => broken(error),
        }
    }

    /// Starts the agent, gives it its order, and waits for its answer. Returns what was read behind that.
    async fn begin_relay(
        &mut self,
        input: &mut ChildStdout,
        output: &mut ChildStdin,
        order: &Order,
        launch: &Launch,
    ) -> Result<Vec<u8>, SessionFault> {
        let mut scanner = Greeting::new("agent");
        if launch.deploy == DeployPolicy::Never {
            match self.answer(&mut scanner, input).await? {
                None => {}
                Some(_) => return Err(SessionFault::Invalid),
            }
        } else {
            self.start(launch, &mut scanner, input, output).await?;
        }
        self.greeted = true;
        self.stderr_lines.release(&*self.events, "");
        let order = ToAgent::Order(Box::new(order.clone()));
        let order = protocol::encode(&order).map_err(|_| SessionFault::Invalid)?;
        let mut sent = BytesMut::from(greeting("controller").as_bytes());
        let encoded = codec().encode(Bytes::copy_from_slice(&order), &mut sent);
        encoded.map_err(|_| SessionFault::Invalid)?;
        // If the agent does not read, its stdout says why.
        let _ = self.send(output, &sent).await?;
        let limit = GREETING_LIMIT.max(self.silence);
        let answered = timeout(limit, self.relay_answer(scanner.into_rest(), input)).await;
        answered.unwrap_or(Err(SessionFault::Unanswered(limit)))
    }

    /// Waits until the relay has opened its end. Returns what was read behind its message.
    async fn relay_answer(
        &self,
        rest: Vec<u8>,
        input: &mut ChildStdout,
    ) -> Result<Vec<u8>, SessionFault> {
        let mut frames = FramedRead::new(Cursor::new(rest).chain(input), codec());
        loop {
            let Some(Ok(bytes)) = frames.next().await else {
                return Err(SessionFault::Closed);
            };
            match protocol::decode(&bytes) {
                Ok(FromAgent::Hello(_)) => {}
                Ok(message @ FromAgent::Listening { .. }) => {
                    let room = Arc::clone(&self.room).acquire_owned().await;
                    let room = room.map_err(|_| SessionFault::Cut)?;
                    (self.events)(SessionEvent::Message(message, room));
                    break;
                }
                Ok(FromAgent::Report(AgentReport {
                    fault: Some(fault), ..
                })) => return Err(SessionFault::Program(fault.text)),
                _ => return Err(SessionFault::Invalid),
            }
        }
        let rest = std::mem::take(frames.read_buffer_mut());
        let mut input = Cursor::new(rest).chain(frames.into_inner());
        // The newline behind the message.
        match input.read_u8().await {
            Ok(b'\n') => {}
            Ok(_) => return Err(SessionFault::Invalid),
            Err(_) => return Err(SessionFault::Closed),
        }
        let (rest, _) = input.into_inner();
        let position = usize::try_from(rest.position()).unwrap_or(usize::MAX);
        Ok(rest.into_inner()[position..].to_vec())
    }

    /// Starts the agent by the script of [`deploy`], and sends this program if the host asks for it. Returns when the
    /// agent has greeted.
    async fn start(
        &self,
        launch: &Launch,
        scanner: &mut Greeting,
        input: &mut (impl AsyncRead + Unpin),
        output: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), SessionFault> {
        let program = threads::blocking(Program::own).await;
        let program = program.map_err(|error| SessionFault::Program(error.to_string()))?;
        let script = deploy::script(launch.deploy, program.ok());
        // If the host does not read, its stdout says why.
        let _ = self.send(output, script.as_bytes()).await?;
        let mut wanted = None;
        loop {
            match self.answer(scanner, input).await? {
                None => return Ok(()),
                Some(ScriptLine::Failed(fault)) => return Err(SessionFault::Start(fault)),
                Some(ScriptLine::Wanted(want)) if wanted.is_none() => {
                    let program = program.map_err(|why| SessionFault::Program(why.to_owned()))?;
                    self.send_program(program, output).await?;
                    wanted = Some((want, program.bytes()));
                }
                Some(ScriptLine::Wanted(_)) => return Err(SessionFault::Invalid),
                Some(ScriptLine::Stored(path)) => {
                    let Some((want, bytes)) = wanted.take() else {
                        return Err(SessionFault::Invalid);
                    };
                    let text = deploy::told(&launch.host, bytes, want, &path);
                    (self.events)(SessionEvent::Note(text));
                }
            }
        }
    }

    /// Sends this program to a script that asked for it. Returns early if the host stops reading: its stdout says why.
    async fn send_program(
        &self,
        program: &Program,
        output: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), SessionFault> {
        let mut offset = 0;
        while offset < program.bytes() {
            let piece = program.piece(offset);
            let piece = piece.map_err(|error| SessionFault::Program(error.to_string()))?;
            if self.send(output, &piece).await?.is_err() {
                return Ok(());
            }
            offset += piece.len() as u64;
        }
        // A program between the two ends may pass on whole lines only. The agent skips an empty line.
        let _ = self.send(output, b"\n").await?;
        Ok(())
    }

    async fn send(
        &self,
        output: &mut (impl AsyncWrite + Unpin),
        bytes: &[u8],
    ) -> Result<io::Result<()>, SessionFault> {
        let limit = self.greeting_limit;
        let sending = async {
            output.write_all(bytes).await?;
            output.flush().await
        };
        let sent = timeout(limit, sending).await;
        sent.map_err(|_| SessionFault::Unanswered(limit))
    }

    /// Waits for the next line of the script, or for the greeting of the agent, which is none.
    async fn answer(
        &self,
        scanner: &mut Greeting,
        input: &mut (impl AsyncRead + Unpin),
    ) -> Result<Option<ScriptLine>, SessionFault> {
        let limit = self.greeting_limit;
        let answered = timeout(limit, self.find_answer(scanner, input)).await;
        answered.unwrap_or(Err(SessionFault::Unanswered(limit)))
    }

    /// Reports each message of the agent as an event; `rest` was read before `input`. Returns when no more can follow.
    async fn read_messages(
        &mut self,
        rest: Vec<u8>,
        input: impl AsyncRead + Unpin,
    ) -> SessionFault {
        let mut frames = FramedRead::new(Cursor::new(rest).chain(input), codec());
        let mut has_message = false;
        loop {
            let bytes = match within_running_time(self.silence, frames.next()).await {
                Some(Some(Ok(bytes))) => bytes,
                Some(Some(Err(error))) if error.kind() == io::ErrorKind::InvalidData => {
                    return SessionFault::Invalid;
                }
                // Whether the stream ended or broke, the exit status of the process says more about the cause.
                Some(Some(Err(_)) | None) => return SessionFault::Closed,
                // Messages may be stuck behind the stderr that the user does not read.
                None if self.pace.was_held(self.silence) => continue,
                None => return SessionFault::Silent(has_message, self.silence),
            };
            has_message = true;
            match protocol::decode(&bytes) {
                Ok(message) => {
                    if matches!(message, FromAgent::Report(_)) {
                        self.pace.end();
                    }
                    let kib = u32::try_from(bytes.len() / 1024 + 1).unwrap_or(u32::MAX);
                    let room = Arc::clone(&self.room).acquire_many_owned(kib).await;
                    let Ok(room) = room else {
                        return SessionFault::Cut;
                    };
                    (self.events)(SessionEvent::Message(message, room));
                }
                Err(_) => return SessionFault::Invalid,
            }
        }
    }

    /// Reads up to the agent's greeting or a line of the script that starts it, and shows the lines that the login
    /// shell prints before it. Returns the line, or none for the greeting.
    async fn find_answer(
        &self,
        scanner: &mut Greeting,
        input: &mut (impl AsyncRead + Unpin),
    ) -> Result<Option<ScriptLine>, SessionFault> {
        let mut buffer = vec![0; 4096];
        loop {
            match scanner.next() {
                Found::Noise(line) => match ScriptLine::parse(&line) {
                    Some(line) => return Ok(Some(line)),
                    None => self.stderr_lines.add(&*self.events, line),
                },
                Found::Greeting {
                    version: VERSION, ..
                } => return Ok(None),
                Found::Greeting { version, program } => {
                    let theirs = WrongGreeting::Version(version, program);
                    return Err(SessionFault::Greeting(theirs));
                }
                Found::TooMuch => return Err(SessionFault::Greeting(WrongGreeting::Endless)),
                Found::NotYet => match input.read(&mut buffer).await {
                    Ok(0) | Err(_) => return Err(SessionFault::Closed),
                    Ok(count) => scanner.feed(&buffer[..count]),
                },
            }
        }
    }
}

/// Reports each line that the process writes to stderr as an event, and keeps the last ones.
async fn read_stderr(
    mut stderr: impl AsyncRead + Unpin,
    pace: Arc<StderrPace>,
    stderr_lines: Arc<StderrLines>,
    events: Arc<dyn Fn(SessionEvent) + Send + Sync>,
) {
    let mut lines = Lines::default();
    let mut buffer = vec![0; 8192];
    let mut last_bytes = 0;
    loop {
        pace.wait(last_bytes).await;
        let Ok(count @ 1..) = stderr.read(&mut buffer).await else {
            break;
        };
        if pace.has_ended() {
            last_bytes += count;
        }
        for line in lines.feed(&buffer[..count]) {
            stderr_lines.add(&*events, line);
        }
    }
    if let Some(line) = lines.finish() {
        stderr_lines.add(&*events, line);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The reason why no more messages of the agent are read.
enum SessionFault {
    /// The process closed its stdout; its exit status says why.
    Closed,
    Cut,
    /// No greeting arrived within this time.
    Unanswered(Duration),
    /// Nothing arrived for this time, after which an agent counts as lost; true if there was a message before.
    Silent(bool, Duration),
    /// A message cannot be decoded.
    Invalid,
    /// The other end begins with something else than the greeting of this version.
    Greeting(WrongGreeting),
    /// This program cannot be read.
    Program(String),
    /// The host cannot start an agent.
    Start(StartFault),
}

/// What the other end sent in place of a greeting of this version.
enum WrongGreeting {
    /// The version of the protocol, and of the program.
    Version(u32, String),
    /// More than any login prints.
    Endless,
}

impl SessionFault {
    /// Returns the text of the failure, for a session with an agent on `host`.
    fn text(&self, host: &str) -> String {
        match self {
            Self::Closed => format!("{host} ended the session"),
            Self::Cut => "its session was cut".to_owned(),
            Self::Unanswered(limit) | Self::Silent(_, limit) => {
                format!("{host} sent nothing for {limit:.0?}")
            }
            Self::Invalid => {
                format!("the agent on {host} sent a message that this version cannot decode")
            }
            Self::Greeting(WrongGreeting::Version(version, program)) => {
                let ours = env!("CARGO_PKG_VERSION");
                format!(
                    "rdpipe {program} on {host} speaks version {version} of the pipelines' protocol, rdpipe {ours} here version {VERSION}; install the same rdpipe on both hosts, or leave out --deploy never where ssh starts it"
                )
            }
            Self::Program(why) => why.clone(),
            Self::Start(fault) => fault.explain(host),
            Self::Greeting(WrongGreeting::Endless) => format!(
                "the login shell on {host} prints without end, so rdpipe cannot start there; check its profile"
            ),
        }
    }
}

/// Writes the greeting, then the messages in the queue, and a ping after every `pause` without a message.
async fn write_messages(
    mut output: impl AsyncWrite + Unpin,
    mut queue: UnboundedReceiver<ToAgent>,
    pause: Duration,
) {
    if output
        .write_all(greeting("controller").as_bytes())
        .await
        .is_err()
    {
        return;
    }
    let mut frames = FramedWrite::new(output, codec());
    let mut pings = interval(pause.max(Duration::from_millis(10)));
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first message to an agent must be its order: no ping before it.
    let mut ordered = false;
    loop {
        let message = tokio::select! {
            message = queue.recv() => message,
            _ = pings.tick(), if ordered => Some(ToAgent::Ping),
        };
        let Some(message) = message else { return };
        ordered = true;
        let Ok(bytes) = protocol::encode(&message) else {
            return;
        };
        let length = bytes.len();
        if frames.send(Bytes::from_owner(bytes)).await.is_err() {
            return;
        }
        wipe_sent(frames.write_buffer_mut(), length);
    }
}

/// Wipes the bytes of a frame from the buffer from which it was sent. `length` is the length of the message in the
/// frame.
///
/// The buffer is empty by then, but its memory still holds the frame: the part before the place of the next byte.
fn wipe_sent(buffer: &mut BytesMut, length: usize) {
    if buffer.is_empty() {
        // Asking for more than lies behind the next byte moves that place back to the start.
        let _ = buffer.try_reclaim(buffer.capacity() + length);
        buffer.spare_capacity_mut().zeroize();
    }
}

#[cfg(test)]
mod tests {
    use bytes::{Buf, BufMut};
    use tokio_util::codec::Encoder;

    use super::*;

    /// Reads messages of an agent that sends without end, and takes none of them out of the queue.
    #[tokio::test]
    async fn an_agent_that_sends_without_end_is_not_read_beyond_the_room() {
        const MOST: usize = 5;
        let mut sent = BytesMut::new();
        let pong = protocol::encode(&FromAgent::Pong).unwrap();
        for _ in 0..100 {
            let frame = Bytes::copy_from_slice(&pong);
            codec().encode(frame, &mut sent).unwrap();
        }
        let (events, read) = (Arc::new(Mutex::new(Vec::new())), Cursor::new(sent));
        let queue = Arc::clone(&events);
        let mut task = SessionTask {
            silence: Duration::from_secs(60),
            greeting_limit: GREETING_LIMIT,
            events: Arc::new(move |event| lock(&queue).push(event)),
            stderr_lines: Arc::default(),
            cut: CancellationToken::new(),
            pace: Arc::new(StderrPace::new(Arc::new(|| {
                Box::pin(std::future::ready(()))
            }))),
            room: Arc::new(Semaphore::new(MOST)),
            greeted: false,
        };
        let mut reading = std::pin::pin!(task.read_messages(Vec::new(), read));
        for _ in 0..10 {
            assert!(futures::poll!(reading.as_mut()).is_pending());
            assert_eq!(lock(&events).len(), MOST);
            // The driver takes two.
            lock(&events).drain(..2);
        }
    }

    /// Checks which memory [`wipe_sent`] wipes. The wiped bytes are not read: spare capacity counts as uninitialized.
    #[test]
    fn the_spare_capacity_begins_at_the_sent_frame() {
        let mut buffer = BytesMut::with_capacity(8192);
        let start = buffer.as_ptr();
        let frame = b"\0\0\0\x04key!\n";
        buffer.put_slice(frame);
        buffer.advance(3);
        buffer.advance(frame.len() - 3);
        wipe_sent(&mut buffer, 4);
        assert_eq!((buffer.as_ptr(), buffer.capacity()), (start, 8192));
        // The next frame is written over the old one.
        assert!(buffer.is_empty());
        // A frame that has not been sent stays.
        buffer.put_slice(frame);
        wipe_sent(&mut buffer, 4);
        assert_eq!(&buffer[..], frame);
    }
}
