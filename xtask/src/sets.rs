//! The sets of files that `scripts/bench copy` copies. A set is the same on every machine: sizes and contents come from
//! a fixed sequence of pseudo-random numbers, which no program can compress.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::Path,
};

/// The block that all contents are parts of. A prime number of bytes more than the largest small file, so that files
/// begin at many different places of it.
const BLOCK_BYTES: usize = (8 << 20) + 9973;

/// The sparse file: its size, and the bytes and the number of its pieces of data.
const SPARSE_BYTES: u64 = 10_000_000_000;
const PIECE_BYTES: usize = 1_000_000;
const PIECES: u64 = 100;

/// Makes a set below the directory `place`, which must not exist. `count` is the number of files of `small`, and of
/// millions of bytes of `one`.
///
/// # Errors
///
/// Fails if there is no such set, or if a file cannot be written.
pub(crate) fn make(set: &str, place: &Path, count: u64) -> Result<(), String> {
    let mut numbers = Numbers(0x2545_f491_4f6c_dd1d);
    let made = match set {
        "small" => trees(place, count, 100, &mut numbers, |_| 4096),
        "mixed" => trees(place, count, 100, &mut numbers, |numbers| {
            numbers.below((256 << 10) + 1)
        }),
        "one" => one(place, count * 1_000_000, &mut numbers),
        "sparse" => sparse(place, &mut numbers),
        _ => {
            return Err(format!(
                "there is no set {set}: small, mixed, one or sparse"
            ));
        }
    };
    made.map_err(|error| format!("cannot make {}: {error}", place.display()))
}

/// Makes `count` files, with `each` of them in a folder.
fn trees(
    place: &Path,
    count: u64,
    each: u64,
    numbers: &mut Numbers,
    size: impl Fn(&mut Numbers) -> usize,
) -> io::Result<()> {
    let block = numbers.block();
    fs::create_dir(place)?;
    for file in 0..count {
        let folder = place.join(format!("folder-{:04}", file / each));
        if file % each == 0 {
            fs::create_dir(&folder)?;
        }
        let bytes = size(numbers);
        let start = numbers.below(BLOCK_BYTES - bytes);
        let name = folder.join(format!("file-{file:06}.dat"));
        fs::write(name, &block[start..start + bytes])?;
    }
    Ok(())
}

/// Makes one file of this size.
fn one(place: &Path, bytes: u64, numbers: &mut Numbers) -> io::Result<()> {
    let block = numbers.block();
    fs::create_dir(place)?;
    let mut file = File::create_new(place.join("file"))?;
    let mut left = bytes;
    while left > 0 {
        let next = usize::try_from(left).map_or(block.len(), |left| left.min(block.len()));
        file.write_all(&block[..next])?;
        left -= next as u64;
    }
    Ok(())
}

/// Makes the sparse file: the pieces are at even distances, and a hole is at the end.
fn sparse(place: &Path, numbers: &mut Numbers) -> io::Result<()> {
    let block = numbers.block();
    fs::create_dir(place)?;
    let file = File::create_new(place.join("file"))?;
    file.set_len(SPARSE_BYTES)?;
    for piece in 0..PIECES {
        let start = numbers.below(block.len() - PIECE_BYTES);
        file.write_all_at(
            &block[start..start + PIECE_BYTES],
            piece * (SPARSE_BYTES / PIECES),
        )?;
    }
    Ok(())
}

/// A sequence of pseudo-random numbers (xorshift64*).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        let limit = limit as u64;
        usize::try_from((self.next() >> 11) % limit).unwrap_or_default()
    }

    /// Returns [`BLOCK_BYTES`] bytes.
    fn block(&mut self) -> Vec<u8> {
        let words = BLOCK_BYTES / 8 + 1;
        let mut block: Vec<u8> = (0..words).flat_map(|_| self.next().to_le_bytes()).collect();
        block.truncate(BLOCK_BYTES);
        block
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn small_files_stand_in_folders_of_a_hundred() {
        let place = tempfile::tempdir().unwrap();
        let set = place.path().join("set");
        make("small", &set, 250).unwrap();
        let count = |folder: &Path| fs::read_dir(folder).unwrap().count();
        assert_eq!(count(&set), 3);
        assert_eq!(count(&set.join("folder-0000")), 100);
        assert_eq!(count(&set.join("folder-0002")), 50);
        let first = fs::read(set.join("folder-0000/file-000000.dat")).unwrap();
        let last = fs::read(set.join("folder-0002/file-000249.dat")).unwrap();
        assert_eq!((first.len(), last.len()), (4096, 4096));
        assert_ne!(first, last);
    }

    #[test]
    fn mixed_files_have_all_sizes_and_are_the_same_each_time() {
        let place = tempfile::tempdir().unwrap();
        let sizes = |name: &str| -> Vec<u64> {
            let set = place.path().join(name);
            make("mixed", &set, 100).unwrap();
            let file = |number| set.join(format!("folder-0000/file-{number:06}.dat"));
            (0..100)
                .map(|number| fs::metadata(file(number)).unwrap().len())
                .collect()
        };
        let first = sizes("first");
        assert_eq!(first, sizes("second"));
        assert!(first.iter().all(|&size| size <= 256 << 10), "{first:?}");
        assert!(first.iter().any(|&size| size < 64 << 10), "{first:?}");
        assert!(first.iter().any(|&size| size > 192 << 10), "{first:?}");
    }

    #[test]
    fn the_sparse_file_is_sparse() {
        let place = tempfile::tempdir().unwrap();
        let set = place.path().join("set");
        make("sparse", &set, 0).unwrap();
        let file = fs::metadata(set.join("file")).unwrap();
        assert_eq!(file.len(), 10_000_000_000);
        let on_disk = file.blocks() * 512;
        assert!((100_000_000..130_000_000).contains(&on_disk), "{on_disk}");
    }

    #[test]
    fn one_file_has_the_size_that_was_asked_for() {
        let place = tempfile::tempdir().unwrap();
        let set = place.path().join("set");
        make("one", &set, 20).unwrap();
        assert_eq!(fs::metadata(set.join("file")).unwrap().len(), 20_000_000);
        let wrong = make("other", &set, 1).unwrap_err();
        assert!(wrong.contains("no set other"), "{wrong}");
        let again = make("one", &set, 1).unwrap_err();
        assert!(again.contains("exists"), "{again}");
    }
}
