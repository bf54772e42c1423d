//! `-` as a source or a destination: stdin and stdout.

use crate::support::programs::hosts::Outcome;
use crate::support::programs::local_hosts::{Hosts, feed};
use crate::support::programs::random_bytes;

#[test]
fn stdin_is_written_to_a_file() {
    let hosts = Hosts::new("");
    let data = random_bytes(5_000_001);
    hosts.file("h1", "old", b"old");
    for name in ["h1:new file", "h1:old"] {
        let end = feed(hosts.rdcp(&["-", name]), &data).end();
        end.exits(0);
        assert!(end.stdout.is_empty(), "{end:?}");
        assert!(hosts.read("h1", &name[3..]) == data);
    }
    let local = hosts.path("here", "file");
    std::fs::create_dir_all(hosts.path("here", "")).unwrap();
    let end = feed(hosts.rdcp(&["-", &local.display().to_string()]), &data);
    end.end().exits(0);
    assert!(hosts.read("here", "file") == data);
    // An empty input makes an empty file.
    feed(hosts.rdcp(&["-", "h1:empty"]), b"").end().exits(0);
    assert_eq!(hosts.read("h1", "empty"), b"");
}

#[test]
fn a_file_is_written_to_stdout() {
    let hosts = Hosts::new("");
    let data = random_bytes(5_000_001);
    hosts.file("h1", "a file", &data);
    let end = hosts.rdcp(&["h1:a file", "-"]).start().end();
    end.exits(0);
    assert!(end.stdout == data);
    let local = hosts.path("h1", "a file").display().to_string();
    let end = hosts.rdcp(&[&local, "-"]).start().end();
    end.exits(0);
    assert!(end.stdout == data);
}

#[test]
fn failures_of_stdin_and_stdout_are_told() {
    let hosts = Hosts::new("");
    hosts.file("h1", "tree/file", b"content");
    let end = hosts.rdcp(&["h1:nosuch", "-"]).start().end();
    end.tells(1, &["nosuch", "No such file"]);
    assert!(end.stdout.is_empty(), "{end:?}");
    let end = hosts.rdcp(&["h1:tree", "-"]).start().end();
    end.tells(1, &["tree", "Is a directory"]);
    assert!(end.stdout.is_empty(), "{end:?}");
    let end = feed(hosts.rdcp(&["-", "h1:no/such/file"]), b"content").end();
    end.tells(1, &["no/such/file", "No such file"]);
    let end = feed(hosts.rdcp(&["-", "h1:/dev/full"]), b"content").end();
    end.tells(1, &["/dev/full", "No space left"]);
}

#[test]
fn a_stdin_that_ends_with_rdcp_leaves_the_old_file() {
    let hosts = Hosts::new("");
    hosts.file("h1", "old", b"old");
    let mut rdcp = hosts
        .rdcp(&["-", "h1:old"])
        .stdin(std::process::Stdio::piped())
        .start();
    let mut stdin = rdcp.stdin();
    std::io::Write::write_all(&mut stdin, &random_bytes(1 << 20)).unwrap();
    rdcp.kill();
    drop(stdin);
    rdcp.end();
    assert_eq!(hosts.read("h1", "old"), b"old");
}
