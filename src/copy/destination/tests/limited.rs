//! A source that may not read what the destination has, or may not replace it.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use super::*;
use crate::copy::{
    destination::{ExistingRights, written::MAY_NOT_REPLACE},
    order::ExistingFiles,
    written::WrittenEntries,
};

/// The rights of a client that may only add files.
const ADDS: ExistingRights = ExistingRights {
    reads: false,
    replaces: false,
};

/// The rights of a client that may only write.
const WRITES: ExistingRights = ExistingRights {
    reads: false,
    replaces: true,
};

async fn copy_with(
    rights: ExistingRights,
    path: &Path,
    options: &CopyOptions,
    steps: Vec<Step>,
) -> CopyEnd {
    let typed = path.to_str().unwrap().as_bytes();
    let base = BaseDirectory::Working;
    let engine = DestinationEngine::prepare(&base, typed, sources_of(&steps), options.clone());
    run(engine.unwrap().with_existing_rights(rights), steps).await
}

/// Makes a directory with a file, a link and a directory with a file. Returns it.
fn existing() -> (TempDir, PathBuf) {
    let (scratch, dest) = scratch();
    fs::create_dir_all(dest.join("tree")).unwrap();
    fs::write(dest.join("old"), "old").unwrap();
    fs::write(dest.join("big"), "old").unwrap();
    fs::write(dest.join("kept"), "old").unwrap();
    fs::write(dest.join("tree/old"), "old").unwrap();
    symlink("old", dest.join("link")).unwrap();
    fs::set_permissions(dest.join("tree"), fs::Permissions::from_mode(0o750)).unwrap();
    (scratch, dest)
}

/// Everything of a tree that a client could change: names, modes, times of files, contents and targets.
fn state_of(dest: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for name in ["old", "big", "kept", "tree", "tree/old", "link"] {
        let path = dest.join(name);
        let stat = path.symlink_metadata().unwrap();
        let is_folder = stat.is_dir();
        let times = (!is_folder).then(|| (stat.mtime_nsec(), stat.ctime_nsec(), stat.nlink()));
        let contents = fs::read(&path).ok();
        let target = fs::read_link(&path).ok();
        let rest = (stat.mode(), stat.ino(), times, contents, target);
        found.push(format!("{name}: {rest:?}"));
    }
    found
}

fn hard_link(text: &str, target: &str) -> Step {
    let record = LaneRecord::HardLink {
        name: name(text),
        target: path(target),
    };
    Step::Record(0, record, Vec::new())
}

#[tokio::test]
async fn who_may_only_add_changes_nothing_that_exists() {
    for options in [archive(), CopyOptions::default()] {
        let (_scratch, dest) = existing();
        let before = state_of(&dest);
        let steps = vec![
            folder("tree", 0o700),
            file("old", "new"),
            file("new", "new"),
            folder("", 0o777),
            file("old", "new"),
            file("link", "new"),
            link_to("old", "elsewhere"),
            link_to("link", "elsewhere"),
            file("tree", "new"),
            large(1, 1, "big", 3),
            part(1, 1, 0, b"new"),
            large_end(1, 1, Some(3)),
            hard_link("linked", "kept"),
            hard_link("big", "kept"),
            file("new", "new"),
        ];
        let end = copy_with(ADDS, &dest, &options, steps).await;
        assert!(end.failure.is_none(), "{:?}", end.failure);
        assert_eq!(state_of(&dest), before);
        assert_eq!(
            names_in(&dest),
            ["big", "kept", "link", "new", "old", "tree"]
        );
        assert_eq!(names_in(&dest.join("tree")), ["new", "old"]);
        assert_eq!(fs::read(dest.join("new")).unwrap(), b"new");
        let refused = end.failures();
        let told = |text: &str| refused.iter().filter(|(_, why)| why.contains(text)).count();
        assert_eq!(told(MAY_NOT_REPLACE), 6, "{refused:?}");
        assert_eq!(told("is not of this copy"), 2, "{refused:?}");
        assert_eq!(told("cannot replace a directory"), 1, "{refused:?}");
        assert_eq!(refused.len(), 9, "{refused:?}");
    }
}

/// A copy that is cut before its source learns of the end sends everything again.
#[tokio::test]
async fn who_may_only_add_may_send_the_same_again() {
    let (_scratch, dest) = existing();
    let steps = || {
        vec![
            folder("", 0o755),
            file("a", "same"),
            link_to("l", "a"),
            large(1, 1, "b", 4),
            part(1, 1, 0, b"same"),
            large_end(1, 1, Some(4)),
            hard_link("h", "a"),
        ]
    };
    for _ in 0..2 {
        let end = copy_with(ADDS, &dest, &archive(), steps()).await;
        end.assert_whole();
        assert_eq!(
            names_in(&dest),
            ["a", "b", "big", "h", "kept", "l", "link", "old", "tree"]
        );
    }
    let inode = |name: &str| fs::metadata(dest.join(name)).unwrap().ino();
    assert_eq!(inode("a"), inode("h"));
    // Other contents of the same size, and with -a another time.
    let steps = vec![folder("", 0o755), file("a", "some"), file("b", "same")];
    let end = copy_with(ADDS, &dest, &archive(), steps).await;
    let failures = end.failures();
    assert_eq!(failures.len(), 2, "{failures:?}");
    assert!(failures.iter().all(|(_, why)| why == MAY_NOT_REPLACE));
    assert_eq!(fs::read(dest.join("a")).unwrap(), b"same");
    let steps = vec![folder("", 0o755), file("b", "same")];
    let options = CopyOptions {
        recursive: true,
        ..CopyOptions::default()
    };
    copy_with(ADDS, &dest, &options, steps).await.assert_whole();
}

/// The numbers of inodes can be guessed.
#[tokio::test]
async fn who_may_only_add_cannot_name_what_exists_as_its_own() {
    let (_scratch, dest) = existing();
    let before = state_of(&dest);
    let mut own = WrittenEntries::default();
    for name in ["old", "kept", "tree", "tree/old"] {
        let stat = fs::metadata(dest.join(name)).unwrap();
        own.insert((stat.dev(), stat.ino()));
    }
    let steps = vec![
        folder("tree", 0o700),
        folder("fresh", 0o750),
        folder("", 0o755),
        hard_link("linked", "kept"),
    ];
    let typed = dest.to_str().unwrap().as_bytes();
    let base = BaseDirectory::Working;
    let engine = DestinationEngine::prepare(&base, typed, sources_of(&steps), archive());
    let mut engine = engine.unwrap().with_existing_rights(ADDS);
    for part in own.parts() {
        engine.add_earlier(part);
    }
    let end = run(engine, steps).await;
    assert_eq!(end.failures().len(), 1, "{:?}", end.failures());
    assert_eq!(state_of(&dest), before);
    let fresh = fs::metadata(dest.join("fresh")).unwrap().mode();
    assert_eq!(
        fresh & 0o7777,
        0o750,
        "what the copy makes gets its metadata"
    );
}

#[tokio::test]
async fn an_append_only_directory_and_a_locked_one_change_nothing_either() {
    if rustix::process::geteuid().is_root() {
        // Root may write in every directory.
        return;
    }
    let (_scratch, dest) = existing();
    let locked = fs::Permissions::from_mode(0o500);
    fs::set_permissions(dest.join("tree"), locked).unwrap();
    let before = state_of(&dest);
    let steps = vec![folder("tree", 0o700), file("old", "new")];
    let end = copy_with(ADDS, &dest, &archive(), steps).await;
    assert_eq!(end.failures().len(), 1);
    assert_eq!(state_of(&dest), before);
}

#[tokio::test]
async fn who_may_not_read_learns_nothing_from_answers() {
    use AnswerKind::{Keep, Send, Skip};

    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    copy(
        &dest,
        &archive(),
        vec![folder("", 0o755), file("same", "same")],
    )
    .await
    .assert_whole();
    let entries = [("same", 4, 2_000), ("same", 5, 2_000), ("none", 4, 2_000)];
    let resume = CopyOptions {
        resume: true,
        ..archive()
    };
    let keep = CopyOptions {
        existing: ExistingFiles::Keep,
        resume: true,
        ..archive()
    };
    for (rights, options, expected) in [
        (ExistingRights::ALL, &resume, [Skip, Send, Send]),
        (WRITES, &resume, [Send, Send, Send]),
        (ADDS, &resume, [Send, Send, Send]),
        (ExistingRights::ALL, &keep, [Skip, Keep, Send]),
        (ADDS, &keep, [Keep, Keep, Send]),
        (WRITES, &archive(), [Send, Send, Send]),
    ] {
        let steps = vec![folder("", 0o755), ask("", &entries)];
        let end = copy_with(rights, &dest, options, steps).await;
        assert_eq!(end.kinds(), expected, "{rights:?}");
    }
}
