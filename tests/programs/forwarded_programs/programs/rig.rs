//! The two hosts between which programs run, and how much they do there.

use std::{env, path::Path, process::Command, str::FromStr, time::Duration};

use super::ways::{Tunnel, Way};
use crate::support::{
    is_full,
    programs::{
        generous,
        hosts::Network,
        servers::{Server, Service, scratch},
        skip,
    },
};

/// The host on which the clients run.
pub(crate) const NEAR: &str = "h1";

/// The host on which the servers run.
pub(crate) const FAR: &str = "h2";

/// The address of [`FAR`].
pub(crate) const FAR_ADDRESS: &str = "10.77.0.2";

/// Two hosts, with what the machine allows the programs to do on them.
pub(crate) struct Rig {
    pub(crate) network: Network,
    /// What carries the data of rdforward: `tcp` or `rdma`.
    pub(crate) transport: &'static str,
    pub(crate) sizes: Sizes,
}

/// How much the programs do.
pub(crate) struct Sizes {
    /// The connections that are open at once.
    pub(crate) connections: usize,
    /// The clients of a database.
    pub(crate) clients: usize,
    /// The requests of a load generator.
    pub(crate) requests: usize,
    /// The bytes of large files and results.
    pub(crate) bytes: usize,
    /// The time of a program that runs for a time, in seconds.
    pub(crate) seconds: u64,
}

impl Rig {
    /// Makes two hosts of namespaces, with TCP between them; `None` without `--full`, and where hosts are impossible.
    #[allow(dead_code, reason = "tests/guests/forward.rs runs in guests only")]
    #[track_caller]
    pub(crate) fn of_namespaces() -> Option<Self> {
        if !is_full() {
            return None;
        }
        Some(Self {
            network: Network::new(2)?,
            transport: "tcp",
            sizes: Sizes {
                connections: 1000,
                clients: setting("RDPIPE_PROGRAM_CLIENTS", 50),
                requests: 20_000,
                bytes: 50_000_000,
                seconds: setting("RDPIPE_PROGRAM_SECONDS", 5),
            },
        })
    }

    /// Returns two guests, with soft-RoCE between them; `None` without `--full` and without `scripts/guests`.
    #[allow(dead_code, reason = "only tests/guests/forward.rs runs in guests")]
    pub(crate) fn of_guests() -> Option<Self> {
        if !is_full() {
            return None;
        }
        // An emulated processor is some 17 times slower, and a guest has one, and 1 GB of memory.
        Some(Self {
            network: Network::of_guests()?,
            transport: "rdma",
            sizes: Sizes {
                connections: 100,
                clients: setting("RDPIPE_PROGRAM_CLIENTS", 10),
                requests: 400,
                bytes: 3_000_000,
                seconds: setting("RDPIPE_PROGRAM_SECONDS", 5),
            },
        })
    }

    /// Starts a server on [`FAR`].
    #[track_caller]
    pub(crate) fn serve(&self, service: &Service) -> Server {
        Server::start(&self.network, FAR, service)
    }

    /// Opens a way to the port of a server on [`FAR`].
    #[track_caller]
    pub(crate) fn open(&self, way: Way, port: u16) -> Tunnel<'_> {
        Tunnel::open(self, way, port)
    }

    /// Runs a script of bash on a host, in a directory for what it writes, and returns its stdout. The script must
    /// succeed. Its guard is longer by `time`, the time for which the script runs on purpose.
    #[track_caller]
    pub(crate) fn runs(&self, host: &str, time: Duration, before: &str, script: &str) -> String {
        let name = "client.sh";
        let script = format!("set -eo pipefail\nulimit -n 16384\n{script}\n");
        let path = self.network.write(host, name, script.as_bytes());
        let directory = scratch(&self.network, host).join("client");
        let directory = directory.display();
        let line = format!(
            "rm -rf {directory} && mkdir {directory} && cd {directory} && {before} bash {}",
            path.display()
        );
        let running = self.network.ssh(host, &line).start();
        running.ends_within(time + generous());
        let end = running.end();
        let stdout = String::from_utf8_lossy(&end.stdout).into_owned();
        assert_eq!(
            end.code(),
            0,
            "{script}\nfailed on {host}:\n{stdout}\n{}",
            end.stderr
        );
        stdout
    }

    /// Runs a script of bash in the directory of a server on [`FAR`], and returns its stdout. The script must succeed.
    #[track_caller]
    pub(crate) fn beside(&self, directory: &Path, script: &str) -> String {
        let script = format!("cd {}\n{script}", directory.display());
        self.runs(FAR, Duration::ZERO, "", &script)
    }
}

/// Returns true, and prints the reason, if this machine has not all of these programs.
pub(crate) fn lacks(programs: &[&str]) -> bool {
    let is_there = |program: &str| {
        let found = Command::new("which").arg(program).output();
        found.is_ok_and(|output| output.status.success())
    };
    let missing: Vec<_> = programs.iter().filter(|name| !is_there(name)).collect();
    if !missing.is_empty() {
        skip(&format!(
            "there is no {missing:?}: run scripts/setup --full"
        ));
    }
    !missing.is_empty()
}

/// Returns the number that a variable of the environment has, or `usual` if it is not set.
fn setting<T: FromStr>(variable: &str, usual: T) -> T {
    let given = env::var(variable).ok();
    given.map_or(usual, |text| {
        let number = text.parse().ok();
        number.unwrap_or_else(|| panic!("{variable} is no number: {text}"))
    })
}
