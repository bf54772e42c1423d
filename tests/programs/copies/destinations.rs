//! What a destination means: each case is given to `cp` and to rdcp, and has the same outcome; and the rights of
//! directories there: those of new ones, those after a cut, and those that a normal user's own directories lack.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, chown},
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use rustix::process::Signal;

use super::{
    compare::{Entry, Tree, assert_no_partial_file, assert_same, difference_of_contents},
    deaths::arrives,
    metadata::{DEFAULT, acl, info, set_attribute},
    trees::{is_root, large, mode},
};
use crate::support::programs::{Place, Setup, local_hosts::Hosts, program, skip};

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
        ("-rP", &tree, "h1:g/h/", "g/h/tree/file"),
        ("-P", &file, "h1:i/j/", "i/j/file"),
        ("-rP", &tree, "h1:a/b/c/d", "a/b/c/d/file"),
    ] {
        let end = hosts.rdcp(&[option, from, to]).start().end();
        end.exits(0);
        assert_eq!(hosts.read("h1", made), b"content", "{option} {to}");
    }
    // Sources that are there already are replaced.
    for to in ["h1:many/below", "h1:many/again/", "h1:many/again/"] {
        hosts
            .rdcp(&["-rP", &file, &tree, to])
            .start()
            .end()
            .exits(0);
    }
    for made in [
        "below/file",
        "below/tree/file",
        "again/file",
        "again/tree/file",
    ] {
        assert_eq!(hosts.read("h1", &format!("many/{made}")), b"content");
    }
    for (sources, to, missing) in [
        (&[&file][..], "h1:x/y/new", "x/y"),
        (&[&file], "h1:x/", "x"),
        (&[&file], "h1:./x//", "./x"),
        (&[&file, &tree], "h1:x/", "x"),
        (&[&file, &tree], "h1:x", "x"),
        (&[&file, &tree], "h1:x/y/z", "x/y/z"),
    ] {
        let sentence = format!("rdcp: h1: {missing} does not exist; give -P to make it\n");
        for option in ["-r", "-rn"] {
            let sources = sources.iter().map(|source| source.as_str());
            let arguments: Vec<_> = [option].into_iter().chain(sources).chain([to]).collect();
            let end = hosts.rdcp(&arguments).start().end();
            assert_eq!(end.exits(1), sentence);
        }
    }
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

/// The directories of a tree by their paths, without their times.
type Directories = BTreeMap<PathBuf, Entry>;

fn directories(at: &Path) -> Directories {
    let entries = Tree::read(at).0.into_iter();
    let directories = entries.filter(|(_, entry)| entry.is_directory());
    let untimed = directories.map(|(path, mut entry)| {
        entry.modified = (0, 0);
        (path, entry)
    });
    untimed.collect()
}

/// Makes a tree whose directories have these modes, and a file each.
fn tree(at: &Path, modes: &[(&str, u32)]) {
    for (name, _) in modes {
        fs::create_dir_all(at.join(name)).unwrap();
        fs::write(at.join(name).join("file"), name).unwrap();
    }
    for (name, bits) in modes.iter().rev() {
        mode(&at.join(name), *bits);
    }
}

/// Runs a line of a shell, which must succeed.
#[track_caller]
fn run_shell(line: &str) {
    let status = Command::new("bash").args(["-ec", line]).status();
    assert!(status.expect("bash").success(), "{line}");
}

#[test]
fn new_directories_have_the_rights_that_cp_and_mkdir_give() {
    let modes = [
        ("", 0o755),
        ("group", 0o775),
        ("group/private", 0o700),
        ("group/read-only", 0o555),
        ("set-group-ID", 0o2755),
        ("sticky", 0o1777),
    ];
    for umask in ["022", "002", "077"] {
        let hosts = Hosts::new(&format!("umask {umask}"));
        let original = hosts.path("h1", "tree");
        tree(&original, &modes);
        let place = hosts.path("h2", "");
        fs::create_dir_all(&place).unwrap();
        let acls = [("wide", [7, 7, 7, 7, 5]), ("narrow", [5, 7, 5, 5, 0])];
        for name in ["set-group-ID", "wide", "narrow"] {
            let parent = place.join(name);
            fs::create_dir(&parent).unwrap();
            if let Some((_, rights)) = acls.iter().find(|(wide, _)| *wide == name) {
                set_attribute(&parent, DEFAULT, &acl(*rights));
            } else {
                if is_root() {
                    chown(&parent, None, Some(1)).unwrap();
                }
                mode(&parent, 0o2770);
            }
            let to = format!("h2:{name}/rdcp/of/tree");
            let arguments = ["-r", "-P", "h1:tree", &to];
            hosts.rdcp(&arguments).start().end().exits(0);
            let (from, above) = (original.display(), parent.display());
            // cp gives rights back that it has withheld, whatever the ACL says.
            let cp_umask = if name == "narrow" { "022" } else { umask };
            run_shell(&format!(
                "umask {umask}; mkdir -p {above}/cp/of; umask {cp_umask}; cp -r {from} {above}/cp/of/tree"
            ));
            let [found, expected] =
                ["rdcp", "cp"].map(|program| directories(&parent.join(program)));
            assert_eq!(found.len(), modes.len() + 2);
            assert_eq!(found, expected, "in {name}, umask {umask}");
        }
    }
}

#[test]
fn a_copy_that_was_cut_leaves_directories_with_their_rights() {
    for options in [&["-r"][..], &["-a"]] {
        let hosts = Hosts::new("umask 027");
        let original = hosts.path("h1", "tree");
        let modes = [
            ("", 0o755),
            ("a", 0o775),
            ("a/b", 0o751),
            ("a/b/c", 0o700),
            ("a/b/c/d", 0o555),
        ];
        for (name, _) in modes {
            fs::create_dir_all(original.join(name)).unwrap();
        }
        large(&original.join("a/b/c/d/large"), 24 << 20);
        tree(&original, &modes);
        let arguments = [options, &["-P", "h1:tree", "h2:new/parents/tree"]].concat();
        let limited = [&["--bwlimit", "8M", "-j", "4"], &arguments[..]].concat();
        let rdcp = hosts.rdcp(&limited).start();
        let copy = hosts.path("h2", "new/parents/tree");
        assert!(arrives(&rdcp, &copy, 2 << 20), "{:?}", rdcp.end());
        rdcp.signal(Signal::INT);
        rdcp.end().exits(130);
        let bits = |name: &str| directories(&hosts.path("h2", "new"))[Path::new(name)].mode;
        let parents = || ["", "parents"].map(bits);
        assert_eq!(parents(), [0o750; 2], "{options:?}");
        if options == ["-r"] {
            // Until the end, the owner may write.
            let rights = ["", "/a", "/a/b", "/a/b/c", "/a/b/c/d"];
            let rights = rights.map(|name| bits(&format!("parents/tree{name}")));
            assert_eq!(rights, [0o750, 0o750, 0o750, 0o700, 0o750]);
        }
        let again = [&["-T", "--resume"], &arguments[..]].concat();
        hosts.rdcp(&again).start().end().exits(0);
        assert_eq!(parents(), [0o750; 2], "{options:?}");
        if options == ["-a"] {
            assert_same(&original, &copy);
        }
    }
}

const USER: u32 = 65_534;

/// Returns rdcp as a normal user, to whom everything in `top` belongs.
fn of_user(top: &Path, arguments: &[&str]) -> Setup {
    let setup = program(env!("CARGO_BIN_EXE_rdcp"), "rdcp");
    let setup = setup.args(arguments).env("HOME", top);
    if is_root() {
        run_shell(&format!("chown -hR {USER}:{USER} {}", top.display()));
        setup.user(USER)
    } else {
        setup
    }
}

#[test]
fn a_normal_users_read_only_directories_take_over_a_tree() {
    for options in [&["--skip-same"][..], &["--delete"]] {
        let place = Place::new();
        let top = place.directory();
        let [original, copy] = ["s/T", "d/T"].map(|name| top.join(name));
        let roots: Vec<_> = (0..60).map(|number| format!("{number}")).collect();
        for root in &roots {
            fs::create_dir_all(original.join(root).join("new/inner")).unwrap();
            fs::write(original.join(root).join("new/inner/file"), root).unwrap();
            fs::create_dir_all(copy.join(root)).unwrap();
            for at in [&original, &copy] {
                mode(&at.join(root), 0o555);
            }
        }
        // Its owner cannot even search it.
        mode(&copy.join(&roots[0]), 0);
        mode(&copy, 0o555);
        let [from, to] = [&original, &top.join("d")].map(|path| path.display().to_string());
        let arguments = [&["-q", "-a"], options, &[&from, &to]].concat();
        let end = of_user(top, &arguments).start().end();
        end.exits(0);
        assert_eq!(end.stderr, "", "{options:?}");
        assert_same(&original, &copy);
        for root in &roots {
            for at in [&original, &copy] {
                mode(&at.join(root), 0o755);
            }
        }
    }
}

#[test]
fn a_normal_users_directories_get_their_modes_back_after_a_cut() {
    let place = Place::new();
    let top = place.directory();
    for name in ["s/T/a/new", "d/T/a"] {
        fs::create_dir_all(top.join(name)).unwrap();
    }
    large(&top.join("s/T/a/new/large"), 24 << 20);
    let locked = [("d/T/a", 0o500), ("d/T", 0o555)];
    for (name, bits) in locked {
        mode(&top.join(name), bits);
    }
    let [from, to] = ["s/T", "d"].map(|name| top.join(name).display().to_string());
    let arguments = ["-a", "--bwlimit", "8M", &from, &to];
    let rdcp = of_user(top, &arguments).start();
    let has_begun = arrives(&rdcp, &top.join("d/T/a/new"), 2 << 20);
    assert!(has_begun, "{:?}", rdcp.end());
    rdcp.signal(Signal::INT);
    rdcp.end().exits(130);
    let found = locked.map(|(name, _)| info(top.join(name)).mode() & 0o7777);
    assert_eq!(found, locked.map(|(_, bits)| bits));
    for (name, _) in locked {
        mode(&top.join(name), 0o755);
    }
}

#[test]
fn a_directory_that_a_normal_user_cannot_remove_keeps_its_mode() {
    if !is_root() {
        skip("only root can make a directory of another user");
        return;
    }
    let place = Place::new();
    let top = place.directory();
    for name in ["s/T/kept", "d/T/kept", "d/T/stays"] {
        fs::create_dir_all(top.join(name)).unwrap();
    }
    let stays = top.join("d/T/stays");
    mode(&stays, 0o333);
    let [from, to] = ["s/T", "d"].map(|name| top.join(name).display().to_string());
    let setup = of_user(top, &["-r", "--delete", &from, &to]);
    chown(top.join("d/T"), Some(0), Some(0)).unwrap();
    setup.start().end().exits(1);
    assert_eq!(info(&stays).mode() & 0o7777, 0o333);
}

#[test]
fn a_dry_run_names_what_a_normal_user_cannot_read_or_write() {
    for (to, word) in [
        ("locked/new", "locked/new: cannot "),
        ("locked", "locked"),
        ("new", "secret: cannot be read"),
    ] {
        let place = Place::new();
        let top = place.directory();
        for name in ["tree", "locked"] {
            fs::create_dir_all(top.join(name)).unwrap();
        }
        for name in ["tree/secret", "tree/file"] {
            fs::write(top.join(name), "content").unwrap();
        }
        mode(&top.join("tree/secret"), 0);
        mode(&top.join("locked"), 0o555);
        let [from, to] = ["tree/.", to].map(|name| top.join(name).display().to_string());
        for option in ["-rTn", "-rT"] {
            let end = of_user(top, &[option, &from, &to]).start().end();
            let said = end.exits(1);
            let refused = said.contains(word) && said.contains("Permission denied");
            assert!(refused, "{option} {word}: {said}");
        }
        mode(&top.join("locked"), 0o755);
    }
}
