//! A destination for tests: it keeps every record, and answers as it is told.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::{
    codec::{FramedRead, FramedWrite, LengthDelimitedCodec},
    sync::CancellationToken,
};

use crate::{
    Key, Listener, Stream, StreamConfig, TransportPolicy,
    carry::thread::CarryThread,
    connect,
    copy::{
        base::BaseDirectory,
        job::{CopyContext, CopyFailure, CopyStreams},
        order::{CopyNews, CopyOptions, CopyReport, FromCopy},
        path::RelativePath,
        question::{AnswerKind, AskedEntry, FromDestination, FromSource, MAX_QUESTION_BYTES},
        record::{LaneRecord, PREFIX_BYTES, RecordPrefix, decode},
        source::SourceEngine,
    },
};

/// A record with its contents.
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
    pub(super) failure: Option<CopyFailure>,
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
    let engine = SourceEngine::prepare(base, paths, options).unwrap();
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

/// Returns a context that keeps all messages.
pub(super) fn context(
    messages: &Arc<Mutex<Vec<FromCopy>>>,
    cancelled: CancellationToken,
) -> CopyContext {
    let messages = Arc::clone(messages);
    CopyContext {
        report: Arc::new(move |message| messages.lock().unwrap().push(message)),
        cancelled,
        reason: Arc::new(|| "the test ends it".to_owned()),
    }
}

/// Returns the streams of a source, and their other ends.
pub(super) async fn streams(behaviour: &Behaviour) -> (CopyStreams, Stream, Vec<Stream>) {
    let (near, far_control) = stream("control", behaviour.chunk_bytes).await;
    let mut lanes = Vec::new();
    let mut far_lanes = Vec::new();
    for number in 0..behaviour.lanes {
        let (near, far) = stream(&format!("lane {number}"), behaviour.chunk_bytes).await;
        lanes.push(near);
        far_lanes.push(far);
    }
    let streams = CopyStreams {
        control: near,
        lanes,
    };
    (streams, far_control, far_lanes)
}

async fn stream(name: &str, chunk_bytes: usize) -> ((CarryThread, Stream), Stream) {
    let config = StreamConfig {
        transport: TransportPolicy::Tcp,
        chunk_bytes,
        ..StreamConfig::default()
    };
    let generated = Key::generate().unwrap();
    let key = generated.key().clone();
    let listening = Listener::bind("127.0.0.1:0", key.clone(), config.clone());
    let listener = listening.await.unwrap();
    let address = listener.local_addr();
    let thread = CarryThread::start(name).unwrap();
    let dialing = thread.run(async move { connect(address, &key, &config).await });
    let (accepted, connected) = tokio::join!(listener.accept(), dialing);
    ((thread, connected.unwrap()), accepted.unwrap())
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

type Lane = tokio::task::JoinHandle<Vec<Received>>;

/// Answers questions to the end, and returns them with what the lanes have brought.
async fn answer(
    mut stream: Stream,
    lanes: Vec<Lane>,
    behaviour: Behaviour,
) -> (Vec<FromSource>, Vec<Vec<Received>>) {
    let codec = || {
        LengthDelimitedCodec::builder()
            .little_endian()
            .max_frame_length(MAX_QUESTION_BYTES)
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
            FromSource::Names { .. } | FromSource::Owner { .. } => {}
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
