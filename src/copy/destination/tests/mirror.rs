//! What is kept, skipped and removed.

use std::os::unix::fs::symlink;

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
    ] {
        fs::write(dest.join("top").join(file), "").unwrap();
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
    assert_eq!(end.report.removed, 2);
    assert!(dest.join("top/old/deep/f").exists());
    let end = copy(&dest, &options, steps()).await;
    end.assert_whole();
    assert_eq!(end.report.removed, 5);
    assert_eq!(
        names_in(&dest.join("top")),
        [".big.rdcp-part", ".rdcp-01234567", "a", "b"]
    );
    assert_eq!(names_in(&dest), ["beside", "top"]);
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
            let record = LaneRecord::Folder { path, metadata };
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
        ("f", 5, 2_000),
        ("f", 5, 1_999),
        ("f", 5, 2_001),
        ("f", 4, 2_000),
        ("g", 5, 1),
    ];
    let (send, skip) = (AnswerKind::Send, AnswerKind::Skip);
    let cases = [
        (ExistingFiles::Replace, [&send, &send, &send, &send, &send]),
        (ExistingFiles::Keep, [&skip, &skip, &skip, &skip, &send]),
        (
            ExistingFiles::ReplaceOlder,
            [&skip, &skip, &send, &skip, &send],
        ),
        (
            ExistingFiles::ReplaceDifferent,
            [&skip, &send, &send, &send, &send],
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
