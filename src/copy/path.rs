//! Names and relative paths that a peer may send. Pure, no I/O.

use serde::{Deserialize, Serialize};

/// The most bytes of a name: the limit of Linux.
pub(crate) const MAX_NAME_BYTES: usize = 255;

/// The name of an entry in its directory: not empty, without `/` and NUL, and neither `.` nor `..`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub(crate) struct EntryName(Vec<u8>);

/// A path from the place that receives a copy to an entry below it: any number of [`EntryName`]s, joined by `/`. The
/// empty path is the place itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub(crate) struct RelativePath(Vec<u8>);

/// Bytes that are not a name or a path that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the name of an entry")]
pub(crate) struct InvalidName;

impl EntryName {
    /// Returns the bytes of the name.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<Vec<u8>> for EntryName {
    type Error = InvalidName;

    fn try_from(bytes: Vec<u8>) -> Result<Self, InvalidName> {
        if is_name(&bytes) {
            Ok(Self(bytes))
        } else {
            Err(InvalidName)
        }
    }
}

impl From<EntryName> for Vec<u8> {
    fn from(name: EntryName) -> Self {
        name.0
    }
}

impl RelativePath {
    /// Returns the bytes of the path, which do not begin or end with `/`.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns true if the path names the place itself.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the path of the entry `name` below this path.
    pub(crate) fn join(&self, name: &EntryName) -> Self {
        let mut path = self.0.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
        Self(path)
    }

    /// Returns the path of what `path` names below this path.
    pub(crate) fn join_path(&self, path: &Self) -> Self {
        let parts: Vec<&[u8]> = self.names().chain(path.names()).collect();
        Self(parts.join(&b'/'))
    }

    /// Returns the path without its first name: relative to the directory that the first name is.
    pub(crate) fn without_first(&self) -> Self {
        let parts: Vec<&[u8]> = self.names().skip(1).collect();
        Self(parts.join(&b'/'))
    }

    /// Returns the path without as many first names as `above` has: relative to `above`, if the path is below it.
    pub(crate) fn without_names_of(&self, above: &Self) -> Self {
        let parts: Vec<&[u8]> = self.names().skip(above.names().count()).collect();
        Self(parts.join(&b'/'))
    }

    /// Returns the names of the path, from the top.
    pub(crate) fn names(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0
            .split(|&byte| byte == b'/')
            .filter(|name| !name.is_empty())
    }

    /// Returns the path of the directory that the entry is in, and the entry's name; none for the empty path.
    pub(crate) fn split_last(&self) -> Option<(Self, EntryName)> {
        if self.is_empty() {
            return None;
        }
        let cut = self.0.iter().rposition(|&byte| byte == b'/');
        let (parent, name) = match cut {
            Some(cut) => (&self.0[..cut], &self.0[cut + 1..]),
            None => (&[][..], &self.0[..]),
        };
        Some((Self(parent.to_vec()), EntryName(name.to_vec())))
    }
}

impl TryFrom<Vec<u8>> for RelativePath {
    type Error = InvalidName;

    fn try_from(bytes: Vec<u8>) -> Result<Self, InvalidName> {
        if bytes.is_empty() || bytes.split(|&byte| byte == b'/').all(is_name) {
            Ok(Self(bytes))
        } else {
            Err(InvalidName)
        }
    }
}

impl From<RelativePath> for Vec<u8> {
    fn from(path: RelativePath) -> Self {
        path.0
    }
}

fn is_name(bytes: &[u8]) -> bool {
    let forbidden = |&byte: &u8| byte == b'/' || byte == 0;
    !bytes.is_empty()
        && bytes.len() <= MAX_NAME_BYTES
        && bytes != b"."
        && bytes != b".."
        && !bytes.iter().any(forbidden)
}
