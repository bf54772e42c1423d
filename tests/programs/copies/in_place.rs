//! Destinations that no new file replaces, sources whose size says nothing, the limit of file sizes, and `-`.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use super::{
    metadata::{ACCESS, DEFAULT, acl, attribute, info, set_attribute, with_guests},
    trees::large,
};
use crate::support::programs::{
    hosts::Outcome,
    local_hosts::{Hosts, feed},
    random_bytes, skip,
};

/// Makes what cannot be replaced: a device, a link to it, a mount point, and files in directories that cannot be
/// written.
const MAKE: &str = "
mknod device c 1 3; ln -s device link; echo old >real; echo mounted >point; mount --bind real point
mkdir closed; echo old >closed/small; cp closed/small closed/big; chmod 666 closed/*; chmod 555 closed
";

#[test]
fn what_cannot_be_replaced_is_written_in_place() {
    let Some(network) = with_guests(2) else {
        return;
    };
    fs::write(network.file("h1", "small"), b"new").unwrap();
    large(&network.file("h1", "big"), 5 << 20);
    network.on("h1", "chmod 644 small big");
    network.on("h2", MAKE);
    for options in [&["-q"][..], &["-qa"]] {
        for target in ["device", "link", "point"] {
            for source in ["h1:small", "h1:big"] {
                let to = format!("h2:{target}");
                let words = [options, &[source, &to]].concat();
                network.rdcp(&words).start().end().exits(0);
            }
        }
    }
    let found = network.on(
        "h2",
        "stat -c %F device link; ls -A | grep rdcp; cmp point real",
    );
    assert_eq!(found, "character special file\nsymbolic link\n");
    let original = network.file("h1", "big");
    network.on(
        "h2",
        &format!("cmp point {}; umount point", original.display()),
    );
    // The user may write the files, and make none beside them.
    for source in ["small", "big"] {
        let to = format!(
            "guest@h2:{}",
            network.file("h2", "closed").join(source).display()
        );
        let from = network.file("h1", source);
        let from = format!("guest@h1:{}", from.display());
        network.rdcp(["-q", &from, &to]).start().end().exits(0);
    }
    let same =
        "cmp closed/small ../../h1/home/small && cmp closed/big ../../h1/home/big && ls -A closed";
    assert_eq!(network.on("h2", same), "big\nsmall\n");
}

#[test]
fn nothing_stays_behind_in_a_directory_to_which_names_can_only_be_added() {
    let Some(network) = with_guests(2) else {
        return;
    };
    network.on("h1", "mkdir -p tree/sub; for i in 1 2 3; do echo $i >tree/$i; done; ln -s 1 tree/link; ln tree/1 tree/twice");
    large(&network.file("h1", "tree/big"), 5 << 20);
    network.on("h1", "chmod 640 tree/*; mkfifo -m 640 tree/fifo");
    network.on("h2", "mkdir log; echo old >log/2");
    // Neither a new file nor one that is written keeps an ACL that the source's has not.
    let rights = acl([7, 7, 7, 7, 5]);
    set_attribute(&network.file("h2", "log"), DEFAULT, &rights);
    set_attribute(&network.file("h2", "log/2"), ACCESS, &rights);
    let added = network.on("h2", "chattr +a log 2>/dev/null && echo added || true");
    if added.is_empty() {
        return skip("no append-only directories on this file system");
    }
    let copied = network.rdcp(["-qaT", "h1:tree", "h2:log"]).start().end();
    let again = network.rdcp(["-q", "h1:tree/3", "h2:log/2"]).start().end();
    let plain = network
        .rdcp(["-q", "h1:tree/big", "h2:log/plain"])
        .start()
        .end();
    let written = network.rdpipe([":echo piped", "h2:> log/3"]).start().end();
    network.on("h2", "chattr -a log");
    copied.exits(0);
    again.exits(0);
    plain.exits(0);
    written.exits(0);
    let found = network.on(
        "h2",
        "ls -A log; cat log/1 log/2 log/3; cmp log/big ../../h1/home/tree/big",
    );
    assert_eq!(
        found,
        "1\n2\n3\nbig\nfifo\nlink\nplain\nsub\ntwice\n1\n3\npiped\n"
    );
    for name in ["1", "2", "big", "fifo", "plain"] {
        let entry = network.file("h2", "log").join(name);
        assert_eq!(info(&entry).mode() & 0o7777, 0o640, "{name}");
        assert_eq!(
            attribute(&entry, ACCESS).is_some(),
            name == "plain",
            "{name}"
        );
    }
}

#[test]
fn of_two_sources_one_is_written_in_place_and_the_other_is_named() {
    let Some(network) = with_guests(2) else {
        return;
    };
    let files = "for i in $(seq 1 20); do echo $d >$d/tree/$i; done";
    let make = format!("for d in one two; do mkdir -p $d/tree; {files}; done");
    network.on("h1", &make);
    network.on(
        "h2",
        "mkdir -p to/tree; for i in $(seq 1 10); do echo old >to/tree/$i; done",
    );
    let added = network.on("h2", "chattr +a to/tree 2>/dev/null && echo added || true");
    if added.is_empty() {
        return skip("no append-only directories on this file system");
    }
    let sources = ["-qr", "h1:one/tree", "h1:two/tree", "h2:to"];
    let end = network.rdcp(sources).start().end();
    network.on("h2", "chattr -a to/tree");
    end.exits(1);
    for name in 1..=20 {
        let found = network.on("h2", &format!("cat to/tree/{name}"));
        assert!(
            ["one\n", "two\n"].contains(&found.as_str()),
            "{name}: {found}"
        );
        let named = format!("to/tree/{name}: ");
        assert!(
            end.stderr.contains(&named),
            "{name} is not named:\n{}",
            end.stderr
        );
    }
}

#[test]
fn stdout_has_its_name_among_the_devices() {
    let hosts = Hosts::new("");
    hosts.file("h", "file", b"contents");
    for name in ["/dev/stdout", "/dev/fd/1"] {
        let end = hosts.rdcp(&["-q", "h:file", name]).start().end();
        end.is("contents");
    }
    // The stdout of the process on another host is no output of the user.
    let end = hosts.rdcp(&["h:file", "g:/dev/stdout"]).start().end();
    end.tells(1, &["give - as the destination"]);
}

#[test]
fn files_that_the_kernel_makes_up_are_copied_to_their_end() {
    let hosts = Hosts::new("");
    let page = "/sys/kernel/mm/transparent_hugepage/enabled";
    for path in ["/proc/version", "/proc/kallsyms", page] {
        if !Path::new(path).exists() {
            continue;
        }
        let from = format!("h:{path}");
        hosts.rdcp(&["-q", &from, "g:copy"]).start().end().exits(0);
        assert!(hosts.read("g", "copy") == fs::read(path).unwrap(), "{path}");
        let end = hosts.rdcat(&[&from]).start().end();
        assert!(end.stdout == fs::read(path).unwrap(), "{path}");
    }
}

#[test]
fn the_limit_of_file_sizes_fails_the_files_beyond_it() {
    let hosts = Hosts::new("ulimit -f 100");
    hosts.file("h", "tree/a", b"small");
    large(&hosts.path("h", "tree/b"), 150 << 10);
    large(&hosts.path("h", "tree/c"), 5 << 20);
    hosts.file("h", "tree/d", b"small");
    let end = hosts.rdcp(&["-rT", "h:tree", "g:tree"]).start().end();
    end.tells(1, &["tree/b", "tree/c", "File too large"]);
    let names = fs::read_dir(hosts.path("g", "tree")).unwrap();
    let mut names: Vec<_> = names.map(|name| name.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a", "d"]);
    let end = hosts.run(&["h:< tree/b", "g:> copy"]);
    end.tells(1, &["cannot write", "copy", "File too large"]);
    assert!(!hosts.has("g", "copy"));
    // A command of a stage dies as without rdpipe.
    let end = hosts.run(&["h:grep SigCgt /proc/self/status"]);
    let caught = String::from_utf8_lossy(&end.stdout).into_owned();
    let caught = caught.trim().rsplit('\t').next().unwrap().to_owned();
    let caught = u64::from_str_radix(&caught, 16).unwrap();
    assert_eq!(caught & (1 << 24), 0);
}

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
