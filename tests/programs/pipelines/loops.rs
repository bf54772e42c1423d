//! Pipelines that would read what they write: refused before anything is done.

use std::fs::{self, File, OpenOptions};

use crate::support::programs::local_hosts::Hosts;

const CONTENT: &[u8] = b"what must stay\n";

/// Returns hosts with a file `f` that also has the names `link` and, in another directory, `same`.
fn hosts() -> Hosts {
    let hosts = Hosts::new("");
    hosts.file("h", "f", CONTENT);
    hosts.file("h", "other", b"other\n");
    fs::create_dir_all(hosts.path("h", "in")).unwrap();
    std::os::unix::fs::symlink("../f", hosts.path("h", "in/link")).unwrap();
    hosts
}

#[test]
fn a_file_that_is_read_is_not_appended_to() {
    let hosts = hosts();
    for line in [
        "h:< f|h:>> f",
        "h:< f|h:>> in/link",
        "h:< in/link|h:cat|g:>> ../h/f",
        "h:touch done|h:< f|h:tr a b|h:>> ./in/../f",
    ] {
        let end = hosts.run(&line.split('|').collect::<Vec<_>>());
        let words = [
            "is the file that stage",
            "nothing was done; write to another file",
        ];
        end.fails(1, &words);
        assert_eq!(hosts.read("h", "f"), CONTENT, "{line}");
        assert!(!hosts.has("h", "done"), "{line}");
    }
    hosts.run(&["h:< f", "h:>> other"]).exits(0);
    assert_eq!(hosts.read("h", "other"), [b"other\n", CONTENT].concat());
    // The file is complete when the last stage reads it.
    let end = hosts.run(&["h:< other", "h:>> f", "h:< f"]);
    end.exits(0);
    assert_eq!(end.stdout, [CONTENT, b"other\n", CONTENT].concat());
}

#[test]
fn a_file_that_cannot_be_replaced_is_not_emptied_while_it_is_read() {
    let hosts = hosts();
    hosts.run(&["h:< f", "h:> f"]).exits(0);
    assert_eq!(hosts.read("h", "f"), CONTENT);
    hosts.run(&["h:< f", "h:tr a-z A-Z", "h:> f"]).exits(0);
    assert_eq!(hosts.read("h", "f"), CONTENT.to_ascii_uppercase());
    fs::hard_link(hosts.path("h", "f"), hosts.path("h", "same")).unwrap();
    let end = hosts.run(&["h:< same", "h:> f"]);
    end.fails(1, &["f is the file that stage 1 (h) reads, as same"]);
    assert_eq!(hosts.read("h", "f"), CONTENT.to_ascii_uppercase());
}

#[test]
fn the_streams_of_the_program_itself_count() {
    let hosts = hosts();
    let path = hosts.path("h", "f");
    let append = || OpenOptions::new().append(true).open(&path).unwrap();
    let end = hosts.rdpipe(&["h:< f"]).stdout(append()).start().end();
    end.fails(
        1,
        &["the file of the standard output of rdpipe is the file that stage 1 (h) reads, as f"],
    );
    let input = File::open(&path).unwrap();
    let end = hosts.rdpipe(&["h:>> f"]).stdin(input).start().end();
    end.fails(
        1,
        &["f is the file that rdpipe reads as its standard input"],
    );
    let end = hosts
        .rdcat(&["h:other", "h:f"])
        .stdout(append())
        .start()
        .end();
    end.fails(1, &["h: f: the output goes to this file"]);
    assert_eq!(fs::read(&path).unwrap(), [CONTENT, b"other\n"].concat());
}
