//! A source that has the key and breaks the protocol.

use std::os::unix::fs::symlink;

use super::*;

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
    assert_eq!(end.failures().len(), 4, "{:?}", end.failures());
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
