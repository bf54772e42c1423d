//! A size as text.

use std::fmt;

/// A size in powers of 1024 where that is exact: `64 B`, `4 KiB`.
pub(crate) struct SizeText(pub(crate) u32);

impl fmt::Display for SizeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes >= 1 << 30 && bytes % (1 << 30) == 0 => write!(f, "{} GiB", bytes >> 30),
            bytes if bytes >= 1 << 20 && bytes % (1 << 20) == 0 => write!(f, "{} MiB", bytes >> 20),
            bytes if bytes >= 1 << 10 && bytes % (1 << 10) == 0 => write!(f, "{} KiB", bytes >> 10),
            bytes => write!(f, "{bytes} B"),
        }
    }
}
