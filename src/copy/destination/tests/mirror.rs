//! What is kept, skipped and removed.

use std::{collections::BTreeMap, os::unix::fs::symlink};

use rustix::fs::{IFlags, ioctl_setflags};

use super::*;
use crate::copy::order::ExistingFiles;

fn names(folder: &str, names: &[&str], last: bool) -> Step {
    Step::Say(FromSource::Names {
        folder: path(folder),
        names: names.iter().map(|text| name(text)).collect(),
        last,
    })
}

#[tokio::test]
async fn what_the_source_has_not_is_removed() {
    let (_scratch, dest) = scratch();
    fs::create_dir_all(dest.join("top/old/deep/er")).unwrap();
    for file in [
        "a",
        "b",
        "c",
        "old/deep/f",
        ".big.rdcp-part",
        ".rdcp-01234567",
        ".rdcp-notes",
    ] {
        fs::write(dest.join("top").join(file), "").unwrap();
    }
    // A copy makes no directories of such names.
    for directory in [".rdcp-0123abcd", ".a.rdcp-part"] {
        fs::create_dir(dest.join("top").join(directory)).unwrap();
    }
    fs::write(dest.join("beside"), "").unwrap();
    let options = CopyOptions {
        delete: true,
        list: true,
        ..archive()
    };
    let dry = CopyOptions {
        dry_run: true,
        ..options.clone()
    };
    let steps = || vec![names("top", &["a"], false), names("top", &["b"], true)];
    let end = copy(&dest, &dry, steps()).await;
    assert_eq!(end.report.removed, 8);
    let listed = removed(&end);
    assert!(dest.join("top/old/deep/f").exists());
    let end = copy(&dest, &options, steps()).await;
    end.assert_whole();
    assert_eq!(end.report.removed, 8);
    assert_eq!(removed(&end), listed);
    assert_eq!(
        names_in(&dest.join("top")),
        [".big.rdcp-part", ".rdcp-01234567", "a", "b"]
    );
    assert_eq!(names_in(&dest), ["beside", "top"]);
}

/// The paths that were listed as removed.
fn removed(end: &CopyEnd) -> Vec<String> {
    let paths = end.messages.iter().filter_map(|message| match message {
        FromCopy::News(CopyNews::Removed(paths)) => Some(paths),
        _ => None,
    });
    let paths = paths.flatten();
    paths
        .map(|path| String::from_utf8_lossy(path).into_owned())
        .collect()
}

#[tokio::test]
async fn an_entry_that_stays_is_named_with_the_reason_of_the_system_and_keeps_no_other() {
    let (_scratch, dest) = scratch();
    fs::create_dir_all(dest.join("top/old/deep")).unwrap();
    let kept = ["top/kept", "top/old/deep/kept"].map(|name| dest.join(name));
    let files = kept.each_ref().map(|path| fs::File::create(path).unwrap());
    for name in ["top/other", "top/old/deep/other", "top/old/other"] {
        fs::write(dest.join(name), "").unwrap();
    }
    let set_flags = |flags| {
        let set = files.iter().map(|file| ioctl_setflags(file, flags));
        set.collect::<rustix::io::Result<Vec<()>>>()
    };
    if let Err(errno) = set_flags(IFlags::IMMUTABLE) {
        eprintln!("SKIPPED: no immutable files here ({errno})");
        return;
    }
    let options = CopyOptions {
        delete: true,
        ..archive()
    };
    let end = copy(&dest, &options, vec![names("top", &["a"], true)]).await;
    set_flags(IFlags::empty()).unwrap();
    let failures: BTreeMap<_, _> = end.failures().into_iter().collect();
    let why = "cannot remove: Operation not permitted".to_owned();
    let expected = kept.map(|path| (path.to_str().unwrap().to_owned(), why.clone()));
    assert_eq!(failures, BTreeMap::from(expected));
    assert_eq!((end.report.failed, end.report.removed), (2, 3));
    assert_eq!(names_in(&dest.join("top")), ["kept", "old"]);
    assert_eq!(names_in(&dest.join("top/old/deep")), ["kept"]);
}

#[tokio::test]
async fn what_the_user_named_replaces_no_entry_of_another_kind() {
    let (_scratch, dest) = scratch();
    let options = CopyOptions {
        delete: true,
        ..archive()
    };
    let link = LaneRecord::HardLink {
        name: name("link"),
        target: path("top/f"),
    };
    for named in ["f", "large", "link", "fifo"] {
        fs::create_dir_all(dest.join(named).join("precious")).unwrap();
    }
    fs::write(dest.join("top"), "precious").unwrap();
    let fifo = LaneRecord::Special {
        name: name("fifo"),
        kind: EntryKind::Fifo,
        target: Vec::new(),
        metadata: metadata(0o600, 1),
    };
    let base = BaseDirectory::Working;
    let typed = dest.to_str().unwrap().as_bytes();
    let sources = CopiedSources::Many;
    let engine = DestinationEngine::prepare(&base, typed, sources, options).unwrap();
    let steps = vec![
        place(),
        file("f", "x"),
        Step::Record(0, fifo, Vec::new()),
        large(0, 1, "large", 3),
        part(0, 1, 0, b"abc"),
        large_end(0, 1, Some(3)),
        file("written", "y"),
        Step::Record(0, link, Vec::new()),
        folder("top", 0o755),
        file("in it", "z"),
        names("top", &["in it"], true),
    ];
    let end = run(engine, steps).await;
    assert_eq!(
        (end.report.removed, end.report.failed),
        (0, 5),
        "{:?}",
        end.failures()
    );
    for named in ["f", "large", "link", "fifo"] {
        assert_eq!(names_in(&dest.join(named)), ["precious"]);
    }
    assert_eq!(fs::read(dest.join("top")).unwrap(), b"precious");
    assert_eq!(fs::read(dest.join("written")).unwrap(), b"y");
}

#[tokio::test]
async fn two_lanes_make_room_for_the_same_folders() {
    let (_scratch, dest) = scratch();
    fs::create_dir_all(dest.join("top")).unwrap();
    let options = CopyOptions {
        delete: true,
        ..archive()
    };
    let mut steps = Vec::new();
    for number in 0..300 {
        symlink("nowhere", dest.join(format!("top/{number}"))).unwrap();
        for lane in 0..2 {
            let path = path(&format!("top/{number}/of {lane}"));
            let metadata = Some(Metadata::default());
            let above = Vec::new();
            let record = LaneRecord::Folder {
                path,
                metadata,
                above,
            };
            steps.push(Step::Record(lane, record, Vec::new()));
        }
    }
    let end = copy(&dest, &options, steps).await;
    end.assert_whole();
    assert_eq!(end.report.removed, 300);
}

#[tokio::test]
async fn the_options_decide_what_is_skipped() {
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    copy(&dest, &archive(), vec![place(), file("f", "12345")])
        .await
        .assert_whole();
    let questions = [
        ("f", 5, 1_999),
        ("f", 5, 2_001),
        ("f", 4, 2_000),
        ("g", 5, 1),
        // After it, another source has nothing for this name.
        ("f", 5, 2_000),
    ];
    let (send, skip, keep) = (AnswerKind::Send, AnswerKind::Skip, AnswerKind::Keep);
    let cases = [
        (ExistingFiles::Replace, [&send, &send, &send, &send, &send]),
        (ExistingFiles::Keep, [&keep, &keep, &keep, &send, &skip]),
        (
            ExistingFiles::ReplaceOlder,
            [&keep, &send, &keep, &send, &skip],
        ),
        (
            ExistingFiles::ReplaceDifferent,
            [&send, &send, &send, &send, &skip],
        ),
    ];
    for (existing, expected) in cases {
        let options = CopyOptions {
            existing,
            ..archive()
        };
        let end = copy(&dest, &options, vec![ask("", &questions)]).await;
        end.assert_whole();
        assert_eq!(
            end.kinds().iter().collect::<Vec<_>>(),
            expected,
            "{existing:?}"
        );
    }
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let (_scratch, dest) = scratch();
    let options = CopyOptions {
        dry_run: true,
        ..archive()
    };
    let steps = vec![
        folder("top", 0o755),
        file("a", "x"),
        ask("top", &[("a", 1, 2)]),
    ];
    let end = copy(&dest, &options, steps).await;
    assert_eq!(end.kinds(), [AnswerKind::Send]);
    assert!(!dest.exists());
}

#[tokio::test]
async fn at_most_so_many_entries_are_removed_and_the_others_are_counted() {
    for most in 0..=7 {
        let (_scratch, dest) = scratch();
        for folder in ["top/old/deep", "top/f/in"] {
            fs::create_dir_all(dest.join(folder)).unwrap();
        }
        for file in ["a", "b", "old/deep/c", "old/d"] {
            fs::write(dest.join("top").join(file), "").unwrap();
        }
        let mut options = CopyOptions {
            delete: true,
            max_delete: Some(most),
            dry_run: true,
            ..archive()
        };
        let steps = || vec![names("top", &["f"], true)];
        let dry = copy(&dest, &options, steps()).await;
        options.dry_run = false;
        let end = copy(&dest, &options, steps()).await;
        assert_eq!(
            (end.report.removed, dry.report.removed),
            (most.min(6), most.min(6))
        );
        let left = 6 - most.min(6);
        let expected = match left {
            0 => None,
            1 => Some(format!(
                "1 more entry was not removed: --max-delete {most} is reached"
            )),
            left => Some(format!(
                "{left} more entries were not removed: --max-delete {most} is reached"
            )),
        };
        for end in [dry, end] {
            assert_eq!(end.failures().pop().map(|failure| failure.1), expected);
        }
    }
}

#[tokio::test]
async fn a_dry_run_foresees_what_is_in_the_way() {
    let (_scratch, dest) = scratch();
    let mut options = CopyOptions {
        delete: true,
        dry_run: true,
        list: true,
        ..archive()
    };
    fs::create_dir_all(dest.join("top/file/was/a directory")).unwrap();
    fs::create_dir_all(dest.join("top/folder")).unwrap();
    fs::write(dest.join("top/folder/in"), "was a file").unwrap();
    let asked = || {
        vec![
            ask("top", &[("file", 1, 2)]),
            ask("top/folder/in", &[("a", 1, 2)]),
            ask("top/folder/in/deeper", &[]),
        ]
    };
    let end = copy(&dest, &options, asked()).await;
    end.assert_whole();
    assert_eq!(end.kinds(), [AnswerKind::Send, AnswerKind::Send]);
    let listed = removed(&end);
    assert_eq!(listed.len(), 4, "{listed:?}");
    assert!(listed[3].ends_with("folder/in"), "{listed:?}");
    options.delete = false;
    let end = copy(&dest, &options, asked()).await;
    assert_eq!(end.kinds(), [AnswerKind::Leave, AnswerKind::Leave]);
    let failures: Vec<_> = end
        .failures()
        .into_iter()
        .map(|failure| failure.1)
        .collect();
    let expected = [
        "cannot replace a directory",
        "a directory cannot replace something else; nothing in it would be written",
    ];
    assert_eq!(failures, expected);
    assert_eq!(fs::read(dest.join("top/folder/in")).unwrap(), b"was a file");
}

#[tokio::test]
async fn a_dry_run_lists_no_device_that_a_server_does_not_make() {
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    let options = CopyOptions {
        dry_run: true,
        ..archive()
    };
    let entry = |text: &str, kind| AskedEntry {
        name: name(text),
        kind,
        size: 0,
        modified: metadata(0, 1).modified,
        changed: metadata(0, 1).modified,
        metadata: None,
        target: None,
    };
    let entries = vec![
        entry("null", EntryKind::CharacterDevice { device: 259 }),
        entry("disk", EntryKind::BlockDevice { device: 259 }),
        entry("fifo", EntryKind::Fifo),
    ];
    let ask = Step::Say(FromSource::Ask {
        folder: path("top"),
        entries,
    });
    let base = BaseDirectory::root(&dest).unwrap();
    let engine = DestinationEngine::prepare(&base, b"new", CopiedSources::One, options).unwrap();
    let end = run(engine, vec![ask]).await;
    end.assert_whole();
    let (leave, send) = (AnswerKind::Leave, AnswerKind::Send);
    assert_eq!(end.kinds(), [leave.clone(), leave, send]);
    assert_eq!(
        end.notes(),
        ["device nodes were not made: a server makes none"]
    );
    assert_eq!(end.report.skipped, 0);
}

#[tokio::test]
async fn what_appears_after_the_question_is_not_replaced_either() {
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    fs::write(dest.join("f"), "of another program").unwrap();
    let options = CopyOptions {
        existing: ExistingFiles::Keep,
        ..archive()
    };
    let steps = vec![place(), file("f", "of the source"), file("g", "new")];
    let end = copy(&dest, &options, steps).await;
    let failures = end.failures();
    assert!(
        failures[0].1.contains("which --no-clobber keeps"),
        "{failures:?}"
    );
    assert_eq!(fs::read(dest.join("f")).unwrap(), b"of another program");
    assert_eq!(names_in(&dest), ["f", "g"]);
}
