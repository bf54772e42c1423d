//! `rdcp --serve`: copies of clients without ssh, who may do what, crowds of clients, what one client may take from the
//! others, how both sides end, and the units of systemd.

mod copies;
mod ends;
#[cfg(feature = "fault-injection")]
pub(crate) mod hostile;
mod rights;
mod shares;
mod strangers;
mod unfinished;
mod units;

use std::{
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::support::programs::{Running, Setup, eventually, program};

/// A running `rdcp --serve`, with a directory for what it serves and another one for what its clients have.
pub(crate) struct Served {
    place: TempDir,
    pub(crate) server: Running,
    port: u16,
}

pub(crate) fn rdcp<A: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = A>) -> Setup {
    program(env!("CARGO_BIN_EXE_rdcp"), "rdcp").args(arguments)
}

impl Served {
    /// Starts a server with these options for the clients `alice` and `bob`.
    #[track_caller]
    pub(crate) fn start(options: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().expect("a directory"), options)
    }

    /// Starts a server in a directory that may hold files already: `root` and `here`.
    #[track_caller]
    pub(crate) fn start_in(place: TempDir, options: &[&str]) -> Self {
        for directory in ["root", "here"] {
            fs::create_dir_all(place.path().join(directory)).expect("a directory");
        }
        for client in ["alice", "bob"] {
            add_client(place.path(), client);
        }
        let server = serve(place.path(), options).start();
        let port = server.port();
        Self {
            place,
            server,
            port,
        }
    }

    pub(crate) fn root(&self, name: &str) -> PathBuf {
        self.place.path().join("root").join(name)
    }

    /// Returns the temporary files of copies to a path of the server: parts and maps.
    pub(crate) fn temporaries(&self, path: &str) -> Vec<PathBuf> {
        let target = self.root(path);
        let stem = format!(
            ".{}.",
            target.file_name().expect("a name").to_string_lossy()
        );
        let entries = fs::read_dir(target.parent().expect("a directory"));
        let paths = entries
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        let is_temporary = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(&stem) && (name.ends_with(".rdcp-part") || name.ends_with(".rdcp-map"))
        };
        paths.filter(is_temporary).collect()
    }

    /// Waits until a copy to a path of the server can be continued: until the map has more than `map_bytes`. Returns
    /// the part and the map, which are none of `others`.
    #[track_caller]
    pub(crate) fn unfinished(
        &self,
        path: &str,
        map_bytes: u64,
        others: &[PathBuf],
    ) -> [PathBuf; 2] {
        eventually("a copy that can be continued", || {
            let mut new = self.temporaries(path);
            new.retain(|path| !others.contains(path));
            new.sort_by_key(|path| path.extension() != Some("rdcp-part".as_ref()));
            let [part, map] = new.try_into().ok()?;
            let is_long = fs::metadata(&map).is_ok_and(|map| map.len() > map_bytes);
            is_long.then_some([part, map])
        })
    }

    pub(crate) fn here(&self, name: &str) -> PathBuf {
        self.place.path().join("here").join(name)
    }

    /// Returns a path of the clients as an operand.
    pub(crate) fn operand(&self, name: &str) -> String {
        self.here(name).display().to_string()
    }

    pub(crate) fn key_file(&self) -> PathBuf {
        self.place.path().join("keys")
    }

    /// Returns the key file of one client.
    pub(crate) fn key_of(&self, client: &str) -> String {
        self.place.path().join(client).display().to_string()
    }

    /// Returns a path of the server as an operand.
    pub(crate) fn there(&self, path: &str) -> String {
        format!("127.0.0.1:{}:{path}", self.port)
    }

    /// Returns rdcp of a client with these arguments; `@` at the begin of one stands for a path of the server, `%` for
    /// one of the clients.
    pub(crate) fn client(&self, client: &str, arguments: &[&str]) -> Setup {
        let argument = |argument: &&str| match argument.split_at_checked(1) {
            Some(("@", path)) => self.there(path),
            Some(("%", path)) => self.operand(path),
            _ => (*argument).to_owned(),
        };
        rdcp(["--key-file", &self.key_of(client)]).args(arguments.iter().map(argument))
    }

    pub(crate) fn alice(&self, arguments: &[&str]) -> Setup {
        self.client("alice", arguments)
    }

    /// Returns the directory of all.
    pub(crate) fn directory(&self) -> &Path {
        self.place.path()
    }
}

/// Returns the server of a directory with its files `root` and `keys`.
pub(crate) fn serve(place: &Path, options: &[&str]) -> Setup {
    let [root, keys] = ["root", "keys"].map(|name| place.join(name).display().to_string());
    rdcp(["--serve", "--listen-port", "0", "--root", &root])
        .args(["--key-file", &keys])
        .args(options)
}

/// Makes a key for a client: a line in the file `keys`, and a file with the client's name.
pub(crate) fn add_client(place: &Path, client: &str) {
    let keys = place.join("keys").display().to_string();
    let made = rdcp(["--new-key", client, "--key-file", &keys])
        .start()
        .end();
    made.exits(0);
    let own = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(place.join(client));
    let written = own.and_then(|mut file| file.write_all(&made.stdout));
    written.expect("a key file");
}
