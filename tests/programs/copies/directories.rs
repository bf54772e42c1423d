//! Rights of directories at the destination: those of new ones, those after a cut, and those that a normal user's own
//! directories lack.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, chown},
    path::{Path, PathBuf},
    process::Command,
};

use rustix::process::Signal;

use super::{
    compare::{Entry, Tree, assert_same},
    metadata::{DEFAULT, acl, info, set_attribute},
    moments::arrives,
    trees::{is_root, large, mode},
};
use crate::support::programs::{Place, Setup, local_hosts::Hosts, program, skip};

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
fn shell(line: &str) {
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
            shell(&format!(
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

/// The number of a normal user.
const USER: u32 = 65_534;

/// Returns rdcp as a normal user, to whom everything in `top` belongs.
fn of_user(top: &Path, arguments: &[&str]) -> Setup {
    let setup = program(env!("CARGO_BIN_EXE_rdcp"), "rdcp");
    let setup = setup.args(arguments).env("HOME", top);
    if is_root() {
        shell(&format!("chown -hR {USER}:{USER} {}", top.display()));
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
