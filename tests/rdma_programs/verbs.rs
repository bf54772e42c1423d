//! The examples of verbs as processes of one machine.

use std::{
    io::{BufRead, BufReader},
    process::ChildStdout,
};

use crate::support::programs::{
    End, Running, Setup,
    examples::{Over, ShownCommand, shown_runs, steps},
    machine,
};

/// The examples connect over TCP whatever the environment says.
const ANY: Over = Over("auto");

const SEND_RECV: &str = "verbs_send_recv";
const WRITE_READ: &str = "verbs_write_read";

fn listener(name: &'static str, arguments: &str) -> Setup {
    ANY.example(name, &format!("listen 0 {arguments}"))
}

fn dialer(name: &'static str, port: u16, arguments: &str) -> Setup {
    ANY.example(name, &format!("127.0.0.1 {port} {arguments}"))
}

/// Runs both ends with these arguments. Returns what the listener and the dialer have printed.
#[track_caller]
fn run(name: &'static str, of_listener: &str, of_dialer: &str) -> [Vec<String>; 2] {
    let listener = listener(name, of_listener).start();
    let dialer = dialer(name, listener.port(), of_dialer).start().end();
    let listener = listener.end();
    [listener, dialer].map(|end| {
        end.exits(0);
        steps(&end.stdout)
    })
}

#[test]
fn both_examples_print_what_the_page_shows() {
    let Some(_machine) = machine() else { return };
    let runs = shown_runs();
    assert!(runs.len() >= 2);
    for [listener, dialer] in runs {
        let switches = |shown: &ShownCommand| shown.arguments[2..].join(" ");
        let printed = run(dialer.program, &switches(&listener), &switches(&dialer));
        assert_eq!(printed, [listener.steps, dialer.steps]);
    }
}

#[test]
fn every_switch_changes_what_it_says_and_nothing_else() {
    let Some(_machine) = machine() else { return };
    for name in [SEND_RECV, WRITE_READ] {
        let plain = run(name, "", "");
        for switches in ["inline", "unsignalled", "event", "inline unsignalled event"] {
            let [listener, dialer] = run(name, switches, switches);
            let mut expected = plain.clone();
            for line in expected.iter_mut().flatten() {
                if switches.contains("inline") {
                    *line = line.replace("(from memory)", "(in the work request)");
                }
                if switches.contains("unsignalled") {
                    *line = line.replace("1000 of them signalled", "63 of them signalled");
                    *line = line.replace("completions: 3 of 3", "completions: 1 of 3");
                }
            }
            assert_eq!([listener, dialer], expected, "{name} {switches}");
        }
    }
    let [listener, dialer] = run(SEND_RECV, "messages=5 event", "unsignalled messages=5");
    assert!(listener.contains(&"received: 5 messages of 32 bytes, in order".to_owned()));
    let sent = "sent: 5 messages of 32 bytes, 1 of them signalled";
    assert!(dialer.contains(&sent.to_owned()), "{dialer:?}");
}

#[test]
fn a_dialer_with_another_key_learns_nothing() {
    let Some(_machine) = machine() else { return };
    for name in [SEND_RECV, WRITE_READ] {
        let listener = listener(name, "").start();
        let stranger = dialer(name, listener.port(), "").env("RDPIPE_KEY", "another key");
        let stranger = stranger.start().end();
        stranger.fails(1, &[name, "key"]);
        assert_eq!(steps(&stranger.stdout), ["port"]);
        let friend = dialer(name, listener.port(), "").start().end();
        friend.exits(0);
        listener.end().exits(0);
    }
}

#[test]
fn ends_that_do_not_agree_about_the_messages_say_so() {
    let Some(_machine) = machine() else { return };
    let listener = listener(SEND_RECV, "messages=10").start();
    let dialer = dialer(SEND_RECV, listener.port(), "messages=5")
        .start()
        .end();
    dialer.fails(1, &[SEND_RECV]);
    // The end of the dialer may arrive before its number does.
    listener.end().fails(1, &[SEND_RECV]);
}

/// Many messages, so that they are under way when an end is killed.
const ENDLESS: &str = "messages=1000000000";

/// Reads the output of a program up to the first line that begins with `words`.
fn read_to(stdout: ChildStdout, words: &str) -> BufReader<ChildStdout> {
    let mut stdout = BufReader::new(stdout);
    let mut line = String::new();
    while !line.starts_with(words) {
        line.clear();
        let read = stdout.read_line(&mut line).expect("a pipe can be read");
        assert!(read > 0, "it ended before {words:?}");
    }
    stdout
}

/// The end whose peer is killed fails with one sentence, and does not hang.
#[test]
fn an_end_whose_peer_is_killed_fails() {
    let Some(_machine) = machine() else { return };
    for switches in ["", "event"] {
        for victim in ["listener", "dialer"] {
            let arguments = format!("{ENDLESS} {switches}");
            let mut listener = listener(SEND_RECV, &arguments).start_raw();
            let mut dialer = dialer(SEND_RECV, listener.port(), &arguments).start_raw();
            let said = |running: &mut Running| read_to(running.take_stdout(), "received: hello");
            let printed = [said(&mut listener), said(&mut dialer)];
            let (killed, left) = match victim {
                "listener" => (listener, dialer),
                _ => (dialer, listener),
            };
            killed.kill();
            let left: End = left.end();
            left.fails(1, &[SEND_RECV]);
            drop(printed);
        }
    }
}

/// A listener whose dialer dies before it has sent anything over verbs.
#[test]
fn a_peer_that_dies_before_it_is_connected_is_an_error() {
    let Some(_machine) = machine() else { return };
    let listener = listener(WRITE_READ, "").start();
    let key = rdpipe::Key::parse(crate::support::programs::key()).expect("a key");
    let port = listener.port();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let builder = rdpipe::Stream::builder(&key).transport(rdpipe::TransportPolicy::Tcp);
        let stream = builder.connect(("127.0.0.1", port)).await;
        drop(stream.expect("a stream"));
    });
    listener.end().fails(1, &[WRITE_READ]);
}
