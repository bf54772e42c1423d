//! Finds all descendants of this process through `/proc`, and kills them.

use std::{
    collections::{HashMap, HashSet},
    fs,
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, getpgrp, getpid, kill_process, kill_process_group};

/// How long a process may run after SIGTERM: it may have temporary files to remove.
const GRACE: Duration = Duration::from_secs(1);

/// How long SIGKILL is sent again and again. A process that is left after this time belongs to another user, or hangs
/// in the kernel.
const PATIENCE: Duration = Duration::from_secs(2);

/// The pause between two rounds of SIGKILL: long enough to reap the dead, so that the next round finds only processes
/// that were started in between.
const ROUND: Duration = Duration::from_millis(10);

/// Ends every descendant of this process: with SIGTERM, and after one second with SIGKILL. Another thread must reap
/// them at the same time, and send to `ended` or drop its sender when none is left.
///
/// # Errors
///
/// The names of the processes that could not be killed, for a message.
pub(in crate::ssh::agent) fn end_all(ended: &Receiver<()>) -> Result<(), Vec<String>> {
    let is_over = |limit| !matches!(ended.recv_timeout(limit), Err(RecvTimeoutError::Timeout));
    signal_all(Signal::TERM);
    // A stopped process handles SIGTERM only after it is continued.
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

/// Sends `signal` to the process groups that descendants have made, then to every descendant. The signal to a group
/// reaches all its processes at once, even if they fork faster than `/proc` can be read.
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
        // The process may have exited already, or belong to another user: the next round finds out.
        let _ = kill_process(pid, signal);
    }
}

/// A process, as `/proc/PID/stat` describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Process {
    pid: Pid,
    parent: Option<Pid>,
    group: Pid,
    name: String,
}

impl Process {
    /// Parses `/proc/PID/stat`. The name of the process may contain spaces and parentheses.
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
#[cfg(fuzzing)]
pub(in crate::ssh::agent) fn fuzz(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let table = Processes(text.lines().filter_map(Process::parse).collect());
    for root in table.0.iter().take(4).map(|process| process.pid) {
        let found = table.descendants(root);
        // A number that appears twice in the table is two processes of it.
        assert!(found.len() <= table.0.len());
        assert!(found.iter().all(|process| process.parent.is_some()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pid(number: i32) -> Pid {
        Pid::from_raw(number).unwrap()
    }

    #[test]
    fn a_process_name_may_contain_parentheses_and_spaces() {
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
    fn grandchildren_are_found_and_other_processes_are_not() {
        let table = [(2, 1), (3, 2), (4, 3), (5, 1), (6, 4), (7, 5)].map(|(number, parent)| {
            Process::parse(&format!("{number} (x) S {parent} {number} 0")).unwrap()
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
}
