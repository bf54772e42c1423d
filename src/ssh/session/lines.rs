//! Cuts what a process writes into lines. Pure, no I/O.

/// Longer lines are shown in pieces.
const MAX_LINE_BYTES: usize = 4096;

/// Cuts at `\n`, and at `\r`, with which progress is shown. Empty lines are left out.
#[derive(Debug, Default)]
pub(super) struct Lines {
    unfinished: Vec<u8>,
}

impl Lines {
    /// The lines that these bytes complete.
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

    /// What was begun.
    pub(super) fn finish(&mut self) -> Option<String> {
        let line = std::mem::take(&mut self.unfinished);
        (!line.is_empty()).then(|| String::from_utf8_lossy(&line).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_at_both_kinds_of_ends() {
        let mut lines = Lines::default();
        assert_eq!(lines.feed(b"a\r\nb\rc\n\nd"), ["a", "b", "c"]);
        assert_eq!(lines.feed(b"e\n"), ["de"]);
        assert_eq!(lines.finish(), None);
        assert!(lines.feed(b"rest").is_empty());
        assert_eq!(lines.finish().as_deref(), Some("rest"));
    }

    #[test]
    fn no_line_grows_without_end() {
        let mut lines = Lines::default();
        let long = lines.feed(&vec![b'x'; 3 * MAX_LINE_BYTES + 1]);
        assert_eq!(long.len(), 3);
        assert_eq!(lines.unfinished.len(), 1);
    }
}
