//! Where things go: the cases of cp.

use std::{
    os::unix::fs::{FileTypeExt, MetadataExt, symlink},
    thread::{self, JoinHandle},
};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;

fn tree(top: &str) -> Vec<Step> {
    let inner = format!("{top}/inner");
    vec![
        folder(top, 0o755),
        file("a", "one"),
        folder(&inner, 0o700),
        file("b", "two"),
    ]
}

#[tokio::test]
async fn an_entry_with_the_name_of_an_unfinished_file_is_named_and_disturbs_none() {
    for others_first in [false, true] {
        let (_scratch, dest) = scratch();
        let others = [file(".big.rdcp-part", "x"), file(".big.rdcp-map", "y")];
        let big = [
            large(0, 1, "top/big", 3),
            part(0, 1, 0, b"abc"),
            large_end(0, 1, Some(3)),
        ];
        let mut steps = vec![folder("top", 0o755)];
        if others_first {
            steps.extend(others.into_iter().chain(big));
        } else {
            steps.extend(big.into_iter().chain(others));
        }
        let end = copy(&dest, &archive(), steps).await;
        let failures = end.failures();
        assert_eq!(failures.len(), 2, "{failures:?}");
        assert!(
            failures[0].1.contains(".big.rdcp-part has a name"),
            "{failures:?}"
        );
        assert_eq!(names_in(&dest), ["big"]);
        assert_eq!(fs::read(dest.join("big")).unwrap(), b"abc");
    }
}

#[tokio::test]
async fn an_existing_directory_receives_the_source_under_its_name() {
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    copy(&dest, &archive(), tree("top")).await.assert_whole();
    assert_eq!(fs::read(dest.join("top/inner/b")).unwrap(), b"two");
    let end = copy(&dest, &archive(), vec![place(), file("f", "x")]).await;
    end.assert_whole();
    assert_eq!(fs::read(dest.join("f")).unwrap(), b"x");
    assert_eq!((end.report.files, end.report.bytes), (1, 1));
}

#[tokio::test]
async fn a_missing_destination_is_the_copy() {
    let (_scratch, dest) = scratch();
    copy(&dest, &archive(), tree("top")).await.assert_whole();
    assert_eq!(names_in(&dest), ["a", "inner"]);
    let (_scratch, dest) = scratch();
    copy(&dest, &archive(), vec![place(), file("f", "x")])
        .await
        .assert_whole();
    assert_eq!(fs::read(&dest).unwrap(), b"x");
}

#[tokio::test]
async fn contents_make_the_destination() {
    let (_scratch, dest) = scratch();
    let steps = vec![
        folder("", 0o750),
        file("a", "one"),
        folder("inner", 0o700),
        file("b", "two"),
    ];
    copy(&dest, &archive(), steps).await.assert_whole();
    assert_eq!(names_in(&dest), ["a", "inner"]);
    assert_eq!(fs::read(dest.join("inner/b")).unwrap(), b"two");
}

#[tokio::test]
async fn contents_have_their_places_in_whatever_order_the_lanes_bring_them() {
    let (_scratch, dest) = scratch();
    let inner = LaneRecord::Folder {
        path: path("inner"),
        metadata: Some(metadata(0o700, 0)),
        above: Vec::new(),
    };
    let b = LaneRecord::File {
        name: name("b"),
        metadata: metadata(0o600, 0),
    };
    let steps = vec![
        Step::Record(1, inner, Vec::new()),
        Step::Record(1, b, b"two".to_vec()),
        large(1, 1, "big", 3),
        part(1, 1, 0, b"big"),
        large_end(1, 1, Some(3)),
        folder("", 0o750),
        file("a", "one"),
    ];
    copy(&dest, &archive(), steps).await.assert_whole();
    assert_eq!(names_in(&dest), ["a", "big", "inner"]);
    assert_eq!(fs::read(dest.join("inner/b")).unwrap(), b"two");
}

#[tokio::test]
async fn without_a_target_directory_the_trees_are_merged() {
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    fs::write(dest.join("kept"), "").unwrap();
    let options = CopyOptions {
        no_target_directory: true,
        ..archive()
    };
    copy(&dest, &options, tree("top")).await.assert_whole();
    assert_eq!(names_in(&dest), ["a", "inner", "kept"]);
    let end = copy(&dest, &options, vec![place(), file("f", "x")]).await;
    assert!(
        end.failures()[0]
            .1
            .contains("a directory cannot be replaced")
    );
    assert_eq!(names_in(&dest), ["a", "inner", "kept"]);
}

#[tokio::test]
async fn missing_parents_are_made_if_asked_for() {
    let (_scratch, dest) = scratch();
    let deep = dest.join("x/y");
    let typed = deep.to_str().unwrap().as_bytes().to_vec();
    let refused = copy_typed(typed, &archive(), vec![]).await.err().unwrap();
    assert!(refused.contains("give -P"), "{refused}");
    let options = CopyOptions {
        parents: true,
        ..archive()
    };
    copy(&deep, &options, vec![place(), file("f", "x")])
        .await
        .assert_whole();
    assert_eq!(fs::read(&deep).unwrap(), b"x");
}

#[tokio::test]
async fn a_place_that_cannot_be_is_refused() {
    let (_scratch, dest) = scratch();
    fs::write(&dest, "file").unwrap();
    let typed = dest.to_str().unwrap().as_bytes().to_vec();
    let many = DestinationEngine::prepare(
        &BaseDirectory::Working,
        &typed,
        CopiedSources::Many,
        archive(),
    )
    .unwrap_err();
    assert!(many.contains("is not a directory"), "{many}");
    let slash = [&typed[..], b"/"].concat();
    let refused = DestinationEngine::prepare(
        &BaseDirectory::Working,
        &slash,
        CopiedSources::One,
        archive(),
    )
    .unwrap_err();
    assert!(refused.contains("Not a directory"), "{refused}");
    let end = copy(&dest, &archive(), tree("top")).await;
    assert!(end.failures()[0].1.contains("a directory does not replace"));
    assert_eq!(fs::read(&dest).unwrap(), b"file");
    let (_scratch, dest) = scratch();
    let typed = [dest.to_str().unwrap().as_bytes(), b"/"].concat();
    let end = copy_typed(typed, &archive(), vec![place(), file("f", "x")])
        .await
        .unwrap();
    assert!(end.failures()[0].1.contains("is not a directory"));
    assert!(!dest.exists());
}

#[tokio::test]
async fn a_link_at_the_target_is_replaced() {
    let (scratch, dest) = scratch();
    let outside = scratch.path().join("outside");
    fs::write(&outside, "outside").unwrap();
    fs::create_dir(&dest).unwrap();
    symlink(&outside, dest.join("f")).unwrap();
    copy(&dest, &archive(), vec![place(), file("f", "x")])
        .await
        .assert_whole();
    assert!(fs::symlink_metadata(dest.join("f")).unwrap().is_file());
    assert_eq!(fs::read(&outside).unwrap(), b"outside");
}

fn make_fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// Makes a FIFO, and returns what a reader gets from it.
fn read_fifo(path: &Path) -> JoinHandle<Vec<u8>> {
    make_fifo(path);
    let path = path.to_owned();
    thread::spawn(move || fs::read(path).unwrap())
}

fn is_fifo(path: &Path) -> bool {
    fs::symlink_metadata(path).unwrap().file_type().is_fifo()
}

#[tokio::test]
async fn a_fifo_that_the_user_named_is_written() {
    let (_scratch, dest) = scratch();
    let reader = read_fifo(&dest);
    let end = copy(&dest, &archive(), vec![place(), file("f", "contents")]).await;
    end.assert_whole();
    assert_eq!(reader.join().unwrap(), b"contents");
    assert!(is_fifo(&dest));
    // Through a link, and in the directory that receives the source.
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    let reader = read_fifo(&dest.join("fifo"));
    symlink("fifo", dest.join("f")).unwrap();
    copy(&dest, &archive(), vec![place(), file("f", "linked")])
        .await
        .assert_whole();
    assert_eq!(reader.join().unwrap(), b"linked");
    assert!(dest.join("f").is_symlink());
}

#[tokio::test]
async fn a_fifo_in_a_tree_is_replaced() {
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    make_fifo(&dest.join("a"));
    let options = CopyOptions {
        no_target_directory: true,
        ..archive()
    };
    copy(&dest, &options, tree("top")).await.assert_whole();
    assert_eq!(fs::read(dest.join("a")).unwrap(), b"one");
}

#[tokio::test]
async fn the_parts_of_two_lanes_reach_a_fifo_in_their_order() {
    let (_scratch, dest) = scratch();
    let reader = read_fifo(&dest);
    let (start, end) = (6, 9);
    let hole = LaneRecord::Hole { id: 1, start, end };
    let steps = vec![
        large(0, 1, "f", 16),
        large(1, 1, "f", 16),
        Step::Record(1, hole, Vec::new()),
        part(1, 1, 9, b"three"),
        large_end(1, 1, Some(11)),
        part(0, 1, 0, b"one"),
        part(0, 1, 3, b"two"),
    ];
    let end = copy(&dest, &CopyOptions::default(), steps).await;
    end.assert_whole();
    assert_eq!(reader.join().unwrap(), b"onetwo\0\0\0three\0\0");
    assert!(is_fifo(&dest));
}

#[tokio::test]
async fn a_file_that_the_source_cannot_read_ends_the_wait_for_its_parts() {
    let (_scratch, dest) = scratch();
    let reader = read_fifo(&dest);
    let steps = vec![
        large(0, 1, "f", 16),
        large(1, 1, "f", 16),
        part(0, 1, 0, b"one"),
        part(1, 1, 8, b"three"),
        large_end(0, 1, None),
        large_end(1, 1, None),
    ];
    let end = copy(&dest, &CopyOptions::default(), steps).await;
    assert!(end.failure.is_none());
    assert_eq!(reader.join().unwrap(), b"one");
}

#[tokio::test]
async fn a_full_device_fails_the_file() {
    let device = Path::new("/dev/full");
    let end = copy(device, &archive(), vec![place(), file("f", "x")]).await;
    let failures = end.failures();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(failures[0].1.contains("No space left"), "{failures:?}");
    let end = copy(
        device,
        &archive(),
        vec![
            large(0, 1, "f", 3),
            part(0, 1, 0, b"abc"),
            large_end(0, 1, Some(3)),
        ],
    )
    .await;
    let failures = end.failures();
    assert!(failures[0].1.contains("No space left"), "{failures:?}");
}

#[tokio::test]
async fn a_server_writes_to_no_fifo() {
    let (scratch, dest) = scratch();
    make_fifo(&dest);
    let base = BaseDirectory::root(scratch.path()).unwrap();
    let steps = vec![place(), file("f", "x")];
    let sources = sources_of(&steps);
    let engine = DestinationEngine::prepare(&base, b"dest", sources, archive()).unwrap();
    let end = run(engine, steps).await;
    assert!(end.failures()[0].1.contains("a server does not write to"));
    assert!(is_fifo(&dest));
}

#[tokio::test]
async fn folders_above_have_their_modes_before_the_source_has_named_them() {
    let (_scratch, dest) = scratch();
    let deep = LaneRecord::Folder {
        path: path("top/a/b"),
        metadata: Some(metadata(0o555, 0)),
        above: vec![0o2770, 0o1755],
    };
    let options = CopyOptions {
        parents: true,
        ..CopyOptions::default()
    };
    let place = dest.join("parent/copy");
    // A part of no file ends the run.
    let steps = vec![Step::Record(0, deep, Vec::new()), part(0, 1, 0, b"x")];
    copy(&place, &options, steps).await.broken();
    let mode = |name: &str| fs::metadata(dest.join(name)).unwrap().mode() & 0o7777;
    let umask = crate::fd::umask().as_raw_mode();
    let found = [
        "",
        "parent",
        "parent/copy",
        "parent/copy/a",
        "parent/copy/a/b",
    ]
    .map(mode);
    let wanted = [0o777, 0o777, 0o1755, 0o770, 0o755];
    assert_eq!(found, wanted.map(|mode| mode & !umask | 0o700));
}
