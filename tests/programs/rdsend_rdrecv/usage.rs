//! rdsend and rdrecv as the manual and the help show them: every way to name files, hosts and keys; and the costs of a
//! stream: memory that does not grow with its length, and almost no processor time while it is idle.

use std::{
    env,
    fs::File,
    net::{Ipv6Addr, TcpListener},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use rustix::pipe::{PipeFlags, pipe_with};

use crate::support::programs::{
    Place, cpu_ticks, eventually, free_port, key, patience, peak_kib, program, random_bytes,
    rdrecv, rdsend, receiver, sender,
};

const BINARIES: &str = env!("CARGO_BIN_EXE_rdsend");

#[test]
fn the_commands_of_the_manual_work() {
    let place = Place::new();
    let data = random_bytes(3_000_001);
    let input = place.file("myfile", &data);
    let copy = File::create(place.path("mycopy")).unwrap();
    let port = free_port();
    let receiver = rdrecv(format!("{port} secret_key")).stdout(copy).start();
    let sender = rdsend(format!("localhost {port} secret_key"));
    let sender = sender.stdin(File::open(input).unwrap()).start();
    sender.end().exits(0);
    receiver.end().exits(0);
    assert!(place.read("mycopy") == data);
}

/// A table of words and recordings finds `hunter2`, and both ends say so in one line.
#[test]
fn a_key_that_can_be_guessed_gets_a_line_of_warning() {
    for (words, lines) in [
        ("hunter2", 1),
        ("hunter2 -q", 0),
        ("RtVF0QJxNL4yEt0pmA0q6A==", 0),
    ] {
        let port = free_port();
        let receiver = rdrecv(format!("{port} {words}")).start();
        let sender = rdsend(format!("localhost {port} {words}")).start();
        for end in [sender.end(), receiver.end()] {
            let said = end.exits(0);
            assert_eq!(said.lines().count(), lines, "{words}: {said}");
            let advice = [
                "fewer than 16 characters can be guessed",
                "leave the key out",
                "head -c 16 /dev/urandom | base64",
            ];
            assert!(
                lines == 0 || advice.iter().all(|part| said.contains(part)),
                "{said}"
            );
            assert!(!said.contains("hunter2"), "{said}");
        }
    }
}

#[test]
fn files_of_every_size_arrive() {
    for size in [0, 1, (1 << 20) + 1] {
        let place = Place::new();
        let data = random_bytes(size);
        let input = place.file("myfile", &data);
        let receiver = receiver("").start();
        let sender = sender(receiver.port(), "").arg(&input).start();
        sender.end().exits(0);
        let end = receiver.end();
        end.exits(0);
        assert!(end.stdout == data, "{size} bytes");
    }
}

#[test]
fn files_can_be_named_in_every_way() {
    let place = Place::new();
    let data = random_bytes(100_000);
    let input = place.file("in", &data);
    let named = |name: &str| place.path(name).display().to_string();
    for (index, (to, from)) in [
        (
            format!("0 {} {}", key(), named("0")),
            format!("{} {input}", key()),
        ),
        (
            format!("0 {} -o {}", key(), named("1")),
            format!("{} -i {input}", key()),
        ),
        (
            format!("--output {} 0 {}", named("2"), key()),
            format!("{} --input {input}", key()),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let receiver = rdrecv(to).start();
        let sender = rdsend(format!("127.0.0.1 {} {from}", receiver.port())).start();
        sender.end().exits(0);
        let end = receiver.end();
        end.exits(0);
        assert!(end.stdout.is_empty() && place.read(&index.to_string()) == data);
    }
    let receiver = receiver("-o -").start();
    let stdin = File::open(&input).unwrap();
    sender(receiver.port(), "-i -")
        .stdin(stdin)
        .start()
        .end()
        .exits(0);
    assert!(receiver.end().stdout == data);
}

#[test]
fn the_key_comes_from_the_argument_then_the_file_then_the_environment() {
    let place = Place::new();
    let file = place.file("key", format!("{}\n", key()).as_bytes());
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let cases = [
        (format!("0 {}", key()), "another key"),
        (format!("0 --key-file {file}"), "another key"),
        ("0".to_owned(), key()),
    ];
    for (arguments, variable) in cases {
        let receiver = rdrecv(arguments).env("RDPIPE_KEY", variable).start();
        let port = receiver.port();
        let sender = rdsend(format!("127.0.0.1 {port} --key-file {file}"));
        assert_eq!(
            sender
                .env("RDPIPE_KEY", "another key")
                .start()
                .end()
                .exits(0),
            ""
        );
        receiver.end().exits(0);
    }
    // Two keys at once are refused, because only one of them can be right.
    rdrecv(format!("0 {} --key-file {file}", key()))
        .start()
        .end()
        .exits(2);
}

#[test]
fn the_command_that_rdrecv_prints_works() {
    let place = Place::new();
    let data = random_bytes(50_000);
    place.file("FILE", &data);
    let receiver = rdrecv("0").start();
    let line = receiver.said("what to type", |text| {
        let (_, line) = text.split_once("on the other host:\n")?;
        let (line, _) = line.split_once('\n')?;
        Some(line.trim().to_owned())
    });
    let path = Path::new(BINARIES).parent().unwrap().display().to_string();
    let path = format!("{path}:{}", env::var("PATH").unwrap_or_default());
    // The line contains the name of this machine, which need not resolve here, so the test replaces it.
    let words: Vec<&str> = line.split(' ').collect();
    assert!(
        words[0].starts_with("RDPIPE_KEY=rdk1") && words[1] == "rdsend",
        "{line}"
    );
    let line = line.replacen(&format!("rdsend {} ", words[2]), "rdsend localhost ", 1);
    let typed = format!("cd {} && {line}", place.directory().display());
    let shell = program("/bin/sh", "sh")
        .arg("-c")
        .arg(typed)
        .env("PATH", path)
        .start();
    assert_eq!(shell.end().exits(0), "");
    let end = receiver.end();
    end.exits(0);
    assert!(end.stdout == data);
}

/// The host name `several` has two addresses, and rdrecv listens on only one of them. A mount namespace holds the
/// `/etc/hosts` with this name.
#[test]
fn a_host_with_a_dead_address_is_reached() {
    let place = Place::new();
    let hosts = place.file("hosts", b"127.0.0.9 several\n127.0.0.1 several\n");
    let has_namespaces = Command::new("unshare").args(["-m", "true"]).output();
    if !has_namespaces.is_ok_and(|output| output.status.success()) {
        crate::support::programs::skip("this user cannot make a mount namespace");
        return;
    }
    let receiver = receiver("--bind 127.0.0.1").start();
    let port = receiver.port();
    let typed = format!(
        "mount --bind {hosts} /etc/hosts && exec {BINARIES} several {port} {}",
        key()
    );
    let sender = program("unshare", "rdsend")
        .arg("-m")
        .arg("sh")
        .arg("-c")
        .arg(typed);
    sender
        .stdin(File::open(hosts).unwrap())
        .start()
        .end()
        .exits(0);
    receiver.end().exits(0);
}

#[test]
fn rdsend_may_start_first() {
    let refusing = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = refusing.local_addr().unwrap().port();
    let sender = sender(port, "").start();
    // This refused connection shows that rdsend started before rdrecv.
    drop(refusing.accept().unwrap());
    drop(refusing);
    let receiver = rdrecv(format!("{port} {}", key())).start();
    sender.end().exits(0);
    receiver.end().exits(0);
}

#[test]
fn a_port_without_a_listener_is_reported() {
    let limit = patience(Duration::from_millis(300)).as_secs_f64();
    let sender = sender(free_port(), format!("--connect-timeout {limit}")).start();
    let words = [
        "cannot connect to 127.0.0.1 port ",
        "refused",
        "is the receiver running",
    ];
    sender.end().fails(255, &words);
}

#[test]
fn a_host_name_that_does_not_resolve_is_reported() {
    let sender = rdsend(format!("no-such-host.invalid 5000 {}", key())).start();
    sender
        .end()
        .fails(255, &["cannot find host no-such-host.invalid"]);
}

#[test]
fn a_port_in_use_is_reported() {
    let taken = TcpListener::bind("[::]:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let receiver = rdrecv(format!("{port} {}", key())).start();
    receiver
        .end()
        .fails(255, &["cannot listen on", &port.to_string(), "in use"]);
}

#[test]
fn every_address_of_this_host_can_be_used() {
    let v6 = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok();
    if !v6 {
        println!("SKIPPED in part: no IPv6 here");
    }
    let cases = [
        ("", "localhost"),
        ("--bind 127.0.0.1", "localhost"),
        ("--bind 127.0.0.1", "127.0.0.1"),
        ("--bind ::1", "::1"),
        ("--bind [::1]", "[::1]"),
        ("", "::1"),
        ("--bind 0.0.0.0", "127.0.0.1"),
    ];
    for (bind, host) in cases
        .into_iter()
        .filter(|(_, host)| v6 || !host.contains("::"))
    {
        let receiver = receiver(bind).start();
        let sender = rdsend(format!("{host} {} {}", receiver.port(), key())).start();
        assert_eq!(sender.end().exits(0), "", "{bind} {host}");
        receiver.end().exits(0);
    }
}

#[test]
fn wrong_arguments_exit_with_2() {
    rdrecv("").start().end().exits(2);
    rdrecv("port key").start().end().exits(2);
    rdrecv("0 key -o a b").start().end().exits(2);
    rdsend("localhost").start().end().exits(2);
    rdsend("localhost 5000")
        .start()
        .end()
        .fails(2, &["no key was given"]);
    rdsend("localhost 5000")
        .env("RDPIPE_KEY", "")
        .start()
        .end()
        .fails(2, &["the key is empty"]);
    rdrecv("0 --key-file /nonexistent")
        .start()
        .end()
        .fails(2, &["/nonexistent"]);
    rdrecv("0 rdk1mistyped")
        .start()
        .end()
        .fails(2, &["mistyped"]);
}

#[test]
fn a_second_sender_is_refused() {
    let receiver = receiver("").start();
    let port = receiver.port();
    let mut first = sender(port, "-v").stdin(Stdio::piped()).start();
    let input = first.stdin();
    first.said("that it is connected", |text| {
        text.contains("connected to").then_some(())
    });
    sender(port, "--connect-timeout 1")
        .start()
        .end()
        .fails(255, &["Connection refused"]);
    drop(input);
    first.end().exits(0);
    receiver.end().exits(0);
}

#[test]
fn rdma_never_falls_back() {
    if Path::new("/sys/class/infiniband")
        .read_dir()
        .is_ok_and(|mut list| list.next().is_some())
    {
        crate::support::programs::skip("there is an RDMA device");
        return;
    }
    let place = Place::new();
    let receiver = receiver(format!("-o {}", place.old())).start();
    let sender = sender(receiver.port(), "--transport rdma").start();
    sender.end().fails(255, &["RDMA"]);
    // rdsend fails before it sends anything, so rdrecv still runs.
    assert!(receiver.runs());
    place.assert_untouched(&[]);
}

/// The most resident memory that a program may use, in KiB.
const LIMIT_KIB: u64 = 48 << 10;

#[test]
fn memory_stays_flat_however_long_the_stream_is() {
    let null = || File::options().write(true).open("/dev/null").unwrap();
    let gigabytes: u64 = 3;
    let bytes = gigabytes << 30;
    // A key of this form has to be stretched, which takes memory too.
    let receiver = rdrecv("0 a_key_of_a_person -v").stdout(null()).start();
    let mut zeros = program("/usr/bin/env", "head")
        .arg("head")
        .arg("-c")
        .arg(bytes.to_string());
    zeros = zeros.stdin(File::open("/dev/zero").unwrap());
    let mut zeros = zeros.start_raw();
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let sender = rdsend(format!(
        "127.0.0.1 {} a_key_of_a_person -v",
        receiver.port()
    ));
    let sender = sender.stdin(reader).start();
    let mut from_head = zeros.take_stdout();
    let mut writer = File::from(writer);
    std::io::copy(&mut from_head, &mut writer).unwrap();
    // Almost all bytes have passed through both programs by now, so both have reached their peaks.
    let peaks = [peak_kib(&sender), peak_kib(&receiver)];
    drop(writer);
    for end in [sender.end(), receiver.end()] {
        assert!(end.exits(0).contains(&format!("Bytes {bytes}")));
    }
    println!("peaks: {peaks:?} KiB");
    assert!(peaks.iter().all(|peak| *peak <= LIMIT_KIB), "{peaks:?} KiB");
}

#[test]
fn an_idle_pair_uses_no_processor_time() {
    let receiver = receiver("").start();
    let mut sender = sender(receiver.port(), "-v").stdin(Stdio::piped()).start();
    let input = sender.stdin();
    sender.said("that it is connected", |text| {
        text.contains("connected to").then_some(())
    });
    let ticks = || [cpu_ticks(&sender), cpu_ticks(&receiver)];
    // The receiver may still set its end up.
    let before = eventually("both ends to be idle", || {
        let before = ticks();
        thread::sleep(Duration::from_millis(300));
        (ticks() == before).then_some(before)
    });
    // This sleep is the time that is measured; it waits for no event.
    thread::sleep(Duration::from_secs(2));
    let after = ticks();
    let used = [after[0] - before[0], after[1] - before[1]];
    // One percent of a core is two ticks; the start and the end of the measurement can add one more.
    assert!(
        used.iter().all(|ticks| *ticks <= 3),
        "{used:?} ticks of 10 ms in two seconds"
    );
    drop(input);
    sender.end().exits(0);
    receiver.end().exits(0);
}
