//! The temporary names of small entries.

use std::os::fd::BorrowedFd;

use data_encoding::HEXLOWER;
use rustix::{
    fs::{AtFlags, unlinkat},
    io::Errno,
};

/// The beginning of the temporary names of small entries.
const TEMPORARY_PREFIX: &[u8] = b".rdcp-";

/// The random bytes of a name, of which each has two hexadecimal digits.
const RANDOM_BYTES: usize = 4;

/// Returns true for a name as [`TemporaryName`] makes them.
pub(super) fn is_temporary_name(name: &[u8]) -> bool {
    let digits = name.strip_prefix(TEMPORARY_PREFIX);
    let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    digits.is_some_and(|digits| digits.len() == 2 * RANDOM_BYTES && digits.iter().all(is_digit))
}

/// How often another random name is chosen, if one is taken.
const NAME_TRIES: usize = 8;

/// The name under which a lane writes an entry. The name is free again as soon as the entry has its own.
#[derive(Debug)]
pub(super) struct TemporaryName {
    name: Vec<u8>,
    is_used: bool,
}

impl TemporaryName {
    /// Returns a random name.
    pub(super) fn random() -> Self {
        let mut random = [0; RANDOM_BYTES];
        // The name need not be secret: it is created exclusively, and another is tried if it is taken.
        let _ = getrandom::fill(&mut random);
        let name = [TEMPORARY_PREFIX, HEXLOWER.encode(&random).as_bytes()].concat();
        Self {
            name,
            is_used: false,
        }
    }

    /// Returns the bytes of the name.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.name
    }

    /// Calls `make` with the name, and with other names while they are taken.
    pub(super) fn make<T>(
        &mut self,
        mut make: impl FnMut(&[u8]) -> rustix::io::Result<T>,
    ) -> rustix::io::Result<T> {
        for _ in 0..NAME_TRIES {
            match make(&self.name) {
                Err(Errno::EXIST) => *self = Self::random(),
                Err(errno) => return Err(errno),
                Ok(entry) => {
                    self.is_used = true;
                    return Ok(entry);
                }
            }
        }
        Err(Errno::EXIST)
    }

    /// Removes the entry that has the name, if there is one. Returns false if it cannot be removed.
    pub(super) fn remove(&mut self, folder: BorrowedFd<'_>) -> bool {
        let is_used = std::mem::take(&mut self.is_used);
        !is_used || unlinkat(folder, &self.name[..], AtFlags::empty()).is_ok()
    }

    /// Notes that the entry that had the name has its own.
    pub(super) fn note_renamed(&mut self) {
        self.is_used = false;
    }
}
