//! Every process that this one has started, and their children: found through `/proc`, and killed.

use std::{
    collections::{HashMap, HashSet},
    fs,
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, getpgrp, getpid, kill_process, kill_process_group};

/// How long a process may take to end by itself after SIGTERM: to remove its temporary files, say.
const GRACE: Duration = Duration::from_secs(1);

/// How long SIGKILL is tried. What is left then belongs to another user, or hangs in the kernel.
const PATIENCE: Duration = Duration::from_secs(2);

/// Pause between two rounds of SIGKILL: long enough for the dead to be reaped, so that the next
/// round sees only those that were started in between.
const ROUND: Duration = Duration::from_millis(10);

/// Ends every descendant of this process, in order if possible, and by force after a second.
/// `ended` hangs up or delivers when none is left: another thread reaps them at the same time.
///
/// # Errors
///
/// Those that could not be killed, for a message.
pub(in crate::ssh::agent) fn end_all(ended: &Receiver<()>) -> Result<(), Vec<String>> {
    let is_over = |limit| !matches!(ended.recv_timeout(limit), Err(RecvTimeoutError::Timeout));
    signal_all(Signal::TERM);
    // A stopped process takes SIGTERM when it goes on, and not before.
    signal_all(Signal::CONT);
    if is_over(GRACE) {
        return Ok(());
    }
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        signal_all(Signal::KILL);
        if is_over(ROUND) {
            return Ok(());
        }
    }
    let left = Processes::read().descendants(getpid());
    Err(left.iter().map(Process::to_string).collect())
}

/// Sends `signal` to every descendant, and first to the process groups that they have made: that
/// reaches a whole group at once, also one that forks faster than it can be listed.
fn signal_all(signal: Signal) {
    let descendants = Processes::read().descendants(getpid());
    let pids: HashSet<_> = descendants.iter().map(|process| process.pid).collect();
    let groups: HashSet<_> = descendants.iter().map(|process| process.group).collect();
    for group in groups {
        if pids.contains(&group) && group != getpgrp() {
            let _ = kill_process_group(group, signal);
        }
    }
    for pid in pids {
        // Gone already, or not ours to kill: the next round will tell.
        let _ = kill_process(pid, signal);
    }
}

/// One line of the process table.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Process {
    pid: Pid,
    parent: Option<Pid>,
    group: Pid,
    name: String,
}

impl Process {
    /// Reads `/proc/PID/stat`. The name may contain anything, spaces and parentheses too.
    fn parse(stat: &str) -> Option<Self> {
        let (pid, rest) = stat.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(") ")?;
        let mut fields = rest.split(' ').skip(1);
        // A process that was reaped while its line was read has the group -1, and counts as gone.
        let mut number = || fields.next()?.parse::<i32>().ok().filter(|raw| *raw >= 0);
        let (parent, group) = (number()?, number()?);
        Some(Self {
            pid: Pid::from_raw(pid.parse().ok()?)?,
            parent: Pid::from_raw(parent),
            group: Pid::from_raw(group)?,
            name: name.to_owned(),
        })
    }
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.name, self.pid.as_raw_nonzero())
    }
}

/// The processes of this machine that we may see.
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

    /// The children of `root`, their children, and so on.
    fn descendants(&self, root: Pid) -> Vec<Process> {
        let mut children: HashMap<_, Vec<_>> = HashMap::new();
        for process in &self.0 {
            children.entry(process.parent).or_default().push(process);
        }
        let mut found = Vec::new();
        let mut next = vec![root];
        while let Some(parent) = next.pop() {
            // Removed, so that a table read while it changed cannot lead in a circle.
            for child in children.remove(&Some(parent)).unwrap_or_default() {
                next.push(child.pid);
                found.push(child.clone());
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pid(number: i32) -> Pid {
        Pid::from_raw(number).unwrap()
    }

    #[test]
    fn a_name_may_be_anything() {
        let line = "42 (a) S 1 (b) R 7 41 40 0 -1 4194560";
        let process = Process::parse(line).unwrap();
        assert_eq!(process.name, "a) S 1 (b");
        assert_eq!((process.pid, process.parent), (pid(42), Some(pid(7))));
        assert_eq!(
            (process.group, process.to_string()),
            (pid(41), "a) S 1 (b (42)".into())
        );
        assert_eq!(Process::parse("1 (init) S 0 1 1 0").unwrap().parent, None);
        assert_eq!(Process::parse("42 (sh"), None);
        assert_eq!(Process::parse(""), None);
    }

    #[test]
    fn a_process_reaped_while_it_is_read_counts_as_gone() {
        assert_eq!(Process::parse("42 (sh) X 0 -1 -1 0 -1 4194560"), None);
    }

    #[test]
    fn grandchildren_are_found_and_strangers_are_not() {
        let table = [(2, 1), (3, 2), (4, 3), (5, 1), (6, 4), (7, 5)].map(|(number, parent)| {
            Process::parse(&format!("{number} (x) S {parent} {number} 0")).unwrap()
        });
        let found = Processes(table.to_vec()).descendants(pid(2));
        let mut found: Vec<_> = found.iter().map(|process| process.pid).collect();
        found.sort_by_key(|pid| pid.as_raw_nonzero());
        assert_eq!(found, [pid(3), pid(4), pid(6)]);
    }

    #[test]
    fn this_process_is_its_parents() {
        let parent = rustix::process::getppid().unwrap();
        let found = Processes::read().descendants(parent);
        assert!(found.iter().any(|process| process.pid == getpid()));
    }
}
