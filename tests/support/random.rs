//! Random numbers that can be had again: every run takes the same ones, unless
//! `RDPIPE_TEST_SEED` names others.

use std::ops::Range;

/// splitmix64 (Steele, Lea, Flood 2014): every seed is a good one.
pub(crate) struct Random(u64);

impl Random {
    /// Numbers for one use; `use_number` keeps the uses apart.
    pub(crate) fn new(use_number: u64) -> Self {
        Self(seed() ^ use_number.wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }

    /// The next number.
    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `range`.
    pub(crate) fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.number() % (range.end - range.start)
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        // No iterator over single bytes: it takes 20 times as long in a build without optimisation.
        let mut bytes = vec![0; count];
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(&self.number().to_le_bytes()[..word.len()]);
        }
        bytes
    }
}

/// So many bytes, no two chunks of which are alike: the same ones for the same number.
pub(crate) fn random_bytes(count: usize) -> Vec<u8> {
    Random::new(count as u64).bytes(count)
}

/// What all numbers of this run come from.
pub(crate) fn seed() -> u64 {
    let given = std::env::var("RDPIPE_TEST_SEED").ok();
    given.map_or(20_250_101, |text| {
        text.parse().expect("RDPIPE_TEST_SEED is a number")
    })
}
