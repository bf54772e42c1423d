//! The table of the options of all programs. A name has the same meaning in every program.
//!
//! It is compiled for tests only: a test compares the `--help` of every program with it. The options themselves are in the
//! `args.rs` of each program.

/// An option of the programs. Its name, its letter and its meaning are the same in every program that has it.
pub(crate) struct OptionRow {
    /// The long name, without dashes.
    pub(crate) long: &'static str,
    /// The letter of the short form; `None` if the option has only its long form.
    pub(crate) short: Option<char>,
    /// The name of the option's value in the help; `None` for a flag.
    pub(crate) value: Option<&'static str>,
    /// The beginning of the option's help line in every program. A program may append to it.
    pub(crate) does: &'static str,
}

const fn row(
    long: &'static str,
    short: Option<char>,
    value: Option<&'static str>,
    does: &'static str,
) -> OptionRow {
    OptionRow {
        long,
        short,
        value,
        does,
    }
}

/// The options of all programs, in alphabetical order. A new program uses these options. It may add rows, but gives no
/// name and no letter a second meaning.
pub(crate) const OPTIONS: &[OptionRow] = &[
    row(
        "addr",
        None,
        Some("HOST=ADDR[,ADDR]"),
        "Connect to HOST for the data at these addresses only",
    ),
    row(
        "allow",
        None,
        Some("[HOST:]PORT[-PORT]"),
        "Let the other end connect to these ports only",
    ),
    row(
        "archive",
        Some('a'),
        None,
        "Copy directories, and keep all metadata",
    ),
    row("bind", None, Some("ADDR"), "Listen on this address only"),
    row(
        "busy-poll",
        None,
        Some("US"),
        "Poll this many microseconds for a small message before waiting for an event",
    ),
    row(
        "bwlimit",
        None,
        Some("RATE"),
        "Send at most this many bytes per second",
    ),
    row(
        "check",
        None,
        None,
        "Check the hosts and the network only, and measure nothing",
    ),
    row(
        "checksum",
        None,
        Some("xxh64|sha256"),
        "Write a digest of each copied file to stdout",
    ),
    row("chunk", None, Some("SIZE"), "Set the size of a chunk"),
    row(
        "connect-timeout",
        None,
        Some("SECS"),
        "Repeat failed attempts to connect for this long",
    ),
    row("csv", None, None, "Report in CSV"),
    row(
        "delete",
        None,
        None,
        "Remove what the copied directories have at DESTINATION and not at the source",
    ),
    row(
        "depth",
        None,
        Some("N"),
        "Set the number of chunks in flight",
    ),
    row("device", None, Some("NAME"), "Use only this device"),
    row(
        "dry-run",
        Some('n'),
        None,
        "Print what would be done, and do nothing",
    ),
    row(
        "dynamic",
        Some('D'),
        Some("[BIND:]PORT"),
        "Listen here for SOCKS5 clients, and connect each from the other host",
    ),
    row(
        "exclude",
        None,
        Some("PATTERN"),
        "Leave out what matches this pattern",
    ),
    row(
        "fsync",
        None,
        None,
        "fsync output files before reporting success",
    ),
    row(
        "gid-index",
        None,
        Some("N"),
        "Use only this row of the port's GID table",
    ),
    row(
        "grace",
        None,
        Some("SECS"),
        "Give running copies this much time after SIGTERM",
    ),
    row(
        "here",
        Some('H'),
        Some("ADDR"),
        "Tell other hosts to connect to this machine at ADDR",
    ),
    row(
        "ib-port",
        None,
        Some("N"),
        "Use only this port of the device",
    ),
    row(
        "include",
        None,
        Some("PATTERN"),
        "Copy what matches this pattern although an earlier --exclude does",
    ),
    row(
        "input",
        Some('i'),
        Some("FILE"),
        "Read FILE instead of stdin",
    ),
    row("json", None, None, "Report in JSON"),
    row(
        "key-file",
        None,
        Some("FILE"),
        "Read the key from the first line of FILE",
    ),
    row("lanes", Some('j'), Some("N"), "Use this many lanes"),
    row(
        "listen",
        Some('l'),
        None,
        "Print a ticket, and wait for one peer that has it",
    ),
    row("listen-port", None, Some("PORT"), "Listen on this port"),
    row(
        "local",
        Some('L'),
        Some("[BIND:]PORT:HOST:PORT"),
        "Listen here, and connect from the other host",
    ),
    row(
        "max-clients",
        None,
        Some("N"),
        "Serve at most this many copies at a time",
    ),
    row(
        "max-delete",
        None,
        Some("N"),
        "Remove at most N entries with --delete",
    ),
    row(
        "measure",
        None,
        Some("bandwidth,latency,connect"),
        "Measure only these",
    ),
    row(
        "memory",
        Some('m'),
        Some("SIZE"),
        "Use at most this much memory for the data of all copies",
    ),
    row(
        "metrics",
        None,
        Some("FILE"),
        "Write counts and rates to FILE every 10 seconds",
    ),
    row(
        "new-key",
        None,
        Some("NAME"),
        "Print a line for the key file of a server",
    ),
    row(
        "no-clobber",
        None,
        None,
        "Keep every file that DESTINATION has already",
    ),
    row(
        "no-target-directory",
        Some('T'),
        None,
        "Treat DESTINATION as the name of the copy",
    ),
    row(
        "output",
        Some('o'),
        Some("FILE"),
        "Write FILE instead of stdout",
    ),
    row(
        "parents",
        Some('P'),
        None,
        "Make the missing parent directories of DESTINATION",
    ),
    row(
        "pingpong",
        None,
        None,
        "Print round trips per second over TCP and RDMA",
    ),
    row(
        "pkey-index",
        None,
        Some("N"),
        "Use this row of the port's partition key table",
    ),
    row(
        "plot",
        None,
        Some("FILE.svg"),
        "Draw what was measured between two hosts",
    ),
    row(
        "port",
        Some('p'),
        Some("PORT[-PORT]"),
        "Listen for the data on this port, or on one of these",
    ),
    row("quiet", Some('q'), None, "Print errors only"),
    row(
        "read",
        None,
        Some("[HOST:]PATH"),
        "Measure how fast PATH can be read on a host",
    ),
    row(
        "read-only",
        None,
        None,
        "Let clients read files and not change them",
    ),
    row(
        "recursive",
        Some('r'),
        None,
        "Copy directories with all that is in them",
    ),
    row("recv", None, None, "Receive only"),
    row(
        "remote",
        Some('R'),
        Some("[BIND:]PORT:HOST:PORT"),
        "Listen on the other host, and connect from here",
    ),
    row(
        "remote-rdpipe",
        None,
        Some("PATH"),
        "Run PATH as rdpipe on the other hosts",
    ),
    row(
        "remove-source-files",
        None,
        None,
        "Remove each file of the source after the destination has confirmed it",
    ),
    row(
        "report",
        None,
        Some("FILE.html"),
        "Write the whole report, with its pictures, as one page",
    ),
    row(
        "resume",
        None,
        None,
        "Continue large files that an earlier run left unfinished",
    ),
    row("root", None, Some("DIR"), "Serve this directory"),
    row("rsh", None, Some("CMD"), "Use this command instead of ssh"),
    row(
        "runs",
        None,
        Some("N"),
        "Repeat each measurement this many times",
    ),
    row("send", None, None, "Send only"),
    row(
        "serve",
        Some('s'),
        None,
        "Serve the files of a directory to clients that have a key",
    ),
    row(
        "service-level",
        None,
        Some("N"),
        "Set the service level of the packets",
    ),
    row(
        "size",
        None,
        Some("SIZE,..."),
        "Send messages of these sizes there and back",
    ),
    row(
        "skip-same",
        None,
        None,
        "Skip a file whose size and time of modification are the same at DESTINATION",
    ),
    row("ssh-opt", None, Some("OPT"), "Pass this option to ssh"),
    row(
        "streams",
        None,
        Some("N,..."),
        "Use these numbers of streams at a time for bandwidth",
    ),
    row(
        "sweep",
        None,
        Some("NAME|SETTINGS"),
        "Measure RDMA operations of many sizes",
    ),
    row(
        "threshold",
        None,
        Some("PERCENT"),
        "Count changes of more than this many percent",
    ),
    row(
        "ticket-file",
        None,
        Some("FILE"),
        "Read the ticket from the first line of FILE",
    ),
    row(
        "time",
        None,
        Some("SECS"),
        "Run each measurement for this long",
    ),
    row(
        "timeout",
        None,
        Some("SECS"),
        "Treat the peer as dead after this much silence",
    ),
    row(
        "traffic-class",
        None,
        Some("N"),
        "Set the traffic class of the packets",
    ),
    row(
        "transport",
        None,
        Some("auto|rdma|tcp"),
        "Choose what carries the data",
    ),
    row(
        "update",
        None,
        None,
        "Replace a file only if the source's file was modified later",
    ),
    row("verbose", Some('v'), None, "Print how the run went"),
    row(
        "write",
        None,
        Some("[HOST:]PATH"),
        "Measure how fast a new file in the directory PATH can be written on a host",
    ),
    row(
        "write-only",
        None,
        None,
        "Let clients write files and not read them",
    ),
];

/// The exceptions to [`OPTIONS`], which are older than the table: the program, the option, and the name of its value there.
/// rdpipe writes its report to a file, because its stderr carries the stderr of the commands.
const DEPARTURES: &[(&str, &str, Option<&str>)] = &[("rdpipe", "json", Some("FILE"))];

#[cfg(test)]
mod tests {
    use clap::{Arg, Command, CommandFactory};

    use super::*;
    use crate::cli::args::{
        RdcatArgs, RdcpArgs, RdforwardArgs, RdperfArgs, RdpipeArgs, RdrecvArgs, RdsendArgs,
    };

    /// Returns the programs, and the forms of programs that begin with a word.
    fn programs() -> Vec<Command> {
        let mut programs = vec![
            RdcatArgs::command(),
            RdcpArgs::command(),
            RdforwardArgs::command(),
            RdperfArgs::command(),
            RdpipeArgs::command(),
            RdrecvArgs::command(),
            RdsendArgs::command(),
        ];
        let forms = programs.iter().flat_map(Command::get_subcommands);
        let forms: Vec<Command> = forms.cloned().collect();
        programs.extend(forms);
        programs
    }

    fn value(option: &Arg) -> Option<String> {
        let takes_one = option.get_action().takes_values();
        let names = option.get_value_names().unwrap_or_default();
        takes_one.then(|| names.iter().map(ToString::to_string).collect())
    }

    fn check(program: &str, option: &Arg) {
        let long = option.get_long().expect("every option has a long name");
        let found = OPTIONS.iter().find(|row| row.long == long);
        let row = found.unwrap_or_else(|| panic!("{program} --{long} has no row in the table"));
        assert_eq!(option.get_short(), row.short, "{program} --{long}");
        let departure = DEPARTURES
            .iter()
            .find(|(p, l, _)| (*p, *l) == (program, long));
        let expected = departure.map_or(row.value, |(_, _, value)| *value);
        assert_eq!(value(option).as_deref(), expected, "{program} --{long}");
        let help = option
            .get_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        assert!(help.starts_with(row.does), "{program} --{long}: {help}");
    }

    #[test]
    fn an_option_has_the_same_name_and_meaning_in_every_program() {
        for command in programs() {
            let options = command.get_arguments().filter(|arg| !arg.is_positional());
            for option in options.filter(|arg| !arg.is_hide_set()) {
                check(command.get_name(), option);
            }
        }
    }

    #[test]
    fn every_row_is_used_and_appears_once() {
        let longs: Vec<&str> = OPTIONS.iter().map(|row| row.long).collect();
        assert!(longs.is_sorted(), "{longs:?}");
        let mut shorts: Vec<char> = OPTIONS.iter().filter_map(|row| row.short).collect();
        shorts.sort_unstable();
        assert!(
            shorts.windows(2).all(|pair| pair[0] != pair[1]),
            "{shorts:?}"
        );
        let commands = programs();
        for long in longs {
            let has = |command: &Command| {
                let mut arguments = command.get_arguments();
                arguments.any(|arg| arg.get_long() == Some(long))
            };
            assert!(commands.iter().any(has), "no program has --{long}");
        }
    }
}
