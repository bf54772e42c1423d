//! What a client may do, as the words behind its key in the key file say: `[ro|wo|append] [SUBDIR]`.

use std::cmp::min;

use super::key_file::LineFault;

/// The directions in which a client copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) struct Access {
    /// True if the client may read.
    pub(in crate::cli) reads: bool,
    /// What the client may write.
    pub(in crate::cli) writes: Writes,
}

/// What a client may write, from nothing to everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::cli) enum Writes {
    Nothing,
    /// Entries that are new. What exists stays as it is.
    New,
    /// Everything: a client may also replace and remove what exists.
    All,
}

impl Access {
    /// Everything, without a word in the key file.
    pub(in crate::cli) const ALL: Self = Self {
        reads: true,
        writes: Writes::All,
    };

    /// `ro`, and `--read-only` of the server.
    pub(in crate::cli) const READ_ONLY: Self = Self {
        reads: true,
        writes: Writes::Nothing,
    };

    /// `wo`, and `--write-only` of the server.
    pub(in crate::cli) const WRITE_ONLY: Self = Self {
        reads: false,
        writes: Writes::All,
    };

    pub(in crate::cli) const APPEND: Self = Self {
        reads: false,
        writes: Writes::New,
    };

    /// Returns what both `self` and `other` allow.
    pub(in crate::cli) fn and(self, other: Self) -> Self {
        Self {
            reads: self.reads && other.reads,
            writes: min(self.writes, other.writes),
        }
    }
}

/// What the line of a client lets it do with the files of a server.
///
/// `Debug` does not show the directory: a user may have put a key in its place.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::cli) struct ClientRights {
    /// The directions in which the client copies.
    pub(in crate::cli) access: Access,
    /// The directory below the root of the server that is the client's root; none for the root itself. No name in it is
    /// `..`.
    pub(in crate::cli) directory: Option<Vec<u8>>,
}

impl ClientRights {
    /// The rights of a client whose line has no words behind the key.
    pub(in crate::cli) const ALL: Self = Self {
        access: Access::ALL,
        directory: None,
    };

    /// Parses the text behind the key. The directory is the rest of the text, so its name may have spaces in it. Without
    /// a right before it, it begins with `/`: a mistyped right is no directory.
    /// Fails if the first word is neither a right nor such a directory, or if the directory has `..` in it.
    pub(in crate::cli) fn parse(text: &[u8]) -> Result<Self, LineFault> {
        let (first, rest) = split_word(text);
        let access = match first {
            b"ro" => Some(Access::READ_ONLY),
            b"wo" => Some(Access::WRITE_ONLY),
            b"append" => Some(Access::APPEND),
            _ => None,
        };
        let directory = access.map_or(text, |_| rest).trim_ascii();
        if access.is_none() && !matches!(directory, [] | [b'/', ..]) {
            return Err(LineFault::Right);
        }
        let has_parent = directory
            .split(|byte| *byte == b'/')
            .any(|name| name == b"..");
        if has_parent || directory.contains(&0) {
            return Err(LineFault::Directory);
        }
        Ok(Self {
            access: access.unwrap_or(Access::ALL),
            directory: (!directory.is_empty()).then(|| directory.to_vec()),
        })
    }
}

impl std::fmt::Debug for ClientRights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientRights")
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

/// Returns the first word of a text, and what follows it. The word is empty if there is none.
pub(super) fn split_word(text: &[u8]) -> (&[u8], &[u8]) {
    let text = text.trim_ascii_start();
    let end = text.iter().position(u8::is_ascii_whitespace);
    text.split_at(end.unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<(Access, Option<String>), LineFault> {
        let rights = ClientRights::parse(text.as_bytes())?;
        let text = |directory| String::from_utf8(directory).unwrap();
        Ok((rights.access, rights.directory.map(text)))
    }

    #[test]
    fn a_line_may_name_a_right_and_a_directory() {
        for (text, access, directory) in [
            ("", Access::ALL, None),
            (" \t\r", Access::ALL, None),
            (" ro", Access::READ_ONLY, None),
            (" wo\r", Access::WRITE_ONLY, None),
            ("append run042", Access::APPEND, Some("run042")),
            ("append\t/a b/c ", Access::APPEND, Some("/a b/c")),
            ("/run042", Access::ALL, Some("/run042")),
            ("ro ro", Access::READ_ONLY, Some("ro")),
        ] {
            let expected = (access, directory.map(str::to_owned));
            assert_eq!(parse(text), Ok(expected), "{text:?}");
        }
    }

    #[test]
    fn a_mistyped_right_is_no_directory() {
        for text in ["r0", "RO", "rw", "appendx /a", "run042", "phrase", "./a"] {
            assert_eq!(parse(text), Err(LineFault::Right), "{text}");
        }
        for text in ["/..", "ro a/../b", "append ..", "/a\0b"] {
            assert_eq!(parse(text), Err(LineFault::Directory), "{text}");
        }
    }

    #[test]
    fn a_client_may_do_what_its_line_and_the_server_allow() {
        let all = [
            Access::ALL,
            Access::READ_ONLY,
            Access::WRITE_ONLY,
            Access::APPEND,
        ];
        for access in all {
            assert_eq!(access.and(Access::ALL), access);
            assert_eq!(access.and(access), access);
            for other in all {
                assert_eq!(access.and(other), other.and(access));
            }
        }
        assert_eq!(Access::APPEND.and(Access::WRITE_ONLY), Access::APPEND);
        let nothing = Access {
            reads: false,
            writes: Writes::Nothing,
        };
        assert_eq!(Access::APPEND.and(Access::READ_ONLY), nothing);
    }

    proptest! {
        #[test]
        fn rights_come_back(
            right in prop::sample::select(&["", "ro", "wo", "append"][..]),
            directory in "(/[a-z]( ?[a-z.]){0,9}){0,3}",
        ) {
            prop_assume!(!directory.split('/').any(|name| name == ".."));
            let (access, found) = parse(&format!(" {right} {directory}\r")).unwrap();
            prop_assert_eq!(found.unwrap_or_default(), directory);
            let expected = match right {
                "ro" => Access::READ_ONLY,
                "wo" => Access::WRITE_ONLY,
                "append" => Access::APPEND,
                _ => Access::ALL,
            };
            prop_assert_eq!(access, expected);
        }
    }
}
