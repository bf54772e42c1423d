//! What a source makes a destination keep is within the budget of the copy.

use serde_bytes::ByteBuf;

use super::*;
use crate::copy::{budget::ListBudget, record::LargeFile};

/// Copies what `steps` send to a new directory, with so many bytes for lists.
async fn copy_within(bytes: usize, options: &CopyOptions, steps: Vec<Step>) -> CopyEnd {
    let dest = tempfile::tempdir().unwrap();
    let path = dest.path().to_str().unwrap().as_bytes();
    let base = BaseDirectory::Working;
    let sources = sources_of(&steps);
    let engine = DestinationEngine::prepare(&base, path, sources, options.clone()).unwrap();
    run(engine.with_budget(ListBudget::of_server(bytes)), steps).await
}

/// Fails the test unless the copy has ended because its lists had no memory left.
fn assert_exceeded(end: &CopyEnd) {
    let why = end.broken();
    assert!(
        why.contains("the lists of this copy need more than"),
        "{why}"
    );
    assert!(why.contains("a larger -m or fewer --max-clients"), "{why}");
    assert!(!end.report.complete);
}

fn names_of(numbers: std::ops::Range<u32>, last: bool) -> Step {
    let names = numbers.map(|number| name(&number.to_string()));
    Step::Say(FromSource::Names {
        folder: path(""),
        names: names.collect(),
        last,
    })
}

#[tokio::test]
async fn names_of_a_mirrored_folder_without_end_end_the_copy() {
    let options = CopyOptions {
        delete: true,
        recursive: true,
        ..CopyOptions::default()
    };
    let of = |count: u32| (0..count).map(|at| names_of(500 * at..500 * (at + 1), false));
    let within = of(80).chain([names_of(0..1, true)]);
    copy_within(1 << 20, &options, within.collect())
        .await
        .assert_whole();
    assert_exceeded(&copy_within(1 << 20, &options, of(300).collect()).await);
    // A folder gives back what its names have taken.
    let many = (0..8).flat_map(|_| of(80).chain([names_of(0..1, true)]));
    let end = copy_within(1 << 20, &options, many.collect()).await;
    assert!(end.failure.is_none(), "{:?}", end.failure);
}

#[tokio::test]
async fn any_number_of_folders_takes_no_memory_and_all_get_their_metadata() {
    let steps = |mode| {
        let folders = (0..3000_u32).map(move |at| folder(&format!("top/{at}/below"), mode));
        [folder("top", mode)].into_iter().chain(folders).collect()
    };
    for options in [
        archive(),
        CopyOptions {
            archive: false,
            fsync: true,
            ..archive()
        },
    ] {
        let end = copy_within(64 << 10, &options, steps(0o750)).await;
        end.assert_whole();
        assert_eq!(end.report.directories, 6001);
    }
}

#[tokio::test]
async fn attributes_of_announced_files_without_end_end_the_copy() {
    let announced = |id: u64| {
        let mut metadata = metadata(0o644, 1);
        metadata.attributes = vec![(ByteBuf::from(b"user.a"), ByteBuf::from([7; 100 << 10]))];
        let record = LaneRecord::LargeFile(LargeFile {
            id,
            path: path(&format!("top/{id}")),
            size: 1 << 30,
            content_bytes: 1,
            changed: metadata.modified,
            metadata,
            resumed: false,
        });
        Step::Record(0, record, Vec::new())
    };
    let steps = [folder("top", 0o755)]
        .into_iter()
        .chain((0..60).map(announced));
    assert_exceeded(&copy_within(1 << 20, &archive(), steps.collect()).await);
}

#[tokio::test]
async fn owners_without_end_end_the_copy() {
    let owner = |number| {
        let user = Some((number, "root".to_owned()));
        Step::Record(0, LaneRecord::Owner { user, group: None }, Vec::new())
    };
    let steps = [folder("top", 0o755)]
        .into_iter()
        .chain((0..9000).map(owner));
    assert_exceeded(&copy_within(512 << 10, &archive(), steps.collect()).await);
}

#[tokio::test]
async fn folders_that_cannot_be_written_without_end_end_the_copy() {
    let long = "x/".repeat(2100);
    let steps = (0..400).map(|at| folder(&format!("{long}{at}"), 0o755));
    assert_exceeded(&copy_within(1 << 20, &archive(), steps.collect()).await);
}
