//! The table of the exit codes of all programs. Each `--help` shows its part, and the pages in `docs/` repeat it.

use std::fmt::Write as _;

/// One exit code and its meaning, worded for each program.
pub(crate) struct ExitRow {
    /// The exit code as the help shows it: a number, `N` or `128+N`.
    pub(crate) code: &'static str,
    /// The meaning for rdsend and rdrecv; `None` if they never exit with this code.
    pub(crate) pair: Option<&'static str>,
    /// The meaning for rdpipe; `None` if rdpipe never exits with this code.
    pub(crate) rdpipe: Option<&'static str>,
    /// The meaning for rdcat; `None` if rdcat never exits with this code. rdcat reads files as rdpipe does, and joins
    /// two hosts as rdsend and rdrecv do.
    pub(crate) rdcat: Option<&'static str>,
    /// The meaning for rdcp; `None` if rdcp never exits with this code.
    pub(crate) rdcp: Option<&'static str>,
    /// The meaning for rdforward; `None` if rdforward never exits with this code.
    pub(crate) rdforward: Option<&'static str>,
    /// The meaning for rdperf; `None` if rdperf never exits with this code.
    pub(crate) rdperf: Option<&'static str>,
}

/// The exit codes of all programs. A new program uses these codes and gives none of them a second meaning.
pub(crate) const EXIT_CODES: [ExitRow; 9] = [
    ExitRow {
        code: "0",
        pair: Some("all bytes were delivered, and the other end confirmed that it took them"),
        rdpipe: Some("every stage succeeded"),
        rdcat: Some(
            "every file was written; with a ticket: all bytes of both directions were delivered and confirmed",
        ),
        rdcp: Some("everything was copied"),
        rdforward: Some("the other end has ended in order; with run: the command succeeded"),
        rdperf: Some(
            "everything was measured; with --check: nothing is to repair; with diff: nothing is worse",
        ),
    },
    ExitRow {
        code: "N",
        pair: None,
        rdpipe: Some(
            "the status of the last stage that failed, as in a shell with `pipefail`: 128+N if signal N killed it, 1 if its file could not be read or written",
        ),
        rdcat: None,
        rdcp: None,
        rdforward: Some(
            "with run: the status of the command; 128+N if signal N killed it, 127 if there is no such program, 126 if it cannot be started",
        ),
        rdperf: None,
    },
    ExitRow {
        code: "1",
        pair: Some("this end could not read its input or write its output"),
        rdpipe: Some("rdpipe could not read its input or write its output"),
        rdcat: Some(
            "a file could not be read (it is named), or this end could not read its input or write its output",
        ),
        rdcp: Some("some files were not copied, and each is named; all others were copied"),
        rdforward: Some("a socket cannot listen, on this host or on the other one; it is named"),
        rdperf: Some(
            "with --check: something is to repair, and each finding is named; with diff: a measurement is worse; otherwise a file could not be read or written, or the devices cannot do what a sweep asks for",
        ),
    },
    ExitRow {
        code: "2",
        pair: Some("the command line or the key cannot be used"),
        rdpipe: Some("the command line cannot be used"),
        rdcat: Some("the command line or the ticket cannot be used"),
        rdcp: Some("the command line cannot be used"),
        rdforward: Some("the command line, the key or the ticket cannot be used"),
        rdperf: Some("the command line, the ticket or a report cannot be used"),
    },
    ExitRow {
        code: "3",
        pair: Some("the other end reported a failure; its message is shown"),
        rdpipe: None,
        rdcat: Some("the other end reported a failure; its message is shown"),
        rdcp: None,
        rdforward: None,
        rdperf: None,
    },
    ExitRow {
        code: "4",
        pair: Some("all was sent, but the connection broke before the other end confirmed it"),
        rdpipe: None,
        rdcat: Some("all was sent, but the connection broke before the other end confirmed it"),
        rdcp: None,
        rdforward: None,
        rdperf: None,
    },
    ExitRow {
        code: "128+N",
        pair: Some("signal N ended the program (130 after ^C)"),
        rdpipe: Some("signal N ended rdpipe (130 after ^C)"),
        rdcat: Some("signal N ended rdcat (130 after ^C)"),
        rdcp: Some("signal N ended rdcp (130 after ^C)"),
        rdforward: Some("signal N ended rdforward (130 after ^C)"),
        rdperf: Some("signal N ended rdperf (130 after ^C)"),
    },
    ExitRow {
        code: "141",
        pair: Some("the reader of the output went away, or stopped reading"),
        rdpipe: Some("the reader of the output went away"),
        rdcat: Some("the reader of the output went away, or stopped reading"),
        rdcp: Some("the reader of the output went away"),
        rdforward: None,
        rdperf: Some("the reader of the output went away"),
    },
    ExitRow {
        code: "255",
        pair: Some("no connection, different keys, or a transport that failed"),
        rdpipe: Some("ssh, an agent or the network failed, whatever the stages report"),
        rdcat: Some(
            "ssh, an agent or the network failed, no connection was possible, or the keys differ",
        ),
        rdcp: Some("ssh, an agent or the network failed: what was not yet copied is missing"),
        rdforward: Some(
            "ssh, an agent or the network failed, no connection was possible, or the key or the ticket is another one",
        ),
        rdperf: Some(
            "ssh, an agent or the network failed, no connection was possible, or the ticket is another one",
        ),
    },
];

/// Returns the table of exit codes that ends a `--help`: the rows for which `meaning` returns a text.
pub(crate) fn exit_codes(meaning: impl Fn(&ExitRow) -> Option<&'static str>) -> String {
    let mut text = "Exit codes:".to_owned();
    for row in &EXIT_CODES {
        if let Some(meaning) = meaning(row) {
            let _ = write!(text, "\n  {:<7}", row.code);
            append_wrapped(&mut text, meaning);
        }
    }
    text
}

/// Appends `words` to `text`, whose last line has [`INDENT`] columns, and breaks lines before they exceed [`WIDTH`].
fn append_wrapped(text: &mut String, words: &str) {
    let mut column = INDENT;
    for (number, word) in words.split(' ').enumerate() {
        if number > 0 && column + 1 + word.len() > WIDTH {
            let _ = write!(text, "\n{:INDENT$}", "");
            column = INDENT;
        } else if number > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += word.len();
    }
}

/// The column in which the meanings begin.
const INDENT: usize = 9;

/// The longest line of the table, in columns: as wide as the examples in the help.
const WIDTH: usize = 98;

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::{
        args::{
            RdcatArgs, RdcpArgs, RdforwardArgs, RdperfArgs, RdpipeArgs, RdrecvArgs, RdsendArgs,
        },
        shared::exit::Exit,
    };

    #[test]
    fn every_exit_code_has_a_row_in_the_table() {
        use Exit::{Connection, Local, Ok, ReaderClosed, Remote, Unconfirmed, Usage};
        let exits = [
            Ok,
            Local,
            Usage,
            Remote,
            Unconfirmed,
            ReaderClosed,
            Connection,
        ];
        for exit in exits {
            let code = exit.code().to_string();
            let row = EXIT_CODES.iter().find(|row| row.code == code).expect(&code);
            assert!(row.pair.is_some() && row.rdcat.is_some(), "{exit:?}");
        }
        let numbers = EXIT_CODES
            .iter()
            .filter(|row| row.code.parse::<u8>().is_ok());
        assert_eq!(numbers.count(), exits.len());
        assert_eq!(Exit::Signal(2).code(), 130);
        assert_eq!(Exit::Signal(13).code(), Exit::ReaderClosed.code());
    }

    #[test]
    fn every_help_ends_with_the_table_of_exit_codes() {
        let ends = [
            (RdsendArgs::command(), exit_codes(|row| row.pair)),
            (RdrecvArgs::command(), exit_codes(|row| row.pair)),
            (RdpipeArgs::command(), exit_codes(|row| row.rdpipe)),
            (RdcatArgs::command(), exit_codes(|row| row.rdcat)),
            (RdcpArgs::command(), exit_codes(|row| row.rdcp)),
            (RdforwardArgs::command(), exit_codes(|row| row.rdforward)),
            (RdperfArgs::command(), exit_codes(|row| row.rdperf)),
        ];
        for (mut command, table) in ends {
            let help = command.render_help().to_string();
            assert!(help.trim_end().ends_with(&table), "{help}");
            assert!(table.lines().all(|line| line.len() <= WIDTH), "{table}");
        }
    }

    #[test]
    fn the_pages_in_docs_have_the_same_exit_codes_as_the_help() {
        let pair: fn(&ExitRow) -> Option<&'static str> = |row| row.pair;
        let rdpipe: fn(&ExitRow) -> Option<&'static str> = |row| row.rdpipe;
        let rdcp: fn(&ExitRow) -> Option<&'static str> = |row| row.rdcp;
        let rdforward: fn(&ExitRow) -> Option<&'static str> = |row| row.rdforward;
        let rdperf: fn(&ExitRow) -> Option<&'static str> = |row| row.rdperf;
        let pages = [
            ("streams", include_str!("../../../docs/streams.md"), pair),
            (
                "pipelines",
                include_str!("../../../docs/pipelines.md"),
                rdpipe,
            ),
            ("copy", include_str!("../../../docs/copy.md"), rdcp),
            (
                "forward",
                include_str!("../../../docs/forward.md"),
                rdforward,
            ),
            ("perf", include_str!("../../../docs/perf.md"), rdperf),
        ];
        for (name, page, meaning) in pages {
            let rows = page
                .lines()
                .skip_while(|line| !line.starts_with("| status |"));
            let rows: Vec<&str> = rows
                .skip(2)
                .take_while(|line| line.starts_with('|'))
                .collect();
            let code = |row: &ExitRow| {
                let meaning = meaning(row)?;
                Some(format!("| {} | {meaning} |", row.code))
            };
            let expected: Vec<String> = EXIT_CODES.iter().filter_map(code).collect();
            assert_eq!(rows, expected, "docs/{name}.md");
        }
    }
}
