//! `rdcp --serve` for one trial.

use std::{
    fs::{self, Permissions},
    io::{BufRead, BufReader},
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
    sync::OnceLock,
};

use rustix::process::{Pid, Signal, kill_process};

/// A server, which ends when it is dropped.
pub(super) struct Server {
    child: Child,
    port: u16,
    /// Open as long as the server runs, so that it can write its log.
    _log: BufReader<ChildStderr>,
}

impl Server {
    /// Starts the server with this command line in a scene, and waits until it listens.
    pub(super) fn start(top: &Path, line: &str) -> Self {
        let mut bash = Command::new("bash");
        bash.args(["-c", line]).current_dir(top).env("HOME", "/");
        bash.stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = bash.spawn().expect("bash");
        let mut log = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut said = String::new();
        let port = loop {
            let count = log.read_line(&mut said).expect("a log");
            assert!(count > 0, "the server ended: {said}");
            if let Some(port) = port_in(&said) {
                break port;
            }
        };
        Self {
            child,
            port,
            _log: log,
        }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A server that is killed may leave temporary files.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

/// Returns the port that a server says in its log.
fn port_in(log: &str) -> Option<u16> {
    let (_, after) = log.split_once("listening on port ")?;
    let digits = after.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// Makes the key files of a server and of its client, for this user.
pub(super) fn make_keys(top: &Path, user: Option<u32>) {
    static LINE: OnceLock<Vec<u8>> = OnceLock::new();
    let line = LINE.get_or_init(|| {
        let mut rdcp = Command::new(env!("CARGO_BIN_EXE_rdcp"));
        let made = rdcp.args(["--new-key", "client"]).output();
        made.expect("rdcp").stdout
    });
    for name in ["keys", "key"] {
        let path = top.join(name);
        fs::write(&path, line).expect("our directory");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("our file");
        chown(&path, user, user).expect("our file");
    }
}
