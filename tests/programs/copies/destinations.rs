//! What a destination means: each case is given to `cp` and to rdcp, and has the same outcome.

use std::{fs, path::Path, process::Command, thread};

use super::compare::{assert_no_partial_file, difference_of_contents};
use crate::support::programs::hosts::Outcome;
use crate::support::programs::local_hosts::Hosts;

/// What the sources are made by, in a directory of their own.
const SOURCES: &str = "
echo file >file; echo other >other; chmod 755 other; echo -n >empty
mkdir -p dir/sub/below folder; echo in dir >dir/in; echo deep >dir/sub/deep; ln -s in dir/link
echo in folder >folder/in; ln -s dir linkdir; ln -s file linkfile; ln -s nowhere dangling; mkfifo dir/fifo
chmod 700 dir/sub; mkdir clash; echo a directory there >clash/dir; mkdir -p shape/in; echo >shape/in/file
";

/// What the destination has before each case.
const BEFORE: &str = "
mkdir -p there/sub there/clash/dir there/taken/file; echo old >there/clash/dir/old; echo old >old; echo kept >there/kept
ln -s there linkthere; ln -s nowhere dangling; echo a file >there/folder; mkdir -p merged/dir; echo old >merged/in
";

/// Arguments, in which `S` stands for the directory of the sources and `D` for that of the destination.
const CASES: &[&str] = &[
    "S/file D/new",
    "S/other D/new",
    "S/empty D/new",
    "S/file D/old",
    "S/file D/there",
    "S/file D/there/",
    "S/file D/new/",
    "S/file D/missing/new",
    "S/file D/missing/",
    "S/file D/there/taken",
    "S/file D/linkthere",
    "S/file D/linkthere/",
    "S/file D",
    "S/file D/.",
    "S/file D/there/..",
    "-T S/file D/new",
    "-T S/file D/old",
    "-T S/file D/there",
    "S/file S/other D/there",
    "S/file S/other D/new",
    "S/file S/other D/old",
    "S/nosuch D/new",
    "S/nosuch S/file D/there",
    "S/dir D/there",
    "S/dir S/file D/there",
    "-r S/dir D/new",
    "-r S/dir D/new/",
    "-r S/dir/ D/new",
    "-r S/dir/ D/there",
    "-r S/dir D/there",
    "-r S/dir D/there/",
    "-r S/dir D/linkthere",
    "-r S/dir D/old",
    "-r S/dir D/missing/new",
    "-rT S/dir D/new",
    "-rT S/dir D/there",
    "-rT S/dir D/merged",
    "-rT S/dir D/old",
    "-r S/dir/. D/there",
    "-r S/dir/. D/new",
    "-r S/dir/sub/.. D/there",
    "-r S/dir S/folder S/file D/merged",
    "-r S/dir S/folder D/new",
    "-r S/folder D/there",
    "-r S/clash D/there",
    "-r S/file D/there/taken",
    "S/linkfile D/new",
    "S/linkdir D/new",
    "S/dangling D/new",
    "-r S/linkfile D/new",
    "-r S/linkdir D/new",
    "-r S/linkdir D/there",
    "-r S/linkdir/ D/new",
    "-a S/linkfile D/new",
    "-a S/linkdir D/there",
    "-a S/dangling D/there",
    "-a S/dir D/new",
    "-R S/dir D/new",
    "--recursive S/dir D/new",
    "--no-target-directory S/file D/there",
    "--no-target-directory S/file D/new",
];

#[test]
fn a_destination_means_what_it_means_to_cp() {
    let hosts = Hosts::new("");
    shell(&hosts.path("source", ""), SOURCES);
    // Each run waits for its agents to start, so several cases run at a time.
    let wrong: String = thread::scope(|scope| {
        let share = |first| {
            let cases = CASES.iter().enumerate().skip(first).step_by(THREADS);
            let wrong = cases.filter_map(|(number, case)| differs_from_cp(&hosts, number, case));
            wrong.collect::<String>()
        };
        let threads = [0, 1, 2, 3].map(|first| scope.spawn(move || share(first)));
        threads
            .map(|thread| thread.join().expect("no panic"))
            .concat()
    });
    assert!(wrong.is_empty(), "{wrong}");
}

/// The cases that run at a time.
const THREADS: usize = 4;

/// Gives a case to cp and to rdcp. Returns how the outcomes differ, if they do.
fn differs_from_cp(hosts: &Hosts, number: usize, case: &str) -> Option<String> {
    let sources = hosts.path("source", "");
    let [expected, found] = ["cp", "h"].map(|name| hosts.path(name, &number.to_string()));
    shell(&expected, BEFORE);
    shell(&found, BEFORE);
    let words = |destination: &str| -> Vec<String> {
        let word = |word: &str| match word.split_at(1) {
            ("S", rest) => format!("{}{rest}", sources.join("").display()),
            ("D", rest) => format!("{destination}{rest}"),
            _ => word.to_owned(),
        };
        case.split(' ').map(word).collect()
    };
    let mut cp = Command::new("cp");
    cp.args(words(&expected.display().to_string()));
    let cp = cp.output().expect("cp").status.code();
    let words = words(&format!("h:{number}"));
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let rdcp = hosts.rdcp(&words).start().end();
    let difference = difference_of_contents(&expected, &found);
    if Some(rdcp.code()) == cp && difference.is_none() {
        return None;
    }
    let (code, said) = (rdcp.code(), &rdcp.stderr);
    let difference = difference.unwrap_or_default();
    Some(format!(
        "{case}: cp exits with {cp:?}, rdcp with {code}\n{said}{difference}\n"
    ))
}

/// Runs lines of shell in a directory, which is made.
fn shell(at: &Path, lines: &str) {
    fs::create_dir_all(at).expect("a directory");
    let status = Command::new("bash")
        .args(["-ec", lines])
        .current_dir(at)
        .status();
    assert!(status.expect("bash").success());
}

#[test]
fn missing_parents_are_made_on_request() {
    let hosts = Hosts::new("");
    hosts.file("here", "file", b"content");
    hosts.file("here", "tree/file", b"content");
    fs::create_dir_all(hosts.path("h1", "")).unwrap();
    let file = hosts.path("here", "file").display().to_string();
    let tree = hosts.path("here", "tree").display().to_string();
    for (option, from, to, made) in [
        ("-P", &file, "h1:a/b/new", "a/b/new"),
        ("--parents", &file, "h1:c/d/new", "c/d/new"),
        ("-rP", &tree, "h1:e/f", "e/f/file"),
        ("-rP", &tree, "h1:g/h/", "g/h/file"),
        ("-rP", &tree, "h1:a/b/c/d", "a/b/c/d/file"),
    ] {
        let end = hosts.rdcp(&[option, from, to]).start().end();
        end.exits(0);
        assert_eq!(hosts.read("h1", made), b"content", "{option} {to}");
    }
    let end = hosts.rdcp(&[&file, "h1:x/y/new"]).start().end();
    end.tells(1, &["x/y", "No such file"]);
    assert!(!hosts.has("h1", "x"));
}

#[test]
fn a_link_at_the_destination_is_replaced_and_not_followed() {
    let hosts = Hosts::new("");
    hosts.file("h1", "file", b"new");
    hosts.file("h2", "kept", b"kept");
    let absolute = hosts.path("h2", "kept").display().to_string();
    for target in ["kept", "nowhere", &absolute] {
        let link = hosts.path("h2", "link");
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(target, &link).unwrap();
        hosts.rdcp(&["h1:file", "h2:link"]).start().end().exits(0);
        assert!(fs::symlink_metadata(&link).unwrap().is_file());
        assert_eq!(hosts.read("h2", "link"), b"new");
        assert_eq!(hosts.read("h2", "kept"), b"kept");
    }
    assert!(!hosts.has("h2", "nowhere"));
}

#[test]
fn an_old_file_is_replaced_whole() {
    let hosts = Hosts::new("");
    hosts.file("h1", "tree/file", &vec![b'n'; 100_000]);
    hosts.file("h2", "tree/file", &vec![b'o'; 200_000]);
    // A reader of the old file keeps it: the new one is another file.
    let old = fs::File::open(hosts.path("h2", "tree/file")).unwrap();
    hosts.rdcp(&["-r", "h1:tree", "h2:"]).start().end().exits(0);
    assert_eq!(old.metadata().unwrap().len(), 200_000);
    assert_no_partial_file(&hosts.path("h1", "tree"), &hosts.path("h2", "tree"));
}

#[test]
fn local_paths_with_colons_are_told_from_hosts() {
    let hosts = Hosts::new("");
    hosts.file("here", "a:b", b"a colon");
    let path = hosts.path("here", "a:b").display().to_string();
    hosts.rdcp(&[&path, "h1:c:d"]).start().end().exits(0);
    assert_eq!(hosts.read("h1", "c:d"), b"a colon");
    let back = hosts.path("here", "e:f").display().to_string();
    hosts.rdcp(&["h1:c:d", &back]).start().end().exits(0);
    assert_eq!(hosts.read("here", "e:f"), b"a colon");
}

#[test]
fn a_home_directory_is_the_default_place() {
    let hosts = Hosts::new("");
    hosts.file("h1", "file", b"content");
    fs::create_dir_all(hosts.path("h2", "")).unwrap();
    hosts.rdcp(&["h1:file", "h2:"]).start().end().exits(0);
    hosts.rdcp(&["h1:file", "h2:."]).start().end().exits(0);
    assert_eq!(hosts.read("h2", "file"), b"content");
}
