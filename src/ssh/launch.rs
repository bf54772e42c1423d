//! The process that leads to an agent: the command that starts it, over ssh, over the program of `--rsh`, or on this
//! machine; its end; and its stderr, cut into lines and read no faster than the user reads the messages.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::{fd::OwnedFd, unix::process::ExitStatusExt},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use futures::future::{BoxFuture, poll_immediate};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    pipe::{SpliceFlags, fcntl_setpipe_size, splice},
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open},
};
use tokio::{
    process::{Child, Command},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{deploy::DeployPolicy, plan::StageHost, quote, stage::Status};
use crate::{process, threads};

/// The user's options about how other hosts are reached.
#[derive(Debug, Clone, Default)]
pub(crate) struct Remote {
    /// The words of `--rsh`; none runs ssh.
    pub(crate) rsh: Option<Vec<String>>,
    /// The words of `--ssh-opt`.
    pub(crate) ssh_options: Vec<String>,
    /// The path of `--remote-rdpipe`.
    pub(crate) program: Option<String>,
    /// Whether hosts get this program.
    pub(crate) deploy: DeployPolicy,
    /// The ssh that runs as if the user had typed it, for rdsh: it takes its settings from the user alone, may ask
    /// questions, waits as long as it likes, and writes to the stderr of this program. None is the ssh of a program.
    pub(crate) own_ssh: Option<PathBuf>,
}

/// A command that starts an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Launch {
    /// The program and its arguments: at least the program.
    pub(crate) argv: Vec<OsString>,
    /// How the command reaches the host.
    pub(crate) kind: LaunchKind,
    /// The name of the host in messages.
    pub(crate) host: String,
    /// The destination argument of ssh and `ssh-copy-id`: `host` or `user@host`.
    pub(crate) destination: String,
    /// Whether the host gets this program. Unless it never does, the command starts a shell, which reads the script of
    /// [`deploy`](super::deploy) from stdin.
    pub(crate) deploy: DeployPolicy,
    /// Whether the command runs as if the user had typed it: [`Remote::own_ssh`].
    pub(crate) is_users: bool,
}

/// How a [`Launch`] reaches its host. Each kind fails in its own way and gets its own explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaunchKind {
    Ssh,
    /// Over the program of `--rsh`.
    Rsh,
    /// On this machine, without a program between.
    Here,
}

impl Remote {
    /// Returns the command that starts the agent at `place`. `own` is the path of this program, for stages that run
    /// on this machine. None for a server: no command starts it.
    pub(crate) fn launch(&self, place: &StageHost, own: &Path) -> Option<Launch> {
        let launch = |kind, argv: Vec<OsString>, host: &str, destination: &str| {
            Some(Launch {
                argv,
                kind,
                host: host.to_owned(),
                destination: destination.to_owned(),
                deploy: match kind {
                    LaunchKind::Here => DeployPolicy::Never,
                    LaunchKind::Ssh | LaunchKind::Rsh => self.deploy(),
                },
                is_users: kind != LaunchKind::Here && self.own_ssh.is_some(),
            })
        };
        match place {
            StageHost::Here => {
                let argv = vec![own.as_os_str().to_owned(), AGENT.into()];
                launch(LaunchKind::Here, argv, "this machine", "")
            }
            StageHost::Host { destination, host } => match &self.rsh {
                Some(rsh) => launch(
                    LaunchKind::Rsh,
                    self.rsh(rsh, destination),
                    host,
                    destination,
                ),
                None => launch(LaunchKind::Ssh, self.ssh(destination), host, destination),
            },
            StageHost::Server { .. } => None,
        }
    }

    /// Returns the command over the program of `--rsh`. rdpipe runs no shell here, so the words are not quoted.
    fn rsh(&self, rsh: &[String], destination: &str) -> Vec<OsString> {
        let mut words: Vec<_> = rsh
            .iter()
            .map(|word| word.replace(HOST, destination))
            .collect();
        if !rsh.iter().any(|word| word.contains(HOST)) {
            words.push(destination.to_owned());
        }
        if self.deploy() == DeployPolicy::Never {
            words.push(self.program.as_deref().unwrap_or(PROGRAM).to_owned());
            words.push(AGENT.to_owned());
        } else {
            words.push(SHELL.to_owned());
        }
        words.into_iter().map(OsString::from).collect()
    }

    /// Returns whether hosts get this program: not if the user has named the program to run there.
    fn deploy(&self) -> DeployPolicy {
        match self.program {
            Some(_) => DeployPolicy::Never,
            None => self.deploy,
        }
    }

    /// Returns the command over ssh. ssh passes the words after the host to the login shell, so they are quoted.
    fn ssh(&self, destination: &str) -> Vec<OsString> {
        // The command line of the user was refused if its path cannot be quoted.
        let program = self.program.as_deref().and_then(quote::remote_path);
        let program = program.unwrap_or_else(|| PROGRAM.to_owned());
        let agent = match self.deploy() {
            DeployPolicy::Never => vec![program, AGENT.to_owned()],
            DeployPolicy::Always | DeployPolicy::Auto => vec![SHELL.to_owned()],
        };
        let (ssh, own) = match &self.own_ssh {
            Some(ssh) => (ssh.clone().into_os_string(), &SSH_OPTIONS[..1]),
            None => ("ssh".into(), &SSH_OPTIONS[..]),
        };
        // ssh uses the first value of each option, so the user's options come before ours.
        let words = self.ssh_options.iter().cloned();
        let words = words
            .chain(own.iter().map(|&word| word.to_owned()))
            .chain([destination.to_owned()])
            .chain(agent);
        [ssh].into_iter().chain(words.map(OsString::from)).collect()
    }
}

impl Launch {
    /// Returns the command as a user would type it into a shell.
    pub(crate) fn display(&self) -> String {
        let command = quote::display(self.argv.iter().map(OsString::as_os_str));
        match self.deploy {
            DeployPolicy::Never => command,
            DeployPolicy::Auto => format!("{command} (which runs rdpipe there, or receives it)"),
            DeployPolicy::Always => format!("{command} (which runs the rdpipe of this machine)"),
        }
    }

    /// Returns the command that starts a relay in place of an agent: ssh forwards nothing in its session. Ports that the
    /// configuration of ssh forwards are bound already, in the session of the agent.
    pub(crate) fn for_relay(mut self) -> Self {
        if self.kind == LaunchKind::Ssh {
            // ssh uses the first value of each option.
            let own = RELAY_OPTIONS.map(OsString::from);
            self.argv.splice(1..1, own);
        }
        self
    }

    pub(crate) fn program(&self) -> &OsStr {
        &self.argv[0]
    }
}

/// The placeholder in `--rsh` that is replaced by the host.
const HOST: &str = "{host}";

const PROGRAM: &str = "rdpipe";

const AGENT: &str = "--agent";

/// The command that reads the script of [`deploy`](super::deploy): one word, which every login shell passes on.
const SHELL: &str = "sh";

/// The options of ssh that rdpipe sets. The user's `--ssh-opt` overrides them. The first one alone is set for an ssh that
/// runs as if the user had typed it.
const SSH_OPTIONS: [&str; 9] = [
    "-T",
    // There is no terminal on which a user could answer a question: ssh fails at once instead of asking.
    "-oBatchMode=yes",
    "-oConnectTimeout=10",
    // A new master would outlive the session and hold our pipes open. A master that already runs is used.
    "-oControlMaster=no",
    // Forwardings are meant for the user's own sessions, and several sessions at once cannot bind the same ports.
    "-oClearAllForwardings=yes",
    "-oForwardX11=no",
    // A host that receives files or runs a stage gets no access to the user's other hosts.
    "-oForwardAgent=no",
    "-oPermitLocalCommand=no",
    "-oRemoteCommand=none",
];

const RELAY_OPTIONS: [&str; 3] = [
    "-oClearAllForwardings=yes",
    "-oForwardX11=no",
    "-oForwardAgent=no",
];

/// How long the process may still run after it has closed its stdout. Then it is killed.
const EXIT_LIMIT: Duration = Duration::from_secs(3);

/// How long a process may run after SIGTERM when its session is cut: a program such as `srun` cancels its job. It is
/// shorter than the second that the controller waits for sessions that were cut.
const TERM_LIMIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 500_000_000,
};

/// Waits until the process has exited, and returns its status. Ends the process group if the process has not
/// closed its stdout, does not exit in time, or the session is cut; the status is then none. The user's own ssh is waited
/// for as long as it takes: it passes on the stderr of all that the command has left.
pub(crate) async fn wait(
    launch: &Launch,
    child: &mut Child,
    is_closed: bool,
    cut: &CancellationToken,
) -> Option<Status> {
    let limit = if launch.is_users {
        Duration::MAX
    } else {
        EXIT_LIMIT
    };
    if is_closed {
        let ended = tokio::select! {
            ended = timeout(limit, child.wait()) => ended.ok(),
            () = cut.cancelled() => None,
        };
        if let Some(ended) = ended {
            return ended.ok().map(status);
        }
    }
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    match id.and_then(Pid::from_raw) {
        // It is in the process group of this program.
        Some(_) if launch.is_users => drop(child.start_kill()),
        Some(group) => end_group(group, launch.kind).await,
        None => {}
    }
    // The status of our own signal explains nothing.
    let _ = child.wait().await;
    None
}

/// Starts the process in a process group of its own: ^C then reaches the controller only, which tells the agents. The
/// user's own ssh stays in the group of this program, so that it may ask questions on the terminal, and has its stderr.
pub(crate) fn spawn(launch: &Launch) -> io::Result<Child> {
    let mut command = Command::new(launch.program());
    command
        .args(&launch.argv[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    if !launch.is_users {
        command.stderr(Stdio::piped()).process_group(0);
    }
    process::with_inherited_core_dumps(|| command.spawn())
}

/// Ends a process group whose first process has not been waited for, so that its number cannot belong to another group
/// yet: with SIGTERM, and with SIGKILL when the first process has exited, or after a moment.
async fn end_group(group: Pid, kind: LaunchKind) {
    if let Ok(first) = pidfd_open(group, PidfdFlags::empty()) {
        let _ = kill_process_group(group, Signal::TERM);
        let exits = move || {
            let mut first = [PollFd::new(&first, PollFlags::IN)];
            let _ = retry_on_intr(|| poll(&mut first, Some(&TERM_LIMIT)));
            if kind == LaunchKind::Here {
                // The first process is the guard of an agent, which SIGTERM ends at once. The worker still ends its
                // command.
                thread::sleep(TERM_LIMIT.try_into().unwrap_or_default());
            }
        };
        // Without a thread for the wait, SIGKILL follows at once.
        let _ = threads::blocking(exits).await;
    }
    let _ = kill_process_group(group, Signal::KILL);
}

/// Passes all bytes on from one pipe to another, `first` before them, until the first has ended. Blocks.
/// Fails if the second pipe has no reader any more.
pub(crate) fn pass_on(from: &OwnedFd, to: &OwnedFd, first: &[u8]) -> io::Result<()> {
    for pipe in [from, to] {
        // A larger pipe saves changes of threads. A user may have too many of them.
        let _ = fcntl_setpipe_size(pipe, PASSED_BYTES);
    }
    let mut first = first;
    while !first.is_empty() {
        let count = retry_on_intr(|| rustix::io::write(to, first))?;
        first = &first[count..];
    }
    // The pages of the pipe are handed on and not copied.
    while retry_on_intr(|| splice(from, None, to, None, PASSED_BYTES, SpliceFlags::MOVE))? > 0 {}
    Ok(())
}

/// The bytes that are passed on at a time: the largest pipe that a user may have.
const PASSED_BYTES: usize = 1 << 20;

fn status(status: ExitStatus) -> Status {
    let small = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    match (status.code(), status.signal()) {
        (Some(code), _) => Status::Exited(small(code)),
        (None, signal) => Status::Signaled(small(signal.unwrap_or(0))),
    }
}

/// The most bytes of a line. A longer one is shown in pieces.
const MAX_LINE_BYTES: usize = 4096;

/// Cuts bytes into lines. A line ends at `\n`, and also at `\r`, which programs print to redraw a progress line. Empty
/// lines are left out.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    unfinished: Vec<u8>,
}

impl Lines {
    /// Adds bytes, and returns the lines that they complete.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        for &byte in bytes {
            let ends = matches!(byte, b'\n' | b'\r');
            if !ends {
                self.unfinished.push(byte);
            }
            if ends || self.unfinished.len() >= MAX_LINE_BYTES {
                lines.extend(self.finish());
            }
        }
        lines
    }

    /// Returns the unfinished last line, if there is one.
    pub(crate) fn finish(&mut self) -> Option<String> {
        let line = std::mem::take(&mut self.unfinished);
        (!line.is_empty()).then(|| String::from_utf8_lossy(&line).into_owned())
    }
}

/// Returns a future that waits until there is room for more lines of stderr.
pub(crate) type Room = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// The most bytes of stderr that are read without room when the stage has ended: more than all buffers between the
/// command and this process hold, so that the last lines of every command are shown.
const LAST_BYTES: usize = 8 << 20;

/// Decides when the stderr of a session is read again.
///
/// While the user does not read the messages, stderr is left unread, and the command waits in a write as it would in a
/// shell. ssh and other programs stop passing on the agent's messages as well when their buffers are full of stderr, so
/// the agent is not taken for dead meanwhile.
pub(crate) struct StderrPace {
    room: Room,
    /// Cancelled when the stage has ended, or is told to end: what it has written is then read without room.
    ended: CancellationToken,
    held: Mutex<Holding>,
}

/// Whether stderr is left unread.
enum Holding {
    Never,
    Now,
    Until(Instant),
}

impl StderrPace {
    pub(crate) fn new(room: Room) -> Self {
        Self {
            room,
            ended: CancellationToken::new(),
            held: Mutex::new(Holding::Never),
        }
    }

    /// Waits until stderr may be read. `last_bytes` is the number of bytes that were read since the stage has ended.
    /// Do not drop the future: stderr would count as unread forever.
    pub(crate) async fn wait(&self, last_bytes: usize) {
        let mut room = (self.room)();
        let may_end = last_bytes < LAST_BYTES;
        if poll_immediate(&mut room).await.is_some() || (may_end && self.ended.is_cancelled()) {
            return;
        }
        self.set(Holding::Now);
        tokio::select! {
            () = room => {}
            () = self.ended.cancelled(), if may_end => {}
        }
        self.set(Holding::Until(Instant::now()));
    }

    /// Lets stderr be read to its end without room: the stage has ended, or is told to end.
    pub(crate) fn end(&self) {
        self.ended.cancel();
    }

    /// Returns true if the stage has ended, or was told to end.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// Returns true if stderr was left unread at any time since `ago`.
    pub(crate) fn was_held(&self, ago: Duration) -> bool {
        match *self.held.lock().unwrap_or_else(PoisonError::into_inner) {
            Holding::Never => false,
            Holding::Now => true,
            Holding::Until(end) => end.elapsed() < ago,
        }
    }

    fn set(&self, hold: Holding) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = hold;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_at_newlines_and_at_carriage_returns() {
        let mut lines = Lines::default();
        assert_eq!(lines.feed(b"a\r\nb\rc\n\nd"), ["a", "b", "c"]);
        assert_eq!(lines.feed(b"e\n"), ["de"]);
        assert_eq!(lines.finish(), None);
        assert!(lines.feed(b"rest").is_empty());
        assert_eq!(lines.finish().as_deref(), Some("rest"));
    }

    #[test]
    fn ssh_forwards_nothing_for_a_relay() {
        let place = StageHost::Host {
            destination: "me@fs1".to_owned(),
            host: "fs1".to_owned(),
        };
        let remote = Remote {
            ssh_options: vec!["-oClearAllForwardings=no".to_owned()],
            ..Remote::default()
        };
        let words = |launch: Launch| launch.for_relay().argv;
        let argv = words(remote.launch(&place, Path::new("/own")).unwrap());
        assert_eq!(argv[..2], ["ssh", "-oClearAllForwardings=yes"]);
        assert_eq!(argv[argv.len() - 2..], ["me@fs1", "sh"]);
        let own = words(remote.launch(&StageHost::Here, Path::new("/own")).unwrap());
        assert_eq!(own, ["/own", "--agent"]);
    }

    #[test]
    fn a_long_line_is_cut_into_pieces() {
        let mut lines = Lines::default();
        let long = lines.feed(&vec![b'x'; 3 * MAX_LINE_BYTES + 1]);
        assert_eq!(long.len(), 3);
        assert_eq!(lines.unfinished.len(), 1);
    }
}
