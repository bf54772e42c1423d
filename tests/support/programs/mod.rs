//! What the tests of the programs share: processes with time limits, a proxy that does harm,
//! and data that cannot be mistaken for other data.

mod deaths;
pub(crate) mod examples;
pub(crate) mod hosts;
pub(crate) mod local_hosts;
pub(crate) mod rdcat;
mod rig;
mod running;
mod watch;

pub(crate) use super::{
    limits::{generous, limit, patience, soon},
    proxy::{Act, Connection, Plan, Proxy, Towards},
    random::{Random, random_bytes},
    skip,
};
pub use deaths::{Doomed, Victim, written};
pub use rig::{Link, Sight, ip, lacks_guest, lacks_rdma};
pub use running::{End, Running, Setup, program, rdrecv, rdsend};
pub use watch::{
    cpu_ticks, eventually, held_bytes, is_ignored, peak_kib, pinned_kib, write_position,
};

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use rustix::fs::{Mode, OFlags, open};
use tempfile::TempDir;

/// A key in the form that rdrecv makes: it costs no time to stretch.
pub fn key() -> &'static str {
    static KEY: LazyLock<String> = LazyLock::new(|| {
        let made = rdpipe::Key::generate().expect("the system has random bytes");
        made.text().to_string()
    });
    &KEY
}

/// rdrecv on a port of its own choice, with [`key`] and these options.
pub fn receiver(options: impl AsRef<str>) -> Setup {
    rdrecv(format!("0 {} {}", key(), options.as_ref()))
}

/// rdsend to that port, with [`key`] and these options.
pub fn sender(port: u16, options: impl AsRef<str>) -> Setup {
    rdsend(format!("127.0.0.1 {port} {} {}", key(), options.as_ref()))
}

/// A proxy between an rdrecv of this machine and the rdsend that dials the proxy's port.
pub fn before(receiver: &Running, plan: Plan) -> Proxy {
    Proxy::start(([127, 0, 0, 1], receiver.port()).into(), Some(plan))
}

/// A port that was free a moment ago, for the few tests that must know it beforehand.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("[::]:0").expect("a free port");
    listener.local_addr().expect("it is bound").port()
}

/// A directory with one old file in it, the output of many a test.
pub struct Place {
    directory: TempDir,
}

/// What the old file holds.
pub const OLD: &[u8] = b"what was there before\n";

impl Place {
    /// On the disk, not in memory.
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        fs::write(directory.path().join("old"), OLD).expect("an old file");
        Self { directory }
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The old file's path, as an argument.
    pub fn old(&self) -> String {
        self.path("old").display().to_string()
    }

    /// Makes a file and returns its path, as an argument.
    pub fn file(&self, name: &str, content: &[u8]) -> String {
        fs::write(self.path(name), content).expect("a file");
        self.path(name).display().to_string()
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).expect("a file to read")
    }

    /// Names in the directory, in order.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory()).expect("a directory");
        let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
        let mut names: Vec<_> = entries
            .map(|e| name(e).to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Whether files without a name can be made here: where they cannot, a program that is killed
    /// leaves its temporary file behind.
    pub fn knows_nameless_files(&self) -> bool {
        let flags = OFlags::WRONLY | OFlags::TMPFILE;
        open(self.directory(), flags, Mode::RUSR | Mode::WUSR).is_ok()
    }

    /// The old file is as it was, and nothing lies beside it but `others`.
    #[track_caller]
    pub fn assert_untouched(&self, others: &[&str]) {
        assert!(self.read("old") == OLD, "the old file has changed");
        let mut expected = [others, &["old"]].concat();
        expected.sort_unstable();
        assert_eq!(self.names(), expected);
    }
}
