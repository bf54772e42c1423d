//! Real hosts for the tests of rdpipe: network namespaces with an sshd each, made by `scripts/hosts`.
//!
//! The hosts are h1, h2, ... at 10.77.0.1, 10.77.0.2, ...; only the ssh configuration of the controller has these
//! names. The controller runs on ctl. Every process and file of the hosts is gone after the test, even if the test is
//! killed.

use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io::{BufRead, BufReader, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::OFlags,
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Action, tcflow},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use super::{End, Running, Setup, built, eventually, generous, install, limit, program, skip};

/// Returns `bytes` bytes of text in which no two lines are alike.
pub fn text(bytes: usize) -> Vec<u8> {
    let lines = (0_u64..).map(|number| format!("{number:x} of many lines to tell apart\n"));
    let mut text: Vec<u8> = lines
        .take(bytes / 20 + 1)
        .flat_map(String::into_bytes)
        .collect();
    text.truncate(bytes);
    text
}

/// The program that reaches hosts of this network: `ssh`, with the configuration that names them.
pub const SSH: &str = "/usr/bin/ssh";

/// The time within which all processes must be gone; rdpipe promises less.
pub const GONE: Duration = Duration::from_secs(15);

/// Some hosts and the host of the controller, joined by a bridge.
pub struct Network {
    /// The process of `scripts/hosts`, if it made this network for the test. It ends when its stdin is closed.
    script: Option<Child>,
    directory: PathBuf,
    /// A process on ctl, whose namespace other programs enter; `None` if the test itself runs on ctl.
    ctl: Option<u32>,
    count: usize,
}

impl Network {
    /// Makes a network with `count` hosts. Where that is impossible, prints the reason and returns `None`; with
    /// `RDPIPE_REQUIRE_HOSTS=1` the test fails instead.
    #[track_caller]
    pub fn new(count: usize) -> Option<Self> {
        match Self::start(count) {
            Ok(network) => Some(network),
            Err(why) => {
                let required = std::env::var("RDPIPE_REQUIRE_HOSTS");
                assert!(!required.is_ok_and(|value| value == "1"), "no hosts: {why}");
                skip(&format!("no hosts to test with: {why}"));
                None
            }
        }
    }

    /// Returns the network of the guests with RDMA that `scripts/guests` started. Without `scripts/guests`, prints the
    /// reason and returns `None`.
    pub fn of_guests() -> Option<Self> {
        let is_there = std::env::var("RDPIPE_RIG").is_ok_and(|rig| rig.starts_with("guests"));
        let directory = std::env::var_os("RDPIPE_HOSTS").filter(|_| is_there);
        let Some(directory) = directory.map(PathBuf::from) else {
            skip("this test needs VMs with RDMA, which scripts/guests starts");
            return None;
        };
        let mut count = 0;
        while directory.join(format!("h{}", count + 1)).exists() {
            count += 1;
        }
        Some(Self {
            script: None,
            directory,
            ctl: None,
            count,
        })
    }

    fn start(count: usize) -> Result<Self, String> {
        let rdpipe = built("rdpipe");
        let programs = Path::new(&rdpipe).parent();
        let mut script = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/hosts"))
            .args(["--timeout", "3600", "--hosts", &count.to_string(), "--bin"])
            .arg(programs.expect("it is in a directory"))
            .arg("echo $RDPIPE_HOSTS; exec cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("scripts/hosts: {error}"))?;
        let mut directory = String::new();
        // The script itself limits the time of this read.
        let mut stdout = BufReader::new(script.stdout.take().expect("stdout is a pipe"));
        let read = stdout.read_line(&mut directory);
        if !read.is_ok_and(|bytes| bytes > 0) {
            let output = script.wait_with_output().map_err(|e| e.to_string())?;
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        let directory = PathBuf::from(directory.trim());
        let space = fs::read_to_string(directory.join("ctl/netns")).map_err(|e| e.to_string())?;
        let ctl = of_space("net", space.trim())
            .first()
            .map(|process| process.id);
        Ok(Self {
            script: Some(script),
            directory,
            ctl: Some(ctl.ok_or("no process runs on ctl")?),
            count,
        })
    }

    /// Returns true if the hosts are guests with RDMA.
    pub fn is_of_guests(&self) -> bool {
        self.ctl.is_none()
    }

    /// Returns the names of the hosts.
    pub fn hosts(&self) -> impl Iterator<Item = String> + use<> {
        (1..=self.count).map(|number| format!("h{number}"))
    }

    /// Returns the path of a file in the directory where commands of this host start; host `ctl` is the controller's.
    pub fn file(&self, host: &str, name: &str) -> PathBuf {
        self.directory.join(host).join("home").join(name)
    }

    /// Writes a file in the directory where commands of this host start. Returns its path.
    #[track_caller]
    pub fn write(&self, host: &str, name: &str, content: &[u8]) -> PathBuf {
        let file = self.file(host, name);
        fs::write(&file, content).expect("a file");
        file
    }

    /// Returns the content of a file in the directory where commands of this host start.
    #[track_caller]
    pub fn read(&self, host: &str, name: &str) -> Vec<u8> {
        let content = fs::read(self.file(host, name));
        content.unwrap_or_else(|error| panic!("{name} on {host}: {error}"))
    }

    /// Returns the sorted names in the directory where commands of this host start.
    pub fn names(&self, host: &str) -> Vec<String> {
        let entries = fs::read_dir(self.file(host, "")).expect("a directory");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("an entry").file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Returns the path of a file of the network itself, as `ssh_config` or `h1/sshd.log`.
    pub fn own(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Installs a shell script as the program `name` on a host, before all others in its PATH.
    pub fn install(&self, host: &str, name: &str, script: &str) {
        let source = self.directory.join(host).join(format!("{name}.source"));
        fs::write(&source, format!("#!/bin/sh\n{script}\n")).expect("a file");
        install(&source, &self.directory.join(host).join("bin").join(name));
        fs::remove_file(source).expect("a file to remove");
    }

    /// Returns any program, to be run on ctl. The process that is started becomes the program itself.
    pub fn program(&self, path: &str, name: &'static str) -> Setup {
        let shell = match self.ctl {
            Some(ctl) => program("/usr/bin/nsenter", name)
                .arg(format!("--net=/proc/{ctl}/ns/net"))
                .arg("--")
                .arg("/bin/sh"),
            None => program("/bin/sh", name),
        };
        shell
            .arg("-c")
            .arg("cd \"$0\" && exec \"$@\"")
            .arg(self.file("ctl", ""))
            .arg(path)
    }

    /// Returns `rdpipe` with these arguments, to be run on ctl.
    pub fn rdpipe<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Setup {
        let setup = self.program(&built("rdpipe"), "rdpipe");
        setup.args(self.options()).args(arguments)
    }

    /// Returns `rdcat` with these arguments, to be run on ctl.
    pub fn rdcat<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Setup {
        let setup = self.program(&built("rdcat"), "rdcat");
        setup.args(self.options()).args(arguments)
    }

    /// Returns `rdcp` with these arguments, to be run on ctl.
    pub fn rdcp<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Setup {
        let setup = self.program(&built("rdcp"), "rdcp");
        setup.args(self.options()).args(arguments)
    }

    /// Returns `rdperf` with these arguments, to be run on ctl.
    pub fn rdperf<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Setup {
        let setup = self.program(&built("rdperf"), "rdperf");
        setup.args(self.options()).args(arguments)
    }

    /// Returns `rdforward` with these arguments, to be run on ctl.
    pub fn rdforward<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Setup {
        let setup = self.program(&built("rdforward"), "rdforward");
        setup.args(self.options()).args(arguments)
    }

    /// Returns `rdpipe` with the terminal as its stdin and controlling terminal, to be run on ctl.
    pub fn on_terminal<A: AsRef<OsStr>>(
        &self,
        terminal: &Terminal,
        arguments: impl IntoIterator<Item = A>,
    ) -> Setup {
        let setup = self
            .program("/usr/bin/setsid", "rdpipe")
            .arg("--ctty")
            .arg(built("rdpipe"))
            .args(self.options());
        setup.args(arguments).stdin(terminal.inside())
    }

    /// Returns the options by which the programs find the hosts.
    fn options(&self) -> [String; 2] {
        let config = self.own("ssh_config");
        ["--ssh-opt".into(), format!("-F {}", config.display())]
    }

    /// Returns `ssh` to a host with this command, to be run on ctl.
    pub fn ssh(&self, host: &str, command: &str) -> Setup {
        let ssh = self
            .program(SSH, "ssh")
            .arg("-F")
            .arg(self.own("ssh_config"));
        ssh.arg(host).arg(command)
    }

    /// Runs a shell line in the namespaces and the start directory of a host. Returns its stdout; the line must
    /// succeed.
    #[track_caller]
    pub fn on(&self, host: &str, line: &str) -> String {
        let mut command = Command::new("nsenter");
        let sshd = self.sshd(host).id.to_string();
        command.args(["--target", &sshd, "--net", "--mount", "--pid", "--uts"]);
        let line = format!("cd {} && {line}", self.file(host, "").display());
        let output = command.args(["sh", "-c", &line]).output();
        let output = output.expect("nsenter");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line} on {host}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs this on a thread that is in the network of a host or of ctl: a socket that it opens belongs there.
    #[track_caller]
    pub fn within<T: Send>(&self, host: &str, run: impl FnOnce() -> T + Send) -> T {
        let process = match (host, self.ctl) {
            ("ctl", None) => return run(),
            ("ctl", Some(ctl)) => ctl,
            _ => self.sshd(host).id,
        };
        let space = File::open(format!("/proc/{process}/ns/net")).expect("a namespace");
        thread::scope(|scope| {
            let there = scope.spawn(|| {
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(space.as_fd(), kind).expect("root enters namespaces");
                run()
            });
            there.join().expect("the thread has not panicked")
        })
    }

    /// Joins two hosts by a network of their own: each gets the interface `name` with an address.
    #[track_caller]
    pub fn join(&self, name: &str, [first, second]: [(&str, &str); 2]) {
        let there = self.sshd(second.0).id;
        let line = format!("ip link add {name} type veth peer name {name} netns {there}");
        let made = self.within(first.0, || {
            let mut command = Command::new("sh");
            command.args(["-c", &line]).status().expect("a shell")
        });
        assert!(made.success(), "{line}");
        for (host, address) in [first, second] {
            let line = format!("ip address add {address} dev {name} && ip link set {name} up");
            self.on(host, &line);
        }
    }

    /// Returns the sshd that listens on a host.
    #[track_caller]
    fn sshd(&self, host: &str) -> Process {
        let all = self.all_processes(host);
        let first = all.into_iter().find(|process| process.is_first);
        first.unwrap_or_else(|| panic!("no sshd on {host}"))
    }

    /// Returns the processes of a host without its listening sshd: sessions of sshd and the processes that they
    /// started. On ctl: the processes that the test started there.
    pub fn processes(&self, host: &str) -> Vec<Process> {
        let mut all = self.all_processes(host);
        all.retain(|process| !process.is_first);
        all
    }

    fn all_processes(&self, host: &str) -> Vec<Process> {
        let (file, kind) = match host {
            "ctl" => ("netns", "net"),
            _ => ("pidns", "pid"),
        };
        let space = fs::read_to_string(self.directory.join(host).join(file));
        let mut all = of_space(kind, space.expect("the script wrote it").trim());
        if host == "ctl" {
            // The processes of the script have a PID namespace of their own and do not count.
            let ours = fs::read_link("/proc/self/ns/pid").expect("this is Linux");
            all.retain(|process| {
                fs::read_link(format!("/proc/{}/ns/pid", process.id))
                    .is_ok_and(|space| space == ours)
            });
        }
        all
    }

    /// Waits until a process whose command line contains `words` runs on `host`. Returns the youngest such process.
    #[track_caller]
    pub fn process(&self, host: &str, words: &str) -> Process {
        eventually(&format!("{words:?} to run on {host}"), || {
            let mut all = self.processes(host);
            all.retain(|process| process.line.contains(words));
            all.pop()
        })
    }

    /// Waits until a shell runs on `host` with this command line, and returns the oldest process that has it: a child
    /// has the command line of its parent until it has become another program.
    #[track_caller]
    pub fn shell(&self, host: &str, words: &str) -> Process {
        eventually(&format!("{words:?} to run on {host}"), || {
            let mut all = self.processes(host).into_iter();
            all.find(|process| process.line.contains(words))
        })
    }

    /// Waits until no process runs on any host. That must happen within `promise` after `since`; [`limit`] makes the
    /// time longer on a busy machine. It stays below the 30 s after which a silent peer counts as dead. After an event
    /// that only a timeout detects, `since` is the end of that timeout.
    #[track_caller]
    pub fn assert_empty(&self, since: Instant, promise: Duration) {
        self.assert_empty_but(since, promise, |_| false);
    }

    /// Waits until only processes for which `may_stay` returns true run on the hosts, within `promise` after `since`.
    #[track_caller]
    pub fn assert_empty_but(
        &self,
        since: Instant,
        promise: Duration,
        may_stay: impl Fn(&Process) -> bool,
    ) {
        let hosts: Vec<String> = self.hosts().chain(["ctl".to_owned()]).collect();
        let limit = limit(promise).min(Duration::from_secs(25));
        loop {
            let left: Vec<_> = hosts
                .iter()
                .flat_map(|host| {
                    let left = self.processes(host).into_iter();
                    left.map(move |process| (host.clone(), process))
                })
                .filter(|(_, process)| !may_stay(process))
                .collect();
            if left.is_empty() {
                return;
            }
            assert!(
                since.elapsed() < limit,
                "{limit:?} later there still are {left:#?}"
            );
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let Some(mut script) = self.script.take() else {
            return;
        };
        // A failed test can leave processes on ctl, which no script ends.
        for process in self.processes("ctl") {
            process.kill();
        }
        drop(script.stdin.take());
        let deadline = Instant::now() + generous();
        while script.try_wait().is_ok_and(|status| status.is_none()) {
            if Instant::now() > deadline {
                let _ = script.kill();
                let _ = script.wait();
                let _ = fs::remove_dir_all(&self.directory);
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Checks of a program that has ended.
pub trait Outcome {
    /// Checks that the program exited with 0, wrote `stdout`, and wrote nothing to stderr.
    fn is(&self, stdout: impl AsRef<[u8]>);

    /// Checks that the program exited with `code`, and that its stderr contains all these words.
    fn tells(&self, code: i32, words: &[&str]);

    /// Checks that its stderr contains none of these words.
    fn is_silent_on(&self, words: &[&str]);
}

impl Outcome for End {
    #[track_caller]
    fn is(&self, stdout: impl AsRef<[u8]>) {
        assert_eq!(self.exits(0), "");
        let (found, expected) = (&self.stdout, stdout.as_ref());
        if found != expected {
            let same = found.iter().zip(expected).take_while(|(a, b)| a == b);
            panic!(
                "{} bytes came out and {} were expected; the first {} are the same",
                found.len(),
                expected.len(),
                same.count()
            );
        }
    }

    #[track_caller]
    fn tells(&self, code: i32, words: &[&str]) {
        let text = self.exits(code);
        for word in words {
            assert!(text.contains(word), "it did not say {word:?}, but:\n{text}");
        }
    }

    #[track_caller]
    fn is_silent_on(&self, words: &[&str]) {
        for word in words {
            assert!(
                !self.stderr.contains(word),
                "it said {word:?}:\n{}",
                self.stderr
            );
        }
    }
}

/// A process that runs, or at least is no zombie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its process ID in the namespace of the test.
    pub id: u32,
    /// Its arguments, separated by spaces; its name in brackets if it has no arguments.
    pub line: String,
    /// True for process 1 of a PID namespace.
    pub is_first: bool,
}

impl Process {
    /// Returns true for the worker of an agent.
    pub fn is_worker(&self) -> bool {
        self.line.contains("--agent=worker")
    }

    /// Sends SIGKILL.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    pub fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.id).ok().and_then(Pid::from_raw);
        // The process may have ended already.
        let _ = kill_process(id.expect("a number of a process"), signal);
    }

    pub fn runs(&self) -> bool {
        look_at(self.id).is_some_and(|now| now.line == self.line)
    }

    /// Returns true for a process of sshd.
    pub fn is_sshd(&self) -> bool {
        self.line.starts_with("sshd")
    }

    /// Returns its direct children.
    pub fn children(&self) -> Vec<Self> {
        let children = format!("/proc/{}/task/{}/children", self.id, self.id);
        let children = fs::read_to_string(children).unwrap_or_default();
        let numbers = children.split_whitespace().flat_map(str::parse);
        numbers.filter_map(look_at).collect()
    }
}

/// Returns all processes of a namespace of this kind and name in /proc, the oldest first.
pub fn of_space(kind: &str, name: &str) -> Vec<Process> {
    let mut numbers: Vec<u32> = fs::read_dir("/proc")
        .expect("this is Linux")
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|number| {
            let space = fs::read_link(format!("/proc/{number}/ns/{kind}"));
            space.is_ok_and(|space| space == Path::new(name))
        })
        .collect();
    numbers.sort_by_key(|number| started(*number));
    numbers.into_iter().filter_map(look_at).collect()
}

fn look_at(id: u32) -> Option<Process> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let field = |name: &str| {
        let mut lines = status.lines();
        lines
            .find_map(|line| line.strip_prefix(name))
            .map(str::trim)
    };
    if field("State:")?.starts_with(['Z', 'X']) {
        return None;
    }
    let numbers = field("NSpid:")?.split_whitespace().collect::<Vec<_>>();
    let line = fs::read(format!("/proc/{id}/cmdline")).ok()?;
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    let line = match line.trim_end() {
        "" => format!("[{}]", field("Name:")?),
        line => line.to_owned(),
    };
    Some(Process {
        id,
        line,
        is_first: numbers.len() > 1 && numbers.last() == Some(&"1"),
    })
}

/// Returns the start of a process, in ticks since the start of the machine.
fn started(id: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    // Field 22 of proc_pid_stat(5); the first field after the name is field 3.
    let field = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(19));
    field.and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// Both ends of a pseudo-terminal. Dropping them hangs up the terminal.
pub struct Terminal {
    keyboard: File,
    inside: File,
}

impl Terminal {
    pub fn new() -> Self {
        let outside = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC);
        let outside: OwnedFd = outside.expect("a terminal");
        grantpt(&outside).expect("it is ours");
        unlockpt(&outside).expect("it is ours");
        let name = ptsname(&outside, Vec::new()).expect("it has a name");
        let inside = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(i32::try_from(OFlags::NOCTTY.bits()).expect("a small number"))
            .open(std::ffi::OsStr::from_bytes(name.as_bytes()))
            .expect("it is ours");
        Self {
            keyboard: File::from(outside),
            inside,
        }
    }

    /// Returns the end for a program, as its stdin or controlling terminal.
    pub fn inside(&self) -> File {
        self.inside.try_clone().expect("a descriptor")
    }

    /// Reads what programs show on the terminal, up to `words`, and returns it. Blocks if they show nothing more.
    pub fn shows(&mut self, words: &str) -> String {
        let mut shown = String::new();
        let mut buffer = [0; 1024];
        while !shown.contains(words) {
            let count = self.keyboard.read(&mut buffer).expect("an open terminal");
            shown += &String::from_utf8_lossy(&buffer[..count]);
        }
        shown
    }

    /// Stops the output of programs, as ^S does, or continues it.
    pub fn stop(&self, is_stopped: bool) {
        let action = if is_stopped {
            Action::OOff
        } else {
            Action::OOn
        };
        tcflow(&self.inside, action).expect("a terminal");
    }

    /// Types `keys` at the keyboard; `\x03` is ^C.
    pub fn types(&mut self, keys: &str) {
        self.keyboard
            .write_all(keys.as_bytes())
            .expect("a terminal takes keys");
    }
}
