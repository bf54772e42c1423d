//! Large and sparse files, and what a later run continues.

use std::os::unix::fs::MetadataExt;

use super::*;
use crate::copy::question::ByteRange;

const MIB: u64 = 1 << 20;

/// The size of a file that is kept when it is not complete.
const SIZE: u64 = 8 * MIB;

fn bytes(value: u8, count: u64) -> Vec<u8> {
    vec![value; usize::try_from(count).unwrap()]
}

fn resume() -> CopyOptions {
    CopyOptions {
        resume: true,
        ..archive()
    }
}

#[tokio::test]
async fn parts_of_two_lanes_become_one_file() {
    let (_scratch, dest) = scratch();
    let steps = vec![
        folder("top", 0o755),
        large(0, 1, "top/big", SIZE),
        large(1, 1, "top/big", SIZE),
        part(1, 1, SIZE - 3, b"end"),
        large_end(0, 1, Some(8)),
        part(0, 1, 0, b"begin"),
        large(0, 2, "top/hole", SIZE),
        large_end(0, 2, Some(0)),
    ];
    let end = copy(&dest, &archive(), steps).await;
    end.assert_whole();
    assert_eq!(names_in(&dest), ["big", "hole"]);
    let found = fs::metadata(dest.join("big")).unwrap();
    assert_eq!(
        (found.len(), found.mode() & 0o7777, found.mtime()),
        (SIZE, 0o640, 3_000)
    );
    assert!(found.blocks() * 512 < MIB, "{} blocks", found.blocks());
    let contents = fs::read(dest.join("big")).unwrap();
    assert!(contents.starts_with(b"begin\0") && contents.ends_with(b"\0end"));
    assert_eq!((end.report.files, end.report.bytes), (2, 8));
}

#[tokio::test]
async fn a_file_that_the_source_cannot_read_gets_no_name() {
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    let steps = vec![
        large(0, 1, "a", 10),
        part(0, 1, 0, b"abc"),
        large_end(0, 1, None),
        large(1, 1, "a", 10),
        part(1, 1, 3, b"def"),
    ];
    let end = copy(&dest, &archive(), steps).await;
    assert!(end.failure.is_none());
    assert_eq!(names_in(&dest), [""; 0]);
}

#[tokio::test]
async fn nothing_stays_of_a_file_that_no_later_run_can_continue() {
    let (_scratch, dest) = scratch();
    fs::create_dir_all(dest.join("taken")).unwrap();
    let changed = LaneRecord::LargeFileChanged { id: 2 };
    let steps = vec![
        // A directory has its name.
        large(0, 1, "taken", SIZE),
        part(0, 1, 0, &bytes(1, MIB)),
        large_end(0, 1, Some(MIB)),
        large(0, 2, "changed", SIZE),
        part(0, 2, 0, &bytes(2, MIB)),
        Step::Record(0, changed, Vec::new()),
        large(0, 3, "unreadable", SIZE),
        part(0, 3, 0, &bytes(3, MIB)),
        large_end(0, 3, None),
    ];
    let end = copy(&dest, &archive(), steps).await;
    assert!(end.failure.is_none());
    let failures = end.failures();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert_eq!(failures[0].1, "cannot replace a directory");
    assert_eq!(
        names_in(&dest),
        [".unreadable.rdcp-map", ".unreadable.rdcp-part", "taken"]
    );
}

#[tokio::test]
async fn a_later_run_continues() {
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    let steps = vec![
        large(0, 1, "big", SIZE),
        part(0, 1, 0, &bytes(1, MIB)),
        part(0, 1, MIB, &bytes(2, MIB)),
        part(0, 1, 4 * MIB, &bytes(3, MIB)),
    ];
    copy(&dest, &archive(), steps).await;
    assert_eq!(names_in(&dest), [".big.rdcp-map", ".big.rdcp-part"]);
    let end = copy(
        &dest,
        &resume(),
        vec![ask("", &[("big", SIZE, 3_001), ("no", SIZE, 3)])],
    )
    .await;
    assert_eq!(end.kinds(), [AnswerKind::Send, AnswerKind::Send]);
    let range = |start, end| ByteRange {
        start: start * MIB,
        end: end * MIB,
    };
    let resumed = |size| {
        let mut step = large(0, 1, "big", size);
        if let Step::Record(_, LaneRecord::LargeFile(file), _) = &mut step {
            file.resumed = true;
        }
        step
    };
    let end = copy(
        &dest,
        &resume(),
        vec![resumed(SIZE), large_end(0, 1, Some(0))],
    )
    .await;
    assert!(
        end.failures()[0].1.contains("has changed"),
        "a file that was not promised"
    );
    let steps = vec![
        ask("", &[("big", SIZE, 3_000)]),
        resumed(SIZE),
        part(0, 1, 2 * MIB, &bytes(4, 2 * MIB)),
        part(0, 1, 5 * MIB, &bytes(5, 3 * MIB)),
        large_end(0, 1, Some(5 * MIB)),
    ];
    let end = copy(&dest, &resume(), steps).await;
    end.assert_whole();
    assert_eq!(
        end.kinds(),
        [AnswerKind::Resume(vec![range(0, 2), range(4, 5)])]
    );
    assert_eq!(end.report.resumed_bytes, 3 * MIB);
    let parts = [(1, 1), (2, 1), (4, 2), (3, 1), (5, 3)];
    let whole = parts
        .iter()
        .map(|&(value, count)| bytes(value, count * MIB));
    assert!(fs::read(dest.join("big")).unwrap() == whole.collect::<Vec<_>>().concat());
    assert_eq!(names_in(&dest), ["big"]);
    let end = copy(&dest, &resume(), vec![ask("", &[("big", SIZE, 3_000)])]).await;
    assert_eq!(end.kinds(), [AnswerKind::Skip]);
}

#[tokio::test]
async fn after_a_restart_the_ranges_are_digested() {
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    let contents = bytes(7, MIB);
    let steps = vec![large(0, 1, "big", SIZE), part(0, 1, 0, &contents)];
    copy(&dest, &archive(), steps).await;
    let map = dest.join(".big.rdcp-map");
    let whole = fs::read(&map).unwrap();
    fs::write(
        &map,
        crate::copy::destination::large::map::of_another_boot(&whole),
    )
    .unwrap();
    let end = copy(&dest, &resume(), vec![ask("", &[("big", SIZE, 3_000)])]).await;
    let digest = twox_hash::XxHash3_64::oneshot(&contents);
    let range = ByteRange { start: 0, end: MIB };
    assert_eq!(end.kinds(), [AnswerKind::Compare(vec![(range, digest)])]);
    fs::write(&map, b"damaged").unwrap();
    let end = copy(&dest, &resume(), vec![ask("", &[("big", SIZE, 3_000)])]).await;
    assert_eq!(end.kinds(), [AnswerKind::Send]);
}

#[tokio::test]
async fn without_resume_an_unfinished_file_begins_anew() {
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    let steps = vec![large(0, 1, "big", SIZE), part(0, 1, 0, &bytes(7, MIB))];
    copy(&dest, &archive(), steps).await;
    let steps = vec![
        large(0, 1, "big", SIZE),
        part(0, 1, MIB, b"x"),
        large_end(0, 1, Some(1)),
    ];
    copy(&dest, &archive(), steps).await.assert_whole();
    assert_eq!(fs::read(dest.join("big")).unwrap()[0], 0);
    assert_eq!(names_in(&dest), ["big"]);
}

#[tokio::test]
async fn a_size_that_no_file_can_have_fails_alone() {
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    let steps = vec![
        large(0, 1, "huge", u64::MAX),
        part(0, 1, 0, b"x"),
        large_end(0, 1, Some(1)),
        place(),
        file("good", "y"),
    ];
    let end = copy(&dest, &archive(), steps).await;
    assert!(
        end.failures()[0].1.contains("this size"),
        "{:?}",
        end.failures()
    );
    assert_eq!(fs::read(dest.join("good")).unwrap(), b"y");
}
