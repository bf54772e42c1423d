//! --resume continues where a run was cut, sends little more than what was missing, and trusts nothing that it should
//! not.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::PathBuf,
};

use super::{
    compare::{assert_no_partial_file, assert_same, is_temporary},
    deaths::{arrived, arrives},
    trees::{large, small, stamp},
};
use crate::support::{
    is_full,
    programs::{
        hosts::{GONE, Network, Outcome},
        local_hosts::Hosts,
        random_bytes,
    },
};

/// Returns the bytes that the interface of a host has received.
fn received(network: &Network, host: &str) -> u64 {
    let count = network.on(host, "cat /sys/class/net/eth0/statistics/rx_bytes");
    count.trim().parse().expect("a number")
}

fn temporary(at: &std::path::Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(at).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| is_temporary(path));
    paths.sort();
    paths
}

/// Copies a file of `bytes` bytes between two hosts, and kills the source's worker when `share` percent have arrived.
fn cut_at(network: &Network, bytes: u64, share: u64, options: &[&str]) -> u64 {
    fs::create_dir_all(network.file("h2", "there")).unwrap();
    let file = network.file("h1", "big");
    if !file.exists() {
        large(&file, bytes);
    }
    let arguments = [&["-a"], options, &["h1:big", "h2:there/big"]].concat();
    let rdcp = network.rdcp(arguments).start();
    let there = network.file("h2", "there");
    let runs = arrives(&rdcp, &there, bytes * share / 100);
    network.process("h1", "--agent=worker").kill();
    let end = rdcp.end();
    assert!(runs, "it ended too early: {end:?}");
    end.tells(255, &["h1", "signal 9"]);
    network.assert_empty(end.at, GONE);
    assert!(!there.join("big").exists());
    arrived(&there)
}

#[test]
fn a_resumed_run_sends_what_was_missing() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let (bytes, slack) = if is_full() {
        (4 << 30, 64 << 20)
    } else {
        (256 << 20, 32 << 20)
    };
    // At a limited speed, so that a busy machine kills in time.
    let limit = if is_full() { "1G" } else { "300M" };
    // With -j the lanes share the file on any machine.
    let kept = cut_at(&network, bytes, 60, &["--bwlimit", limit, "-j", "2"]);
    let before = received(&network, "h2");
    let arguments = ["-a", "-j", "2", "--resume", "h1:big", "h2:there/big"];
    let end = network.rdcp(arguments).start().end();
    end.exits(0);
    let sent = received(&network, "h2") - before;
    let missing = bytes.saturating_sub(kept);
    println!("{kept} of {bytes} were there, {missing} missing, {sent} sent");
    // The headers of packets, and the session of ssh, are counted too.
    let most = (missing + slack) / 100 * 101 + (1 << 20);
    assert!(sent <= most, "{sent} bytes for {missing} that were missing");
    assert_same(&network.file("h1", "big"), &network.file("h2", "there/big"));
    assert_eq!(temporary(&network.file("h2", "there")), [] as [PathBuf; 0]);
}

#[test]
fn after_a_reboot_what_was_written_is_compared() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let bytes = 96 << 20;
    cut_at(&network, bytes, 60, &["--bwlimit", "150M"]);
    // A crash of the machine may lose what was not synced.
    let there = network.file("h2", "there");
    let part = temporary(&there).into_iter();
    let part = part
        .max_by_key(|path| path.metadata().unwrap().len())
        .unwrap();
    let part = File::options().write(true).open(part).unwrap();
    for offset in [0, 5 << 20, 20 << 20] {
        part.write_all_at(&random_bytes(4096), offset).unwrap();
    }
    network.on(
        "h2",
        "echo 01234567-89ab-cdef-0123-456789abcdef >boot_id && mount --bind boot_id /proc/sys/kernel/random/boot_id",
    );
    let arguments = ["-a", "--resume", "h1:big", "h2:there/big"];
    let before = received(&network, "h2");
    network.rdcp(arguments).start().end().exits(0);
    let sent = received(&network, "h2") - before;
    println!("{sent} of {bytes} sent");
    assert!(sent < bytes * 9 / 10, "{sent} bytes sent");
    assert_same(&network.file("h1", "big"), &there.join("big"));
}

#[test]
fn a_file_that_changed_since_is_copied_anew() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let bytes = 64 << 20;
    let file = network.file("h1", "big");
    for change in 0..3 {
        cut_at(&network, bytes, 50, &["--bwlimit", "100M"]);
        match change {
            // Other contents of the same size.
            0 => fs::write(&file, random_bytes(64 << 20)).unwrap(),
            // Shorter than what has arrived.
            1 => fs::write(&file, random_bytes(5 << 20)).unwrap(),
            _ => large(&file, 70 << 20),
        }
        let arguments = ["-a", "--resume", "h1:big", "h2:there/big"];
        network.rdcp(arguments).start().end().exits(0);
        assert_same(&file, &network.file("h2", "there/big"));
        assert_eq!(temporary(&network.file("h2", "there")), [] as [PathBuf; 0]);
        fs::remove_file(&file).unwrap();
        fs::remove_dir_all(network.file("h2", "there")).unwrap();
    }
}

#[test]
fn a_file_that_changed_and_kept_its_size_and_time_is_compared() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let bytes = 64 << 20;
    cut_at(&network, bytes, 60, &["--bwlimit", "100M"]);
    let file = network.file("h1", "big");
    let time = fs::metadata(&file).unwrap().modified().unwrap();
    let big = File::options().write(true).open(&file).unwrap();
    big.write_all_at(b"other contents", 100).unwrap();
    big.set_modified(time).unwrap();
    drop(big);
    let arguments = ["-a", "--resume", "h1:big", "h2:there/big"];
    let before = received(&network, "h2");
    network.rdcp(arguments).start().end().exits(0);
    let sent = received(&network, "h2") - before;
    println!("{sent} of {bytes} sent");
    assert!(sent < bytes * 9 / 10, "{sent} bytes sent");
    assert_same(&file, &network.file("h2", "there/big"));
    assert_eq!(temporary(&network.file("h2", "there")), [] as [PathBuf; 0]);
}

#[test]
fn a_damaged_map_is_not_believed() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let file = network.file("h1", "big");
    for damage in 0..4 {
        cut_at(&network, 48 << 20, 50, &["--bwlimit", "80M"]);
        let there = network.file("h2", "there");
        let map = temporary(&there).into_iter();
        let map = map
            .min_by_key(|path| path.metadata().unwrap().len())
            .unwrap();
        let content = fs::read(&map).unwrap();
        match damage {
            0 => fs::write(&map, b"").unwrap(),
            // The last record was cut by a death of the machine.
            1 => fs::write(&map, &content[..content.len() - 3]).unwrap(),
            2 => fs::write(&map, random_bytes(content.len())).unwrap(),
            _ => fs::remove_file(&map).unwrap(),
        }
        let arguments = ["-a", "--resume", "h1:big", "h2:there/big"];
        let end = network.rdcp(arguments).start().end();
        end.exits(0);
        end.is_silent_on(&["panicked"]);
        assert_same(&file, &there.join("big"));
        fs::remove_dir_all(there).unwrap();
    }
}

#[test]
fn two_runs_do_not_write_one_file() {
    let hosts = Hosts::new("");
    hosts.file("h1", "beside", b"beside");
    large(&hosts.path("h1", "large"), 6 << 20);
    fs::create_dir_all(hosts.path("h2", "")).unwrap();
    // Slow enough that both other runs end before it.
    let arguments = ["-a", "--bwlimit", "1M", "h1:large", "h2:"];
    let first = hosts.rdcp(&arguments).start();
    assert!(arrives(&first, &hosts.path("h2", ""), 1 << 20));
    for option in ["-a", "--resume"] {
        let arguments = [option, "h1:large", "h1:beside", "h2:"];
        let second = hosts.rdcp(&arguments).start().end();
        second.tells(1, &["large", "another copy"]);
        assert_eq!(hosts.read("h2", "beside"), b"beside");
    }
    first.end().exits(0);
    let [original, copy] = ["h1", "h2"].map(|host| hosts.path(host, "large"));
    assert_same(&original, &copy);
}

#[test]
fn resume_skips_nothing_and_keeps_what_is_complete() {
    let hosts = Hosts::new("");
    let original = hosts.path("h1", "tree");
    small(&original, 50, 1000);
    large(&original.join("large"), 9 << 20);
    // Without an unfinished file, --resume is a plain copy.
    for _ in 0..2 {
        let arguments = ["-aT", "--resume", "h1:tree", "h2:tree"];
        hosts.rdcp(&arguments).start().end().exits(0);
        assert_same(&original, &hosts.path("h2", "tree"));
    }
    // A file that is complete and older than the source's is replaced.
    stamp(&hosts.path("h2", "tree/large"), 1000, 0);
    fs::write(hosts.path("h2", "tree/large"), b"old").unwrap();
    let arguments = ["-aT", "--resume", "h1:tree", "h2:tree"];
    hosts.rdcp(&arguments).start().end().exits(0);
    assert_same(&original, &hosts.path("h2", "tree"));
    assert!(assert_no_partial_file(&original, &hosts.path("h2", "tree")).is_empty());
}
