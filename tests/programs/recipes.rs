//! The recipes of README, docs and `--help`, run literally on hosts that are empty but for the sources.
//!
//! Only the places differ: an absolute path is that of the host before it, below a directory of the test, and a server
//! has an address of this machine. A stand-in for ssh runs what it is given in the directory of the host.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use crate::support::programs::{Running, built, install, program};

/// Recipes that need what a test does not have: programs of others, or hosts that they run on.
const OTHERS: [&str; 8] = [
    "zfs ",
    "psql",
    "srun ",
    "podman ",
    "kubectl ",
    "| pv",
    "caps:",
    "rdcat rdt1",
];

/// The sources that the recipes name, by host.
const SOURCES: [(&str, &str); 20] = [
    ("here", "data/set/inner/file"),
    ("here", "home/user/.cache/left-out"),
    ("here", "home/user/file"),
    ("here", "daq/run042/a.evio"),
    ("here", "daq/run042/b.evio"),
    ("here", "work/myfile"),
    ("fs1", "data/set/inner/file"),
    ("fs1", "data/set.tar"),
    ("fs1", "data/disk.img"),
    ("fs1", "data/big"),
    ("fs1", "data/imagenet/n01/1.jpg"),
    ("fs1", "var/log/big.log"),
    ("fs1", "work/run.log"),
    ("fs1", "work/my notes"),
    ("fs1", "work/log"),
    ("fs1", "work/logs"),
    ("fs1", "work/results/one"),
    ("fs2", "etc/motd"),
    ("hub", "models/llama-70b/weights"),
    ("hub", "models/big.safetensors"),
];

/// Directories into which a recipe without `-P` writes.
const DIRECTORIES: [&str; 3] = ["fs2/data", "fs2/backup", "store/srv/raw/calibration"];

/// Hosts that are directories, with programs that reach them.
struct Scene {
    place: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let place = tempfile::tempdir().expect("a directory");
        let scene = Self { place };
        for (host, name) in SOURCES {
            let path = scene.path(host).join(name);
            fs::create_dir_all(path.parent().expect("a directory")).expect("it is made");
            fs::write(path, format!("contents of {name} on {host}: error\n")).expect("a file");
        }
        for name in DIRECTORIES {
            fs::create_dir_all(scene.path(name)).expect("it is made");
        }
        fs::create_dir_all(scene.path("bin")).expect("it is made");
        for name in ["rdpipe", "rdcp", "rdcat", "rdsend", "rdrecv"] {
            install(Path::new(&built(name)), &scene.path("bin").join(name));
        }
        let root = scene.place.path().display();
        let ssh = format!(
            "#!/bin/bash\nwhile [[ $1 == -* ]]; do [[ $1 == -[Fpl] ]] && shift; shift; done\n\
             at={root}/${{1#*@}}/work; shift; mkdir -p $at; cd $at; export HOME=$at; exec sh -c \"$*\"\n"
        );
        scene.script("ssh", &ssh);
        scene.script("pg_dump", "#!/bin/sh\necho a dump\n");
        scene
    }

    fn script(&self, name: &str, text: &str) {
        let made = self.path("script");
        fs::write(&made, text).expect("a script");
        install(&made, &self.path("bin").join(name));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// Starts a line of a recipe on a host.
    fn start(&self, host: &str, line: &str) -> Running {
        let home = self.path(host).join("work");
        fs::create_dir_all(&home).expect("it is made");
        let line = placed(line, host, self.place.path());
        let path = env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", self.path("bin").display());
        let script = format!("cd {}; {line}", home.display());
        let shell = program("/bin/bash", "a recipe").args(["-c", &script]);
        shell.env("PATH", path).env("HOME", home).start()
    }

    /// Runs a line of a recipe on a host, which must succeed.
    #[track_caller]
    fn run(&self, host: &str, line: &str) {
        let end = self.start(host, line).end();
        assert_eq!(end.code(), 0, "{line}\n{}", end.stderr);
    }

    #[track_caller]
    fn has(&self, names: &[&str]) {
        for name in names {
            assert!(self.path(name).exists(), "there is no {name}");
        }
    }
}

/// Returns a line with its absolute paths below `root`: those behind `HOST:` in the directory of that host.
fn placed(line: &str, own: &str, root: &Path) -> String {
    let mut placed = String::new();
    let (mut word, mut is_quoted, mut host) = (String::new(), false, own);
    for (at, letter) in line.char_indices() {
        let next = line[at + 1..].chars().next().unwrap_or(' ');
        let begins = placed.ends_with([' ', ':', '\'', '<', '>']) && next.is_ascii_lowercase();
        let is_served = placed
            .trim_end_matches(':')
            .ends_with(|c: char| c.is_ascii_digit());
        if letter == '/' && begins && !(is_served && host == own) {
            placed.extend([&*root.to_string_lossy(), "/", host]);
        }
        placed.push(letter);
        is_quoted ^= letter == '\'';
        match letter {
            ' ' if !is_quoted => {
                word.clear();
                host = own;
            }
            ':' if word.chars().all(char::is_alphanumeric) && !word.is_empty() => {
                host = &line[at - word.len()..at];
            }
            _ => word.push(letter),
        }
    }
    placed
}

/// Returns the lines of the console blocks of a document.
fn lines(document: &str) -> Vec<String> {
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join(document);
    let text = fs::read_to_string(text).expect(document);
    let blocks = text.split("```console\n").skip(1);
    let lines = blocks.flat_map(|block| block.split("```").next().unwrap_or_default().lines());
    lines.map(str::to_owned).collect()
}

/// Returns the examples of a program's help: the lines up to the words that explain them.
fn examples(name: &'static str) -> Vec<String> {
    let help = program(&built(name), name).arg("--help").start().end();
    let help = String::from_utf8(help.stdout).expect("text");
    let lines = help.lines().filter_map(|line| line.strip_prefix("  "));
    let command = |line: &str| line.split("   ").next().unwrap_or_default().to_owned();
    lines
        .filter(|line| line.contains("$ "))
        .map(command)
        .collect()
}

/// Returns the commands of lines that are run here and over ssh.
fn commands(lines: &[String]) -> Vec<&str> {
    let commands = lines.iter().filter_map(|line| line.strip_prefix("$ "));
    let ours = |line: &&str| {
        line.contains("rd")
            && !line.starts_with("scripts")
            && !OTHERS.iter().any(|other| line.contains(other))
    };
    commands.filter(ours).collect()
}

#[test]
fn every_recipe_over_ssh_works_from_an_empty_start() {
    for (text, least) in [
        (lines("README.md"), 3),
        (lines("docs/copy.md"), 12),
        (lines("docs/pipelines.md"), 4),
        (lines("docs/rdcat.md"), 2),
        (examples("rdcp"), 7),
        (examples("rdpipe"), 1),
        (examples("rdcat"), 2),
    ] {
        let scene = Scene::new();
        let commands = commands(&text);
        assert!(commands.len() >= least, "{commands:?}");
        for line in &commands {
            scene.run("here", line);
        }
        let written: &[(&str, &[&str])] = &[
            ("fs2:/data/set", &["fs2/data/set/inner/file"]),
            ("results", &["here/work/results/one"]),
            (
                "store:/raw/run042/",
                &["store/raw/run042/a.evio", "store/raw/run042/b.evio"],
            ),
            ("fs2:/data/ > imagenet", &["fs2/data/imagenet/n01/1.jpg"]),
            ("backup:/mirror/home", &["backup/mirror/home/user/file"]),
            ("hub:/models/llama", &["here/models/llama-70b/weights"]),
            ("/models/big", &["here/models/big.safetensors"]),
            ("/backup/", &["fs2/backup"]),
            ("fs1:'> mycopy'", &["fs1/work/mycopy"]),
        ];
        for (part, names) in written {
            if commands.iter().any(|line| line.contains(part)) {
                scene.has(names);
            }
        }
    }
}

#[test]
fn the_recipes_with_a_server_work_from_an_empty_start() {
    for text in [lines("docs/copy.md"), examples("rdcp")] {
        let scene = Scene::new();
        fs::write(scene.path("store/srv/raw/calibration/table"), "x").expect("a file");
        fs::rename(scene.path("here/daq"), scene.path("daq1-daq")).expect("it moves");
        fs::create_dir_all(scene.path("daq1")).expect("it is made");
        fs::rename(scene.path("daq1-daq"), scene.path("daq1/daq")).expect("it moves");
        fs::copy(
            scene.path("daq1/daq/run042/a.evio"),
            scene.path("daq1/daq/c.evio"),
        )
        .expect("a copy");
        let on = |host: &str| {
            let prompt = format!("{host}$ ");
            let lines = text.iter().filter_map(|line| line.strip_prefix(&prompt));
            lines.map(|line| line.trim().to_owned()).collect::<Vec<_>>()
        };
        let at_store = on("store");
        let new_key = at_store.iter().find(|line| line.contains("--new-key"));
        scene.run("store", new_key.expect("a key"));
        let serve = at_store.iter().find(|line| line.contains("--serve"));
        let serve = serve
            .expect("a server")
            .split('#')
            .next()
            .unwrap_or_default();
        let server = scene.start("store", &format!("exec {serve} --listen-port 0"));
        let here = format!("127.0.0.1:{}", server.port());
        let clients = on("daq1")
            .into_iter()
            .filter(|line| line.starts_with("rdcp"));
        let clients: Vec<_> = clients.collect();
        assert!(!clients.is_empty());
        for line in clients {
            scene.run("daq1", &line.replace("store:10470", &here));
        }
        assert!(
            fs::read_dir(scene.path("store/srv/raw/run042"))
                .expect("it was made")
                .count()
                > 0
        );
    }
}
