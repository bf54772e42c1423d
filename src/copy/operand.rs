//! The paths that the user named. Pure, no I/O.

use serde::{Deserialize, Serialize};

use super::path::EntryName;

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
