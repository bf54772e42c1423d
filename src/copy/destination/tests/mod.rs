//! The destination over loopback, with a source that sends what a test says.

mod budget;
mod ending;
mod files;
mod limited;
mod mirror;
mod places;
mod served;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use super::{
    DestinationEngine,
    answers::COMPARED_BYTES,
    mirror::{MAX_DEPTH, STALE_AGE},
    part_file::MIN_KEPT_BYTES,
};
use crate::{
    Stream,
    copy::{
        job::{CopyContext, CopyError, CopyStreams},
        metadata::{EntryKind, Metadata, Timestamp},
        order::{CopyNews, CopyOptions, CopyReport, FromCopy},
        path::{BaseDirectory, CopiedSources, EntryName, RelativePath},
        question::{AnswerKind, AskedEntry, FromDestination, FromSource},
        record::{LaneRecord, LargeFile, encode, set_content_length},
        tests::{archive, context, stream},
    },
};

/// The chunks of the streams: the default.
const CHUNK_BYTES: usize = 512 << 10;

/// Something that the source of a test sends.
enum Step {
    Record(usize, LaneRecord, Vec<u8>),
    /// A message on the control stream.
    Say(FromSource),
}

/// What became of a copy.
struct CopyEnd {
    report: CopyReport,
    failure: Option<CopyError>,
    messages: Vec<FromCopy>,
    answers: Vec<FromDestination>,
}

impl CopyEnd {
    /// The paths and the reasons of the failures.
    fn failures(&self) -> Vec<(String, String)> {
        let failed = |message: &FromCopy| match message {
            FromCopy::News(CopyNews::Failed { path, why }) => {
                Some((String::from_utf8_lossy(path).into_owned(), why.clone()))
            }
            _ => None,
        };
        self.messages.iter().filter_map(failed).collect()
    }

    /// The notes on what was not kept.
    fn notes(&self) -> Vec<String> {
        let note = |message: &FromCopy| match message {
            FromCopy::News(CopyNews::Note(text)) => Some(text.clone()),
            _ => None,
        };
        self.messages.iter().filter_map(note).collect()
    }

    /// Fails the test unless everything was copied.
    fn assert_whole(&self) {
        assert!(self.failure.is_none(), "{:?}", self.failure);
        assert_eq!(self.failures(), []);
        assert!(self.report.complete);
        assert_eq!(self.answers.last(), Some(&FromDestination::Done));
    }

    /// Returns what broke the protocol.
    fn broken(&self) -> String {
        match &self.failure {
            Some(CopyError::Local(why)) => why.clone(),
            other => panic!("{other:?}, {:?}", self.messages),
        }
    }

    fn kinds(&self) -> Vec<AnswerKind> {
        let kinds = self.answers.iter().filter_map(|answer| match answer {
            FromDestination::Answers(kinds) => Some(kinds.clone()),
            _ => None,
        });
        kinds.flatten().collect()
    }
}

/// Copies what `steps` send over two lanes to `path`.
async fn copy(path: &Path, options: &CopyOptions, steps: Vec<Step>) -> CopyEnd {
    let path = path.to_str().unwrap().as_bytes().to_vec();
    copy_typed(path, options, steps).await.unwrap()
}

async fn copy_typed(
    path: Vec<u8>,
    options: &CopyOptions,
    steps: Vec<Step>,
) -> Result<CopyEnd, String> {
    let base = BaseDirectory::Working;
    let engine = DestinationEngine::prepare(&base, &path, sources_of(&steps), options.clone())?;
    Ok(run(engine, steps).await)
}

/// Copies what `steps` send over two lanes.
async fn run(engine: DestinationEngine, steps: Vec<Step>) -> CopyEnd {
    let (streams, far_control, far_lanes) = streams().await;
    let messages = Arc::new(Mutex::new(Vec::new()));
    let context = context(&messages, CancellationToken::new());
    let running = engine.run(streams, context);
    let ((report, failure), answers) = tokio::join!(running, send(steps, far_control, far_lanes));
    let messages = std::mem::take(&mut *messages.lock().unwrap());
    CopyEnd {
        report,
        failure,
        messages,
        answers,
    }
}

/// Returns what the user named: the contents of a directory if the place itself has metadata or a list of names, else
/// one source.
fn sources_of(steps: &[Step]) -> CopiedSources {
    let is_place = |step: &Step| match step {
        Step::Record(_, LaneRecord::Folder { path, metadata, .. }, _) => {
            path.is_empty() && metadata.is_some()
        }
        Step::Say(FromSource::Names { folder, .. }) => folder.is_empty(),
        _ => false,
    };
    if steps.iter().any(is_place) {
        CopiedSources::Contents
    } else {
        CopiedSources::One
    }
}

/// Returns the streams of a copy with two lanes, and their far ends. The source has named its operands, none.
async fn streams() -> (CopyStreams, Stream, Vec<Stream>) {
    let mut all = crate::copy::tests::streams(2, CHUNK_BYTES).await;
    name_no_operands(&mut all.1).await;
    all
}

async fn name_no_operands(control: &mut Stream) {
    let (operands, last) = (Vec::new(), true);
    let message = FromSource::Operands { operands, last };
    say(control, &message).await.unwrap();
}

/// Sends the steps and the end, and returns what the destination says. A destination that has ended is no failure here.
async fn send(
    steps: Vec<Step>,
    mut control: Stream,
    mut lanes: Vec<Stream>,
) -> Vec<FromDestination> {
    let mut answers = Vec::new();
    let sent = send_steps(steps, &mut control, &mut lanes, &mut answers).await;
    if sent.is_ok() {
        let _ = send_end(&mut control, &mut lanes, &mut answers).await;
    }
    answers
}

async fn send_steps(
    steps: Vec<Step>,
    control: &mut Stream,
    lanes: &mut [Stream],
    answers: &mut Vec<FromDestination>,
) -> std::io::Result<()> {
    for step in steps {
        match step {
            Step::Record(lane, record, contents) => {
                lanes[lane].write_all(&encoded(&record, &contents)).await?;
                lanes[lane].flush().await?;
            }
            Step::Say(message) => {
                let asks = matches!(message, FromSource::Ask { .. });
                say(control, &message).await?;
                if asks {
                    answers.push(listen(control).await?);
                }
            }
        }
    }
    Ok(())
}

async fn send_end(
    control: &mut Stream,
    lanes: &mut [Stream],
    answers: &mut Vec<FromDestination>,
) -> std::io::Result<()> {
    for lane in &mut *lanes {
        lane.write_all(&encoded(&LaneRecord::End, &[])).await?;
        lane.shutdown().await?;
    }
    say(control, &FromSource::Finished).await?;
    while answers.last() != Some(&FromDestination::Done) {
        answers.push(listen(control).await?);
    }
    for lane in lanes {
        lane.finish().await?;
    }
    control.shutdown().await
}

fn encoded(record: &LaneRecord, contents: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let position = encode(record, &mut bytes).unwrap();
    set_content_length(&mut bytes, position, contents.len().try_into().unwrap());
    bytes.extend_from_slice(contents);
    bytes
}

async fn say(control: &mut Stream, message: &FromSource) -> std::io::Result<()> {
    let bytes = postcard::to_stdvec(message).unwrap();
    control
        .write_u32_le(bytes.len().try_into().unwrap())
        .await?;
    control.write_all(&bytes).await?;
    control.flush().await
}

async fn listen(control: &mut Stream) -> std::io::Result<FromDestination> {
    let length = control.read_u32_le().await?;
    let mut bytes = vec![0; length.try_into().unwrap()];
    control.read_exact(&mut bytes).await?;
    Ok(postcard::from_bytes(&bytes).unwrap())
}

fn path(text: &str) -> RelativePath {
    text.as_bytes().to_vec().try_into().unwrap()
}

fn name(text: &str) -> EntryName {
    text.as_bytes().to_vec().try_into().unwrap()
}

/// Returns metadata with a mode and a time, and the owner of this process.
fn metadata(mode: u32, seconds: i64) -> Metadata {
    let time = Timestamp {
        seconds,
        nanoseconds: 123_456_789,
    };
    Metadata {
        mode,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        modified: time,
        accessed: time,
        attributes: Vec::new(),
    }
}

/// The folder of a file that the user named.
fn place() -> Step {
    let metadata = None;
    let path = path("");
    let above = Vec::new();
    let record = LaneRecord::Folder {
        path,
        metadata,
        above,
    };
    Step::Record(0, record, Vec::new())
}

fn folder(text: &str, mode: u32) -> Step {
    let metadata = Some(metadata(mode, 1_000));
    let path = path(text);
    let above = Vec::new();
    let record = LaneRecord::Folder {
        path,
        metadata,
        above,
    };
    Step::Record(0, record, Vec::new())
}

/// Makes a step that sends a symbolic link.
fn link_to(text: &str, target: &str) -> Step {
    let record = LaneRecord::Special {
        name: name(text),
        kind: EntryKind::Symlink,
        target: target.as_bytes().to_vec(),
        metadata: metadata(0o777, 1_000),
    };
    Step::Record(0, record, Vec::new())
}

fn file(text: &str, contents: &str) -> Step {
    let metadata = metadata(0o644, 2_000);
    let name = name(text);
    let record = LaneRecord::File { name, metadata };
    Step::Record(0, record, contents.as_bytes().to_vec())
}

fn large(lane: usize, id: u64, text: &str, size: u64) -> Step {
    let file = LargeFile {
        id,
        path: path(text),
        size,
        content_bytes: 0,
        changed: metadata(0, 3_000).modified,
        metadata: metadata(0o640, 3_000),
        resumed: false,
    };
    Step::Record(lane, LaneRecord::LargeFile(file), Vec::new())
}

fn part(lane: usize, id: u64, offset: u64, contents: &[u8]) -> Step {
    Step::Record(lane, LaneRecord::Part { id, offset }, contents.to_vec())
}

fn large_end(lane: usize, id: u64, bytes: Option<u64>) -> Step {
    let content_bytes = bytes;
    let record = LaneRecord::LargeFileEnd { id, content_bytes };
    Step::Record(lane, record, Vec::new())
}

fn ask(text: &str, entries: &[(&str, u64, i64)]) -> Step {
    let entries = entries.iter().map(|&(entry, size, seconds)| AskedEntry {
        name: name(entry),
        kind: EntryKind::File,
        size,
        modified: metadata(0, seconds).modified,
        changed: metadata(0, seconds).modified,
        metadata: None,
        target: None,
    });
    Step::Say(FromSource::Ask {
        folder: path(text),
        entries: entries.collect(),
    })
}

/// A directory, and the names in it.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn scratch() -> (TempDir, PathBuf) {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("dest");
    (scratch, path)
}

#[track_caller]
fn assert_quotes(text: &str) {
    let page = include_str!("../../../../docs/copy.md");
    assert!(page.contains(text), "the page does not say: {text}");
}

#[test]
fn the_docs_quote_the_limits_of_copies() {
    let kept = MIN_KEPT_BYTES >> 20;
    assert_quotes(&format!("| of {kept} MiB and more |"));
    let block = COMPARED_BYTES >> 20;
    assert_quotes(&format!("sends the blocks of {block} MiB that differ"));
    assert_quotes(&format!("at most {MAX_DEPTH} levels below it"));
    assert_eq!(STALE_AGE, Duration::from_secs(24 * 60 * 60));
    assert_quotes("`--delete` removes it after a day");
}
