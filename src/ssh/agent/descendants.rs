//! The processes below this one: reaps every child, adopted ones included; finds all descendants through `/proc`, and
//! kills them.
//!
//! A process gets its signal through a pidfd, after `/proc` has shown that it still has the start and the parent that
//! were listed, so a reused number is never hit. The process groups that own children lead are signalled as a whole,
//! while the reaper pauses: a leader that is not reaped keeps its number. The command's stdin stays open until the
//! command is dead.
//!
//! One thread reaps every child, the command included. The command is started by tokio's `Command`, whose `Child` is
//! kept and never polled: two threads that wait would take each other's statuses. No other part of a worker may start a
//! process.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    sync::{
        Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use rustix::{
    io::{Errno, retry_on_intr},
    process::{
        Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpid,
        kill_process, kill_process_group, pidfd_open, pidfd_send_signal, wait, waitid,
    },
};

use crate::ssh::stage::Status;

/// How long a process may run after SIGTERM: it may have temporary files to remove.
const GRACE: Duration = Duration::from_secs(1);

/// How long SIGKILL is sent again and again. A process that is left after this time belongs to another user, or hangs
/// in the kernel.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long SIGKILL is sent from the top of the tree down. Then it is sent to all at once: the parent of a process may
/// be one that this user cannot kill.
const TOP_DOWN: Duration = Duration::from_millis(500);

/// The pause between two rounds of SIGKILL: long enough to reap the dead, so that the next round finds only processes
/// that were started in between.
const ROUND: Duration = Duration::from_millis(10);

/// Ends every descendant of this process: with SIGTERM, and after one second with SIGKILL. Another thread must reap
/// them at the same time, and send to `ended` or drop its sender when none is left.
/// The error is the names of the processes that could not be killed.
pub(super) fn end_all(ended: &Receiver<()>) -> Result<(), Vec<String>> {
    let is_over = |limit| !matches!(ended.recv_timeout(limit), Err(RecvTimeoutError::Timeout));
    signal_all(Signal::TERM, false);
    // A stopped process handles SIGTERM only after it is continued.
    signal_all(Signal::CONT, false);
    if is_over(GRACE) {
        return Ok(());
    }
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        signal_all(Signal::KILL, started.elapsed() < TOP_DOWN);
        if is_over(ROUND) {
            return Ok(());
        }
    }
    let left = Processes::read().descendants(getpid());
    Err(left.iter().map(Process::to_string).collect())
}

/// Sends `signal` to every descendant, and first to the process groups that this process's own children lead. The
/// signal to a group reaches all its processes at once, even if they fork faster than `/proc` can be read.
///
/// With `is_top_down` the groups that other descendants lead get no signal: such a leader becomes a child of this
/// process when its parent is dead, and the next round signals its group as a whole.
fn signal_all(signal: Signal, is_top_down: bool) {
    // While no child is reaped, the number of a child's group cannot become that of another group.
    let paused = pause();
    let descendants = Processes::read().descendants(getpid());
    let (own, others): (Vec<_>, Vec<_>) = descendants
        .iter()
        .filter(|process| process.group == Some(process.pid))
        .partition(|process| process.parent == Some(getpid()));
    for leader in own {
        let _ = kill_process_group(leader.pid, signal);
    }
    let later: HashSet<_> = others.iter().map(|leader| leader.pid).collect();
    for process in &descendants {
        if !is_top_down || !process.group.is_some_and(|group| later.contains(&group)) {
            // The process may have exited already, or belong to another user: the next round finds out.
            let _ = process.send(signal);
        }
    }
    drop(paused);
}

/// A process, as `/proc/PID/stat` describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Process {
    pid: Pid,
    parent: Option<Pid>,
    /// None for a group whose leader is outside this PID namespace: its number there is 0.
    group: Option<Pid>,
    /// The start of the process, in ticks since the start of the machine.
    started: u64,
    name: String,
}

impl Process {
    /// Reads the process that has this number now.
    fn read(pid: Pid) -> Option<Self> {
        let stat = fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
        Self::parse(&String::from_utf8_lossy(&stat))
    }

    /// Parses `/proc/PID/stat`. The name of the process may contain spaces and parentheses.
    fn parse(stat: &str) -> Option<Self> {
        let (pid, rest) = stat.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(") ")?;
        let mut fields = rest.split_ascii_whitespace().skip(1);
        // A process that was reaped while its line was read has the group -1, and counts as gone.
        let mut number = || fields.next()?.parse::<i32>().ok().filter(|raw| *raw >= 0);
        let (parent, group) = (number()?, number()?);
        // Field 22 of proc_pid_stat(5); the group is field 5.
        let started = fields.nth(16)?.parse().ok()?;
        Some(Self {
            pid: Pid::from_raw(pid.parse().ok().filter(|raw| *raw >= 0)?)?,
            parent: Pid::from_raw(parent),
            group: Pid::from_raw(group),
            started,
            name: name.to_owned(),
        })
    }

    /// Sends a signal to this process, and never to another one that has its number by now. The descriptor of a process
    /// stays that of the process, so what `/proc` says after it was opened is true of the process that gets the signal.
    fn send(&self, signal: Signal) -> io::Result<()> {
        let handle = match pidfd_open(self.pid, PidfdFlags::empty()) {
            Ok(handle) => Some(handle),
            Err(Errno::SRCH) => return Err(Errno::SRCH.into()),
            // Linux before 5.3 has no descriptors of processes, and some containers forbid them.
            Err(_) => None,
        };
        if !Self::read(self.pid).is_some_and(|now| self.became(&now)) {
            return Err(Errno::SRCH.into());
        }
        match handle {
            Some(handle) => pidfd_send_signal(&handle, signal)?,
            None => kill_process(self.pid, signal)?,
        }
        Ok(())
    }

    /// Returns true if `now` is the same process, later: with the same start, and with the same parent or with this
    /// process, which adopts the children of its dead descendants.
    fn became(&self, now: &Self) -> bool {
        let is_ours = now.parent == self.parent || now.parent == Some(getpid());
        now.started == self.started && is_ours
    }
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.name, self.pid.as_raw_nonzero())
    }
}

/// All processes of this machine that this process may read.
struct Processes(Vec<Process>);

impl Processes {
    fn read() -> Self {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let stats = entries.filter_map(|entry| {
            let is_process = entry.file_name().as_encoded_bytes()[0].is_ascii_digit();
            let stat = is_process.then(|| fs::read(entry.path().join("stat")).ok());
            Process::parse(&String::from_utf8_lossy(&stat??))
        });
        Self(stats.collect())
    }

    /// Returns the children of `root`, their children, and so on.
    fn descendants(&self, root: Pid) -> Vec<Process> {
        let mut children: HashMap<_, Vec<_>> = HashMap::new();
        for process in &self.0 {
            children.entry(process.parent).or_default().push(process);
        }
        let mut found = Vec::new();
        let mut next = vec![root];
        while let Some(parent) = next.pop() {
            // The children are removed from the map: a table that changed while it was read may contain a cycle.
            for child in children.remove(&Some(parent)).unwrap_or_default() {
                next.push(child.pid);
                found.push(child.clone());
            }
        }
        found
    }
}

/// The body of the fuzz target: any lines are parsed or left out, and a search in them ends.
#[cfg(any(test, fuzzing))]
pub fn fuzz(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let table = Processes(text.lines().filter_map(Process::parse).collect());
    for root in table.0.iter().take(4).map(|process| process.pid) {
        let found = table.descendants(root);
        // A number that appears twice in the table is two processes of it.
        assert!(found.len() <= table.0.len());
        assert!(found.iter().all(|process| process.parent.is_some()));
    }
}

/// Reaps children until none is left, and calls `reaped` for each. Blocks.
///
/// No other thread of the process may wait for a child, because the kernel returns each status only once.
pub(super) fn reap_all(mut reaped: impl FnMut(Pid, Status)) -> io::Result<()> {
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    loop {
        // Waits for a child that has exited, and leaves it a zombie, whose number is its own until it is reaped.
        match retry_on_intr(|| waitid(WaitId::All, ended)) {
            Ok(_) => {}
            Err(Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let paused = pause();
        let child = retry_on_intr(|| wait(WaitOptions::NOHANG));
        drop(paused);
        if let Ok(Some((pid, status))) = child {
            if let Some(status) = status_of(status) {
                reaped(pid, status);
            }
        }
    }
}

/// Held while [`reap_all`] reaps a child. A process has one reaper.
static REAPING: Mutex<()> = Mutex::new(());

/// Pauses [`reap_all`] until the result is dropped: the numbers of this process's own children, and of the process
/// groups that they lead, cannot belong to other processes meanwhile.
pub(super) fn pause() -> MutexGuard<'static, ()> {
    REAPING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the status of a process that has ended, or none if the process was only stopped or continued.
pub(super) fn status_of(status: WaitStatus) -> Option<Status> {
    let byte = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    let exited = status.exit_status().map(|code| Status::Exited(byte(code)));
    exited.or_else(|| {
        status
            .terminating_signal()
            .map(|signal| Status::Signaled(byte(signal)))
    })
}

/// The status of a stage, merged from its processes: the command's if the command failed, else that of the first
/// adopted process that failed. (In `tee >(zfs recv t)` a failed `zfs` fails the stage.)
#[derive(Debug, Default)]
pub(super) struct Merged {
    command: Option<Status>,
    adopted: Option<Status>,
}

impl Merged {
    /// Adds the status of a process that has ended: of the command if `is_command`, else of an adopted process.
    pub(super) fn add(&mut self, is_command: bool, status: Status) {
        if is_command {
            self.command = Some(status);
        } else if is_failure(status) && self.adopted.is_none() {
            self.adopted = Some(status);
        }
    }

    /// Returns the status of the stage, or none if the command has not ended yet.
    pub(super) fn status(&self) -> Option<Status> {
        match self.command? {
            Status::Exited(0) => Some(self.adopted.unwrap_or(Status::Exited(0))),
            status => Some(status),
        }
    }
}

/// Returns true if an adopted process has failed. A death by SIGPIPE is not a failure: a shell ignores it as well
/// (`head -1 <(yes)`).
fn is_failure(status: Status) -> bool {
    status != Status::Exited(0) && !is_broken_pipe(status)
}

/// Returns true for a death by SIGPIPE, and for 141, with which a shell reports one.
pub(super) fn is_broken_pipe(status: Status) -> bool {
    matches!(status, Status::Signaled(13) | Status::Exited(141))
}

/// Returns the signal that ended a process, also if a shell reports it as an exit status of 128+n.
pub(super) fn signal_in(status: Status) -> Option<u8> {
    match status {
        Status::Signaled(number) => Some(number),
        // 64 is the highest signal number.
        Status::Exited(code @ 129..=192) => Some(code - 128),
        Status::Exited(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt, process::Command};

    use super::*;

    fn pid(number: i32) -> Pid {
        Pid::from_raw(number).unwrap()
    }

    /// The fields of `/proc/PID/stat` from the eighth to the start of the process.
    const REST: &str = "-1 4194560 0 0 0 0 1 2 0 0 20 0 1 0 4711";

    #[test]
    fn a_process_that_got_the_number_of_a_descendant_is_not_killed() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let found = Process::read(Pid::from_child(&child)).unwrap();
        // What was listed before, under the number that the child has now: a process that started earlier, and one of
        // another parent.
        let earlier = Process {
            started: found.started - 1,
            ..found.clone()
        };
        let elsewhere = Process {
            parent: Some(pid(1)),
            ..found.clone()
        };
        assert!(earlier.send(Signal::KILL).is_err());
        let now = Process {
            parent: Some(pid(2)),
            ..found.clone()
        };
        assert!(!elsewhere.became(&now));
        assert_eq!(
            child.try_wait().unwrap(),
            None,
            "another process was killed"
        );
        // The child itself is killed, also if another process was its parent when it was listed.
        elsewhere.send(Signal::KILL).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert!(
            found.send(Signal::KILL).is_err(),
            "there is no such process"
        );
    }

    #[test]
    fn a_process_name_may_contain_parentheses_and_spaces() {
        let line = "42 (a) S 1 (b) R 7 41 40 0 -1 4194560 0 0 0 0 1 2 0 0 20 0 1 0 4711 9";
        let process = Process::parse(line).unwrap();
        assert_eq!(process.name, "a) S 1 (b");
        assert_eq!((process.pid, process.parent), (pid(42), Some(pid(7))));
        assert_eq!(
            (process.group, process.started, process.to_string()),
            (Some(pid(41)), 4711, "a) S 1 (b (42)".into())
        );
        let init = format!("1 (init) S 0 1 1 0 {REST}");
        assert_eq!(Process::parse(&init).unwrap().parent, None);
        // In a container whose first process did not make a session, the group is that of a process outside.
        let inside = format!("42 (sh) S 7 0 0 0 {REST}");
        assert_eq!(Process::parse(&inside).unwrap().group, None);
        assert_eq!(Process::parse("1 (init) S 0 1 1 0"), None);
        assert_eq!(Process::parse("42 (sh"), None);
        assert_eq!(Process::parse(""), None);
    }

    #[test]
    fn a_process_reaped_while_it_is_read_counts_as_gone() {
        let line = format!("42 (sh) X 0 -1 -1 0 {REST}");
        assert_eq!(Process::parse(&line), None);
    }

    #[test]
    fn grandchildren_are_found_and_other_processes_are_not() {
        let table = [(2, 1), (3, 2), (4, 3), (5, 1), (6, 4), (7, 5)].map(|(number, parent)| {
            let line = format!("{number} (x) S {parent} {number} 0 0 {REST}");
            Process::parse(&line).unwrap()
        });
        let found = Processes(table.to_vec()).descendants(pid(2));
        let mut found: Vec<_> = found.iter().map(|process| process.pid).collect();
        found.sort_by_key(|pid| pid.as_raw_nonzero());
        assert_eq!(found, [pid(3), pid(4), pid(6)]);
    }

    #[test]
    fn this_process_is_a_descendant_of_its_parent() {
        let parent = rustix::process::getppid().unwrap();
        let found = Processes::read().descendants(parent);
        assert!(found.iter().any(|process| process.pid == getpid()));
    }

    fn merged(processes: &[(bool, Status)]) -> Option<Status> {
        let mut merged = Merged::default();
        for (is_command, status) in processes {
            merged.add(*is_command, *status);
        }
        merged.status()
    }

    #[test]
    fn a_stage_has_the_status_of_its_command_or_of_the_first_adopted_process_that_failed() {
        use Status::{Exited, Signaled};
        let (command, adopted) = (true, false);
        assert_eq!(merged(&[]), None);
        assert_eq!(merged(&[(adopted, Exited(3))]), None);
        let of = |status, others: [Status; 2]| {
            let [first, second] = others;
            merged(&[(adopted, first), (command, status), (adopted, second)]).unwrap()
        };
        assert_eq!(of(Exited(0), [Exited(0), Exited(0)]), Exited(0));
        assert_eq!(of(Exited(0), [Exited(0), Exited(3)]), Exited(3));
        assert_eq!(of(Exited(0), [Signaled(9), Exited(3)]), Signaled(9));
        assert_eq!(of(Exited(2), [Signaled(9), Exited(3)]), Exited(2));
        assert_eq!(of(Exited(0), [Signaled(13), Exited(141)]), Exited(0));
        assert_eq!(of(Signaled(13), [Exited(0), Exited(0)]), Signaled(13));
    }

    #[test]
    fn a_signal_is_found_in_the_exit_status_of_a_shell() {
        assert_eq!(signal_in(Status::Exited(137)), Some(9));
        assert_eq!(signal_in(Status::Signaled(9)), Some(9));
        for code in [0, 1, 127, 128, 255] {
            assert_eq!(signal_in(Status::Exited(code)), None);
        }
    }
}
