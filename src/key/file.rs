//! Reads keys from files.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use zeroize::Zeroizing;

use super::{Key, KeyError};

impl Key {
    /// Reads a key from the first line of a file, without the line end. If other users can read the file too, the second
    /// part of the result is a sentence that warns about it.
    ///
    /// Reads no byte after the first line, so the file may be a pipe that continues with data.
    ///
    /// # Errors
    ///
    /// Returns [`KeyError::File`] if the file cannot be read, [`KeyError::FileEmpty`] if its first line is empty,
    /// [`KeyError::FileLong`] if the first line is too long for a key, and the errors of [`parse`](Self::parse).
    pub fn from_file(path: impl AsRef<Path>) -> Result<(Self, Option<String>), KeyError> {
        let path = path.as_ref();
        let failed = |source| KeyError::File {
            path: path.to_owned(),
            source,
        };
        let mut file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let warning = metadata
            .is_file()
            .then(|| exposure(path, metadata.permissions().mode(), "key file"))
            .flatten();
        let line = first_line(&mut file)
            .map_err(failed)?
            .ok_or_else(|| KeyError::FileLong(path.to_owned()))?;
        match Self::parse(line.as_slice()) {
            Ok(key) => Ok((key, warning)),
            Err(KeyError::Empty) => Err(KeyError::FileEmpty(path.to_owned())),
            Err(error) => Err(error),
        }
    }
}

/// The longest first line of a key file, in bytes: far longer than any key, and short enough that reading `/dev/zero`
/// fails at once.
pub(super) const MAX_LINE_BYTES: usize = 4096;

/// Reads the first line of a file, without the line end. Returns `None` if the line is too long.
pub(crate) fn first_line(file: &mut File) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    let mut line = Zeroizing::new(Vec::with_capacity(MAX_LINE_BYTES + 1));
    let mut byte = Zeroizing::new([0]);
    // Reads one byte at a time: the bytes after the line in a pipe may be the data to send.
    loop {
        match file.read(byte.as_mut_slice()) {
            Ok(0) => break,
            Ok(_) if byte[0] == b'\n' => break,
            Ok(_) if line.len() > MAX_LINE_BYTES => return Ok(None),
            Ok(_) => line.push(byte[0]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(Some(line))
}

/// Returns a warning if a file that contains a secret can be read by other users. `what` names the kind of file.
pub(crate) fn exposure(path: &Path, mode: u32, what: &str) -> Option<String> {
    (mode & 0o044 != 0).then(|| {
        let quoted = quoted(path.as_os_str());
        format!("others can read the {what} {quoted}; chmod go= {quoted}")
    })
}

/// Returns the name quoted for a shell, so that the user can type the advised command.
fn quoted(name: &OsStr) -> String {
    let name = name.to_string_lossy();
    let plain = |c: char| c.is_alphanumeric() || "/._-+,:@%".contains(c);
    if name.chars().all(plain) {
        name.into_owned()
    } else {
        format!("'{}'", name.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_with(content: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        file
    }

    #[test]
    fn a_key_file_holds_the_key_in_its_first_line() {
        let made = Key::generate().unwrap();
        for end in ["", "\n", "\r\n", "\nwhat follows is data\n"] {
            let file = file_with(format!("{}{end}", made.text()).as_bytes());
            let (key, warning) = Key::from_file(file.path()).unwrap();
            assert_eq!(key.secret(), made.key().secret());
            assert_eq!(warning, None, "tempfile makes files of mode 600");
        }
        let file = file_with(b"pass phrase \n");
        let (key, _) = Key::from_file(file.path()).unwrap();
        assert_eq!(key.secret(), Key::parse("pass phrase ").unwrap().secret());
    }

    #[test]
    fn a_key_file_without_a_key_is_refused() {
        for content in ["", "\n", "\r\n", "  \nkey\n"] {
            let file = file_with(content.as_bytes());
            assert!(matches!(
                Key::from_file(file.path()),
                Err(KeyError::FileEmpty(_))
            ));
        }
        let missing = Key::from_file("/nonexistent/key").unwrap_err();
        assert!(
            missing.to_string().contains("/nonexistent/key"),
            "{missing}"
        );
        assert!(matches!(Key::from_file("/"), Err(KeyError::File { .. })));
        assert!(matches!(
            Key::from_file("/dev/zero"),
            Err(KeyError::FileLong(_))
        ));
    }

    #[test]
    fn a_key_file_that_others_can_read_gives_a_warning() {
        let file = file_with(b"key\n");
        for (mode, warned) in [(0o600, false), (0o640, true), (0o604, true), (0o644, true)] {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(file.path(), permissions).unwrap();
            let (_, warning) = Key::from_file(file.path()).unwrap();
            assert_eq!(warning.is_some(), warned, "{mode:o}");
        }
        let advice = exposure(Path::new("my key"), 0o644, "key file").unwrap();
        assert!(advice.ends_with("chmod go= 'my key'"), "{advice}");
    }
}
