//! Splits and quotes words for shells. Pure, no I/O.
//!
//! Only the command that starts an agent is quoted here. The commands of stages are not: they travel inside a
//! message and become one argument of the login shell.

use std::ffi::OsStr;

/// Splits the value of `--rsh` or `--ssh-opt` into words as a shell does. Returns none if a quote is not closed.
pub(crate) fn split_words(text: &str) -> Option<Vec<String>> {
    shlex::split(text)
}

/// Quotes a path for the login shell on the other host: sh, bash, dash, ksh, zsh, csh, tcsh or fish. A leading `~/`
/// stays unquoted, so that the shell expands it. Returns none if the path has a line end: csh requires a backslash
/// before a quoted line end, and the other shells would take that backslash for a character of the path.
pub(crate) fn remote_path(path: &str) -> Option<String> {
    if path.contains(['\n', '\r']) {
        return None;
    }
    // In front of a command, `=` makes an assignment in sh, and `%` continues a job in csh.
    let plain = |c: char| is_plain(c) && !"%=".contains(c);
    Some(match path.strip_prefix("~/") {
        Some("") => "~/".to_owned(),
        Some(rest) => format!("~/{}", quoted(rest, plain)),
        None => quoted(path, plain),
    })
}

/// Returns a command line that a user can read and paste into a shell.
pub(crate) fn display<'a>(words: impl IntoIterator<Item = &'a OsStr>) -> String {
    let words: Vec<_> = words
        .into_iter()
        .map(|text| word(&text.to_string_lossy()))
        .collect();
    words.join(" ")
}

/// Quotes one word so that a shell reads it back: sh, csh and fish. A line end is quoted for all of them but csh.
pub(crate) fn word(text: &str) -> String {
    quoted(text, is_plain)
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "%+,-./:@_=".contains(c)
}

/// Quotes a word, unless all of its characters are plain. A backslash stands before each character that the shells
/// treat differently inside of quotes: `'` ends them, fish takes `\` for an escape, and csh replaces `!` with an
/// earlier command. All others stand in single quotes.
fn quoted(text: &str, is_plain: impl Fn(char) -> bool) -> String {
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    let mut quoted = String::with_capacity(text.len() + 2);
    let mut is_open = false;
    for c in text.chars() {
        let is_escaped = matches!(c, '\'' | '\\' | '!');
        if is_open == is_escaped {
            quoted.push('\'');
            is_open = !is_open;
        }
        if is_escaped {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    if is_open {
        quoted.push('\'');
    }
    if quoted.is_empty() {
        quoted.push_str("''");
    }
    quoted
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
        assert_eq!(word("it's"), r"'it'\''s'");
        assert_eq!(word(r"C:\a b!"), r"'C:'\\'a b'\!");
        assert_eq!(word("$HOME"), "'$HOME'");
    }

    #[test]
    fn a_path_in_the_home_directory_stays_there() {
        let quoted = |path| remote_path(path).unwrap();
        assert_eq!(quoted("~/bin/rdpipe"), "~/bin/rdpipe");
        assert_eq!(quoted("~/my bin/rdpipe"), "~/'my bin/rdpipe'");
        assert_eq!(quoted("/opt/r d/rdpipe"), "'/opt/r d/rdpipe'");
        assert_eq!(quoted("a=b/rdpipe"), "'a=b/rdpipe'");
        assert_eq!(remote_path("/opt/r\nd/rdpipe"), None);
    }

    #[test]
    fn words_are_split_as_a_shell_does() {
        let split = |text| split_words(text).unwrap();
        assert_eq!(split("-F cfg"), ["-F", "cfg"]);
        assert_eq!(
            split("kubectl exec -i {host} --"),
            ["kubectl", "exec", "-i", "{host}", "--"]
        );
        assert_eq!(
            split("-o 'ProxyCommand=nc %h'"),
            ["-o", "ProxyCommand=nc %h"]
        );
        assert!(split_words("it's").is_none());
    }

    /// Paths that a quoting for sh alone breaks in another shell.
    const PATHS: [&str; 10] = [
        r"/opt/back\slash",
        r"ends in \",
        r"two \\ and \'",
        "it's",
        "wow! !! !x",
        "a b\tc $HOME `d` {e,f} *?[g]",
        "#h & i | j; (k) <l> ^m^n",
        "a=b",
        "%1 ~ \"o\"",
        "grüße ☃",
    ];

    /// Reads one word as the manual of csh describes it; none if csh would replace `!` or refuse a line end.
    fn in_csh(text: &str) -> Option<String> {
        let mut chars = text.chars();
        let (mut word, mut is_open) = (String::new(), false);
        while let Some(c) = chars.next() {
            match c {
                '\'' => is_open = !is_open,
                '\\' if !is_open => word.push(chars.next()?),
                '!' | '\n' => return None,
                c => word.push(c),
            }
        }
        (!is_open).then_some(word)
    }

    /// Reads one word as the manual of fish describes it; none if a quote is not closed, or if a letter that has a
    /// meaning follows a backslash.
    fn in_fish(text: &str) -> Option<String> {
        let mut chars = text.chars().peekable();
        let (mut word, mut is_open) = (String::new(), false);
        while let Some(c) = chars.next() {
            match c {
                '\'' => is_open = !is_open,
                '\\' if is_open => match chars.next_if(|c| matches!(c, '\'' | '\\')) {
                    Some(c) => word.push(c),
                    None => word.push('\\'),
                },
                '\\' => word.push(chars.next().filter(|c| !c.is_alphanumeric())?),
                c => word.push(c),
            }
        }
        (!is_open).then_some(word)
    }

    #[test]
    fn every_shell_of_this_machine_reads_back_a_path_with_backslashes_and_exclamation_marks() {
        let path = std::env::var_os("PATH").unwrap_or_default();
        for name in ["sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh", "fish"] {
            let mut files = std::env::split_paths(&path).map(|folder| folder.join(name));
            let Some(shell) = files.find(|file| file.is_file()) else {
                println!("SKIPPED: no {name} here");
                continue;
            };
            for text in PATHS {
                let line = format!("/usr/bin/printf %s {}", remote_path(text).unwrap());
                let output = std::process::Command::new(&shell)
                    .arg("-c")
                    .arg(&line)
                    .output();
                let output = output.unwrap();
                let read = String::from_utf8_lossy(&output.stdout);
                let said = String::from_utf8_lossy(&output.stderr);
                assert_eq!(read, text, "{name} -c {line:?}: {said}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_shell_reads_back_what_was_quoted(text in "[^\0]*") {
            prop_assert_eq!(split_words(&word(&text)), Some(vec![text]));
        }

        #[test]
        fn sh_csh_and_fish_all_read_back_a_quoted_path(text in "[^\0\r\n]+") {
            prop_assume!(!text.starts_with("~/"));
            let quoted = remote_path(&text).unwrap();
            prop_assert_eq!(in_csh(&quoted), Some(text.clone()));
            prop_assert_eq!(in_fish(&quoted), Some(text.clone()));
            prop_assert_eq!(split_words(&quoted), Some(vec![text]));
        }
    }
}
