//! Pairs of rdcat processes that are joined by a ticket.

use std::{
    io::{Read, Write},
    process::{ChildStdin, ChildStdout, Stdio},
    thread::{self, JoinHandle},
};

use super::{Running, Setup, built, program};
use crate::support::pattern::Pattern;

/// Returns rdcat with these arguments, separated by spaces.
pub fn rdcat(arguments: impl AsRef<str>) -> Setup {
    let setup = program(&built("rdcat"), "rdcat");
    setup.args(arguments.as_ref().split_whitespace())
}

/// Returns an rdcat that listens on the loopback address of this machine.
pub fn listener(options: impl AsRef<str>) -> Setup {
    rdcat(format!("--listen --bind 127.0.0.1 {}", options.as_ref()))
}

/// Returns the ticket that a listening rdcat has printed.
#[track_caller]
pub fn ticket(listener: &Running) -> String {
    listener.said("a ticket", |text| {
        let (_, rest) = text.split_once("\n  rdcat ")?;
        Some(rest.split_once('\n')?.0.to_owned())
    })
}

/// Starts a pair whose stdin and stdout are pipes to the test. Returns the listening rdcat first.
#[track_caller]
pub fn pair(listening: &str, dialing: &str) -> [Running; 2] {
    let listener = listener(listening).stdin(Stdio::piped()).start_raw();
    let dialer = rdcat(dialing).arg(ticket(&listener)).stdin(Stdio::piped());
    [listener, dialer.start_raw()]
}

/// Spawns a thread that writes `bytes` bytes of the pattern `number` and closes `stdin`.
pub fn write(mut stdin: ChildStdin, number: u64, bytes: u64) -> JoinHandle<()> {
    thread::spawn(move || {
        let pattern = Pattern::new(number);
        let mut at = 0;
        while at < bytes {
            let most = usize::try_from((bytes - at).min(256 << 10)).expect("it is small");
            let piece = pattern.piece(at, most);
            stdin.write_all(piece).expect("rdcat reads");
            at += piece.len() as u64;
        }
    })
}

/// Spawns a thread that reads to the end, checks every byte against the pattern `number`, and returns the count of
/// bytes.
pub fn check(mut stdout: ChildStdout, number: u64) -> JoinHandle<u64> {
    thread::spawn(move || {
        let pattern = Pattern::new(number);
        let mut buffer = vec![0; 256 << 10];
        let mut at = 0;
        loop {
            let count = stdout.read(&mut buffer).expect("a pipe can be read");
            if count == 0 {
                return at;
            }
            pattern
                .check(at, &buffer[..count])
                .expect("the right bytes");
            at += count as u64;
        }
    })
}

/// Sends patterns of these lengths in both directions at once, compares every byte, and checks that both programs
/// succeed. Returns the stderr of both.
#[track_caller]
pub fn exchange([mut a, mut b]: [Running; 2], bytes: [u64; 2]) -> [String; 2] {
    let writers = [write(a.stdin(), 1, bytes[0]), write(b.stdin(), 2, bytes[1])];
    let readers = [check(b.take_stdout(), 1), check(a.take_stdout(), 2)];
    let ends = [a.end(), b.end()];
    for end in &ends {
        end.exits(0);
    }
    for writer in writers {
        writer.join().expect("all was written");
    }
    assert_eq!(
        readers.map(|reader| reader.join().expect("the right bytes")),
        bytes
    );
    ends.map(|end| end.stderr)
}
