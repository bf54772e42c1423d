//! What rdpipe inherits from its parent, and what its commands inherit: ignored signals and core dumps.

use std::{
    fs::{self, Permissions},
    io::Write,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Stdio,
};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;

use super::RDPIPE;
use crate::support::programs::hosts::Outcome;
use crate::support::programs::local_hosts::rdpipe;
use crate::support::programs::{Place, Running, Setup, eventually, install, key, program};

/// Returns a program with these arguments, which a shell starts after `before`. The shell is bash, because dash resets
/// the ignoring of SIGCHLD.
fn after(before: &str, path: &str, arguments: &[&str]) -> Setup {
    let shell = program("/bin/bash", "rdpipe").env("SHELL", "/bin/bash");
    let line = format!("{before}; exec \"$0\" \"$@\"");
    shell.arg("-c").arg(line).arg(path).args(arguments)
}

/// Returns the signals that a line `SigIgn:` of `/proc/PID/status` names, as a mask.
fn mask(line: &[u8]) -> u64 {
    let line = String::from_utf8_lossy(line);
    let number = line.trim().rsplit('\t').next().expect("a number");
    u64::from_str_radix(number, 16).expect("a number")
}

fn bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}

#[test]
fn a_success_is_a_success_while_sigchld_is_ignored() {
    let ignored = "trap '' CHLD";
    let grep = ["SigIgn", "/proc/self/status"];
    let control = after(ignored, "/bin/grep", &grep).start().end();
    assert_ne!(mask(&control.stdout) & bit(Signal::CHILD), 0);
    after(ignored, RDPIPE, &[":echo hello"])
        .start()
        .end()
        .is("hello\n");
    let end = after(ignored, RDPIPE, &[":exit 3", ":cat"]).start().end();
    end.tells(3, &["stage 1 (here) exited with 3"]);
    // A command gets the default.
    let end = after(ignored, RDPIPE, &[":grep SigIgn /proc/self/status"]);
    let end = end.start().end();
    end.exits(0);
    assert_eq!(mask(&end.stdout) & bit(Signal::CHILD), 0);
    let place = Place::new();
    let file = format!(":{}", place.old());
    let end = after(ignored, env!("CARGO_BIN_EXE_rdcat"), &[&file]);
    end.start().end().is(place.read("old"));
}

/// Returns the number of the process's parent.
fn parent(id: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{id}/status")).expect("it runs");
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("PPid:"));
    line.expect("a parent").trim().parse().expect("a number")
}

/// Returns the worker and the command of the first stage, which the command prints on stderr after the word `pids`.
fn pids(running: &Running) -> (u32, u32) {
    running.said("its pids", |text| {
        let line = text.lines().find_map(|line| line.split_once("pids "));
        let mut pids = line.filter(|_| text.ends_with('\n'))?.1.split(' ');
        Some((pids.next()?.parse().ok()?, pids.next()?.parse().ok()?))
    })
}

#[test]
fn nohup_keeps_its_meaning_inside_a_stage() {
    let command = ":echo pids $PPID $$ >&2; read line; echo $line; grep SigIgn /proc/self/status";
    let setup = after("trap '' HUP INT", RDPIPE, &[command]);
    let mut running = setup.stdin(Stdio::piped()).start();
    let mut stdin = running.stdin();
    let (worker, command) = pids(&running);
    for id in [running.id(), parent(worker), worker, command] {
        let id = Pid::from_raw(i32::try_from(id).expect("a number"));
        for signal in [Signal::HUP, Signal::INT] {
            kill_process(id.expect("a process"), signal).expect("it runs");
        }
    }
    stdin.write_all(b"still here\n").expect("it runs");
    drop(stdin);
    let end = running.end();
    end.exits(0);
    let ignored = end.stdout.strip_prefix(b"still here\n").expect("its line");
    let both = bit(Signal::HUP) | bit(Signal::INT);
    assert_eq!(
        mask(ignored) & both,
        both,
        "the command does not ignore them"
    );
}

/// Waits until the process makes no core dump: a process that starts a command may, for a moment.
fn makes_no_dump(id: u32) {
    eventually("a process that makes no core dump", || {
        let limits = fs::read_to_string(format!("/proc/{id}/limits")).expect("it runs");
        let mut lines = limits.lines();
        let limit = lines.find_map(|line| line.strip_prefix("Max core file size"));
        let limit = limit.and_then(|limit| limit.split_whitespace().next());
        let filter = fs::read_to_string(format!("/proc/{id}/coredump_filter"));
        let is_empty = filter.expect("it runs").trim() == "00000000";
        (matches!(limit, Some("0" | "1")) && is_empty).then_some(())
    });
}

#[test]
fn a_crash_leaves_no_core_dump_with_a_key() {
    let before = "ulimit -S -c $(ulimit -H -c)";
    let receiver = after(before, env!("CARGO_BIN_EXE_rdrecv"), &["0", key()]).start();
    receiver.port();
    makes_no_dump(receiver.id());

    let command = ":echo pids $PPID $$ >&2; read line";
    let setup = after(before, RDPIPE, &[command]);
    let mut running = setup.stdin(Stdio::piped()).start();
    let stdin = running.stdin();
    let (worker, _) = pids(&running);
    for id in [running.id(), parent(worker), worker] {
        makes_no_dump(id);
    }
    drop(stdin);
    running.end().exits(1);
}

#[test]
fn a_command_may_leave_a_core_dump_as_without_rdpipe() {
    let before = "ulimit -S -c $(ulimit -H -c)";
    let line = "ulimit -c; cat /proc/self/coredump_filter";
    let plain = after(before, "/bin/bash", &["-c", line]).start().end();
    plain.exits(0);
    let staged = format!(":{line}");
    let in_stage = after(before, RDPIPE, &[&staged]).start().end();
    in_stage.is(&plain.stdout);
}

/// Returns the pipe or file that a descriptor of a process leads to.
fn target(id: u32, descriptor: &str) -> Option<String> {
    let path = format!("/proc/{id}/fd/{descriptor}");
    let target = fs::read_link(path).ok()?;
    Some(target.to_string_lossy().into_owned())
}

#[test]
fn the_guard_holds_the_stdin_of_a_command_for_a_user_who_is_not_root() {
    let mut setup = rdpipe(&[":echo pids $PPID $$ >&2; cat"]);
    // Another user cannot run the program where it is, in a directory of root's.
    let copy = TempDir::new().expect("a directory");
    if geteuid().is_root() {
        let path = copy.path().join("rdpipe");
        install(Path::new(RDPIPE), &path);
        fs::set_permissions(copy.path(), Permissions::from_mode(0o755)).expect("its owner");
        setup = program(path.to_str().expect("a plain path"), "rdpipe")
            .env("SHELL", "/bin/bash")
            .arg(":echo pids $PPID $$ >&2; cat")
            .user(65534);
    }
    let mut running = setup.stdin(Stdio::piped()).start();
    let open = running.stdin();
    let (worker, command) = pids(&running);
    let stdin = target(command, "0").expect("a command has a stdin");
    assert!(stdin.starts_with("pipe:"), "{stdin}");
    let guard = parent(worker);
    let held = fs::read_dir(format!("/proc/{guard}/fd")).expect("it runs");
    let mut held = held.flatten().map(|entry| entry.file_name());
    let is_held =
        held.any(|number| target(guard, &number.to_string_lossy()) == Some(stdin.clone()));
    assert!(is_held, "the guard does not hold {stdin}");
    drop(open);
    running.end().exits(0);
}
