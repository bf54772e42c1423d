//! The names that entries have until they are complete, and which names the clients of a server may not use. Pure.
//!
//! What a copy leaves unfinished on a server belongs to its client. So no other client may name it in any way: as a
//! source, as a destination, as a part of a path, as the target of a link, or as something to remove. [`is_reserved`]
//! decides this for both sides of a copy. It is asked where names become places:
//!
//! - [`BaseDirectory`](super::path::BaseDirectory) refuses reserved names in the paths of an order;
//! - the placement of a destination refuses them in every path that a source sends;
//! - the walk of a source leaves them out, and the mirror of a destination leaves them alone.

use data_encoding::HEXLOWER;
use twox_hash::XxHash3_64;

use super::path::{EntryName, MAX_NAME_BYTES};

/// The reason for the user if a path of a client has a reserved name in it.
pub(crate) const RESERVED: &str =
    "has a name that rdcp gives to unfinished files, which a server keeps from its clients";

const PART_SUFFIX: &[u8] = b".rdcp-part";
const MAP_SUFFIX: &[u8] = b".rdcp-map";

/// The bytes that stand for the rest of a name that is too long: a hyphen and 16 hexadecimal digits.
const HASH_BYTES: usize = 17;

/// The beginning of the temporary names of small entries.
const SMALL_PREFIX: &[u8] = b".rdcp-";

/// What stands before the random digits in the temporary names of files that other programs of rdpipe write.
const OUTPUT_MARK: &[u8] = b".rdpipe-";

/// The random bytes of a name, of which each has two hexadecimal digits.
const RANDOM_BYTES: usize = 4;

/// The temporary names of a file that arrives in parts: `.NAME.rdcp-part` and `.NAME.rdcp-map`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartNames {
    /// The name of the contents.
    pub(crate) part: Vec<u8>,
    /// The name of the map.
    pub(crate) map: Vec<u8>,
}

impl PartNames {
    /// Returns the temporary names of the file `name`. A name that would become too long is cut, and gets a hash.
    pub(crate) fn of(name: &EntryName) -> Self {
        let name = name.as_bytes();
        let room = MAX_NAME_BYTES - 1 - PART_SUFFIX.len();
        let stem = if name.len() <= room {
            name.to_vec()
        } else {
            let hash = format!("-{:016x}", XxHash3_64::oneshot(name));
            [&name[..room - HASH_BYTES], hash.as_bytes()].concat()
        };
        let with = |suffix: &[u8]| [b".", &stem[..], suffix].concat();
        Self {
            part: with(PART_SUFFIX),
            map: with(MAP_SUFFIX),
        }
    }
}

/// Returns a random name for a small entry: `.rdcp-XXXXXXXX`.
pub(crate) fn random_name() -> Vec<u8> {
    let mut random = [0; RANDOM_BYTES];
    // The name need not be secret: it is created exclusively, and another is tried if it is taken.
    let _ = getrandom::fill(&mut random);
    [SMALL_PREFIX, HEXLOWER.encode(&random).as_bytes()].concat()
}

/// Returns true for a name as [`random_name`] makes them.
pub(crate) fn is_random_name(name: &[u8]) -> bool {
    name.strip_prefix(SMALL_PREFIX).is_some_and(is_random)
}

/// Returns the name of the file that a name of [`PartNames`] belongs to, as far as it was not cut; none for other
/// names.
pub(crate) fn name_of_part(name: &[u8]) -> Option<&[u8]> {
    let stem = name.strip_prefix(b".")?;
    stem.strip_suffix(PART_SUFFIX)
        .or_else(|| stem.strip_suffix(MAP_SUFFIX))
}

/// Returns true for a name that no client of a server may use: that of an unfinished entry, and every name that a file
/// system may take for one.
///
/// File systems that ignore case ignore some characters outside of ASCII too, and FAT ignores dots and spaces at the
/// end. So only ASCII counts here, without case and without those.
pub(crate) fn is_reserved(name: &[u8]) -> bool {
    // Most names are decided by one look.
    if !name.contains(&b'-') || !name.contains(&b'.') {
        return false;
    }
    let folded = name.iter().filter(|byte| byte.is_ascii());
    let mut folded: Vec<u8> = folded.map(u8::to_ascii_lowercase).collect();
    while matches!(folded.last(), Some(b'.' | b' ')) {
        folded.pop();
    }
    is_random_name(&folded) || name_of_part(&folded).is_some() || is_output_name(&folded)
}

/// Returns true if a path has a reserved name in it.
pub(crate) fn has_reserved(path: &[u8]) -> bool {
    path.split(|&byte| byte == b'/').any(is_reserved)
}

/// Returns true for a name as `fd/temporary.rs` makes them.
fn is_output_name(name: &[u8]) -> bool {
    let Some(at) = name.len().checked_sub(OUTPUT_MARK.len() + 2 * RANDOM_BYTES) else {
        return false;
    };
    let (stem, rest) = name.split_at(at);
    stem.starts_with(b".") && rest.strip_prefix(OUTPUT_MARK).is_some_and(is_random)
}

fn is_random(digits: &[u8]) -> bool {
    let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    digits.len() == 2 * RANDOM_BYTES && digits.iter().all(is_digit)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fd::temporary_name;

    #[test]
    fn temporary_names_are_short_enough_and_known() {
        for length in [1, 243, 244, 245, 255] {
            let name = vec![b'n'; length].try_into().unwrap();
            let names = PartNames::of(&name);
            assert!(names.part.len() <= MAX_NAME_BYTES);
            assert!(name_of_part(&names.part).is_some() && name_of_part(&names.map).is_some());
        }
        let names = PartNames::of(&b"a.rdcp-map".to_vec().try_into().unwrap());
        assert_eq!(name_of_part(&names.part), Some(&b"a.rdcp-map"[..]));
        assert_eq!(name_of_part(b"a.rdcp-part"), None);
        let long = |last| {
            let mut name = vec![b'n'; 254];
            name.push(last);
            PartNames::of(&name.try_into().unwrap())
        };
        assert_ne!(long(b'a'), long(b'b'));
    }

    #[test]
    fn names_of_users_are_free() {
        for name in [
            ".rdcp-key",
            ".rdcp-notes",
            ".rdcp-0123abc",
            ".rdcp-0123abcg",
            "a.rdcp-part",
            ".a.rdcp-parts",
            ".a.rdcp-mapped",
            ".a-b.part",
            "rdpipe-01234567",
            ".rdpipe-0123",
            "-",
            ".-",
        ] {
            assert!(!is_reserved(name.as_bytes()), "{name}");
        }
    }

    /// Returns what a file system that ignores case, marks and the end of a name may take for the same name.
    fn disguised(name: &[u8], upper: &[bool], at: usize, end: &str) -> Vec<u8> {
        let mut other = name.to_vec();
        for (byte, _) in other.iter_mut().zip(upper).filter(|(_, upper)| **upper) {
            byte.make_ascii_uppercase();
        }
        // A zero-width joiner. It is not put into a character of more than one byte.
        let at = at % (other.len() + 1);
        if std::str::from_utf8(&other[..at]).is_ok() {
            other.splice(at..at, "\u{200d}".bytes());
        }
        other.extend_from_slice(end.as_bytes());
        other
    }

    proptest! {
        #[test]
        fn every_temporary_name_is_reserved_however_it_is_written(
            bytes in prop::collection::vec(1..=255_u8, 1..256),
            upper in prop::collection::vec(any::<bool>(), 256),
            at in any::<usize>(),
            end in "[. ]{0,3}",
        ) {
            let Ok(name) = EntryName::try_from(bytes) else { return Ok(()) };
            let target: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(name.as_bytes());
            let output = temporary_name(target).unwrap().into_encoded_bytes();
            let PartNames { part, map } = PartNames::of(&name);
            for made in [part, map, random_name(), output] {
                prop_assert!(is_reserved(&made), "{made:?}");
                let other = disguised(&made, &upper, at, &end);
                prop_assert!(is_reserved(&other), "{other:?}");
                let path = [b"a/", &other[..], b"/b"].concat();
                prop_assert!(has_reserved(&path));
            }
        }

        #[test]
        fn a_name_without_the_mark_of_rdcp_is_free(name in "[ -.0-~]{1,60}") {
            let lower = name.to_ascii_lowercase();
            prop_assume!(!lower.contains("rdcp") && !lower.contains("rdpipe"));
            prop_assert!(!is_reserved(name.as_bytes()));
        }
    }
}
