//! The parts of `--help` beside the options: examples, segments, keys, tickets, and the table of the exit codes of all
//! programs, which the pages in `docs/` repeat.

use std::fmt::Write as _;

/// Returns the end of `rdrecv --help`: examples, keys and exit codes.
pub(crate) fn rdrecv() -> String {
    format!("{EXAMPLES}\n\n{KEYS}\n\n{}", exit_codes(|row| row.pair))
}

/// The help line of rdpipe's arguments.
pub(crate) const SEGMENT: &str = "Stage of the pipeline: [user@]HOST:COMMAND, or :COMMAND for this machine; `< FILE`, `> FILE` and `>> FILE` are commands too";

/// Returns the end of `rdpipe --help`: examples, segments and exit codes.
pub(crate) fn rdpipe() -> String {
    format!("{RDPIPE}\n\n{}", exit_codes(|row| row.rdpipe))
}

/// Returns the end of `rdcat --help`: files, tickets and exit codes.
pub(crate) fn rdcat() -> String {
    format!("{RDCAT}\n\n{}", exit_codes(|row| row.rdcat))
}

/// The help line of rdcp's operands.
pub(crate) const OPERAND: &str = "SOURCE... and DESTINATION: each a PATH, [user@]HOST:PATH, HOST:PORT:PATH, or - for stdin or stdout";

/// Returns the end of `rdcp --help`: examples, operands and exit codes.
pub(crate) fn rdcp() -> String {
    format!("{RDCP}\n\n{}", exit_codes(|row| row.rdcp))
}

/// The help line of rdforward's operand.
pub(crate) const FORWARD_OPERAND: &str = "The other end: [user@]HOST over ssh, HOST:PORT of rdforward serve, or the TICKET of rdforward --listen";

/// The help line of the operands of `rdforward run`.
pub(crate) const FORWARD_COMMAND: &str =
    "The other end, as without run, and the command with its arguments, which are passed unchanged";

/// Returns the end of `rdforward --help`: examples, forms, what does not need ssh, and exit codes.
pub(crate) fn rdforward() -> String {
    format!("{RDFORWARD}\n\n{}", exit_codes(|row| row.rdforward))
}

/// Returns the end of `rdforward run --help`: examples, what is redirected, and exit codes.
pub(crate) fn rdforward_run() -> String {
    format!("{RDFORWARD_RUN}\n\n{}", exit_codes(|row| row.rdforward))
}

/// Returns the end of `rdforward serve --help`: examples, and what clients may do.
pub(crate) fn rdforward_serve() -> String {
    RDFORWARD_SERVE.to_owned()
}

/// The help line of rdperf's operands.
pub(crate) const PERF_OPERAND: &str = "Hosts to measure, each [user@]HOST, or : for this machine; or the TICKET of rdperf --listen; or diff and two reports";

/// Returns the end of `rdperf --help`: examples, what the figures mean and exit codes.
pub(crate) fn rdperf() -> String {
    format!("{RDPERF}\n\n{}", exit_codes(|row| row.rdperf))
}

/// Returns the end of `rdsh --help`: examples, options of ssh, and exit codes.
pub(crate) fn rdsh() -> String {
    format!("{RDSH}\n\n{}", exit_codes(|row| row.rdsh))
}

/// Returns the end of `rdsend --help`, which equals that of rdrecv.
pub(crate) fn rdsend() -> String {
    // A user of one program types the command lines of both.
    rdrecv()
}

/// The examples and the forms of a segment in `rdpipe --help`.
const RDPIPE: &str = "\
Examples:
  $ rdpipe fs1:'wc -c' < myfile
  $ rdpipe fs1:'< textfile' caps:'tr [:lower:] [:upper:]' fs2:'> TEXTFILE'
  $ rdpipe fs1:'zfs send tank/media@snap' fs2:'tee >(zfs recv tank/media)' \\
           logs:'wc -c >> snap_sizes; echo done'

Segments:
  HOST:COMMAND       runs COMMAND in the login shell on HOST, over ssh; HOST may begin with user@,
                     and an IPv6 address is written in brackets
  :COMMAND           runs COMMAND in the login shell on this machine
  HOST:'< FILE'      sends FILE; in the middle of a pipeline, after all stages before have succeeded
  HOST:'> FILE'      replaces FILE when all stages before have succeeded
  HOST:'>> FILE'     appends to FILE
  rdpipe's stdin feeds the first command, unless it is a terminal; the output of the last command
  appears on rdpipe's stdout.
  The data goes directly from host to host, encrypted unless --encrypt never.";

/// The examples and explanations in `rdcat --help`: files, then tickets.
const RDCAT: &str = "\
Files:
  $ rdcat fs1:/data/big > big                        ssh only starts the far end
  $ rdcat fs1:'my notes' fs1:~/log fs2:/etc/motd     one file after the other, as cat does
  $ rdcat :here there:there | sort
  PATH is passed unchanged: no shell expands it, and it needs no quoting for the other host. A
  relative PATH starts in the directory where a login starts, and that of :PATH in the current
  directory; ~/ is the home directory. HOST may begin with user@, and an IPv6 address is written
  in brackets. A file that cannot be opened is named in a message and left out.

Tickets, without ssh:
  [hostA] $ rdcat -l --recv > copy
  rdcat: hostA: to connect, type on the other host:
    rdcat rdt1...
  [hostB] $ rdcat rdt1... < file
  What enters one rdcat comes out of the other, in both directions at once. Each direction ends
  with its input. --send or --recv, on either host, uses one direction only: use it where stdin is
  a terminal.
  A ticket holds the addresses of the host (or that of -H), the port and a key. It is good for one
  connection. It is a secret: rdcat overwrites it in its argument list at the start, so ps does not
  show it. The history of the shell has it, unless RDCAT_TICKET or --ticket-file passes it.

The data goes directly from host to host, encrypted unless --encrypt never.";

/// The examples and the forms of an operand in `rdcp --help`.
const RDCP: &str = "\
Examples:
  $ rdcp -aP /data/set fs2:/data/            makes /data/set on fs2, with all metadata
  $ rdcp -aP fs1:/data/set fs2:/data/        from fs1 to fs2, directly
  $ rdcp -r fs1:results/. results            what is in results on fs1, to results here
  $ rdcp -aPT --delete --skip-same /home backup:/mirror/home
  $ rdcp -P --resume hub:/models/big.safetensors /models/
  $ rdcp --checksum fs1:/data/disk.img . > disk.xxh64
  $ pg_dump shop | rdcp - fs2:/backup/shop.sql

Without ssh, a server and its clients:
  store$ rdcp --new-key 'daq1 append' --key-file keys | ssh daq1 'umask 077; cat > mykey'
  store$ rdcp --serve --root /srv/raw --key-file keys
  daq1$  rdcp -P --key-file mykey --remove-source-files /daq/*.evio store:10470:/run042/
  Each client has a line NAME KEY [ro|wo|append] [SUBDIR] of the server's file: it may only read,
  only write, or only add files, below SUBDIR of --root. Without a word it may do everything.

Operands:
  HOST:PATH     a path on HOST, over ssh; HOST may begin with user@, and an IPv6 address is written
                in brackets. A relative PATH starts where a login starts; ~/ is the home directory;
                no shell expands PATH
  HOST:PORT:PATH  a path of the server that listens on PORT of HOST; PATH begins at its --root
  PATH          a path of this machine, if it has no colon or a / before it; :PATH is one too
  -             stdin as the only source, or stdout as DESTINATION: one stream of bytes
  As with cp, an existing directory receives each SOURCE under its own name, and DIR/. stands for
  what is in DIR. With -P and a / at the end, the directory is made if it is missing. A file under
  its final name is whole: it is written under a temporary name first. A file that cannot be copied
  is named in a message, and the others are copied.
  The data goes directly from host to host, encrypted unless --encrypt never.";

/// The examples and the forms of a forwarding in `rdforward --help`.
const RDFORWARD: &str = "\
Examples:
  $ rdforward -L 5432:localhost:5432 db1      # psql -h localhost reaches the postgres of db1
  $ rdforward -L 8080:web:80 -L 6379:/run/redis.sock gate     # web is reached from gate
  $ rdforward -R 9000:localhost:3000 gate     # port 9000 of gate leads to port 3000 of this host
  $ rdforward -D 1080 gate                    # SOCKS5: curl -x socks5h://localhost:1080 web
  $ rdforward run db1 -- psql -h db1 shop     # only psql and its children use the tunnel

Without ssh:
  [hostA] $ rdforward --listen --allow 5432
  rdforward: hostA: to connect, type on the other host:
    rdforward -L 5432:localhost:5432 rdt1...
  [hostA] $ rdforward serve --allow 5432,6379 --key-file keys
  [hostB] $ rdforward --key-file mykey -L 5432:localhost:5432 hostA:10471
  A ticket is a secret, and is good for one connection. RDFORWARD_TICKET or --ticket-file passes
  it, too.

Values of -L and -R, as in ssh:
  [BIND:]PORT:HOST:PORT   listens on PORT, and connects to HOST:PORT; the end that connects
                          resolves HOST
  [BIND:]PORT:/PATH       connects to a UNIX socket
  /PATH:HOST:PORT         listens on a UNIX socket; only one left behind is replaced
  /PATH:/PATH             both
  BIND is * or nothing for all addresses, or an address; without BIND and colon, and with localhost,
  only programs of the host that listens can connect. An IPv6 address is written in brackets.

All connections share one stream, over RDMA if both hosts have it. It is encrypted unless
--encrypt never.";

/// The examples and the limits in `rdforward run --help`.
const RDFORWARD_RUN: &str = "\
Examples:
  $ rdforward run db1 -- psql -h db1 shop
  $ rdforward run db1 -- pgbench -h db1 -c 50 -T 60 shop
  $ rdforward run --key-file mykey db1:10471 -- redis-cli -h db1
  $ rdforward run cache1 -- sh -c 'redis-cli -h cache1 ping; redis-benchmark -h cache1'
  $ RDFORWARD_TICKET=rdt1... rdforward run -- psql -h db1 shop

Connections:
  Where the command or a child of it connects a TCP socket to an address of HOST, the connection
  goes through the tunnel. All other sockets, and all other system calls, are untouched. The
  options of rdforward stand before HOST; what follows is the command.
  Not redirected: io_uring, TCP fast open, and programs that gain privileges (set-user-ID).
  getpeername() shows an address of this host.";

/// The examples and the limits in `rdforward serve --help`.
const RDFORWARD_SERVE: &str = "\
Examples:
  store$ rdcp --new-key app1 --key-file keys | ssh app1 'umask 077; cat > mykey'
  store$ rdforward serve --allow 5432,6379-6400 --key-file keys
  app1$  rdforward --key-file mykey -L 5432:localhost:5432 store:10471
  app1$  rdforward run --key-file mykey store:10471 -- psql -h store shop

What clients may do:
  --allow 5432         connect to port 5432 of localhost: 127.0.0.1 and ::1 of this host
  --allow 6379-6400    the same with a range of ports
  --allow db:5432      connect to port 5432 of db, if the client names it so; an IPv6 address is
                       written in brackets
  Nothing else: no other host, no UNIX socket, and no -R. Each client has a line NAME KEY of the key
  file; a line can be added and removed while the server runs. A line that limits a client of
  rdcp --serve is for copies only.";

/// The examples and the meaning of the figures in `rdperf --help`.
const RDPERF: &str = "\
Examples:
  $ rdperf fs2                         this machine against fs2: checks, bandwidth, latency
  $ rdperf --check fs1 fs2 fs3         what is wrong between these hosts, and how to repair it
  $ rdperf fs1 fs2 fs3                 every pair, as a matrix
  $ rdperf --read fs1:/data/big --write fs2:/data fs1 fs2     which end is the limit
  $ rdperf --pingpong fs2              round trips per second over TCP and RDMA
  $ rdperf --sweep inline fs2          SENDs of 2 bytes to 1 KiB over RDMA, inline and not
  $ rdperf --json=before fs2; ...; rdperf --json=after fs2; rdperf diff before after
  $ rdperf --plot fs2.svg --report fs2.html fs2               pictures, and the report as a page
  $ rdperf draw before --plot before.svg

Without ssh:
  [hostA] $ rdperf --listen
  rdperf: hostA: to measure, type on the other host:
    rdperf rdt1...
  A ticket is a secret, and is good for one run. RDPERF_TICKET or --ticket-file passes it, too.

Sweeps measure RDMA operations of many sizes, times there and back and throughput:
  inline   SEND, 2 B to 1 KiB: bytes in the work request or not, and where the curves cross
  verb     WRITE, READ and SEND, 2 B to 128 KiB
  poll     SEND, 2 B to 32 KiB: busy polling and completion events
  signal   WRITE, 8 B to 32 KiB: a completion for each operation, or for one in 4, 16 and 64
  chunk    WRITE, 4 KiB to 16 MiB: one at a time, and 16
  Settings, alone or after a name: size=1:8M:*2, verb=write,read,send, inline=0,220 (the most bytes
  in a work request; all: every operation), poll=busy,event, signal=1,64, depth=1,128.

One host is measured against this machine; several hosts are measured in pairs, host to host. Every
run begins with the checks, and ends with a sentence about what limits the hosts. One way is from
the first host to the second. A run sends as much data as the network can carry: with -p, over the
ports that a firewall has open.";

/// The examples and the options of ssh in `rdsh --help`.
const RDSH: &str = "\
Examples:
  $ rsync -aHAX --delete -e rdsh /data/ backup:/data/
  $ GIT_SSH_COMMAND=rdsh git clone hub:/srv/big.git
  $ tar -c set | rdsh -p 2222 me@store 'tar -x -C /srv'
  $ borg create --rsh rdsh store:/srv/repo::today /home
  $ ln -s \"$(command -v rdsh)\" ~/rdsh/ssh
  $ PATH=~/rdsh:$PATH syncoid tank/media store:tank/media

Options of ssh:
  -l -p -i -F -J -o -c -m -C -q -v -4 -6 -A -a -X -x -K -k -E -I -S -b -B -M -y
                 go to the ssh that starts the command; -c and -C are not for the data
  -n             gives the command no stdin
  -t -s -G -V -Q -O -W
                 run ssh itself in place of rdsh
  -L -R -D -N -w -f, and no COMMAND
                 are refused: use rdforward, or ssh
  The variable RDSH_OPTIONS has options that stand before all others: '--port 7691-7699', say.
  A link to rdsh with the name ssh is rdsh too, for programs that run no other: it runs the next
  ssh in PATH for what it does not do itself.
  The data goes directly to HOST, encrypted unless --encrypt never.";

/// The examples in the help of rdsend and rdrecv: with a key of the user's choice, and with a key that rdrecv makes.
const EXAMPLES: &str = "\
Example; start the receiver first:
  [hostB] $ rdrecv 12345 secret_key > mycopy
  [hostA] $ rdsend hostB 12345 secret_key < myfile

With a key that rdrecv makes and prints:
  [hostB] $ rdrecv 12345 -o mycopy
  [hostA] $ RDPIPE_KEY=rdk1... rdsend hostB 12345 -i myfile";

const KEYS: &str = "\
Keys:
  Both ends need the same key. They take it from the first of these places:
    KEY              an argument; overwritten at the start, so ps does not show it
    --key-file FILE  the first line of FILE; give FILE the mode 0600
    RDPIPE_KEY       a variable of the environment; overwritten at the start too
  Without a key, rdrecv makes one and prints the command for the other host.
  Programs without the key cannot connect. The data is encrypted unless --encrypt never.";

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
    /// The meaning for rdsh; `None` if only a command gives it. All codes but 255 are those of the command.
    pub(crate) rdsh: Option<&'static str>,
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
        rdsh: Some("the command succeeded, and all of its output was written"),
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
        rdsh: Some("the status of the command"),
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
            "with --check: something is to repair, and each finding is named; with --expect: streams carry less; with diff: a measurement is worse; otherwise a file could not be read or written, or the devices cannot do what a sweep asks for",
        ),
        rdsh: None,
    },
    ExitRow {
        code: "2",
        pair: Some("the command line or the key cannot be used"),
        rdpipe: Some("the command line cannot be used"),
        rdcat: Some("the command line or the ticket cannot be used"),
        rdcp: Some("the command line cannot be used"),
        rdforward: Some("the command line, the key or the ticket cannot be used"),
        rdperf: Some("the command line, the ticket or a report cannot be used"),
        rdsh: None,
    },
    ExitRow {
        code: "3",
        pair: Some("the other end reported a failure; its message is shown"),
        rdpipe: None,
        rdcat: Some("the other end reported a failure; its message is shown"),
        rdcp: None,
        rdforward: None,
        rdperf: None,
        rdsh: None,
    },
    ExitRow {
        code: "4",
        pair: Some("all was sent, but the connection broke before the other end confirmed it"),
        rdpipe: None,
        rdcat: Some("all was sent, but the connection broke before the other end confirmed it"),
        rdcp: None,
        rdforward: None,
        rdperf: None,
        rdsh: None,
    },
    ExitRow {
        code: "128+N",
        pair: Some("signal N ended the program (130 after ^C)"),
        rdpipe: Some("signal N ended rdpipe (130 after ^C)"),
        rdcat: Some("signal N ended rdcat (130 after ^C)"),
        rdcp: Some("signal N ended rdcp (130 after ^C)"),
        rdforward: Some("signal N ended rdforward (130 after ^C)"),
        rdperf: Some("signal N ended rdperf (130 after ^C)"),
        rdsh: None,
    },
    ExitRow {
        code: "141",
        pair: Some("the reader of the output went away, or stopped reading"),
        rdpipe: Some("the reader of the output went away"),
        rdcat: Some("the reader of the output went away, or stopped reading"),
        rdcp: Some("the reader of the output went away"),
        rdforward: None,
        rdperf: Some("the reader of the output went away"),
        rdsh: None,
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
        rdsh: Some(
            "ssh, an agent or the network failed, a signal killed the command or rdsh, or the command line cannot be used; so ssh ends, too",
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
    use std::{env, process::Command};

    use clap::CommandFactory;

    use super::*;
    use crate::cli::{
        args::{
            RdcatArgs, RdcpArgs, RdforwardArgs, RdperfArgs, RdpipeArgs, RdrecvArgs, RdsendArgs,
            RdshArgs,
        },
        shared::run::Exit,
    };

    #[test]
    fn help_shows_examples_keys_and_exit_codes() {
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

    /// Runs `prints_help` in another process, because a test cannot safely change its own environment.
    #[test]
    fn help_never_shows_the_key() {
        let output = Command::new(env::current_exe().unwrap())
            .args([
                "--exact",
                "--nocapture",
                "cli::args::help::tests::prints_help",
            ])
            .env("RDPIPE_KEY", "keep_this_secret")
            .output()
            .unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        assert!(help.contains("Exit codes:") && help.contains("RDPIPE_KEY"));
        assert!(!help.contains("keep_this_secret"));
    }

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
            (RdshArgs::definition(), exit_codes(|row| row.rdsh)),
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
        let rdsh: fn(&ExitRow) -> Option<&'static str> = |row| row.rdsh;
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
            ("rdsh", include_str!("../../../docs/rdsh.md"), rdsh),
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
