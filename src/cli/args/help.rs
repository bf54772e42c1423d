//! What `--help` teaches beyond the options.

use crate::cli::exit::Exit;

/// The end of `rdrecv --help`.
pub(super) fn rdrecv() -> String {
    format!("{EXAMPLES}\n\n{KEYS}\n\n{}", Exit::TABLE)
}

/// The end of `rdsend --help`.
pub(super) fn rdsend() -> String {
    // The same: whoever reads one of them has to type both.
    rdrecv()
}

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
