//! How both sides end: signals to the server, deaths of clients, of the server, and what is left.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use rustix::process::Signal;

use super::{Served, serve};
use crate::{
    copies::trees,
    support::programs::{eventually, hosts::Outcome, is_ignored, skip},
};

/// The bytes of the header of a map (`src/copy/destination/part_file.rs`).
const MAP_HEADER_BYTES: u64 = 64;

/// A hole that takes hours to digest, in a file that every file system can hold.
const HOLE: u64 = 8 << 40;

/// Starts a copy of 24 MiB that takes some seconds, and waits until the server writes it.
fn slow_copy(served: &Served, name: &str) -> crate::support::programs::Running {
    if !served.here("file").exists() {
        trees::large(&served.here("file"), 24 << 20);
    }
    let there = format!("@{name}");
    let copy = served.alice(&["--bwlimit", "5M", "%file", &there]).start();
    // A map that is longer than its header has a range, so that a second run can continue.
    served.unfinished(name, MAP_HEADER_BYTES, &[]);
    copy
}

#[test]
fn sigterm_finishes_what_runs_and_refuses_what_is_new() {
    let served = Served::start(&[]);
    let copy = slow_copy(&served, "copy");
    served.server.signal(Signal::TERM);
    served.server.said("that it finishes", |text| {
        text.contains("finishes 1 copy").then_some(())
    });
    let late = served.alice(&["%file", "@late"]).start().end();
    late.tells(255, &["shutting down"]);
    copy.end().exits(0);
    let Served { server, .. } = &served;
    assert!(server.ends_within(crate::support::programs::generous()));
    assert_eq!(fs::metadata(served.root("copy")).unwrap().len(), 24 << 20);
    assert!(!served.root("late").exists());
}

#[test]
fn after_the_grace_copies_are_cut_and_nothing_is_partial() {
    let served = Served::start(&["--grace", "0.2"]);
    let copy = slow_copy(&served, "copy");
    served.server.signal(Signal::TERM);
    copy.end().tells(255, &["the server was stopped"]);
    assert!(!served.root("copy").exists());
    assert!(
        served
            .server
            .ends_within(crate::support::programs::generous())
    );
    // What was there is continued with another server.
    let Served { .. } = served;
}

#[test]
fn a_client_that_dies_leaves_no_partial_file_and_its_place_is_free() {
    let served = Served::start(&["--max-clients", "1"]);
    let copy = slow_copy(&served, "copy");
    copy.kill();
    copy.end();
    served.server.said("the end of the copy", |text| {
        let mut ends = text
            .lines()
            .filter(|line| line.contains("alice (127.0.0.1)"));
        ends.next().map(|_| ())
    });
    assert!(!served.root("copy").exists());
    let resumed = served.alice(&["--resume", "%file", "@copy"]).start().end();
    resumed.tells(0, &["were there already"]);
    assert_eq!(
        fs::read(served.root("copy")).unwrap(),
        fs::read(served.here("file")).unwrap()
    );
}

/// Returns how many threads a server has for copies, and how many descriptors.
fn in_use(served: &Served) -> (usize, usize) {
    let process = Path::new("/proc").join(served.server.id().to_string());
    let entries = |name: &str| fs::read_dir(process.join(name)).unwrap().flatten();
    let of_copies = ["input", "output", "edge", "rdcp walk", "blocking"];
    let is_of_copy = |name: &String| of_copies.contains(&name.trim_end());
    let names =
        entries("task").filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    (names.filter(is_of_copy).count(), entries("fd").count())
}

#[test]
fn a_client_that_dies_while_a_hole_is_digested_leaves_nothing() {
    let served = Served::start(&["--max-clients", "1"]);
    fs::write(served.here("small"), "bob").unwrap();
    served
        .client("bob", &["%small", "@first"])
        .start()
        .end()
        .exits(0);
    let image = fs::File::create(served.here("image")).unwrap();
    image.set_len(HOLE).unwrap();
    let idle = eventually("a server without copies", || {
        Some(in_use(&served)).filter(|(threads, _)| *threads == 0)
    });
    let copy = served.alice(&["--checksum", "%image", "@image"]).start();
    eventually("a hole that is digested", || {
        let mut entries = fs::read_dir(served.root("")).unwrap().flatten();
        entries.find(|entry| entry.metadata().is_ok_and(|entry| entry.len() == HOLE))
    });
    copy.kill();
    copy.end();
    // Waits for the place, and then for the claim.
    served
        .client("bob", &["%small", "@image"])
        .start()
        .end()
        .exits(0);
    assert_eq!(fs::read_to_string(served.root("image")).unwrap(), "bob");
    assert_eq!(fs::read_dir(served.root("")).unwrap().count(), 2);
    eventually("a server without copies", || {
        // The descriptors of bob's first copy may still have been open when those of an idle server were counted.
        let (threads, descriptors) = in_use(&served);
        (threads == 0 && descriptors <= idle.1).then_some(())
    });
}

#[test]
fn a_server_that_is_killed_is_named_by_its_clients() {
    let served = Served::start(&[]);
    let copy = slow_copy(&served, "copy");
    served.server.kill();
    let end = copy.end();
    end.exits(255);
    assert!(end.stderr.contains("127.0.0.1"), "{end:?}");
    assert!(!served.root("copy").exists());
    let after = served.alice(&["%file", "@copy"]).start().end();
    after.tells(255, &["cannot connect", "rdcp --serve"]);
}

#[test]
fn an_interrupted_client_is_no_error_of_the_server() {
    if is_ignored(Signal::INT) {
        return skip("SIGINT is ignored here");
    }
    let served = Served::start(&[]);
    let copy = slow_copy(&served, "copy");
    copy.signal(Signal::INT);
    copy.end().exits(130);
    served.server.said("why the copy ended", |text| {
        text.contains("interrupted by SIGINT").then_some(())
    });
    served.alice(&["%file", "@copy"]).start().end().exits(0);
}

#[test]
fn an_ordinary_user_serves_a_directory_that_only_reads() {
    let id = rustix::process::geteuid();
    if !id.is_root() {
        return skip("only root can become another user");
    }
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).unwrap();
    fs::create_dir(place.path().join("root")).unwrap();
    fs::create_dir(place.path().join("here")).unwrap();
    fs::write(place.path().join("root/file"), "content").unwrap();
    super::add_client(place.path(), "alice");
    fs::set_permissions(place.path().join("keys"), PermissionsExt::from_mode(0o600)).unwrap();
    std::os::unix::fs::chown(place.path().join("keys"), Some(65534), Some(65534)).unwrap();
    let server = serve(place.path(), &[]).user(65534).start();
    let port = server.port();
    let copy = |from: &str, to: &str| {
        let key = place.path().join("alice").display().to_string();
        super::rdcp(["--key-file", &key, from, to]).start().end()
    };
    let here = place.path().join("here/file").display().to_string();
    let there = |path: &str| format!("127.0.0.1:{port}:{path}");
    copy(&there("file"), &here).exits(0);
    assert_eq!(fs::read_to_string(&here).unwrap(), "content");
    copy(&here, &there("new")).tells(1, &["ermission denied"]);
}

/// The modes that a client gives to directories do not bind root, so the server is an ordinary user.
#[test]
fn no_client_locks_the_others_out() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can become another user");
    }
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let mode_of =
        |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let set_mode = |path: &std::path::Path, mode| {
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    set_mode(place.path(), 0o755);
    fs::create_dir_all(at("here/closed/in/side")).unwrap();
    fs::write(at("here/file"), "content").unwrap();
    for closed in ["here/closed/in/side", "here/closed/in", "here/closed"] {
        set_mode(&at(closed), 0);
    }
    fs::create_dir(at("root")).unwrap();
    for client in ["alice", "bob"] {
        super::add_client(place.path(), client);
    }
    for own in ["keys", "root"] {
        std::os::unix::fs::chown(at(own), Some(65534), Some(65534)).unwrap();
    }
    let before = mode_of(&at("root"));
    let server = serve(place.path(), &[]).user(65534).start();
    let there = |path: &str| format!("127.0.0.1:{}:{path}", server.port());
    let copy = |client: &str, options: &[&str], from: &str, to: &str| {
        let (key, from) = (
            at(client).display().to_string(),
            at(from).display().to_string(),
        );
        let copy = super::rdcp(["--key-file", &key]).args(options);
        copy.args([from, there(to)]).start().end()
    };
    let kept = "the directory that the server serves has kept its own metadata";
    let closed = "modes of directories that their owner cannot use were not kept";
    copy("alice", &["-a", "-T"], "here/closed", "/").tells(0, &[kept, closed]);
    copy("alice", &["-r"], "here/closed", "/plain").exits(0);
    assert_eq!(mode_of(&at("root")), before);
    for to in [
        "/new",
        "/in/new",
        "/in/side/new",
        "/plain/new",
        "/plain/in/side/new",
    ] {
        copy("bob", &[], "here/file", to).exits(0);
    }
}

#[test]
fn the_metrics_are_what_the_collector_reads() {
    let place = tempfile::tempdir().unwrap();
    let metrics = place.path().join("rdcp.prom").display().to_string();
    let served = Served::start(&["--metrics", &metrics]);
    fs::write(served.here("file"), vec![7; 1000]).unwrap();
    served.alice(&["%file", "@file"]).start().end().exits(0);
    served.server.signal(Signal::TERM);
    assert!(
        served
            .server
            .ends_within(crate::support::programs::generous())
    );
    let text = fs::read_to_string(&metrics).unwrap();
    assert!(text.contains("# TYPE rdcp_"), "{text}");
    let value = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in\n{text}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert!(value("rdcp_files_written_total") >= 1.0);
    assert!(value("rdcp_received_bytes_total") >= 1000.0);
}
