//! Pipelines: the examples of the manual, with every byte compared. The tests run beside the guests, so the edges to
//! rdpipe itself are TCP, and the edges between guests must be RDMA.

use std::{fs, io::Write, process::Stdio};

use crate::capture::Capture;
use crate::on_path::markers;
use crate::support::programs::End;
use crate::support::programs::hosts::{Network, text};

/// Runs a pipeline with this input, and checks that it succeeds and that every edge between two guests uses RDMA.
#[track_caller]
fn run(network: &Network, input: &[u8], segments: &[&str]) -> End {
    // The guests keep the files of earlier tests.
    for host in network.hosts() {
        for name in network.names(&host) {
            if name != "source" {
                fs::remove_file(network.file(&host, &name)).expect("a file");
            }
        }
    }
    // An emulated processor needs a long timeout.
    let options = ["--json=how.json", "-v", "--timeout", "120"];
    let setup = network.rdpipe([&options[..], segments].concat());
    let mut running = setup.stdin(Stdio::piped()).start();
    let mut stdin = running.stdin();
    let _ = stdin.write_all(input);
    drop(stdin);
    let end = running.end();
    println!("{segments:?}:\n{}", end.stderr);
    end.exits(0);
    let told = serde_json::from_slice::<serde_json::Value>(&network.read("ctl", "how.json"));
    let told = told.expect("it is JSON");
    let edges = told["edges"].as_array().expect("edges");
    let between = edges
        .iter()
        .filter(|edge| [&edge["from"], &edge["to"]].into_iter().all(is_guest));
    let between: Vec<_> = between.collect();
    let stages = segments.iter().filter(|word| word.contains(':')).count();
    assert_eq!(between.len(), stages - 1, "{told:#}");
    for edge in between {
        assert_eq!(edge["transport"], "rdma", "{edge:#}");
    }
    end
}

/// A thousand markers go from one guest to the other. The packets of RDMA cross the bridge on which they are captured.
#[test]
fn what_crosses_between_guests_is_encrypted_unless_the_user_says_never() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    let markers = markers(1000);
    let data = markers.join(" ");
    network.write("h1", "source", data.as_bytes());
    for choice in [&[][..], &["--encrypt", "never"]] {
        let capture = Capture::start(&network);
        let segments = ["h1:< source", "h2:cat", "h3:> copy"];
        run(&network, b"", &[choice, &segments].concat());
        let found = capture.end().count(&markers);
        assert!(network.read("h3", "copy") == data.as_bytes());
        if choice.is_empty() {
            assert_eq!(found, 0);
        } else {
            // A packet of 4 KiB may end within a marker.
            assert!(found > 900, "{found}");
        }
    }
    fs::remove_file(network.file("h1", "source")).expect("a file");
}

/// Returns true if this end of an edge is a stage, as in "stage 1 (h1)", and not rdpipe itself.
fn is_guest(end: &serde_json::Value) -> bool {
    end.as_str().is_some_and(|end| end.contains("(h"))
}

#[test]
fn commands_on_several_hosts_run_over_rdma() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    let segments = ["h1:tr [:lower:] [:upper:]", "h2:rev"];
    let end = run(&network, b"hello\n", &segments);
    assert_eq!(end.stdout, b"OLLEH\n");
    // The second stage sends back to the first host, which sends on to a third one.
    let segments = ["h1:rev", "h2:cat", "h1:cat", "h3:rev"];
    let data = text(1_000_000);
    assert!(run(&network, &data, &segments).stdout == data);
}

#[test]
fn file_operators_work_over_rdma() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    let data = text(2_000_000);
    let segments = ["h1:tee mycopy", "h2:> copy", "h3:wc -c; echo done"];
    assert_eq!(run(&network, &data, &segments).stdout, b"0\ndone\n");
    assert!(network.read("h1", "mycopy") == data && network.read("h2", "copy") == data);
    let segments = [
        "h1:echo once",
        "h2:>> between",
        "h2:< between",
        "h3:tr a-z A-Z",
        "h1:> out",
    ];
    assert_eq!(run(&network, b"", &segments).stdout, b"");
    assert_eq!(network.read("h1", "out"), b"ONCE\n");
}

#[test]
fn every_host_of_a_chain_keeps_a_copy() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    let data = text(5_000_000);
    let segments = [
        "h1:cat",
        "h2:tee >(cat > copy)",
        "h3:tee >(cat > copy)",
        "h1:tee >(cksum > sum) | wc -c; echo done",
    ];
    assert_eq!(run(&network, &data, &segments).stdout, b"5000000\ndone\n");
    assert!(network.read("h2", "copy") == data && network.read("h3", "copy") == data);
}

#[test]
fn a_reader_that_stops_early_is_no_failure() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    let end = run(&network, b"", &["h1:yes", "h2:cat", "h3:head -1"]);
    assert_eq!(end.stdout, b"y\n");
}

#[test]
fn a_killed_source_fails_the_pipeline() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    let segments = [
        "h1:head -c 3000000 /dev/zero; kill -9 $$",
        "h2:cat",
        "h3:cat > copy && touch happy",
    ];
    let end = network.rdpipe(segments).start().end();
    assert!(end.exits(137).contains("signal 9"), "{}", end.stderr);
    assert!(!network.file("h3", "happy").exists());
}

#[test]
fn a_file_larger_than_the_pools_arrives_over_rdma() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    let data = text(24 << 20);
    network.write("h1", "source", &data);
    run(&network, b"", &["h1:< source", "h2:cat", "h3:> copy"]);
    assert!(network.read("h3", "copy") == data);
    fs::remove_file(network.file("h1", "source")).expect("a file");
}
