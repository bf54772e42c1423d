//! Small entries, their metadata, links and owners.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

use super::*;
use crate::copy::order::DigestKind;

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
        metadata.attributes = vec![(attribute.as_bytes().to_vec(), b"value".to_vec())];
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
