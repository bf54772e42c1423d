//! What the tests of the programs share: processes with time limits, a proxy that damages connections,
//! and data in which no two chunks are alike.

mod deaths;
pub(crate) mod examples;
pub(crate) mod hosts;
pub(crate) mod local_hosts;
pub(crate) mod rdcat;
mod rig;
pub(crate) mod running;
pub(crate) mod servers;

pub(crate) use super::{
    limits::{generous, limit, patience, soon},
    proxy::{Act, Connection, Plan, Proxy, Towards},
    random::{Random, random_bytes},
    skip,
};
pub use deaths::{Doomed, Victim, written};
pub use rig::{Link, Sight, ip, lacks_guest, lacks_rdma, machine};
pub use running::{
    End, Held, Running, Setup, cpu_ticks, eventually, held_bytes, is_ignored, peak_kib, pinned_kib,
    program, rdrecv, rdsend, write_position,
};

use std::{
    env, fs,
    net::TcpListener,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use rustix::fs::{Mode, OFlags, open};
use tempfile::TempDir;

/// Returns the path of what cargo has built beside the tests: `rdsend`, or `examples/http`. Tests of another package than
/// rdpipe's have no variable with the path of a program.
pub fn built(name: &str) -> String {
    let test = env::current_exe().expect("a program has a path");
    let folder = test.ancestors().nth(2).expect("it is in deps/");
    let path = folder.join(name);
    path.to_str().expect("a path without surprises").to_owned()
}

/// Returns a key in the form that rdrecv generates, which needs no stretching and so costs no time.
pub fn key() -> &'static str {
    static KEY: LazyLock<String> = LazyLock::new(|| {
        let made = rdpipe::Key::generate().expect("the system has random bytes");
        made.text().to_string()
    });
    &KEY
}

/// Returns rdrecv on a port of its own choice, with [`key`] and these options.
pub fn receiver(options: impl AsRef<str>) -> Setup {
    rdrecv(format!("0 {} {}", key(), options.as_ref()))
}

/// Returns rdsend to `port` of this machine, with [`key`] and these options.
pub fn sender(port: u16, options: impl AsRef<str>) -> Setup {
    rdsend(format!("127.0.0.1 {port} {} {}", key(), options.as_ref()))
}

/// Starts a proxy between an rdrecv of this machine and the rdsend that dials the proxy's port.
pub fn before(receiver: &Running, plan: Plan) -> Proxy {
    Proxy::start(([127, 0, 0, 1], receiver.port()).into(), Some(plan))
}

/// Returns a port that was free a moment ago, for the few tests that must know a port beforehand.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("[::]:0").expect("a free port");
    listener.local_addr().expect("it is bound").port()
}

/// A directory with one file, `old`, over which many tests write their output.
pub struct Place {
    directory: TempDir,
}

/// Copies a program so that every user may run it.
///
/// A separate process makes the copy. If this process wrote the file, a child that another thread starts at the same
/// time could inherit the open descriptor, and the kernel would refuse to execute the file (`ETXTBSY`).
pub fn install(source: &Path, target: &Path) {
    let copied = std::process::Command::new("install")
        .args(["-m", "755"])
        .args([source, target])
        .status();
    assert!(
        copied.expect("install runs").success(),
        "{}",
        target.display()
    );
}

/// The content of the file `old`.
pub const OLD: &[u8] = b"what was there before\n";

impl Place {
    /// Makes the directory where temporary files go.
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

    /// Returns the path of the file `old`, as an argument.
    pub fn old(&self) -> String {
        self.path("old").display().to_string()
    }

    /// Writes a file and returns its path, as an argument.
    pub fn file(&self, name: &str, content: &[u8]) -> String {
        fs::write(self.path(name), content).expect("a file");
        self.path(name).display().to_string()
    }

    /// Writes a program that can be executed, and returns its path.
    pub fn program(&self, name: &str, content: &[u8]) -> String {
        let source = self.file(&format!("{name}.source"), content);
        install(Path::new(&source), &self.path(name));
        fs::remove_file(source).expect("a file to remove");
        self.path(name).display().to_string()
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).expect("a file to read")
    }

    /// Returns the sorted names in the directory.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory()).expect("a directory");
        let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
        let mut names: Vec<_> = entries
            .map(|e| name(e).to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Returns true if the file system supports files without a name. Without them, a killed program leaves its
    /// temporary file behind.
    pub fn knows_nameless_files(&self) -> bool {
        let flags = OFlags::WRONLY | OFlags::TMPFILE;
        open(self.directory(), flags, Mode::RUSR | Mode::WUSR).is_ok()
    }

    /// Checks that the file `old` is unchanged, and that the directory holds no other files than `others`.
    #[track_caller]
    pub fn assert_untouched(&self, others: &[&str]) {
        assert!(self.read("old") == OLD, "the old file has changed");
        let mut expected = [others, &["old"]].concat();
        expected.sort_unstable();
        assert_eq!(self.names(), expected);
    }
}
