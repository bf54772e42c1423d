//! The messages between the controller of a copy, `rdcp`, and its two agents. Pure, no I/O.
//!
//! One agent is the *source*: it walks the files and sends them. The other is the *destination*: it writes them.
//! The messages travel inside the envelope of the agents' protocol ([`Payload`]). The rules and digests that an order
//! names are here too: [`NameFilter`] and [`FileDigest`].

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

use aws_lc_rs::digest::{Context, SHA256};
use data_encoding::HEXLOWER;
use ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};
use rdpipe_digest::Xxh64;
use serde::{Deserialize, Serialize};

use super::{holes::zeros, path::CopiedSources, written::WrittenPart};
use crate::ssh::protocol::{EdgeId, Payload};

/// The application's part of the order for an agent of a copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CopyOrder {
    /// What this agent does.
    pub(crate) role: CopyRole,
    /// The two-way edge for questions and answers ([`question`](super::question)).
    pub(crate) control: EdgeId,
    /// The edges for contents ([`record`](super::record)), at least one, all from the source to the destination.
    pub(crate) lanes: Vec<EdgeId>,
    /// How files are copied. Both agents receive the same options.
    pub(crate) options: CopyOptions,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CopyRole {
    /// Reads these paths, in this order. A relative path is relative to the agent's working directory.
    Source(Vec<Vec<u8>>),
    /// Writes to `path`.
    Destination {
        /// The path, as the user typed it.
        path: Vec<u8>,
        /// What arrives there, from this source and others together.
        sources: CopiedSources,
        part: RunPart,
    },
}

/// The part of a run that one copy is: sources of several hosts are copied one after the other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunPart {
    /// True if sources of the run may have entries of one name.
    pub(crate) merges: bool,
    /// True if the destination asks what earlier copies of the run have written ([`FromCopy::AskWritten`]).
    pub(crate) has_earlier: bool,
    /// True if the destination reports at its end what the run has written ([`FromCopy::Written`]).
    pub(crate) has_later: bool,
}

/// How files are copied.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is an option of the command line, independent of the others"
)]
pub(crate) struct CopyOptions {
    /// `-r`: copy directories, and what is not a plain file.
    pub(crate) recursive: bool,
    /// `-a`: keep all metadata.
    pub(crate) archive: bool,
    /// `-T`: the destination is the copy itself, not a directory that receives it.
    pub(crate) no_target_directory: bool,
    /// `-P`: create missing parent directories of the destination.
    pub(crate) parents: bool,
    /// What happens to a file that the destination has already.
    pub(crate) existing: ExistingFiles,
    /// `--delete`: remove what the destination's directories have and the source's have not.
    pub(crate) delete: bool,
    /// `--max-delete`: the most entries that `delete` removes. None also says that an empty directory of the source
    /// removes nothing.
    pub(crate) max_delete: Option<u64>,
    /// `--resume`: continue files that an earlier run has left unfinished.
    pub(crate) resume: bool,
    /// `--remove-source-files`: remove each source file after the destination has confirmed it.
    pub(crate) remove_source_files: bool,
    /// `-n`: report what would be copied and removed; change nothing.
    pub(crate) dry_run: bool,
    /// `--fsync`: fsync each file before it gets its final name.
    pub(crate) fsync: bool,
    /// True if the source reports every path that it has sent, for `-v`.
    pub(crate) list: bool,
    /// `--checksum`: the digest of each file to report.
    pub(crate) digest: Option<DigestKind>,
    /// `--bwlimit`: the most bytes per second of all lanes together.
    pub(crate) bytes_per_second: Option<u64>,
    /// True if the destination keeps nothing that lends rights on its host ([`KeptRights::Owners`]): the source is a
    /// server, and `--privileged` was not given. A server decides for itself what it keeps of its clients.
    pub(crate) drops_lent_rights: bool,
    /// `-j`: the user has chosen the number of lanes. They share large files then, also on a machine of few processors.
    pub(crate) chosen_lanes: bool,
    /// `--exclude` and `--include`, in the order of the command line. The last one that matches decides.
    pub(crate) filters: Vec<FilterRule>,
}

/// What a destination keeps of the metadata that give rights on its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeptRights {
    /// Keeps all that its process may set. For copies over ssh, which a user of both hosts has started, and for
    /// `--privileged`.
    All,
    /// Keeps owners and ACLs, which give rights to the entries themselves. Keeps nothing that lends the rights of a user
    /// or of the system: set-user-ID bits, set-group-ID bits of files, devices, attributes other than ACLs and those of
    /// the namespace `user`. For what a server sends: any of its clients may have put it there.
    Owners,
    /// Keeps permission bits, and gives all entries to the user of the process. For a server that writes what its
    /// clients send.
    Permissions,
}

impl KeptRights {
    pub(crate) fn keep_attribute(self, name: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Owners => name.starts_with(b"user.") || name.starts_with(b"system."),
            Self::Permissions => name.starts_with(b"user."),
        }
    }

    /// Returns the reason for the user why something is not kept.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::All | Self::Owners => "from a server, rdcp keeps them with --privileged only",
            Self::Permissions => "a server keeps them with --privileged only",
        }
    }
}

/// What happens to a file that the destination has already.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ExistingFiles {
    #[default]
    Replace,
    /// `--no-clobber`: it is kept.
    Keep,
    /// `--update`: it is replaced if the source's file has a later time of modification.
    ReplaceOlder,
    /// `--skip-same`: it is replaced unless size and time of modification are equal.
    ReplaceDifferent,
}

/// The digests of `--checksum`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum DigestKind {
    /// XXH64, which `xxhsum -c` checks.
    Xxh64,
    /// SHA-256, which `sha256sum -c` checks.
    Sha256,
}

/// One `--exclude` or `--include`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FilterRule {
    pub(crate) include: bool,
    /// A pattern with the rules of gitignore.
    pub(crate) pattern: String,
}

/// A message from an agent of a copy to the controller. The order of the variants is the wire format. Paths are
/// relative to the place that receives the sources, unless a variant says otherwise, and are bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FromCopy {
    /// From the source, a few times a second: what the walk has found so far.
    Walked {
        /// The number of entries that are to be copied: files, links and special files, not directories.
        files: u64,
        /// The number of those whose contents are counted in `bytes`. The others were not looked at yet.
        sized: u64,
        /// The bytes of their contents, without holes and without what the destination has already.
        bytes: u64,
        /// True if the walk is complete.
        complete: bool,
    },
    /// From the destination, a few times a second: what is finished, and what is written at the moment.
    Progress {
        /// The number of entries under their final names.
        files: u64,
        /// The bytes of contents that were written.
        bytes: u64,
        /// The path of an entry that is being written.
        current: Vec<u8>,
    },
    /// From either agent: something for the user.
    News(CopyNews),
    /// From the destination, with [`RunPart::has_earlier`]: what have earlier copies written? The controller answers
    /// with every [`WrittenPart`] of the set.
    AskWritten,
    /// From the destination, with [`RunPart::has_later`]: what the run has written so far.
    Written(WrittenPart),
}

/// What an agent of a copy has for the user. The order of the variants is the wire format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CopyNews {
    /// From either agent: one entry was not copied, or not removed. The copy goes on.
    Failed {
        /// The path: of the source's file as the user would type it at the source, or of the destination's likewise.
        path: Vec<u8>,
        /// What failed and why, in one sentence.
        why: String,
    },
    /// From either agent, at most once for each text: something that was copied could not keep all of its metadata, or
    /// was left out as the options say ("owners were not kept: the destination is not root").
    Note(String),
    /// From the source, with [`CopyOptions::list`] or [`CopyOptions::dry_run`]: these were sent, or would be.
    Sent(Vec<Vec<u8>>),
    /// From the destination, with [`CopyOptions::list`] or [`CopyOptions::dry_run`]: these were removed, or would be.
    Removed(Vec<Vec<u8>>),
    /// From the destination, with [`CopyOptions::digest`]: digests in hexadecimal digits, and the paths of the files.
    Digests(Vec<(String, Vec<u8>)>),
    /// From the destination, with [`CopyOptions::list`] or [`CopyOptions::dry_run`]: the metadata of these were
    /// changed, or would be, and their contents stay.
    Changed(Vec<Vec<u8>>),
}

/// The most bytes of a path or a sentence in a message. Linux takes paths of 4 KiB in one call; a tree can be deeper.
const MAX_SHOWN_BYTES: usize = 64 << 10;

impl FromCopy {
    /// Encodes the message. A list that is longer than a payload becomes several messages, and a path that is longer is
    /// shown in part.
    pub(crate) fn into_payloads(self) -> Vec<Payload> {
        if let Ok(payload) = Payload::encode(&self) {
            return vec![payload];
        }
        match self.halves() {
            Ok((first, second)) => {
                let mut payloads = first.into_payloads();
                payloads.extend(second.into_payloads());
                payloads
            }
            Err(message) => Payload::encode(&message.shortened()).into_iter().collect(),
        }
    }

    /// Splits a list of at least two entries.
    fn halves(self) -> Result<(Self, Self), Self> {
        fn split<T>(mut list: Vec<T>) -> (Vec<T>, Vec<T>) {
            let second = list.split_off(list.len() / 2);
            (list, second)
        }
        let (first, second) = match self {
            Self::News(CopyNews::Sent(paths)) if paths.len() > 1 => {
                let (first, second) = split(paths);
                (CopyNews::Sent(first), CopyNews::Sent(second))
            }
            Self::News(CopyNews::Removed(paths)) if paths.len() > 1 => {
                let (first, second) = split(paths);
                (CopyNews::Removed(first), CopyNews::Removed(second))
            }
            Self::News(CopyNews::Changed(paths)) if paths.len() > 1 => {
                let (first, second) = split(paths);
                (CopyNews::Changed(first), CopyNews::Changed(second))
            }
            Self::News(CopyNews::Digests(digests)) if digests.len() > 1 => {
                let (first, second) = split(digests);
                (CopyNews::Digests(first), CopyNews::Digests(second))
            }
            message => return Err(message),
        };
        Ok((Self::News(first), Self::News(second)))
    }

    /// Cuts what is too long in a message with one path or sentence. A digest needs its whole path, so it becomes a
    /// failure.
    fn shortened(mut self) -> Self {
        match &mut self {
            Self::News(
                CopyNews::Sent(paths) | CopyNews::Removed(paths) | CopyNews::Changed(paths),
            ) => {
                for path in paths {
                    path.truncate(MAX_SHOWN_BYTES);
                }
            }
            Self::News(CopyNews::Failed { path, why }) => {
                path.truncate(MAX_SHOWN_BYTES);
                *why = why.chars().take(MAX_SHOWN_BYTES / 4).collect();
            }
            Self::News(CopyNews::Note(text)) => {
                *text = text.chars().take(MAX_SHOWN_BYTES / 4).collect();
            }
            Self::News(CopyNews::Digests(digests)) => {
                let mut path = digests.pop().map(|(_, path)| path).unwrap_or_default();
                path.truncate(MAX_SHOWN_BYTES);
                let why = "was copied, but its path is too long for a list of digests".to_owned();
                return Self::News(CopyNews::Failed { path, why });
            }
            Self::Progress { current, .. } => current.truncate(MAX_SHOWN_BYTES),
            Self::Walked { .. } | Self::AskWritten | Self::Written(_) => {}
        }
        self
    }
}

/// The result in the report of an agent of a copy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CopyEnd {
    /// What the agent did.
    pub(crate) report: CopyReport,
    /// True if the agent itself could not go on, because of its files. Another failure of the process is a signal, say.
    pub(crate) gave_up: bool,
}

/// What an agent of a copy did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CopyReport {
    /// Entries that were sent or written, without directories.
    pub(crate) files: u64,
    /// Directories that were sent or made.
    pub(crate) directories: u64,
    /// The bytes of contents that were sent or written, without holes.
    pub(crate) bytes: u64,
    /// Entries that the destination had already and kept, as the options say.
    pub(crate) skipped: u64,
    /// Bytes of contents that were not sent, because an earlier run had written them.
    pub(crate) resumed_bytes: u64,
    /// Entries that this agent reported in [`CopyNews::Failed`].
    pub(crate) failed: u64,
    /// Entries that were removed: by `--delete` at the destination, by `--remove-source-files` at the source.
    pub(crate) removed: u64,
    /// True if the agent came to the end of its work.
    pub(crate) complete: bool,
}

/// Decides which entries are left out. The last rule that matches an entry decides. Nothing below an excluded directory
/// is copied.
#[derive(Debug)]
pub(crate) struct NameFilter(Option<Gitignore>);

impl NameFilter {
    /// Compiles rules, in the order of the command line.
    /// Fails if a pattern is invalid.
    pub(crate) fn new(rules: &[FilterRule]) -> Result<Self, String> {
        if rules.is_empty() {
            return Ok(Self(None));
        }
        let mut builder = GitignoreBuilder::new("");
        for rule in rules {
            let invalid = |error| format!("the pattern {:?} is invalid: {error}", rule.pattern);
            builder.add_line(None, &line(rule)).map_err(invalid)?;
        }
        let built = builder.build().map_err(|error| error.to_string())?;
        Ok(Self(Some(built)))
    }

    /// Returns the memory that compiled rules take, at most.
    ///
    /// Names, endings and beginnings are kept as they are. Other patterns become automata: measured are up to 2,100 bytes
    /// for each byte of a pattern, with `?` as the costliest sign.
    pub(crate) fn memory(rules: &[FilterRule]) -> usize {
        let bytes = |FilterRule { pattern, .. }: &FilterRule| {
            let inner = pattern.trim_start_matches("**/").trim_matches('*');
            let is_simple = !inner.contains(['*', '?', '[', '{', '\\']);
            (pattern.len() + 1) * if is_simple { 256 } else { 2304 }
        };
        rules.iter().map(bytes).sum()
    }

    /// Returns true if the entry is left out. `path` is relative to the directory that the user named.
    pub(crate) fn excludes(&self, path: &[u8], is_directory: bool) -> bool {
        let Some(rules) = &self.0 else { return false };
        let path = Path::new(OsStr::from_bytes(path));
        matches!(rules.matched(path, is_directory), Match::Ignore(_))
    }

    /// Returns true if no entry is left out.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

/// Returns the line of a gitignore file that means the same. A leading `#` is part of the pattern, not a comment.
fn line(rule: &FilterRule) -> String {
    let escape = if rule.pattern.starts_with('#') {
        "\\"
    } else {
        ""
    };
    let include = if rule.include { "!" } else { "" };
    format!("{include}{escape}{}", rule.pattern)
}

/// The digest of a file, as its bytes arrive in order.
pub(crate) enum FileDigest {
    Xxh64(Xxh64),
    Sha256(Context),
}

impl FileDigest {
    /// Returns the digest of no bytes.
    pub(crate) fn new(kind: DigestKind) -> Self {
        match kind {
            DigestKind::Xxh64 => Self::Xxh64(Xxh64::default()),
            DigestKind::Sha256 => Self::Sha256(Context::new(&SHA256)),
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Xxh64(digest) => digest.update(bytes),
            Self::Sha256(digest) => digest.update(bytes),
        }
    }

    /// Adds `count` zeros, the bytes of a hole. That may take hours, so `check` is called before each piece.
    /// Fails as `check` does. The digest has a part of the zeros then.
    pub(crate) fn update_zeros<E>(
        &mut self,
        count: u64,
        check: impl Fn() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut left = count;
        while left > 0 {
            check()?;
            let piece = zeros(left);
            self.update(piece);
            left -= piece.len() as u64;
        }
        Ok(())
    }

    /// Returns the digest in hexadecimal digits, as `xxhsum` and `sha256sum` print it.
    pub(crate) fn finish(self) -> String {
        match self {
            Self::Xxh64(digest) => format!("{:016x}", digest.finish()),
            Self::Sha256(digest) => HEXLOWER.encode(digest.finish().as_ref()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(message: FromCopy) -> Vec<FromCopy> {
        let payloads = message.into_payloads().into_iter();
        payloads.map(|payload| payload.decode().unwrap()).collect()
    }

    #[test]
    fn a_list_of_long_paths_arrives_whole_and_in_order() {
        let path = |index: u16| [&index.to_be_bytes()[..], &[b'p'; 4000]].concat();
        let digests: Vec<_> = (0..256)
            .map(|index| (index.to_string(), path(index)))
            .collect();
        let messages = decoded(FromCopy::News(CopyNews::Digests(digests.clone())));
        assert!(messages.len() > 1);
        let lists = messages.into_iter().map(|message| match message {
            FromCopy::News(CopyNews::Digests(list)) => list,
            other => panic!("{other:?}"),
        });
        assert_eq!(lists.flatten().collect::<Vec<_>>(), digests);
    }

    #[test]
    fn a_path_that_is_longer_than_a_message_is_shown_in_part() {
        let path = vec![b'p'; 1 << 20];
        let sent = decoded(FromCopy::News(CopyNews::Sent(vec![path.clone()])));
        let part = vec![b'p'; MAX_SHOWN_BYTES];
        assert_eq!(sent, [FromCopy::News(CopyNews::Sent(vec![part]))]);
        let digest = ("0".to_owned(), path.clone());
        let digests = decoded(FromCopy::News(CopyNews::Digests(vec![digest])));
        assert!(matches!(
            digests[..],
            [FromCopy::News(CopyNews::Failed { .. })]
        ));
        let why = "w".repeat(1 << 20);
        let failed = decoded(FromCopy::News(CopyNews::Failed { path, why }));
        assert!(matches!(
            failed[..],
            [FromCopy::News(CopyNews::Failed { .. })]
        ));
    }

    fn filter(rules: &[(bool, &str)]) -> NameFilter {
        let rule = |&(include, pattern): &(bool, &str)| FilterRule {
            include,
            pattern: pattern.to_owned(),
        };
        let rules: Vec<FilterRule> = rules.iter().map(rule).collect();
        NameFilter::new(&rules).unwrap()
    }

    #[test]
    fn the_last_rule_that_matches_decides() {
        let filter = filter(&[(false, "*.o"), (true, "keep.o"), (false, "/build/")]);
        assert!(filter.excludes(b"a.o", false));
        assert!(filter.excludes(b"deep/down/a.o", false));
        assert!(!filter.excludes(b"deep/keep.o", false));
        assert!(filter.excludes(b"build", true));
        assert!(!filter.excludes(b"build", false));
        assert!(!filter.excludes(b"deep/build", true));
    }

    #[test]
    fn the_memory_of_patterns_is_known_before_they_are_compiled() {
        let memory = |pattern: &str, count: usize| {
            let pattern = pattern.to_owned();
            let include = false;
            NameFilter::memory(&vec![FilterRule { include, pattern }; count])
        };
        // What 54 KB of patterns took, measured: 40 MB.
        assert!(memory("a?b[c-e]*f", 5400) > 40 << 20);
        assert!(memory("*.o", 100) + memory("/build/", 100) + memory("**/x", 100) < 512 << 10);
        assert_eq!(memory("", 0), 0);
    }

    #[test]
    fn names_are_bytes_and_a_hash_is_no_comment() {
        let filter = filter(&[(false, "#*#"), (false, "b*")]);
        assert!(filter.excludes(b"#draft#", false));
        assert!(filter.excludes(b"b\xff\n", false));
        assert!(!filter.excludes(b"\xff\n", false));
    }

    #[test]
    fn an_invalid_pattern_is_a_sentence() {
        let rules = [FilterRule {
            include: false,
            pattern: "a{b".to_owned(),
        }];
        let why = NameFilter::new(&rules).err().unwrap();
        assert!(why.contains("the pattern \"a{b\" is invalid"), "{why}");
        assert!(NameFilter::new(&[]).unwrap().is_empty());
    }

    fn digest(kind: DigestKind, bytes: &[u8]) -> String {
        let mut digest = FileDigest::new(kind);
        digest.update(bytes);
        digest.finish()
    }

    #[test]
    fn known_digests() {
        assert_eq!(digest(DigestKind::Xxh64, b""), "ef46db3751d8e999");
        assert_eq!(
            digest(DigestKind::Sha256, b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn a_hole_counts_as_zeros() {
        let mut holes = FileDigest::new(DigestKind::Xxh64);
        holes.update(b"a");
        let added: Result<(), ()> = holes.update_zeros(100_000, || Ok(()));
        added.unwrap();
        let mut bytes = vec![b'a'];
        bytes.resize(100_001, 0);
        assert_eq!(holes.finish(), digest(DigestKind::Xxh64, &bytes));
        let endless = FileDigest::new(DigestKind::Xxh64).update_zeros(u64::MAX, || Err("ended"));
        assert_eq!(endless, Err("ended"));
    }
}
