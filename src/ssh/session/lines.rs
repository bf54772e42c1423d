//! Cuts what a process writes into lines. Pure, no I/O.

/// The most bytes of a line. A longer one is shown in pieces.
const MAX_LINE_BYTES: usize = 4096;

/// Cuts bytes into lines. A line ends at `\n`, and also at `\r`, which programs print to redraw a progress line. Empty
/// lines are left out.
#[derive(Debug, Default)]
pub(super) struct Lines {
    unfinished: Vec<u8>,
}

impl Lines {
    /// Adds bytes, and returns the lines that they complete.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        for &byte in bytes {
            let ends = matches!(byte, b'\n' | b'\r');
            if !ends {
                self.unfinished.push(byte);
            }
            if ends || self.unfinished.len() >= MAX_LINE_BYTES {
                lines.extend(self.finish());
            }
        }
        lines
    }

    /// Returns the unfinished last line, if there is one.
    pub(super) fn finish(&mut self) -> Option<String> {
        let line = std::mem::take(&mut self.unfinished);
        (!line.is_empty()).then(|| String::from_utf8_lossy(&line).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_at_newlines_and_at_carriage_returns() {
        let mut lines = Lines::default();
        assert_eq!(lines.feed(b"a\r\nb\rc\n\nd"), ["a", "b", "c"]);
        assert_eq!(lines.feed(b"e\n"), ["de"]);
        assert_eq!(lines.finish(), None);
        assert!(lines.feed(b"rest").is_empty());
        assert_eq!(lines.finish().as_deref(), Some("rest"));
    }

    #[test]
    fn a_long_line_is_cut_into_pieces() {
        let mut lines = Lines::default();
        let long = lines.feed(&vec![b'x'; 3 * MAX_LINE_BYTES + 1]);
        assert_eq!(long.len(), 3);
        assert_eq!(lines.unfinished.len(), 1);
    }
}
