//! The processes of a namespace, from /proc: the kernel's list of what was left behind.

use std::{fs, path::Path};

use rustix::process::{Pid, Signal, kill_process};

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
