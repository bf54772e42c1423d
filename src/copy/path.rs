//! The paths that the user named, and the names and relative paths that a peer may send. Pure, no I/O.

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

/// What a destination receives, as far as the paths of the sources tell. It decides where the copy goes, so the
/// destination knows it before anything arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CopiedSources {
    /// One source, which arrives under its name.
    One,
    /// One source whose path ends in `.` or `..`, or is `/`: what is in that directory arrives.
    Contents,
    /// More than one source.
    Many,
}

impl CopiedSources {
    /// Returns what arrives from these paths, at least one.
    pub(crate) fn of<'a>(typed: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut typed = typed.into_iter();
        match (typed.next(), typed.next()) {
            (_, Some(_)) => Self::Many,
            (Some(only), None) if top_name(only).is_none() => Self::Contents,
            (Some(_) | None, None) => Self::One,
        }
    }
}

/// Returns the name under which an operand arrives: the last name of its path. None for `.`, `..`, `/` and paths that
/// end so: their entries go straight into the place that receives the copy.
pub(crate) fn top_name(typed: &[u8]) -> Option<EntryName> {
    EntryName::try_from(last_name(typed).to_vec()).ok()
}

/// Returns the last name of a path, without the slashes behind it. Empty for the root.
pub(crate) fn last_name(typed: &[u8]) -> &[u8] {
    let mut names = typed.split(|&byte| byte == b'/');
    names.rfind(|name| !name.is_empty()).unwrap_or_default()
}

/// Returns what the user typed before the last name of a path; empty if there is nothing.
pub(crate) fn typed_folder(typed: &[u8]) -> &[u8] {
    let end = typed
        .iter()
        .rposition(|&byte| byte != b'/')
        .map_or(0, |last| last + 1);
    let start = typed[..end].iter().rposition(|&byte| byte == b'/');
    start.map_or(&[], |slash| &typed[..=slash])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operand_arrives_under_its_last_name() {
        let top = |typed: &[u8]| top_name(typed).map(Vec::from);
        assert_eq!(top(b"a"), Some(b"a".to_vec()));
        assert_eq!(top(b"/x/a//"), Some(b"a".to_vec()));
        assert_eq!(top(b"./\xff"), Some(b"\xff".to_vec()));
        for contents in [&b"."[..], b"..", b"/", b"a/.", b"a/..", b"a/./"] {
            assert_eq!(top(contents), None, "{contents:?}");
        }
    }

    #[test]
    fn the_paths_tell_what_arrives() {
        let of = |typed: &[&'static [u8]]| CopiedSources::of(typed.iter().copied());
        assert_eq!(of(&[b"a/"]), CopiedSources::One);
        assert_eq!(of(&[b"a/."]), CopiedSources::Contents);
        assert_eq!(of(&[b"a/.", b"b"]), CopiedSources::Many);
    }

    #[test]
    fn the_folder_is_what_stands_before() {
        assert_eq!(typed_folder(b"a"), b"");
        assert_eq!(typed_folder(b"/a"), b"/");
        assert_eq!(typed_folder(b"x/y/a//"), b"x/y/");
    }
}
