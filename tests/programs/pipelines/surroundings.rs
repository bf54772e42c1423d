//! What rdpipe inherits from its parent, and what its commands inherit: ignored signals, core dumps, closed standard
//! streams; and surroundings that lack what programs take for granted: descriptors, threads, memory, `/dev/null`,
//! `/proc`. Each program then does its work, or ends with a sentence that names what is missing.

use std::{
    fs::{self, Permissions},
    io::Write,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;

use super::{
    RDCAT, RDCP, RDFORWARD, RDPERF, RDPIPE, RDRECV, RDSEND,
    local::{parent, pids},
};
use crate::support::programs::{
    End, Place, Setup, eventually, hosts::Outcome, install, key, local_hosts::rdpipe, program,
    receiver, skip,
};

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

#[test]
fn nohup_keeps_its_meaning_inside_a_stage() {
    let command = ":echo pids $PPID $$ >&2; read line; echo $line; grep SigIgn /proc/self/status";
    let setup = after("trap '' HUP INT", RDPIPE, &[command]);
    let mut running = setup.stdin(Stdio::piped()).start();
    let mut stdin = running.stdin();
    let pids = pids(&running);
    let (worker, command) = (pids[0], pids[1]);
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
    let worker = pids(&running)[0];
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
    let pids = pids(&running);
    let (worker, command) = (pids[0], pids[1]);
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

/// Runs a program in the directory of `place`, with the standard stream closed that `redirection` closes.
#[track_caller]
fn run_redirected(place: &Place, redirection: &str, path: &str, arguments: &[&str]) -> End {
    let script = format!("cd \"$1\" && shift && exec \"$@\" {redirection}");
    let setup = program("/bin/sh", "a shell").args(["-c", &script, "sh"]);
    let setup = setup.arg(place.directory()).arg(path).args(arguments);
    setup.env("SHELL", "/bin/sh").start().end()
}

#[test]
fn a_standard_stream_of_the_agent_is_no_file_of_a_stage() {
    let place = Place::new();
    place.file("f", b"data\n");
    for segments in [
        &[":cat f", ":> /dev/stdout"][..],
        &[":cat f", ":>> /dev/fd/1"],
        &[":< /dev/stdin", ":> to"],
    ] {
        let end = run_redirected(&place, "", RDPIPE, segments);
        assert_ne!(end.code(), 0, "{segments:?}: {end:?}");
        assert!(
            format!("{end:?}").contains("descriptor of the agent"),
            "{end:?}"
        );
    }
    assert_eq!(place.names(), ["f", "old"]);
}

#[test]
fn output_to_a_closed_stdout_is_an_error() {
    let place = Place::new();
    place.file("f", b"data\n");
    let programs: &[(&str, &[&str])] = &[
        (RDCAT, &[":f"]),
        (RDCP, &["f", "-"]),
        (RDCP, &["--checksum", "f", "to"]),
        (RDCP, &["--dry-run", "f", "to"]),
        (RDCP, &["--json", "f", "to"]),
        (RDCP, &["--new-key", "client"]),
        (RDFORWARD, &["--version"]),
        (RDFORWARD, &["run", "--help"]),
        (RDPERF, &["--check", ":", "unreached"]),
        (RDPIPE, &["-q", ":cat f"]),
        (RDPIPE, &["-q", ":cat f", ":cat"]),
        (RDPIPE, &["--dry-run", ":cat f"]),
        (RDRECV, &["--help"]),
        (RDSEND, &["--version"]),
    ];
    for (path, arguments) in programs {
        let end = run_redirected(&place, ">&-", path, arguments);
        end.fails(1, &["cannot write standard output: it is closed"]);
    }
    assert_eq!(place.names(), ["f", "old"], "work whose result was lost");
}

#[test]
fn a_receiver_with_a_closed_stdout_fails_both_ends() {
    let place = Place::new();
    let script = "exec \"$0\" 0 \"$1\" >&-";
    let receiver = program("/bin/sh", "a shell").args(["-c", script, RDRECV]);
    let receiver = receiver.arg(crate::support::programs::key()).start();
    let sender = crate::support::programs::sender(receiver.port(), "");
    let sender = sender.arg(place.file("f", b"data\n")).start();
    let cause = "cannot open stdout for writing: it is closed";
    sender.end().fails(3, &[cause]);
    receiver.end().fails(1, &[cause]);
}

#[test]
fn input_from_a_closed_stdin_is_an_error() {
    let place = Place::new();
    let cause = "cannot read standard input: it is closed";
    let programs: &[(&str, &[&str], i32, &str)] = &[
        (RDCP, &["-", "to"], 1, cause),
        (RDPIPE, &["-q", ":> old"], 2, "there is nothing to write"),
        (RDPIPE, &[":cat", ":cat"], 1, "Bad file descriptor"),
    ];
    for (path, arguments, code, words) in programs {
        let end = run_redirected(&place, "<&-", path, arguments);
        let text = end.exits(*code);
        assert!(text.contains(words), "{text}");
    }
    assert_eq!(
        place.names(),
        ["old"],
        "an empty file in place of the input"
    );
    let receiver = receiver("").start();
    let script = "exec \"$0\" 127.0.0.1 \"$1\" \"$2\" <&-";
    let sender = program("/bin/sh", "a shell").args(["-c", script, RDSEND]);
    let sender = sender.arg(receiver.port().to_string());
    let sender = sender.arg(crate::support::programs::key()).start();
    let cause = "cannot read stdin: it is closed";
    sender.end().fails(1, &[cause]);
    receiver.end().fails(3, &[cause]);
}

#[test]
fn a_closed_stream_that_no_program_uses_is_no_error() {
    let place = Place::new();
    place.file("f", b"data\n");
    let programs: &[(&str, &[&str])] = &[
        (RDCP, &["f", "copied"]),
        (RDPIPE, &[":cat f", ":> written"]),
        (RDPIPE, &[":cat f", ":cat > by-a-command"]),
        (RDPIPE, &[":true"]),
    ];
    for (path, arguments) in programs {
        run_redirected(&place, "<&- >&-", path, arguments).exits(0);
        run_redirected(&place, "<&- >&- 2>&-", path, arguments).exits(0);
    }
    for name in ["copied", "written", "by-a-command"] {
        assert_eq!(place.read(name), b"data\n", "{name}");
    }
}

#[test]
fn a_stdout_that_is_open_for_reading_only_is_an_error() {
    let place = Place::new();
    place.file("f", b"data\n");
    for option in ["--json", "--checksum", "--dry-run"] {
        let end = run_redirected(&place, "1<f", RDCP, &["-q", option, "f", "to"]);
        end.fails(
            1,
            &["cannot write standard output: it is closed, or not open for writing"],
        );
    }
}

/// A command line that begins with the path of a program. It copies the file `f` to the file `to`, or to stdout.
type Line = &'static [&'static str];

const WITH_AGENTS: [Line; 4] = [
    &[RDCP, "-q", "f", "to"],
    &[RDCAT, "-q", ":f"],
    &[RDPIPE, "-q", ":< f", ":> to"],
    &[
        RDPERF,
        "--check",
        "--rsh",
        "./rsh",
        "--remote-rdpipe",
        RDPIPE,
        "h1",
    ],
];

/// Lines that need no agent. None of them finds another program.
const ALONE: [Line; 4] = [
    &[RDRECV, "--bind", "192.0.2.1", "0", "a key that is long"],
    &[RDSEND, "256.0.0.1", "1", "a key that is long"],
    &[RDCP, "--serve", "--root", ".", "--key-file", "missing"],
    &[RDFORWARD, "serve", "--allow", "1", "--key-file", "missing"],
];

/// Makes a directory with the file that the lines copy, and a program that starts the agents of other hosts on this
/// machine.
fn place() -> Place {
    let place = Place::new();
    place.file("f", b"data\n");
    place.program("rsh", b"#!/bin/sh\nshift\nexec \"$@\"\n");
    place
}

/// Runs a line in the directory of `place`, after `before`: shell commands that end with `exec` and a program that runs
/// its arguments.
#[track_caller]
fn run(place: &Place, before: &str, line: Line) -> End {
    let script = format!("{before} \"$@\"");
    let setup = program("/usr/bin/env", "a program in poor surroundings");
    let setup = setup.arg("-C").arg(place.directory());
    setup
        .args(["unshare", "-m", "sh", "-c", &script, "sh"])
        .args(line)
        .start()
        .end()
}

/// Fails if the program has panicked, or has failed without a message.
#[track_caller]
fn check(end: &End, line: Line) {
    let text = &end.stderr;
    for word in ["panicked", "memory allocation of"] {
        assert!(!text.contains(word), "{line:?}:\n{text}");
    }
    assert!(
        end.code() == 0 || !text.is_empty() || line[0] == RDPERF,
        "{line:?} failed without a sentence"
    );
}

/// Skips the calling test if this user cannot make a mount namespace.
fn has_namespaces() -> bool {
    let made = Command::new("unshare").args(["-m", "true"]).output();
    let has = made.is_ok_and(|output| output.status.success());
    if !has {
        skip("this user cannot make a mount namespace");
    }
    has
}

#[test]
fn too_few_descriptors_are_named() {
    if !has_namespaces() {
        return;
    }
    let place = place();
    // A shell and the loader need four.
    for limit in (4..=8).chain([10, 12, 15, 18, 21, 64]) {
        let before = format!("ulimit -n {limit}; exec");
        let is_few = limit <= 8;
        let alone = ALONE.into_iter().filter(|_| is_few);
        for line in WITH_AGENTS.into_iter().chain(alone) {
            if line[0] == RDPERF && limit > 15 {
                // A connection that finds no descriptor delays it by seconds.
                continue;
            }
            let end = run(&place, &before, line);
            check(&end, line);
            let is_named = end.stderr.contains("ulimit -n");
            assert!(!is_few || is_named, "{limit}, {line:?}: {}", end.stderr);
            if end.code() == 0 && line[0] == RDCAT {
                assert_eq!(end.stdout, b"data\n", "{limit}, {line:?}");
            } else if end.code() == 0 && line[0] != RDPERF {
                assert_eq!(place.read("to"), b"data\n", "{limit}, {line:?}");
                fs::remove_file(place.path("to")).unwrap();
            }
            assert!(end.code() == 0 || limit < 64, "{line:?}: {}", end.stderr);
        }
    }
}

#[test]
fn a_key_that_memory_does_not_suffice_for_is_an_error() {
    if !has_namespaces() {
        return;
    }
    let place = Place::new();
    for line in &ALONE[..2] {
        // The program and its threads fit, and the 19 MiB of the stretching do not fit beside them.
        let end = run(&place, "ulimit -v 28000; exec", line);
        check(&end, line);
        assert_ne!(end.code(), 0, "{line:?}");
    }
}

#[test]
fn a_missing_dev_null_is_named() {
    if !has_namespaces() {
        return;
    }
    let place = place();
    for line in WITH_AGENTS {
        let end = run(&place, "mount -t tmpfs none /dev && exec", line);
        check(&end, line);
        let text = &end.stderr;
        assert_ne!(end.code(), 0, "{line:?}: {text}");
        assert!(text.contains("/dev/null"), "{line:?}: {text}");
        assert!(!text.contains("there is no rdpipe"), "{line:?}: {text}");
    }
}

#[test]
fn a_missing_proc_is_named() {
    if !has_namespaces() {
        return;
    }
    let place = place();
    for line in WITH_AGENTS {
        let end = run(&place, "mount -t tmpfs none /proc && exec", line);
        check(&end, line);
        assert_ne!(end.code(), 0, "{line:?}");
        assert!(end.stderr.contains("/proc"), "{line:?}: {}", end.stderr);
    }
}

/// A user who owns no process on this machine.
const USER: u32 = 64_017;

/// Limits under which a copy or pipeline cannot start all of its threads, at one place or another.
const TOO_FEW: u32 = 16;

/// A limit under which all threads start.
const ENOUGH: u32 = 64;

#[test]
fn a_thread_that_cannot_be_started_is_a_sentence() {
    if !geteuid().is_root() {
        return skip("only root can become another user with a limit of its own");
    }
    let place = Place::new();
    fs::set_permissions(place.directory(), Permissions::from_mode(0o777)).unwrap();
    place.file("f", b"data\n");
    for (name, path) in [
        ("rdcat", env!("CARGO_BIN_EXE_rdcat")),
        ("rdcp", env!("CARGO_BIN_EXE_rdcp")),
        ("rdpipe", env!("CARGO_BIN_EXE_rdpipe")),
        ("rdsend", env!("CARGO_BIN_EXE_rdsend")),
    ] {
        install(Path::new(path), &place.path(name));
    }
    // The stages connect by the names of their hosts, which need a resolver.
    place.program("rsh", b"#!/bin/sh\nshift\nexec \"$@\"\n");
    let lines = [
        "./rdcp -q f copied",
        "./rdcat :f",
        "./rdpipe -q ':cat f' ':cat > by-a-command'",
        "./rdpipe -q ':< f' ':> written'",
        "./rdpipe -q --rsh ./rsh --remote-rdpipe ./rdpipe 'h1:cat f' 'h2:cat > at-another-host'",
        "./rdsend localhost 1 key12345678",
    ];
    for limit in (0..=TOO_FEW).chain([ENOUGH]) {
        for line in lines {
            if line.contains("rdsend") && limit > 2 {
                // It has the thread of the resolver, and tries for seconds to connect.
                continue;
            }
            if line.contains("rsh") && ![13, ENOUGH].contains(&limit) {
                // A name that cannot be looked up is tried for a second.
                continue;
            }
            let limits = format!("--nproc={limit}:{limit}");
            let user = format!("--reuid={USER}");
            let script = format!("cd '{}' && exec {line}", place.directory().display());
            let setup = program("/usr/bin/env", "a user with few threads");
            let setup = setup.args(["prlimit", &limits, "setpriv", &user]);
            let setup = setup.args(["--clear-groups", "sh", "-c", &script]);
            let end = setup.start().end();
            let text = &end.stderr;
            assert!(!text.contains("panicked"), "{line}, {limit}:\n{text}");
            assert!(
                end.code() == 0 || !text.is_empty(),
                "{line} failed without a sentence, at {limit}"
            );
        }
    }
    for name in ["copied", "written"] {
        assert_eq!(place.read(name), b"data\n", "{ENOUGH} are too few");
    }
}
