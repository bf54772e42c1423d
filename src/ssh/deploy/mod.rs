//! Sends this program to a host that has none, or another version, in the same session that starts the agent there.
//!
//! The command on the host is `sh`, a word that every login shell and every program of `--rsh` passes on unchanged, and
//! the shell reads `start.sh` ([`SCRIPT`]) from stdin. The script becomes the `rdpipe` in PATH if that speaks this version
//! of the protocol, or the copy that an earlier run has left under the same digest. Otherwise it asks for this program
//! with a line on stdout, and becomes it. The controller sends nothing else until the agent has greeted it: a shell
//! may read ahead. That costs no round trip, since an order is an answer to the agent's first message.

use std::{
    env,
    fs::File,
    io::{self, Read},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use aws_lc_rs::digest::{Context, SHA256};

use super::protocol::VERSION_TEXT;
use crate::printable::one_line;

/// Whether this program is sent to other hosts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DeployPolicy {
    /// Every host runs the program of this machine.
    Always,
    /// A host whose rdpipe is missing, or speaks another version of the protocol, runs the program of this machine.
    #[default]
    Auto,
    /// Every host runs its own rdpipe.
    Never,
}

/// The shell script that starts an agent, without the lines that set its variables.
const SCRIPT: &str = include_str!("start.sh");

/// The start of each line that the script prints.
const PREFIX: &str = "rdpipe-deploy ";

/// The executable that is sent to hosts.
pub(crate) struct Program {
    file: File,
    bytes: u64,
    digest: String,
}

impl Program {
    /// Returns the executable of this program, which is read once: tens of milliseconds, mostly while ssh connects.
    pub(crate) fn own() -> Result<&'static Self, &'static str> {
        static OWN: OnceLock<Result<Program, String>> = OnceLock::new();
        let open = || {
            let opened = sibling().map_or_else(|| File::open(OWN_PATH), File::open);
            let read = opened.and_then(Self::read);
            read.map_err(|error| format!("cannot read the running program ({OWN_PATH}): {error}"))
        };
        OWN.get_or_init(open).as_ref().map_err(String::as_str)
    }

    fn read(mut file: File) -> io::Result<Self> {
        let (mut sum, mut bytes) = (Context::new(&SHA256), 0);
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            let count = file.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            sum.update(&buffer[..count]);
            bytes += count as u64;
        }
        let digest = data_encoding::HEXLOWER.encode(sum.finish().as_ref());
        Ok(Self {
            file,
            bytes,
            digest,
        })
    }

    /// Returns the length of the executable.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bytes of the executable from `offset`, at most 256 KiB; none at its end.
    /// Fails if the file cannot be read, or has become shorter.
    pub(crate) fn piece(&self, offset: u64) -> io::Result<Vec<u8>> {
        let left = usize::try_from(self.bytes - offset).unwrap_or(PIECE_BYTES);
        let mut piece = vec![0; left.min(PIECE_BYTES)];
        self.file.read_exact_at(&mut piece, offset)?;
        Ok(piece)
    }
}

/// Returns the script for a host, which becomes the agent. Without a program, one of another version in PATH cannot be
/// replaced.
pub(crate) fn script(policy: DeployPolicy, program: Option<&Program>) -> String {
    let policy = match policy {
        DeployPolicy::Always => "always",
        DeployPolicy::Auto | DeployPolicy::Never => "auto",
    };
    let version = env!("CARGO_PKG_VERSION");
    let (name, bytes, digest) = match program {
        Some(Program { bytes, digest, .. }) => (
            format!("{version}-{}", &digest[..NAME_DIGITS]),
            *bytes,
            &**digest,
        ),
        None => ("unreadable".to_owned(), 0, ""),
    };
    format!(
        "rd_policy={policy} rd_protocol={VERSION_TEXT} rd_name={name} rd_bytes={bytes} rd_digest={digest} rd_machine='{}'\n{SCRIPT}",
        machine()
    )
}

/// The running executable, also after its file has been replaced.
const OWN_PATH: &str = "/proc/self/exe";

/// The bytes that are read and sent at a time.
const PIECE_BYTES: usize = 256 << 10;

/// The digits of the digest in the name of a version: 64 bits, which tell the builds of a user apart. The whole digest
/// is compared before a program gets its name.
const NAME_DIGITS: usize = 16;

/// Returns the `rdpipe` beside the running program, if that is another file and speaks this version of the protocol.
/// `cargo install` makes eight executables: the hosts then keep one of them, and not one for each program.
fn sibling() -> Option<PathBuf> {
    let path = env::current_exe().ok()?.with_file_name("rdpipe");
    let id = |path: &Path| path.metadata().map(|data| (data.dev(), data.ino())).ok();
    if id(&path)? == id(Path::new(OWN_PATH))? {
        return None;
    }
    let mut command = Command::new(&path);
    let command = command.arg(format!("--agent={VERSION_TEXT}"));
    let command = command.stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success()).then_some(path)
}

/// Returns the system and processor of this machine, as `uname` prints them.
fn machine() -> String {
    let name = rustix::system::uname();
    format!(
        "{} {}",
        name.sysname().to_string_lossy(),
        name.machine().to_string_lossy()
    )
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ScriptLine {
    /// The host wants the program, for this reason.
    Wanted(Want),
    /// The program is kept under this path.
    Stored(String),
    Failed(StartFault),
}

/// The reason why a host wants the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// It has none.
    Missing,
    /// Its own one speaks another version of the protocol.
    Version,
    /// The user wants it.
    Always,
}

/// The reason why the script cannot start an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StartFault {
    /// The host is of this kind, and the program is for another one.
    Machine(String),
    /// Other users can change this file or folder.
    Unsafe(String),
    /// The program cannot be written, for this reason.
    Store(String),
    /// The program arrived damaged.
    Digest,
    /// The program cannot run there: the shell or the loader said this.
    Run(String),
}

impl ScriptLine {
    /// Parses a line that a host has printed. Returns none if the script did not print it.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let line = line.strip_prefix(PREFIX)?.trim_end();
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "wanted" => Some(Self::Wanted(match rest {
                "auto" => Want::Missing,
                "other" => Want::Version,
                _ => Want::Always,
            })),
            "stored" => Some(Self::Stored(one_line(rest))),
            "failed" => StartFault::parse(rest).map(Self::Failed),
            _ => None,
        }
    }
}

impl StartFault {
    fn parse(text: &str) -> Option<Self> {
        let (kind, said) = text.split_once(' ').unwrap_or((text, ""));
        let said = one_line(said.trim());
        Some(match kind {
            "machine" => Self::Machine(said),
            "unsafe" => Self::Unsafe(said),
            "store" => Self::Store(said),
            "digest" => Self::Digest,
            "run" => Self::Run(said),
            _ => return None,
        })
    }

    /// Explains to the user why no agent can be started on `host`, and what to do.
    pub(crate) fn explain(&self, host: &str) -> String {
        match self {
            Self::Machine(theirs) => format!(
                "there is no rdpipe of this version on {host}, and the one here cannot be sent: {host} is {theirs}, this machine {}; install rdpipe there",
                machine()
            ),
            Self::Unsafe(path) => format!(
                "rdpipe is not run from its cache on {host}, because other users can change {path}; take their right to write (chmod go-w), or install rdpipe there"
            ),
            Self::Store(said) => format!(
                "cannot store rdpipe on {host}: {said}; make room or set XDG_CACHE_HOME there, or install rdpipe there"
            ),
            Self::Digest => format!(
                "the program arrived damaged on {host}; does something there change the bytes of the session?"
            ),
            Self::Run(said) => {
                let noexec = said.contains("ermission denied");
                let advice = if noexec {
                    "; the file system is probably mounted with noexec: set XDG_CACHE_HOME there to a folder on another one, or install rdpipe there"
                } else {
                    "; install an rdpipe that was built for that system"
                };
                format!("the rdpipe that was sent to {host} cannot run there: {said}{advice}")
            }
        }
    }
}

/// Tells the user that a host has received the program.
pub(crate) fn told(host: &str, bytes: u64, want: Want, path: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let why = match want {
        Want::Missing => ", which has no rdpipe",
        Want::Version => ", whose own rdpipe has another version",
        Want::Always => "",
    };
    let megabytes = bytes.div_ceil(1_000_000);
    format!("sent rdpipe {version} ({megabytes} MB) to {host}{why}; it is kept there as {path}")
}

#[cfg(test)]
mod tests;
