//! A destination of a server: it is confined to a directory, and several clients write to the same places.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use serde_bytes::ByteBuf;
use tokio::{sync::Notify, task::JoinHandle};

use super::*;
use crate::{
    Key,
    copy::{
        block_digest::BlockDigest, destination::DestinationClaims, metadata::attributes_of,
        order::DigestKind, question::ByteRange, temporary_names::PartOwner,
    },
};

/// The value of `security.capability` for `CAP_SETUID`, permitted and effective.
const CAPABILITY: [u8; 20] = *b"\x01\0\0\x02\x80\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// What lends rights, in the words of the notes.
const NOT_KEPT: [&str; 5] = [
    "device nodes",
    "security attributes",
    "set-group-ID bits",
    "set-user-ID bits",
    "trusted attributes",
];

/// The value of an ACL that gives all rights to all users.
const OPEN_ACL: [u8; 28] =
    *b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x04\0\x07\0\xff\xff\xff\xff\x20\0\x07\0\xff\xff\xff\xff";

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
        assert_eq!(end.failures().len(), 3, "{:?}", end.failures());
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

/// Returns the steps of a directory with all that lends rights.
fn lending() -> Vec<Step> {
    let file_with = |text: &str, mode: u32, attribute: Option<&str>| {
        let mut metadata = metadata(mode, 2_000);
        let value = |name: &str| (ByteBuf::from(name), ByteBuf::from(CAPABILITY));
        metadata.attributes = attribute.map(value).into_iter().collect();
        let name = name(text);
        Step::Record(0, LaneRecord::File { name, metadata }, b"x".to_vec())
    };
    let special = |text: &str, kind| {
        let record = LaneRecord::Special {
            name: name(text),
            kind,
            target: Vec::new(),
            metadata: metadata(0o6640, 4_000),
        };
        Step::Record(0, record, Vec::new())
    };
    // The numbers of /dev/null and of a loop device.
    let null = EntryKind::CharacterDevice { device: 0x103 };
    let disk = EntryKind::BlockDevice { device: 0x700 };
    let mut big = large(1, 1, "top/big", 3);
    if let Step::Record(_, LaneRecord::LargeFile(file), _) = &mut big {
        file.metadata.mode = 0o6755;
    }
    vec![
        folder("top", 0o7755),
        file_with("set-user", 0o4755, None),
        file_with("set-both", 0o6755, Some("security.capability")),
        file_with("trusted", 0o755, Some("trusted.overlay.redirect")),
        special("fifo", EntryKind::Fifo),
        special("null", null),
        special("disk", disk),
        special("socket", EntryKind::Socket),
        big,
        part(1, 1, 0, b"abc"),
        large_end(1, 1, Some(3)),
    ]
}

#[tokio::test]
async fn nothing_that_lends_rights_is_kept() {
    let (place, base) = served();
    let end = copy_in(&base, "/", &archive(), lending()).await.unwrap();
    end.assert_whole();
    let top = place.path().join("root/top");
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&top), 0o1755);
    for (name, expected) in [
        ("set-user", 0o755),
        ("set-both", 0o755),
        ("big", 0o755),
        ("fifo", 0o640),
        ("socket", 0o640),
    ] {
        assert_eq!(mode(&top.join(name)), expected, "{name}");
    }
    let entries = ["big", "fifo", "set-both", "set-user", "socket", "trusted"];
    assert_eq!(names_in(&top), entries);
    for (name, attribute) in [
        ("set-both", "security.capability"),
        ("trusted", "trusted.overlay.redirect"),
    ] {
        let found = rustix::fs::getxattr(top.join(name), attribute, &mut [0; 64]);
        assert!(found.is_err(), "{attribute}");
    }
    let mut notes = end.notes();
    notes.sort();
    let why = "a server keeps them with --privileged only";
    let expected = NOT_KEPT.map(|kind| format!("{kind} were not kept: {why}"));
    assert_eq!(notes, expected);
}

/// Returns the steps of a directory and of a file with an owner, a group, and ACLs that let all users write.
fn owned_by_others() -> Vec<Step> {
    let mut own = metadata(0o2775, 1_000);
    (own.uid, own.gid) = (54_321, 54_321);
    let attribute = |name: &str, value: &[u8]| (ByteBuf::from(name), ByteBuf::from(value));
    own.attributes = vec![
        attribute("system.posix_acl_access", &OPEN_ACL),
        attribute("user.note", b"x"),
    ];
    let of_file = own.clone();
    own.attributes
        .push(attribute("system.posix_acl_default", &OPEN_ACL));
    let mut top = folder("top", 0);
    if let Step::Record(_, LaneRecord::Folder { metadata, .. }, _) = &mut top {
        *metadata = Some(own);
    }
    let record = LaneRecord::File {
        name: name("f"),
        metadata: Metadata {
            mode: 0o664,
            ..of_file
        },
    };
    vec![top, Step::Record(0, record, b"x".to_vec())]
}

/// Returns the names of the extended attributes of an entry.
fn attribute_names(path: &Path) -> Vec<String> {
    let attributes = attributes_of(fs::File::open(path).unwrap()).unwrap();
    let mut names: Vec<_> = attributes.into_iter().map(|(name, _)| name).collect();
    names.sort();
    names
        .into_iter()
        .map(|name| String::from_utf8(name.into_vec()).unwrap())
        .collect()
}

#[tokio::test]
async fn clients_decide_on_no_owners_and_acls() {
    let (place, base) = served();
    let end = copy_in(&base, "/", &archive(), owned_by_others())
        .await
        .unwrap();
    end.assert_whole();
    let top = place.path().join("root/top");
    let root = fs::metadata(place.path().join("root")).unwrap();
    for path in [&top, &top.join("f")] {
        let found = fs::metadata(path).unwrap();
        assert_eq!((found.uid(), found.gid()), (root.uid(), root.gid()));
        assert_eq!(attribute_names(path), ["user.note"]);
    }
    let kinds = ["ACLs", "groups", "owners", "set-group-ID bits"];
    let why = "a server keeps them with --privileged only";
    let mut notes = end.notes();
    notes.sort();
    assert_eq!(
        notes,
        kinds.map(|kind| format!("{kind} were not kept: {why}"))
    );
}

#[tokio::test]
async fn what_the_server_has_given_to_its_directories_stays() {
    let (place, base) = served();
    let tree = place.path().join("root/tree");
    fs::set_permissions(&tree, fs::Permissions::from_mode(0o2770)).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&tree, "system.posix_acl_default", &OPEN_ACL, flags).unwrap();
    let steps = vec![
        folder("tree", 0o755),
        file("f", "x"),
        folder("tree/new", 0o755),
    ];
    let end = copy_in(&base, "/", &archive(), steps).await.unwrap();
    end.assert_whole();
    for folder in [&tree, &tree.join("new")] {
        assert_eq!(fs::metadata(folder).unwrap().mode() & 0o7777, 0o2755);
        let names = attribute_names(folder);
        assert!(
            names.contains(&"system.posix_acl_default".to_owned()),
            "{names:?}"
        );
    }
}

#[tokio::test]
async fn a_privileged_server_keeps_what_its_process_may_set() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root makes devices and gives files away");
        return;
    }
    let (place, base) = served();
    let steps: Vec<_> = lending().into_iter().chain([super::place()]).collect();
    let engine = DestinationEngine::prepare(&base, b"/", CopiedSources::One, archive());
    let end = run(engine.unwrap().with_all_rights(), steps).await;
    assert_eq!(end.failures(), []);
    let top = place.path().join("root/top");
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!((mode(&top), mode(&top.join("set-both"))), (0o7755, 0o6755));
    assert_eq!(
        attribute_names(&top.join("set-both")),
        ["security.capability"]
    );
    let steps = owned_by_others();
    let engine = DestinationEngine::prepare(&base, b"/", CopiedSources::One, archive());
    run(engine.unwrap().with_all_rights(), steps)
        .await
        .assert_whole();
    assert_eq!(fs::metadata(top.join("f")).unwrap().uid(), 54_321);
}

#[tokio::test]
async fn what_a_server_sends_lends_no_rights() {
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    let from_server = CopyOptions {
        drops_lent_rights: true,
        ..archive()
    };
    let end = copy(&dest, &from_server, lending()).await;
    end.assert_whole();
    let top = dest.join("top");
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(mode(&top), 0o3755, "directories pass on their groups");
    assert_eq!(
        (mode(&top.join("set-both")), mode(&top.join("big"))),
        (0o755, 0o755)
    );
    assert_eq!(attribute_names(&top.join("set-both")), Vec::<String>::new());
    assert_eq!(attribute_names(&top.join("trusted")), Vec::<String>::new());
    assert!(!top.join("null").exists() && !top.join("disk").exists());
    let why = "from a server, rdcp keeps them with --privileged only";
    let mut notes = end.notes();
    notes.sort();
    assert_eq!(
        notes,
        NOT_KEPT.map(|kind| format!("{kind} were not kept: {why}"))
    );
    // Owners and ACLs give rights to the entries alone.
    let end = copy(&dest, &from_server, owned_by_others()).await;
    end.assert_whole();
    let names = attribute_names(&top);
    assert!(
        names.contains(&"system.posix_acl_default".to_owned()),
        "{names:?}"
    );
    if rustix::process::geteuid().is_root() {
        assert_eq!(fs::metadata(&top).unwrap().uid(), 54_321);
    }
}

/// Returns mode, owner and times of a directory, and its extended attributes.
fn what_it_has(path: &Path) -> impl PartialEq + std::fmt::Debug + use<> {
    let stat = fs::metadata(path).unwrap();
    let attributes = attributes_of(fs::File::open(path).unwrap()).unwrap();
    (
        stat.mode(),
        (stat.uid(), stat.gid()),
        (stat.mtime(), stat.mtime_nsec()),
        attributes,
    )
}

#[tokio::test]
async fn the_served_directory_keeps_what_it_has() {
    for (typed, mode) in [("/", 0), ("", 0o777), (".", 0o7777), ("tree/up", 0o1000)] {
        let (place, base) = served();
        let root = place.path().join("root");
        symlink(".", root.join("self")).unwrap();
        let typed = typed.replace("tree/up", "self");
        fs::set_permissions(&root, fs::Permissions::from_mode(0o750)).unwrap();
        let before = what_it_has(&root);
        let mut step = folder("", mode);
        if let Step::Record(_, LaneRecord::Folder { metadata, .. }, _) = &mut step {
            let own = metadata.as_mut().unwrap();
            (own.uid, own.gid) = (54_321, 54_321);
            let attribute = |name: &str, value: &[u8]| (ByteBuf::from(name), ByteBuf::from(value));
            own.attributes = vec![
                attribute("system.posix_acl_default", &OPEN_ACL),
                attribute("user.planted", b"x"),
            ];
        }
        let options = into_itself();
        let end = copy_in(&base, &typed, &options, vec![step]).await.unwrap();
        end.assert_whole();
        assert_eq!(what_it_has(&root), before, "{typed:?}");
        let kept = "the directory that the server serves has kept its own metadata";
        assert_eq!(end.notes(), [kept], "{typed:?}");
    }
}

#[tokio::test]
async fn a_server_keeps_the_rights_of_the_owner_on_directories() {
    let recursive = || CopyOptions {
        recursive: true,
        ..CopyOptions::default()
    };
    for options in [archive(), recursive()] {
        let (place, base) = served();
        let old = place.path().join("root/tree");
        let steps = vec![folder("tree", 0), folder("tree/new", 0o070), file("f", "x")];
        let end = copy_in(&base, "/", &options, steps).await.unwrap();
        end.assert_whole();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o700;
        assert_eq!(mode(&old), 0o700, "{options:?}");
        assert_eq!(mode(&old.join("new")), 0o700, "{options:?}");
        let steps = vec![folder("tree/new", 0o755), file("f", "again")];
        let again = copy_in(&base, "/", &recursive(), steps).await.unwrap();
        again.assert_whole();
        let notes = end.notes();
        assert_eq!(notes.len(), usize::from(options.archive), "{notes:?}");
    }
}

#[tokio::test]
async fn the_source_keeps_a_device_that_was_not_made() {
    let (_place, base) = served();
    let options = CopyOptions {
        remove_source_files: true,
        ..archive()
    };
    let record = LaneRecord::Special {
        name: name("null"),
        kind: EntryKind::CharacterDevice { device: 0x103 },
        target: Vec::new(),
        metadata: metadata(0o666, 4_000),
    };
    let steps = vec![super::place(), Step::Record(0, record, Vec::new())];
    let end = copy_in(&base, "/", &options, steps).await.unwrap();
    let expected = [
        FromDestination::NotWritten(path("null")),
        FromDestination::Done,
    ];
    assert_eq!(end.answers, expected);
    assert_eq!(end.report.failed, 0);
}

/// A server with a directory.
struct Server {
    place: TempDir,
    base: BaseDirectory,
    claims: DestinationClaims,
}

/// A copy that has written some entries and has not ended.
struct HeldCopy {
    running: JoinHandle<(CopyReport, Option<CopyError>)>,
    control: Stream,
    lanes: Vec<Stream>,
    messages: Arc<Mutex<Vec<FromCopy>>>,
}

impl Server {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let base = BaseDirectory::root(place.path()).unwrap();
        Self {
            place,
            base,
            claims: DestinationClaims::default(),
        }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.place.path().join(path)
    }

    fn engine(
        &self,
        client: &str,
        typed: &str,
        options: &CopyOptions,
        steps: &[Step],
    ) -> DestinationEngine {
        let sources = sources_of(steps);
        let engine =
            DestinationEngine::prepare(&self.base, typed.as_bytes(), sources, options.clone());
        engine.unwrap().with_claims(self.claims.of_copy(client))
    }

    async fn copy(
        &self,
        client: &str,
        typed: &str,
        options: &CopyOptions,
        steps: Vec<Step>,
    ) -> CopyEnd {
        let engine = self.engine(client, typed, options, &steps);
        run(engine, steps).await
    }

    /// Starts a copy of alice, and returns when it has written `steps` in the first lane.
    async fn hold(&self, typed: &str, options: &CopyOptions, mut steps: Vec<Step>) -> HeldCopy {
        let engine = self.engine("alice", typed, options, &steps);
        // The note on its mode comes when everything before is written.
        let last = metadata(0o4644, 0);
        let name = name("last");
        let record = LaneRecord::File {
            name,
            metadata: last,
        };
        steps.push(Step::Record(0, record, Vec::new()));
        let messages = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::new(Notify::new());
        let (kept, notify) = (Arc::clone(&messages), Arc::clone(&noted));
        let context = CopyContext {
            report: Arc::new(move |message: FromCopy| {
                if matches!(message, FromCopy::News(CopyNews::Note(_))) {
                    notify.notify_one();
                }
                kept.lock().unwrap().push(message);
            }),
            cancelled: CancellationToken::new(),
            reason: Arc::new(|| "a test".to_owned()),
            give_up: Arc::new(|_| {}),
        };
        let (streams, mut control, mut lanes) = streams().await;
        let running = tokio::spawn(engine.run(streams, context));
        let mut answers = Vec::new();
        let sent = send_steps(steps, &mut control, &mut lanes, &mut answers).await;
        sent.unwrap();
        noted.notified().await;
        HeldCopy {
            running,
            control,
            lanes,
            messages,
        }
    }
}

impl HeldCopy {
    async fn end(mut self) -> CopyEnd {
        let mut answers = Vec::new();
        let ending = send_end(&mut self.control, &mut self.lanes, &mut answers);
        ending.await.unwrap();
        drop((self.control, self.lanes));
        let (report, failure) = self.running.await.unwrap();
        let messages = std::mem::take(&mut *self.messages.lock().unwrap());
        CopyEnd {
            report,
            failure,
            messages,
            answers,
        }
    }
}

fn refused(path: &str) -> (String, String) {
    let why = "another client writes it now (alice)";
    (path.to_owned(), why.to_owned())
}

fn into_itself() -> CopyOptions {
    CopyOptions {
        no_target_directory: true,
        ..archive()
    }
}

fn tree(contents: &str) -> Vec<Step> {
    vec![folder("tree", 0o755), file("a", contents)]
}

#[tokio::test]
async fn the_first_copy_of_a_tree_wins_whole() {
    let server = Server::new();
    let first = server.hold("/", &archive(), tree("first")).await;
    let hard = LaneRecord::HardLink {
        name: name("hard"),
        target: path("tree/a"),
    };
    let mut steps = tree("second");
    steps.extend([
        folder("tree/inner", 0o755),
        file("b", "second"),
        Step::Record(0, hard, Vec::new()),
        large(1, 1, "tree/big", 3),
        part(1, 1, 0, b"abc"),
        large_end(1, 1, Some(3)),
        place(),
        file("free", "second"),
    ]);
    let options = CopyOptions {
        remove_source_files: true,
        ..archive()
    };
    let second = server.copy("bob", "/", &options, steps).await;
    assert_eq!(second.failures(), [refused("/tree")]);
    assert_eq!((second.report.files, second.report.failed), (1, 1));
    let mut kept: Vec<_> = second.answers.into_iter().collect();
    assert_eq!(kept.pop(), Some(FromDestination::Done));
    for entry in ["tree/a", "tree/inner/b", "tree/inner/hard", "tree/big"] {
        let told = FromDestination::NotWritten(path(entry));
        assert!(kept.contains(&told), "{entry}: {kept:?}");
    }
    assert_eq!(kept.len(), 4);
    first.end().await.assert_whole();
    assert_eq!(names_in(&server.at("tree")), ["a", "last"]);
    assert_eq!(fs::read(server.at("tree/a")).unwrap(), b"first");
    let third = server.copy("bob", "/", &archive(), tree("third")).await;
    third.assert_whole();
    assert_eq!(fs::read(server.at("tree/a")).unwrap(), b"third");
}

#[tokio::test]
async fn a_file_is_claimed_however_it_is_sent() {
    let server = Server::new();
    let steps = vec![
        large(0, 1, "big", 3),
        part(0, 1, 0, b"ab"),
        place(),
        file("small", "first"),
    ];
    let first = server.hold("/", &archive(), steps).await;
    let steps = vec![
        place(),
        file("big", "second"),
        large(1, 1, "small", 3),
        part(1, 1, 0, b"abc"),
        large_end(1, 1, Some(3)),
        file("other", "second"),
    ];
    let second = server.copy("bob", "/", &archive(), steps).await;
    let mut failures = second.failures();
    failures.sort();
    assert_eq!(failures, [refused("/big"), refused("/small")]);
    assert_eq!(
        names_in(&server.at("")),
        [".big.rdcp-part", "last", "other", "small"]
    );
    drop(first.end().await);
    let steps = vec![place(), file("big", "third")];
    server
        .copy("bob", "/", &archive(), steps)
        .await
        .assert_whole();
}

#[tokio::test]
async fn one_destination_has_one_copy_at_a_time() {
    let contents = || vec![folder("", 0o755), file("a", "second")];
    let server = Server::new();
    // The first copy makes the destination, the others find it.
    let first = server.hold("d", &into_itself(), tree("first")).await;
    let twice = server
        .copy("bob", "d", &into_itself(), tree("second"))
        .await;
    assert_eq!(twice.failures(), [refused("d")]);
    let twice = server.copy("bob", "/d/", &archive(), contents()).await;
    assert_eq!(twice.failures(), [refused("/d/")]);
    let inside = server.copy("bob", "d", &archive(), tree("second")).await;
    assert_eq!(inside.failures(), [refused("d/tree")]);
    let around = server.copy("bob", "/", &archive(), contents()).await;
    assert_eq!(around.failures(), [refused("/")]);
    let options = CopyOptions {
        delete: true,
        ..archive()
    };
    let steps = vec![place(), file("d", "second")];
    let over = server.copy("bob", "/", &options, steps).await;
    assert_eq!(over.failures(), [refused("/d")]);
    first.end().await.assert_whole();
    assert_eq!(fs::read(server.at("d/a")).unwrap(), b"first");
    let third = server.copy("bob", "d", &into_itself(), tree("third")).await;
    third.assert_whole();
}

#[tokio::test]
async fn copies_beside_each_other_do_not_meet() {
    let server = Server::new();
    let parents = CopyOptions {
        parents: true,
        ..archive()
    };
    let first = server.hold("new/x/a", &parents, tree("first")).await;
    let beside = server
        .copy("bob", "new/x/b", &parents, tree("second"))
        .await;
    beside.assert_whole();
    let into = server
        .copy("bob", "new/x", &archive(), tree("second"))
        .await;
    into.assert_whole();
    let same = server
        .copy("bob", "new/x/a", &into_itself(), tree("second"))
        .await;
    assert_eq!(same.failures(), [refused("new/x/a")]);
    let around = server
        .copy("bob", "new", &into_itself(), tree("second"))
        .await;
    assert_eq!(around.failures(), [refused("new")]);
    first.end().await.assert_whole();
    assert_eq!(names_in(&server.at("new/x")), ["a", "b", "tree"]);
}

#[tokio::test]
async fn a_mirror_removes_nothing_that_another_copy_writes() {
    let server = Server::new();
    let first = server.hold("/", &archive(), tree("first")).await;
    let names = |folder: &str| {
        Step::Say(FromSource::Names {
            folder: path(folder),
            names: Vec::new(),
            last: true,
        })
    };
    let options = CopyOptions {
        delete: true,
        ..archive()
    };
    let end = server.copy("bob", "/", &options, vec![names("")]).await;
    assert_eq!(end.failures(), [refused("/")]);
    let steps = vec![names("tree"), folder("tree", 0o755)];
    let engine =
        DestinationEngine::prepare(&server.base, b"/", CopiedSources::One, options.clone());
    let engine = engine.unwrap().with_claims(server.claims.of_copy("bob"));
    let end = run(engine, steps).await;
    assert_eq!(end.failures(), [refused("/tree")]);
    first.end().await.assert_whole();
    assert_eq!(names_in(&server.at("tree")), ["a", "last"]);
}

#[tokio::test]
async fn a_dry_run_and_questions_claim_nothing() {
    let server = Server::new();
    let first = server.hold("/", &archive(), tree("first")).await;
    let options = CopyOptions {
        dry_run: true,
        delete: true,
        ..archive()
    };
    let names = Step::Say(FromSource::Names {
        folder: path("tree"),
        names: vec![name("last")],
        last: true,
    });
    let mut steps = tree("second");
    steps.extend([ask("tree", &[("a", 6, 0)]), names]);
    let dry = server.copy("bob", "/", &options, steps).await;
    dry.assert_whole();
    assert_eq!(dry.kinds(), [AnswerKind::Send]);
    assert!(server.at("tree/a").exists());
    first.end().await.assert_whole();
}

#[tokio::test]
async fn a_copy_that_was_dropped_claims_nothing() {
    let server = Server::new();
    let first = server.hold("/", &archive(), tree("first")).await;
    drop((first.control, first.lanes));
    let (report, failure) = first.running.await.unwrap();
    assert!(!report.complete && failure.is_some());
    let second = server.copy("bob", "/", &archive(), tree("second")).await;
    second.assert_whole();
}

/// A hole that takes hours to digest, in a file that every file system can hold.
const HOLE: u64 = 8 << 40;

#[tokio::test]
async fn a_hole_is_digested_only_while_its_client_lives() {
    let ends = |data: &'static [u8]| {
        let bytes = data.len() as u64;
        let data = (bytes > 0).then(|| part(0, 1, HOLE - bytes, data));
        let steps = [place(), large(0, 1, "image", HOLE)].into_iter();
        let steps = steps.chain(data);
        steps.chain([large_end(0, 1, Some(bytes))]).collect()
    };
    let steps: [Vec<Step>; 2] = [ends(b""), ends(b"behind the hole")];
    for (steps, kind) in steps
        .into_iter()
        .zip([DigestKind::Xxh64, DigestKind::Sha256])
    {
        let server = Server::new();
        let options = CopyOptions {
            digest: Some(kind),
            ..archive()
        };
        let engine = server.engine("alice", "/", &options, &steps);
        let context = context(&Arc::default(), CancellationToken::new());
        let (streams, mut control, mut lanes) = streams().await;
        let running = tokio::spawn(engine.run(streams, context));
        let sent = send_steps(steps, &mut control, &mut lanes, &mut Vec::new()).await;
        sent.unwrap();
        let begun = || {
            let is_sized =
                |name: &String| fs::metadata(server.at(name)).is_ok_and(|it| it.len() == HOLE);
            names_in(&server.at("")).iter().any(is_sized)
        };
        while !begun() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let again = vec![place(), file("image", "second")];
        let second = server.copy("bob", "/", &archive(), again).await;
        assert_eq!(second.failures(), [refused("/image")]);
        drop((control, lanes));
        let ended = tokio::time::timeout(Duration::from_secs(60), running).await;
        let (report, failure) = ended.expect("the copy ends").unwrap();
        assert!(!report.complete && failure.is_some());
        assert_eq!(names_in(&server.at("")), [""; 0]);
        let again = vec![place(), file("image", "third")];
        let third = server.copy("bob", "/", &archive(), again).await;
        third.assert_whole();
    }
}

#[tokio::test]
async fn what_is_unfinished_is_kept_from_every_record_and_question() {
    let (taken, small) = (".big.rdcp-part", ".rdcp-0123abcd");
    for reserved in [taken, ".BIG.rdcp-MAP", small, ".x.rdpipe-0123abcd"] {
        let server = Server::new();
        fs::write(server.at(reserved), "of another").unwrap();
        let inside = format!("{reserved}/inner");
        let linked = |text: &str, target: &str| {
            let (name, target) = (name(text), path(target));
            Step::Record(0, LaneRecord::HardLink { name, target }, Vec::new())
        };
        let options = CopyOptions {
            remove_source_files: true,
            resume: true,
            ..archive()
        };
        let steps = vec![
            ask("", &[(reserved, 3, 0)]),
            ask(reserved, &[("x", 3, 0)]),
            ask(&inside, &[("x", 3, 0)]),
            place(),
            file(reserved, "x"),
            link_to(reserved, "x"),
            link_to("link", &format!("./{reserved}/x")),
            linked("hard", ".another.rdcp-part"),
            linked(reserved, "free"),
            large(1, 1, reserved, 3),
            part(1, 1, 0, b"abc"),
            large_end(1, 1, Some(3)),
            large(1, 2, &inside, 3),
            part(1, 2, 0, b"abc"),
            large_end(1, 2, Some(3)),
            folder(reserved, 0o755),
            file("in", "x"),
            folder(&inside, 0o755),
            file("deep", "x"),
            place(),
            file("free", "x"),
        ];
        let end = server.copy("bob", "/", &options, steps).await;
        assert!(end.failure.is_none(), "{:?}", end.failure);
        assert_eq!(end.kinds()[1..], [AnswerKind::Leave, AnswerKind::Leave]);
        let why = end.failures();
        assert!(
            why.iter().all(|(_, why)| why.contains("unfinished")),
            "{why:?}"
        );
        assert_eq!((end.report.files, end.report.failed), (1, 8), "{why:?}");
        let told = |text: &str| {
            end.answers
                .contains(&FromDestination::NotWritten(path(text)))
        };
        for entry in [
            reserved,
            "link",
            "hard",
            &inside,
            &format!("{reserved}/in"),
            &format!("{inside}/deep"),
        ] {
            assert!(told(entry), "{entry}");
        }
        assert_eq!(fs::read(server.at(reserved)).unwrap(), b"of another");
        assert_eq!(names_in(&server.at("")), {
            let mut names = [reserved, "free"];
            names.sort_unstable();
            names
        });
        for typed in [
            reserved,
            &inside,
            &format!("/x/../{reserved}"),
            &format!("{reserved}/"),
        ] {
            let base = &server.base;
            let prepared =
                DestinationEngine::prepare(base, typed.as_bytes(), CopiedSources::One, parents());
            let why = prepared
                .err()
                .unwrap_or_else(|| panic!("{typed} was accepted"));
            assert!(
                why.contains("unfinished") || why.contains("`..`"),
                "{typed}: {why}"
            );
        }
    }
}

#[tokio::test]
async fn a_mirror_leaves_what_is_unfinished_and_sweeps_what_is_old() {
    let server = Server::new();
    let fresh = [
        "top/.a.rdcp-part",
        "top/old/.b.rdcp-map",
        "top/old/.rdcp-0123abcd",
    ];
    fs::create_dir_all(server.at("top/old")).unwrap();
    fs::create_dir_all(server.at("top/.c.rdcp-part")).unwrap();
    for name in fresh {
        fs::write(server.at(name), "of another").unwrap();
    }
    fs::write(server.at("top/old/file"), "x").unwrap();
    let options = CopyOptions {
        delete: true,
        list: true,
        max_delete: Some(9),
        ..archive()
    };
    let names = || {
        Step::Say(FromSource::Names {
            folder: path("top"),
            names: vec![name("kept")],
            last: true,
        })
    };
    for dry_run in [true, false] {
        let options = CopyOptions {
            dry_run,
            ..options.clone()
        };
        let end = server.copy("bob", "/", &options, vec![names()]).await;
        end.assert_whole();
        assert_eq!(end.report.removed, 1);
        let told = format!("{:?}", end.messages);
        assert!(!told.contains("rdcp-"), "{told}");
    }
    assert!(fresh.iter().all(|name| server.at(name).exists()));
    assert_eq!(
        names_in(&server.at("top/old")),
        [".b.rdcp-map", ".rdcp-0123abcd"]
    );
    let steps = vec![folder("top", 0o755), file("old", "x")];
    let end = server.copy("bob", "/", &options, steps).await;
    let why = "cannot replace a directory: a copy into it was cut, and may be continued";
    assert_eq!(end.failures(), [("/top/old".to_owned(), why.to_owned())]);
}

#[tokio::test]
async fn a_file_that_has_no_room_is_refused_before_anything_is_made() {
    let server = Server::new();
    let system = rustix::fs::statvfs(server.place.path()).unwrap();
    let free = system.f_bavail * system.f_frsize;
    let announced = |text: &str, size: u64, content: u64| {
        let mut step = large(0, 1, text, size);
        if let Step::Record(_, LaneRecord::LargeFile(file), _) = &mut step {
            file.content_bytes = content;
        }
        vec![
            place(),
            step,
            part(0, 1, 0, b"abc"),
            large_end(0, 1, Some(3)),
        ]
    };
    let too_much = free + (1 << 40);
    for (size, content, expected) in [
        (too_much, too_much, "and the file system has room for"),
        (1 << 63, 3, "is larger than any file can be"),
    ] {
        let end = server
            .copy("alice", "/", &archive(), announced("big", size, content))
            .await;
        let failures = end.failures();
        let is_named = failures[0].0 == "/big" && failures[0].1.contains(expected);
        assert!(is_named && failures.len() == 1, "{failures:?}");
        assert_eq!(names_in(&server.at("")), [""; 0], "{expected}");
    }
    // Holes take no room. Another user's rdcp writes until the disk is full.
    let sparse = announced("sparse", 8 << 40, 3);
    let sparse = server.copy("alice", "/", &archive(), sparse).await;
    sparse.assert_whole();
    let (_scratch, dest) = scratch();
    fs::create_dir(&dest).unwrap();
    let steps = announced("big", 8 << 40, too_much.min(8 << 40));
    copy(&dest, &archive(), steps).await.assert_whole();
}

#[tokio::test]
async fn a_server_continues_only_what_it_compares_and_what_is_of_the_client() {
    const MIB: u64 = 1 << 20;
    let server = Server::new();
    let owners = ["alice", "bob"].map(|name| {
        let key = Key::generate().unwrap();
        (name, PartOwner::client(name, key.key()))
    });
    let copy =
        async |(name, owner): &(&str, PartOwner), options: &CopyOptions, steps: Vec<Step>| {
            let engine = server.engine(name, "/", options, &steps);
            run(engine.with_owner(owner.clone()), steps).await
        };
    let resume = CopyOptions {
        resume: true,
        ..archive()
    };
    let contents = [vec![1; 1 << 20], vec![2; 1 << 20]];
    for (owner, contents) in owners.iter().zip(&contents) {
        let steps = vec![
            place(),
            large(0, 1, "big", 8 * MIB),
            part(0, 1, 0, contents),
        ];
        copy(owner, &archive(), steps).await;
    }
    let names = names_in(&server.at(""));
    assert_eq!(names.len(), 4, "{names:?}");
    let asked = || vec![ask("", &[("big", 8 * MIB, 3_000)])];
    for (owner, contents) in owners.iter().zip(&contents) {
        let end = copy(owner, &resume, asked()).await;
        let kinds = end.kinds();
        let [AnswerKind::Compare { key, blocks }] = &kinds[..] else {
            panic!("{kinds:?}");
        };
        let mut digest = BlockDigest::new(*key);
        digest.update(contents);
        let range = ByteRange { start: 0, end: MIB };
        assert_eq!(*blocks, [(range, digest.finish())]);
    }
    // With a new key, and as another client, the file begins anew.
    let renewed = PartOwner::client("alice", Key::generate().unwrap().key());
    let carol = PartOwner::client("carol", Key::generate().unwrap().key());
    for owner in [("alice", renewed), ("carol", carol)] {
        let end = copy(&owner, &resume, asked()).await;
        assert_eq!(end.kinds(), [AnswerKind::Send], "{}", owner.0);
    }
    assert_eq!(names_in(&server.at("")), names);
}
