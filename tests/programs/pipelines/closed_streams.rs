//! Standard streams that are closed when a program starts: a use of one is an error, and work without it is not.

use super::{RDCAT, RDCP, RDFORWARD, RDPERF, RDPIPE, RDRECV, RDSEND};
use crate::support::programs::{End, Place, program, receiver};

/// Runs a program in the directory of `place`, with the standard stream closed that `redirection` closes.
#[track_caller]
fn run(place: &Place, redirection: &str, path: &str, arguments: &[&str]) -> End {
    let script = format!("cd \"$1\" && shift && exec \"$@\" {redirection}");
    let setup = program("/bin/sh", "a shell").args(["-c", &script, "sh"]);
    let setup = setup.arg(place.directory()).arg(path).args(arguments);
    setup.env("SHELL", "/bin/sh").start().end()
}

#[test]
fn a_standard_stream_of_the_agent_is_no_file_of_a_stage() {
    let place = Place::new();
    place.file("f", b"data\n");
    for segments in [
        &[":cat f", ":> /dev/stdout"][..],
        &[":cat f", ":>> /dev/fd/1"],
        &[":< /dev/stdin", ":> to"],
    ] {
        let end = run(&place, "", RDPIPE, segments);
        assert_ne!(end.code(), 0, "{segments:?}: {end:?}");
        assert!(
            format!("{end:?}").contains("descriptor of the agent"),
            "{end:?}"
        );
    }
    assert_eq!(place.names(), ["f", "old"]);
}

#[test]
fn output_to_a_closed_stdout_is_an_error() {
    let place = Place::new();
    place.file("f", b"data\n");
    let programs: &[(&str, &[&str])] = &[
        (RDCAT, &[":f"]),
        (RDCP, &["f", "-"]),
        (RDCP, &["--checksum", "f", "to"]),
        (RDCP, &["--dry-run", "f", "to"]),
        (RDCP, &["--json", "f", "to"]),
        (RDCP, &["--new-key", "client"]),
        (RDFORWARD, &["--version"]),
        (RDFORWARD, &["run", "--help"]),
        (RDPERF, &["--check", ":", "unreached"]),
        (RDPIPE, &["-q", ":cat f"]),
        (RDPIPE, &["-q", ":cat f", ":cat"]),
        (RDPIPE, &["--dry-run", ":cat f"]),
        (RDRECV, &["--help"]),
        (RDSEND, &["--version"]),
    ];
    for (path, arguments) in programs {
        let end = run(&place, ">&-", path, arguments);
        end.fails(1, &["cannot write standard output: it is closed"]);
    }
    assert_eq!(place.names(), ["f", "old"], "work whose result was lost");
}

#[test]
fn a_receiver_with_a_closed_stdout_fails_both_ends() {
    let place = Place::new();
    let script = "exec \"$0\" 0 \"$1\" >&-";
    let receiver = program("/bin/sh", "a shell").args(["-c", script, RDRECV]);
    let receiver = receiver.arg(crate::support::programs::key()).start();
    let sender = crate::support::programs::sender(receiver.port(), "");
    let sender = sender.arg(place.file("f", b"data\n")).start();
    let cause = "cannot open stdout for writing: it is closed";
    sender.end().fails(3, &[cause]);
    receiver.end().fails(1, &[cause]);
}

#[test]
fn input_from_a_closed_stdin_is_an_error() {
    let place = Place::new();
    let cause = "cannot read standard input: it is closed";
    let programs: &[(&str, &[&str], &str)] = &[
        (RDCP, &["-", "to"], cause),
        (RDPIPE, &["-q", ":> to"], cause),
        (RDPIPE, &[":cat", ":cat"], "Bad file descriptor"),
    ];
    for (path, arguments, words) in programs {
        let end = run(&place, "<&-", path, arguments);
        let text = end.exits(1);
        assert!(text.contains(words), "{text}");
    }
    assert_eq!(
        place.names(),
        ["old"],
        "an empty file in place of the input"
    );
    let receiver = receiver("").start();
    let script = "exec \"$0\" 127.0.0.1 \"$1\" \"$2\" <&-";
    let sender = program("/bin/sh", "a shell").args(["-c", script, RDSEND]);
    let sender = sender.arg(receiver.port().to_string());
    let sender = sender.arg(crate::support::programs::key()).start();
    let cause = "cannot read stdin: it is closed";
    sender.end().fails(1, &[cause]);
    receiver.end().fails(3, &[cause]);
}

#[test]
fn a_closed_stream_that_no_program_uses_is_no_error() {
    let place = Place::new();
    place.file("f", b"data\n");
    let programs: &[(&str, &[&str])] = &[
        (RDCP, &["f", "copied"]),
        (RDPIPE, &[":cat f", ":> written"]),
        (RDPIPE, &[":cat f", ":cat > by-a-command"]),
        (RDPIPE, &[":true"]),
    ];
    for (path, arguments) in programs {
        run(&place, "<&- >&-", path, arguments).exits(0);
        run(&place, "<&- >&- 2>&-", path, arguments).exits(0);
    }
    for name in ["copied", "written", "by-a-command"] {
        assert_eq!(place.read(name), b"data\n", "{name}");
    }
}

#[test]
fn a_stdout_that_is_open_for_reading_only_is_an_error() {
    let place = Place::new();
    place.file("f", b"data\n");
    for option in ["--json", "--checksum", "--dry-run"] {
        let end = run(&place, "1<f", RDCP, &["-q", option, "f", "to"]);
        end.fails(
            1,
            &["cannot write standard output: it is closed, or not open for writing"],
        );
    }
}
