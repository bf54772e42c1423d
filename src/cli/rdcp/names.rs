//! Paths as they are printed. Pure, no I/O.

use std::fmt::Write;

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

/// Returns true for characters that change the direction of a text or end a line, so that a name looks like another one.
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
