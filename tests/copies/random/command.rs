//! Random commands of rdcp, and those of its peers that mean the same.

use std::{fmt::Write, path::Path};

use super::{scene::USER, steps::quoted};
use crate::support::random::Random;

/// Which metadata rdcp keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeps {
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

/// How SOURCE and DESTINATION are written.
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
    /// `s/T d/new`
    New,
    /// `s/T s/U d/`
    Several,
    /// `-P s/T d/p/q/new`
    Parents,
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
        let all = [
            Operands::Into,
            Operands::Into,
            Operands::IntoWithSlash,
            Operands::Contents,
            Operands::Exact,
            Operands::New,
            Operands::Several,
            Operands::Parents,
        ];
        let operands = all[one_of(random, all.len())];
        let all = ["*.o", "a", "/a", "b/", "/c/", "new*", "sp ace", "/c/a"];
        let mut patterns = Vec::new();
        if has_patterns {
            for _ in 0..=one_of(random, 3) {
                patterns.push((one_of(random, 3) > 0, all[one_of(random, all.len())]));
            }
        }
        let is_for_rsync = deletes || existing != Existing::Replace || !patterns.is_empty();
        let peer = if is_for_rsync || (keeps == Keeps::All && one_of(random, 3) > 0) {
            Peer::Rsync
        } else {
            Peer::Cp
        };
        let umask = [0o022, 0o000, 0o077, 0o027][one_of(random, 4)];
        Self {
            keeps,
            existing,
            operands,
            peer,
            deletes,
            resumes,
            patterns,
            umask,
            is_root,
            lanes,
        }
    }

    /// Returns pairs of a top of the source and of the destination.
    pub(super) fn tops(&self) -> Vec<(&'static str, &'static str)> {
        match self.operands {
            Operands::New => vec![("T", "new")],
            Operands::Parents => vec![("T", "p/q/new")],
            Operands::Several => vec![("T", "T"), ("U", "U")],
            _ => vec![("T", "T")],
        }
    }

    /// Returns the command line of rdcp, for bash.
    pub(super) fn rdcp(&self, rdcp: &Path) -> String {
        let mut line = self.user("exec ");
        line += &quoted(rdcp);
        line += match self.keeps {
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
            line += " --delete";
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
        line + match self.operands {
            Operands::Into => " s/T d/",
            Operands::IntoWithSlash => " s/T/ d",
            Operands::Contents => " s/T/. d/T",
            Operands::Exact => " -T s/T d/T",
            // With -T, so that a run after a cut one copies to the same place.
            Operands::New => " -T s/T d/new",
            Operands::Several => " s/T s/U d/",
            Operands::Parents => " -PT s/T d/p/q/new",
        }
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
            Keeps::Little => "cp -r",
            Keeps::All => "cp -a",
        };
        line + match self.operands {
            Operands::Into => " s/T d/",
            Operands::IntoWithSlash => " s/T/ d",
            Operands::Contents => " s/T/. d/T",
            Operands::Exact => " -T s/T d/T",
            Operands::New => " s/T d/new",
            Operands::Several => " s/T s/U d/",
            Operands::Parents => " s/T d/p/q/new",
        }
    }

    fn rsync(&self) -> String {
        let mut line = self.peer_start();
        line += match self.keeps {
            Keeps::Little => "rsync -rlD",
            Keeps::All => "rsync -aHAX --numeric-ids",
        };
        // Nanoseconds count.
        line += " --modify-window=-1";
        line += match self.existing {
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
            Operands::Into | Operands::IntoWithSlash => " s/T d/",
            Operands::Contents | Operands::Exact => " s/T/ d/T/",
            Operands::New => " s/T/ d/new/",
            Operands::Several => " s/T s/U d/",
            Operands::Parents => " s/T/ d/p/q/new/",
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
        all.retain(|run| run.rdcp(Path::new("")) != self.rdcp(Path::new("")));
        all
    }
}
