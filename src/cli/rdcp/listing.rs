//! What a copy writes to stdout while it runs, digests and the paths of a dry run, and paths as they are printed.

use std::{
    fmt::Write as _,
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
};

/// The most bytes that wait for the reader of stdout: the list of a few million files. What comes after them is left
/// out, so that a stdout that is not read takes no more memory.
const MAX_QUEUED_BYTES: usize = 256 << 20;

/// The sending end of the lines for stdout. A thread writes them, so that a reader that pauses delays no other thread.
#[derive(Clone)]
pub(super) struct Listing {
    lines: mpsc::Sender<Vec<u8>>,
    queued: Arc<AtomicUsize>,
    left_out: Arc<AtomicUsize>,
}

/// The thread that writes the lines.
pub(super) struct ListingWriter {
    thread: JoinHandle<io::Result<()>>,
    left_out: Arc<AtomicUsize>,
}

impl Listing {
    /// Starts the thread that writes lines to `output`.
    ///
    /// # Errors
    ///
    /// Fails if the system cannot start a thread.
    pub(super) fn start(output: impl Write + Send + 'static) -> io::Result<(Self, ListingWriter)> {
        let (lines, queue) = mpsc::channel();
        let queued = Arc::new(AtomicUsize::new(0));
        let left_out = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&queued);
        let thread = thread::Builder::new()
            .name("stdout".to_owned())
            .spawn(move || write(&queue, &counted, output))?;
        let writer = ListingWriter {
            thread,
            left_out: Arc::clone(&left_out),
        };
        let listing = Self {
            lines,
            queued,
            left_out,
        };
        Ok((listing, writer))
    }

    /// Queues whole lines, without waiting.
    pub(super) fn push(&self, lines: Vec<u8>) {
        if self.queued.load(Ordering::Relaxed) >= MAX_QUEUED_BYTES {
            self.left_out.fetch_add(lines.len(), Ordering::Relaxed);
            return;
        }
        self.queued.fetch_add(lines.len(), Ordering::Relaxed);
        // After an error of stdout the thread has ended, and the lines are dropped.
        let _ = self.lines.send(lines);
    }
}

impl ListingWriter {
    /// Waits until all lines are written. Every [`Listing`] must have been dropped.
    ///
    /// # Errors
    ///
    /// Fails if stdout could not be written, or lines were left out.
    pub(super) fn finish(self) -> io::Result<()> {
        match self.thread.join() {
            Ok(written) => written?,
            Err(panic) => std::panic::resume_unwind(panic),
        }
        match self.left_out.load(Ordering::Relaxed) {
            0 => Ok(()),
            bytes => Err(io::Error::other(format!(
                "it was not read, and {bytes} bytes were left out"
            ))),
        }
    }
}

fn write(
    queue: &mpsc::Receiver<Vec<u8>>,
    queued: &AtomicUsize,
    mut output: impl Write,
) -> io::Result<()> {
    for lines in queue {
        output.write_all(&lines)?;
        queued.fetch_sub(lines.len(), Ordering::Relaxed);
    }
    output.flush()
}

/// Returns a path for a terminal: on one line, without control characters. Bytes that are not UTF-8 become `\xNN`.
pub(super) fn shown(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || is_invisible(c) {
                text.extend(c.escape_default());
            } else {
                text.push(c);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Returns true for characters that change the direction of a text or end a line, so that a name looks like another
/// one.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Appends the line of a list of digests, as sha256sum and xxhsum write and check it: after a backslash if the path has
/// to be escaped, because it contains a backslash or ends a line. All other bytes stay as they are.
pub(super) fn push_digest_line(lines: &mut Vec<u8>, digest: &str, path: &[u8]) {
    let is_escaped = path
        .iter()
        .any(|byte| matches!(byte, b'\\' | b'\n' | b'\r'));
    if is_escaped {
        lines.push(b'\\');
    }
    // The digest comes from another host.
    lines.extend(digest.bytes().filter(u8::is_ascii_hexdigit));
    lines.extend(b"  ");
    for &byte in path {
        match byte {
            b'\\' => lines.extend(b"\\\\"),
            b'\n' => lines.extend(b"\\n"),
            b'\r' => lines.extend(b"\\r"),
            byte => lines.push(byte),
        }
    }
    lines.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An output that waits for a message before each write.
    struct Gated(mpsc::Receiver<()>, mpsc::Sender<usize>);

    impl Write for Gated {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.recv().map_err(io::Error::other)?;
            let _ = self.1.send(bytes.len());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_an_unread_stdout_cannot_take_is_left_out_and_counted() {
        let (open, gate) = mpsc::channel();
        let (written, lengths) = mpsc::channel();
        let (listing, writer) = Listing::start(Gated(gate, written)).unwrap();
        listing.push(vec![b'x'; MAX_QUEUED_BYTES]);
        listing.push(b"left out".to_vec());
        open.send(()).unwrap();
        assert_eq!(lengths.recv().unwrap(), MAX_QUEUED_BYTES);
        drop((listing, open));
        let error = writer.finish().unwrap_err().to_string();
        assert!(error.contains("8 bytes were left out"), "{error}");
    }

    #[test]
    fn an_error_of_stdout_is_reported_at_the_end() {
        let (open, gate) = mpsc::channel();
        let (listing, writer) = Listing::start(Gated(gate, mpsc::channel().0)).unwrap();
        drop(open);
        listing.push(b"x\n".to_vec());
        drop(listing);
        assert!(writer.finish().is_err());
    }

    #[test]
    fn a_path_cannot_control_the_terminal() {
        for (path, expected) in [
            (&b"a b/gr\xc3\xbc\xc3\x9fe"[..], "a b/grüße"),
            (b"\x1b[2J\n\r\x07", "\\u{1b}[2J\\n\\r\\u{7}"),
            (b"\xff.txt\xc3", "\\xff.txt\\xc3"),
            ("\u{9b}1m \u{202e}x".as_bytes(), "\\u{9b}1m \\u{202e}x"),
            (b"", ""),
        ] {
            assert_eq!(shown(path), expected);
        }
    }

    #[test]
    fn digest_lines_are_those_of_sha256sum() {
        let line = |path: &[u8]| {
            let mut lines = Vec::new();
            push_digest_line(&mut lines, "0af\n1", path);
            lines
        };
        assert_eq!(line(b"d/a b\xff"), b"0af1  d/a b\xff\n");
        assert_eq!(line(b"a\\b\nc\rd"), b"\\0af1  a\\\\b\\nc\\rd\n");
    }
}
