//! Programs as processes of a test, facts about them from `/proc`, and a stderr that is not read. Every wait for a
//! process has a limit, and every process ends with its test.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::Read,
    os::{
        fd::OwnedFd,
        unix::process::{CommandExt, ExitStatusExt},
    },
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    sync::{Arc, Condvar, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::AsFd,
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::{Errno, ioctl_fionread, write},
    pipe::{PipeFlags, pipe_with},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};

use super::{built, generous};
use crate::support::process::{field, status_kib};

/// A program with its arguments and environment, before its start.
pub struct Setup {
    name: &'static str,
    command: Command,
}

/// Returns rdrecv with these arguments, separated by spaces. [`End::stdout`] holds its output.
pub fn rdrecv(arguments: impl AsRef<str>) -> Setup {
    let mut setup = program(&built("rdrecv"), "rdrecv");
    setup.command.args(arguments.as_ref().split_whitespace());
    setup
}

/// Returns rdsend with these arguments, separated by spaces, and an empty stdin.
pub fn rdsend(arguments: impl AsRef<str>) -> Setup {
    let mut setup = program(&built("rdsend"), "rdsend");
    setup.command.args(arguments.as_ref().split_whitespace());
    setup
}

/// Returns any program, with an empty stdin, no arguments, and without a key in its environment. Messages use `name`.
pub fn program(path: &str, name: &'static str) -> Setup {
    let mut command = Command::new(path);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
        .env_remove("RDPIPE_KEY")
        .env_remove("RDPERF_TICKET")
        .env_remove("RDFORWARD_TICKET")
        .env_remove("RDPIPE_STOP_AT");
    Setup { name, command }
}

impl Setup {
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    pub fn args<A: AsRef<OsStr>>(self, arguments: impl IntoIterator<Item = A>) -> Self {
        arguments.into_iter().fold(self, Self::arg)
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Makes the process stop itself (SIGSTOP) at a named point of the protocol.
    pub fn stop_at(self, point: &str) -> Self {
        self.env("RDPIPE_STOP_AT", point)
    }

    pub fn stdin(mut self, stdin: impl Into<Stdio>) -> Self {
        self.command.stdin(stdin);
        self
    }

    pub fn stdout(mut self, stdout: impl Into<Stdio>) -> Self {
        self.command.stdout(stdout);
        self
    }

    pub fn stderr(mut self, stderr: impl Into<Stdio>) -> Self {
        self.command.stderr(stderr);
        self
    }

    /// Runs the program as another user, which only root can do.
    pub fn user(mut self, id: u32) -> Self {
        self.command.uid(id).gid(id);
        self
    }

    /// Starts the program, and collects its stdout and its stderr, unless [`Self::stderr`] has set another.
    #[track_caller]
    pub fn start(self) -> Running {
        let mut running = self.start_raw();
        if let Some(mut stdout) = running.child.stdout.take() {
            running.stdout = Some(thread::spawn(move || {
                let mut bytes = Vec::new();
                stdout.read_to_end(&mut bytes).expect("a pipe can be read");
                bytes
            }));
        }
        running
    }

    /// Starts the program, collects its stderr, and leaves its stdout to [`Running::take_stdout`].
    #[track_caller]
    pub fn start_raw(mut self) -> Running {
        let mut child = self.command.spawn().expect(self.name);
        let pid = Pid::from_child(&child);
        let stderr = match child.stderr.take() {
            Some(stderr) => Transcript::of(stderr),
            None => Transcript::of(std::io::empty()),
        };
        Running {
            name: self.name,
            handle: pidfd_open(pid, PidfdFlags::empty()).expect("a process has a descriptor"),
            child,
            stderr,
            stdout: None,
        }
    }
}

/// A running program. Dropping it kills the program.
pub struct Running {
    name: &'static str,
    child: Child,
    /// A descriptor of the process, readable when the process has ended.
    handle: OwnedFd,
    stderr: Transcript,
    stdout: Option<JoinHandle<Vec<u8>>>,
}

/// The exit status and the output of a program that has ended.
#[derive(Debug)]
pub struct End {
    pub name: &'static str,
    status: ExitStatus,
    pub stderr: String,
    pub stdout: Vec<u8>,
    /// The time at which its end was detected.
    pub at: Instant,
}

impl Running {
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("stdin was a pipe")
    }

    pub fn take_stdout(&mut self) -> ChildStdout {
        self.child.stdout.take().expect("stdout was left alone")
    }

    /// Returns the port that rdrecv has printed as the one it listens on.
    #[track_caller]
    pub fn port(&self) -> u16 {
        self.said("where it listens", |text| {
            let places = ["listening on port ", "\"port\":", " < FILE"];
            let place = places.into_iter().find(|place| text.contains(place))?;
            let (before, after) = text.split_once(place)?;
            let digits = match place {
                " < FILE" => before.rsplit(' ').next()?,
                _ => after.split(|c: char| !c.is_ascii_digit()).next()?,
            };
            digits.parse().ok()
        })
    }

    /// Waits until `find` returns a result for the stderr of the program so far. A failure message names `what`.
    #[track_caller]
    pub fn said<T>(&self, what: &str, find: impl Fn(&str) -> Option<T>) -> T {
        let found = self.stderr.wait_for(find);
        found.unwrap_or_else(|text| panic!("{} never printed {what}:\n{text}", self.name))
    }

    /// Waits until the program has stopped itself, as [`Setup::stop_at`] tells it to.
    #[track_caller]
    pub fn stopped(&self) {
        let stat = format!("/proc/{}/stat", self.id());
        eventually("a stopped process", || {
            let stat = fs::read_to_string(&stat).expect("it has not been waited for");
            assert!(
                !stat.contains(") Z "),
                "{} ended before it could stop",
                self.name
            );
            stat.contains(") T ").then_some(())
        });
    }

    /// Sends a signal, and returns the time just before.
    pub fn signal(&self, signal: Signal) -> Instant {
        let now = Instant::now();
        kill_process(Pid::from_child(&self.child), signal).expect("it has not been waited for");
        now
    }

    /// Sends SIGKILL, and returns the time just before.
    pub fn kill(&self) -> Instant {
        self.signal(Signal::KILL)
    }

    /// Returns true while the program runs.
    pub fn runs(&self) -> bool {
        !self.ends_within(Duration::ZERO)
    }

    /// Waits until the program has ended. The test fails if that takes longer than [`generous`].
    #[track_caller]
    pub fn end(mut self) -> End {
        let limit = generous();
        let ended = self.ends_within(limit);
        let at = Instant::now();
        if !ended {
            self.kill();
        }
        let status = self.child.wait().expect("a child can be waited for");
        let stderr = self.stderr.whole();
        assert!(
            ended,
            "{} still ran after {limit:?}; it said:\n{stderr}",
            self.name
        );
        let stdout = self
            .stdout
            .take()
            .map(|reader| reader.join().expect("it reads on"));
        End {
            name: self.name,
            status,
            stderr,
            stdout: stdout.unwrap_or_default(),
            at,
        }
    }

    /// Waits until the program has ended, for `limit` at most. Returns true if it has.
    pub fn ends_within(&self, limit: Duration) -> bool {
        let mut handles = [PollFd::new(&self.handle, PollFlags::IN)];
        let limit = Timespec::try_from(limit).expect("a short time");
        poll(&mut handles, Some(&limit)).expect("a descriptor can be polled") > 0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl End {
    /// Returns the exit code, or minus the number of the signal that killed the program.
    pub fn code(&self) -> i32 {
        self.status
            .code()
            .unwrap_or_else(|| -self.status.signal().unwrap_or(0))
    }

    /// Checks the exit code and returns stderr.
    #[track_caller]
    pub fn exits(&self, code: i32) -> &str {
        let Self { name, stderr, .. } = self;
        assert_eq!(self.code(), code, "{name} said:\n{stderr}");
        stderr
    }

    /// Checks the exit code, that stderr contains all `words`, and that it is one line, apart from the line about the
    /// port.
    #[track_caller]
    pub fn fails(&self, code: i32, words: &[&str]) {
        let text = self.exits(code);
        for word in words {
            assert!(
                text.contains(word),
                "{} did not say {word:?}, but:\n{text}",
                self.name
            );
        }
        let lines = text
            .lines()
            .filter(|line| !line.contains("listening on port"));
        assert_eq!(lines.count(), 1, "not one sentence:\n{text}");
    }
}

/// The text that a process has written to stderr so far.
struct Transcript {
    text: Arc<(Mutex<(String, bool)>, Condvar)>,
    reader: Option<JoinHandle<()>>,
}

impl Transcript {
    fn of(mut pipe: impl Read + Send + 'static) -> Self {
        let text = Arc::new((Mutex::new((String::new(), false)), Condvar::new()));
        let shared = Arc::clone(&text);
        let read = move || {
            let mut buffer = [0; 4096];
            loop {
                let count = pipe.read(&mut buffer).unwrap_or(0);
                let mut text = shared.0.lock().expect("no thread panics with this lock");
                text.0.push_str(&String::from_utf8_lossy(&buffer[..count]));
                text.1 = count == 0;
                shared.1.notify_all();
                if count == 0 {
                    return;
                }
            }
        };
        Self {
            text,
            reader: Some(thread::spawn(read)),
        }
    }

    fn wait_for<T>(&self, find: impl Fn(&str) -> Option<T>) -> Result<T, String> {
        let deadline = Instant::now() + generous();
        let mut text = self.text.0.lock().expect("no thread panics with this lock");
        loop {
            if let Some(found) = find(&text.0) {
                return Ok(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if text.1 || left.is_zero() {
                return Err(text.0.clone());
            }
            text = self
                .text
                .1
                .wait_timeout(text, left)
                .expect("no thread panics with this lock")
                .0;
        }
    }

    fn whole(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            reader.join().expect("it reads on");
        }
        let text = self.text.0.lock().expect("no thread panics with this lock");
        text.0.clone()
    }
}

/// Calls `probe` every millisecond until it returns a result: some facts of the kernel can only be polled. Fails after
/// [`generous`] with `what` in the message.
#[track_caller]
pub fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let limit = generous();
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(
            Instant::now() < deadline,
            "waited {limit:?} for {what}, which did not happen"
        );
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the offset up to which the process has written a file below `directory`, with or without a name, or
/// `None` if it has no such file open.
pub fn write_position(process: &Running, directory: &Path) -> Option<u64> {
    let proc = format!("/proc/{}", process.id());
    let entries = fs::read_dir(format!("{proc}/fd")).ok()?;
    let mut positions = entries.flatten().filter_map(|entry| {
        let number = entry.file_name().to_string_lossy().into_owned();
        let below = fs::read_link(entry.path()).ok()?.starts_with(directory);
        let info = fs::read_to_string(format!("{proc}/fdinfo/{number}"));
        let info = info.ok().filter(|_| below)?;
        let writes = field(&info, "flags:").is_some_and(|flags| !flags.ends_with('0'));
        field(&info, "pos:").filter(|_| writes)?.parse().ok()
    });
    positions.next()
}

/// Returns the number of unread bytes in a pipe.
pub fn held_bytes(pipe: impl AsFd) -> u64 {
    ioctl_fionread(pipe).expect("a pipe tells what is in it")
}

/// Returns true if this process, and so every program that it starts, ignores the signal, as after `&` of a shell
/// or `nohup`.
pub fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("a process has a status");
    let mask = field(&status, "SigIgn:").expect("the kernel tells");
    let mask = u64::from_str_radix(mask, 16).expect("a number");
    mask & (1 << (signal.as_raw() - 1)) != 0
}

/// Returns the peak of the resident memory of the process, in KiB.
pub fn peak_kib(process: &Running) -> u64 {
    status_kib(&process.id().to_string(), "VmHWM:")
}

/// What a process holds.
#[derive(Debug, Clone, Copy)]
pub struct Held {
    threads: u64,
    descriptors: usize,
    /// The resident memory that it has written to.
    pub resident_kib: u64,
}

impl Held {
    /// Returns what the process holds now.
    pub fn by(process: &Running) -> Self {
        let id = process.id().to_string();
        let status = fs::read_to_string(format!("/proc/{id}/status")).expect("it runs");
        let threads = field(&status, "Threads:").expect("the kernel counts");
        let descriptors = fs::read_dir(format!("/proc/{id}/fd")).expect("it runs");
        Self {
            threads: threads.parse().expect("a number"),
            descriptors: descriptors.count(),
            resident_kib: status_kib(&id, "RssAnon:"),
        }
    }

    /// Returns true if these are no more threads and descriptors than before.
    pub fn is_within(self, before: Self) -> bool {
        // tokio keeps some threads that could block, for ten seconds.
        self.threads <= before.threads + 4 && self.descriptors <= before.descriptors
    }
}

/// Returns the memory that the process has registered with devices, in KiB.
pub fn pinned_kib(process: &Running) -> u64 {
    status_kib(&process.id().to_string(), "VmPin:")
}

/// Returns the processor time that the process has used, in ticks of 10 ms.
pub fn cpu_ticks(process: &Running) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.id())).expect("it runs");
    let (_, fields) = stat.rsplit_once(')').expect("a name in parentheses");
    let ticks = |field: &str| field.parse::<u64>().expect("a number");
    // Fields 14 and 15 of proc_pid_stat(5); the first field after the name is field 3.
    fields
        .split_ascii_whitespace()
        .skip(11)
        .take(2)
        .map(ticks)
        .sum()
}

/// A pipe that a program has as its stderr, and that is read only when the test calls [`read`](Self::read).
pub struct Unread {
    reader: OwnedFd,
    /// The bytes that were in the pipe before the program wrote.
    before: usize,
}

impl Unread {
    /// Returns an empty pipe, and its end for the program.
    pub fn empty() -> (Self, Stdio) {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let before = 0;
        (Self { reader, before }, writer.into())
    }

    /// Returns a pipe that takes no byte more until it is read, and its end for the program.
    pub fn full() -> (Self, Stdio) {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let flags = fcntl_getfl(&writer).expect("an open pipe");
        fcntl_setfl(&writer, flags | OFlags::NONBLOCK).expect("an open pipe");
        let mut before = 0;
        loop {
            match write(&writer, &[b'.'; 4096]) {
                Ok(count) => before += count,
                Err(Errno::AGAIN) => break,
                Err(error) => panic!("{error}"),
            }
        }
        fcntl_setfl(&writer, flags).expect("an open pipe");
        (Self { reader, before }, writer.into())
    }

    /// Reads the pipe to its end on a thread. The result is what the program wrote.
    pub fn read(self) -> JoinHandle<String> {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = File::from(self.reader).read_to_end(&mut bytes);
            read.expect("a pipe can be read");
            String::from_utf8_lossy(&bytes[self.before..]).into_owned()
        })
    }
}
