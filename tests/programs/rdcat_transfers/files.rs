//! rdcat with files of other hosts: every byte is compared, and unreadable files are named.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::programs::hosts::{Network, Outcome, text};
use crate::support::programs::local_hosts::Hosts;
use crate::support::programs::{Running, eventually, install, program, random_bytes, rdrecv};

/// File names that a shell would split or expand.
const NAMES: [&str; 10] = [
    "two words ",
    " in front",
    "two\nlines",
    "it's \"quoted\" `here` $HOME \\",
    "*",
    "-n",
    "a:b",
    "< not an operator",
    "grüße ☃",
    "{host}",
];

fn operands(host: &str, names: &[&str]) -> Vec<String> {
    names.iter().map(|name| format!("{host}:{name}")).collect()
}

#[test]
fn file_names_are_taken_literally_and_one_session_serves_all() {
    let hosts = Hosts::new("echo \"$1\" >>\"${0%/*}/sessions\"");
    let mut all = String::new();
    for name in NAMES {
        let content = format!("this is {name:?}\n");
        hosts.file("h1", name, content.as_bytes());
        all += &content;
    }
    let operands = operands("h1", &NAMES);
    let operands: Vec<_> = operands.iter().map(String::as_str).collect();
    hosts.rdcat(&operands).start().end().is(all);
    let sessions = fs::read_to_string(hosts.directory().join("sessions"));
    assert_eq!(sessions.unwrap(), "h1\n");
}

#[test]
fn file_names_pass_through_ssh_unchanged() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let mut all = String::new();
    for name in NAMES {
        let content = format!("this is {name:?}\n");
        network.write("h1", name, content.as_bytes());
        all += &content;
    }
    network.write("h2", "last", b"of another host\n");
    network.write("ctl", "own", b"of this machine\n");
    all += "of another host\nof this machine\n";
    let mut operands = operands("h1", &NAMES);
    operands.extend(["root@h2:last".to_owned(), ":own".to_owned()]);
    network.rdcat(&operands).start().end().is(all);
    // A relative path begins in the home directory of the host; an absolute path names the same file.
    let path = network.file("h2", "last").display().to_string();
    let end = network.rdcat(["h2:last", &format!("h2:{path}")]).start();
    end.end().is("of another host\nof another host\n");
    let arguments = ["--remote-rdpipe", "/no/such/rdpipe", "h1:*", ":own"];
    let end = network.rdcat(arguments).start().end();
    end.tells(255, &["there is no rdpipe on h1", "/no/such/rdpipe"]);
    assert!(end.stdout.is_empty());
}

#[test]
fn unreadable_files_are_named_and_the_others_still_arrive() {
    let hosts = Hosts::new("");
    hosts.file("h1", "one", b"1\n");
    hosts.file("h1", "three", b"3\n");
    hosts.file("h2", "four", b"4\n");
    fs::create_dir(hosts.path("h1", "directory")).unwrap();
    let operands = [
        "me@h1:nosuch",
        "h1:one",
        "h1:/etc/nosuch",
        "h1:directory",
        "h1:three",
        "h2:no such",
        "h2:four",
    ];
    let end = hosts.rdcat(&operands).start().end();
    let expected = "\
rdcat: h1: nosuch: No such file or directory
rdcat: h1: /etc/nosuch: No such file or directory
rdcat: h1: directory: Is a directory
rdcat: h2: no such: No such file or directory
";
    assert_eq!(end.exits(1), expected);
    assert_eq!(end.stdout, b"1\n3\n4\n");
    // This file can be opened, and its first read fails.
    let end = hosts.rdcat(&["h1:/proc/self/mem", "h1:one"]).start().end();
    let text = "rdcat: h1: /proc/self/mem: Input/output error\n";
    assert_eq!((end.exits(1), &end.stdout[..]), (text, &b"1\n"[..]));
}

#[test]
fn a_file_without_permission_is_named_and_the_others_still_arrive() {
    let Some(network) = Network::new(1) else {
        return;
    };
    let secret = network.write("h1", "secret", b"private\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(secret, mode).unwrap();
    network.write("h1", "open", b"public\n");
    // A copy of rdpipe where the other user may run it.
    let own = network.own("h1/bin/rdpipe");
    install(Path::new(env!("CARGO_BIN_EXE_rdpipe")), &own);
    let end = network
        .rdcat(["guest@h1:secret", "guest@h1:open"])
        .start()
        .end();
    end.tells(1, &["rdcat: h1: secret: Permission denied\n"]);
    assert_eq!(end.stdout, b"public\n");
}

#[test]
fn a_big_file_arrives_whole() {
    let hosts = Hosts::new("");
    let data = random_bytes((96 << 20) + 7);
    hosts.file("h1", "big", &data);
    hosts.file("h2", "small", b"and a small one");
    let copy = hosts.directory().join("copy");
    let arguments = ["-v", "h1:big", "h1:big", "h2:small"];
    let end = hosts
        .rdcat(&arguments)
        .stdout(File::create(&copy).unwrap())
        .start()
        .end();
    let bytes = 2 * data.len() + 15;
    end.tells(0, &["h1 to rdcat: TCP ", &format!("Bytes {bytes}\n")]);
    let expected = [&data[..], &data, b"and a small one"].concat();
    assert!(fs::read(copy).unwrap() == expected);
}

#[test]
fn relative_home_and_local_paths_work() {
    let hosts = Hosts::new("");
    hosts.file("h1", "sub/file", b"relative\n");
    hosts.file("home", "a b/~", b"at home\n");
    let local = hosts.path("home", "a b/~").display().to_string();
    let setup = hosts.rdcat(&[
        "h1:sub/file",
        "h1:~/a b/~",
        ":~/a b/~",
        &format!(":{local}"),
    ]);
    let home = hosts.directory().join("home");
    setup
        .env("HOME", home)
        .start()
        .end()
        .is("relative\nat home\nat home\nat home\n");
    // Only a leading `~/` is expanded; everything else is taken literally.
    let end = hosts.rdcat(&["h1:$HOME", "h1:~root/x"]).start().end();
    end.tells(1, &["$HOME: No such file", "~root/x: No such file"]);
}

#[test]
fn a_host_without_an_agent_ends_rdcat() {
    let missing = "[ \"$1\" = h1 ] && { echo 'sh: 1: rdpipe: not found' >&2; exit 127; }";
    let hosts = Hosts::new(missing);
    let end = hosts.rdcat(&["h1:one", ":/etc/hostname"]).start().end();
    end.tells(255, &["there is no rdpipe on h1", "--remote-rdpipe PATH"]);
    assert!(end.stdout.is_empty());

    let hosts = Hosts::new("[ \"$1\" = h2 ] && exit 255");
    hosts.file("h1", "one", b"1\n");
    let operands = ["h1:nosuch", "h1:one", "h2:two", "h1:one"];
    let end = hosts.rdcat(&operands).start().end();
    end.tells(255, &["h1: nosuch: No such", "rdpipe on h2"]);
    assert_eq!(end.stdout, b"1\n");
}

#[test]
fn a_closed_stdout_ends_rdcat_quietly() {
    let hosts = Hosts::new("");
    let data = text(8 << 20);
    hosts.file("h1", "big", &data);
    let mut rdcat = hosts
        .rdcat(&["h1:nosuch", "h1:big", "h2:never"])
        .start_raw();
    let mut line = Vec::new();
    let mut stdout = BufReader::new(rdcat.take_stdout());
    stdout.read_until(b'\n', &mut line).unwrap();
    assert!(data.starts_with(&line));
    drop(stdout);
    let end = rdcat.end();
    assert_eq!(
        end.exits(141),
        "rdcat: h1: nosuch: No such file or directory\n"
    );
}

#[test]
fn an_output_that_fails_is_reported() {
    let hosts = Hosts::new("");
    hosts.file("h1", "one", b"1\n");
    let full = File::options().write(true).open("/dev/full").unwrap();
    let end = hosts.rdcat(&["h1:one"]).stdout(full).start().end();
    end.tells(
        1,
        &["cannot write standard output at byte 0: No space left"],
    );
}

/// A file whose read fails half-way ends rdcat with an error, and the next file does not follow it. The file is the
/// list of mappings of a process, which cannot be read further after the process is killed.
#[test]
fn a_file_that_breaks_off_is_not_joined_to_the_next() {
    let hosts = Hosts::new("");
    hosts.file("h1", "next", b"NEXT");
    let status = Command::new("mkfifo")
        .arg(hosts.path("h1", "wait"))
        .status();
    assert!(status.unwrap().success());
    let victim = rdrecv("0 key").start();
    victim.port();
    let maps = format!("/proc/{}/smaps", victim.id());
    let broken = format!("h1:{maps}");
    let operands = ["--chunk=4K", "--depth=2", "h1:wait", &broken, "h1:next"];
    let rdcat = hosts.rdcat(&operands).start();
    let mut fifo = File::options()
        .write(true)
        .open(hosts.path("h1", "wait"))
        .unwrap();
    // The first file is open, so rdcat is stopped in the middle of the transfer, and its pool fills up.
    fifo.write_all(b"x").unwrap();
    let worker = eventually("a reader of the FIFO", || reader(&hosts.path("h1", "wait")));
    rdcat.signal(Signal::STOP);
    rdcat.stopped();
    drop(fifo);
    let maps = std::path::Path::new(&maps);
    let at = eventually("a reader that waits", || {
        let before = position(worker, maps)?;
        std::thread::sleep(std::time::Duration::from_millis(100));
        // On a busy machine an unchanged position alone can mean that the worker waits for a processor.
        let stands = before > 0 && sleeps(worker) && position(worker, maps)? == before;
        stands.then_some(before)
    });
    victim.kill();
    drop(victim);
    rdcat.signal(Signal::CONT);
    let end = rdcat.end();
    let word = format!("rdcat: h1: cannot read {} at byte ", maps.display());
    end.tells(1, &[&word, "No such process"]);
    let printed = end.stdout.len() as u64 - 1;
    assert!(printed <= at, "{printed} of {at}");
    assert!(!end.stdout.ends_with(b"NEXT"));
}

/// Returns true if all threads of a process sleep, so that none waits for a processor.
fn sleeps(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let mut stats = tasks.map(|task| fs::read_to_string(task.path().join("stat")));
    stats.all(|stat| stat.is_ok_and(|stat| stat.contains(") S ")))
}

/// Returns the process, other than this one, that has this file open.
fn reader(path: &std::path::Path) -> Option<u32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| *pid != std::process::id() && position(*pid, path).is_some())
}

/// Returns the offset up to which a process has read the file, or `None` if it does not have it open.
fn position(pid: u32, path: &std::path::Path) -> Option<u64> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    let mut entries =
        entries.filter(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == path));
    let number = entries.next()?.file_name().into_string().ok()?;
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("pos:"))?;
    line.trim().parse().ok()
}

#[test]
fn a_signal_or_a_killed_agent_ends_rdcat() {
    let hosts = Hosts::new("");
    let wait = hosts.path("h1", "wait");
    hosts.file("h1", "x", b"");
    let status = Command::new("mkfifo").arg(&wait).status();
    assert!(status.unwrap().success());
    let begun = |operands: &[&str]| -> (Running, u32) {
        let rdcat = hosts.rdcat(operands).start();
        let worker = eventually("a reader of the FIFO", || reader(&wait));
        (rdcat, worker)
    };
    let (rdcat, worker) = begun(&["h1:wait"]);
    rdcat.signal(Signal::TERM);
    rdcat
        .end()
        .tells(143, &["interrupted by signal 15 (SIGTERM)"]);
    eventually("no agent", || {
        (!fs::exists(format!("/proc/{worker}")).unwrap()).then_some(())
    });
    let (rdcat, worker) = begun(&["h1:wait", "h1:x"]);
    let worker = Pid::from_raw(worker.cast_signed()).unwrap();
    kill_process(worker, Signal::KILL).unwrap();
    rdcat
        .end()
        .tells(255, &["the agent on h1 was killed by signal 9"]);
}

#[test]
fn stdin_is_left_alone() {
    let hosts = Hosts::new("");
    hosts.file("h1", "one", b"1\n");
    let mut rdcat = hosts.rdcat(&["h1:one"]).stdin(Stdio::piped()).start();
    let mut stdin = rdcat.stdin();
    let _ = stdin.write_all(b"not for rdcat\n");
    rdcat.end().is("1\n");
}

#[test]
fn a_command_line_without_files_is_explained() {
    let rdcat = |arguments: &[&str]| {
        let setup = program(env!("CARGO_BIN_EXE_rdcat"), "rdcat").args(arguments);
        setup.start().end()
    };
    let expected = "give HOST:PATH, :PATH for a file of this machine, or the ticket of rdcat -l";
    rdcat(&[]).tells(2, &[expected]);
    rdcat(&["h1"]).tells(2, &["\"h1\": give HOST:PATH"]);
    rdcat(&["h1:x", "/etc/motd"]).tells(2, &["\"/etc/motd\": give HOST:PATH"]);
    rdcat(&["h1:"]).tells(2, &["there is no file after the colon"]);
    rdcat(&["-ohost:x"]).tells(2, &["unexpected argument"]);
    rdcat(&["--", "-ohost:x"]).tells(2, &["it would be an option of ssh"]);
}
