//! Holes of files: where they are, and the zeros that stand for their bytes. A hole of terabytes takes no room, so
//! whatever goes through one piece by piece has to look in between whether it is still wanted.

use std::{ops::Range, os::fd::AsFd};

use rustix::{
    fs::{SeekFrom, fstat, seek},
    io::Errno,
};

use super::metadata::size;

/// The zeros that stand for a piece of a hole: few enough to stay in the processor's cache.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Returns zeros for the first piece of a hole of `count` bytes.
pub(crate) fn zeros(count: u64) -> &'static [u8] {
    &ZEROS[..usize::try_from(count).map_or(ZEROS.len(), |count| count.min(ZEROS.len()))]
}

/// Returns the next range of data of a file between `offset` and `end`; what is before it is a hole. Where the system
/// tells no holes, and behind the end of the file, everything is data: read(2) then says what is there. Moves the
/// position of the file.
pub(crate) fn next_data(file: impl AsFd, offset: u64, end: u64) -> Range<u64> {
    let data = match seek(&file, SeekFrom::Data(offset)) {
        Ok(data) => data,
        // Only a hole is left, or nothing.
        Err(Errno::NXIO) => match fstat(&file).map(|stat| size(&stat)) {
            Ok(size) if size > offset => size,
            _ => return offset..end,
        },
        Err(_) => return offset..end,
    };
    let start = data.clamp(offset, end);
    let hole = seek(&file, SeekFrom::Hole(start)).unwrap_or(end);
    start..hole.clamp(start, end)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_file_is_holes_and_data() {
        const MIB: u64 = 1 << 20;
        let file = tempfile::tempfile().unwrap();
        file.set_len(3 * MIB).unwrap();
        file.write_all_at(&vec![7; 1 << 20], MIB).unwrap();
        assert_eq!(next_data(&file, 0, 4 * MIB), MIB..2 * MIB);
        assert_eq!(next_data(&file, MIB + 1, 4 * MIB), MIB + 1..2 * MIB);
        assert_eq!(next_data(&file, 0, MIB / 2), MIB / 2..MIB / 2);
        // The file is shorter than was expected.
        assert_eq!(next_data(&file, 2 * MIB, 4 * MIB), 3 * MIB..4 * MIB);
        assert_eq!(next_data(&file, 3 * MIB, 4 * MIB), 3 * MIB..4 * MIB);
        let (_reader, pipe) = rustix::pipe::pipe().unwrap();
        assert_eq!(next_data(&pipe, 0, MIB), 0..MIB);
    }

    #[test]
    fn zeros_come_in_pieces() {
        assert_eq!(zeros(3), [0; 3]);
        assert_eq!(zeros(u64::MAX).len(), ZEROS.len());
    }
}
