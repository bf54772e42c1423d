//! What a destination makes a source keep is within the budget of the copy.

use bytes::Bytes;
use futures::SinkExt;
use tokio::io::AsyncReadExt;
use tokio_util::codec::FramedWrite;

use super::*;
use crate::copy::{
    budget::ListBudget,
    question::{AnswerKind, ByteRange, FromDestination, MAX_ANSWER_BYTES, codec},
};

/// Copies a file to a destination that sends `message` again and again, and returns why the copy failed.
async fn fails(options: CopyOptions, message: impl Fn(u64) -> FromDestination) -> String {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("file"), b"x").unwrap();
    let paths = vec![bytes(&place.path().join("file"))];
    let engine = prepared(BaseDirectory::Working, paths, options).unwrap();
    let engine = engine.with_budget(ListBudget::of_server(1 << 20));
    let (streams, mut control, _lanes) = streams(&Behaviour::default()).await;
    let context = context(&Arc::default(), CancellationToken::new());
    let hostile = async {
        let (read, write) = control.split();
        let mut frames = FramedWrite::new(write, codec(MAX_ANSWER_BYTES));
        // The first question, or the end of the questions.
        read.read_u8().await.unwrap();
        for number in 0.. {
            let message = postcard::to_stdvec(&message(number)).unwrap();
            if frames.send(Bytes::from(message)).await.is_err() {
                break;
            }
        }
    };
    let ((report, failure), ()) = tokio::join!(engine.run(streams, context), hostile);
    assert!(!report.complete);
    match failure {
        Some(CopyError::Local(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unwritten_paths_without_end_end_the_copy() {
    let options = CopyOptions {
        remove_source_files: true,
        resume: true,
        ..CopyOptions::default()
    };
    let unwritten = |number: u64| FromDestination::NotWritten(relative(&number.to_string()));
    let why = fails(options, unwritten).await;
    assert!(
        why.contains("the lists of this copy need more than"),
        "{why}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_with_more_ranges_than_there_is_memory_for_ends_the_copy() {
    let options = CopyOptions {
        resume: true,
        ..CopyOptions::default()
    };
    let ranges = |_| {
        let range = ByteRange { start: 0, end: 1 };
        FromDestination::Answers(vec![AnswerKind::Resume(vec![range; 100_000])])
    };
    let why = fails(options, ranges).await;
    assert!(
        why.contains("the lists of this copy need more than"),
        "{why}"
    );
}
