//! What somebody on the path between two programs can read and change; what programs print of the cipher; and hosts that
//! do not agree on it.

mod captured;
mod unreadable;

#[path = "../../support/capture.rs"]
mod capture;
#[path = "../../support/on_path.rs"]
mod on_path;

use std::{
    fs,
    io::Write,
    net::SocketAddr,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use serde_json::Value;

use self::on_path::{HEADER_BYTES, Tamper, flip, tampering};
use crate::{
    forwarding::rdforward,
    serving::{Served, rdcp},
    support::programs::{
        End, Place, Setup, Towards, built, eventually,
        hosts::{Network, Outcome},
        local_hosts::rdpipe,
        program,
        rdcat::rdcat,
        receiver, sender,
    },
};

/// The line of every program whose data is not encrypted because its user has chosen that.
const WARNING: &str = "the data is not encrypted (--encrypt never)";

/// The beginning of the message about a frame that was changed.
const CHANGED: &str =
    "a chunk does not match its tag; the bytes were damaged or changed on the way";

const ALWAYS: &str = "--encrypt always";
const NEVER: &str = "--encrypt never";

/// Returns the port of this machine as an address.
fn local(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// Returns true for the one line that says that the data is not encrypted.
fn warns(end: &End) -> bool {
    let lines = end.stderr.lines().filter(|line| line.contains(WARNING));
    let count = lines.count();
    assert!(count < 2, "it is said {count} times: {}", end.stderr);
    count == 1
}

/// Sends through somebody who changes frames. Returns the ends of rdsend and rdrecv.
fn sent(
    place: &Place,
    options: &str,
    tamper: Tamper,
    feed: impl FnOnce(&mut dyn Write),
) -> [End; 2] {
    let receiver = receiver(format!("{options} -o {}", place.old())).start();
    let relay = tampering(local(receiver.port()), tamper);
    let sender = sender(relay.port(), options).stdin(Stdio::piped());
    let mut sender = sender.start();
    let mut stdin = sender.stdin();
    feed(&mut stdin);
    drop(stdin);
    [sender.end(), receiver.end()]
}

/// Checks that both programs have found the change, and that no file has changed.
#[track_caller]
fn assert_refused(place: &Place, [sender, receiver]: [End; 2]) {
    receiver.tells(255, &[CHANGED]);
    // The status of a failure at the other end.
    sender.tells(3, &[CHANGED]);
    place.assert_untouched(&[]);
}

#[test]
fn a_changed_chunk_ends_both_programs() {
    for length in [1, 3, 4, 8, 9, 64, 300] {
        let place = Place::new();
        let payload = 8 * (HEADER_BYTES + length / 2);
        let ends = sent(&place, ALWAYS, flip(payload), |stdin| {
            stdin.write_all(&vec![b'1'; length]).unwrap();
        });
        assert_refused(&place, ends);
    }
}

/// Chunks of 1 to 300 bytes have arrived, and the last one is another.
#[test]
fn nothing_is_delivered_of_a_stream_whose_last_chunk_was_changed() {
    const LENGTHS: u64 = 300;
    let frames = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&frames);
    let tamper: Tamper = Arc::new(move |towards, frame| {
        assert_eq!(towards, Towards::Acceptor);
        let nth = counted.fetch_add(1, Ordering::SeqCst) + 1;
        assert_eq!(frame.len() as u64, HEADER_BYTES as u64 + nth);
        if nth == LENGTHS {
            frame[HEADER_BYTES] ^= 1;
        }
    });
    let place = Place::new();
    let ends = sent(&place, ALWAYS, tamper, |stdin| {
        for length in 1..=LENGTHS {
            let piece = vec![b'1'; usize::try_from(length).unwrap()];
            stdin.write_all(&piece).unwrap();
            eventually("the chunk", || {
                (frames.load(Ordering::SeqCst) == length).then_some(())
            });
        }
    });
    assert_refused(&place, ends);
}

#[test]
fn without_encryption_unchanged_bytes_arrive_and_one_line_says_so() {
    for (options, is_said) in [
        (NEVER, true),
        ("-q --encrypt never", false),
        (ALWAYS, false),
        ("", false),
    ] {
        let place = Place::new();
        let ends = sent(&place, options, Arc::new(|_, _| ()), |stdin| {
            stdin.write_all(b"pay 100").unwrap();
        });
        for end in ends {
            end.exits(0);
            assert_eq!(warns(&end), is_said, "{options}: {}", end.stderr);
        }
        assert_eq!(place.read("old"), b"pay 100");
    }
}

#[test]
fn every_program_says_that_its_data_is_not_encrypted() {
    let place = Place::new();
    let file = place.file("file", b"content");
    let copy = place.path("copy").display().to_string();
    let setups: [fn(&str, &str) -> Setup; 5] = [
        |_, _| rdpipe(&[":true", ":true"]),
        |file, copy| rdcp([file, copy]),
        |_, _| rdforward(&["-L", "0:localhost:1", "rdt1nonsense"]),
        |_, _| rdcat("rdt1nonsense"),
        |_, _| program(&built("rdperf"), "rdperf").arg("rdt1nonsense"),
    ];
    for setup in setups {
        for (options, is_said) in [
            (&["--encrypt", "never"][..], true),
            (&["-q", "--encrypt", "never"], false),
            (&[], false),
        ] {
            let end = setup(&file, &copy).args(options).start().end();
            assert_eq!(warns(&end), is_said, "{}: {}", end.name, end.stderr);
        }
    }
}

/// The words that tell both hosts' choices.
fn both_choices() -> [String; 4] {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().into_owned();
    [
        "the hosts do not agree on encryption".to_owned(),
        format!("{host} has always"),
        format!("{host} has never"),
        "; give both the same --encrypt, or neither one".to_owned(),
    ]
}

#[test]
fn rdsend_and_rdrecv_that_contradict_each_other_exchange_nothing() {
    let words = both_choices();
    let words = words.each_ref().map(String::as_str);
    for [sending, receiving] in [[ALWAYS, NEVER], [NEVER, ALWAYS]] {
        let place = Place::new();
        let options = format!("-q {receiving} -o {}", place.path("new").display());
        let receiver = receiver(options).start();
        let sender = sender(receiver.port(), format!("-q {sending}"))
            .start()
            .end();
        sender.fails(255, &words);
        receiver.kill();
        place.assert_untouched(&[]);
    }
}

#[test]
fn a_client_that_contradicts_its_server_copies_nothing() {
    let words = both_choices();
    let words = words.each_ref().map(String::as_str);
    for [client, server] in [["always", "never"], ["never", "always"]] {
        let served = Served::start(&["--encrypt", server]);
        fs::write(served.here("file"), "content").unwrap();
        fs::write(served.root("there"), "content").unwrap();
        for operands in [["%file", "@new"], ["@there", "%new"]] {
            let [from, to] = operands;
            let end = served.alice(&["-q", "--encrypt", client, from, to]);
            end.start().end().fails(255, &words);
        }
        assert!(!served.root("new").exists() && !served.here("new").exists());
    }
}

#[test]
fn rdsend_and_rdrecv_show_the_cipher() {
    let place = Place::new();
    for (option, is_encrypted) in [(ALWAYS, true), (NEVER, false)] {
        for form in ["-v", "--json"] {
            let options = format!("{form} {option}");
            let ends = sent(&place, &options, Arc::new(|_, _| ()), |_| ());
            for end in ends {
                let said = end.exits(0);
                let named = said.contains("AES-256-GCM") || said.contains("ChaCha20-Poly1305");
                assert_eq!(named, is_encrypted, "{options}: {said}");
            }
        }
    }
}

/// Returns what `-v` prints of the edges, which all lead from one host to another, and the ciphers in the JSON report.
fn edges(network: &Network, options: &[&str]) -> (Vec<String>, Vec<Value>) {
    let report = network.file("ctl", "report.json");
    let report = format!("--json={}", report.display());
    let stages = ["h1:echo hello", "h2:tr a-z A-Z", "h3:cat"];
    let arguments = [options, &["-v", &report], &stages].concat();
    let end = network.rdpipe(arguments).start().end();
    assert_eq!(end.stdout, b"HELLO\n", "{}", end.exits(0));
    let edges = end.stderr.lines().filter(|line| line.contains(": TCP ("));
    let report: Value = serde_json::from_slice(&network.read("ctl", "report.json")).unwrap();
    let ciphers = report["edges"].as_array().unwrap().iter();
    let ciphers = ciphers.map(|edge| edge["cipher"].clone()).collect();
    (edges.map(str::to_owned).collect(), ciphers)
}

#[test]
fn every_edge_between_two_hosts_is_encrypted_unless_the_user_says_never() {
    let Some(network) = Network::new(3) else {
        return;
    };
    let is_cipher = |text: &str| text.contains("AES-256-GCM") || text.contains("ChaCha20-Poly1305");
    let (lines, ciphers) = edges(&network, &[]);
    assert!(lines.iter().all(|line| is_cipher(line)), "{lines:#?}");
    assert_eq!(
        (lines.len(), ciphers.len()),
        (4, 4),
        "{lines:#?} {ciphers:#?}"
    );
    let named = ciphers
        .iter()
        .all(|cipher| cipher.as_str().is_some_and(is_cipher));
    assert!(named, "{ciphers:#?}");
    let (lines, ciphers) = edges(&network, &["--encrypt", "never"]);
    let plain = lines.iter().all(|line| line.contains("not encrypted"));
    assert!(plain && lines.len() == 4, "{lines:#?}");
    assert!(ciphers.iter().all(Value::is_null), "{ciphers:#?}");
}
