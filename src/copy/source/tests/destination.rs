//! A destination that keeps what it receives, and trees for it.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    os::{
        fd::OwnedFd,
        unix::{
            ffi::OsStrExt,
            fs::{FileExt, PermissionsExt, symlink},
        },
    },
    path::Path,
    sync::{Arc, Mutex},
};

use futures::{SinkExt, StreamExt};
use rustix::fs::{CWD, FileType, Mode, OFlags, mkdirat, mknodat, openat};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::{
    codec::{FramedRead, FramedWrite, LengthDelimitedCodec},
    sync::CancellationToken,
    task::TaskTracker,
};

use crate::{
    Stream,
    copy::{
        job::{CopyError, CopyStreams},
        metadata::EntryKind,
        order::{CopyNews, CopyOptions, CopyReport, FilterRule, FromCopy},
        path::{BaseDirectory, RelativePath},
        question::{AnswerKind, AskedEntry, FromDestination, FromSource, MAX_ANSWER_BYTES},
        record::{LaneRecord, PREFIX_BYTES, RecordPrefix, decode},
        source::SourceEngine,
        tests::{archive, context},
    },
};

pub(super) type Received = (LaneRecord, Vec<u8>);

/// How the test's destination behaves.
#[derive(Clone)]
pub(super) struct Behaviour {
    pub(super) chunk_bytes: usize,
    pub(super) lanes: usize,
    pub(super) answer: fn(&AskedEntry) -> AnswerKind,
    pub(super) not_written: Vec<RelativePath>,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            chunk_bytes: 256 << 10,
            lanes: 2,
            answer: |_| AnswerKind::Send,
            not_written: Vec::new(),
        }
    }
}

/// What a run has brought.
pub(super) struct Outcome {
    pub(super) lanes: Vec<Vec<Received>>,
    pub(super) questions: Vec<FromSource>,
    pub(super) messages: Vec<FromCopy>,
    pub(super) report: CopyReport,
    pub(super) failure: Option<CopyError>,
}

impl Outcome {
    /// Returns all records, without the lanes.
    pub(super) fn records(&self) -> impl Iterator<Item = &LaneRecord> {
        self.lanes.iter().flatten().map(|(record, _)| record)
    }

    /// Returns the failures: paths and sentences.
    pub(super) fn failures(&self) -> Vec<(String, String)> {
        let failures = self.messages.iter().filter_map(|message| match message {
            FromCopy::News(CopyNews::Failed { path, why }) => {
                Some((String::from_utf8_lossy(path).into_owned(), why.clone()))
            }
            _ => None,
        });
        failures.collect()
    }

    /// Returns the contents of all files by path, put together from parts.
    pub(super) fn files(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut files = BTreeMap::new();
        let mut large: BTreeMap<u64, (Vec<u8>, Vec<u8>, u64)> = BTreeMap::new();
        let mut ends = BTreeMap::new();
        for lane in &self.lanes {
            let mut folder = RelativePath::default();
            for (record, contents) in lane {
                match record {
                    LaneRecord::Folder { path, .. } => folder = path.clone(),
                    LaneRecord::File { name, .. } => {
                        let path: Vec<u8> = folder.join(name).into();
                        assert_eq!(files.insert(path, contents.clone()), None);
                    }
                    LaneRecord::LargeFile(file) => {
                        let size = usize::try_from(file.size).unwrap();
                        let path: Vec<u8> = file.path.clone().into();
                        large.entry(file.id).or_insert((path, vec![0; size], 0));
                    }
                    LaneRecord::Part { id, offset } => {
                        let (_, bytes, count) = large.get_mut(id).expect("announced");
                        let start = usize::try_from(*offset).unwrap();
                        bytes[start..start + contents.len()].copy_from_slice(contents);
                        *count += contents.len() as u64;
                    }
                    LaneRecord::LargeFileEnd { id, content_bytes } => {
                        assert_eq!(ends.insert(*id, *content_bytes), None);
                    }
                    LaneRecord::LargeFileChanged { id } => {
                        assert_eq!(ends.insert(*id, None), None);
                    }
                    _ => assert!(contents.is_empty()),
                }
            }
        }
        for (id, (path, bytes, count)) in large {
            if let Some(expected) = ends.remove(&id).expect("every large file is ended") {
                assert_eq!(count, expected);
                assert_eq!(files.insert(path, bytes), None);
            }
        }
        files
    }
}

/// Returns the source of `paths`, which are relative to `base`.
pub(super) fn prepared(
    base: BaseDirectory,
    paths: Vec<Vec<u8>>,
    options: CopyOptions,
) -> Result<SourceEngine, String> {
    SourceEngine::prepare(base, paths, options, TaskTracker::new().token())
}

/// Copies `paths` to a destination of the test.
pub(super) async fn copy(
    paths: Vec<Vec<u8>>,
    options: CopyOptions,
    behaviour: Behaviour,
) -> Outcome {
    copy_from(BaseDirectory::Working, paths, options, behaviour).await
}

/// Copies `paths`, which are relative to `base`, to a destination of the test.
pub(super) async fn copy_from(
    base: BaseDirectory,
    paths: Vec<Vec<u8>>,
    options: CopyOptions,
    behaviour: Behaviour,
) -> Outcome {
    let engine = prepared(base, paths, options).unwrap();
    let (streams, far_control, far_lanes) = streams(&behaviour).await;
    let messages = Arc::new(Mutex::new(Vec::new()));
    let context = context(&messages, CancellationToken::new());
    let lanes = far_lanes
        .into_iter()
        .map(|lane| tokio::spawn(receive(lane)));
    let lanes: Vec<_> = lanes.collect();
    let control = tokio::spawn(answer(far_control, lanes, behaviour));
    let (report, failure) = engine.run(streams, context).await;
    let (questions, lanes) = control.await.unwrap();
    let messages = std::mem::take(&mut *messages.lock().unwrap());
    Outcome {
        lanes,
        questions,
        messages,
        report,
        failure,
    }
}

/// Returns the streams of a source, and their other ends.
pub(super) async fn streams(behaviour: &Behaviour) -> (CopyStreams, Stream, Vec<Stream>) {
    crate::copy::tests::streams(behaviour.lanes, behaviour.chunk_bytes).await
}

/// Receives a lane to its end.
async fn receive(mut stream: Stream) -> Vec<Received> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    stream.confirm().unwrap();
    let mut records = Vec::new();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let (head, after) = rest.split_at(PREFIX_BYTES);
        let prefix = RecordPrefix::decode(head.try_into().unwrap()).unwrap();
        let (record, after) = after.split_at(prefix.record_bytes);
        let (contents, after) = after.split_at(prefix.content_bytes);
        records.push((decode(record).unwrap(), contents.to_vec()));
        rest = after;
    }
    assert_eq!(records.pop(), Some((LaneRecord::End, Vec::new())));
    stream.close().await;
    records
}

pub(super) type Lane = tokio::task::JoinHandle<Vec<Received>>;

/// Answers questions to the end, and returns them with what the lanes have brought.
pub(super) async fn answer(
    mut stream: Stream,
    lanes: Vec<Lane>,
    behaviour: Behaviour,
) -> (Vec<FromSource>, Vec<Vec<Received>>) {
    let codec = || {
        LengthDelimitedCodec::builder()
            .little_endian()
            .max_frame_length(MAX_ANSWER_BYTES)
            .new_codec()
    };
    let (read, write) = stream.split();
    let mut frames = FramedRead::new(read, codec());
    let mut answers = FramedWrite::new(write, codec());
    let mut questions = Vec::new();
    loop {
        let frame = frames.next().await.unwrap().unwrap();
        let question: FromSource = postcard::from_bytes(&frame).unwrap();
        questions.push(question.clone());
        match question {
            FromSource::Ask { entries, .. } => {
                let given = entries.iter().map(behaviour.answer).collect();
                let given = postcard::to_stdvec(&FromDestination::Answers(given)).unwrap();
                answers.send(bytes::Bytes::from(given)).await.unwrap();
            }
            FromSource::Names { .. } | FromSource::Owner { .. } | FromSource::Operands { .. } => {}
            FromSource::Finished => break,
        }
    }
    let mut received = Vec::new();
    for lane in lanes {
        received.push(lane.await.unwrap());
    }
    let not_written = behaviour.not_written.into_iter();
    let last = not_written
        .map(FromDestination::NotWritten)
        .chain([FromDestination::Done]);
    for message in last {
        let bytes = postcard::to_stdvec(&message).unwrap();
        answers.send(bytes::Bytes::from(bytes)).await.unwrap();
    }
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    stream.confirm().unwrap();
    stream.shutdown().await.unwrap();
    stream.close().await;
    (questions, received)
}

pub(super) fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

pub(super) fn relative(path: &str) -> RelativePath {
    RelativePath::try_from(path.as_bytes().to_vec()).unwrap()
}

/// Makes a tree with everything that is not usual.
fn nasty_tree(top: &Path) {
    fs::create_dir_all(top.join("empty")).unwrap();
    fs::create_dir_all(top.join("deep/er")).unwrap();
    for size in [0, 1, 4000, 4096, 10_000, 70_000] {
        fs::write(top.join(format!("deep/{size}")), vec![7; size]).unwrap();
    }
    let long = "n".repeat(255);
    for name in [&b"new\nline"[..], b"not \xff utf8", long.as_bytes()] {
        fs::write(top.join("deep/er").join(OsStr::from_bytes(name)), b"x").unwrap();
    }
    symlink("no/where", top.join("dangling")).unwrap();
    symlink("deep", top.join("link")).unwrap();
    fs::hard_link(top.join("deep/4096"), top.join("deep/er/same")).unwrap();
    mknodat(
        CWD,
        top.join("fifo"),
        FileType::Fifo,
        Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
    fs::set_permissions(top.join("deep/1"), fs::Permissions::from_mode(0o4751)).unwrap();
}

async fn nasty_tree_arrives(chunk_bytes: usize) {
    let place = tempfile::tempdir().unwrap();
    let top = place.path().join("tree");
    nasty_tree(&top);
    let behaviour = Behaviour {
        chunk_bytes,
        ..Behaviour::default()
    };
    let outcome = copy(vec![bytes(&top)], archive(), behaviour).await;
    assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
    assert!(outcome.failures().is_empty(), "{:?}", outcome.failures());
    let files = outcome.files();
    // One of the two names is a link.
    assert_eq!(files.len(), 9);
    for (path, contents) in &files {
        let read = fs::read(place.path().join(OsStr::from_bytes(path))).unwrap();
        assert_eq!(*contents, read, "{path:?}");
    }
    let mut folders: Vec<&[u8]> = outcome
        .records()
        .filter_map(|record| match record {
            LaneRecord::Folder { path, metadata, .. } => metadata.as_ref().map(|_| path.as_bytes()),
            _ => None,
        })
        .collect();
    folders.sort_unstable();
    let expected: [&[u8]; 4] = [b"tree", b"tree/deep", b"tree/deep/er", b"tree/empty"];
    assert_eq!(folders, expected);
    specials_arrive(outcome.records());
    let report = outcome.report;
    assert_eq!(
        (report.files, report.directories, report.failed),
        (13, 4, 0)
    );
    assert_eq!(report.bytes, 88_100);
    assert!(report.complete);
}

fn specials_arrive<'a>(records: impl Iterator<Item = &'a LaneRecord>) {
    let mut links = 0;
    let mut fifos = 0;
    let mut hard_links = 0;
    let mut modes = Vec::new();
    for record in records {
        match record {
            LaneRecord::Special { kind, target, .. } if *kind == EntryKind::Symlink => {
                links += 1;
                assert!([&b"no/where"[..], b"deep"].contains(&&target[..]));
            }
            LaneRecord::Special { kind, .. } => fifos += usize::from(*kind == EntryKind::Fifo),
            LaneRecord::HardLink { name, target } => {
                hard_links += 1;
                let names = [b"tree/deep/4096".to_vec(), b"tree/deep/er/same".to_vec()];
                assert!(names.contains(&target.as_bytes().to_vec()));
                assert!([&b"4096"[..], b"same"].contains(&name.as_bytes()));
            }
            LaneRecord::File { name, metadata } if name.as_bytes() == b"1" => {
                modes.push(metadata.mode);
            }
            _ => {}
        }
    }
    assert_eq!((links, fifos, hard_links, modes), (2, 1, 1, vec![0o4751]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_arrives() {
    nasty_tree_arrives(256 << 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_arrives_in_the_smallest_buffers() {
    nasty_tree_arrives(crate::MIN_CHUNK_BYTES).await;
}

/// Makes a chain of folders whose path is longer than a system call accepts.
fn deep_chain(top: &Path, levels: usize) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut folder: OwnedFd = openat(CWD, top, flags, Mode::empty()).unwrap();
    for _ in 0..levels {
        mkdirat(&folder, "twelve-bytes", Mode::RWXU).unwrap();
        folder = openat(&folder, "twelve-bytes", flags, Mode::empty()).unwrap();
    }
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    openat(&folder, "file", flags, Mode::RUSR).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_may_be_longer_than_a_system_call_accepts() {
    let levels = 400;
    let place = tempfile::tempdir().unwrap();
    deep_chain(place.path(), levels);
    let contents = place.path().join(".");
    let outcome = copy(vec![bytes(&contents)], archive(), Behaviour::default()).await;
    assert!(outcome.failures().is_empty(), "{:?}", outcome.failures());
    let files = outcome.files();
    let (path, _) = files.first_key_value().unwrap();
    assert_eq!(path.len(), levels * "twelve-bytes/".len() + "file".len());
    assert_eq!(outcome.report.directories, levels as u64 + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn holes_are_not_sent() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("sparse");
    let file = fs::File::create(&path).unwrap();
    file.set_len(1 << 30).unwrap();
    file.write_all_at(&[7; 5000], 500 << 20).unwrap();
    let empty = place.path().join("hole");
    fs::File::create(&empty).unwrap().set_len(100_000).unwrap();
    let paths = vec![bytes(&path), bytes(&empty)];
    let outcome = copy(paths, archive(), Behaviour::default()).await;
    assert!(outcome.report.bytes < 64 << 10, "{:?}", outcome.report);
    let files = outcome.files();
    assert_eq!(files[&b"hole"[..]], vec![0; 100_000]);
    let sparse = &files[&b"sparse"[..]];
    assert_eq!(sparse.len(), 1 << 30);
    assert_eq!(sparse[500 << 20..][..5000], [7; 5000]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_very_large_file_travels_in_all_lanes() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("large");
    let words: Vec<[u8; 4]> = (0..20_000_000_u32).map(u32::to_le_bytes).collect();
    let contents = words.concat();
    fs::write(&path, &contents).unwrap();
    let chosen = CopyOptions {
        chosen_lanes: true,
        ..archive()
    };
    let outcome = copy(vec![bytes(&path)], chosen.clone(), Behaviour::default()).await;
    assert!(outcome.failures().is_empty(), "{:?}", outcome.failures());
    assert!(outcome.files()[&b"large"[..]] == contents);
    let parts = |lane: &Vec<super::destination::Received>| {
        let is_part = |record: &LaneRecord| matches!(record, LaneRecord::Part { .. });
        lane.iter().filter(|(record, _)| is_part(record)).count()
    };
    let counts: Vec<usize> = outcome.lanes.iter().map(parts).collect();
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");

    let options = CopyOptions {
        digest: Some(crate::copy::order::DigestKind::Xxh64),
        ..chosen
    };
    let outcome = copy(vec![bytes(&path)], options, Behaviour::default()).await;
    let counts: Vec<usize> = outcome.lanes.iter().map(parts).collect();
    assert!(counts.contains(&0), "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_excluded_does_not_arrive() {
    let place = tempfile::tempdir().unwrap();
    let top = place.path().join("tree");
    fs::create_dir_all(top.join("build/inner")).unwrap();
    for name in ["a.o", "keep.o", "b.c", "build/x", "build/inner/y"] {
        fs::write(top.join(name), name).unwrap();
    }
    let rule = |include, pattern: &str| FilterRule {
        include,
        pattern: pattern.to_owned(),
    };
    let options = CopyOptions {
        filters: vec![
            rule(false, "*.o"),
            rule(true, "keep.o"),
            rule(false, "/build"),
        ],
        ..archive()
    };
    let outcome = copy(vec![bytes(&top)], options, Behaviour::default()).await;
    let files = outcome.files();
    let names: Vec<&[u8]> = files.keys().map(Vec::as_slice).collect();
    assert_eq!(names, [&b"tree/b.c"[..], b"tree/keep.o"]);
    assert_eq!(outcome.report.directories, 1);
}
