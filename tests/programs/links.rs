//! The programs as `scripts/install` installs them: one executable, rdpipe, and links to it under the other names.

use std::{
    env, fs,
    os::unix::{
        fs::{PermissionsExt, symlink},
        process::CommandExt,
    },
    path::Path,
    process::Command,
};

use crate::support::programs::{Place, Setup, install, key, program, random_bytes};

const RDPIPE: &str = env!("CARGO_BIN_EXE_rdpipe");

const LINKS: [&str; 7] = [
    "rdcat",
    "rdcp",
    "rdforward",
    "rdperf",
    "rdrecv",
    "rdsend",
    "rdsh",
];

/// A directory in which `scripts/install` has installed the executable of the tests.
struct Installation {
    place: Place,
}

impl Installation {
    #[track_caller]
    fn new() -> Self {
        let place = Place::new();
        fs::create_dir(place.path("built")).unwrap();
        let built = place.path("built/rdpipe");
        install(Path::new(RDPIPE), &built);
        place.program("built/xtask", b"#!/bin/sh\n");
        // In place of cargo, which would build everything optimised.
        let cargo = format!(
            "#!/bin/sh\necho '{{\"name\":\"rdpipe\",\"executable\":\"{}\"}}'\n",
            built.display()
        );
        place.program("cargo", cargo.as_bytes());
        let path = format!(
            "{}:{}",
            place.directory().display(),
            env::var("PATH").unwrap()
        );
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/install");
        let prefix = place.directory().display().to_string();
        let install = program(script.to_str().unwrap(), "install").args(["--prefix", &prefix]);
        install.env("PATH", path).start().end().exits(0);
        fs::remove_dir_all(place.path("built")).unwrap();
        Self { place }
    }

    fn path(&self, name: &str) -> String {
        self.place.path("bin").join(name).display().to_string()
    }

    fn program(&self, name: &'static str) -> Setup {
        program(&self.path(name), name)
    }

    /// Returns the option by which programs reach any host: this machine, with a PATH that has rdpipe alone.
    fn rsh(&self) -> [String; 2] {
        let only = self.place.path("only");
        fs::create_dir(&only).unwrap();
        install(self.path("rdpipe").as_ref(), &only.join("rdpipe"));
        let only = only.display();
        let rsh = format!("#!/bin/sh\nshift\nPATH={only}:/usr/bin:/bin exec \"$@\"\n");
        [
            "--rsh".to_owned(),
            self.place.program("rsh", rsh.as_bytes()),
        ]
    }
}

#[test]
fn each_link_is_its_program() {
    let installation = Installation::new();
    for name in LINKS {
        let target = fs::read_link(installation.path(name)).expect("a link");
        assert_eq!(target, Path::new("rdpipe"));
        let built = Path::new(RDPIPE).with_file_name(name).display().to_string();
        for option in ["--version", "--help", "--no-such-option"] {
            let [link, built] = [installation.program(name), program(&built, name)]
                .map(|setup| setup.arg(option).start().end());
            assert_eq!(link.code(), built.code(), "{name} {option}");
            assert_eq!(link.stdout, built.stdout, "{name} {option}");
            assert_eq!(link.stderr, built.stderr, "{name} {option}");
        }
    }
}

#[test]
fn the_version_names_revision_rdma_and_protocols() {
    for name in LINKS.into_iter().chain(["rdpipe"]) {
        let built = Path::new(RDPIPE).with_file_name(name).display().to_string();
        let end = program(&built, name).arg("--version").start().end();
        end.exits(0);
        let text = String::from_utf8(end.stdout).unwrap();
        let lines: Vec<_> = text.lines().collect();
        let first = format!("{name} {} (revision ", env!("CARGO_PKG_VERSION"));
        assert!(lines[0].starts_with(&first), "{text}");
        let rdma = if cfg!(feature = "rdma") {
            "with RDMA"
        } else {
            "without RDMA"
        };
        assert!(lines[1].starts_with(rdma), "{text}");
        assert!(lines[2].starts_with("protocols: streams "), "{text}");
        assert!(
            lines[2].contains(", agents ") && lines[2].contains(", tunnels "),
            "{text}"
        );
    }
}

/// Makes packages of a program that stands in for rdpipe, and installs and removes that of any system. The umask is
/// 077, and all users must be able to read what is installed.
#[test]
fn packages_hold_all_programs_and_a_tarball_installs_and_removes_them() {
    let place = Place::new();
    let (usr, out) = (place.path("usr"), place.path("out"));
    for folder in ["bin", "share/man/man1", "share/zsh/site-functions"] {
        fs::create_dir_all(usr.join(folder)).unwrap();
    }
    install(Path::new("/bin/true"), &usr.join("bin/rdpipe"));
    symlink("rdpipe", usr.join("bin/rdcp")).unwrap();
    let page = usr.join("share/man/man1/rdcp.1");
    fs::write(&page, "").unwrap();
    fs::set_permissions(&page, fs::Permissions::from_mode(0o644)).unwrap();
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let private = |script: &Path| {
        let mut command = Command::new("sh");
        command.args(["-c", "umask 077; exec \"$0\" \"$@\""]);
        command.arg(script);
        command
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/package");
    run(private(script.as_ref())
        .arg("--usr")
        .arg(&usr)
        .arg("--out")
        .arg(&out));
    run(Command::new("sha256sum")
        .arg("--check")
        .arg("SHA256SUMS")
        .current_dir(&out));
    let find = |end: &str| {
        let mut entries = fs::read_dir(&out)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        entries.find(|path| path.to_string_lossy().ends_with(end))
    };
    let tarball = find(".tar.gz").expect("a tarball");
    run(Command::new("tar")
        .arg("-xzf")
        .arg(tarball)
        .args(["--strip-components", "1"])
        .current_dir(&out));
    let prefix = place.path("installed");
    run(private(&out.join("install")).arg("--prefix").arg(&prefix));
    let not_for_all = run(Command::new("find")
        .arg(&prefix)
        .args(["-not", "-perm", "-044"]));
    assert_eq!(not_for_all, "");
    assert_eq!(
        fs::read_link(prefix.join("bin/rdcp")).unwrap(),
        Path::new("rdpipe")
    );
    assert!(prefix.join("share/doc/rdpipe/rdforward.service").exists());
    run(Command::new(out.join("install"))
        .arg("--remove")
        .arg("--prefix")
        .arg(&prefix));
    let left = run(Command::new("find")
        .arg(&prefix)
        .args(["-not", "-type", "d"]));
    assert_eq!(left, "");
    let Some(package) = find(".deb") else {
        return println!("SKIPPED: no dpkg-deb here");
    };
    let names = run(Command::new("dpkg-deb").arg("--contents").arg(package));
    for name in [
        "usr/bin/rdcp -> rdpipe",
        "man1/rdcp.1.gz",
        "system/rdcp.service",
        "doc/rdpipe/copyright",
    ] {
        assert!(names.contains(name), "no {name} in\n{names}");
    }
}

/// Checks that a command is this program.
#[track_caller]
fn assert_is(command: &mut Command, name: &str) {
    let output = command.arg("-V").output().unwrap();
    let version = format!("{name} {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        version,
        "{output:?}"
    );
}

#[test]
fn a_program_is_named_in_every_way() {
    let installation = Installation::new();
    let bin = installation.path("");
    let path = format!("{bin}:/usr/bin:/bin");
    assert_is(
        Command::new("sh")
            .args(["-c", "rdsend $0"])
            .env("PATH", path),
        "rdsend",
    );
    assert_is(Command::new("./rdcp").current_dir(bin), "rdcp");
    // A version beside another one.
    let versioned = installation.path("rdpipe-1.2");
    fs::rename(installation.path("rdpipe"), &versioned).unwrap();
    for (link, name) in [
        ("rdsend-1.2", "rdsend"),
        ("rdperf.old", "rdperf"),
        ("pipes", "rdpipe"),
    ] {
        symlink("rdpipe-1.2", installation.path(link)).unwrap();
        assert_is(&mut Command::new(installation.path(link)), name);
    }
    for (called, name) in [
        ("", "rdpipe"),
        ("/elsewhere/rdcat", "rdcat"),
        ("-rdcat", "rdpipe"),
    ] {
        assert_is(Command::new(&versioned).arg0(called), name);
    }
}

#[test]
fn links_send_and_receive() {
    let installation = Installation::new();
    let data = random_bytes(3_000_001);
    let input = installation.place.file("in", &data);
    let receiver = installation.program("rdrecv").args(["0", key()]).start();
    let port = receiver.port().to_string();
    let sender = installation.program("rdsend");
    let sender = sender.args(["127.0.0.1", &port, key(), &input]).start();
    sender.end().exits(0);
    assert!(receiver.end().stdout == data);
}

#[test]
fn links_start_agents_on_a_host_with_rdpipe_alone() {
    let installation = Installation::new();
    let data = random_bytes(100_000);
    let input = format!("h1:{}", installation.place.file("in", &data));
    let copy = installation.place.path("copy").display().to_string();
    let rsh = installation.rsh();
    let run = |name, form: Option<&str>, arguments: &[&str]| {
        let setup = installation.program(name).args(form).args(&rsh);
        let end = setup.args(arguments).start().end();
        end.exits(0);
        end.stdout
    };
    run("rdcp", None, &[&input, &copy]);
    assert!(installation.place.read("copy") == data);
    assert!(run("rdcat", None, &[&input]) == data);
    let counted = run(
        "rdpipe",
        None,
        &[&input.replace(':', ":< "), ":cat", "h1:wc -c"],
    );
    assert_eq!(counted, b"100000\n");
    run("rdforward", Some("run"), &["h1", "--", "true"]);
    let quick = ["--time", "0.1", "--runs", "1", "--transport", "tcp", "h1"];
    run("rdperf", None, &quick);
}
