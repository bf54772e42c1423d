//! The files with the keys of clients: the file of the server, the file of one client, and the format of their lines.
//!
//! A line is `NAME KEY [ro|wo|append] [SUBDIR]`, separated by white space; [`ClientRights`] is what follows the key. Empty
//! lines and lines that begin with `#` are skipped. No error contains text of the file: a user who swaps name and key must
//! not find the key in a log.

use std::{
    collections::HashMap,
    fs::{File, Metadata},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use zeroize::Zeroizing;

use super::rights::{ClientRights, split_word};
use crate::{
    Key, KeyError,
    cli::{args::Secret, shared::message::Console},
    key::{
        MAX_LINE_BYTES, MAX_STRETCHED_KEYS, SHORT_KEY, first_line, open_key_file, resembles_ours,
        unreadable,
    },
};

/// The largest key file, in bytes: the lines of some 50 000 clients. A larger file is most likely not a key file.
const MAX_FILE_BYTES: usize = 4 << 20;

/// The bytes that the first buffer for a key file has. It doubles as needed.
const FIRST_BUFFER_BYTES: usize = 64 << 10;

/// The age from which a change of a file is certain to be seen. Two changes within one step of the file system's clock
/// have the same time; the longest step is 2 s, that of FAT.
const CLOCK_STEP: Duration = Duration::from_secs(2);

/// Reads the key of a client of a server, from the file or the environment `variable`, and prints the warnings about
/// it. Returns `None` if the user gave no key.
/// Fails as [`client_key`] does, or if the variable has no key.
pub(in crate::cli) fn load_client_key(
    file: Option<&Path>,
    variable: Option<&Secret>,
    console: &Console,
) -> anyhow::Result<Option<Key>> {
    let (key, warning) = match (file, variable) {
        (Some(path), _) => client_key(path)?,
        (None, Some(text)) => (Key::parse(text.text().as_encoded_bytes())?, None),
        (None, None) => return Ok(None),
    };
    if let Some(warning) = warning {
        console.warn(&warning);
    }
    if key.is_short() {
        console.warn(&format!("{SHORT_KEY}; use one that rdcp --new-key makes"));
    }
    Ok(Some(key))
}

/// Reads the key of a client from the first line of a file: `KEY`, or a line of the server's file. If
/// this user is root and the file belongs to another user, the second part of the result is a sentence that warns about
/// it.
///
/// Blocks: stretching a key that rdpipe did not make takes tens of milliseconds.
/// Fails if the file cannot be read, if others can read or change it, or if its first line has no key.
fn client_key(path: &Path) -> Result<(Key, Option<String>), ClientKeysError> {
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

/// Reads a whole key file. If this user is root and the file belongs to another user, the second part of the result is a
/// sentence that warns about it.
/// Fails if the file cannot be read, if others can read or change it, or if it is too large.
pub(in crate::cli) fn read_key_file(
    path: &Path,
) -> Result<(Zeroizing<Vec<u8>>, Option<String>), ClientKeysError> {
    let (mut file, warning) = open_key_file(path)?;
    let text = read_to_end(&mut file).map_err(|source| unreadable(path, source))?;
    let text = text.ok_or_else(|| ClientKeysError::TooLarge(path.to_owned()))?;
    Ok((text, warning))
}

/// Returns the key that a line of a key file has.
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
    Line { path: PathBuf, error: LineError },
    /// The key in a line is damaged, or cannot be stretched.
    #[error("the key file {}, line {line}: {source}", path.display())]
    Key {
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
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
pub(super) fn read_to_end(file: &mut File) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
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

/// The longest name of a client, in bytes: host names and user names fit, and a table of the clients stays readable.
pub(in crate::cli) const MAX_NAME_BYTES: usize = 64;

#[derive(Clone, PartialEq, Eq)]
pub(in crate::cli) struct ClientLine<'a> {
    /// The number of the line, from 1.
    pub(in crate::cli) number: usize,
    pub(in crate::cli) name: &'a str,
    /// The text of the client's key, as it is in the file.
    pub(in crate::cli) key: &'a [u8],
    pub(in crate::cli) rights: ClientRights,
}

/// The error in a line of the key file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {fault}")]
pub(in crate::cli) struct LineError {
    /// The number of the line, from 1.
    pub(in crate::cli) line: usize,
    pub(in crate::cli) fault: LineFault,
}

/// What is wrong with a line of the key file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(in crate::cli) enum LineFault {
    /// The line has more bytes than a name and a key need.
    #[error("longer than {MAX_LINE_BYTES} bytes; is it the right file?")]
    TooLong,
    /// The first word is not a name.
    #[error("{0}")]
    Name(#[from] NameFault),
    /// The line has no key.
    #[error("no key; write NAME KEY")]
    NoKey,
    /// What follows the key is neither a right nor a directory.
    #[error(
        "neither ro, wo or append follows the key, nor a directory that begins with /; a key here has no white space"
    )]
    Right,
    /// The directory of the client cannot be one below the root of the server.
    #[error("the directory of a client has no .. in it, and no NUL")]
    Directory,
    /// The key is a short word.
    #[error("{SHORT_KEY}; replace it with a key that --new-key makes")]
    ShortKey,
    /// The server would have to try too many keys for each stranger.
    #[error(
        "more than {MAX_STRETCHED_KEYS} keys are not made by rdpipe; replace some with keys that --new-key makes"
    )]
    StretchedKeys,
    /// A line has a line end in it.
    #[error("one client is one line, without a line end in it")]
    LineEnd,
    /// The name is that of an earlier line.
    #[error("the same name as in line {0}; each client needs its own")]
    NameTwice(usize),
    /// The key is that of an earlier line, so the server could not tell the two clients apart.
    #[error("the same key as in line {0}; each client needs its own")]
    KeyTwice(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(in crate::cli) enum NameFault {
    /// The name is empty, too long, or has characters that are not allowed.
    #[error("a name has 1 to {MAX_NAME_BYTES} printable ASCII characters without white space")]
    Characters,
    /// The name looks like a comment of the key file.
    #[error("a name does not begin with #")]
    Comment,
    /// The name looks like a generated key.
    #[error("there is a key in place of the name; write NAME KEY")]
    Key,
}

/// Parses the text of a key file. Returns its clients in the order of the file. The keys are not decoded.
/// Fails at the first line that is wrong.
pub(in crate::cli) fn parse(text: &[u8]) -> Result<Vec<ClientLine<'_>>, LineError> {
    let mut clients = Vec::new();
    let mut names = HashMap::new();
    let mut keys = HashMap::new();
    for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
        let failed = |fault| LineError {
            line: number,
            fault,
        };
        let Some(client) = parse_line(number, line).map_err(failed)? else {
            continue;
        };
        if let Some(earlier) = names.insert(client.name, number) {
            return Err(failed(LineFault::NameTwice(earlier)));
        }
        if let Some(earlier) = keys.insert(client.key, number) {
            return Err(failed(LineFault::KeyTwice(earlier)));
        }
        clients.push(client);
    }
    Ok(clients)
}

/// Returns the client of a line, or `None` for a line that is skipped.
fn parse_line(number: usize, line: &[u8]) -> Result<Option<ClientLine<'_>>, LineFault> {
    if line.len() > MAX_LINE_BYTES {
        return Err(LineFault::TooLong);
    }
    if line.starts_with(b"#") {
        return Ok(None);
    }
    let (name, rest) = split_word(line);
    if name.is_empty() {
        return Ok(None);
    }
    let name = check_name(name)?;
    let (key, rest) = split_word(rest);
    if key.is_empty() {
        return Err(LineFault::NoKey);
    }
    Ok(Some(ClientLine {
        number,
        name,
        key,
        rights: ClientRights::parse(rest)?,
    }))
}

/// Returns the text of the key in the first line of a client's own file: `KEY`, or a line of the server's file.
/// Fails if the line is neither.
pub(in crate::cli) fn key_of_client_line(line: &[u8]) -> Result<&[u8], LineFault> {
    let (first, rest) = split_word(line);
    let (key, rest) = split_word(rest);
    match (first, key) {
        ([], _) => Err(LineFault::NoKey),
        (first, []) => Ok(first),
        (name, key) => {
            check_name(name)?;
            ClientRights::parse(rest)?;
            Ok(key)
        }
    }
}

/// Returns the name as text if a client may have it.
pub(in crate::cli) fn check_name(name: &[u8]) -> Result<&str, NameFault> {
    let is_printable = name.iter().all(u8::is_ascii_graphic);
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !is_printable {
        return Err(NameFault::Characters);
    }
    if name.starts_with(b"#") {
        return Err(NameFault::Comment);
    }
    if resembles_ours(name) {
        return Err(NameFault::Key);
    }
    std::str::from_utf8(name).map_err(|_| NameFault::Characters)
}

/// The body of the fuzz target: what a key file says of each client is what a client reads from that line.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(data: &[u8]) {
    let Ok(clients) = parse(data) else {
        return;
    };
    for client in clients {
        assert!(check_name(client.name.as_bytes()).is_ok());
        let line = [client.name.as_bytes(), b" ", client.key].concat();
        assert_eq!(key_of_client_line(&line).ok(), Some(client.key));
        let line = data.split(|byte| *byte == b'\n').nth(client.number - 1);
        assert_eq!(
            key_of_client_line(line.unwrap_or_default()).ok(),
            Some(client.key)
        );
        let directory = client.rights.directory.unwrap_or_default();
        assert!(
            !directory
                .split(|byte| *byte == b'/')
                .any(|name| name == b"..")
        );
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

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

    fn fault(text: &str) -> (usize, LineFault) {
        let error = parse(text.as_bytes()).err().expect(text);
        (error.line, error.fault)
    }

    #[test]
    fn a_line_has_a_name_and_a_key() {
        let text = "# clients of the DAQ\n\nhallb  secret\r\n\t hall-d:2 \t s3#cret \n \n#old key\nc k append a b";
        let clients = parse(text.as_bytes()).ok().unwrap();
        let found: Vec<_> = clients.iter().map(|c| (c.number, c.name, c.key)).collect();
        assert_eq!(
            found,
            [
                (3, "hallb", &b"secret"[..]),
                (4, "hall-d:2", b"s3#cret"),
                (7, "c", b"k")
            ]
        );
        let rights: Vec<_> = clients.into_iter().map(|client| client.rights).collect();
        let append = ClientRights::parse(b"append a b").unwrap();
        assert!(rights == [ClientRights::ALL, ClientRights::ALL, append]);
        assert!(parse(b"").ok().unwrap().is_empty());
    }

    #[test]
    fn a_wrong_line_is_an_error_with_its_number() {
        let long_name = format!("{} key", "n".repeat(65));
        let long_line = format!("a {}", "k".repeat(4096));
        let swapped = format!("{} alice", Key::generate().unwrap().text().as_str());
        for (text, expected) in [
            ("a k\nb\n", (2, LineFault::NoKey)),
            (&*long_name, (1, LineFault::Name(NameFault::Characters))),
            (
                "\nn\u{e4}me key",
                (2, LineFault::Name(NameFault::Characters)),
            ),
            ("a\x07b key", (1, LineFault::Name(NameFault::Characters))),
            (" #a key", (1, LineFault::Name(NameFault::Comment))),
            (&swapped, (1, LineFault::Name(NameFault::Key))),
            ("a pass phrase", (1, LineFault::Right)),
            ("a 1\nb 2 wo /../x", (2, LineFault::Directory)),
            ("a 1\n\na 2", (3, LineFault::NameTwice(1))),
            ("#\na 1\nb 2\nc 1", (4, LineFault::KeyTwice(2))),
            (&long_line, (1, LineFault::TooLong)),
        ] {
            assert_eq!(fault(text), expected, "{text}");
        }
        let name = "n".repeat(64);
        assert!(parse(format!("{name} key").as_bytes()).is_ok());
    }

    #[test]
    fn an_error_is_a_sentence_without_the_text_of_the_line() {
        let texts = [
            "hunter2 a\nhunter2 b",
            "a hunter2\nb hunter2",
            "a hunter2 b",
            "a b hunter2",
            "a b append hunter2/..",
            "hunter2",
        ];
        for text in texts {
            let error = parse(text.as_bytes()).err().unwrap().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
        let error = parse(b"a k\nb k").err().unwrap().to_string();
        assert_eq!(
            error,
            "line 2: the same key as in line 1; each client needs its own"
        );
    }

    #[test]
    fn a_client_takes_a_key_or_a_line_of_the_server() {
        for line in [
            "secret",
            "secret\r",
            " secret ",
            "alice secret",
            "alice\tsecret ",
            "alice secret append run 42",
        ] {
            assert_eq!(
                key_of_client_line(line.as_bytes()),
                Ok(&b"secret"[..]),
                "{line}"
            );
        }
        for (line, expected) in [
            ("", LineFault::NoKey),
            (" ", LineFault::NoKey),
            ("# clients", LineFault::Name(NameFault::Comment)),
            ("a pass phrase", LineFault::Right),
        ] {
            assert_eq!(key_of_client_line(line.as_bytes()), Err(expected), "{line}");
        }
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_parser(
            text in prop::collection::vec(prop::sample::select(&b"abro# /.\t\r\n\x00\xff"[..]), 0..60),
        ) {
            let _ = key_of_client_line(&text);
            if let Ok(clients) = parse(&text) {
                let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
                for client in clients {
                    prop_assert_eq!(check_name(client.name.as_bytes()), Ok(client.name));
                    let line = lines[client.number - 1];
                    prop_assert_eq!(key_of_client_line(line), Ok(client.key));
                }
            }
        }

        #[test]
        fn an_error_of_any_line_has_no_text_of_it(word in "hunter[0-9]{1,9}", line in "(@| |/|ro|wo|append|\\.\\.|#|rdk1|\t){1,9}") {
            let line = line.replace('@', &word);
            if let Err(error) = parse(line.as_bytes()) {
                prop_assert!(!error.to_string().contains(&word), "{}", error);
            }
            if let Err(fault) = key_of_client_line(line.as_bytes()) {
                prop_assert!(!fault.to_string().contains(&word), "{}", fault);
            }
        }

        #[test]
        fn lines_come_back(clients in prop::collection::btree_map("[!-\"$-Z]{1,64}", "[!-~]{1,90}", 0..9)) {
            let keys: std::collections::HashSet<_> = clients.values().collect();
            prop_assume!(keys.len() == clients.len());
            let lines: Vec<_> = clients.iter().map(|(name, key)| format!("{name} {key}")).collect();
            let text = lines.join("\n");
            let parsed = parse(text.as_bytes());
            let parsed: Vec<_> = parsed.ok().unwrap().iter().map(|c| (c.name.to_owned(), c.key.to_owned())).collect();
            let given: Vec<_> = clients.into_iter().map(|(name, key)| (name, key.into_bytes())).collect();
            prop_assert_eq!(parsed, given);
        }
    }
}
