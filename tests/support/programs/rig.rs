//! The RDMA devices of the machine: whether a test has them, and ways to break or hide them.

use std::{
    env, fs,
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{Setup, eventually, program, skip};
use crate::support::missing_rdma;

/// Returns true, and prints the reason, if a test must be skipped because there is no RDMA. With
/// `RDPIPE_REQUIRE_RDMA=1` it returns false, so that the test fails instead.
pub fn lacks_rdma() -> bool {
    let missing = missing_rdma();
    if let Some(why) = &missing {
        skip(why);
    }
    missing.is_some()
}

/// Returns a lock on the machine, or `None` if it has no RDMA. The lock makes the tests run one at a time, because two
/// programs at once are enough for an emulated machine.
pub fn machine() -> Option<MutexGuard<'static, ()>> {
    static MACHINE: Mutex<()> = Mutex::new(());
    (!lacks_rdma()).then(|| MACHINE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Returns true, and prints the reason, if a test that changes the machine must be skipped. Such a test runs only in
/// the guest of `scripts/guest`, with its devices rxe0 on 10.99.0.1/24 over d0, and rxe1 on 10.98.0.1/24 over d1.
pub fn lacks_guest() -> bool {
    let guest = env::var("RDPIPE_RIG").is_ok_and(|rig| rig.starts_with("guest"));
    if !guest {
        skip("this test changes the machine, so it runs only in the VM of scripts/guest");
    }
    !guest
}

/// Runs `ip` with these arguments, separated by spaces; it must succeed.
#[track_caller]
pub fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "ip {arguments}"
    );
}

/// A network interface that is down until this value is dropped.
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

/// The RDMA devices that a program sees, in a mount namespace of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// All devices, unchanged.
    All,
    /// Only the files of these devices, separated by spaces.
    Only(&'static str),
    /// All device files, without the permission to open them.
    Forbidden,
    /// All devices, without the library that opens them.
    NoLibrary,
    /// No device at all.
    Nothing,
}

impl Sight {
    /// Returns the program at `path`, to be run with this view of the devices.
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
            Self::NoLibrary => (
                "for f in /lib/*/libibverbs.so.1 /lib64/libibverbs.so.1; do \
                 if [ -e $f ]; then mount --bind /dev/null $(readlink -f $f); fi; done; "
                    .to_owned(),
                "",
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
