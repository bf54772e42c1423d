//! The fenced blocks of a page.

/// Returns the `number`th fenced block of `language`, counted from 1. Words after the language, as in `rust,no_run`,
/// are allowed.
pub(crate) fn block(page: &str, language: &str, number: usize) -> Option<String> {
    let mut blocks = Vec::new();
    let mut open: Option<(bool, String)> = None;
    for line in page.lines() {
        open = match open.take() {
            Some((wanted, text)) if line == "```" => {
                if wanted {
                    blocks.push(text);
                }
                None
            }
            Some((wanted, text)) => Some((wanted, text + line + "\n")),
            None => line.strip_prefix("```").map(|info| {
                let name = info.split(',').next();
                (name == Some(language), String::new())
            }),
        };
    }
    blocks.into_iter().nth(number.checked_sub(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_counted_by_language() {
        let page = "```rust\na\n```\n```\nrust\n```\n```rust,no_run\nb\n\nc\n```\n";
        assert_eq!(block(page, "rust", 1).as_deref(), Some("a\n"));
        assert_eq!(block(page, "rust", 2).as_deref(), Some("b\n\nc\n"));
        assert_eq!(block(page, "rust", 3), None);
        assert_eq!(block(page, "rust", 0), None);
        assert_eq!(block(page, "sh", 1), None);
    }
}
