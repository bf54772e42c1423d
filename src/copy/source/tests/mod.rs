//! The source against a destination that keeps what it receives: how a run goes, and what a server confines.

mod destination;
mod hostile;

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tokio_util::sync::CancellationToken;

use self::destination::{
    Behaviour, Outcome, answer, bytes, copy, copy_from, prepared, relative, streams,
};
use crate::copy::{
    block_digest::{BlockDigest, DigestKey},
    job::CopyError,
    metadata::EntryKind,
    order::{CopyNews, CopyOptions, ExistingFiles, FromCopy},
    path::BaseDirectory,
    question::{AnswerKind, ByteRange, FromSource},
    record::LaneRecord,
    tests::{archive, context},
};

#[tokio::test(flavor = "multi_thread")]
async fn without_r_only_plain_files_are_copied() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    fs::create_dir(at("folder")).unwrap();
    fs::write(at("file"), b"contents").unwrap();
    symlink("file", at("link")).unwrap();
    mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let names = [
        "folder",
        "file",
        "link",
        "fifo",
        "missing",
        "folder/../file",
    ];
    let paths = names.iter().map(|name| bytes(&at(name))).collect();
    let outcome = copy(paths, CopyOptions::default(), Behaviour::default()).await;
    let files = outcome.files();
    assert_eq!(files.len(), 2);
    assert_eq!(files[&b"file"[..]], b"contents");
    assert_eq!(files[&b"link"[..]], b"contents");
    let failures = outcome.failures();
    let expected = [
        ("folder", "is a directory"),
        ("fifo", "is not a plain file"),
        ("missing", "No such file"),
        ("folder/../file", "the same name as another source"),
    ];
    for ((path, why), (name, sentence)) in failures.iter().zip(expected) {
        assert_eq!(*path, at(name).to_str().unwrap());
        assert!(why.contains(sentence), "{why}");
    }
    assert_eq!((failures.len(), outcome.report.failed), (4, 4));
    assert!(outcome.report.complete);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_destination_keeps_is_not_sent() {
    let place = tempfile::tempdir().unwrap();
    let top = place.path().join("tree");
    fs::create_dir_all(top.join("sub")).unwrap();
    for number in 0..300 {
        fs::write(top.join(format!("sub/{number}")), b"four").unwrap();
    }
    let options = CopyOptions {
        existing: ExistingFiles::ReplaceDifferent,
        ..archive()
    };
    let behaviour = Behaviour {
        answer: |entry| {
            if entry.name.as_bytes().ends_with(b"7") {
                AnswerKind::Send
            } else {
                AnswerKind::Skip
            }
        },
        ..Behaviour::default()
    };
    let paths = vec![bytes(&top)];
    let outcome = copy(paths.clone(), options.clone(), behaviour.clone()).await;
    assert_eq!(outcome.files().len(), 30);
    assert_eq!((outcome.report.files, outcome.report.skipped), (30, 270));
    assert_eq!(outcome.report.directories, 2);

    let options = CopyOptions {
        dry_run: true,
        ..options
    };
    let outcome = copy(paths, options, behaviour).await;
    assert_eq!(outcome.records().count(), 0);
    let sent = outcome.messages.iter().filter_map(|message| match message {
        FromCopy::News(CopyNews::Sent(paths)) => Some(paths.len()),
        _ => None,
    });
    assert_eq!(sent.sum::<usize>(), 30);
    assert_eq!((outcome.report.files, outcome.report.bytes), (30, 120));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_sends_the_names_of_each_folder() {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("sub")).unwrap();
    for number in 0..600 {
        fs::write(place.path().join(format!("{number}")), b"").unwrap();
    }
    let options = CopyOptions {
        delete: true,
        ..archive()
    };
    let contents = bytes(&place.path().join("."));
    let outcome = copy(
        vec![contents.clone()],
        options.clone(),
        Behaviour::default(),
    )
    .await;
    let mut count = 0;
    let mut complete = Vec::new();
    for question in &outcome.questions {
        if let FromSource::Names {
            folder,
            names,
            last,
        } = question
        {
            count += names.len();
            complete.extend(last.then(|| folder.clone()));
        }
    }
    assert_eq!(count, 601);
    assert_eq!(complete, [relative(""), relative("sub")]);
    let twice = prepared(
        BaseDirectory::Working,
        vec![contents, b"x".to_vec()],
        options,
    );
    assert!(twice.err().unwrap().contains("--delete"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_resumed() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("file");
    fs::write(&path, vec![7; 1_000_000]).unwrap();
    let options = CopyOptions {
        resume: true,
        ..archive()
    };
    let behaviour = Behaviour {
        answer: |_| {
            let ranges = [(0, 400_000), (500_000, 999_000)];
            let range = |&(start, end): &(u64, u64)| ByteRange { start, end };
            AnswerKind::Resume(ranges.iter().map(range).collect())
        },
        ..Behaviour::default()
    };
    let outcome = copy(vec![bytes(&path)], options.clone(), behaviour).await;
    let report = &outcome.report;
    assert_eq!((report.bytes, report.resumed_bytes), (101_000, 899_000));
    let is_resumed = |record: &LaneRecord| match record {
        LaneRecord::LargeFile(file) => file.resumed,
        _ => false,
    };
    assert!(outcome.records().any(is_resumed));

    let behaviour = Behaviour {
        answer: |_| {
            let range = |start, end| ByteRange { start, end };
            let key = DigestKey::random().unwrap();
            let mut digest = BlockDigest::new(key);
            digest.update(&[7; 1000]);
            let same = (range(0, 1000), digest.finish());
            let blocks = vec![same, (range(1000, 2000), [1; 16])];
            AnswerKind::Compare { key, blocks }
        },
        ..Behaviour::default()
    };
    let outcome = copy(vec![bytes(&path)], options, behaviour).await;
    let report = &outcome.report;
    assert_eq!((report.bytes, report.resumed_bytes), (999_000, 1000));
}

#[tokio::test(flavor = "multi_thread")]
async fn confirmed_files_are_removed() {
    let place = tempfile::tempdir().unwrap();
    let top = place.path().join("tree");
    fs::create_dir_all(top.join("sub")).unwrap();
    for name in ["tree/a", "tree/lost", "tree/sub/b", "named"] {
        fs::write(place.path().join(name), b"x").unwrap();
    }
    symlink("nowhere", top.join("link")).unwrap();
    let options = CopyOptions {
        remove_source_files: true,
        list: true,
        ..archive()
    };
    let behaviour = Behaviour {
        not_written: vec![relative("tree/lost")],
        ..Behaviour::default()
    };
    let paths = vec![bytes(&top), bytes(&place.path().join("named"))];
    let outcome = copy(paths, options, behaviour).await;
    assert!(outcome.failures().is_empty(), "{:?}", outcome.failures());
    assert_eq!(outcome.report.removed, 4);
    assert!(top.join("lost").exists() && top.join("sub").exists());
    for name in ["tree/a", "tree/sub/b", "tree/link", "named"] {
        assert!(fs::symlink_metadata(place.path().join(name)).is_err());
    }
    let listed = outcome.messages.iter().find_map(|message| match message {
        FromCopy::News(CopyNews::Sent(paths)) => Some(paths.len()),
        _ => None,
    });
    assert!(listed.is_some());
    let walked = FromCopy::Walked {
        files: 5,
        sized: 5,
        bytes: 4,
        complete: true,
    };
    assert!(outcome.messages.contains(&walked), "{:?}", outcome.messages);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_ends_within_a_second() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("large"), vec![7; 64 << 20]).unwrap();
    let paths = vec![bytes(&place.path().join("."))];
    let both_lanes = CopyOptions {
        chosen_lanes: true,
        ..archive()
    };
    let engine = prepared(BaseDirectory::Working, paths, both_lanes).unwrap();
    // The other ends do not read, so the lanes wait.
    let (near, _control, mut far) = streams(&Behaviour::default()).await;
    let cancelled = CancellationToken::new();
    let messages = Arc::new(Mutex::new(Vec::new()));
    let run = tokio::spawn(engine.run(near, context(&messages, cancelled.clone())));
    tokio::io::AsyncReadExt::read_u8(&mut far[0]).await.ok();
    let started = Instant::now();
    cancelled.cancel();
    let (report, failure) = run.await.unwrap();
    // A guard for a busy machine: a run that waited for its peers would never end.
    assert!(started.elapsed() < Duration::from_secs(60));
    assert!(matches!(failure, Some(CopyError::Cancelled)), "{failure:?}");
    assert!(!report.complete);
    let mut rest = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut far[1], &mut rest).await;
    let error = read.unwrap_err().to_string();
    assert!(error.contains("enough"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_lane_ends_the_run() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("large"), vec![7; 64 << 20]).unwrap();
    let paths = vec![bytes(&place.path().join("."))];
    let engine = prepared(BaseDirectory::Working, paths, archive()).unwrap();
    let (near, _control, far) = streams(&Behaviour::default()).await;
    let messages = Arc::new(Mutex::new(Vec::new()));
    let context = context(&messages, CancellationToken::new());
    drop(far);
    let (report, failure) = engine.run(near, context).await;
    assert!(matches!(failure, Some(CopyError::Stream(_))), "{failure:?}");
    assert!(!report.complete);
}

#[tokio::test]
async fn a_run_that_does_not_start_ends_the_walk() {
    let place = tempfile::tempdir().unwrap();
    for number in 0..100 {
        fs::create_dir(place.path().join(format!("{number}"))).unwrap();
    }
    let engine = prepared(BaseDirectory::Working, vec![bytes(place.path())], archive()).unwrap();
    let shared = Arc::downgrade(&engine.shared());
    drop(engine);
    let started = Instant::now();
    while shared.strong_count() > 0 {
        assert!(started.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hole_is_compared_only_while_the_destination_lives() {
    /// A hole that takes hours to digest, in a file that every file system can hold.
    const HOLE: u64 = 8 << 40;
    let place = tempfile::tempdir().unwrap();
    let image = place.path().join("image");
    fs::File::create(&image).unwrap().set_len(HOLE).unwrap();
    let options = CopyOptions {
        resume: true,
        ..archive()
    };
    let paths = vec![bytes(&image)];
    let engine = prepared(BaseDirectory::Working, paths, options).unwrap();
    let behaviour = Behaviour {
        answer: |entry| {
            let (start, end) = (0, entry.size);
            let key = DigestKey::random().unwrap();
            let blocks = vec![(ByteRange { start, end }, [0; 16])];
            AnswerKind::Compare { key, blocks }
        },
        ..Behaviour::default()
    };
    let (near, control, lanes) = streams(&behaviour).await;
    let messages = Arc::new(Mutex::new(Vec::new()));
    let context = context(&messages, CancellationToken::new());
    let run = tokio::spawn(engine.run(near, context));
    let answering = tokio::spawn(answer(control, Vec::new(), behaviour));
    let is_open = || {
        let open = fs::read_dir("/proc/self/fd").unwrap();
        open.flatten()
            .any(|fd| fs::read_link(fd.path()).is_ok_and(|path| path == image))
    };
    while !is_open() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    answering.abort();
    drop(lanes);
    let ended = tokio::time::timeout(Duration::from_secs(60), run).await;
    let (report, failure) = ended.expect("the run ends").unwrap();
    assert!(matches!(failure, Some(CopyError::Stream(_))), "{failure:?}");
    assert!(!report.complete);
    assert!(!is_open());
}

/// Makes `outside/secret`, and `root` with a tree and with links that stay inside and that lead out.
fn served() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    let at = |path: &str| place.path().join(path);
    fs::create_dir_all(at("outside/deep")).unwrap();
    fs::write(at("outside/secret"), "secret").unwrap();
    fs::create_dir_all(at("root/tree/deep")).unwrap();
    fs::write(at("root/tree/file"), "inside").unwrap();
    fs::write(at("root/tree/deep/file"), "deep").unwrap();
    symlink(at("outside"), at("root/tree/out")).unwrap();
    symlink("../outside", at("root/out")).unwrap();
    symlink("../outside/secret", at("root/out-file")).unwrap();
    symlink("tree", at("root/inside")).unwrap();
    symlink("tree/file", at("root/inside-file")).unwrap();
    place
}

async fn copy_served(place: &Path, typed: &str, options: CopyOptions) -> Outcome {
    let base = BaseDirectory::root(&place.join("root")).unwrap();
    let paths = vec![typed.as_bytes().to_vec()];
    let outcome = copy_from(base, paths, options, Behaviour::default()).await;
    assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
    outcome
}

fn names(outcome: &Outcome) -> Vec<String> {
    let names = outcome.files().into_keys();
    names
        .map(|name| String::from_utf8_lossy(&name).into_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_are_below_the_root() {
    let place = served();
    let tree = ["tree/deep/file", "tree/file"];
    let cases: [(&str, &[&str]); 8] = [
        ("tree", &tree),
        ("/tree", &tree),
        ("//./tree/", &tree),
        ("/tree/.", &["deep/file", "file"]),
        ("inside/.", &["deep/file", "file"]),
        ("/", &tree),
        ("", &tree),
        ("inside/deep", &["deep/file"]),
    ];
    for (typed, expected) in cases {
        let outcome = copy_served(place.path(), typed, archive()).await;
        assert_eq!(outcome.failures(), [], "{typed}");
        assert_eq!(names(&outcome), expected, "{typed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_operand_leads_out() {
    let place = served();
    let outside = place.path().join("outside/secret");
    let cases = [
        ("out/secret", "leads out"),
        ("/tree/out/secret", "leads out"),
        ("out/.", "leads out"),
        ("out/", "leads out"),
        ("out/deep", "leads out"),
        ("..", "`..`"),
        ("tree/..", "`..`"),
        ("../outside/secret", "`..`"),
        ("tree/../../outside", "`..`"),
        ("~/tree", "No such file"),
        (outside.to_str().unwrap(), "No such file"),
    ];
    for (typed, expected) in cases {
        let plain = CopyOptions::default();
        for options in [archive(), plain] {
            let outcome = copy_served(place.path(), typed, options).await;
            let failures = outcome.failures();
            assert_eq!(failures.len(), 1, "{typed}: {failures:?}");
            assert_eq!(failures[0].0, typed);
            assert!(failures[0].1.contains(expected), "{failures:?}");
            assert_eq!(names(&outcome), [""; 0]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_does_not_stand_for_its_file() {
    let place = served();
    for typed in ["out-file", "inside-file", "/out-file"] {
        let outcome = copy_served(place.path(), typed, CopyOptions::default()).await;
        let failures = outcome.failures();
        assert!(failures[0].1.contains("symbolic link"), "{failures:?}");
        assert_eq!((failures.len(), names(&outcome).len()), (1, 0));
        let outcome = copy_served(place.path(), typed, archive()).await;
        let is_link = |record: &LaneRecord| matches!(record, LaneRecord::Special { kind, .. } if *kind == EntryKind::Symlink);
        assert!(outcome.records().any(is_link));
        assert_eq!((outcome.failures().len(), names(&outcome).len()), (0, 0));
    }
    let outcome = copy_served(place.path(), "inside/file", CopyOptions::default()).await;
    assert_eq!(names(&outcome), ["file"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sent_files_are_removed_below_the_root() {
    let place = served();
    let options = CopyOptions {
        remove_source_files: true,
        ..archive()
    };
    for typed in ["/inside/file", "tree/deep"] {
        let outcome = copy_served(place.path(), typed, options.clone()).await;
        assert_eq!((outcome.failures().len(), outcome.report.removed), (0, 1));
    }
    let root = place.path().join("root/tree");
    assert!(!root.join("file").exists() && !root.join("deep/file").exists());
    assert!(place.path().join("outside/secret").exists());
}
