//! What is kept, skipped and removed: the filters protect at the destination exactly what they leave out at the source.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::fs::symlink,
};

use proptest::prelude::*;
use rustix::fs::{IFlags, ioctl_setflags};

use super::*;
use crate::copy::order::{ExistingFiles, FilterRule, NameFilter};

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
        ".rdcp-notes",
    ] {
        fs::write(dest.join("top").join(file), "").unwrap();
    }
    // A copy makes no directories of such names.
    for directory in [".rdcp-0123abcd", ".a.rdcp-part"] {
        fs::create_dir(dest.join("top").join(directory)).unwrap();
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
    assert_eq!(end.report.removed, 8);
    let listed = removed(&end);
    assert!(dest.join("top/old/deep/f").exists());
    let end = copy(&dest, &options, steps()).await;
    end.assert_whole();
    assert_eq!(end.report.removed, 8);
    assert_eq!(removed(&end), listed);
    assert_eq!(
        names_in(&dest.join("top")),
        [".big.rdcp-part", ".rdcp-01234567", "a", "b"]
    );
    assert_eq!(names_in(&dest), ["beside", "top"]);
}

/// The paths that were listed as removed.
fn removed(end: &CopyEnd) -> Vec<String> {
    let paths = end.messages.iter().filter_map(|message| match message {
        FromCopy::News(CopyNews::Removed(paths)) => Some(paths),
        _ => None,
    });
    let paths = paths.flatten();
    paths
        .map(|path| String::from_utf8_lossy(path).into_owned())
        .collect()
}

#[tokio::test]
async fn an_entry_that_stays_is_named_with_the_reason_of_the_system_and_keeps_no_other() {
    let (_scratch, dest) = scratch();
    fs::create_dir_all(dest.join("top/old/deep")).unwrap();
    let kept = ["top/kept", "top/old/deep/kept"].map(|name| dest.join(name));
    let files = kept.each_ref().map(|path| fs::File::create(path).unwrap());
    for name in ["top/other", "top/old/deep/other", "top/old/other"] {
        fs::write(dest.join(name), "").unwrap();
    }
    let set_flags = |flags| {
        let set = files.iter().map(|file| ioctl_setflags(file, flags));
        set.collect::<rustix::io::Result<Vec<()>>>()
    };
    if let Err(errno) = set_flags(IFlags::IMMUTABLE) {
        eprintln!("SKIPPED: no immutable files here ({errno})");
        return;
    }
    let options = CopyOptions {
        delete: true,
        ..archive()
    };
    let end = copy(&dest, &options, vec![names("top", &["a"], true)]).await;
    set_flags(IFlags::empty()).unwrap();
    let failures: BTreeMap<_, _> = end.failures().into_iter().collect();
    let why = "cannot remove: Operation not permitted".to_owned();
    let expected = kept.map(|path| (path.to_str().unwrap().to_owned(), why.clone()));
    assert_eq!(failures, BTreeMap::from(expected));
    assert_eq!((end.report.failed, end.report.removed), (2, 3));
    assert_eq!(names_in(&dest.join("top")), ["kept", "old"]);
    assert_eq!(names_in(&dest.join("top/old/deep")), ["kept"]);
}

#[tokio::test]
async fn what_the_user_named_replaces_no_entry_of_another_kind() {
    let (_scratch, dest) = scratch();
    let options = CopyOptions {
        delete: true,
        ..archive()
    };
    let link = LaneRecord::HardLink {
        name: name("link"),
        target: path("top/f"),
    };
    for named in ["f", "large", "link", "fifo"] {
        fs::create_dir_all(dest.join(named).join("precious")).unwrap();
    }
    fs::write(dest.join("top"), "precious").unwrap();
    let fifo = LaneRecord::Special {
        name: name("fifo"),
        kind: EntryKind::Fifo,
        target: Vec::new(),
        metadata: metadata(0o600, 1),
    };
    let base = BaseDirectory::Working;
    let typed = dest.to_str().unwrap().as_bytes();
    let sources = CopiedSources::Many;
    let engine = DestinationEngine::prepare(&base, typed, sources, options).unwrap();
    let steps = vec![
        place(),
        file("f", "x"),
        Step::Record(0, fifo, Vec::new()),
        large(0, 1, "large", 3),
        part(0, 1, 0, b"abc"),
        large_end(0, 1, Some(3)),
        file("written", "y"),
        Step::Record(0, link, Vec::new()),
        folder("top", 0o755),
        file("in it", "z"),
        names("top", &["in it"], true),
    ];
    let end = run(engine, steps).await;
    assert_eq!(
        (end.report.removed, end.report.failed),
        (0, 5),
        "{:?}",
        end.failures()
    );
    for named in ["f", "large", "link", "fifo"] {
        assert_eq!(names_in(&dest.join(named)), ["precious"]);
    }
    assert_eq!(fs::read(dest.join("top")).unwrap(), b"precious");
    assert_eq!(fs::read(dest.join("written")).unwrap(), b"y");
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
            let above = Vec::new();
            let record = LaneRecord::Folder {
                path,
                metadata,
                above,
            };
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
        ("f", 5, 1_999),
        ("f", 5, 2_001),
        ("f", 4, 2_000),
        ("g", 5, 1),
        // After it, another source has nothing for this name.
        ("f", 5, 2_000),
    ];
    let (send, skip, keep) = (AnswerKind::Send, AnswerKind::Skip, AnswerKind::Keep);
    let cases = [
        (ExistingFiles::Replace, [&send, &send, &send, &send, &send]),
        (ExistingFiles::Keep, [&keep, &keep, &keep, &send, &skip]),
        (
            ExistingFiles::ReplaceOlder,
            [&keep, &send, &keep, &send, &skip],
        ),
        (
            ExistingFiles::ReplaceDifferent,
            [&send, &send, &send, &send, &skip],
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

#[tokio::test]
async fn at_most_so_many_entries_are_removed_and_the_others_are_counted() {
    for most in 0..=7 {
        let (_scratch, dest) = scratch();
        for folder in ["top/old/deep", "top/f/in"] {
            fs::create_dir_all(dest.join(folder)).unwrap();
        }
        for file in ["a", "b", "old/deep/c", "old/d"] {
            fs::write(dest.join("top").join(file), "").unwrap();
        }
        let mut options = CopyOptions {
            delete: true,
            max_delete: Some(most),
            dry_run: true,
            ..archive()
        };
        let steps = || vec![names("top", &["f"], true)];
        let dry = copy(&dest, &options, steps()).await;
        options.dry_run = false;
        let end = copy(&dest, &options, steps()).await;
        assert_eq!(
            (end.report.removed, dry.report.removed),
            (most.min(6), most.min(6))
        );
        let left = 6 - most.min(6);
        let expected = match left {
            0 => None,
            1 => Some(format!(
                "1 more entry was not removed: --max-delete {most} is reached"
            )),
            left => Some(format!(
                "{left} more entries were not removed: --max-delete {most} is reached"
            )),
        };
        for end in [dry, end] {
            assert_eq!(end.failures().pop().map(|failure| failure.1), expected);
        }
    }
}

#[tokio::test]
async fn a_dry_run_foresees_what_is_in_the_way() {
    let (_scratch, dest) = scratch();
    let mut options = CopyOptions {
        delete: true,
        dry_run: true,
        list: true,
        ..archive()
    };
    fs::create_dir_all(dest.join("top/file/was/a directory")).unwrap();
    fs::create_dir_all(dest.join("top/folder")).unwrap();
    fs::write(dest.join("top/folder/in"), "was a file").unwrap();
    let asked = || {
        vec![
            ask("top", &[("file", 1, 2)]),
            ask("top/folder/in", &[("a", 1, 2)]),
            ask("top/folder/in/deeper", &[]),
        ]
    };
    let end = copy(&dest, &options, asked()).await;
    end.assert_whole();
    assert_eq!(end.kinds(), [AnswerKind::Send, AnswerKind::Send]);
    let listed = removed(&end);
    assert_eq!(listed.len(), 4, "{listed:?}");
    assert!(listed[3].ends_with("folder/in"), "{listed:?}");
    options.delete = false;
    let end = copy(&dest, &options, asked()).await;
    assert_eq!(end.kinds(), [AnswerKind::Leave, AnswerKind::Leave]);
    let failures: Vec<_> = end
        .failures()
        .into_iter()
        .map(|failure| failure.1)
        .collect();
    let expected = [
        "cannot replace a directory",
        "the destination has something else of this name, which a directory does not replace; nothing in it would be written",
    ];
    assert_eq!(failures, expected);
    assert_eq!(fs::read(dest.join("top/folder/in")).unwrap(), b"was a file");
}

#[tokio::test]
async fn a_dry_run_lists_no_device_that_a_server_does_not_make() {
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    let options = CopyOptions {
        dry_run: true,
        ..archive()
    };
    let entry = |text: &str, kind| AskedEntry {
        name: name(text),
        kind,
        size: 0,
        modified: metadata(0, 1).modified,
        changed: metadata(0, 1).modified,
        metadata: None,
        target: None,
    };
    let entries = vec![
        entry("null", EntryKind::CharacterDevice { device: 259 }),
        entry("disk", EntryKind::BlockDevice { device: 259 }),
        entry("fifo", EntryKind::Fifo),
    ];
    let ask = Step::Say(FromSource::Ask {
        folder: path("top"),
        entries,
    });
    let base = BaseDirectory::root(&dest).unwrap();
    let engine = DestinationEngine::prepare(&base, b"new", CopiedSources::One, options).unwrap();
    let end = run(engine, vec![ask]).await;
    end.assert_whole();
    let (leave, send) = (AnswerKind::Leave, AnswerKind::Send);
    assert_eq!(end.kinds(), [leave.clone(), leave, send]);
    assert_eq!(
        end.notes(),
        ["device nodes were not kept: a server keeps them with --privileged only"]
    );
    assert_eq!(end.report.skipped, 0);
}

#[tokio::test]
async fn what_appears_after_the_question_is_not_replaced_either() {
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    fs::write(dest.join("f"), "of another program").unwrap();
    let options = CopyOptions {
        existing: ExistingFiles::Keep,
        ..archive()
    };
    let steps = vec![place(), file("f", "of the source"), file("g", "new")];
    let end = copy(&dest, &options, steps).await;
    let failures = end.failures();
    assert!(
        failures[0].1.contains("which --no-clobber keeps"),
        "{failures:?}"
    );
    assert_eq!(fs::read(dest.join("f")).unwrap(), b"of another program");
    assert_eq!(names_in(&dest), ["f", "g"]);
}

/// The entries of a tree; those that end in `/` are directories.
const TREE: &[&str] = &[
    "a/", "a/b/", "a/b/x.o", "a/x.o", "a/c/", "a/c/b/", "a/c/b/y", "build/", "build/y", "x/",
    "x/y", "x/build", "x/a/", "x/a/y/", "x/a/y/b", "y", "x.o", "#y",
];

/// Patterns of every shape that gitignore has.
const PATTERNS: &[&str] = &[
    "/y", "y", "y/", "*.o", "/x.o", "x/y", "/x/y", "/x", "x/", "/x/*", "x/**", "a/**/b", "**/y",
    "build", "build/", "/build/", "b", "!y", "#y", "[xy]", "*",
];

fn rules() -> impl Strategy<Value = Vec<FilterRule>> {
    let rule = (any::<bool>(), prop::sample::select(PATTERNS));
    let rule = rule.prop_map(|(include, pattern)| FilterRule {
        include,
        pattern: pattern.to_owned(),
    });
    prop::collection::vec(rule, 0..4)
}

/// Returns a path with every directory above it; directories end in `/`.
fn with_above(path: &str) -> impl Iterator<Item = &str> {
    let ends = path.match_indices('/').map(|(at, _)| at + 1);
    let whole = (!path.ends_with('/')).then_some(path.len());
    ends.chain(whole).map(|end| &path[..end])
}

/// Returns true if a source with these filters does not copy an entry: they leave out the entry or a directory above.
fn is_left_out(filter: &NameFilter, path: &str) -> bool {
    with_above(path).any(|path| {
        let name = path.trim_end_matches('/');
        filter.excludes(name.as_bytes(), name != path)
    })
}

/// Returns the names that a source has in a directory, if it has only these directories and a file `z` in each.
fn names_at_source(directory: &str, directories: &BTreeSet<&str>) -> Vec<EntryName> {
    let below = directories
        .iter()
        .filter_map(|path| path.strip_prefix(directory));
    let below = below.filter_map(|path| path.strip_suffix('/'));
    let names = below.filter(|name| !name.contains('/')).chain(["z"]);
    names.map(name).collect()
}

/// Returns the paths below a directory; those of directories end in `/`.
fn read(at: &Path, above: &str, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(at).unwrap() {
        let entry = entry.unwrap();
        let mut path = format!("{above}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            path.push('/');
            read(&entry.path(), &path, found);
        }
        found.insert(path);
    }
}

/// Mirrors a source that has only these directories over the whole tree. `top` is the path of the source's directory:
/// empty for its contents. Returns what is left at the destination.
async fn mirror(
    top: &str,
    is_named: bool,
    directories: &BTreeSet<&str>,
    filters: &[FilterRule],
) -> BTreeSet<String> {
    let (_scratch, dest) = scratch();
    let at = if is_named {
        dest.clone()
    } else {
        dest.join(top)
    };
    for path in TREE {
        match path.strip_suffix('/') {
            Some(path) => fs::create_dir_all(at.join(path)).unwrap(),
            None => fs::write(at.join(path), "").unwrap(),
        }
    }
    let filter = NameFilter::new(filters).unwrap();
    let walked = directories
        .iter()
        .filter(|path| !is_left_out(&filter, path));
    let steps = walked.chain([&""]).map(|directory| {
        let folder = [top, directory.trim_end_matches('/')];
        let folder = folder
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>();
        Step::Say(FromSource::Names {
            folder: path(&folder.join("/")),
            names: names_at_source(directory, directories),
            last: true,
        })
    });
    let options = CopyOptions {
        delete: true,
        no_target_directory: is_named,
        filters: filters.to_vec(),
        ..archive()
    };
    let end = copy(&dest, &options, steps.collect()).await;
    end.assert_whole();
    let mut left = BTreeSet::new();
    read(&at, "", &mut left);
    assert_eq!(end.report.removed, (TREE.len() - left.len()) as u64);
    left
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_the_source_leaves_out_stays_at_the_destination_and_nothing_else(
        filters in rules(),
        chosen in prop::collection::btree_set(prop::sample::select(TREE), 0..4),
        (top, is_named) in prop::sample::select(&[("top", false), ("top", true), ("", false), ("", true)][..]),
    ) {
        let directories: BTreeSet<&str> = chosen
            .iter()
            .flat_map(|path| with_above(path))
            .filter(|path| path.ends_with('/'))
            .collect();
        let filter = NameFilter::new(&filters).unwrap();
        let left_out = TREE.iter().filter(|path| is_left_out(&filter, path));
        let expected: BTreeSet<String> = left_out
            .flat_map(|path| with_above(path))
            .chain(directories.iter().copied())
            .map(str::to_owned)
            .collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let found = runtime.block_on(mirror(top, is_named, &directories, &filters));
        prop_assert_eq!(found, expected);
    }
}
