//! The paths that the user named.

use crate::copy::path::EntryName;

/// Returns the name under which an operand arrives: the last name of its path. None for `.`, `..`, `/` and paths that
/// end so: their entries go straight into the place that receives the copy.
pub(crate) fn top_name(typed: &[u8]) -> Option<EntryName> {
    EntryName::try_from(last_name(typed).to_vec()).ok()
}

/// Returns the last name of a path, without the slashes behind it. Empty for the root.
pub(crate) fn last_name(typed: &[u8]) -> &[u8] {
    let names = typed.split(|&byte| byte == b'/');
    names
        .filter(|name| !name.is_empty())
        .next_back()
        .unwrap_or_default()
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
    fn the_folder_is_what_stands_before() {
        assert_eq!(typed_folder(b"a"), b"");
        assert_eq!(typed_folder(b"/a"), b"/");
        assert_eq!(typed_folder(b"x/y/a//"), b"x/y/");
    }
}
