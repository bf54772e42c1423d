//! The ways on which a client reaches a server of the other host.

use std::{env, path::Path, time::Duration};

use super::rig::{FAR, FAR_ADDRESS, NEAR, Rig};
use crate::support::programs::servers::{LISTENING, Server, Service};

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
