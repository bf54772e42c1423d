//! Metadata that a run keeps or cannot keep: as a normal user, without -a, on a file system without attributes, or one
//! that stores coarser times than the source's, or no years after 2038.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink},
    path::Path,
    process::Command,
};

use super::trees::{large, mode, stamp};
use crate::support::programs::{
    hosts::{Network, Outcome},
    install,
    local_hosts::Hosts,
};

/// Makes a network with rdpipe where the user `guest` may run it.
pub(super) fn with_guests(count: usize) -> Option<Network> {
    let network = Network::new(count)?;
    for host in network.hosts() {
        let own = network.own(&format!("{host}/bin/rdpipe"));
        install(Path::new(env!("CARGO_BIN_EXE_rdpipe")), &own);
    }
    Some(network)
}

pub(super) fn info(path: impl AsRef<Path>) -> fs::Metadata {
    let path = path.as_ref();
    fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn unreadable_files_are_named_and_all_others_arrive() {
    let Some(network) = with_guests(2) else {
        return;
    };
    let tree = network.file("h1", "tree");
    fs::create_dir_all(tree.join("shut")).unwrap();
    for name in ["secret", "open", "shut/file", "large secret"] {
        fs::write(tree.join(name), name).unwrap();
        mode(&tree.join(name), 0o644);
    }
    for name in ["secret", "large secret", "shut"] {
        mode(&tree.join(name), 0);
    }
    let end = network.rdcp(["-a", "guest@h1:tree", "h2:"]).start().end();
    end.tells(
        1,
        &["secret", "Permission denied", "large secret", "shut", "h1"],
    );
    assert_eq!(network.read("h2", "tree/open"), b"open");
    for name in ["tree/secret", "tree/large secret", "tree/shut/file"] {
        assert!(!network.file("h2", name).exists(), "{name}");
    }
    // A directory where the user may not write.
    fs::create_dir(network.file("h2", "closed")).unwrap();
    mode(&network.file("h2", "closed"), 0o755);
    let end = network.rdcp(["h1:tree/open", "guest@h2:closed/"]).start();
    end.end().tells(1, &["open", "Permission denied", "h2"]);
    assert_eq!(
        fs::read_dir(network.file("h2", "closed")).unwrap().count(),
        0
    );
}

#[test]
fn what_a_normal_user_cannot_keep_is_named_once() {
    let Some(network) = with_guests(2) else {
        return;
    };
    let tree = network.file("h1", "tree");
    fs::create_dir_all(tree.join("folder")).unwrap();
    for number in 0..20 {
        let file = tree.join(format!("folder/file {number}"));
        fs::write(&file, b"content").unwrap();
        chown(&file, Some(1), Some(1)).unwrap();
        mode(&file, if number == 3 { 0o4755 } else { 0o640 });
        stamp(&file, 1_234_567_890, 123);
    }
    let end = network.rdcp(["-a", "h1:tree", "guest@h2:"]).start().end();
    end.exits(0);
    let owners = end.stderr.lines().filter(|line| line.contains("owner"));
    assert_eq!(owners.count(), 1, "{}", end.stderr);
    for number in 0..20 {
        let copy = info(network.file("h2", &format!("tree/folder/file {number}")));
        assert_eq!((copy.uid(), copy.gid()), (65_534, 65_534));
        assert_eq!((copy.mtime(), copy.mtime_nsec()), (1_234_567_890, 123));
        // Set-user-ID for another user than the owner would give rights to the wrong user.
        let expected = if number == 3 { 0o755 } else { 0o640 };
        assert_eq!(copy.mode() & 0o7777, expected);
    }
}

#[test]
fn owners_are_kept_by_name() {
    let Some(network) = Network::new(2) else {
        return;
    };
    // Both hosts know this user, by other numbers.
    for (host, number) in [("h1", 2001), ("h2", 2002)] {
        let line = format!("user:x:{number}:{number}::/:/bin/sh");
        network.on(host, &format!("echo {line} >>/etc/passwd"));
    }
    let tree = network.file("h1", "tree");
    fs::create_dir(&tree).unwrap();
    for (name, owner) in [("known", 2001), ("unknown", 3003)] {
        fs::write(tree.join(name), name).unwrap();
        chown(tree.join(name), Some(owner), Some(3003)).unwrap();
    }
    network
        .rdcp(["-a", "h1:tree", "h2:"])
        .start()
        .end()
        .exits(0);
    let owners = |name: &str| {
        let copy = info(network.file("h2", name));
        (copy.uid(), copy.gid())
    };
    assert_eq!(owners("tree/known"), (2002, 3003));
    assert_eq!(owners("tree/unknown"), (3003, 3003));
}

#[test]
fn without_archive_a_copy_is_made_like_a_new_file() {
    let hosts = Hosts::new("umask 027");
    hosts.file("h1", "tree/file", b"content");
    hosts.file("h1", "tree/script", b"content");
    let tree = hosts.path("h1", "tree");
    mode(&tree.join("file"), 0o666);
    mode(&tree.join("script"), 0o4777);
    fs::hard_link(tree.join("file"), tree.join("twin")).unwrap();
    symlink("file", tree.join("link")).unwrap();
    stamp(&tree.join("file"), 1000, 0);
    stamp(&tree, 1000, 0);
    mode(&tree, 0o777);
    hosts.rdcp(&["-r", "h1:tree", "h2:"]).start().end().exits(0);
    let copy = hosts.path("h2", "tree");
    let bits = |name: &str| info(copy.join(name)).mode() & 0o7777;
    assert_eq!(["file", "script", "."].map(bits), [0o640, 0o750, 0o750]);
    assert!(info(copy.join("file")).mtime() > 1_000_000);
    assert!(info(&copy).mtime() > 1_000_000);
    assert_eq!(info(copy.join("twin")).nlink(), 1);
    assert_eq!(fs::read_link(copy.join("link")).unwrap(), Path::new("file"));
}

#[test]
fn folders_that_were_there_get_their_metadata_too() {
    let hosts = Hosts::new("");
    hosts.file("h1", "tree/a/b/file", b"content");
    hosts.file("h2", "tree/a/b/old", b"old");
    for (name, bits) in [("tree/a/b", 0o550), ("tree/a", 0o751), ("tree", 0o710)] {
        mode(&hosts.path("h1", name), bits);
        stamp(&hosts.path("h1", name), 1_000_000, 5);
    }
    fs::set_permissions(hosts.path("h2", "tree"), Permissions::from_mode(0o777)).unwrap();
    hosts.rdcp(&["-a", "h1:tree", "h2:"]).start().end().exits(0);
    for name in ["tree/a/b", "tree/a", "tree"] {
        let [from, to] = ["h1", "h2"].map(|host| info(hosts.path(host, name)));
        assert_eq!(from.mode(), to.mode(), "{name}");
        assert_eq!((to.mtime(), to.mtime_nsec()), (1_000_000, 5), "{name}");
    }
    // So that the directory can be removed.
    for host in ["h1", "h2"] {
        mode(&hosts.path(host, "tree/a/b"), 0o755);
    }
}

#[test]
fn a_file_system_without_attributes_is_named_once() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let tree = network.file("h1", "tree");
    fs::create_dir(&tree).unwrap();
    for number in 0..5 {
        let file = tree.join(format!("file {number}"));
        fs::write(&file, b"content").unwrap();
        let set = rustix::fs::XattrFlags::empty();
        rustix::fs::lsetxattr(&file, "user.text", b"text", set).unwrap();
    }
    // ramfs has neither extended attributes nor ACLs.
    network.on("h2", "mkdir plain && mount -t ramfs ramfs plain");
    let end = network.rdcp(["-a", "h1:tree", "h2:plain"]).start().end();
    end.exits(0);
    let notes = end.stderr.lines().filter(|line| line.contains("attribute"));
    assert_eq!(notes.count(), 1, "{}", end.stderr);
    let list = network.on("h2", "cat plain/tree/*");
    assert_eq!(list, "content".repeat(5));
}

/// Returns an ACL with the rights of the owner, of the user 1, of the group, of the mask and of others.
pub(super) fn acl(rights: [u8; 5]) -> Vec<u8> {
    let tags = [1, 2, 4, 0x10, 0x20];
    let entries = tags.into_iter().zip(rights).flat_map(|(tag, rights)| {
        let id = if tag == 2 { 1 } else { u32::MAX };
        [&[tag, 0, rights, 0][..], &id.to_le_bytes()].concat()
    });
    [2, 0, 0, 0].into_iter().chain(entries).collect()
}

pub(super) fn set_attribute(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
}

pub(super) fn attribute(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = [0; 200];
    let count = rustix::fs::lgetxattr(path, name, &mut value[..]).ok()?;
    Some(value[..count].to_vec())
}

pub(super) const ACCESS: &str = "system.posix_acl_access";
pub(super) const DEFAULT: &str = "system.posix_acl_default";

#[test]
fn a_file_that_is_skipped_gets_the_metadata_that_have_changed() {
    for options in [&["--skip-same"][..], &["--update"], &["--resume"]] {
        let hosts = Hosts::new("");
        let [original, copy] = ["h1", "h2"].map(|host| hosts.path(host, "tree"));
        for name in ["moved", "marked", "shared", "same"] {
            hosts.file("h1", &format!("tree/{name}"), b"content");
            mode(&original.join(name), 0o644);
            stamp(&original.join(name), 1_234_567_890, 5);
        }
        set_attribute(&original.join("marked"), "user.old", b"old");
        let run = || {
            let arguments = [options, &["-aT", "h1:tree", "h2:tree"]].concat();
            hosts.rdcp(&arguments).start().end().exits(0);
        };
        run();
        let before = ["moved", "marked", "shared", "same"].map(|name| info(copy.join(name)));
        mode(&original.join("moved"), 0o400);
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            chown(original.join("moved"), Some(1), Some(2)).unwrap();
        }
        rustix::fs::lremovexattr(original.join("marked"), "user.old").unwrap();
        set_attribute(&original.join("marked"), "user.new", b"new");
        let rights = acl([6, 6, 0, 6, 0]);
        set_attribute(&original.join("shared"), ACCESS, &rights);
        let foresee = || {
            let arguments = [options, &["-naT", "h1:tree", "h2:tree"]].concat();
            let end = hosts.rdcp(&arguments).start().end();
            let listed = String::from_utf8(end.stdout).unwrap();
            let mut lines: Vec<_> = listed.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let expected = ["marked", "moved", "shared"].map(|name| format!("change {name}"));
        assert_eq!(foresee(), expected, "{options:?}");
        run();
        assert_eq!(foresee(), [] as [&str; 0], "{options:?}");
        let after = ["moved", "marked", "shared", "same"].map(|name| info(copy.join(name)));
        let inodes = |all: &[fs::Metadata; 4]| all.each_ref().map(MetadataExt::ino);
        assert_eq!(
            inodes(&before),
            inodes(&after),
            "sent again with {options:?}"
        );
        assert_eq!(after[0].mode() & 0o7777, 0o400, "{options:?}");
        if is_root {
            assert_eq!((after[0].uid(), after[0].gid()), (1, 2), "{options:?}");
        }
        let marked = copy.join("marked");
        assert_eq!(attribute(&marked, "user.new").as_deref(), Some(&b"new"[..]));
        assert_eq!(attribute(&marked, "user.old"), None);
        assert_eq!(attribute(&copy.join("shared"), ACCESS), Some(rights));
        assert_eq!(
            before[3].ctime_nsec(),
            after[3].ctime_nsec(),
            "changed without need"
        );
    }
}

#[test]
fn a_default_acl_gives_files_of_every_size_the_same_mode() {
    let hosts = Hosts::new("umask 022");
    let folder = hosts.path("h2", "shared");
    hosts.file("h2", "shared/old", b"old");
    mode(&folder.join("old"), 0o640);
    set_attribute(&folder, DEFAULT, &acl([7, 7, 7, 7, 5]));
    for (name, bytes) in [
        ("small", 1000),
        ("large", 600 << 10),
        ("huge", 5 << 20),
        ("old", 9),
    ] {
        hosts.file("h1", name, &vec![b'x'; bytes]);
        mode(&hosts.path("h1", name), 0o664);
        hosts
            .rdcp(&[&format!("h1:{name}"), "h2:shared/"])
            .start()
            .end()
            .exits(0);
        let bits = info(folder.join(name)).mode() & 0o7777;
        assert_eq!(bits, if name == "old" { 0o640 } else { 0o664 }, "{name}");
        let acl = attribute(&folder.join(name), ACCESS);
        assert_eq!(
            acl.is_some(),
            name != "old",
            "{name} gives rights by an ACL"
        );
    }
    // With -a, entries have what the source's have: also those that are not opened.
    rustix::fs::mknodat(
        rustix::fs::CWD,
        hosts.path("h1", "fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o640),
        0,
    )
    .unwrap();
    mode(&hosts.path("h1", "fifo"), 0o640);
    hosts
        .rdcp(&["-a", "h1:fifo", "h2:shared/"])
        .start()
        .end()
        .exits(0);
    assert_eq!(info(folder.join("fifo")).mode() & 0o7777, 0o640);
    assert_eq!(attribute(&folder.join("fifo"), ACCESS), None);
}

#[test]
fn a_file_that_replaces_another_keeps_its_acl() {
    let hosts = Hosts::new("");
    for bytes in [10, 600 << 10] {
        hosts.file("h1", "new", &vec![b'x'; bytes]);
        hosts.file("h2", "file", b"old");
        let target = hosts.path("h2", "file");
        let rights = acl([6, 6, 0, 6, 0]);
        set_attribute(&target, ACCESS, &rights);
        set_attribute(&target, "user.text", b"text");
        hosts.rdcp(&["h1:new", "h2:file"]).start().end().exits(0);
        assert_eq!(hosts.read("h2", "file").len(), bytes);
        assert_eq!(attribute(&target, ACCESS), Some(rights), "{bytes} bytes");
        assert_eq!(
            attribute(&target, "user.text").as_deref(),
            Some(&b"text"[..])
        );
        fs::remove_file(&target).unwrap();
    }
}

/// Returns two hosts; h2 has the directory `old` on a file system that stores whole seconds until 2038: ext4 with
/// inodes of 128 bytes. None if there can be none here.
fn with_old_file_system() -> Option<Network> {
    let version = Command::new("mkfs.ext4").arg("-V").output();
    if version.is_err() {
        eprintln!("SKIPPED: no mkfs.ext4");
        return None;
    }
    let network = Network::new(2)?;
    network.on(
        "h2",
        "truncate -s 40M image && mkfs.ext4 -q -I 128 image && mkdir old && mount -o loop image old",
    );
    Some(network)
}

#[test]
fn what_has_the_time_that_the_destination_stores_is_not_sent_again() {
    let Some(network) = with_old_file_system() else {
        return;
    };
    let tree = network.file("h1", "tree");
    fs::create_dir_all(tree.join("deep")).unwrap();
    for name in ["first", "changed", "deep/other"] {
        fs::write(tree.join(name), name).unwrap();
        stamp(&tree.join(name), 1_700_000_000, 678_901_234);
    }
    large(&tree.join("large"), 5 << 20);
    symlink("first", tree.join("link")).unwrap();
    let copy = |options: &[&str]| {
        let arguments = [options, &["-aT", "h1:tree", "h2:old/tree"]].concat();
        let end = network.rdcp(arguments).start().end();
        end.exits(0);
        end.stderr
    };
    copy(&[]);
    for option in ["--skip-same", "--update", "--resume"] {
        for more in [&[option][..], &[option, "-n"]] {
            let told = copy(more);
            assert!(told.contains(" 0 files"), "{more:?}: {told}");
        }
    }
    // Of another size, in the same second.
    fs::write(tree.join("changed"), "changed again").unwrap();
    stamp(&tree.join("changed"), 1_700_000_000, 700_000_000);
    for option in ["--skip-same", "--update", "--resume"] {
        let told = copy(&[option]);
        let files = if option == "--skip-same" {
            " 1 file,"
        } else {
            " 0 files"
        };
        assert!(told.contains(files), "{option}: {told}");
    }
    stamp(&tree.join("first"), 1_700_000_001, 0);
    let told = copy(&["--update"]);
    assert!(told.contains(" 1 file,"), "{told}");
    assert_eq!(
        network.on("h2", "ls -A old/tree"),
        "changed\ndeep\nfirst\nlarge\nlink\n"
    );
}

#[test]
fn a_time_that_the_destination_cannot_store_is_named_and_the_file_is_sent_once() {
    let Some(network) = with_old_file_system() else {
        return;
    };
    for kind in ["file", "directory", "link"] {
        let tree = network.file("h1", kind);
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("file"), b"content").unwrap();
        let named = match kind {
            "directory" => tree.clone(),
            "link" => {
                symlink("file", tree.join("link")).unwrap();
                tree.join("link")
            }
            _ => tree.join("file"),
        };
        stamp(&named, 2_524_608_000, 5);
        let arguments = ["-aT", &format!("h1:{kind}"), &format!("h2:old/{kind}")];
        let end = network.rdcp(arguments).start().end();
        end.tells(
            0,
            &[
                "some times were not kept: the file system has no such years",
                "2050-01-01 00:00:00 UTC became 2038-01-19 03:14:07 UTC",
            ],
        );
        let again = [&["--skip-same"], &arguments[..]].concat();
        let end = network.rdcp(again).start().end();
        end.exits(0);
        assert!(end.stderr.contains(" 0 files"), "{kind}: {}", end.stderr);
    }
}
