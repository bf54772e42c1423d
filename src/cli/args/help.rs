//! What `--help` teaches beyond the options.

use super::exit_codes::exit_codes;

/// The end of `rdrecv --help`.
pub(crate) fn rdrecv() -> String {
    format!("{EXAMPLES}\n\n{KEYS}\n\n{}", exit_codes(|row| row.pair))
}

/// The arguments of `rdpipe`.
pub(crate) const SEGMENT: &str = "What runs where: [user@]HOST:COMMAND, or :COMMAND for this machine; `< FILE`, `> FILE` and `>> FILE` are commands, too";

/// The end of `rdpipe --help`.
pub(crate) fn rdpipe() -> String {
    format!("{RDPIPE}\n\n{}", exit_codes(|row| row.rdpipe))
}

/// The end of `rdcat --help`.
pub(crate) fn rdcat() -> String {
    format!("{RDCAT}\n\n{}", exit_codes(|row| row.rdcat))
}

/// The end of `rdsend --help`.
pub(crate) fn rdsend() -> String {
    // The same: whoever reads one of them has to type both.
    rdrecv()
}

/// The examples of the manual, and what else one must know.
const RDPIPE: &str = "\
Examples:
  $ rdpipe fs1:'wc -c' < myfile
  $ rdpipe fs1:'< textfile' caps:'tr [:lower:] [:upper:]' fs2:'> TEXTFILE'
  $ rdpipe fs1:'zfs send tank/media@snap' fs2:'tee >(zfs recv tank/media)' \\
           logs:'wc -c >> snap_sizes; echo done'

Segments:
  HOST:COMMAND       runs in the login shell on HOST, over ssh; [user@] may stand in front, and an
                     IPv6 address in brackets
  :COMMAND           runs on this machine
  HOST:'< FILE'      sends FILE; in the middle of a pipeline once all before it has succeeded
  HOST:'> FILE'      writes FILE, which is replaced only when all before it has succeeded
  HOST:'>> FILE'     appends to FILE
  What comes in goes to the first, unless it is a terminal; what the last gives comes out.
  The data goes from host to host. It is checked, but not encrypted.";

/// Files, then tickets.
const RDCAT: &str = "\
Files:
  $ rdcat fs1:/data/big > big                        over ssh, which only brings up the far end
  $ rdcat fs1:'my notes' fs1:~/log fs2:/etc/motd     one after the other, as cat would
  $ rdcat :here there:there | sort
  PATH is taken as it is: no shell sees it, and nothing in it needs quoting for the other host.
  It begins where a login begins, or with `:` in this directory; ~/ is the home directory. [user@]
  may stand in front of HOST, and an IPv6 address in brackets. What cannot be read is named, and
  the others still come.

Tickets, without ssh:
  [hostA] $ rdcat -l --recv > copy
  rdcat: hostA: to connect, type on the other host:
    rdcat rdt1...
  [hostB] $ rdcat rdt1... < file
  What is typed or piped into one comes out of the other, both ways; each way ends with its input.
  --send or --recv, on either host, make it one way: stdin or stdout of a terminal is left alone.
  A ticket holds addresses (-H: this one), port and key, and is good for one connection. It is a
  secret: as an argument it is hidden from ps once rdcat runs; RDCAT_TICKET in the environment and
  --ticket-file are quieter.

The data goes from host to host. It is checked, but not encrypted.";

/// The example of the manual, then the same without a key to think of.
const EXAMPLES: &str = "\
Example, the receiver first:
  [hostB] $ rdrecv 12345 secret_key > mycopy
  [hostA] $ rdsend hostB 12345 secret_key < myfile

The same with a key that rdrecv makes and shows:
  [hostB] $ rdrecv 12345 -o mycopy
  [hostA] $ RDPIPE_KEY=rdk1... rdsend hostB 12345 -i myfile";

/// Where keys come from.
const KEYS: &str = "\
Keys:
  Both ends need the same key. It is taken from the first of these:
    KEY              as an argument; hidden from ps once the program runs
    --key-file FILE  its first line; nobody else should be able to read the file
    RDPIPE_KEY       from the environment
  Without any, rdrecv makes a key and tells what to type on the other host.
  The key keeps strangers out. The data is checked, but not encrypted.";

#[cfg(test)]
mod tests {
    use std::{env, process::Command};

    use clap::CommandFactory;

    use crate::cli::args::{RdrecvArgs, RdsendArgs};

    #[test]
    fn help_teaches() {
        for mut command in [RdrecvArgs::command(), RdsendArgs::command()] {
            let help = command.render_long_help().to_string();
            for taught in [
                "rdrecv 12345 secret_key > mycopy",
                "rdsend hostB 12345 secret_key < myfile",
                "--key-file",
                "RDPIPE_KEY",
                "Exit codes:",
                "  255    no connection",
                "--version",
            ] {
                assert!(help.contains(taught), "{taught}:\n{help}");
            }
            let short = command.render_help().to_string();
            assert!(short.contains("Exit codes:"));
        }
    }

    #[test]
    fn prints_help() {
        println!("{}", RdrecvArgs::command().render_long_help());
    }

    /// In a process of its own, because a test cannot safely change its environment.
    #[test]
    fn help_never_shows_the_key() {
        let output = Command::new(env::current_exe().unwrap())
            .args([
                "--exact",
                "--nocapture",
                "cli::args::help::tests::prints_help",
            ])
            .env("RDPIPE_KEY", "tell_nobody_this")
            .output()
            .unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        assert!(help.contains("Exit codes:") && help.contains("RDPIPE_KEY"));
        assert!(!help.contains("tell_nobody_this"));
    }
}
