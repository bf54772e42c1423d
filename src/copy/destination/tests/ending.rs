//! Copies that end early.

use std::time::{Duration, Instant};

use super::*;

const SIZE: u64 = 8 << 20;

/// The time within which a copy that was cancelled ends, several times the second that is promised.
const PATIENCE: Duration = Duration::from_secs(20);

/// Sends a part of a large file and half of a small file, and then ends the copy as `end` does. Returns the failure, and
/// the error that the source sees.
async fn end_in_the_middle(
    dest: &Path,
    end: impl FnOnce(&CancellationToken, &mut Vec<Stream>),
) -> (CopyFailure, Option<std::io::Error>) {
    let typed = dest.to_str().unwrap().as_bytes().to_vec();
    let engine = DestinationEngine::prepare(
        &BaseDirectory::Working,
        &typed,
        CopiedSources::One,
        archive(),
    )
    .unwrap();
    let (control, _far_control) = stream().await;
    let (lane, far_lane) = stream().await;
    let cancelled = CancellationToken::new();
    let context = CopyContext {
        report: Arc::new(drop),
        cancelled: cancelled.clone(),
        reason: Arc::new(|| "enough".to_owned()),
    };
    let streams = CopyStreams {
        control,
        lanes: vec![lane],
    };
    let breaking = async {
        let mut lanes = vec![far_lane];
        let far = &mut lanes[0];
        let steps = [
            folder("top", 0o755),
            large(0, 1, "top/big", SIZE),
            part(0, 1, 0, &vec![7; 1 << 20]),
            file("small", "0123456789"),
        ];
        let records = steps.iter().map(|step| match step {
            Step::Record(_, record, contents) => encoded(record, contents),
            Step::Say(_) => Vec::new(),
        });
        let mut bytes = records.collect::<Vec<_>>().concat();
        bytes.truncate(bytes.len() - 5);
        far.write_all(&bytes).await.unwrap();
        far.flush().await.unwrap();
        let has_begun = || names_in_if_any(&dest.join("top")).len() == 2;
        while !has_begun() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let started = Instant::now();
        end(&cancelled, &mut lanes);
        let seen = match lanes.first_mut() {
            Some(far) => far.read_u8().await.err(),
            None => None,
        };
        (started, seen)
    };
    let ((report, failure), (started, seen)) = tokio::join!(engine.run(streams, context), breaking);
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    assert!(!report.complete);
    let left = names_in(&dest.join("top"));
    assert_eq!(left, [".big.rdcp-map", ".big.rdcp-part"]);
    (failure.unwrap(), seen)
}

fn names_in_if_any(folder: &Path) -> Vec<String> {
    if folder.exists() {
        names_in(folder)
    } else {
        Vec::new()
    }
}

#[tokio::test]
async fn a_cancelled_copy_leaves_only_what_can_be_resumed() {
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    let (failure, seen) = end_in_the_middle(&dest, |cancelled, _| cancelled.cancel()).await;
    assert!(matches!(failure, CopyFailure::Cancelled), "{failure:?}");
    let seen = seen.unwrap().to_string();
    assert!(seen.contains("enough"), "{seen}");
}

#[tokio::test]
async fn a_lane_that_breaks_ends_the_copy() {
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    let (failure, _) = end_in_the_middle(&dest, |_, lanes| lanes.clear()).await;
    assert!(matches!(failure, CopyFailure::Stream(_)), "{failure:?}");
}
