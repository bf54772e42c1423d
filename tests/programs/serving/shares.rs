//! What one client takes of a server leaves room for others: sessions that begin nothing, copies that stall, and lines of
//! the log.

use std::{fs, time::Duration};

use futures::future::join_all;
use rdpipe::{Key, Stream, StreamConfig, connect};
use rustix::process::Signal;
use tokio::{io::AsyncWriteExt, runtime::Runtime};

use super::Served;
use crate::support::programs::{Running, eventually};

/// The copies at a time of the servers here. One of several clients has one of them.
const CLIENTS: &str = "4";

/// The sessions that one client of such a server has at most: a quarter of 4 and of the 256 that may wait.
const SESSIONS: usize = 65;

/// All sessions, and the streams that wait at the listener.
const EVERYTHING: usize = 260 + 64;

/// Bob copies some files at the same time.
#[track_caller]
fn bob_copies(served: &Served) {
    fs::write(served.here("file"), "content").unwrap();
    let copies: Vec<_> = (0..3)
        .map(|number| {
            let there = format!("@bob-{number}");
            served.client("bob", &["%file", &there]).start()
        })
        .collect();
    for copy in copies {
        copy.end().exits(0);
    }
}

/// Opens streams with alice's key, on which nothing follows.
fn silent_streams(served: &Served, runtime: &Runtime, count: usize) -> Vec<Stream> {
    let line = fs::read_to_string(served.key_of("alice")).unwrap();
    let key = Key::parse(line.trim().split_once(' ').unwrap().1).unwrap();
    let address = served.there("").replace(':', " ");
    let port: u16 = address.split_whitespace().last().unwrap().parse().unwrap();
    let mut config = StreamConfig::default();
    (config.chunk_bytes, config.depth) = (16 << 10, 4);
    config.retry_for = Duration::ZERO;
    runtime.block_on(async {
        let dialing = (0..count).map(|_| connect(("127.0.0.1", port), &key, &config));
        let dialed = join_all(dialing).await;
        dialed.into_iter().filter_map(Result::ok).collect()
    })
}

#[test]
fn sessions_that_begin_nothing_leave_room_for_others_and_do_not_fill_the_log() {
    let served = Served::start(&["--max-clients", CLIENTS]);
    let runtime = Runtime::new().unwrap();
    let silent = silent_streams(&served, &runtime, EVERYTHING + 20);
    assert!(silent.len() > SESSIONS, "{} streams", silent.len());
    bob_copies(&served);
    let refused = format!("alice (127.0.0.1): this client has {SESSIONS} copies already");
    let left_out = "of alice were left out";
    served.server.said("that lines were left out", |text| {
        text.contains(left_out).then_some(())
    });
    let shown = served.server.said("why sessions were refused", |text| {
        let shown = text.matches(&refused).count();
        (shown > 0).then_some(shown)
    });
    assert!(shown < EVERYTHING - SESSIONS, "{shown} lines of alice");
}

/// Sessions that fail at once, and whose client leaves their connections open: they count until they are closed.
#[test]
fn connections_of_sessions_that_have_ended_stay_in_the_share_of_their_client() {
    let served = Served::start(&["--max-clients", CLIENTS]);
    bob_copies(&served);
    let runtime = Runtime::new().unwrap();
    let descriptors = || {
        let id = served.server.id();
        let open = fs::read_dir(format!("/proc/{id}/fd"));
        open.expect("it runs").count()
    };
    let before = descriptors();
    let mut kept = Vec::new();
    let mut most = 0;
    while kept.len() < 5 * SESSIONS {
        let streams = silent_streams(&served, &runtime, SESSIONS / 4);
        for mut stream in streams {
            // No session begins so.
            let _ = runtime.block_on(async {
                stream.write_all(&[7; 64]).await?;
                stream.flush().await
            });
            kept.push(stream);
        }
        most = most.max(descriptors());
    }
    // Each has two connections, and as many as wait at the listener are being refused.
    let bound = before + 2 * (SESSIONS + 2 * 16) + 20;
    assert!(most <= bound, "{most} descriptors, {before} before");
    bob_copies(&served);
}

/// Starts a copy of alice that stalls once it runs or waits.
fn stalled_copy(served: &Served, number: usize) -> Running {
    let there = format!("@stalled-{number}");
    let arguments = ["--timeout", "600", "--bwlimit", "1M", "%large", &there];
    served.alice(&arguments).start()
}

#[test]
fn copies_that_stall_leave_places_to_others() {
    let served = Served::start(&["--max-clients", CLIENTS, "--timeout", "600"]);
    fs::write(served.here("large"), vec![7; 40 << 20]).unwrap();
    let first = stalled_copy(&served, 0);
    eventually("a copy that runs", || {
        (!served.temporaries("stalled-0").is_empty()).then_some(())
    });
    first.signal(Signal::STOP);
    let others: Vec<_> = (1..5).map(|number| stalled_copy(&served, number)).collect();
    for other in &others {
        other.said("that it waits", |text| {
            text.contains("waits for its turn").then_some(())
        });
        other.signal(Signal::STOP);
    }
    bob_copies(&served);
    for copy in others.into_iter().chain([first]) {
        copy.kill();
        copy.end();
    }
}
