//! What a copy writes to stdout while it runs: digests, and the paths of a dry run.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
};

use crate::printable::escaped;

/// The most bytes that wait for the reader of stdout: the list of a few million files. What comes after them is left
/// out, so that a stdout that is not read takes no more memory.
const MAX_QUEUED_BYTES: usize = 256 << 20;

/// The sending end of the lines for stdout. A thread writes them, so that a reader that pauses delays no other thread.
#[derive(Clone)]
pub(super) struct Listing {
    lines: mpsc::Sender<Vec<u8>>,
    queued: Arc<AtomicUsize>,
    left_out: Arc<AtomicUsize>,
    /// True if the lines go to a terminal.
    is_terminal: bool,
}

/// The thread that writes the lines.
pub(super) struct ListingWriter {
    thread: JoinHandle<io::Result<()>>,
    left_out: Arc<AtomicUsize>,
}

impl Listing {
    /// Starts the thread that writes lines to `output`. `is_terminal` says that this is a terminal.
    pub(super) fn start(
        output: impl Write + Send + 'static,
        is_terminal: bool,
    ) -> io::Result<(Self, ListingWriter)> {
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
            is_terminal,
        };
        Ok((listing, writer))
    }

    /// Queues the lines of digests and the paths of their files, without waiting. A file or a pipe gets the bytes that
    /// sha256sum and xxhsum check; a terminal gets escapes in place of what is not printable.
    pub(super) fn push_digests(&self, digests: &[(String, Vec<u8>)]) {
        let mut lines = Vec::new();
        for (digest, path) in digests {
            let line = digest_line(digest, path);
            if self.is_terminal {
                lines.extend(escaped(&line).into_bytes());
            } else {
                lines.extend(line);
            }
            lines.push(b'\n');
        }
        self.push(lines);
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

/// Returns the line of a list of digests without its end, as sha256sum and xxhsum write and check it: after a backslash if the path has
/// to be escaped, because it contains a backslash or ends a line. All other bytes stay as they are.
fn digest_line(digest: &str, path: &[u8]) -> Vec<u8> {
    let mut line = Vec::with_capacity(digest.len() + path.len() + 3);
    let is_escaped = path
        .iter()
        .any(|byte| matches!(byte, b'\\' | b'\n' | b'\r'));
    if is_escaped {
        line.push(b'\\');
    }
    // The digest comes from another host.
    line.extend(digest.bytes().filter(u8::is_ascii_hexdigit));
    line.extend(b"  ");
    for &byte in path {
        match byte {
            b'\\' => line.extend(b"\\\\"),
            b'\n' => line.extend(b"\\n"),
            b'\r' => line.extend(b"\\r"),
            byte => line.push(byte),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

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
        let (listing, writer) = Listing::start(Gated(gate, written), false).unwrap();
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
        let (listing, writer) = Listing::start(Gated(gate, mpsc::channel().0), false).unwrap();
        drop(open);
        listing.push(b"x\n".to_vec());
        drop(listing);
        assert!(writer.finish().is_err());
    }

    /// Keeps what is written.
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn lines(is_terminal: bool, path: &[u8]) -> Vec<u8> {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let (listing, writer) = Listing::start(Kept(Arc::clone(&kept)), is_terminal).unwrap();
        listing.push_digests(&[("0af\n1".to_owned(), path.to_vec())]);
        drop(listing);
        writer.finish().unwrap();
        let kept = kept.lock().unwrap();
        kept.clone()
    }

    #[test]
    fn digest_lines_are_those_of_sha256sum() {
        assert_eq!(lines(false, b"d/a b\xff"), b"0af1  d/a b\xff\n");
        assert_eq!(lines(false, b"a\\b\nc\rd"), b"\\0af1  a\\\\b\\nc\\rd\n");
        let raw = "\x1b[2J\u{202e}x";
        assert_eq!(
            lines(false, raw.as_bytes()),
            format!("0af1  {raw}\n").into_bytes()
        );
    }

    #[test]
    fn a_terminal_gets_escapes_in_lists_of_digests() {
        let shown = |path: &[u8]| String::from_utf8(lines(true, path)).unwrap();
        assert_eq!(shown("gr\u{fc}n".as_bytes()), "0af1  gr\u{fc}n\n");
        let harmful = shown("\x1b[2J\u{202e}\u{9b}x".as_bytes());
        assert_eq!(harmful, "0af1  \\u{1b}[2J\\u{202e}\\u{9b}x\n");
        assert_eq!(shown(b"\xff\na"), "\\0af1  \\xff\\na\n");
    }
}
