//! The recipes of README, docs and `--help`, run literally on hosts that are empty but for the sources.
//!
//! Only the places differ: an absolute path is that of the host before it, below a directory of the test, and a server
//! has an address of this machine. A stand-in for ssh runs what it is given in the directory of the host.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use rustix::process::Signal;

use crate::support::programs::{Running, built, free_port, install, program};

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
        let programs = [
            "rdpipe",
            "rdcp",
            "rdcat",
            "rdsend",
            "rdrecv",
            "rdperf",
            "rdforward",
        ];
        for name in programs {
            install(Path::new(&built(name)), &scene.path("bin").join(name));
        }
        let root = scene.place.path().display();
        let ssh = format!(
            "#!/bin/bash\nwhile [[ $1 == -* ]]; do [[ $1 == -[Fpl] ]] && shift; shift; done\n\
             at={root}/${{1#*@}}/work; shift; mkdir -p $at; cd $at; export HOME=$at; exec sh -c \"$*\"\n"
        );
        scene.script("ssh", &ssh);
        scene.script("pg_dump", "#!/bin/sh\necho a dump\n");
        scene.script("zfs", "#!/bin/sh\necho a snapshot\n");
        for name in ["psql", "pgbench", "redis-cli", "redis-benchmark", "curl"] {
            scene.script(name, "#!/bin/sh\n");
        }
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

/// Returns the lines of a text for one host, which follow its prompt, without their remarks.
fn at(text: &[String], host: &str) -> Vec<String> {
    let prompts = [
        format!("{host}$ "),
        format!("{host} $ "),
        format!("[{host}] $ "),
    ];
    let line = |line: &String| {
        let line = line.trim_start();
        let command = prompts
            .iter()
            .find_map(|prompt| line.strip_prefix(prompt))?;
        Some(command.split("  ").next()?.trim().to_owned())
    };
    text.iter().filter_map(line).collect()
}

#[test]
fn the_recipes_of_streams_deliver_the_file() {
    for text in [
        lines("docs/streams.md"),
        examples("rdsend"),
        examples("rdrecv"),
    ] {
        let (mut receivers, senders) = (at(&text, "hostB"), at(&text, "hostA"));
        if receivers.len() > senders.len() {
            // What a receiver without a key prints is another test.
            receivers.retain(|line| line.contains("key"));
        }
        assert_eq!(receivers.len(), senders.len(), "{text:?}");
        let pairs = receivers.into_iter().zip(senders);
        let mut count = 0;
        for (receive, send) in pairs {
            let scene = Scene::new();
            for host in ["hostA", "hostB"] {
                fs::create_dir_all(scene.path(host).join("work")).unwrap();
                let key = "rdk1ro5hhivtyn6jli655nd3ndzmackkzk6z5snkka7dnscv7igq7pifwi4p\n";
                let file = scene.path(host).join("work/.rdkey");
                fs::write(&file, key).unwrap();
                let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
                fs::set_permissions(&file, private).unwrap();
            }
            fs::write(scene.path("hostA/work/myfile"), "content").unwrap();
            let port = free_port().to_string();
            let receiving = scene.start("hostB", &receive.replace("12345", &port));
            // With port 0 the receiver prints the one that it takes.
            let port = if receive.ends_with(" 0") {
                receiving.port().to_string()
            } else {
                port
            };
            let send = send.replace("12345", &port).replace("40123", &port);
            let send = if send.contains("rdk1...") {
                send.replace("rdk1...", &printed_key(&receiving))
            } else {
                send
            };
            scene.run("hostA", &send.replace("hostB", "127.0.0.1"));
            let end = receiving.end();
            assert_eq!(end.code(), 0, "{receive}: {}", end.stderr);
            let copy = fs::read(scene.path("hostB/work/mycopy")).unwrap();
            assert!(copy == b"content" || copy == b"a snapshot\n", "{receive}");
            count += 1;
        }
        assert!(count >= 2, "{text:?}");
    }
}

/// Returns the key that rdrecv has made and printed.
fn printed_key(receiving: &Running) -> String {
    receiving.said("a key", |text| {
        let (_, rest) = text.split_once("RDPIPE_KEY=")?;
        Some(rest.split_once(' ')?.0.to_owned())
    })
}

#[test]
fn the_recipe_of_a_stream_without_a_key_is_what_the_program_prints() {
    let scene = Scene::new();
    fs::create_dir_all(scene.path("hostA/work")).unwrap();
    fs::write(scene.path("hostA/work/FILE"), "content").unwrap();
    let text = lines("docs/streams.md");
    let receive = at(&text, "hostB")
        .into_iter()
        .find(|line| !line.contains("key"));
    let receive = receive.unwrap().replace("12345", &free_port().to_string());
    let receiving = scene.start("hostB", &receive);
    let line = receiving.said("a line for the other host", |text| {
        let at = text.find("RDPIPE_KEY=")?;
        Some(text[at..].split_once('\n')?.0.to_owned())
    });
    let words: Vec<_> = line.split(' ').collect();
    let [key, "rdsend", _, port, "<", "FILE"] = words[..] else {
        panic!("{line}");
    };
    scene.run("hostA", &format!("{key} rdsend 127.0.0.1 {port} < FILE"));
    assert_eq!(receiving.end().code(), 0);
    assert_eq!(
        fs::read(scene.path("hostB/work/mycopy")).unwrap(),
        b"content"
    );
}

#[test]
fn the_recipes_of_rdperf_measure() {
    // Without RDMA there are no operations to compare.
    let is_ours = |line: &&String| !line.contains("--sweep") && !line.contains("--pingpong");
    for text in [lines("docs/perf.md"), examples("rdperf")] {
        let scene = Scene::new();
        let ours = text.iter().filter(is_ours);
        let commands = ours.filter_map(|line| line.trim_start().strip_prefix("$ "));
        let mut count = 0;
        for command in commands {
            let command = command.split(['#', ';']).next().unwrap_or_default();
            let command = command.split("   ").next().unwrap_or_default();
            let is_check = command.contains("--check");
            let is_measured = !is_check && !command.contains("draw");
            let command = if is_measured {
                command.replacen("rdperf", "rdperf --time 0.1 --runs 1", 1)
            } else {
                command.to_owned()
            };
            let end = scene.start("here", &command).end();
            // This machine may have something to repair.
            let is_fine = end.code() == 0 || is_check && end.code() == 1;
            assert!(is_fine, "{command}\n{}", end.stderr);
            count += 1;
        }
        assert!(count >= 4, "{text:?}");
    }
    let scene = Scene::new();
    let text = lines("docs/perf.md");
    let listening = scene.start("hostA", &at(&text, "hostA")[0]);
    let ticket = listening.said("a ticket", |text| {
        let (_, rest) = text.split_once("\n  rdperf ")?;
        Some(rest.split_once('\n')?.0.to_owned())
    });
    let dial = at(&text, "hostB")[0].replace("rdt1...", &ticket);
    scene.run("hostB", &format!("{dial} --time 0.1 --runs 1"));
    assert_eq!(listening.end().code(), 0);
}

/// Returns a line of rdforward whose listeners take free ports.
fn with_free_ports(line: &str) -> String {
    let mut words: Vec<_> = line.split(' ').map(str::to_owned).collect();
    for at in 1..words.len() {
        if matches!(&*words[at - 1], "-L" | "-R" | "-D") {
            let (_, target) = words[at].split_once(':').unwrap_or((&words[at], ""));
            let free = format!("0:{target}");
            free.trim_end_matches(':').clone_into(&mut words[at]);
        }
    }
    words.join(" ")
}

/// Runs a line of rdforward until it forwards, or its command has ended.
#[track_caller]
fn forwards(scene: &Scene, host: &str, line: &str) {
    let line = with_free_ports(line);
    if line.contains(" run ") {
        return scene.run(host, &line);
    }
    let running = scene.start(host, &format!("exec {line}"));
    running.said("that it is ready", |text| {
        text.contains("ready: ").then_some(())
    });
    running.signal(Signal::TERM);
    assert_eq!(running.end().code(), 143, "{line}");
}

#[test]
fn the_recipes_of_rdforward_forward() {
    for text in [lines("docs/forward.md"), examples("rdforward")] {
        let scene = Scene::new();
        let remark = |line: &str| line.split(['#']).next().unwrap_or_default().to_owned();
        let own = text
            .iter()
            .filter_map(|line| line.trim_start().strip_prefix("$ "));
        let own = own.map(|line| remark(line).trim().to_owned());
        // A key is needed, and a server that has it.
        let own = own.filter(|line| line.starts_with("rdforward") && !line.contains("mykey"));
        let own: Vec<_> = own.collect();
        assert!(own.len() >= 5, "{own:?}");
        for line in &own {
            forwards(&scene, "here", line);
        }
    }
    let scene = Scene::new();
    let text = lines("docs/forward.md");
    let store = at(&text, "store");
    scene.run(
        "store",
        store
            .iter()
            .find(|line| line.contains("--new-key"))
            .unwrap(),
    );
    let serve = store.iter().find(|line| line.contains(" serve ")).unwrap();
    let server = scene.start("store", &format!("exec {serve} --listen-port 0"));
    let here = format!("127.0.0.1:{}", server.port());
    let clients = at(&text, "app1");
    assert_eq!(clients.len(), 3);
    for line in clients {
        let line = line.replace("store:10471", &here);
        // The command reaches the server by the name that it was given.
        forwards(&scene, "app1", &line);
    }
    let listening = scene.start("hostA", &at(&text, "hostA")[0]);
    let ticket = listening.said("a ticket", |text| {
        let word = text
            .split_whitespace()
            .find(|word| word.starts_with("rdt1"))?;
        text.ends_with('\n').then(|| word.to_owned())
    });
    let dial = at(&text, "hostB")[0].replace("rdt1...", &ticket);
    forwards(&scene, "hostB", &dial);
    listening.end();
}
