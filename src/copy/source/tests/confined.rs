//! A source that a server confines to a directory.

use std::{fs, os::unix::fs::symlink, path::Path};

use super::{
    destination::{Behaviour, Outcome, copy_from},
    trees::archive,
};
use crate::copy::{
    base::BaseDirectory, metadata::EntryKind, order::CopyOptions, record::LaneRecord,
};

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
