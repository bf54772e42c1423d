//! The names of a folder at the source, for `--delete`: a set of hashes that takes ten bytes for each.

use std::hash::{BuildHasher, RandomState};

/// The number of parts of a set. Each part grows on its own, so little is copied and unused.
const PARTS: usize = 256;

/// The bytes that a name takes at most: its hash, and a quarter of that for what its part has left.
pub(super) const NAME_BYTES: usize = 10;

/// The bytes that a set takes beside its names: the parts, and the first growth of each.
pub(super) const SET_BYTES: usize = PARTS * (24 + FIRST_GROWTH * 8);

/// The names for which a part has room at first, beside a quarter of those that it has.
const FIRST_GROWTH: usize = 8;

/// A set of names. A name is kept as a hash with a random key: two names with one hash, which practically does not
/// happen, count as one.
#[derive(Debug, Default)]
pub(super) struct NameSet {
    keys: RandomState,
    parts: Vec<Vec<u64>>,
    count: usize,
    /// True if all parts are in order.
    is_sorted: bool,
}

impl NameSet {
    /// Adds a name.
    pub(super) fn insert(&mut self, name: &[u8]) {
        if self.parts.is_empty() {
            self.parts.resize_with(PARTS, Vec::new);
        }
        let hash = self.keys.hash_one(name);
        let part = &mut self.parts[part_of(hash)];
        if part.len() == part.capacity() {
            part.reserve_exact(part.len() / 4 + FIRST_GROWTH);
        }
        part.push(hash);
        self.count += 1;
        self.is_sorted = false;
    }

    /// Returns true if the set has a name. The set must be in order ([`sort`](Self::sort)).
    pub(super) fn contains(&self, name: &[u8]) -> bool {
        debug_assert!(self.is_sorted || self.parts.is_empty());
        let hash = self.keys.hash_one(name);
        let part = self.parts.get(part_of(hash));
        part.is_some_and(|part| part.binary_search(&hash).is_ok())
    }

    /// Puts the set in order.
    pub(super) fn sort(&mut self) {
        self.parts.iter_mut().for_each(|part| part.sort_unstable());
        self.is_sorted = true;
    }

    /// Returns the number of names that were added.
    pub(super) fn len(&self) -> usize {
        self.count
    }
}

fn part_of(hash: u64) -> usize {
    usize::from(hash.to_be_bytes()[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_set_has_its_names_and_no_others_and_takes_what_it_says() {
        const COUNT: u32 = 300_000;
        let mut set = NameSet::default();
        (0..COUNT).for_each(|number| set.insert(&number.to_le_bytes()));
        set.sort();
        assert!((0..COUNT).all(|number| set.contains(&number.to_le_bytes())));
        assert!((COUNT..2 * COUNT).all(|number| !set.contains(&number.to_le_bytes())));
        let bytes: usize = set.parts.iter().map(|part| part.capacity() * 8).sum();
        assert!(bytes <= set.len() * NAME_BYTES + SET_BYTES, "{bytes}");
    }
}
