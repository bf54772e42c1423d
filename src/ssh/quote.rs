//! Words and shells: pure, no I/O.
//!
//! The commands of stages never pass through here: they travel inside a message, and are one argument of the
//! login shell. What must be quoted is the way to the agent alone.

use std::ffi::OsStr;

/// The words of `--rsh` and `--ssh-opt`, as a shell would split them; none where quotes are not closed.
pub(crate) fn words(text: &str) -> Option<Vec<String>> {
    shlex::split(text)
}

/// A path for the shell on the other side of ssh, which may be any: `~/` at its beginning stays what it means.
pub(crate) fn remote_path(path: &str) -> String {
    match path.strip_prefix("~/") {
        Some(rest) => format!("~/{}", word(rest)),
        None => word(path),
    }
}

/// A command line to be read by people, and pasted by them.
pub(crate) fn display<'a>(words: impl IntoIterator<Item = &'a OsStr>) -> String {
    let words: Vec<_> = words
        .into_iter()
        .map(|text| word(&text.to_string_lossy()))
        .collect();
    words.join(" ")
}

/// One word for sh, csh and fish alike: in single quotes where it is not plain, and those that it has itself
/// in double quotes. (csh takes `!` for its history even there, and nothing helps against that in all three.)
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
