//! Machines with RDMA: whether this is one, how slow it is, and how to spoil it.

use std::{env, fs, process::Command};

use super::{Setup, eventually, program, skip};
use crate::support::missing_rdma;

/// Whether a test must be skipped for want of RDMA, which is then said aloud. Where
/// `RDPIPE_REQUIRE_RDMA` is 1 it never is, and fails instead.
pub fn lacks_rdma() -> bool {
    let missing = missing_rdma();
    if let Some(why) = &missing {
        skip(why);
    }
    missing.is_some()
}

/// The same for a test that changes the machine: it runs only in a guest of our own, with its devices
/// rxe0 on 10.99.0.1/24 over d0, and rxe1 on 10.98.0.1/24 over d1.
pub fn lacks_guest() -> bool {
    let guest = env::var("RDPIPE_RIG").is_ok_and(|rig| rig.starts_with("guest"));
    if !guest {
        skip("this changes the machine, so it wants scripts/guest to run in a VM");
    }
    !guest
}

/// `ip` with these arguments, separated by spaces.
#[track_caller]
pub fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "ip {arguments}"
    );
}

/// An interface that is down until this is dropped.
pub struct Link(&'static str);

impl Link {
    /// Takes `netdev` down.
    #[track_caller]
    pub fn down(netdev: &'static str) -> Self {
        ip(&format!("link set {netdev} down"));
        Self(netdev)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let netdev = self.0;
        ip(&format!("link set {netdev} up"));
        let state = format!("/sys/class/infiniband/rxe{}/ports/1/state", &netdev[1..]);
        eventually("an active port", || {
            fs::read_to_string(&state)
                .ok()?
                .contains("ACTIVE")
                .then_some(())
        });
    }
}

/// What a program sees of the machine's devices, in a mount namespace of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// Everything, as it is.
    All,
    /// The file of one device only: `rxe0` or `rxe1`.
    Only(&'static str),
    /// The files of all, and not as one who may open them.
    Forbidden,
    /// No device at all.
    Nothing,
}

impl Sight {
    /// The program that sees it so: `setup`, started with this in front of its command.
    pub fn of(self, path: &'static str, name: &'static str) -> Setup {
        let made = |mode: &str, devices: &str| {
            format!(
                "mount -t tmpfs tmpfs /dev/infiniband; \
                 for u in /sys/class/infiniband_verbs/uverbs*; do \
                 read i <$u/ibdev; read d <$u/dev; \
                 case ' {devices} ' in *\" $i \"*) \
                 mknod -m {mode} /dev/infiniband/${{u##*/}} c ${{d%:*}} ${{d#*:}};; \
                 esac; done; "
            )
        };
        let (prepare, user) = match self {
            Self::All => (String::new(), ""),
            Self::Only(device) => (made("666", device), ""),
            Self::Forbidden => (
                made("600", "rxe0 rxe1"),
                "setpriv --reuid=65534 --clear-groups --bounding-set=-all --inh-caps=-all",
            ),
            Self::Nothing => (
                "mount -t tmpfs tmpfs /sys/class/infiniband; ".to_owned(),
                "",
            ),
        };
        let script = format!("{prepare}exec {user} {path} \"$@\"");
        program("/usr/bin/unshare", name)
            .arg("-m")
            .arg("sh")
            .arg("-c")
            .arg(script)
            .arg(name)
    }
}
