//! The two hosts between which programs run, how much they do there, and the ways on which a client reaches a server of
//! the other host.

use std::{env, path::Path, process::Command, str::FromStr, time::Duration};

use crate::support::{
    is_full,
    programs::{
        generous,
        hosts::Network,
        servers::{LISTENING, Server, Service, scratch},
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

/// How the clients of a test reach the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Through a listener of rdforward on the host of the clients (`-L`).
    Listener,
    /// By the address of the host of the server, redirected by `rdforward run`.
    Run,
    /// Through the SOCKS proxy of rdforward (`-D`).
    Socks,
}

impl Way {
    /// Returns the address to which a server binds. `-L` names a port of the far host itself. A client of `run`
    /// connects to an address of the far host, whose port [`Tunnel`] closes for everything that does not come from the
    /// far host.
    pub(crate) fn address(self) -> &'static str {
        match self {
            Self::Listener => "127.0.0.1",
            Self::Run | Self::Socks => "0.0.0.0",
        }
    }
}

/// A way that is open. Dropping it closes the way.
pub(crate) struct Tunnel<'a> {
    rig: &'a Rig,
    /// What a client connects to.
    host: &'static str,
    port: u16,
    /// The command before that of a client.
    before: String,
    listener: Option<Server>,
    is_barred: bool,
}

/// The port of the tunnel on the host of the clients.
const TUNNEL_PORT: u16 = 17_000;

impl<'a> Tunnel<'a> {
    #[track_caller]
    pub(crate) fn open(rig: &'a Rig, way: Way, port: u16) -> Self {
        let mut tunnel = Self {
            rig,
            host: FAR_ADDRESS,
            port,
            before: String::new(),
            listener: None,
            is_barred: false,
        };
        let is_direct = way == Way::Run && stands_in();
        if !is_direct {
            tunnel.bar();
        }
        match way {
            Way::Run if is_direct => {}
            Way::Run => tunnel.before = format!("{} --", rdforward(rig, "rdforward run", "")),
            Way::Listener => {
                tunnel.listen(&format!(
                    "-L 127.0.0.1:{TUNNEL_PORT}:{}:{port}",
                    way.address()
                ));
                (tunnel.host, tunnel.port) = ("127.0.0.1", TUNNEL_PORT);
            }
            // Clients name the proxy, which is another program for them, and the far host.
            Way::Socks => tunnel.listen(&format!("-D 127.0.0.1:{TUNNEL_PORT}")),
        }
        tunnel
    }

    /// Starts rdforward with these options, or its stand-in, on the host of the clients.
    #[track_caller]
    fn listen(&mut self, options: &str) {
        let rig = self.rig;
        let command = if stands_in() {
            format!("ssh {} -N {options} {FAR}", ssh_options(rig))
        } else {
            rdforward(rig, "rdforward", options)
        };
        let service = Service {
            name: "tunnel",
            port: TUNNEL_PORT,
            script: format!("exec {command}\n"),
            ready: LISTENING,
            stop: "TERM",
            is_root: true,
        };
        self.listener = Some(Server::start(&rig.network, NEAR, &service));
    }

    /// Closes the port of the server for everything that does not come from its own host: what reaches it came through
    /// the tunnel.
    fn bar(&mut self) {
        let port = self.port;
        let rule = format!(
            "nft add table inet barred\n\
             nft add chain inet barred input '{{ type filter hook input priority 0; }}'\n\
             nft add rule inet barred input iifname != lo tcp dport {port} reject with tcp reset\n"
        );
        self.rig.runs(FAR, Duration::ZERO, "", &rule);
        self.is_barred = true;
        let direct = format!("! (exec 3<>/dev/tcp/{FAR_ADDRESS}/{port}) 2>/dev/null\n");
        self.rig.runs(NEAR, Duration::ZERO, "", &direct);
    }

    /// Runs a script of bash as the client. It finds the server at `$HOST` and `$PORT`. The script must succeed, and
    /// its stdout is returned. Its guard is longer by `time`, the time for which the script runs on purpose.
    #[track_caller]
    pub(crate) fn client(&self, time: Duration, script: &str) -> String {
        let (host, port) = (self.host, self.port);
        let proxy = format!("socks5h://127.0.0.1:{TUNNEL_PORT}");
        let script = format!("HOST={host} PORT={port} PROXY={proxy} NAME={FAR}\n{script}");
        self.rig.runs(NEAR, time, &self.before, &script)
    }

    /// Closes the way, which must still be open.
    #[track_caller]
    pub(crate) fn close(mut self) {
        if let Some(listener) = self.listener.take() {
            println!("the tunnel said:\n{}", listener.stop());
        }
    }
}

impl Drop for Tunnel<'_> {
    fn drop(&mut self) {
        self.listener = None;
        if self.is_barred && self.rig.network.is_of_guests() {
            let line = "nft delete table inet barred";
            self.rig.network.ssh(FAR, line).start().end();
        }
    }
}

/// Returns true if other programs stand in for rdforward.
fn stands_in() -> bool {
    env::var("RDPIPE_STAND_IN").is_ok_and(|name| name == "ssh")
}

/// Returns the command line of rdforward to [`FAR`] with these options.
fn rdforward(rig: &Rig, command: &str, options: &str) -> String {
    let programs = Path::new(env!("CARGO_BIN_EXE_rdpipe")).parent();
    let program = programs.expect("a directory").join("rdforward");
    assert!(program.exists(), "there is no {}", program.display());
    // An emulated processor needs a long timeout.
    let timeout = if rig.network.is_of_guests() {
        "--timeout 120"
    } else {
        ""
    };
    // The limit of open files of an ordinary login, which is lower than what a thousand connections need.
    format!(
        "prlimit --nofile=1024: {command} --ssh-opt '{}' --transport {} {timeout} {options} {FAR}",
        ssh_options(rig),
        rig.transport
    )
}

/// Returns the options by which ssh on a host reaches another. A connection that `scripts/guests` shares is one of ctl.
fn ssh_options(rig: &Rig) -> String {
    format!("-F {} -S none", rig.network.own("ssh_config").display())
}
