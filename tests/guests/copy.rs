//! Copies of rdcp between guests: a tree with everything nasty, and large files. The file system that the guests share
//! with this machine keeps less than theirs, so the trees are on their own, and the comparisons run there.

use std::{fs, process::Command, thread};

use serde_json::Value;

use crate::support::programs::End;
use crate::support::programs::hosts::Network;
use crate::trees;

/// Runs a line of shell on a guest, and returns its stdout; the line must succeed.
#[track_caller]
fn on(network: &Network, host: &str, line: &str) -> String {
    let end = network.ssh(host, line).start().end();
    end.exits(0);
    String::from_utf8_lossy(&end.stdout).into_owned()
}

/// Copies from one guest to another, and checks that every stream between the two is RDMA.
#[track_caller]
fn copy(network: &Network, options: &[&str], from: &str, to: &str) -> End {
    // An emulated processor needs a long timeout.
    let arguments = [
        &["-a", "--json=-", "--timeout", "120"],
        options,
        &[from, to],
    ]
    .concat();
    let end = network.rdcp(arguments).start().end();
    println!("{from} to {to}:\n{}", end.stderr);
    end.exits(0);
    let report: Value = serde_json::from_slice(&end.stdout).expect("one object");
    let links = report["copies"][0]["links"].as_array().expect("links");
    assert!(links.len() >= 2, "{report:#}");
    for link in links {
        assert_eq!(link["transport"], "rdma", "{report:#}");
    }
    end
}

/// Unpacks a tree with everything nasty at /tmp/tree of these guests.
fn unpack(network: &Network, hosts: &[&str]) {
    let archive = network.file("ctl", "tree.tar");
    if !archive.exists() {
        let local = tempfile::tempdir().expect("a directory");
        let tree = local.path().join("tree");
        trees::nasty(&tree, 200);
        // tar keeps no sockets.
        fs::remove_file(tree.join("special/socket")).expect("a socket");
        let tar = Command::new("tar")
            .args([
                "--format=pax",
                "--acls",
                "--xattrs",
                "--xattrs-include=*",
                "-S",
                "-cf",
            ])
            .arg(&archive)
            .arg("-C")
            .args([local.path(), "tree".as_ref()])
            .status();
        assert!(tar.expect("tar").success());
    }
    for host in hosts {
        let line = format!(
            "rm -rf /tmp/tree && tar --acls --xattrs --xattrs-include='*' --numeric-owner -xpSf {} -C /tmp",
            archive.display()
        );
        on(network, host, &line);
    }
}

#[test]
fn a_tree_with_everything_nasty_arrives_over_rdma() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    unpack(&network, &["h1", "h2"]);
    on(&network, "h2", "rm -rf /tmp/copy");
    copy(&network, &[], "h1:/tmp/tree", "h2:/tmp/copy");
    let rsync = "rsync -aHAXSnci --modify-window=-1 --delete /tmp/tree/ /tmp/copy/";
    assert_eq!(on(&network, "h2", rsync), "");
    copy(
        &network,
        &["--skip-same", "-T"],
        "h1:/tmp/tree",
        "h2:/tmp/copy",
    );
    assert_eq!(on(&network, "h2", rsync), "");
    on(&network, "h2", "rm -rf /tmp/copy");
}

#[test]
fn a_large_file_is_striped_over_rdma() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    on(&network, "h1", "head -c 25000001 /dev/urandom >/tmp/large");
    copy(&network, &["-j", "2"], "h1:/tmp/large", "h2:/tmp/large");
    let [original, arrived] = ["h1", "h2"].map(|host| on(&network, host, "cksum </tmp/large"));
    assert_eq!(original, arrived);
    on(&network, "h2", "rm /tmp/large");
}

#[test]
fn a_cut_copy_over_rdma_is_resumed() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    on(
        &network,
        "h1",
        "head -c 50000001 /dev/urandom >/tmp/resumed",
    );
    let arguments = [
        "-a",
        "--bwlimit",
        "2M",
        "--timeout",
        "120",
        "h1:/tmp/resumed",
        "h2:/tmp/resumed",
    ];
    let rdcp = network.rdcp(arguments).start();
    // The map comes with the first 8 MiB, after four seconds, and the copy takes twenty more: an emulated processor
    // needs some of them to start these programs.
    let line = "until [ -s /tmp/.resumed.rdcp-map ]; do sleep 0.1; done; \
                kill -9 $(grep -ls -e '--agent=worke[r]' /proc/[0-9]*/cmdline | cut -d / -f 3)";
    let _ = network.ssh("h2", line).start().end();
    assert_eq!(rdcp.end().code(), 255);
    copy(
        &network,
        &["--resume"],
        "h1:/tmp/resumed",
        "h2:/tmp/resumed",
    );
    let [original, arrived] = ["h1", "h2"].map(|host| on(&network, host, "cksum </tmp/resumed"));
    assert_eq!(original, arrived);
    on(&network, "h2", "rm /tmp/resumed");
}

/// The size of the file of each client of the server.
const SERVED_BYTES: usize = 12_000_001;

#[test]
fn two_clients_of_one_server_copy_over_rdma_at_once() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    let keys = network.file("ctl", "keys").display().to_string();
    on(
        &network,
        "h1",
        "rm -rf /tmp/root; mkdir /tmp/root; rm -f /tmp/keys; rdcp --new-key client --key-file /tmp/keys",
    );
    on(&network, "h1", &format!("cp /tmp/keys {keys}"));
    for host in ["h2", "h3"] {
        on(
            &network,
            host,
            &format!("cp {keys} /tmp/keys; chmod 600 /tmp/keys"),
        );
        on(
            &network,
            host,
            &format!("head -c {SERVED_BYTES} /dev/urandom >/tmp/served"),
        );
    }
    let serve = "exec rdcp --serve --root /tmp/root --key-file /tmp/keys --transport rdma --timeout 120 --listen-port 10470";
    let server = network.ssh("h1", serve).start();
    server.port();
    let address = on(
        &network,
        "h1",
        "ip -o -4 addr show scope global | awk '{ print $4 }' | cut -d / -f 1 | head -n 1",
    );
    let address = address.trim();
    // Both at once, there and back.
    thread::scope(|scope| {
        let both = ["h2", "h3"].map(|host| {
            let (network, operands) = (&network, format!("/tmp/served {address}:10470:{host}"));
            scope.spawn(move || served(network, host, &operands))
        });
        for sending in both {
            sending.join().expect("a client");
        }
    });
    for host in ["h2", "h3"] {
        let sums = [
            on(&network, host, "cksum </tmp/served"),
            on(&network, "h1", &format!("cksum </tmp/root/{host}")),
        ];
        assert_eq!(sums[0], sums[1]);
        served(&network, host, &format!("{address}:10470:{host} /tmp/back"));
        assert_eq!(on(&network, host, "cksum </tmp/back"), sums[0]);
    }
    let pinned = on(&network, "h1", "grep VmPin /proc/$(pgrep -x rdcp)/status");
    println!("the server after both: {pinned}");
    assert!(pinned.ends_with(" 0 kB\n"), "{pinned}");
    on(&network, "h1", "pkill -TERM -x rdcp");
    server.end().exits(0);
}

/// Runs a client of the server on a host, and checks that all of its streams are RDMA.
#[track_caller]
fn served(network: &Network, host: &str, operands: &str) {
    let line = format!("rdcp --json=- --timeout 120 --key-file /tmp/keys {operands}");
    let report: Value = serde_json::from_str(&on(network, host, &line)).expect("one object");
    let links = report["copies"][0]["links"].as_array().expect("links");
    assert!(links.len() >= 2, "{report:#}");
    for link in links {
        assert_eq!(link["transport"], "rdma", "{report:#}");
    }
}
