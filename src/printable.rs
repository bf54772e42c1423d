//! Text of other hosts, names of files among it, made fit for a terminal: it cannot move the cursor, change colours, end
//! a line, or change the order in which other text is shown. And sizes, as users type them.

#[cfg(feature = "cli")]
use std::fmt::Write as _;

/// Returns true if a terminal shows the character in its place. False for control characters (C0, DEL and C1, ESC among
/// them), for separators of lines and paragraphs, and for the marks, embeddings, overrides and isolates that change the
/// direction of a text, so that a name looks like another one.
pub(crate) fn is_printable(c: char) -> bool {
    let changes_direction = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    !c.is_control() && !changes_direction
}

/// Returns a number of bytes as users type it, in the largest unit of 1024 that is exact: `512K`.
#[cfg(any(feature = "cli", feature = "rdma"))]
pub(crate) fn size(bytes: u64) -> String {
    let units = [(30, "G"), (20, "M"), (10, "K")];
    let is_exact = |(shift, _): &(u32, &str)| bytes > 0 && bytes.trailing_zeros() >= *shift;
    let (shift, unit) = units.into_iter().find(is_exact).unwrap_or((0, ""));
    format!("{}{unit}", bytes >> shift)
}

/// Returns a text with a space in place of each character that is not printable.
pub(crate) fn with_spaces(text: &str) -> String {
    text.replace(|c| !is_printable(c), " ")
}

/// Returns bytes, such as those of a path, on one line. What is not printable becomes an escape of Rust (`\n`,
/// `\u{1b}`), and a byte that is not UTF-8 `\xNN`.
#[cfg(feature = "cli")]
pub(crate) fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            push_escaped(&mut text, c);
        }
        for byte in chunk.invalid() {
            // Writing to a string does not fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Returns a text on one line: each line end becomes a space, and whatever else is not printable an escape.
#[cfg(feature = "cli")]
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.trim_end().chars() {
        match c {
            '\n' => line.push(' '),
            c => push_escaped(&mut line, c),
        }
    }
    line
}

/// Returns a text with its lines, and with escapes in place of what is not printable.
#[cfg(feature = "cli")]
pub(crate) fn lines(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => shown.push(c),
            c => push_escaped(&mut shown, c),
        }
    }
    shown
}

#[cfg(feature = "cli")]
fn push_escaped(text: &mut String, c: char) {
    if is_printable(c) {
        text.push(c);
    } else {
        text.extend(c.escape_default());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What controls a terminal, or changes the order of what it shows.
    const HARMFUL: &str = "\0\x07\x08\t\r\x1b\x7f\u{80}\u{85}\u{9b}\u{9d}\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}";

    fn is_harmful(c: char) -> bool {
        c.is_control() || HARMFUL.contains(c)
    }

    #[cfg(feature = "cli")]
    #[test]
    fn a_path_cannot_control_the_terminal() {
        for (path, expected) in [
            (&b"a b/gr\xc3\xbc\xc3\x9fe"[..], "a b/grüße"),
            (b"\x1b[2J\n\r\x07", "\\u{1b}[2J\\n\\r\\u{7}"),
            (b"\xff.txt\xc3", "\\xff.txt\\xc3"),
            ("\u{9b}1m \u{202e}x".as_bytes(), "\\u{9b}1m \\u{202e}x"),
            (b"", ""),
        ] {
            assert_eq!(escaped(path), expected);
        }
    }

    #[test]
    fn every_harmful_character_is_replaced() {
        for c in HARMFUL.chars() {
            assert!(!is_printable(c), "{c:?}");
        }
        assert_eq!(with_spaces("a\x1b[2J\u{202e}b"), "a [2J b");
        for c in "aü€日\u{5d0}\u{627}\u{200d}😀".chars() {
            assert!(is_printable(c), "{c:?}");
        }
    }

    /// Returns random bytes, with more of what is harmful than chance has.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let harmful: Vec<String> = HARMFUL.chars().map(String::from).collect();
        let part = prop_oneof![
            any::<Vec<u8>>(),
            any::<String>().prop_map(String::into_bytes),
            proptest::sample::select(harmful).prop_map(String::into_bytes),
        ];
        proptest::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
    }

    #[cfg(feature = "cli")]
    proptest! {
        #[test]
        fn nothing_unprintable_is_left(bytes in bytes()) {
            let text = String::from_utf8_lossy(&bytes);
            let shown = [escaped(&bytes), one_line(&text), with_spaces(&text)];
            for shown in shown {
                prop_assert!(!shown.contains(is_harmful), "{shown:?}");
                prop_assert_eq!(&one_line(&shown), shown.trim_end(), "what is printable stays");
            }
            let lines = lines(&text);
            prop_assert!(!lines.contains(|c| c != '\n' && is_harmful(c)), "{lines:?}");
            let count = |text: &str| text.matches('\n').count();
            prop_assert_eq!(count(&lines), count(&text));
        }
    }
}
