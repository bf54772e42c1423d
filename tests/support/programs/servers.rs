//! Server programs of Debian on the hosts of a network, unmodified, each started as its manual says.
//!
//! A server runs until its [`Server`] is dropped, under an ordinary user where it can, in a directory of its own.

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

/// Returns `PostgreSQL` with an empty database, which asks clients of the test network for no password. Each connection
/// is a process.
pub fn postgres(address: &str) -> Service {
    Service {
        name: "postgres",
        port: 5432,
        script: format!(
            "PATH=$PATH:$(echo /usr/lib/postgresql/*/bin)\n\
             initdb -D data -U postgres -A trust -E UTF8 --locale=C --no-sync >initdb.log\n\
             echo 'host all all 10.77.0.0/24 trust' >>data/pg_hba.conf\n\
             exec postgres -D data -p 5432 -c listen_addresses={address} -c unix_socket_directories= -c max_connections=120\n"
        ),
        // It listens before it serves.
        ready: "database system is ready to accept connections",
        // A fast shutdown ends the sessions too.
        stop: "INT",
        is_root: false,
    }
}

/// Returns Redis, which keeps everything in memory.
pub fn redis(address: &str) -> Service {
    Service {
        name: "redis",
        port: 6379,
        script: format!(
            "exec redis-server --port 6379 --bind {address} --protected-mode no --save '' --appendonly no --loglevel warning\n"
        ),
        ready: LISTENING,
        stop: "TERM",
        is_root: false,
    }
}

/// A function of bash that makes a tree of files of many sizes, of this many bytes and a few more, in a folder.
const TREE: &str = "\
tree() {\n\
    mkdir -p $1/small $1/deep/er\n\
    head -c $2 /dev/urandom >$1/large\n\
    for i in $(seq 100); do head -c $((i * i * 7 % 60000)) /dev/urandom >$1/small/$i; done\n\
    : >$1/deep/empty\n\
    printf x >$1/deep/er/byte\n\
}\n";

/// Returns an rsync daemon with the modules `tree`, which has a tree with a file of `bytes`, and `back`, which is
/// empty.
pub fn rsync(address: &str, bytes: usize) -> Service {
    Service {
        name: "rsync",
        port: 8730,
        script: format!(
            "{TREE}\
             tree tree {bytes}\n\
             mkdir back\n\
             printf '%s\\n' 'use chroot = no' 'read only = no' \"[tree]\" \"path = $PWD/tree\" \"[back]\" \"path = $PWD/back\" >rsyncd.conf\n\
             exec rsync --daemon --no-detach --config rsyncd.conf --address {address} --port 8730\n"
        ),
        ready: LISTENING,
        stop: "TERM",
        is_root: false,
    }
}

/// Returns a daemon of the git protocol with `repository.git`, whose tree has a file of `bytes` and which takes pushes.
/// Each connection is a process.
pub fn git(address: &str, bytes: usize) -> Service {
    Service {
        name: "git",
        port: 9418,
        script: format!(
            "{TREE}\
             git config --global user.name tester; git config --global user.email tester@localhost\n\
             git init -q -b main work\n\
             tree work {bytes}\n\
             for i in 1 2 3; do date +%N$i >work/time; git -C work add -A; git -C work commit -qm \"change $i\"; done\n\
             git clone -q --bare work repository.git\n\
             exec git daemon --base-path=. --export-all --enable=receive-pack --reuseaddr --listen={address} --port=9418\n"
        ),
        ready: LISTENING,
        stop: "TERM",
        is_root: false,
    }
}

/// Returns the server of iperf3, which serves one client at a time, and refuses others. Its output has a line
/// [`ready_for_test`] when it is ready for the next one.
pub fn iperf(address: &str) -> Service {
    Service {
        name: "iperf3",
        port: 5201,
        script: format!("exec iperf3 --server --bind {address} --port 5201 --forceflush\n"),
        ready: "(test #1)",
        stop: "TERM",
        is_root: false,
    }
}

/// Returns the words by which the server of iperf3 says that it is ready for the client with this number, from 1.
pub fn ready_for_test(number: usize) -> String {
    format!("(test #{number})")
}

/// The configuration of nginx: two processes, with room for thousands of connections at once.
const CONFIGURATION: &str = "\
worker_processes 2;\n\
worker_rlimit_nofile 16384;\n\
pid nginx.pid;\n\
error_log stderr warn;\n\
events { worker_connections 8192; }\n\
http {\n\
    access_log off;\n\
    client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;\n\
    keepalive_requests 100000;\n\
    server { listen ADDRESS:8080 backlog=4096; root tree; location = /count { stub_status; } }\n\
}\n";

/// Returns nginx with a tree of files, of which `/large` has `bytes`, and its counters at `/count`.
pub fn nginx(address: &str, bytes: usize) -> Service {
    let configuration = CONFIGURATION.replace("ADDRESS", address);
    Service {
        name: "nginx",
        port: 8080,
        script: format!(
            "{TREE}\
             tree tree {bytes}\n\
             cat >nginx.conf <<'END'\n{configuration}END\n\
             exec nginx -p \"$PWD\" -e stderr -c nginx.conf -g 'daemon off;'\n"
        ),
        ready: LISTENING,
        stop: "TERM",
        is_root: false,
    }
}
