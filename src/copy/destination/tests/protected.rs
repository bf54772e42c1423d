//! The filters protect at the destination exactly what they leave out at the source.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::copy::{filter::NameFilter, order::FilterRule};

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
