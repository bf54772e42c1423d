//! Who may do what: keys, directions, and paths that lead out of the served directory.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
};

use rustix::process::Signal;

use super::{Served, add_client, rdcp};
use crate::support::programs::{eventually, hosts::Outcome};

#[test]
fn only_clients_with_a_key_are_served() {
    let served = Served::start(&[]);
    fs::write(served.here("file"), "content").unwrap();
    let other = tempfile::tempdir().unwrap();
    add_client(other.path(), "eve");
    let key = other.path().join("eve").display().to_string();
    let arguments = [&served.operand("file"), &served.there("file")];
    let end = rdcp(["--key-file", &key]).args(arguments).start().end();
    end.tells(255, &["does not know this key", "--key-file"]);
    let end = rdcp(arguments).start().end();
    end.tells(2, &["needs a key", "--key-file"]);
    assert!(!served.root("file").exists());
    served.alice(&["%file", "@file"]).start().end().exits(0);
}

#[test]
fn a_key_is_added_and_revoked_by_editing_the_file() {
    let served = Served::start(&[]);
    fs::write(served.here("file"), "content").unwrap();
    add_client(served.directory(), "carol");
    let copy = || served.client("carol", &["%file", "@carol"]).start().end();
    served.server.said("a new client", |text| {
        text.contains("added carol").then_some(())
    });
    copy().exits(0);
    let lines = fs::read_to_string(served.key_file()).unwrap();
    let kept: Vec<_> = lines
        .lines()
        .filter(|line| !line.starts_with("carol"))
        .collect();
    fs::write(served.key_file(), kept.join("\n")).unwrap();
    served.server.said("a revoked client", |text| {
        text.contains("revoked carol").then_some(())
    });
    copy().tells(255, &["does not know this key"]);
    // The server reports a broken file, and keeps the keys that it has.
    fs::write(served.key_file(), "alice\n").unwrap();
    served.server.said("a broken file", |text| {
        text.contains("line 1").then_some(())
    });
    served.alice(&["%file", "@alice"]).start().end().exits(0);
}

#[test]
fn no_path_leads_out_of_the_served_directory() {
    let served = Served::start(&[]);
    let outside = served.directory().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "secret").unwrap();
    fs::create_dir(served.root("inside")).unwrap();
    let absolute = outside.display().to_string();
    for (name, target) in [("up", "../outside"), ("far", &absolute), ("in", "inside")] {
        symlink(target, served.root(name)).unwrap();
    }
    symlink("../outside/secret", served.root("secret")).unwrap();
    fs::write(served.here("file"), "content").unwrap();
    let inner = format!("@{absolute}/secret");
    for path in [
        "@../outside/secret",
        "@up/secret",
        "@far/secret",
        "@secret",
        &inner,
        "@inside/../../outside/secret",
    ] {
        let end = served.alice(&[path, "%stolen"]).start().end();
        end.exits(1);
        assert!(!served.here("stolen").exists(), "{path}: {end:?}");
    }
    let tree = served.alice(&["-r", "@up", "%tree"]).start().end();
    tree.exits(0);
    assert!(
        served.here("tree").is_symlink(),
        "a link is copied as what it is"
    );
    for path in [
        "@../outside/new",
        "@up/new",
        "@far/new",
        "@up",
        "@far/",
        "@../outside",
    ] {
        let end = served.alice(&["%file", path]).start().end();
        let code = end.code();
        assert!(code == 1 || path == "@up", "{path}: {end:?}");
    }
    let names = fs::read_dir(&outside).unwrap().count();
    assert_eq!(names, 1, "something was written outside");
    assert_eq!(
        fs::read_to_string(outside.join("secret")).unwrap(),
        "secret"
    );
    served.alice(&["%file", "@in/new"]).start().end().exits(0);
    assert!(served.root("inside/new").exists(), "a link inside works");
}

#[test]
fn a_server_may_be_read_only_or_write_only() {
    for (option, reads, writes) in [("--read-only", 0, 1), ("--write-only", 1, 0)] {
        let served = Served::start(&[option]);
        fs::write(served.root("old"), "old").unwrap();
        fs::write(served.here("file"), "content").unwrap();
        served.alice(&["@old", "%copy"]).start().end().exits(reads);
        served.alice(&["%file", "@new"]).start().end().exits(writes);
        let end = served
            .alice(&["--remove-source-files", "@old", "%again"])
            .start()
            .end();
        end.tells(1, &[&option[2..]]);
        assert!(served.root("old").exists());
    }
}

#[test]
fn a_client_that_asks_for_more_lanes_than_a_server_allows_gets_those_of_the_server() {
    let served = Served::start(&["-j", "3"]);
    fs::write(served.here("file"), "content").unwrap();
    for (arguments, said) in [
        (
            ["-j4", "%file", "@new"],
            "the copy has 3 lanes, the destination on",
        ),
        (
            ["-j4", "@new", "%copy"],
            "the copy has 3 lanes, the source on",
        ),
        (
            ["-j2", "@new", "%again"],
            "the copy has 2 lanes, as -j says",
        ),
    ] {
        let end = served
            .alice(&[&["-v"], &arguments[..]].concat())
            .start()
            .end();
        end.tells(0, &[said]);
    }
    assert_eq!(fs::read(served.here("again")).unwrap(), b"content");
}

#[test]
fn a_new_client_has_a_line_in_a_file_that_only_its_owner_can_read() {
    let place = tempfile::tempdir().unwrap();
    let keys = place.path().join("keys");
    let path = keys.display().to_string();
    let new = |name: &str| rdcp(["--new-key", name, "--key-file", &path]).start().end();
    let alice = new("alice");
    assert_eq!(alice.exits(0), "");
    let mode = fs::metadata(&keys).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode, fs::read(&keys).unwrap()), (0o600, alice.stdout));
    new("alice").tells(2, &["line 1, has a client of this name already"]);
    fs::set_permissions(&keys, PermissionsExt::from_mode(0o644)).unwrap();
    let root = place.path().display().to_string();
    let serve = ["--serve", "--listen-port", "0", "--root", &root];
    let ended = |arguments: &[&str]| rdcp(["--key-file", &path]).args(arguments).start().end();
    for (status, refused) in [
        (2, new("bob")),
        (1, ended(&serve)),
        (2, ended(&["127.0.0.1:1:a", &root])),
    ] {
        refused.tells(status, &["is not used: others can read it; chmod go= "]);
    }
}

#[test]
fn each_side_decides_itself_whether_the_other_lends_rights() {
    const TAKEN: &str = "set-user-ID bits were not kept";
    let with_mode = |path: &std::path::Path, mode: u32| {
        fs::write(path, "program").unwrap();
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    let mode = |path: std::path::PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let served = Served::start(&[]);
    with_mode(&served.root("tool"), 0o4755);
    with_mode(&served.here("own"), 0o4750);
    let end = served.alice(&["-a", "@tool", "%taken"]).start().end();
    end.tells(0, &[TAKEN, "from a server", "--privileged"]);
    assert_eq!(mode(served.here("taken")), 0o755);
    let asked = served.alice(&["-a", "--privileged", "@tool", "%asked"]);
    asked.start().end().exits(0);
    assert_eq!(mode(served.here("asked")), 0o4755);
    let end = served.alice(&["-a", "%own", "@given"]).start().end();
    end.tells(0, &[TAKEN, "a server keeps them with --privileged only"]);
    assert_eq!(mode(served.root("given")), 0o750);
    let end = served
        .alice(&["-a", "--privileged", "%own", "@given"])
        .start()
        .end();
    end.tells(2, &["a server decides itself"]);
    let end = served
        .alice(&["-a", "--privileged", "%own", "%other"])
        .start()
        .end();
    end.tells(2, &["for files from HOST:PORT:PATH"]);
    let served = Served::start(&["--privileged"]);
    with_mode(&served.here("own"), 0o4750);
    served
        .alice(&["-a", "%own", "@given"])
        .start()
        .end()
        .exits(0);
    assert_eq!(mode(served.root("given")), 0o4750);
}

#[test]
fn wrong_use_of_a_server_gets_a_sentence() {
    let place = tempfile::tempdir().unwrap();
    add_client(place.path(), "alice");
    let keys = place.path().join("keys").display().to_string();
    let root = place.path().display().to_string();
    let wrong: &[(&[&str], &str)] = &[
        (&["--serve"], "--root"),
        (&["--serve", "--root", &root], "--key-file"),
        (
            &["--serve", "--root", &root, "--key-file", &keys, "file"],
            "--serve",
        ),
        (
            &["--serve", "--root", &root, "--key-file", &keys, "-r"],
            "--recursive",
        ),
        (
            &[
                "--serve",
                "--root",
                &root,
                "--key-file",
                &keys,
                "--read-only",
                "--write-only",
            ],
            "--write-only",
        ),
        (&["--root", &root, "a", "b"], "--serve"),
        (&["-m", "1G", "a", "b"], "--serve"),
        (&["--new-key", "two words"], "neither ro, wo or append"),
    ];
    for (arguments, word) in wrong {
        rdcp(*arguments).start().end().tells(2, &[word]);
    }
    let serve = |options: &[&str]| {
        let words = ["--serve", "--listen-port", "0", "--key-file", &keys];
        rdcp(words).args(options).start().end()
    };
    let small = ["--root", &root, "-m", "1M"];
    assert!(serve(&small).stderr.contains("at least -m 256M"));
    serve(&["--root", "/nonexistent"]).tells(1, &["/nonexistent"]);
    fs::write(&keys, "alice rdk1short").unwrap();
    serve(&["--root", &root]).tells(2, &["line 1"]);
    fs::write(&keys, "alice a-long-secret-of-alice\nbob hunter2\n").unwrap();
    let end = serve(&["--root", &root]);
    end.tells(
        1,
        &["line 2: a key of fewer than 16 characters", "--new-key"],
    );
    assert!(!end.stderr.contains("hunter2"), "{}", end.stderr);
}

#[test]
fn a_client_that_stalls_holds_up_no_other() {
    let served = Served::start(&["--max-clients", "2"]);
    fs::write(served.here("file"), vec![7; 40 << 20]).unwrap();
    let stalled = served
        .alice(&["--bwlimit", "1M", "%file", "@stalled"])
        .start();
    eventually("a copy that runs", || {
        (!served.temporaries("stalled").is_empty()).then_some(())
    });
    stalled.signal(Signal::STOP);
    for number in ["1", "2", "3"] {
        let there = format!("@{number}");
        served
            .client("bob", &["%file", &there])
            .start()
            .end()
            .exits(0);
    }
    stalled.kill();
    stalled.end();
}
