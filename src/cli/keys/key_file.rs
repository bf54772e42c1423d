//! Reads files with the keys of clients: the file of the server, and the file of one client.

use std::{
    fs::{File, Metadata},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use zeroize::Zeroizing;

use super::key_lines::{LineError, LineFault, key_of_client_line};
use crate::{
    Key, KeyError,
    key::{first_line, open_key_file, unreadable},
};

/// The largest key file, in bytes: the lines of some 50 000 clients. A larger file is most likely not a key file.
const MAX_FILE_BYTES: usize = 4 << 20;

/// The bytes that the first buffer for a key file has. It doubles as needed.
const FIRST_BUFFER_BYTES: usize = 64 << 10;

/// The age from which a change of a file is certain to be seen. Two changes within one step of the file system's clock
/// have the same time; the longest step is 2 s, that of FAT.
const CLOCK_STEP: Duration = Duration::from_secs(2);

/// Reads the key of a client from the first line of a file: `KEY`, or `NAME KEY` as in the file of the server. If others
/// can read the file, the second part of the result is a sentence that warns about it.
///
/// Blocks: stretching a key that rdpipe did not make takes tens of milliseconds.
///
/// # Errors
///
/// Fails if the file cannot be read, if others can change it, or if its first line has no key.
pub(in crate::cli) fn client_key(path: &Path) -> Result<(Key, Option<String>), ClientKeysError> {
    let (mut file, warning) = open_key_file(path)?;
    let line = first_line(&mut file).map_err(|source| unreadable(path, source))?;
    let wrong = |fault| ClientKeysError::Line {
        path: path.to_owned(),
        error: LineError { line: 1, fault },
    };
    let line = line.ok_or(LineFault::TooLong).map_err(wrong)?;
    let text = key_of_client_line(&line).map_err(wrong)?;
    Ok((key_in_line(path, 1, text)?, warning))
}

/// Reads a whole key file. If others can read the file, the second part of the result is a sentence that warns about it.
///
/// # Errors
///
/// Fails if the file cannot be read, if others can change it, or if it is too large.
pub(in crate::cli) fn read_key_file(
    path: &Path,
) -> Result<(Zeroizing<Vec<u8>>, Option<String>), ClientKeysError> {
    let (mut file, warning) = open_key_file(path)?;
    let text = read_to_end(&mut file).map_err(|source| unreadable(path, source))?;
    let text = text.ok_or_else(|| ClientKeysError::TooLarge(path.to_owned()))?;
    Ok((text, warning))
}

/// Returns the key that a line of a key file has.
///
/// # Errors
///
/// Fails if the key looks like a generated one and is damaged, or if it cannot be stretched.
pub(in crate::cli) fn key_in_line(
    path: &Path,
    line: usize,
    text: &[u8],
) -> Result<Key, ClientKeysError> {
    Key::parse(text).map_err(|source| ClientKeysError::Key {
        path: path.to_owned(),
        line,
        source,
    })
}

/// The error of reading the keys of clients. No message contains a key or another text of the file.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum ClientKeysError {
    /// The file cannot be read or is not protected, or the system returned no random bytes.
    #[error(transparent)]
    File(#[from] KeyError),
    /// A line is wrong.
    #[error("the key file {}, {error}", path.display())]
    Line {
        /// The path that was given.
        path: PathBuf,
        /// The line, and what is wrong with it.
        error: LineError,
    },
    /// The key in a line is damaged, or cannot be stretched.
    #[error("the key file {}, line {line}: {source}", path.display())]
    Key {
        /// The path that was given.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// The error of the key.
        source: KeyError,
    },
    /// The file is too large for a key file.
    #[error("the key file {} is larger than {} MiB; is it the right file?", .0.display(), MAX_FILE_BYTES >> 20)]
    TooLarge(PathBuf),
}

/// The properties of a file that differ after a change of its content, its mode or its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct FileStamp {
    device: u64,
    inode: u64,
    size: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    /// Seconds and nanoseconds. Unlike the time of the modification, no program can set this time.
    changed: (i64, i64),
}

impl FileStamp {
    /// Returns the stamp of a file with this metadata at the time `now`. Returns `None` if the file changed so shortly
    /// before that another change might leave the stamp as it is.
    pub(in crate::cli) fn of(metadata: &Metadata, now: SystemTime) -> Option<Self> {
        let stamp = Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        };
        let changed = Duration::from_secs(metadata.ctime().try_into().unwrap_or(0));
        let age = now.duration_since(UNIX_EPOCH + changed).ok()?;
        // The time of the change lacks its part below a second.
        (age > CLOCK_STEP + Duration::from_secs(1)).then_some(stamp)
    }
}

/// Reads a file to its end. Returns `None` if it is too large. No copy of its bytes stays in memory.
fn read_to_end(file: &mut File) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    let mut text = Zeroizing::new(vec![0; FIRST_BUFFER_BYTES]);
    let mut filled = 0;
    while filled <= MAX_FILE_BYTES {
        if filled == text.len() {
            let mut larger = Zeroizing::new(vec![0; 2 * filled]);
            larger[..filled].copy_from_slice(&text);
            text = larger;
        }
        match file.read(&mut text[filled..]) {
            Ok(0) => {
                text.truncate(filled);
                return Ok(Some(text));
            }
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn file_with(content: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), content).unwrap();
        file
    }

    #[test]
    fn a_client_reads_its_key_or_a_line_of_the_server() {
        let made = Key::generate().unwrap();
        let text = made.text();
        for content in [
            text.to_string(),
            format!("{}\r\n# a comment", text.as_str()),
            format!("alice {}\nbob another\n", text.as_str()),
        ] {
            let file = file_with(content.as_bytes());
            let (key, warning) = client_key(file.path()).unwrap();
            assert_eq!((key.id(), warning), (made.id(), None));
        }
    }

    #[test]
    fn a_file_without_a_key_is_an_error_with_its_line() {
        let message = |content: &[u8]| {
            let file = file_with(content);
            let error = client_key(file.path()).unwrap_err().to_string();
            error.replace(&*file.path().to_string_lossy(), "FILE")
        };
        assert_eq!(
            message(b"\nkey"),
            "the key file FILE, line 1: no key; write NAME KEY"
        );
        assert_eq!(
            message(b"alice rdk1aaa"),
            "the key file FILE, line 1: this looks like a key made by rdpipe, but it is mistyped or cut off"
        );
        assert!(message(&[b'k'; 5000]).contains("line 1: longer than 4096 bytes"));
        assert!(client_key(Path::new("/nonexistent")).is_err());
    }

    #[test]
    fn a_whole_file_is_read_up_to_the_limit() {
        for bytes in [
            0,
            1,
            FIRST_BUFFER_BYTES,
            3 * FIRST_BUFFER_BYTES,
            MAX_FILE_BYTES,
        ] {
            let content: Vec<u8> = (0..bytes).map(|at| at.to_le_bytes()[0]).collect();
            let (text, _) = read_key_file(file_with(&content).path()).unwrap();
            assert!(*text == content, "{bytes}");
        }
        let error = read_key_file(Path::new("/dev/zero")).unwrap_err();
        assert!(
            error.to_string().contains("/dev/zero is larger than 4 MiB"),
            "{error}"
        );
    }

    #[test]
    fn a_file_that_has_just_changed_has_no_stamp() {
        let file = file_with(b"key");
        let metadata = file.path().metadata().unwrap();
        let now = SystemTime::now();
        assert_eq!(FileStamp::of(&metadata, now), None);
        let later = now + Duration::from_secs(10);
        let stamp = FileStamp::of(&metadata, later);
        assert!(stamp.is_some());
        fs::write(file.path(), b"keys").unwrap();
        let metadata = file.path().metadata().unwrap();
        assert_ne!(FileStamp::of(&metadata, later), stamp);
    }
}
