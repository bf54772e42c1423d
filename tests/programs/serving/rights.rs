//! What a client's line in the key file lets it do: one direction, new files only, a directory of its own.

use std::{fs, os::unix::fs::PermissionsExt};

use super::{Served, rdcp};
use crate::support::programs::hosts::Outcome;

impl Served {
    /// Gives a client of the running server these rights, and waits until the server knows them.
    #[track_caller]
    fn limit(&self, client: &str, rights: &str) {
        let known = |text: &str| text.matches(&format!("new rights for {client}")).count();
        let before = self.server.said("anything", |text| Some(known(text)));
        let lines = fs::read_to_string(self.key_file()).unwrap();
        let line = |line: &str| match line.split(' ').collect::<Vec<_>>()[..] {
            [name, key, ..] if name == client => format!("{name} {key} {rights}\n"),
            _ => format!("{line}\n"),
        };
        // The server may read the file at any time, so the change is one step.
        let new = self.directory().join("new-keys");
        fs::write(&new, lines.lines().map(line).collect::<String>()).unwrap();
        fs::set_permissions(&new, PermissionsExt::from_mode(0o600)).unwrap();
        fs::rename(new, self.key_file()).unwrap();
        self.server.said("that the rights have changed", |text| {
            (known(text) > before).then_some(())
        });
    }

    fn has(&self, path: &str) -> String {
        fs::read_to_string(self.root(path)).unwrap()
    }
}

#[test]
fn a_client_may_do_what_its_line_says() {
    let served = Served::start(&[]);
    fs::write(served.root("old"), "old").unwrap();
    fs::write(served.here("file"), "new").unwrap();
    let read = ["@old", "%copy"];
    let write = ["%file", "@old"];
    let run = |arguments: &[&str]| served.alice(arguments).start().end();
    served.limit("alice", "ro");
    run(&read).exits(0);
    run(&write).tells(
        1,
        &["this client may only read (ro in the server's key file)"],
    );
    let moving = run(&["--remove-source-files", "@old", "%moved"]);
    moving.tells(1, &["may only read", "--remove-source-files"]);
    assert_eq!(served.has("old"), "old");
    served.limit("alice", "wo");
    run(&read).tells(
        1,
        &["this client may only write (wo in the server's key file)"],
    );
    run(&write).exits(0);
    assert_eq!(served.has("old"), "new");
    served.limit("alice", "");
    run(&read).exits(0);
}

#[test]
fn the_server_limits_every_client_further() {
    let served = Served::start(&["--read-only"]);
    fs::write(served.root("old"), "old").unwrap();
    fs::write(served.here("file"), "new").unwrap();
    served.limit("alice", "append");
    let end = |arguments: &[&str]| served.alice(arguments).start().end();
    end(&["@old", "%copy"]).tells(1, &["this client may only add files"]);
    end(&["%file", "@new"]).tells(1, &["this server is read-only"]);
}

/// A stolen key of a detector destroys nothing.
#[test]
fn a_client_that_may_only_add_replaces_and_removes_nothing() {
    let served = Served::start(&[]);
    fs::create_dir_all(served.root("run/sub")).unwrap();
    fs::write(served.root("run/old"), "old").unwrap();
    fs::set_permissions(served.root("run/sub"), PermissionsExt::from_mode(0o751)).unwrap();
    for (name, text) in [("old", "new"), ("file", "file")] {
        fs::create_dir_all(served.here("run/sub")).unwrap();
        fs::write(served.here("run").join(name), text).unwrap();
    }
    served.limit("alice", "append");
    let run = |arguments: &[&str]| served.alice(arguments).start().end();
    let exists = "run/old: exists already as something else, which this client may not replace";
    for _ in 0..2 {
        run(&["-a", "%run", "@"]).tells(1, &[exists]);
        assert_eq!(
            (served.has("run/old"), served.has("run/file")),
            ("old".to_owned(), "file".to_owned())
        );
    }
    run(&["--no-clobber", "-a", "%run", "@"]).exits(0);
    let moved = run(&[
        "--resume",
        "--checksum",
        "--remove-source-files",
        "%run/file",
        "@run/",
    ]);
    moved.exits(0);
    assert!(!served.here("run/file").exists(), "the server has it");
    let kept = run(&["--remove-source-files", "%run/old", "@run/"]);
    kept.tells(1, &[exists]);
    assert!(served.here("run/old").exists());
    let mode = fs::metadata(served.root("run/sub"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(
        (mode & 0o777, served.has("run/old")),
        (0o751, "old".to_owned())
    );
    for option in ["--delete", "--dry-run", "--skip-same", "--update"] {
        let refused = format!("(append in the server's key file), so {option} is refused");
        run(&[option, "-r", "%run", "@"]).tells(1, &[&refused]);
    }
    run(&["@run/old", "%stolen"]).tells(1, &["this client may only add files"]);
}

/// A dry run of `--delete` named every file of the server, with its size.
#[test]
fn a_client_that_may_only_write_learns_no_names() {
    let served = Served::start(&["--write-only"]);
    fs::create_dir(served.root("run")).unwrap();
    fs::write(served.root("run/secret-name"), "secret").unwrap();
    fs::create_dir(served.here("run")).unwrap();
    fs::write(served.here("run/secret-name"), "other!").unwrap();
    for options in [
        &["-nv", "--delete"][..],
        &["-v", "--delete"],
        &["-nv"],
        &["-v", "--skip-same"],
        &["-v", "--update"],
        &["-v", "--no-clobber"],
    ] {
        let end = served
            .alice(&["-r", "%run", "@"])
            .args(options.iter().copied());
        let end = end.start().end();
        end.tells(
            1,
            &[
                "this server is write-only, so --",
                "it would tell what the server has",
            ],
        );
        let said = end.stderr + &String::from_utf8_lossy(&end.stdout);
        assert!(!said.contains("secret-name"), "{said}");
    }
    assert_eq!(served.has("run/secret-name"), "secret");
}

#[test]
fn a_client_may_have_a_directory_of_its_own() {
    let served = Served::start(&[]);
    fs::write(served.root("outside"), "outside").unwrap();
    fs::write(served.here("file"), "content").unwrap();
    served.limit("alice", "/run 42");
    let run = |arguments: &[&str]| served.alice(arguments).start().end();
    let missing = run(&["%file", "@new"]);
    missing.tells(
        1,
        &["line 1 of the server's key file does not exist: make it on the server, below the directory of --root"],
    );
    fs::create_dir(served.root("run 42")).unwrap();
    run(&["%file", "@new"]).exits(0);
    assert_eq!(served.has("run 42/new"), "content");
    run(&["@/new", "%back"]).exits(0);
    for path in ["@outside", "@../outside", "@run 42/new"] {
        run(&[path, "%stolen"]).exits(1);
    }
    // Another client may put a link in its place.
    fs::remove_dir_all(served.root("run 42")).unwrap();
    std::os::unix::fs::symlink(".", served.root("run 42")).unwrap();
    run(&["@outside", "%stolen"]).tells(1, &["symbolic link"]);
    assert!(!served.here("stolen").exists());
}

#[test]
fn a_new_client_may_get_rights() {
    let place = tempfile::tempdir().unwrap();
    let keys = place.path().join("keys");
    let made = rdcp(["--new-key", "det1 append run 42", "--key-file"])
        .arg(&keys)
        .start()
        .end();
    made.exits(0);
    let own = String::from_utf8(made.stdout).unwrap();
    assert_eq!(own.split_whitespace().count(), 2);
    let line = fs::read_to_string(&keys).unwrap();
    assert_eq!(line, format!("{} append run 42\n", own.trim()));
    let wrong = rdcp(["--new-key", "det2 apend", "--key-file"])
        .arg(&keys)
        .start()
        .end();
    wrong.tells(2, &["neither ro, wo or append follows the"]);
    assert_eq!(fs::read_to_string(&keys).unwrap(), line);
}
