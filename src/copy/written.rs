//! The entries that a run has written, so that no source of it overwrites what another one has brought. Pure, no I/O.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// The most blocks of a set, which take 13 MB. New entries mostly have numbers one after the other, so these are some
/// ten million entries.
const MAX_BLOCKS: usize = 1 << 18;

/// The bytes of a block in the table of a set, which doubles its size as it grows.
pub(crate) const BLOCK_BYTES: usize = 80;

/// The most blocks in one message: each takes at most 30 bytes, and a payload may have 256 KiB.
const PART_BLOCKS: usize = 8000;

/// The device and the inode of an entry.
pub(crate) type EntryId = (u64, u64);

/// A set of entries: one number for each 64 inodes that follow each other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WrittenEntries {
    blocks: HashMap<(u64, u64), u64>,
    is_full: bool,
}

/// A part of a set, for a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WrittenPart {
    /// The device, the number of the block and its entries.
    blocks: Vec<(u64, u64, u64)>,
    /// True if the set lacks entries for which it had no room.
    is_full: bool,
    /// True for the last part of the set.
    pub(crate) is_last: bool,
}

impl WrittenPart {
    /// Returns a part with these blocks, as a hostile client makes it.
    #[cfg(any(test, fuzzing, feature = "fault-injection"))]
    pub(crate) fn of(blocks: impl Iterator<Item = (u64, u64, u64)>) -> Self {
        Self {
            blocks: blocks.collect(),
            is_full: false,
            is_last: true,
        }
    }

    /// Returns the number of blocks.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }
}

impl WrittenEntries {
    /// Adds an entry. Returns true if the set did not have it. A set that is full adds none.
    pub(crate) fn insert(&mut self, entry: EntryId) -> bool {
        let (block, bit) = place(entry);
        self.insert_block(block, bit)
    }

    /// Returns true if the set takes more memory with this entry.
    pub(crate) fn grows_with(&self, entry: EntryId) -> bool {
        self.blocks.len() < MAX_BLOCKS && !self.blocks.contains_key(&place(entry).0)
    }

    /// Notes that the set lacks entries for which it has no room.
    pub(crate) fn set_full(&mut self) {
        self.is_full = true;
    }

    pub(crate) fn remove(&mut self, entry: EntryId) {
        let (block, bit) = place(entry);
        if let Some(bits) = self.blocks.get_mut(&block) {
            *bits &= !bit;
        }
    }

    /// Returns true if the set has the entry.
    pub(crate) fn contains(&self, entry: EntryId) -> bool {
        let (block, bit) = place(entry);
        self.blocks.get(&block).is_some_and(|bits| bits & bit != 0)
    }

    /// Returns true if the set lacks entries for which it had no room.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    pub(crate) fn add(&mut self, part: WrittenPart) {
        self.is_full |= part.is_full;
        for (device, block, bits) in part.blocks {
            self.insert_block((device, block), bits);
        }
    }

    /// Returns all entries in parts, at least one.
    pub(crate) fn parts(&self) -> Vec<WrittenPart> {
        let blocks = self.blocks.iter();
        let blocks: Vec<_> = blocks
            .map(|(&(device, block), &bits)| (device, block, bits))
            .collect();
        let mut parts: Vec<_> = blocks
            .chunks(PART_BLOCKS)
            .map(|blocks| self.part(blocks))
            .collect();
        if parts.is_empty() {
            parts.push(self.part(&[]));
        }
        if let Some(last) = parts.last_mut() {
            last.is_last = true;
        }
        parts
    }

    fn part(&self, blocks: &[(u64, u64, u64)]) -> WrittenPart {
        WrittenPart {
            blocks: blocks.to_vec(),
            is_full: self.is_full,
            is_last: false,
        }
    }

    fn insert_block(&mut self, block: (u64, u64), bits: u64) -> bool {
        let has_room = self.blocks.len() < MAX_BLOCKS;
        match self.blocks.get_mut(&block) {
            Some(known) => {
                let is_new = *known & bits != bits;
                *known |= bits;
                is_new
            }
            None if has_room => {
                self.blocks.insert(block, bits);
                true
            }
            None => {
                self.is_full = true;
                false
            }
        }
    }
}

/// Returns the block of an entry, and its bit there.
fn place((device, inode): EntryId) -> ((u64, u64), u64) {
    ((device, inode / 64), 1 << (inode % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssh::protocol::Payload;

    #[test]
    fn a_set_arrives_whole_in_messages_that_fit() {
        let mut set = WrittenEntries::default();
        for number in 0..20_000 {
            assert!(set.insert((u64::MAX, u64::MAX - number * 64)));
        }
        assert!(!set.insert((u64::MAX, u64::MAX)));
        set.remove((u64::MAX, u64::MAX - 64));
        let mut arrived = WrittenEntries::default();
        let parts = set.parts();
        assert!(parts.len() > 1 && parts.iter().filter(|part| part.is_last).count() == 1);
        for part in parts {
            let payload = Payload::encode(&part).unwrap();
            arrived.add(payload.decode().unwrap());
        }
        assert_eq!(arrived, set);
        assert!(arrived.contains((u64::MAX, u64::MAX)));
        assert!(!arrived.contains((u64::MAX, u64::MAX - 64)) && !arrived.contains((0, 1)));
        assert_eq!(WrittenEntries::default().parts().len(), 1);
    }

    #[test]
    fn entries_that_follow_each_other_take_one_block_and_a_full_set_says_so() {
        let mut set = WrittenEntries::default();
        for block in 0..MAX_BLOCKS as u64 {
            for inode in [0, 1, 63] {
                set.insert((1, 64 * block + inode));
            }
        }
        assert!(!set.is_full());
        assert!(!set.insert((2, 0)) && set.is_full());
        let mut arrived = WrittenEntries::default();
        set.parts().into_iter().for_each(|part| arrived.add(part));
        assert!(arrived.is_full());
    }
}
