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
use rdpipe_digest::xxh3_64;

use super::path::{EntryName, MAX_NAME_BYTES};
use crate::{Key, key::keyed_digest};

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

/// The bytes of the id of a client.
pub(crate) const OWNER_BYTES: usize = 16;

/// The bytes of an id that stand in temporary names, each as two hexadecimal digits.
const TAG_BYTES: usize = 8;

/// Whose unfinished files a destination writes and continues: those of a client of a server, or those of the user who
/// has started the agent over ssh.
///
/// The name in the key file is what the administrator knows a client by, so it decides the temporary names: two clients
/// that are cut at one destination leave two files, and a client with a new key replaces its old one. The key decides
/// the secret of the maps. Only the server and the client have it, so nothing needs to be kept on the disk of the
/// server, and after a new key every unfinished file begins again.
#[derive(Debug, Clone)]
pub(crate) struct PartOwner {
    id: [u8; OWNER_BYTES],
    secret: Key,
}

impl PartOwner {
    /// Returns the user of an agent. The secret is none: a check in a map then finds damage only.
    pub(crate) fn user() -> Self {
        Self {
            id: [0; OWNER_BYTES],
            secret: Key::from_secret(&[0; 32]),
        }
    }

    /// Returns the client of a server with this name in the key file and this key.
    pub(crate) fn client(name: &str, key: &Key) -> Self {
        let mut id = [0; OWNER_BYTES];
        id.copy_from_slice(&keyed_digest(&[0; 32], name.as_bytes())[..OWNER_BYTES]);
        let secret = keyed_digest(key.secret(), b"rdpipe maps of unfinished files");
        Self {
            id,
            secret: Key::from_secret(&secret),
        }
    }

    /// Returns the id, which is that of no other client.
    pub(crate) fn id(&self) -> &[u8; OWNER_BYTES] {
        &self.id
    }

    /// Returns the secret of the checks in maps.
    pub(crate) fn secret(&self) -> &[u8; 32] {
        self.secret.secret()
    }

    /// Returns what stands behind the name of a file in its temporary names.
    fn tag(&self) -> String {
        if self.id == [0; OWNER_BYTES] {
            String::new()
        } else {
            format!(".{}", HEXLOWER.encode(&self.id[..TAG_BYTES]))
        }
    }
}

/// The temporary names of a file that arrives in parts: `.NAME.rdcp-part` and `.NAME.rdcp-map`; on a server
/// `.NAME.DIGITS.rdcp-part` and `.NAME.DIGITS.rdcp-map`, with 16 hexadecimal digits for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartNames {
    /// The name of the contents.
    pub(crate) part: Vec<u8>,
    pub(crate) map: Vec<u8>,
}

impl PartNames {
    /// Returns the temporary names of the file `name` of an owner. A name that would become too long is cut, and gets a
    /// hash.
    pub(crate) fn of(name: &EntryName, owner: &PartOwner) -> Self {
        let name = name.as_bytes();
        let tag = owner.tag();
        let room = MAX_NAME_BYTES - 1 - tag.len() - PART_SUFFIX.len();
        let stem = if name.len() <= room {
            name.to_vec()
        } else {
            let hash = format!("-{:016x}", xxh3_64(name));
            [&name[..room - HASH_BYTES], hash.as_bytes()].concat()
        };
        let with = |suffix: &[u8]| [b".", &stem[..], tag.as_bytes(), suffix].concat();
        Self {
            part: with(PART_SUFFIX),
            map: with(MAP_SUFFIX),
        }
    }
}

/// Returns a random name for a small entry: `.rdcp-` and eight hexadecimal digits.
pub(crate) fn random_name() -> Vec<u8> {
    let mut random = [0; RANDOM_BYTES];
    // The name need not be secret: it is created exclusively, and another is tried if it is taken.
    let _ = getrandom::fill(&mut random);
    [SMALL_PREFIX, HEXLOWER.encode(&random).as_bytes()].concat()
}

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

/// Returns the name of a file in a name that [`name_of_part`] has returned and that has digits for a client behind it.
pub(crate) fn without_tag(name: &[u8]) -> Option<&[u8]> {
    let (stem, tag) = name.split_at(name.len().checked_sub(1 + 2 * TAG_BYTES)?);
    let digits = tag.strip_prefix(b".")?;
    digits.iter().copied().all(is_digit).then_some(stem)
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
    digits.len() == 2 * RANDOM_BYTES && digits.iter().copied().all(is_digit)
}

fn is_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fd::temporary_name;

    #[test]
    fn temporary_names_are_short_enough_and_known() {
        let user = PartOwner::user();
        for owner in [&user, &client("alice")] {
            for length in [1, 226, 227, 228, 243, 244, 245, 255] {
                let name = vec![b'n'; length].try_into().unwrap();
                let names = PartNames::of(&name, owner);
                assert!(names.part.len() <= MAX_NAME_BYTES);
                assert!(name_of_part(&names.part).is_some() && name_of_part(&names.map).is_some());
            }
        }
        let names = PartNames::of(&b"a.rdcp-map".to_vec().try_into().unwrap(), &user);
        assert_eq!(name_of_part(&names.part), Some(&b"a.rdcp-map"[..]));
        assert_eq!(name_of_part(b"a.rdcp-part"), None);
        let long = |last| {
            let mut name = vec![b'n'; 254];
            name.push(last);
            PartNames::of(&name.try_into().unwrap(), &user)
        };
        assert_ne!(long(b'a'), long(b'b'));
    }

    fn client(name: &str) -> PartOwner {
        PartOwner::client(name, Key::generate().unwrap().key())
    }

    #[test]
    fn each_client_has_its_own_names_and_keeps_them_with_a_new_key() {
        let name = b"a".to_vec().try_into().unwrap();
        let of = |owner: &PartOwner| PartNames::of(&name, owner);
        let (alice, again, bob) = (client("alice"), client("alice"), client("bob"));
        assert_eq!(of(&alice), of(&again));
        assert_ne!(alice.secret(), again.secret());
        assert_ne!(of(&alice), of(&bob));
        assert_ne!(of(&alice), of(&PartOwner::user()));
        let part = of(&alice).part;
        let found = name_of_part(&part).unwrap();
        assert_eq!(without_tag(found), Some(&b"a"[..]));
        for other in [
            &b"a"[..],
            b"a.0123",
            b"a.0123456789abcdeF",
            b"0123456789abcdef",
        ] {
            assert_eq!(without_tag(other), None);
        }
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
            let own = PartNames::of(&name, &PartOwner::user());
            let PartNames { part, map } = PartNames::of(&name, &client("alice"));
            for made in [own.part, own.map, part, map, random_name(), output] {
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
