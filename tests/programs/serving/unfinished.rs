//! What a cut copy has left belongs to its client: no other client can read, write, link, list or remove it, and what
//! anything else has changed in it is sent again.

use std::{
    fs,
    os::unix::fs::{FileExt, symlink},
    path::PathBuf,
    process::Command,
};

use super::Served;
use crate::{copies::trees, support::programs::hosts::Outcome};

/// The bytes of the header of a map (`src/copy/destination/part_file.rs`).
const MAP_HEADER_BYTES: u64 = 64;

/// The size of the file that alice's copies send.
const SIZE: u64 = 24 << 20;

/// Cuts a copy of a client's own file to `path` after the server has noted some of it. Returns what is left of it: the
/// part and the map.
fn cut(served: &Served, client: &str, path: &str) -> [PathBuf; 2] {
    let own = served.here(client);
    if !own.exists() {
        trees::large(&own, SIZE);
        let file = fs::File::options().write(true).open(&own);
        let file = file.expect("the client's own file");
        file.write_all_at(client.as_bytes(), 1 << 20).expect("room");
    }
    let line = format!("{client} (127.0.0.1)");
    let ends = |text: &str| text.lines().filter(|text| text.contains(&line)).count();
    let ended = served.server.said("anything", |text| Some(ends(text)));
    let others = served.temporaries(path);
    let words = [
        "--bwlimit",
        "5M",
        &format!("%{client}"),
        &format!("@{path}"),
    ];
    let copy = served.client(client, &words).start();
    let left = served.unfinished(path, MAP_HEADER_BYTES, &others);
    copy.kill();
    copy.end();
    let has_ended = |text: &str| (ends(text) > ended).then_some(());
    served.server.said("the end of the copy", has_ended);
    left
}

/// Returns the name of a file on the server.
fn name(path: &std::path::Path) -> String {
    let name = path.file_name().expect("it has a name");
    name.to_str().expect("it is ASCII").to_owned()
}

fn sha256(path: &std::path::Path) -> String {
    let sum = Command::new("sha256sum")
        .arg(path)
        .output()
        .expect("sha256sum");
    let sum = String::from_utf8_lossy(&sum.stdout).into_owned();
    sum.split_whitespace().next().expect("a digest").to_owned()
}

/// Continues a client's copy as the loop of a detector does, and checks that nothing foreign is in it. Returns what rdcp
/// has said.
#[track_caller]
fn continues(served: &Served, client: &str, path: &str) -> String {
    let original = fs::read(served.here(client)).expect("the client's own file");
    let (own, there) = (format!("%{client}"), format!("@{path}"));
    let options = ["--resume", "--checksum=sha256", "--remove-source-files"];
    let words = [&options[..], &[&own, &there]].concat();
    let end = served.client(client, &words).start().end();
    let said = end.exits(0).to_owned();
    assert!(!served.here(client).exists());
    let written = fs::read(served.root(path)).expect("the copy");
    assert!(written == original, "foreign bytes");
    let list = String::from_utf8_lossy(&end.stdout).into_owned();
    let digest = list.split_whitespace().next().map(str::to_owned);
    assert_eq!(digest, Some(sha256(&served.root(path))), "{list}");
    said
}

fn contents(files: &[PathBuf; 2]) -> Vec<Vec<u8>> {
    let read = files
        .iter()
        .map(|path| fs::read(path).expect("it is still there"));
    read.collect()
}

#[test]
fn no_other_client_reads_what_a_copy_has_left() {
    let served = Served::start(&[]);
    fs::create_dir_all(served.root("sub")).unwrap();
    symlink("sub", served.root("way")).unwrap();
    let left = cut(&served, "alice", "sub/copy");
    let before = contents(&left);
    for path in left.iter().map(|path| name(path)) {
        for from in [
            format!("@sub/{path}"),
            format!("@/way//{path}"),
            format!("@sub/{}", path.to_uppercase()),
            format!("@sub/{path}/"),
            format!("@sub/{path}/x"),
        ] {
            for options in [
                &[][..],
                &["-r"],
                &["-a"],
                &["-n", "-r"],
                &["--remove-source-files"],
            ] {
                let words = [options, &[&from, "%stolen"]].concat();
                let end = served.client("bob", &words).start().end();
                end.tells(1, &["unfinished files"]);
                assert!(!served.here("stolen").exists(), "{words:?}");
            }
        }
    }
    // A walk meets them, and leaves them out.
    for (round, from) in ["@sub/.", "@/.", "@sub"].into_iter().enumerate() {
        let to = format!("%all-{round}");
        let words = ["-a", "-v", "--remove-source-files", from, &to];
        let end = served.client("bob", &words).start().end();
        end.tells(0, &["unfinished files of other copies were left out"]);
        let listed = String::from_utf8_lossy(&end.stdout).into_owned() + &end.stderr;
        assert!(
            !listed.contains("rdcp-part") && !listed.contains("rdcp-map"),
            "{listed}"
        );
        let found = Command::new("find").arg(served.here(&to[1..])).output();
        let found = String::from_utf8_lossy(&found.expect("find").stdout).into_owned();
        assert!(!found.contains(".rdcp-"), "{found}");
    }
    assert_eq!(contents(&left), before);
    let said = continues(&served, "alice", "sub/copy");
    assert!(said.contains("were there already"), "{said}");
}

#[test]
fn no_other_client_writes_or_links_what_a_copy_has_left() {
    let served = Served::start(&[]);
    let left = cut(&served, "alice", "copy");
    let before = contents(&left);
    fs::write(served.here("foreign"), vec![7; 5 << 20]).unwrap();
    fs::write(served.here("small"), "foreign").unwrap();
    fs::create_dir_all(served.here("tree/deep")).unwrap();
    for path in left.iter().map(|path| name(path)) {
        for other in [path.clone(), path.to_uppercase()] {
            for from in ["%foreign", "%small"] {
                let to = format!("@{other}");
                let end = served.client("bob", &[from, &to]).start().end();
                end.tells(1, &["unfinished files"]);
            }
        }
        // Beside others that arrive; a directory of the name; a link to it, and a hard link.
        fs::write(served.here("tree").join(&path), "foreign").unwrap();
        fs::hard_link(served.here("tree").join(&path), served.here("tree/twin")).unwrap();
        fs::create_dir_all(served.here("tree/deep").join(&path)).unwrap();
        fs::write(served.here("tree/deep").join(&path).join("inner"), "x").unwrap();
        symlink(format!("../{path}"), served.here("tree/link")).unwrap();
        fs::write(served.here("tree/honest"), "x").unwrap();
        let words = ["-aT", "--remove-source-files", "%tree", "@."];
        let end = served.client("bob", &words).start().end();
        end.tells(1, &["unfinished files"]);
        assert!(served.root("honest").exists() && !served.here("tree/honest").exists());
        // What did not arrive is still here, and each was named.
        assert!(served.here("tree").join(&path).exists() && served.here("tree/link").is_symlink());
        assert!(served.here("tree/deep").join(&path).join("inner").exists());
        assert!(!served.root("link").is_symlink());
        assert!(!served.root("deep").join(&path).exists());
        for old in ["honest", "twin"] {
            let _ = fs::remove_file(served.root(old));
            let _ = fs::remove_file(served.here("tree").join(old));
        }
        fs::remove_file(served.here("tree/link")).unwrap();
        fs::remove_file(served.here("tree").join(&path)).unwrap();
    }
    assert_eq!(contents(&left), before);
    continues(&served, "alice", "copy");
}

#[test]
fn no_other_client_lists_or_removes_what_a_copy_has_left() {
    let served = Served::start(&[]);
    fs::create_dir_all(served.root("old/deep")).unwrap();
    fs::create_dir_all(served.here("tree")).unwrap();
    fs::write(served.here("tree/kept"), "x").unwrap();
    let left = cut(&served, "alice", "old/deep/copy");
    let before = contents(&left);
    fs::write(served.root("old/deep/other"), "x").unwrap();
    for options in [&["-n"][..], &["-v"]] {
        let words = [options, &["-aT", "--delete", "%tree", "@."]].concat();
        let end = served.client("bob", &words).start().end();
        end.exits(0);
        let listed = String::from_utf8_lossy(&end.stdout).into_owned() + &end.stderr;
        assert!(listed.contains("old/deep/other"), "{listed}");
        assert!(
            !listed.contains("rdcp-part") && !listed.contains("rdcp-map"),
            "{listed}"
        );
    }
    assert!(!served.root("old/deep/other").exists());
    assert_eq!(contents(&left), before);
    // A file does not take the place of the directory that they are in.
    fs::write(served.here("tree/old"), "x").unwrap();
    let words = ["-aT", "--delete", "%tree", "@."];
    let end = served.client("bob", &words).start().end();
    end.tells(1, &["cannot replace a directory", "may be continued"]);
    assert_eq!(contents(&left), before);
    continues(&served, "alice", "old/deep/copy");
}

#[test]
fn what_two_clients_have_left_of_one_file_stays_apart() {
    let served = Served::start(&[]);
    let of_alice = cut(&served, "alice", "copy");
    let before = contents(&of_alice);
    let of_bob = cut(&served, "bob", "copy");
    assert_eq!(contents(&of_alice), before);
    assert_ne!(of_alice, of_bob);
    for client in ["alice", "bob"] {
        let said = continues(&served, client, "copy");
        assert!(said.contains("were there already"), "{said}");
    }
    assert!(served.temporaries("copy").is_empty());
}

#[test]
fn what_another_hand_has_changed_is_sent_again() {
    let served = Served::start(&[]);
    let foreign = |part: &PathBuf, offset: u64| {
        let part = fs::File::options().write(true).open(part);
        let part = part.expect("the part");
        part.write_all_at(b"foreign", offset).expect("room");
    };
    // In what the map tells, and behind it.
    let [part, _] = cut(&served, "alice", "changed");
    foreign(&part, 3 << 20);
    foreign(&part, SIZE - 100);
    continues(&served, "alice", "changed");
    // The old map of a part that was begun anew since.
    let [part, _] = cut(&served, "alice", "replayed");
    let part = fs::File::options().write(true).open(part).unwrap();
    part.set_len(0).unwrap();
    part.set_len(SIZE).unwrap();
    continues(&served, "alice", "replayed");
    // What another client has left, under the names of this one.
    let of_bob = cut(&served, "bob", "mixed");
    let of_alice = cut(&served, "alice", "mixed");
    for (from, to) in of_bob.iter().zip(&of_alice) {
        fs::write(to, fs::read(from).unwrap()).unwrap();
    }
    let said = continues(&served, "alice", "mixed");
    assert!(!said.contains("were there already"), "{said}");
    // A map that says that everything is written.
    let [part, map] = cut(&served, "alice", "forged");
    foreign(&part, SIZE / 2);
    let mut forged = fs::read(&map).unwrap();
    let record = usize::try_from(MAP_HEADER_BYTES).unwrap();
    forged[record..record + 8].copy_from_slice(&0_u64.to_le_bytes());
    forged[record + 8..record + 16].copy_from_slice(&SIZE.to_le_bytes());
    fs::write(&map, forged).unwrap();
    let said = continues(&served, "alice", "forged");
    assert!(!said.contains("were there already"), "{said}");
}
