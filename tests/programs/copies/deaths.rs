//! What ends a copy at random moments: a process is killed, the network is cut, the disk is full. No partial file, the
//! cause first, no process left, and a second run completes.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    compare::{assert_no_partial_file, assert_same},
    trees::{large, small, stamp},
};
use crate::support::{
    is_full,
    limits::patience,
    programs::{
        End, Random, Running, eventually,
        hosts::{GONE, Network, Outcome, Process},
    },
    random::seed,
};

const TREE_BYTES: u64 = 150 * (16 << 10) + (14 << 20) + (3 << 20);

/// A copy from one host to another, of a tree that is on all hosts. `ctl` is this machine, without ssh.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    from: &'static str,
    to: &'static str,
}

/// All ways that have a host other than this machine.
pub(crate) const WAYS: [Way; 3] = [
    Way {
        from: "h1",
        to: "h2",
    },
    Way {
        from: "ctl",
        to: "h1",
    },
    Way {
        from: "h2",
        to: "ctl",
    },
];

impl Way {
    /// Returns rdcp for this way, to be started.
    pub(crate) fn start(self, network: &Network, options: &[&str]) -> Running {
        let operand = |host: &str, path: &str| match host {
            "ctl" => format!("./{path}"),
            _ => format!("{host}:{path}"),
        };
        let [from, to] = [operand(self.from, "tree"), operand(self.to, "copy")];
        let options = [&["-aT"], options].concat();
        let setup = network.rdcp(options).arg(from).arg(to);
        setup.start()
    }

    /// Returns the end that is not this machine.
    pub(crate) fn host(self) -> &'static str {
        if self.from == "ctl" {
            self.to
        } else {
            self.from
        }
    }

    pub(crate) fn copy(self, network: &Network) -> PathBuf {
        network.file(self.to, "copy")
    }

    pub(crate) fn original(self, network: &Network) -> PathBuf {
        network.file(self.from, "tree")
    }

    /// Copies at a limited speed up to a random moment, calls `spoil`, and returns how rdcp ended. The copy has no
    /// partial file then, whatever happened.
    pub(crate) fn spoilt(
        self,
        network: &Network,
        random: &mut Random,
        options: &[&str],
        spoil: impl FnOnce(&Running),
    ) -> End {
        let options = [&["--bwlimit", "24M"], options].concat();
        let rdcp = self.start(network, &options);
        let moment = random.within(0..TREE_BYTES * 3 / 4);
        let copy = self.copy(network);
        arrives(&rdcp, &copy, moment);
        spoil(&rdcp);
        let end = rdcp.end();
        println!("{self:?} at byte {moment}: {:?}", end.stderr);
        end.is_silent_on(&["panicked"]);
        end
    }

    /// Checks what a run that was spoilt has left, completes it with `--resume`, and removes the copy.
    pub(crate) fn completes(self, network: &Network) {
        let [original, copy] = [self.original(network), self.copy(network)];
        let temporary = assert_no_partial_file(&original, &copy);
        println!("left: {temporary:?}");
        // A killed process cannot remove the names of its small files.
        for name in temporary.iter().map(|name| copy.join(name)) {
            if name
                .file_name()
                .unwrap()
                .to_string_lossy()
                .starts_with(".rdcp-")
            {
                let _ = std::fs::remove_file(name);
            }
        }
        self.start(network, &["--resume"]).end().exits(0);
        assert_same(&original, &copy);
        std::fs::remove_dir_all(copy).unwrap();
        is_empty(network);
    }
}

/// Makes two hosts, with the same tree on each and on this machine.
pub(crate) fn hosts() -> Option<Network> {
    let network = Network::new(2)?;
    for host in ["h1", "h2", "ctl"] {
        let tree = network.file(host, "tree");
        for folder in ["a", "b/c", "d"] {
            small(&tree.join(folder), 50, 16 << 10);
            stamp(&tree.join(folder), 1_000_000, 1);
        }
        large(&tree.join("b/large"), 14 << 20);
        large(&tree.join("medium"), 3 << 20);
        stamp(&tree, 1_000_000, 7);
    }
    Some(network)
}

/// Waits until the sessions of sshd have ended, which they do a moment after their clients.
pub(crate) fn is_empty(network: &Network) {
    eventually("empty hosts", || {
        let mut hosts = network.hosts().chain(["ctl".to_owned()]);
        hosts
            .all(|host| network.processes(&host).is_empty())
            .then_some(())
    });
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Killed {
    Controller,
    ControllerAndSsh,
    Worker(Half),
    Guard(Half),
    SshClient(Half),
    SshSession(Half),
    Everything(Half),
}

/// One end of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    Source,
    Destination,
}

impl Killed {
    fn all() -> Vec<(Way, Self)> {
        let mut all = Vec::new();
        for way in WAYS {
            all.extend([(way, Self::Controller), (way, Self::ControllerAndSsh)]);
            for end in [Half::Source, Half::Destination] {
                all.extend([(way, Self::Worker(end)), (way, Self::Guard(end))]);
                if end.host(way) != "ctl" {
                    all.extend([
                        (way, Self::SshClient(end)),
                        (way, Self::SshSession(end)),
                        (way, Self::Everything(end)),
                    ]);
                }
            }
        }
        all
    }

    /// Returns the exit status of rdcp, and what the first line of its messages has.
    fn expected(self, way: Way) -> (i32, Vec<&'static str>) {
        let host = |end: Half| match end.host(way) {
            "ctl" => "here",
            host => host,
        };
        match self {
            Self::Controller | Self::ControllerAndSsh => (-9, vec![]),
            Self::Worker(end) => (255, vec![host(end), "signal 9"]),
            Self::Guard(end)
            | Self::SshClient(end)
            | Self::SshSession(end)
            | Self::Everything(end) => (255, vec![host(end)]),
        }
    }

    fn kill(self, network: &Network, way: Way, rdcp: &Running) {
        let processes: Vec<Process> = match self {
            Self::Controller => vec![],
            Self::ControllerAndSsh => network.processes("ctl"),
            Self::Worker(end) => found(network, end.host(way), Process::is_worker),
            Self::Guard(end) => found(network, end.host(way), |process| {
                process.children().iter().any(Process::is_worker)
            }),
            Self::SshClient(end) => found(network, "ctl", |process| {
                process.line.contains(&format!(" {} ", end.host(way)))
                    && process.line.contains("ssh")
            }),
            Self::SshSession(end) => found(network, end.host(way), |process| {
                process.line.starts_with("sshd: root")
            }),
            Self::Everything(end) => network.processes(end.host(way)),
        };
        if matches!(self, Self::Controller | Self::ControllerAndSsh) {
            rdcp.kill();
        }
        for process in processes {
            process.kill();
        }
    }
}

impl Half {
    fn host(self, way: Way) -> &'static str {
        match self {
            Self::Source => way.from,
            Self::Destination => way.to,
        }
    }
}

fn found(network: &Network, host: &str, is_it: impl Fn(&Process) -> bool) -> Vec<Process> {
    let mut all = network.processes(host);
    all.retain(is_it);
    all.truncate(1);
    all
}

#[test]
fn a_process_killed_at_any_moment_leaves_no_partial_file_and_no_process() {
    let Some(network) = hosts() else {
        return;
    };
    let mut random = Random::new(0xC0B1);
    let mut deaths = Killed::all();
    let rounds = if is_full() { 50 } else { 8 };
    println!("RDPIPE_TEST_SEED={}", seed());
    for round in 0..rounds {
        if deaths.is_empty() {
            deaths = Killed::all();
        }
        let which = random.within(0..deaths.len() as u64);
        let (way, killed) = deaths.swap_remove(usize::try_from(which).unwrap());
        println!("round {round}: {killed:?}");
        let mut since = Instant::now();
        let end = way.spoilt(&network, &mut random, &[], |rdcp| {
            since = Instant::now();
            killed.kill(&network, way, rdcp);
        });
        network.assert_empty(since, GONE);
        // It may have been complete already, at a moment near the end.
        if end.code() == 0 {
            assert_same(&way.original(&network), &way.copy(&network));
        } else {
            let (code, words) = killed.expected(way);
            end.exits(code);
            let first = end.stderr.lines().next().unwrap_or_default();
            for word in words {
                assert!(first.contains(word), "not {word:?} first:\n{}", end.stderr);
            }
        }
        way.completes(&network);
    }
}

/// After this much silence, the network counts as cut.
const SILENCE: Duration = Duration::from_secs(1);

#[test]
fn a_cut_network_leaves_no_partial_file_and_no_process() {
    let Some(network) = hosts() else {
        return;
    };
    let mut random = Random::new(0xC07);
    let rounds = if is_full() { 12 } else { 2 };
    let timeout = patience(SILENCE);
    let seconds = timeout.as_secs().to_string();
    for round in 0..rounds {
        // The first way is the one between two other hosts.
        let way = WAYS[round % WAYS.len()];
        let host = if round % 2 == 0 { "h1" } else { "h2" };
        let host = if round % WAYS.len() == 0 {
            host
        } else {
            way.host()
        };
        let mut since = Instant::now();
        let options = ["--timeout", &seconds];
        let end = way.spoilt(&network, &mut random, &options, |_| {
            since = Instant::now();
            network.on(host, "ip link set eth0 down");
        });
        // sshd goes on waiting for a client that it cannot reach; rdcp has no influence on that.
        network.assert_empty_but(since + timeout, GONE, Process::is_sshd);
        if end.code() != 0 {
            end.tells(255, &[host]);
        }
        assert_no_partial_file(&way.original(&network), &way.copy(&network));
        network.on(host, "ip link set eth0 up");
        end_sessions(&network);
        way.completes(&network);
    }
}

#[test]
fn a_cut_between_two_hosts_fails_the_copy_and_names_them() {
    let Some(network) = hosts() else {
        return;
    };
    let mut random = Random::new(0xB1);
    let timeout = patience(SILENCE);
    let seconds = timeout.as_secs().to_string();
    let way = WAYS[0];
    // The controller still reaches both.
    let routes = |what: &str| {
        network.on("h1", &format!("ip route {what} blackhole 10.77.0.2/32"));
        network.on("h2", &format!("ip route {what} blackhole 10.77.0.1/32"));
    };
    let mut since = Instant::now();
    let options = ["--timeout", &seconds];
    let end = way.spoilt(&network, &mut random, &options, |_| {
        since = Instant::now();
        routes("add");
    });
    network.assert_empty(since + timeout, GONE);
    if end.code() != 0 {
        end.tells(255, &["h1", "h2"]);
    }
    routes("del");
    way.completes(&network);
}

/// Kills the sessions of sshd that wait for a client that is gone.
fn end_sessions(network: &Network) {
    for host in network.hosts() {
        for process in network.processes(&host) {
            process.kill();
        }
    }
    is_empty(network);
}

#[test]
fn a_full_disk_fails_the_files_that_have_no_space() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let tree = network.file("h1", "tree");
    small(&tree, 200, 20_000);
    large(&tree.join("large"), 12 << 20);
    fs::write(tree.join("tiny"), b"tiny").unwrap();
    network.on(
        "h2",
        "mkdir disk && mount -t tmpfs -o size=8m,mode=755 tmpfs disk",
    );
    let end = network.rdcp(["-a", "h1:tree", "h2:disk/"]).start().end();
    end.tells(1, &["No space left", "h2"]);
    end.is_silent_on(&["panicked"]);
    // What has its final name is whole; `cmp` tells of the first difference.
    let original = tree.display();
    let check = format!(
        "cd disk/tree && find . -type f ! -name '.*' -exec cmp {{}} {original}/{{}} ';' && find . -type f ! -name '.*' | wc -l"
    );
    let whole: usize = network.on("h2", &check).trim().parse().unwrap();
    assert!((1..202).contains(&whole), "{whole}\n{}", end.stderr);
    let failed = end.stderr.lines();
    let failed = failed.filter(|line| line.contains("No space left"));
    assert!(failed.count() >= 1, "{}", end.stderr);
    // With space, a later run completes.
    network.on("h2", "mount -o remount,size=64m disk");
    let end = network
        .rdcp(["-a", "--resume", "h1:tree", "h2:disk/"])
        .start();
    end.end().exits(0);
    let rsync = format!("rsync -aHAXSnci --modify-window=-1 --delete {original}/ disk/tree/");
    assert_eq!(network.on("h2", &rsync), "");
}

#[test]
fn a_disk_without_inodes_fails_the_files_that_have_none() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let tree = network.file("h1", "tree");
    small(&tree, 100, 100);
    network.on(
        "h2",
        "mkdir disk && mount -t tmpfs -o nr_inodes=50 tmpfs disk",
    );
    let end = network.rdcp(["-a", "h1:tree", "h2:disk/"]).start().end();
    end.tells(1, &["No space left", "file "]);
    let count = network.on("h2", "find disk -type f | wc -l");
    assert!(count.trim().parse::<usize>().unwrap() > 30, "{count}");
}

#[test]
fn a_read_only_disk_is_named() {
    let Some(network) = Network::new(2) else {
        return;
    };
    small(&network.file("h1", "tree"), 10, 100);
    network.on("h2", "mkdir disk && mount -t tmpfs -o ro tmpfs disk");
    let end = network.rdcp(["-a", "h1:tree", "h2:disk/"]).start().end();
    end.tells(1, &["Read-only file system", "h2"]);
}

/// Waits until a copy has `bytes` bytes on the disk, or until rdcp has ended. Returns true if rdcp still runs.
pub(crate) fn arrives(rdcp: &Running, copy: &Path, bytes: u64) -> bool {
    eventually("bytes to arrive", || {
        (arrived(copy) >= bytes || !rdcp.runs()).then_some(())
    });
    rdcp.runs()
}

/// Returns the bytes that the files at and below a path take on the disk.
pub(crate) fn arrived(at: &Path) -> u64 {
    // Entries come and go while they are counted.
    let Ok(info) = fs::symlink_metadata(at) else {
        return 0;
    };
    if !info.is_dir() {
        return info.blocks() * 512;
    }
    let entries = fs::read_dir(at).into_iter().flatten().flatten();
    entries.map(|entry| arrived(&entry.path())).sum()
}
