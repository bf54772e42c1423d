//! Keys stay secret: they appear in no process list, no message and no event.

use std::{fs, os::unix::fs::PermissionsExt, process::Stdio};

use rdpipe::Key;

use crate::support::programs::{End, Place, Running, Setup, rdrecv, rdsend};

/// A key that appears nowhere else.
const SECRET: &str = "tell_no_one_this";
/// A wrong key that appears nowhere else.
const WRONG: &str = "nor_what_was_guessed";

/// Checks that neither the arguments nor the environment of a running process contain a key.
#[track_caller]
fn assert_hidden(process: &Running, keys: &[&str]) {
    for what in ["cmdline", "environ"] {
        let bytes = fs::read(format!("/proc/{}/{what}", process.id())).unwrap();
        let shown = String::from_utf8_lossy(&bytes);
        assert!(!bytes.is_empty() || what == "environ");
        assert!(
            keys.iter().all(|key| !shown.contains(key)),
            "{what}: {shown}"
        );
    }
}

/// Runs a pair, and checks in the middle of its stream that both processes hide `keys`. Returns both ends with all
/// their output.
fn run_hidden(receiver: Setup, sender: impl FnOnce(u16) -> Setup, keys: &[&str]) -> [End; 2] {
    let receiver = receiver.start();
    let port = receiver.port();
    // The key is hidden before the first sender connects.
    assert_hidden(&receiver, keys);
    let mut sender = sender(port).stdin(Stdio::piped()).start();
    let input = sender.stdin();
    receiver.said("that a sender connected", |text| {
        text.contains(" connected from").then_some(())
    });
    assert_hidden(&sender, keys);
    assert_hidden(&receiver, keys);
    drop(input);
    let ends = [sender.end(), receiver.end()];
    for end in &ends {
        assert_eq!(end.code(), 0, "{end:?}");
    }
    ends
}

#[track_caller]
fn assert_silent(ends: &[End], key: &str) {
    for end in ends {
        assert!(
            !end.stderr.contains(key)
                && !end.stdout.windows(key.len()).any(|w| w == key.as_bytes()),
            "{end:?}"
        );
    }
}

#[test]
fn a_key_given_as_argument_is_hidden() {
    let receiver = rdrecv(format!("0 {SECRET} -v"));
    let sender = |port| rdsend(format!("localhost {port} {SECRET} -v"));
    assert_silent(&run_hidden(receiver, sender, &[SECRET]), SECRET);
}

#[test]
fn a_key_from_the_environment_is_hidden() {
    let receiver = rdrecv("0 -v").env("RDPIPE_KEY", SECRET);
    let sender = |port| rdsend(format!("localhost {port} -v")).env("RDPIPE_KEY", SECRET);
    assert_silent(&run_hidden(receiver, sender, &[SECRET]), SECRET);
}

#[test]
fn an_unused_key_in_the_environment_is_hidden() {
    let receiver = rdrecv(format!("0 {SECRET} -v")).env("RDPIPE_KEY", WRONG);
    let sender = |port| rdsend(format!("localhost {port} {SECRET} -v")).env("RDPIPE_KEY", WRONG);
    assert_silent(&run_hidden(receiver, sender, &[SECRET, WRONG]), SECRET);
}

#[test]
fn a_key_from_a_file_is_hidden() {
    let place = Place::new();
    let file = place.file("key", SECRET.as_bytes());
    fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    let receiver = rdrecv(format!("0 --key-file {file} -v"));
    let sender = |port| rdsend(format!("localhost {port} --key-file {file} -v"));
    let ends = run_hidden(receiver, sender, &[SECRET]);
    assert_silent(&ends, SECRET);
}

#[test]
fn a_key_file_that_another_user_can_read_or_change_is_refused() {
    let place = Place::new();
    let file = place.file("key", SECRET.as_bytes());
    for (mode, others) in [(0o666, "write"), (0o644, "read"), (0o640, "read")] {
        fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        for setup in [
            rdrecv(format!("0 --key-file {file}")),
            rdsend(format!("localhost 1 --key-file {file}")),
        ] {
            let end = setup.start().end();
            let why = format!("others can {others} it; chmod go= ");
            end.fails(2, &["the key file", &why]);
            assert_silent(&[end], SECRET);
        }
    }
}

#[test]
fn a_generated_key_is_printed_once() {
    let receiver = rdrecv("0 -v").start();
    let port = receiver.port();
    let made = receiver.said("the key", |text| {
        let (_, rest) = text.split_once("RDPIPE_KEY=")?;
        Some(rest.split_once(' ')?.0.to_owned())
    });
    let mut sender = rdsend(format!("localhost {port} -v")).env("RDPIPE_KEY", &made);
    sender = sender.stdin(Stdio::piped());
    let mut sender = sender.start();
    let input = sender.stdin();
    receiver.said("that a sender connected", |text| {
        text.contains(" connected from").then_some(())
    });
    assert_hidden(&sender, &[&made]);
    assert_hidden(&receiver, &[&made]);
    drop(input);
    assert_silent(&[sender.end()], &made);
    assert_eq!(receiver.end().exits(0).matches(&made).count(), 1);
}

#[test]
fn json_shows_a_generated_key_only_in_the_listening_event() {
    let receiver = rdrecv("0 --json -v").start();
    let port = receiver.port();
    let made = receiver.said("the key", |text| {
        let event: serde_json::Value = serde_json::from_str(text.lines().next()?).ok()?;
        Some(event["key"].as_str()?.to_owned())
    });
    Key::parse(&made).unwrap();
    let sender = rdsend(format!("localhost {port} --json -v"))
        .env("RDPIPE_KEY", &made)
        .start();
    assert_silent(&[sender.end()], &made);
    let receiver = receiver.end();
    let told: Vec<_> = receiver
        .exits(0)
        .lines()
        .filter(|line| line.contains(&made))
        .collect();
    assert!(
        told.len() == 1 && told[0].contains("\"event\":\"listening\""),
        "{told:?}"
    );
}

#[test]
fn a_wrong_key_is_not_printed() {
    let receiver = rdrecv(format!("0 {SECRET} -v")).start();
    let wrong = rdsend(format!("localhost {} {WRONG} -v", receiver.port()))
        .start()
        .end();
    assert!(wrong.exits(255).contains("the keys do not match"));
    assert_silent(&[wrong], WRONG);
    let mistyped = rdsend("localhost 5000 rdk1nor_what_was_guessed")
        .start()
        .end();
    mistyped.fails(2, &["mistyped"]);
    assert_silent(&[mistyped], WRONG);
    // clap repeats a refused argument in its message, which must not contain the key.
    let refused = rdrecv(format!("0 {SECRET} file more")).start().end();
    refused.exits(2);
    assert_silent(&[refused], SECRET);
}
