//! Reads keys from files.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::Path,
};

use rustix::process::geteuid;
use zeroize::Zeroizing;

use super::{Key, KeyError};

impl Key {
    /// Reads a key from the first line of a file, without the line end. If other users can read the file too, the
    /// second part of the result is a sentence that warns about it.
    ///
    /// Reads no byte after the first line, so the file may be a pipe that continues with data.
    ///
    /// # Errors
    ///
    /// Returns [`KeyError::File`] if the file cannot be read, [`KeyError::FileUnsafe`] if another user can change it,
    /// [`KeyError::FileEmpty`] if its first line is empty, [`KeyError::FileLong`] if the first line is too long for a key,
    /// and the errors of [`parse`](Self::parse).
    pub fn from_file(path: impl AsRef<Path>) -> Result<(Self, Option<String>), KeyError> {
        let path = path.as_ref();
        let (mut file, warning) = open_key_file(path)?;
        let line = first_line(&mut file)
            .map_err(|source| unreadable(path, source))?
            .ok_or_else(|| KeyError::FileLong(path.to_owned()))?;
        match Self::parse(line.as_slice()) {
            Ok(key) => Ok((key, warning)),
            Err(KeyError::Empty) => Err(KeyError::FileEmpty(path.to_owned())),
            Err(error) => Err(error),
        }
    }
}

/// Opens a key file. Returns a warning if others can read the file.
///
/// # Errors
///
/// Returns [`KeyError::File`] if the file cannot be opened, and [`KeyError::FileUnsafe`] if another user can change it.
pub(crate) fn open_key_file(path: &Path) -> Result<(File, Option<String>), KeyError> {
    let file = File::open(path).map_err(|source| unreadable(path, source))?;
    let metadata = file.metadata().map_err(|source| unreadable(path, source))?;
    if !metadata.is_file() {
        return Ok((file, None));
    }
    let reader = geteuid().as_raw();
    let protected = protection(path, "key file", metadata.mode(), metadata.uid(), reader);
    let warning = protected.map_err(|reason| KeyError::FileUnsafe {
        path: path.to_owned(),
        reason,
    })?;
    Ok((file, warning))
}

/// Returns the error of a key file that cannot be read.
pub(crate) fn unreadable(path: &Path, source: io::Error) -> KeyError {
    KeyError::File {
        path: path.to_owned(),
        source,
    }
}

/// The longest line of a key file, in bytes: far longer than any key, and short enough that reading `/dev/zero`
/// fails at once.
pub(crate) const MAX_LINE_BYTES: usize = 4096;

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

/// Checks who else can use a file with a secret: its mode and the number of its owner, against that of the user who
/// reads it. `what` names the kind of file. Returns a warning if others can read the file.
///
/// A user who can change the file chooses the secret, so such a file is refused, as ssh refuses a configuration that
/// another user can change. Root may read the files of users, a mounted file in a container for example, and gets a
/// warning.
///
/// # Errors
///
/// The reason why the file is not used.
pub(crate) fn protection(
    path: &Path,
    what: &str,
    mode: u32,
    owner: u32,
    reader: u32,
) -> Result<Option<String>, String> {
    const ROOT: u32 = 0;
    let quoted = quoted(path.as_os_str());
    if mode & 0o022 != 0 {
        return Err(format!("others can write it; chmod go= {quoted}"));
    }
    let is_foreign = owner != reader && owner != ROOT;
    if is_foreign && reader != ROOT {
        return Err(format!(
            "it belongs to the user with the number {owner}, who can change it"
        ));
    }
    if is_foreign {
        return Ok(Some(format!(
            "the {what} {quoted} belongs to the user with the number {owner}, who can change it"
        )));
    }
    let is_readable = mode & 0o044 != 0;
    Ok(is_readable.then(|| format!("others can read the {what} {quoted}; chmod go= {quoted}")))
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
    use std::os::unix::fs::PermissionsExt;

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
        let advice = protection(Path::new("my key"), "key file", 0o644, 0, 0).unwrap();
        let expected = "others can read the key file 'my key'; chmod go= 'my key'";
        assert_eq!(advice.as_deref(), Some(expected));
    }

    #[test]
    fn a_key_file_that_others_can_change_is_refused() {
        let file = file_with(b"key\n");
        for mode in [0o620, 0o602, 0o664, 0o666] {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(file.path(), permissions).unwrap();
            let error = Key::from_file(file.path()).unwrap_err();
            assert!(matches!(error, KeyError::FileUnsafe { .. }), "{mode:o}");
            let text = error.to_string();
            assert!(text.contains("others can write it; chmod go="), "{text}");
        }
        let (root, reader, other) = (0, 1000, 1001);
        let protection =
            |owner, reader| protection(Path::new("key"), "key file", 0o600, owner, reader);
        assert_eq!(protection(reader, reader), Ok(None));
        assert_eq!(protection(root, reader), Ok(None));
        assert!(protection(other, reader).unwrap_err().contains("1001"));
        // Root is warned only.
        assert!(protection(other, root).unwrap().is_some());
    }
}
