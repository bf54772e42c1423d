//! New clients of a server: makes their keys, and adds their lines to the key file.

use std::{
    fs::File,
    io::{self, Write},
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use zeroize::Zeroizing;

use super::{
    key_file::{ClientKeysError, LineError, LineFault, NameFault, check_name, parse, read_to_end},
    rights::split_word,
};
use crate::{
    Key, KeyError,
    fd::sync,
    key::{check_key_file, unreadable},
};

/// A client with a new key. The lines have no line ends.
pub(in crate::cli) struct NewClient {
    /// The line of the server's key file.
    pub(in crate::cli) server_line: Zeroizing<String>,
    /// The line of the client's own file.
    pub(in crate::cli) client_line: Zeroizing<String>,
}

/// Makes a key for a new client. `client` is its line without the key: `NAME [ro|wo|append] [SUBDIR]`.
/// Fails if there is no such line, or if the system returns no random bytes.
pub(in crate::cli) fn new_client(client: &str) -> Result<NewClient, NewClientError> {
    let (name, rights) = split_word(client.as_bytes());
    check_name(name)?;
    let (name, rights) = client.split_at(client.len() - rights.len());
    let (name, rights) = (name.trim_ascii(), rights.trim_ascii());
    let key = Key::generate()?.text();
    // The strings have their full capacity from the start: growing one would leave copies of the key in memory.
    let mut line = Zeroizing::new(String::with_capacity(client.len() + key.len() + 2));
    for part in [name, " ", &key] {
        line.push_str(part);
    }
    let client_line = line.clone();
    if !rights.is_empty() {
        line.push(' ');
        line.push_str(rights);
    }
    let line_end = LineFault::LineEnd;
    match parse(line.as_bytes()) {
        Err(error) => Err(error.fault.into()),
        Ok(_) if rights.contains('\n') => Err(line_end.into()),
        Ok(_) => Ok(NewClient {
            server_line: line,
            client_line,
        }),
    }
}

/// Makes a key for a new client, and appends its line to a key file, which is made if it does not exist. Returns the
/// line of the client's own file, without a line end, when the server's file is on the disk. If this user is root and that
/// file belongs to another user, the second part of the result is a sentence that warns about it.
///
/// `client` is the line without the key: `NAME [ro|wo|append] [SUBDIR]`.
///
/// Blocks while another process adds a client to the file.
/// Fails if there is no such line or if a client has the name already, if others can read or change the file, if a line
/// of it is wrong, or if it cannot be written. The file is then as it was.
pub(in crate::cli) fn add_client(
    path: &Path,
    client: &str,
) -> Result<(Zeroizing<String>, Option<String>), NewClientError> {
    let NewClient {
        server_line,
        client_line,
    } = new_client(client)?;
    let failed = |source| NewClientError::Write {
        path: path.to_owned(),
        source,
    };
    // A FIFO without a reader must not block.
    let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| failed(errno.into()))?;
    let mut file = File::from(file);
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(failed(io::Error::other("it is not a file")));
    }
    // One process after the other reads which names there are, and adds one.
    flock(&file, FlockOperation::LockExclusive).map_err(|errno| failed(errno.into()))?;
    let warning = check_key_file(path, &file)?;
    let text = read_to_end(&mut file).map_err(|source| unreadable(path, source))?;
    let text = text.ok_or_else(|| ClientKeysError::TooLarge(path.to_owned()))?;
    let name = client.split_ascii_whitespace().next().unwrap_or_default();
    check_new_name(path, &text, name)?;
    append(&mut file, &text, &server_line).map_err(failed)?;
    sync_folder(path).map_err(failed)?;
    let (written, named) = (file.metadata(), path.metadata());
    let (written, named) = (written.map_err(failed)?, named.map_err(failed)?);
    if (written.dev(), written.ino()) != (named.dev(), named.ino()) {
        let why = "another program has replaced it meanwhile; run the command again";
        return Err(failed(io::Error::other(why)));
    }
    Ok((client_line, warning))
}

/// Checks that a key file has no wrong line, and no client of this name.
fn check_new_name(path: &Path, text: &[u8], name: &str) -> Result<(), NewClientError> {
    let wrong = |error: LineError| ClientKeysError::Line {
        path: path.to_owned(),
        error,
    };
    let clients = parse(text).map_err(wrong)?;
    match clients.iter().find(|client| client.name == name) {
        None => Ok(()),
        Some(client) => Err(NewClientError::NameTaken {
            path: path.to_owned(),
            line: client.number,
        }),
    }
}

/// Appends a line to a file with this text, by one write(2), and fsyncs the file. A failure leaves the file as it was.
///
/// A server that reads the file meanwhile may find a part of the line, and reads the file again within seconds. Only
/// this process has the key until then.
fn append(file: &mut File, text: &[u8], line: &str) -> io::Result<()> {
    let is_open = !matches!(text.last(), None | Some(b'\n'));
    let mut added = Zeroizing::new(Vec::with_capacity(line.len() + 2));
    added.extend(is_open.then_some(b'\n'));
    added.extend_from_slice(line.as_bytes());
    added.push(b'\n');
    let written = match file.write(&added) {
        Ok(count) if count == added.len() => sync(file.as_fd()),
        Ok(_) => Err(io::ErrorKind::StorageFull.into()),
        Err(error) => Err(error),
    };
    if written.is_err() {
        // The first error is the one to report.
        let _ = file.set_len(text.len() as u64);
    }
    written
}

/// Fsyncs the directory of a file, which may be new.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        None => return Ok(()),
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match open(folder, flags, Mode::empty()) {
        Ok(folder) => sync(folder.as_fd()),
        // A directory that may be searched and not read has the file for longer.
        Err(rustix::io::Errno::ACCESS) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// The reason why there is no line for a new client. No message contains a key.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum NewClientError {
    /// The name is not allowed.
    #[error(transparent)]
    Name(#[from] NameFault),
    /// What follows the name is not allowed.
    #[error(transparent)]
    Line(#[from] LineFault),
    /// No key could be made, or the key file is not protected.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The key file is wrong.
    #[error(transparent)]
    File(#[from] ClientKeysError),
    /// A client has the name already.
    #[error("the key file {}, line {line}, has a client of this name already; remove the line to give it a new key", path.display())]
    NameTaken {
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
    },
    /// The key file cannot be written.
    #[error("cannot add a line to the key file {}: {source}", path.display())]
    Write {
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, thread};

    use super::*;
    use crate::cli::server::{key_file::key_of_client_line, rights::ClientRights};

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_new_line_can_be_parsed_and_has_a_new_key() {
        for (given, rights) in [
            ("alice", &b""[..]),
            (" alice append  run 42 ", b"append run 42"),
            ("alice /run", b"/run"),
        ] {
            let new = new_client(given).unwrap();
            let clients = parse(new.server_line.as_bytes()).ok().unwrap();
            let expected = ClientRights::parse(rights).unwrap();
            assert!(clients[0].name == "alice" && clients[0].rights == expected);
            assert!(Key::parse(clients[0].key).is_ok());
            let lines = [&new.server_line, &new.client_line];
            assert_eq!(
                lines.map(|line| key_of_client_line(line.as_bytes())),
                [Ok(clients[0].key); 2]
            );
            assert_eq!(new.client_line.split(' ').count(), 2);
            assert_ne!(*new.client_line, *new_client(given).unwrap().client_line);
        }
        for wrong in [
            "",
            "a b",
            "#a",
            "rdk1",
            "RDK1abc",
            "\u{e4}",
            "a /x\nb k",
            "a\nb",
            "a /..",
        ] {
            assert!(new_client(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_new_client_has_a_line_in_a_file_that_only_its_owner_can_read() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("keys");
        let (alice, warning) = add_client(&path, "alice").unwrap();
        assert_eq!((mode(&path), warning), (0o600, None));
        let (bob, _) = add_client(&path, "bob").unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("{}\n{}\n", *alice, *bob));
        // An editor may leave a last line without a line end.
        fs::write(&path, "# clients\na secret").unwrap();
        let (carol, _) = add_client(&path, "carol").unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("# clients\na secret\n{}\n", *carol));
    }

    #[test]
    fn a_file_that_is_refused_stays_as_it_was() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("keys");
        for (text, mode, why) in [
            ("a secret\n", 0o644, "others can read it; chmod go= "),
            ("a secret\n", 0o660, "others can write it; chmod go= "),
            (
                "a secret\nb k\n",
                0o600,
                "line 2, has a client of this name already; remove the line",
            ),
            ("a secret k\n", 0o600, "line 1: "),
        ] {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = add_client(&path, "b").unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("secret"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        let error = add_client(place.path(), "b").unwrap_err().to_string();
        assert!(
            error.starts_with("cannot add a line to the key file"),
            "{error}"
        );
        assert!(add_client(&place.path().join("none/keys"), "b").is_err());
    }

    #[test]
    fn clients_that_are_added_at_once_all_get_their_lines() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("keys");
        let add = |name: String| add_client(&path, &name).is_ok();
        let added = thread::scope(|scope| {
            let names = (0..16).map(|number| format!("c{}", number % 8));
            let threads: Vec<_> = names.map(|name| scope.spawn(move || add(name))).collect();
            let results = threads.into_iter().map(|thread| thread.join().unwrap());
            results.filter(|is_added| *is_added).count()
        });
        let text = fs::read(&path).unwrap();
        assert_eq!((added, parse(&text).ok().unwrap().len()), (8, 8));
    }
}
