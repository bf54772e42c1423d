//! One remote: the process that leads there, and the talk with the agent behind it.

mod lines;

use std::{
    collections::VecDeque,
    io::{self, Cursor},
    os::unix::process::ExitStatusExt,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::{
    codec::{FramedRead, FramedWrite},
    sync::CancellationToken,
};

use self::lines::Lines;
use super::{
    explain::{Evidence, explain},
    plan::launch::Launch,
    protocol::{
        self, FromAgent, ToAgent, VERSION,
        frames::codec,
        greeting,
        greeting_scan::{Found, Greeting},
    },
    stage::Status,
};

/// How long the way to an agent may take at least, whatever `--timeout` says: ssh's own limit for connecting,
/// and as long again for a slow login.
const GREETING_LIMIT: Duration = Duration::from_secs(30);

/// How long a process may go on that has closed its end of the conversation.
const EXIT_LIMIT: Duration = Duration::from_secs(3);

/// How long a process that inherited stderr may hold it open: what ssh itself wrote is there by then.
const WORDS_LIMIT: Duration = Duration::from_millis(300);

/// Lines that are kept to explain a failure.
const KEPT_LINES: usize = 20;

/// The controller's end of a session. Dropped, it ends the session.
#[derive(Debug)]
pub(crate) struct AgentSession {
    messages: UnboundedSender<ToAgent>,
    cut: CancellationToken,
}

/// What comes out of a session.
#[derive(Debug)]
pub(crate) enum SessionEvent {
    /// A line of stderr, or of what the login shell printed.
    Words(String),
    Message(FromAgent),
    /// Last: the process is gone.
    Closed(SessionEnd),
}

/// How a session ended.
#[derive(Debug, Clone)]
pub(crate) struct SessionEnd {
    /// Why, if that was before the agent's report.
    pub(crate) why: String,
    /// Whether a signal that this program had not sent ended the agent.
    pub(crate) killed: bool,
}

impl AgentSession {
    /// Starts the process that leads to the agent, and exchanges messages with it on the current runtime. `events` is
    /// called for everything that happens, a failure to start included.
    pub(crate) fn open(
        launch: Launch,
        silence: Duration,
        events: impl Fn(SessionEvent) + Send + Sync + 'static,
    ) -> Self {
        let (messages, queue) = unbounded_channel();
        let cut = CancellationToken::new();
        let talk = SessionTask {
            launch,
            silence,
            events: Arc::new(events),
            words: Arc::default(),
            cut: cut.clone(),
            greeted: false,
        };
        tokio::spawn(talk.run(queue));
        Self { messages, cut }
    }

    /// Sends a message, after all that were sent before.
    pub(crate) fn send(&self, message: ToAgent) {
        // A session that is gone says so by itself.
        let _ = self.messages.send(message);
    }

    /// Ends the session's processes here, whatever they do.
    pub(crate) fn cut(&self) {
        self.cut.cancel();
    }
}

impl Drop for AgentSession {
    fn drop(&mut self) {
        self.cut.cancel();
    }
}

struct SessionTask {
    launch: Launch,
    /// After how long a silence the agent counts as lost.
    silence: Duration,
    events: Arc<dyn Fn(SessionEvent) + Send + Sync>,
    /// The last lines.
    words: Arc<Mutex<VecDeque<String>>>,
    cut: CancellationToken,
    greeted: bool,
}

impl SessionEnd {
    fn because(why: String) -> Self {
        let killed = false;
        Self { why, killed }
    }
}

/// How a talk ended that did not come to its end.
enum SessionFailure {
    /// The other side closed it; its status says why.
    Closed,
    /// For this reason.
    Because(String),
}

impl SessionTask {
    async fn run(mut self, queue: UnboundedReceiver<ToAgent>) {
        let closing = match spawn(&self.launch) {
            Ok(child) => self.attend(child, queue).await,
            Err(error) => {
                let program = self.launch.program().to_string_lossy().into_owned();
                SessionEnd::because(format!("cannot run {program}: {error}"))
            }
        };
        (self.events)(SessionEvent::Closed(closing));
    }

    async fn attend(&mut self, mut child: Child, queue: UnboundedReceiver<ToAgent>) -> SessionEnd {
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return SessionEnd::because("its pipes are missing".to_owned());
        };
        let words = tokio::spawn(read_stderr(
            stderr,
            Arc::clone(&self.words),
            Arc::clone(&self.events),
        ));
        let writer = tokio::spawn(write_messages(stdin, queue, self.silence / 4));
        let cut = self.cut.clone();
        let broken = tokio::select! {
            broken = self.read_messages(stdout) => broken,
            () = cut.cancelled() => SessionFailure::Because("its session was cut".to_owned()),
        };
        // The agent ends when its controller closes the session.
        writer.abort();
        let is_closed = matches!(broken, SessionFailure::Closed);
        let status = self.wait(&mut child, is_closed).await;
        let _ = timeout(WORDS_LIMIT, words).await;
        match broken {
            SessionFailure::Because(why) => SessionEnd::because(why),
            SessionFailure::Closed => {
                let words: Vec<_> = lock(&self.words).iter().cloned().collect();
                let evidence = Evidence {
                    words: &words,
                    status,
                    greeted: self.greeted,
                };
                let killed = matches!(
                    status,
                    Some(Status::Signaled(_) | Status::Exited(129..=192))
                );
                let why = explain(&self.launch, &evidence);
                SessionEnd { why, killed }
            }
        }
    }

    /// Waits for the process, with its group killed when it must not go on or does not end.
    async fn wait(&self, child: &mut Child, is_closed: bool) -> Option<Status> {
        if is_closed {
            let ended = tokio::select! {
                ended = timeout(EXIT_LIMIT, child.wait()) => ended.ok(),
                () = self.cut.cancelled() => None,
            };
            if let Some(ended) = ended {
                return ended.ok().map(status);
            }
        }
        // Before it was waited for, its number can belong to no other process.
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(group) = id.and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        // What we did ourselves explains nothing.
        let _ = child.wait().await;
        None
    }

    /// Passes on the agent's messages, until there are no more.
    async fn read_messages(&mut self, mut stdout: ChildStdout) -> SessionFailure {
        let host = &self.launch.host;
        let limit = GREETING_LIMIT.max(self.silence);
        let greeted = timeout(limit, self.find_greeting(&mut stdout)).await;
        let rest = match greeted {
            Ok(Ok(rest)) => rest,
            Ok(Err(broken)) => return broken,
            Err(_) => {
                return SessionFailure::Because(format!(
                    "rdpipe on {host} has not answered within {limit:.0?}"
                ));
            }
        };
        self.greeted = true;
        let mut frames = FramedRead::new(Cursor::new(rest).chain(stdout), codec());
        loop {
            let bytes = match timeout(self.silence, frames.next()).await {
                Ok(Some(Ok(bytes))) => bytes,
                Ok(Some(Err(error))) if error.kind() == io::ErrorKind::InvalidData => {
                    return self.nonsense();
                }
                // A stream that breaks off, and one that ends: the process's status knows more.
                Ok(Some(Err(_)) | None) => return SessionFailure::Closed,
                Err(_) => {
                    let (host, silence) = (&self.launch.host, self.silence);
                    return SessionFailure::Because(format!(
                        "nothing was heard from {host} for {silence:.0?} (host down or cable out; see --timeout)"
                    ));
                }
            };
            match protocol::decode(&bytes) {
                Ok(message) => (self.events)(SessionEvent::Message(message)),
                Err(_) => return self.nonsense(),
            }
        }
    }

    fn nonsense(&self) -> SessionFailure {
        let host = &self.launch.host;
        SessionFailure::Because(format!(
            "what the agent on {host} says makes no sense to this version"
        ))
    }

    /// Skips and shows what the login shell prints; returns what came with the greeting.
    async fn find_greeting(&self, stdout: &mut ChildStdout) -> Result<Vec<u8>, SessionFailure> {
        let host = &self.launch.host;
        let mut scanner = Greeting::new("agent");
        let mut buffer = vec![0; 4096];
        loop {
            match scanner.next() {
                Found::Noise(line) => keep(&self.words, &*self.events, line),
                Found::Greeting {
                    version: VERSION, ..
                } => return Ok(scanner.into_rest()),
                Found::Greeting { version, program } => {
                    let ours = env!("CARGO_PKG_VERSION");
                    return Err(SessionFailure::Because(format!(
                        "rdpipe {program} on {host} speaks version {version} of the pipelines' protocol, rdpipe {ours} here version {VERSION}; install the same rdpipe on both"
                    )));
                }
                Found::TooMuch => {
                    return Err(SessionFailure::Because(format!(
                        "the login shell on {host} prints without end, and rdpipe never begins"
                    )));
                }
                Found::NotYet => match stdout.read(&mut buffer).await {
                    Ok(0) | Err(_) => return Err(SessionFailure::Closed),
                    Ok(count) => scanner.feed(&buffer[..count]),
                },
            }
        }
    }
}

/// Starts the process, in a group of its own: ^C is for the controller, which tells the agents.
fn spawn(launch: &Launch) -> io::Result<Child> {
    Command::new(launch.program())
        .args(&launch.words[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
}

fn status(status: ExitStatus) -> Status {
    let small = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    match (status.code(), status.signal()) {
        (Some(code), _) => Status::Exited(small(code)),
        (None, signal) => Status::Signaled(small(signal.unwrap_or(0))),
    }
}

/// Writes the messages in the queue, and pings while there are none.
async fn write_messages(stdin: ChildStdin, mut queue: UnboundedReceiver<ToAgent>, pause: Duration) {
    let mut stdin = stdin;
    if stdin
        .write_all(greeting("controller").as_bytes())
        .await
        .is_err()
    {
        return;
    }
    let mut frames = FramedWrite::new(stdin, codec());
    let mut pings = interval(pause.max(Duration::from_millis(10)));
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // An agent takes its order first.
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
        if frames.send(Bytes::from(bytes)).await.is_err() {
            return;
        }
    }
}

/// Passes on, by lines, what the process writes to stderr.
async fn read_stderr(
    mut stderr: impl AsyncRead + Unpin,
    words: Arc<Mutex<VecDeque<String>>>,
    events: Arc<dyn Fn(SessionEvent) + Send + Sync>,
) {
    let mut lines = Lines::default();
    let mut buffer = vec![0; 8192];
    while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
        for line in lines.feed(&buffer[..count]) {
            keep(&words, &*events, line);
        }
    }
    if let Some(line) = lines.finish() {
        keep(&words, &*events, line);
    }
}

fn keep(
    words: &Mutex<VecDeque<String>>,
    events: &(dyn Fn(SessionEvent) + Send + Sync),
    line: String,
) {
    let mut kept = lock(words);
    if kept.len() == KEPT_LINES {
        kept.pop_front();
    }
    kept.push_back(line.clone());
    drop(kept);
    events(SessionEvent::Words(line));
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
