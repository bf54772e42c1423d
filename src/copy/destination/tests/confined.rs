//! A destination that a server confines to a directory.

use std::os::unix::fs::symlink;

use super::*;

/// Makes `outside/secret`, and `root` with links that stay inside and that lead out.
fn served() -> (TempDir, BaseDirectory) {
    let place = tempfile::tempdir().unwrap();
    let at = |path: &str| place.path().join(path);
    fs::create_dir(at("outside")).unwrap();
    fs::write(at("outside/secret"), "secret").unwrap();
    fs::create_dir_all(at("root/tree")).unwrap();
    symlink(at("outside"), at("root/absolute")).unwrap();
    symlink("../outside", at("root/out")).unwrap();
    symlink("../outside/new", at("root/out-new")).unwrap();
    symlink("tree", at("root/inside")).unwrap();
    let base = BaseDirectory::root(&at("root")).unwrap();
    (place, base)
}

async fn copy_in(
    base: &BaseDirectory,
    typed: &str,
    options: &CopyOptions,
    steps: Vec<Step>,
) -> Result<CopyEnd, String> {
    let sources = sources_of(&steps);
    let engine = DestinationEngine::prepare(base, typed.as_bytes(), sources, options.clone())?;
    Ok(run(engine, steps).await)
}

fn parents() -> CopyOptions {
    CopyOptions {
        parents: true,
        ..archive()
    }
}

fn link_to(text: &str, target: &str) -> Step {
    let record = LaneRecord::Special {
        name: name(text),
        kind: EntryKind::Symlink,
        target: target.as_bytes().to_vec(),
        metadata: metadata(0o777, 1_000),
    };
    Step::Record(0, record, Vec::new())
}

#[tokio::test]
async fn paths_are_below_the_root() {
    let cases = [
        ("/", "f"),
        ("", "f"),
        ("//tree/", "tree/f"),
        ("tree/.", "tree/f"),
        ("inside", "tree/f"),
        ("inside/new", "tree/new"),
        ("/new", "new"),
        ("/x/y/z", "x/y/z"),
        ("inside/x/z", "tree/x/z"),
        ("~/x", "~/x"),
    ];
    for (typed, expected) in cases {
        let (place, base) = served();
        let steps = vec![super::place(), file("f", "x")];
        let end = copy_in(&base, typed, &parents(), steps).await;
        end.unwrap_or_else(|why| panic!("{typed}: {why}"))
            .assert_whole();
        let found = place.path().join("root").join(expected);
        assert_eq!(fs::read(found).unwrap(), b"x", "{typed}");
        assert_eq!(names_in(place.path()), ["outside", "root"]);
        assert_eq!(names_in(&place.path().join("outside")), ["secret"]);
    }
}

#[tokio::test]
async fn no_destination_leads_out() {
    let (place, base) = served();
    let outside = place.path().join("outside/new");
    let without_target = CopyOptions {
        no_target_directory: true,
        ..parents()
    };
    let cases = [
        ("out", "leads out"),
        ("out/", "leads out"),
        ("out/.", "leads out"),
        ("out/new", "leads out"),
        ("/absolute/new", "leads out"),
        ("out/x/y/z", "leads out"),
        ("absolute/secret", "leads out"),
        ("out-new", "leads out"),
        ("..", "`..`"),
        ("tree/..", "`..`"),
        ("tree/../new", "`..`"),
        ("x/../../outside/new", "`..`"),
    ];
    for (typed, expected) in cases {
        for options in [&parents(), &archive(), &without_target] {
            for steps in [
                vec![super::place(), file("f", "x")],
                vec![folder("", 0o755)],
            ] {
                let why = copy_in(&base, typed, options, steps).await.err();
                let why = why.unwrap_or_else(|| panic!("{typed} was accepted"));
                assert!(why.contains(expected), "{typed}: {why}");
            }
        }
    }
    // An absolute path is one below the root.
    let steps = vec![super::place(), file("f", "x")];
    let end = copy_in(&base, outside.to_str().unwrap(), &parents(), steps).await;
    end.unwrap().assert_whole();
    assert_eq!(names_in(&place.path().join("outside")), ["secret"]);
    assert_eq!(names_in(place.path()), ["outside", "root"]);
}

#[tokio::test]
async fn a_link_that_a_copy_has_made_leads_nowhere() {
    for target in ["../outside", "/"] {
        let (place, base) = served();
        let at = |path: &str| place.path().join(path);
        let steps = vec![super::place(), link_to("evil", target)];
        let planted = copy_in(&base, "/", &archive(), steps).await;
        planted.unwrap().assert_whole();
        assert!(at("root/evil").is_symlink());
        let refused = copy_in(&base, "evil/new", &parents(), vec![]).await;
        assert!(refused.err().unwrap().contains("leads out"));
        let hard = LaneRecord::HardLink {
            name: name("hard"),
            target: path("evil/secret"),
        };
        let steps = vec![
            folder("evil", 0o755),
            file("new", "x"),
            folder("evil/deep", 0o755),
            large(1, 1, "evil/big", 3),
            part(1, 1, 0, b"abc"),
            large_end(1, 1, Some(3)),
            super::place(),
            Step::Record(0, hard, Vec::new()),
        ];
        let end = copy_in(&base, "/", &archive(), steps).await.unwrap();
        assert_eq!(end.failures().len(), 4, "{:?}", end.failures());
        let names = |folder: &str, names: Vec<EntryName>| {
            let folder = path(folder);
            let last = true;
            Step::Say(FromSource::Names {
                folder,
                names,
                last,
            })
        };
        let options = CopyOptions {
            delete: true,
            ..archive()
        };
        let steps = vec![names("evil", vec![]), names("", vec![name("tree")])];
        let end = copy_in(&base, "/", &options, steps).await.unwrap();
        end.assert_whole();
        assert_eq!(names_in(&at("root")), ["tree"]);
        assert_eq!(fs::read(at("outside/secret")).unwrap(), b"secret");
        assert_eq!(names_in(&at("outside")), ["secret"]);
    }
}
