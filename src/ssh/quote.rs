//! Splits and quotes words for shells. Pure, no I/O.
//!
//! Only the command that starts an agent is quoted here. The commands of stages are not: they travel inside a
//! message and become one argument of the login shell.

use std::ffi::OsStr;

/// Splits the value of `--rsh` or `--ssh-opt` into words as a shell does. Returns none if a quote is not closed.
pub(crate) fn words(text: &str) -> Option<Vec<String>> {
    shlex::split(text)
}

/// Quotes a path for the login shell on the other host, which may be any shell. A leading `~/` stays unquoted, so
/// that the shell expands it.
pub(crate) fn remote_path(path: &str) -> String {
    match path.strip_prefix("~/") {
        Some(rest) => format!("~/{}", word(rest)),
        None => word(path),
    }
}

/// Returns a command line that a user can read and paste into a shell.
pub(crate) fn display<'a>(words: impl IntoIterator<Item = &'a OsStr>) -> String {
    let words: Vec<_> = words
        .into_iter()
        .map(|text| word(&text.to_string_lossy()))
        .collect();
    words.join(" ")
}

/// Quotes one word so that sh, csh and fish all read it back. A word with special characters is put into single
/// quotes, and each single quote inside it into double quotes. (csh expands `!` even inside quotes, and no quoting
/// prevents that in all three shells.)
pub(crate) fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "%+,-./:@_=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    let quoted: Vec<_> = text.split('\'').map(|piece| format!("'{piece}'")).collect();
    quoted.join("\"'\"")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_words_stay_as_they_are() {
        for text in [
            "rdpipe",
            "/usr/local/bin/rdpipe",
            "user@fs1.example.org",
            "-oPort=22",
        ] {
            assert_eq!(word(text), text);
        }
        assert_eq!(word(""), "''");
        assert_eq!(word("a b"), "'a b'");
        assert_eq!(word("it's"), "'it'\"'\"'s'");
        assert_eq!(word("$HOME"), "'$HOME'");
    }

    #[test]
    fn a_path_in_the_home_directory_stays_there() {
        assert_eq!(remote_path("~/bin/rdpipe"), "~/bin/rdpipe");
        assert_eq!(remote_path("~/my bin/rdpipe"), "~/'my bin/rdpipe'");
        assert_eq!(remote_path("/opt/r d/rdpipe"), "'/opt/r d/rdpipe'");
    }

    #[test]
    fn words_are_split_as_a_shell_does() {
        let split = |text| words(text).unwrap();
        assert_eq!(split("-F cfg"), ["-F", "cfg"]);
        assert_eq!(
            split("kubectl exec -i {host} --"),
            ["kubectl", "exec", "-i", "{host}", "--"]
        );
        assert_eq!(
            split("-o 'ProxyCommand=nc %h'"),
            ["-o", "ProxyCommand=nc %h"]
        );
        assert!(words("it's").is_none());
    }

    proptest! {
        #[test]
        fn a_shell_reads_back_what_was_quoted(text in "[^\0]*") {
            prop_assert_eq!(words(&word(&text)), Some(vec![text]));
        }
    }
}
