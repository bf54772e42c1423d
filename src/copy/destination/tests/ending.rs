//! Copies that end early, and a source that has the key and breaks the protocol.

use std::{
    os::{
        fd::AsFd,
        unix::fs::{FileExt, MetadataExt, symlink},
    },
    time::{Duration, Instant},
};

use rustix::io::Errno;

use super::*;
use crate::copy::{
    budget::ListBudget,
    destination::{
        MetadataKeeper, Placement,
        answers::answer,
        ends::SpooledLink,
        entry::{TemporaryName, rename_over},
        in_place::{copy_into_place, create_in_place, open_existing},
        mirror::MirroredFolder,
        placement::EntryNaming,
        state::{DestinationShared, DestinationState, ENDED},
        written::{KeptExisting, TargetFolder, WrittenGuard},
    },
    metadata::LocalOwners,
    order::{KeptRights, NameFilter, RunPart},
    written::WrittenEntries,
};

const SIZE: u64 = 8 << 20;

/// The time within which a copy that was cancelled ends, several times the second that is promised.
const PATIENCE: Duration = Duration::from_secs(20);

/// Sends a part of a large file and half of a small file, and then ends the copy as `end` does. Returns the failure,
/// and the error that the source sees.
async fn end_in_the_middle(
    dest: &Path,
    end: impl FnOnce(&CancellationToken, &mut Vec<Stream>),
) -> (CopyError, Option<std::io::Error>) {
    let typed = dest.to_str().unwrap().as_bytes().to_vec();
    let engine = DestinationEngine::prepare(
        &BaseDirectory::Working,
        &typed,
        CopiedSources::One,
        archive(),
    )
    .unwrap();
    let (control, mut far_control) = stream(CHUNK_BYTES).await;
    name_no_operands(&mut far_control).await;
    let (lane, far_lane) = stream(CHUNK_BYTES).await;
    let cancelled = CancellationToken::new();
    let context = context(&Arc::default(), cancelled.clone());
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
    assert!(matches!(failure, CopyError::Cancelled), "{failure:?}");
    let seen = seen.unwrap().to_string();
    assert!(seen.contains("enough"), "{seen}");
}

#[tokio::test]
async fn a_lane_that_breaks_ends_the_copy() {
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    let (failure, _) = end_in_the_middle(&dest, |_, lanes| lanes.clear()).await;
    assert!(matches!(failure, CopyError::Stream(_)), "{failure:?}");
}

#[tokio::test]
async fn records_that_make_no_sense_end_the_copy() {
    let cases: Vec<(Vec<Step>, &str)> = vec![
        (vec![file("a", "x")], "without a folder"),
        (vec![part(0, 7, 0, b"x")], "not announced"),
        (vec![large_end(0, 7, Some(0))], "not announced"),
        (
            vec![large(0, 1, "a", 10), part(0, 1, 8, b"xyz")],
            "end of its file",
        ),
        (
            vec![large(0, 1, "a", 10), part(0, 1, u64::MAX, b"x")],
            "end of every file",
        ),
        (
            vec![Step::Say(FromSource::Names {
                folder: path(""),
                names: vec![],
                last: true,
            })],
            "not asked for",
        ),
    ];
    for (steps, expected) in cases {
        let (_scratch, dest) = scratch();
        fs::create_dir(&dest).unwrap();
        let end = copy(&dest, &archive(), steps).await;
        assert!(end.broken().contains(expected), "{:?}", end.failure);
        assert!(!end.report.complete);
        assert_eq!(names_in(&dest), [""; 0]);
    }
}

#[tokio::test]
async fn a_second_source_cannot_take_the_name_of_the_first() {
    let (_scratch, dest) = scratch();
    let end = copy(
        &dest,
        &archive(),
        vec![folder("a", 0o755), folder("b", 0o755)],
    )
    .await;
    assert!(end.broken().contains("one source only"));
}

#[tokio::test]
async fn no_link_leads_outside() {
    let (scratch, dest) = scratch();
    let outside = scratch.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("victim"), "kept").unwrap();
    fs::create_dir(&dest).unwrap();
    symlink(&outside, dest.join("out")).unwrap();
    let hard = LaneRecord::HardLink {
        name: name("hard"),
        target: path("out/victim"),
    };
    let steps = vec![
        folder("out", 0o700),
        file("new", "x"),
        folder("out/deep", 0o777),
        file("new", "x"),
        large(0, 1, "out/large", 3),
        part(0, 1, 0, b"abc"),
        large_end(0, 1, Some(3)),
        folder("", 0o755),
        Step::Record(0, hard, Vec::new()),
        file("good", "y"),
    ];
    let end = copy(&dest, &archive(), steps).await;
    assert_eq!(end.failures().len(), 3, "{:?}", end.failures());
    assert_eq!(names_in(&outside), ["victim"]);
    assert_eq!(names_in(&dest), ["good", "out"]);
    let names = |names: &[&str]| names.iter().map(|text| name(text)).collect();
    let say = |folder: &str, kept: &[&str]| {
        Step::Say(FromSource::Names {
            folder: path(folder),
            names: names(kept),
            last: true,
        })
    };
    let options = CopyOptions {
        delete: true,
        ..archive()
    };
    copy(&dest, &options, vec![say("out", &[]), say("", &["good"])])
        .await
        .assert_whole();
    assert_eq!(names_in(&outside), ["victim"]);
    assert_eq!(names_in(&dest), ["good"]);
}

#[tokio::test]
async fn a_lane_that_ends_early_is_a_failure() {
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    let end = Step::Record(0, LaneRecord::End, Vec::new());
    let end = copy(&dest, &archive(), vec![place(), end, file("a", "x")]).await;
    assert!(end.broken().contains("follow the last record"));
    let steps = vec![large(0, 1, "a", 10), part(0, 1, 0, b"x")];
    let end = copy(&dest, &archive(), steps).await;
    assert_eq!(end.failures()[0].1, "the source has not sent all of it");
    assert_eq!(names_in(&dest), [""; 0]);
}

/// Returns what the threads of a copy share that has begun, and what ends it.
fn begun(dest: &Path) -> (DestinationShared, CancellationToken) {
    let typed = dest.to_str().unwrap().as_bytes();
    let options = CopyOptions {
        delete: true,
        max_delete: Some(9),
        ..archive()
    };
    let base = BaseDirectory::Working;
    let placement = Placement::find(&base, typed, CopiedSources::Contents, &options).unwrap();
    let filter = NameFilter::new(&[]).unwrap();
    let cancelled = CancellationToken::new();
    let context = context(&Arc::default(), cancelled.clone());
    let keeper = MetadataKeeper::of_process(options.archive, false, KeptRights::All);
    let budget = Arc::new(ListBudget::of_agent());
    let guard = WrittenGuard::new(
        RunPart::default(),
        WrittenEntries::default(),
        KeptExisting::Nothing,
        Arc::clone(&budget),
    );
    let state = DestinationState::new(placement, filter, options, keeper, guard, budget, context);
    (DestinationShared::new(state, None), cancelled)
}

#[test]
fn what_is_copied_into_place_keeps_its_holes() {
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    let (shared, _) = begun(&dest);
    let from = fs::File::create(dest.join("from")).unwrap();
    from.set_len(1 << 30).unwrap();
    from.write_all_at(b"data", 1 << 29).unwrap();
    fs::write(dest.join("to"), "old contents").unwrap();
    let folder = fs::File::open(&dest).unwrap();
    let to = (&name("to"), EntryNaming::Tree);
    let metadata = metadata(0o600, 0);
    let copied = copy_into_place(&shared.state, folder.as_fd(), b"from", to, &metadata);
    assert_eq!(copied, Ok(()));
    let copy = fs::File::open(dest.join("to")).unwrap();
    let mut data = [1; 12];
    copy.read_exact_at(&mut data, 0).unwrap();
    assert_eq!(data, [0; 12]);
    copy.read_exact_at(&mut data[..4], 1 << 29).unwrap();
    assert_eq!(&data[..4], b"data");
    let found = copy.metadata().unwrap();
    let limit = 2 * from.metadata().unwrap().blocks() + 64;
    assert!(
        found.len() == 1 << 30 && found.blocks() <= limit,
        "{found:?}"
    );
}

#[tokio::test]
async fn nothing_gets_its_name_after_the_end() {
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    let (shared, cancelled) = begun(&dest);
    let state = &shared.state;
    let folder = fs::File::open(&dest).unwrap();
    let target = TargetFolder {
        fd: folder.as_fd(),
        id: (0, 0),
        is_of_run: false,
    };
    fs::write(dest.join("from"), "new").unwrap();
    let rename = || rename_over(state, target, b"from", &name("to"), &path("to"));
    cancelled.cancel();
    let why = rename().unwrap_err().into_text();
    assert!(why.contains("was ended"), "{why}");
    let naming = EntryNaming::Tree;
    let opened = open_existing(state, folder.as_fd(), &name("from"), naming);
    assert_eq!(opened.unwrap_err(), Errno::CANCELED);
    let created = create_in_place(state, folder.as_fd(), &name("to"), 0o600);
    assert_eq!(created.unwrap_err(), Errno::CANCELED);
    let link = SpooledLink {
        path: path("to"),
        target: path("from"),
        is_kept: false,
    };
    let why = shared.make_link(&mut TemporaryName::random(), &link);
    assert_eq!(why, Err(ENDED.to_owned()));
    let mirrored = MirroredFolder::default().add(&shared, &path(""), &[name("other")], true);
    assert!(
        matches!(mirrored, Err(CopyError::Cancelled)),
        "{mirrored:?}"
    );
    let Step::Say(FromSource::Ask { entries, .. }) = ask("", &[("from", 3, 0)]) else {
        panic!("no question");
    };
    let answers = answer(&shared, &path(""), &entries, &LocalOwners::default());
    assert!(matches!(answers, Err(CopyError::Cancelled)), "{answers:?}");
    assert_eq!(names_in(&dest), ["from"]);
    assert_eq!(fs::read(dest.join("from")).unwrap(), b"new");
}
