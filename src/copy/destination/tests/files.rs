//! Small entries, their metadata, links and owners; large and sparse files, and what a later run continues.

use std::os::unix::{
    ffi::OsStrExt,
    fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt},
};

use serde_bytes::ByteBuf;

use super::*;
use crate::copy::{
    block_digest::BlockDigest,
    order::{DigestKind, FileDigest},
    question::ByteRange,
};

fn special(text: &str, kind: EntryKind, target: &str) -> Step {
    let record = LaneRecord::Special {
        name: name(text),
        kind,
        target: target.as_bytes().to_vec(),
        metadata: metadata(0o640, 4_000),
    };
    Step::Record(0, record, Vec::new())
}

fn file_with(text: &str, mode: u32, contents: &str) -> Step {
    let metadata = metadata(mode, 2_000);
    let name = name(text);
    let record = LaneRecord::File { name, metadata };
    Step::Record(0, record, contents.as_bytes().to_vec())
}

#[tokio::test]
async fn modes_and_times_are_kept() {
    let (_scratch, dest) = scratch();
    let modes = [0o000, 0o400, 0o644, 0o666, 0o755, 0o4755, 0o2755, 0o1777];
    let mut steps = vec![folder("top", 0o555)];
    steps.extend(
        modes
            .iter()
            .map(|&mode| file_with(&format!("{mode:o}"), mode, "x")),
    );
    steps.push(folder("top/locked", 0o000));
    steps.push(file("in", "y"));
    copy(&dest, &archive(), steps).await.assert_whole();
    for mode in modes {
        let found = fs::symlink_metadata(dest.join(format!("{mode:o}"))).unwrap();
        assert_eq!(found.mode() & 0o7777, mode, "{mode:o}");
        assert_eq!((found.mtime(), found.mtime_nsec()), (2_000, 123_456_789));
    }
    for (folder, mode) in [(dest.clone(), 0o555), (dest.join("locked"), 0)] {
        let found = fs::symlink_metadata(&folder).unwrap();
        assert_eq!((found.mode() & 0o7777, found.mtime()), (mode, 1_000));
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    }
}

#[tokio::test]
async fn without_archive_the_umask_counts_and_an_old_mode_stays() {
    let (_scratch, dest) = scratch();
    let options = CopyOptions {
        recursive: true,
        ..CopyOptions::default()
    };
    fs::create_dir(&dest).unwrap();
    fs::write(dest.join("old"), "old").unwrap();
    fs::set_permissions(dest.join("old"), fs::Permissions::from_mode(0o600)).unwrap();
    let steps = vec![
        place(),
        file_with("old", 0o644, "new"),
        file_with("set", 0o4777, "x"),
    ];
    copy(&dest, &options, steps).await.assert_whole();
    let mode = |name: &str| fs::metadata(dest.join(name)).unwrap().mode() & 0o7777;
    let umask = crate::fd::umask().as_raw_mode();
    assert_eq!((mode("old"), mode("set")), (0o600, 0o777 & !umask));
    assert_eq!(fs::read(dest.join("old")).unwrap(), b"new");
}

#[tokio::test]
async fn links_and_special_files_are_made() {
    let (_scratch, dest) = scratch();
    let hard = LaneRecord::HardLink {
        name: name("hard"),
        target: path("top/a"),
    };
    let steps = [
        folder("top", 0o755),
        file("a", "one"),
        special("dangling", EntryKind::Symlink, "/nowhere/at all"),
        special("fifo", EntryKind::Fifo, ""),
        special("socket", EntryKind::Socket, ""),
        folder("top/inner", 0o755),
        Step::Record(0, hard, Vec::new()),
    ];
    for _ in 0..2 {
        let options = CopyOptions {
            no_target_directory: true,
            ..archive()
        };
        let steps = steps.iter().map(|step| match step {
            Step::Record(lane, record, contents) => {
                Step::Record(*lane, record.clone(), contents.clone())
            }
            Step::Say(message) => Step::Say(message.clone()),
        });
        copy(&dest, &options, steps.collect()).await.assert_whole();
        let inode = |name: &str| fs::metadata(dest.join(name)).unwrap().ino();
        assert_eq!(inode("a"), inode("inner/hard"));
        assert_eq!(
            fs::read_link(dest.join("dangling")).unwrap(),
            Path::new("/nowhere/at all")
        );
        let fifo = fs::symlink_metadata(dest.join("fifo")).unwrap();
        assert!(fifo.file_type().is_fifo());
        assert_eq!((fifo.mode() & 0o7777, fifo.mtime()), (0o640, 4_000));
        assert!(
            fs::metadata(dest.join("socket"))
                .unwrap()
                .file_type()
                .is_socket()
        );
        assert_eq!(
            names_in(&dest),
            ["a", "dangling", "fifo", "inner", "socket"]
        );
        assert_eq!(names_in(&dest.join("inner")), ["hard"]);
    }
}

#[tokio::test]
async fn a_directory_is_replaced_only_to_mirror() {
    let (_scratch, dest) = scratch();
    fs::create_dir_all(dest.join("f/full")).unwrap();
    let end = copy(
        &dest,
        &archive(),
        vec![place(), file("f", "x"), file("g", "y")],
    )
    .await;
    assert_eq!(end.failures()[0].1, "cannot replace a directory");
    assert_eq!((end.report.files, end.report.failed), (1, 1));
    assert_eq!(names_in(&dest), ["f", "g"]);
    let options = CopyOptions {
        delete: true,
        ..archive()
    };
    // A file that the user named is in no directory that is copied.
    let end = copy(&dest, &options, vec![place(), file("f", "x")]).await;
    assert_eq!(end.failures()[0].1, "cannot replace a directory");
    let end = copy(&dest, &options, vec![folder("", 0o755), file("f", "x")]).await;
    end.assert_whole();
    assert_eq!(end.report.removed, 2);
    assert_eq!(fs::read(dest.join("f")).unwrap(), b"x");
}

#[tokio::test]
async fn a_failed_file_is_told_to_a_source_that_removes() {
    let (_scratch, dest) = scratch();
    fs::create_dir_all(dest.join("f")).unwrap();
    let options = CopyOptions {
        remove_source_files: true,
        ..archive()
    };
    let end = copy(&dest, &options, vec![place(), file("f", "x")]).await;
    let expected = [
        FromDestination::NotWritten(path("f")),
        FromDestination::Done,
    ];
    assert_eq!(end.answers, expected);
}

#[tokio::test]
async fn digests_are_reported() {
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    let options = CopyOptions {
        digest: Some(DigestKind::Xxh64),
        ..archive()
    };
    let steps = vec![
        place(),
        file("empty", ""),
        large(0, 1, "ordered", 10),
        part(0, 1, 2, b"abc"),
        large_end(0, 1, Some(3)),
        large(0, 2, "turned", 10),
        part(0, 2, 5, b""),
        part(0, 2, 3, b"bc"),
        part(0, 2, 2, b"a"),
        large_end(0, 2, Some(3)),
    ];
    let end = copy(&dest, &options, steps).await;
    end.assert_whole();
    let found = end.messages.iter().filter_map(|message| match message {
        FromCopy::News(CopyNews::Digests(digests)) => Some(digests.clone()),
        _ => None,
    });
    let found: Vec<(String, Vec<u8>)> = found.flatten().collect();
    assert_eq!(found[0], ("ef46db3751d8e999".to_owned(), b"empty".to_vec()));
    assert_eq!(found[1].0, found[2].0);
    assert_eq!(
        fs::read(dest.join("ordered")).unwrap(),
        b"\0\0abc\0\0\0\0\0"
    );
}

#[tokio::test]
async fn attributes_are_kept_or_named_once() {
    let (_scratch, dest) = scratch();
    let with = |attribute: &str| {
        let mut metadata = metadata(0o400, 5);
        metadata.attributes = vec![(ByteBuf::from(attribute), ByteBuf::from(b"value"))];
        let record = LaneRecord::File {
            name: name(&attribute.replace('.', "-")),
            metadata,
        };
        Step::Record(0, record, b"x".to_vec())
    };
    let steps = vec![
        folder("top", 0o755),
        with("user.test"),
        with("odd.a"),
        with("odd.b"),
    ];
    let end = copy(&dest, &archive(), steps).await;
    end.assert_whole();
    let notes = end
        .messages
        .iter()
        .filter(|message| matches!(message, FromCopy::News(CopyNews::Note(_))));
    let notes: Vec<_> = notes.collect();
    let odd = notes
        .iter()
        .filter(|note| format!("{note:?}").contains("unknown kinds"));
    assert_eq!(odd.count(), 1, "{notes:?}");
    let mut value = [0; 16];
    match rustix::fs::getxattr(dest.join("user-test"), "user.test", &mut value) {
        Ok(count) => assert_eq!(&value[..count], b"value"),
        // The file system of the test has no attributes: that was said.
        Err(_) => assert!(notes.len() > 1, "{notes:?}"),
    }
}

/// Under `strace -f -c`, this test counts the system calls for each file: 4 without metadata, 5 with all of them.
#[tokio::test]
async fn many_small_files_are_written() {
    let (_scratch, dest) = scratch();
    let mut steps = Vec::new();
    for top in 0..10 {
        steps.push(folder(&format!("top/{top}"), 0o755));
        steps.extend((0..1000).map(|index| file(&format!("{index}"), "contents")));
    }
    let end = copy(&dest, &archive(), steps).await;
    end.assert_whole();
    assert_eq!(end.report.files, 10_000);
}

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
        crate::copy::destination::part_file::map_of_another_boot(&whole),
    )
    .unwrap();
    let end = copy(&dest, &resume(), vec![ask("", &[("big", SIZE, 3_000)])]).await;
    assert_compares(&end, MIB, &contents);
    fs::write(&map, b"damaged").unwrap();
    let end = copy(&dest, &resume(), vec![ask("", &[("big", SIZE, 3_000)])]).await;
    assert_eq!(end.kinds(), [AnswerKind::Send]);
}

/// Checks that the destination has told digests of the first `end` bytes of a file, which has `contents` there.
fn assert_compares(copy: &CopyEnd, end: u64, contents: &[u8]) {
    let kinds = copy.kinds();
    let [AnswerKind::Compare { key, blocks }] = &kinds[..] else {
        panic!("{kinds:?}");
    };
    let mut digest = BlockDigest::new(*key);
    digest.update(contents);
    let range = ByteRange { start: 0, end };
    assert_eq!(*blocks, [(range, digest.finish())]);
}

#[tokio::test]
async fn what_is_listed_with_its_digest_is_compared_first() {
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    let contents = bytes(7, MIB);
    let steps = vec![large(0, 1, "big", SIZE), part(0, 1, 0, &contents)];
    copy(&dest, &archive(), steps).await;
    let options = CopyOptions {
        digest: Some(DigestKind::Xxh64),
        ..resume()
    };
    let end = copy(&dest, &options, vec![ask("", &[("big", SIZE, 3_000)])]).await;
    assert_compares(&end, MIB, &contents);
}

#[tokio::test]
async fn what_changes_after_the_answer_is_not_continued_and_holes_are_empty() {
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    let cut = || {
        vec![
            large(0, 1, "big", SIZE),
            part(0, 1, 0, &bytes(1, MIB)),
            part(0, 1, 4 * MIB, &bytes(3, MIB)),
        ]
    };
    let resumed = || {
        let mut step = large(0, 1, "big", SIZE);
        if let Step::Record(_, LaneRecord::LargeFile(file), _) = &mut step {
            file.resumed = true;
        }
        vec![step, large_end(0, 1, Some(0))]
    };
    copy(&dest, &archive(), cut()).await;
    let write = |offset: u64| {
        let part = dest.join(".big.rdcp-part");
        let part = fs::File::options().write(true).open(part).unwrap();
        part.write_all_at(b"foreign", offset).unwrap();
    };
    // Outside of what the map tells: neither end compares it, and the source sends no holes.
    for offset in [2 * MIB, 6 * MIB] {
        write(offset);
    }
    let mut steps = vec![ask("", &[("big", SIZE, 3_000)])];
    steps.extend(resumed());
    copy(&dest, &resume(), steps).await.assert_whole();
    let mut expected = vec![0; usize::try_from(SIZE).unwrap()];
    expected[..1 << 20].fill(1);
    expected[4 << 20..5 << 20].fill(3);
    assert!(fs::read(dest.join("big")).unwrap() == expected);
    fs::remove_file(dest.join("big")).unwrap();
    copy(&dest, &archive(), cut()).await;
    let engine = DestinationEngine::prepare(
        &BaseDirectory::Working,
        dest.as_os_str().as_bytes(),
        CopiedSources::One,
        resume(),
    );
    let (streams, mut control, mut lanes) = streams().await;
    let failed = Arc::new(Mutex::new(Vec::new()));
    let context = context(&failed, CancellationToken::new());
    let running = tokio::spawn(engine.unwrap().run(streams, context));
    let mut answers = Vec::new();
    let ask = vec![ask("", &[("big", SIZE, 3_000)])];
    let asked = send_steps(ask, &mut control, &mut lanes, &mut answers);
    asked.await.unwrap();
    assert_eq!(answers.len(), 1);
    write(100);
    let sent = send_steps(resumed(), &mut control, &mut lanes, &mut answers);
    sent.await.unwrap();
    send_end(&mut control, &mut lanes, &mut answers)
        .await
        .unwrap();
    drop((control, lanes));
    running.await.unwrap();
    let failed = format!("{:?}", failed.lock().unwrap());
    assert!(
        failed.contains("an earlier run had left of it has changed"),
        "{failed}"
    );
    assert!(!dest.join("big").exists());
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

#[tokio::test]
async fn a_file_whose_parts_do_not_come_in_order_is_read_again_with_its_holes() {
    const SIZE: usize = 5 << 20;
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    let options = CopyOptions {
        digest: Some(DigestKind::Sha256),
        ..archive()
    };
    let steps = vec![
        place(),
        large(0, 1, "image", SIZE as u64),
        part(0, 1, 3 << 20, &[7; 5000]),
        part(0, 1, 1 << 20, &[8; 100_000]),
        large_end(0, 1, Some(105_000)),
    ];
    let end = copy(&dest, &options, steps).await;
    end.assert_whole();
    let contents = fs::read(dest.join("image")).unwrap();
    let mut expected = vec![0; SIZE];
    expected[3 << 20..][..5000].fill(7);
    expected[1 << 20..][..100_000].fill(8);
    assert!(contents == expected);
    let mut digest = FileDigest::new(DigestKind::Sha256);
    digest.update(&expected);
    let digests = CopyNews::Digests(vec![(digest.finish(), b"image".to_vec())]);
    assert!(end.messages.contains(&FromCopy::News(digests)));
}
