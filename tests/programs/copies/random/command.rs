//! Random commands of rdcp, `rdcp --serve` for one trial among them, and those of its peers that mean the same.

use std::{
    fmt::Write,
    fs::{self, Permissions},
    io::{BufRead, BufReader},
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
    sync::OnceLock,
};

use rustix::process::{Pid, Signal, kill_process};

use super::scene::{USER, quoted};
use crate::support::random::Random;

/// Which metadata rdcp keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeps {
    /// Neither `-r` nor `-a`.
    Contents,
    /// `-r`
    Little,
    /// `-a`
    All,
}

/// What happens to the files that the destination has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Existing {
    Replace,
    NoClobber,
    Update,
    SkipSame,
}

/// How SOURCE and DESTINATION are written. The paths of sources are below `s`, those of destinations below `d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operands {
    /// `s/T d/`
    Into,
    /// `s/T/ d`
    IntoWithSlash,
    /// `s/T/. d/T`
    Contents,
    /// `-T s/T d/T`
    Exact,
    /// `-T s/T d/new`
    New,
    /// `s/T s/U d/`
    Several,
    /// `-PT s/T d/p/q/new`
    Parents,
    /// `s/T s/V/T d/`
    SameName,
    /// `s/T/. s/U/. d/T`
    Merged,
    /// `s/f d/`
    File,
    /// `s/f d/g`
    FileNamed,
    /// `-T s/f d/g`
    FileExact,
    /// `s/f s/T s/g d/`
    Files,
}

impl Operands {
    const OF_TREES: [Self; 9] = [
        Self::Into,
        Self::IntoWithSlash,
        Self::Contents,
        Self::Exact,
        Self::New,
        Self::Several,
        Self::Parents,
        Self::SameName,
        Self::Merged,
    ];

    const OF_FILES: [Self; 4] = [Self::File, Self::FileNamed, Self::FileExact, Self::Files];

    /// Returns the option, the sources and the destination.
    fn words(self) -> (&'static str, &'static [&'static str], &'static str) {
        match self {
            Self::Into => ("", &["T"], "/"),
            Self::IntoWithSlash => ("", &["T/"], ""),
            Self::Contents => ("", &["T/."], "/T"),
            Self::Exact => (" -T", &["T"], "/T"),
            // With -T, so that a run after a cut one copies to the same place.
            Self::New => (" -T", &["T"], "/new"),
            Self::Several => ("", &["T", "U"], "/"),
            Self::Parents => (" -PT", &["T"], "/p/q/new"),
            Self::SameName => ("", &["T", "V/T"], "/"),
            Self::Merged => ("", &["T/.", "U/."], "/T"),
            Self::File => ("", &["f"], "/"),
            Self::FileNamed => ("", &["f"], "/g"),
            Self::FileExact => (" -T", &["f"], "/g"),
            Self::Files => ("", &["f", "T", "g"], "/"),
        }
    }

    /// Returns true if two sources may have entries of one name.
    pub(super) fn may_overlap(self) -> bool {
        matches!(self, Self::SameName | Self::Merged)
    }
}

/// How the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Both agents are on this machine.
    Here,
    /// `rdcp --serve` has the destination.
    ToServer,
    /// `rdcp --serve` has the source.
    FromServer,
}

/// The program that does the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    Cp,
    Rsync,
}

/// A run of rdcp.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) keeps: Keeps,
    pub(super) existing: Existing,
    pub(super) operands: Operands,
    pub(super) way: Way,
    pub(super) peer: Peer,
    pub(super) deletes: bool,
    pub(super) resumes: bool,
    /// The patterns: true for those of `--exclude`.
    pub(super) patterns: Vec<(bool, &'static str)>,
    pub(super) umask: u32,
    pub(super) is_root: bool,
    pub(super) lanes: Option<u32>,
}

impl Run {
    pub(super) fn new(random: &mut Random) -> Self {
        let mut chance = |percent: u64| random.within(0..100) < percent;
        let keeps = if chance(60) {
            Keeps::All
        } else {
            Keeps::Little
        };
        let is_root = chance(60);
        let deletes = chance(30);
        let resumes = chance(20);
        let has_patterns = chance(20);
        let is_plain = chance(50);
        let lanes = chance(20).then_some(3);
        let one_of = |random: &mut Random, count: usize| {
            usize::try_from(random.within(0..count as u64)).expect("it is small")
        };
        let all = [Existing::NoClobber, Existing::Update, Existing::SkipSame];
        let existing = if is_plain {
            Existing::Replace
        } else {
            all[one_of(random, all.len())]
        };
        let is_of_files = one_of(random, 5) == 0;
        let all: &[Operands] = if is_of_files {
            &Operands::OF_FILES
        } else {
            &Operands::OF_TREES
        };
        let operands = all[one_of(random, all.len())];
        let is_bare = is_of_files && keeps == Keeps::Little && one_of(random, 2) == 0;
        let keeps = if is_bare { Keeps::Contents } else { keeps };
        let deletes = deletes && !is_of_files;
        let all = [Way::Here, Way::Here, Way::ToServer, Way::FromServer];
        let way = all[one_of(random, all.len())];
        // A server has two lanes.
        let lanes = lanes.filter(|_| way == Way::Here);
        let all = ["*.o", "a", "/a", "b/", "/c/", "new*", "sp ace", "/c/a"];
        let mut patterns = Vec::new();
        if has_patterns && !is_of_files && !operands.may_overlap() {
            for _ in 0..=one_of(random, 3) {
                patterns.push((one_of(random, 3) > 0, all[one_of(random, all.len())]));
            }
        }
        let is_for_rsync =
            deletes || existing == Existing::SkipSame || resumes || !patterns.is_empty();
        let is_for_cp = keeps == Keeps::Contents || is_of_files || operands.may_overlap();
        let mut run = Self {
            keeps,
            existing,
            operands,
            way,
            peer: Peer::Cp,
            deletes,
            resumes,
            patterns,
            umask: 0,
            is_root,
            lanes,
        };
        if is_for_cp {
            // rsync has no command with the same meaning, and cp none with these options.
            run.deletes = false;
            run.resumes = false;
            if run.existing == Existing::SkipSame {
                run.existing = Existing::NoClobber;
            }
        } else if is_for_rsync || one_of(random, 2) == 0 {
            run.peer = Peer::Rsync;
        }
        run.umask = [0o022, 0o000, 0o077, 0o027][one_of(random, 4)];
        run
    }

    /// Returns pairs of a top of the source and of the destination. Of two sources with one name, the first one has it.
    pub(super) fn tops(&self) -> Vec<(&'static str, &'static str)> {
        match self.operands {
            Operands::New => vec![("T", "new")],
            Operands::Parents => vec![("T", "p/q/new")],
            Operands::Several => vec![("T", "T"), ("U", "U")],
            Operands::SameName => vec![("T", "T"), ("V/T", "T")],
            Operands::Merged => vec![("T", "T"), ("U", "T")],
            Operands::File => vec![("f", "f")],
            Operands::FileNamed | Operands::FileExact => vec![("f", "g")],
            Operands::Files => vec![("f", "f"), ("T", "T"), ("g", "g")],
            _ => vec![("T", "T")],
        }
    }

    /// Returns the command line of rdcp, for bash. The variable `PORT` has the port of a server.
    pub(super) fn rdcp(&self, rdcp: &Path) -> String {
        let mut line = self.user("exec ");
        line += &quoted(rdcp);
        line += match self.keeps {
            Keeps::Contents => " -q",
            Keeps::Little => " -q -r",
            Keeps::All => " -q -a",
        };
        line += match self.existing {
            Existing::Replace => "",
            Existing::NoClobber => " --no-clobber",
            Existing::Update => " --update",
            Existing::SkipSame => " --skip-same",
        };
        if self.deletes {
            // An empty source removes nothing without a number.
            line += " --delete --max-delete 9999";
        }
        if self.resumes {
            line += " --resume";
        }
        if let Some(lanes) = self.lanes {
            let _ = write!(line, " -j {lanes}");
        }
        for (is_exclude, pattern) in &self.patterns {
            let option = if *is_exclude {
                "--exclude"
            } else {
                "--include"
            };
            let _ = write!(line, " {option} '{pattern}'");
        }
        if self.way != Way::Here {
            line += " --key-file key";
        }
        if self.way == Way::FromServer {
            // Each side decides itself whether the other one lends rights: the peers do not ask.
            line += " --privileged";
        }
        let server = "127.0.0.1:$PORT:";
        let (option, sources, destination) = self.operands.words();
        line += option;
        for source in sources {
            let _ = match self.way {
                Way::FromServer => write!(line, " {server}/{source}"),
                _ => write!(line, " s/{source}"),
            };
        }
        line + &match self.way {
            Way::ToServer if destination.is_empty() => format!(" {server}/"),
            Way::ToServer => format!(" {server}{destination}"),
            _ => format!(" d{destination}"),
        }
    }

    /// Returns the command line of the server, for bash.
    pub(super) fn server(&self, rdcp: &Path) -> Option<String> {
        let root = match self.way {
            Way::Here => return None,
            Way::ToServer => "d",
            Way::FromServer => "s",
        };
        let mut line = self.user("exec ") + &quoted(rdcp);
        let _ = write!(
            line,
            " --serve --root {root} --key-file keys --listen-port 0 --grace 9"
        );
        if self.way == Way::ToServer {
            line += " --privileged";
        }
        Some(line)
    }

    /// Returns the command line of the peer, for bash.
    pub(super) fn peers(&self) -> String {
        match self.peer {
            Peer::Cp => self.cp(),
            Peer::Rsync => self.rsync(),
        }
    }

    /// Returns the beginning of the line of a peer. No peer has the option `-P`, so the parents are made before.
    fn peer_start(&self) -> String {
        let exec = self.user("exec ");
        match self.operands {
            Operands::Parents => format!("{}mkdir -p d/p/q && {exec}", self.user("")),
            _ => exec,
        }
    }

    fn cp(&self) -> String {
        let mut line = self.peer_start();
        line += match self.keeps {
            Keeps::Contents => "cp",
            Keeps::Little => "cp -r",
            Keeps::All => "cp -a",
        };
        line += match self.existing {
            Existing::NoClobber => " -n",
            Existing::Update => " -u",
            Existing::Replace | Existing::SkipSame => "",
        };
        let (option, sources, destination) = self.operands.words();
        line += &option.replace('P', "");
        for source in sources {
            let _ = write!(line, " s/{source}");
        }
        line + " d" + destination
    }

    fn rsync(&self) -> String {
        let mut line = self.peer_start();
        line += match self.keeps {
            Keeps::Contents | Keeps::Little => "rsync -rlD",
            Keeps::All => "rsync -aHAX --numeric-ids",
        };
        // Nanoseconds count.
        line += " --modify-window=-1";
        line += match self.existing {
            // What is the same is not sent again, so that a run continues another.
            Existing::Replace if self.resumes => "",
            Existing::Replace => " -I",
            Existing::NoClobber => " -I --ignore-existing",
            Existing::Update => " -I --update",
            Existing::SkipSame => "",
        };
        if self.deletes {
            line += " --delete --ignore-errors";
        }
        // The first match decides, not the last one.
        for (is_exclude, pattern) in self.patterns.iter().rev() {
            let sign = if *is_exclude { "-" } else { "+" };
            let is_whole = matches!(self.operands, Operands::Into | Operands::IntoWithSlash);
            if pattern.starts_with('/') && (is_whole || self.operands == Operands::Several) {
                for (top, _) in self.tops() {
                    let _ = write!(line, " --filter='{sign} /{top}{pattern}'");
                }
            } else {
                let _ = write!(line, " --filter='{sign} {pattern}'");
            }
        }
        line + match self.operands {
            Operands::Contents | Operands::Exact => " s/T/ d/T/",
            Operands::New => " s/T/ d/new/",
            Operands::Several => " s/T s/U d/",
            Operands::Parents => " s/T/ d/p/q/new/",
            _ => " s/T d/",
        }
    }

    /// Returns what comes before a program: its umask and its user.
    fn user(&self, before: &str) -> String {
        let mut line = format!("umask {:03o}; {before}", self.umask);
        if !self.is_root {
            let _ = write!(
                line,
                "setpriv --reuid {USER} --regid {USER} --clear-groups "
            );
        }
        line
    }

    /// Returns shorter runs, for the search for the shortest one that fails.
    pub(super) fn shorter(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut add = |change: &dyn Fn(&mut Self)| {
            let mut run = self.clone();
            change(&mut run);
            all.push(run);
        };
        add(&|run| run.existing = Existing::Replace);
        add(&|run| run.deletes = false);
        add(&|run| run.resumes = false);
        add(&|run| run.lanes = None);
        add(&|run| run.patterns.clear());
        add(&|run| run.patterns.truncate(1));
        add(&|run| run.umask = 0o022);
        add(&|run| run.operands = Operands::Into);
        add(&|run| run.way = Way::Here);
        all.retain(|run| run.rdcp(Path::new("")) != self.rdcp(Path::new("")));
        all
    }
}

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
