//! The one table of options: what a name means in every program that has it.

/// An option of the programs. Its name, its letter and its meaning are the same wherever it appears.
pub(crate) struct OptionRow {
    /// The long name, without dashes.
    pub(crate) long: &'static str,
    /// The letter, if the option has one.
    pub(crate) short: Option<char>,
    /// What stands behind it; none for a flag.
    pub(crate) value: Option<&'static str>,
    /// How the help of every program begins that has the option. What a program adds follows.
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

/// Every option of every program, in the order of the alphabet. A new program takes its options from here; it may
/// add rows, and gives no name and no letter a second meaning.
pub(crate) const OPTIONS: &[OptionRow] = &[
    row(
        "addr",
        None,
        Some("HOST=ADDR[,ADDR]"),
        "Reach HOST for the data at these addresses only",
    ),
    row("bind", None, Some("ADDR"), "Listen on this address only"),
    row("chunk", None, Some("SIZE"), "Bytes in one chunk"),
    row(
        "connect-timeout",
        None,
        Some("SECS"),
        "Go on trying to connect for this long",
    ),
    row(
        "depth",
        None,
        Some("N"),
        "Chunks that may be on their way at once",
    ),
    row("device", None, Some("NAME"), "Use only this device"),
    row(
        "dry-run",
        Some('n'),
        None,
        "Print what would be done, and do nothing",
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
        "here",
        Some('H'),
        Some("ADDR"),
        "Address at which other hosts find this machine",
    ),
    row(
        "ib-port",
        None,
        Some("N"),
        "Use only this port of the device",
    ),
    row("input", Some('i'), Some("FILE"), "Input file"),
    row("json", None, None, "Report in JSON"),
    row(
        "key-file",
        None,
        Some("FILE"),
        "Read the key from the first line of FILE",
    ),
    row(
        "listen",
        Some('l'),
        None,
        "Wait for a peer, and print the ticket that lets it in",
    ),
    row("output", Some('o'), Some("FILE"), "Output file"),
    row(
        "pkey-index",
        None,
        Some("N"),
        "Row of the port's partition key table",
    ),
    row(
        "port",
        Some('p'),
        Some("PORT[-PORT]"),
        "Listen for the data on this port, or one of these",
    ),
    row("quiet", Some('q'), None, "Print errors only"),
    row("recv", None, None, "Receive only"),
    row(
        "remote-rdpipe",
        None,
        Some("PATH"),
        "Where rdpipe is on the other hosts",
    ),
    row(
        "rsh",
        None,
        Some("CMD"),
        "Reach other hosts with this command instead of ssh",
    ),
    row("send", None, None, "Send only"),
    row(
        "service-level",
        None,
        Some("N"),
        "Service level of the packets",
    ),
    row("ssh-opt", None, Some("OPT"), "Option for ssh"),
    row(
        "ticket-file",
        None,
        Some("FILE"),
        "Read the ticket from the first line of FILE",
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
        "Traffic class of the packets",
    ),
    row(
        "transport",
        None,
        Some("auto|rdma|tcp"),
        "What carries the data",
    ),
    row("verbose", Some('v'), None, "Print how it went"),
];

/// Where a program departs from [`OPTIONS`] since before there was a table: the program, the option, its value there.
/// rdpipe writes its report to a file, because its stderr carries what the commands say.
const DEPARTURES: &[(&str, &str, Option<&str>)] = &[("rdpipe", "json", Some("FILE"))];

#[cfg(test)]
mod tests {
    use clap::{Arg, Command, CommandFactory};

    use super::*;
    use crate::cli::args::{RdcatArgs, RdpipeArgs, RdrecvArgs, RdsendArgs};

    fn programs() -> [Command; 4] {
        [
            RdcatArgs::command(),
            RdpipeArgs::command(),
            RdrecvArgs::command(),
            RdsendArgs::command(),
        ]
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
    fn a_name_means_the_same_in_every_program() {
        for command in programs() {
            let options = command.get_arguments().filter(|arg| !arg.is_positional());
            for option in options.filter(|arg| !arg.is_hide_set()) {
                check(command.get_name(), option);
            }
        }
    }

    #[test]
    fn every_row_is_used_and_stands_once() {
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
