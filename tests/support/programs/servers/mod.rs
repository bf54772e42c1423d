//! Server programs of Debian on the hosts of a network, unmodified, each started as its manual says.
//!
//! A server runs until its [`Server`] is dropped, under an ordinary user where it can, in a directory of its own.

mod databases;
mod files;
mod speed;
mod web;

pub use databases::{postgres, redis};
pub use files::{git, rsync};
pub use speed::{iperf, ready_for_test};
pub use web::nginx;

use std::{
    path::{Path, PathBuf},
    process::{ChildStdin, Stdio},
};

use super::{Running, generous, hosts::Network};

/// What a host has to run as a server.
pub struct Service {
    /// The name of its directory, and of its script.
    pub name: &'static str,
    /// The port on which it listens.
    pub port: u16,
    /// A script of bash that prepares the current directory, and then becomes the server by `exec`.
    pub script: String,
    /// The words on stderr that say that it is ready, or [`LISTENING`].
    pub ready: &'static str,
    /// The signal that ends it in order.
    pub stop: &'static str,
    /// True for a server that runs as root.
    pub is_root: bool,
}

/// What the script on the host prints when the port of a server is open.
pub const LISTENING: &str = "== the port is open";

/// What the script on the host prints if the server has ended before it was stopped.
const GONE: &str = "== the server has ended by itself";

/// A server that runs on a host. Dropping it ends the server and removes its directory.
pub struct Server {
    /// The connection of ssh to the script that holds the server.
    script: Running,
    /// The server runs until this is closed.
    stdin: Option<ChildStdin>,
    name: &'static str,
    directory: PathBuf,
}

impl Server {
    /// Starts a server on a host, and waits until it is ready.
    #[track_caller]
    pub fn start(network: &Network, host: &str, service: &Service) -> Self {
        let directory = scratch(network, host).join(service.name);
        let name = service.name;
        let inner = format!("{name}.server");
        let inner = network.write(host, &inner, service.script.as_bytes());
        let outer = held(service, &directory, &inner);
        let outer = network.write(host, &format!("{name}.held"), outer.as_bytes());
        let line = format!("exec bash {}", outer.display());
        let mut script = network.ssh(host, &line).stdin(Stdio::piped()).start();
        let server = Self {
            stdin: Some(script.stdin()),
            script,
            name,
            directory,
        };
        server.said(LISTENING);
        server.said(service.ready);
        server
    }

    /// Returns its directory on the host.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Waits until the server has printed these words to stderr.
    #[track_caller]
    pub fn said(&self, words: &str) {
        self.script
            .said(&format!("{words:?} ({})", self.name), |text| {
                text.contains(words).then_some(())
            });
    }

    /// Ends the server, which must still run, and returns what it has printed to stderr.
    #[track_caller]
    pub fn stop(mut self) -> String {
        self.stdin = None;
        self.script.ends_within(generous());
        self.script.said("what it had to say", |text| {
            let last = text.contains("== stopped");
            assert!(!text.contains(GONE), "{} has ended:\n{text}", self.name);
            last.then(|| text.to_owned())
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stdin = None;
        // The script removes the directory.
        self.script.ends_within(generous());
    }
}

/// Returns a directory on a host for what programs write. A guest shares the directory of its network with this machine
/// over 9p, which is no file system for a database.
pub fn scratch(network: &Network, host: &str) -> PathBuf {
    if network.is_of_guests() {
        PathBuf::from("/tmp")
    } else {
        network.file(host, "")
    }
}

/// Returns the script that starts a server, tells when its port is open, and ends it at the end of its own stdin.
fn held(service: &Service, directory: &Path, script: &Path) -> String {
    let Service { port, stop, .. } = service;
    let (directory, script) = (directory.display(), script.display());
    // A server has room for many connections. What runs as root is a tunnel.
    let user = if service.is_root {
        "exec"
    } else {
        "ulimit -n 16384; exec setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs"
    };
    format!(
        "directory={directory}\n\
         rm -rf $directory && mkdir $directory && chown 65534:65534 $directory && cd $directory || exit\n\
         ({user} env HOME=$directory bash -e {script}) </dev/null >&2 &\n\
         server=$!\n\
         exec {{turn}}<><(:)\n\
         until grep -qsE ':{port:04X} 0+:0000 0A' /proc/net/tcp /proc/net/tcp6; do\n\
         kill -0 $server 2>/dev/null || {{ wait $server; echo \"== the server ended with $?\" >&2; exit 1; }}\n\
         read -r -t 0.05 -u $turn || true\n\
         done\n\
         echo '{LISTENING}' >&2\n\
         cat >/dev/null\n\
         kill -{stop} $server 2>/dev/null || echo '{GONE}' >&2\n\
         wait $server\n\
         cd / && rm -rf $directory\n\
         echo '== stopped' >&2\n"
    )
}
