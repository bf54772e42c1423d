//! Random copies, compared with those of `cp` and rsync: random trees, options, destinations and users.
//!
//! A trial has a number, which gives its scene and its command. A few trials run everywhere, and ten minutes of them,
//! with other numbers each time, with `RDPIPE_FULL=1`. A trial that fails prints the shell commands that repeat it, as
//! few as the test finds in a short time. `RDPIPE_COPY_TRIAL=17` repeats one alone, `RDPIPE_TEST_SEED` chooses others,
//! and `RDPIPE_COPY_SECONDS=60` gives another time than ten minutes.
//!
//! rdcp itself runs, without hosts: both agents are on this machine, or one of them is `rdcp --serve`. With
//! `RDPIPE_FULL=1`, some first runs are cut at a random moment, and a second one completes the copy; it must then be
//! that of the peer, without any temporary file.

mod command;
mod judge;
mod scene;

use std::{
    env,
    fmt::Write,
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    process::{Command, Output, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc::channel,
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use self::{
    command::{Existing, Keeps, Operands, Peer, Run, Server, Way, make_keys},
    judge::{Facts, Fault},
    scene::{Maker, Step, Traits, USER},
};
use super::{compare::Tree, trees::is_root};
use crate::support::{
    is_full,
    limits::limit,
    programs::{Random, eventually},
    random::seed,
    skip,
};

/// A scene and a command.
#[derive(Clone)]
struct Trial {
    steps: Vec<Step>,
    run: Run,
    /// The moment at which a first run is killed, and the signal. A second run then completes the copy.
    cut: Option<(Duration, Signal)>,
}

impl Trial {
    fn new(number: u64) -> Self {
        let mut random = Random::new(0xC0_0000_0000 ^ number);
        let run = Run::new(&mut random);
        let traits = Traits {
            has_owners: run.is_root || random.within(0..4) == 0,
            // rsync leaves out a device without a word, and rdcp names it.
            has_devices: run.is_root,
            has_fifos: true,
            has_locks: random.within(0..2) == 0,
            has_hard_links: random.within(0..2) == 0,
            // rsync without -A keeps no ACL of what it replaces.
            has_acls: (run.keeps == Keeps::All || run.peer == Peer::Cp) && random.within(0..2) == 0,
        };
        let mut maker = Maker::new(&mut random, traits);
        add_sources(&mut maker, &run);
        add_destinations(&mut maker, &run);
        let mut steps = maker.steps();
        if !run.is_root {
            steps = owned(steps);
        }
        // How far a run comes until a moment depends on the machine, so only the long run cuts.
        // What a cut run has brought of one source is not what a second run has brought.
        // A link to `g` whose copy has this name leads to itself, where a second copy would go.
        let is_named = matches!(run.operands, Operands::FileNamed | Operands::FileExact);
        let may_cut = is_full() && !run.operands.may_overlap() && !is_named;
        let cut = (random.within(0..5) == 0 && may_cut).then(|| {
            let moment = Duration::from_micros(random.within(0..40_000));
            let signals = [Signal::KILL, Signal::INT];
            (moment, signals[usize::from(random.within(0..2) == 0)])
        });
        Self { steps, run, cut }
    }

    /// Plays the trial. Returns false if the peer did not end, so that there was nothing to compare with.
    fn play(&self) -> Result<bool, Fault> {
        let [mine, peers] = [(); 2].map(|()| self.make_scene());
        let read = |top: &TempDir, name: &str| Tree::read(&top.path().join(name));
        let (source, before) = (read(&mine, "s"), read(&mine, "d"));
        let program = Path::new(env!("CARGO_BIN_EXE_rdcp"));
        let rdcp = self.run.rdcp(program);
        let serve = self.run.server(program);
        let server = || {
            let server = serve.as_ref().map(|line| Server::start(mine.path(), line));
            let port = server.as_ref().map_or(0, Server::port);
            (server, format!("PORT={port}; {rdcp}"))
        };
        if let Some((moment, signal)) = self.cut {
            let (_server, line) = server();
            cut(&mine, &line, moment, signal);
        }
        let (server, line) = server();
        let end = bash(&mine, &line, limit(HANG))?;
        drop(server);
        let after = read(&mine, "d");
        if self.run.peer == Peer::Cp {
            prepare_for_cp(&peers.path().join("s"), &peers.path().join("d"), &self.run);
        }
        // rsync itself does not end in some scenes: with -H and --ignore-existing its processes wait for each other.
        let Ok(peer_end) = bash(&peers, &self.run.peers(), PEERS_HANG) else {
            return Ok(false);
        };
        let facts = Facts {
            run: &self.run,
            source,
            before,
            after,
            peers: read(&peers, "d"),
            status: end.status.code().unwrap_or(-1),
            peer_status: peer_end.status.code().unwrap_or(-1),
            stderr: String::from_utf8_lossy(&end.stderr).into_owned(),
            was_cut: self.cut.is_some(),
        };
        facts.judge().map(|()| true).map_err(|mut fault| {
            let said = String::from_utf8_lossy(&peer_end.stderr);
            let (status, stderr) = (facts.status, &facts.stderr);
            let peer_status = facts.peer_status;
            let _ = write!(
                fault.text,
                "\n  rdcp: {status} {stderr}\n  peer: {peer_status} {said}"
            );
            fault
        })
    }

    /// Returns the steps of the scene, with those that make its two directories.
    fn all_steps(&self) -> Vec<Step> {
        let mut all = Vec::new();
        for top in ["s", "d"] {
            all.push(Step::Directory(top.into()));
            if !self.run.is_root {
                all.push(Step::Owners(top.into(), USER, USER));
            }
        }
        all.extend(self.steps.iter().cloned());
        all
    }

    /// Makes the scene in a directory of its own.
    fn make_scene(&self) -> TempDir {
        let top = tempfile::tempdir().expect("a directory");
        fs::set_permissions(top.path(), Permissions::from_mode(0o755)).expect("our directory");
        for step in self.all_steps() {
            step.apply(top.path());
        }
        if self.run.way != Way::Here {
            make_keys(top.path(), (!self.run.is_root).then_some(USER));
        }
        top
    }

    /// Returns a trial that fails in the same way with fewer steps and options, if one is found in a short time.
    fn shortened(mut self, fault: &mut Fault) -> Self {
        let limit = Instant::now() + SHORTEN_FOR;
        let mut fails = |trial: &Self| {
            let found = trial.play().err().filter(|found| found.kind == fault.kind);
            let fails = found.is_some();
            if let Some(found) = found {
                *fault = found;
            }
            fails && Instant::now() < limit
        };
        let mut is_shorter = true;
        while is_shorter && Instant::now() < limit {
            is_shorter = false;
            for run in self.run.shorter() {
                let steps = self.steps.clone();
                let trial = Self {
                    steps,
                    run,
                    cut: self.cut,
                };
                if trial.has_sources() && fails(&trial) {
                    self = trial;
                    is_shorter = true;
                    break;
                }
            }
            let mut count = self.steps.len() / 2;
            while count > 0 {
                let mut at = 0;
                while at < self.steps.len() && Instant::now() < limit {
                    let mut trial = self.clone();
                    let end = (at + count).min(trial.steps.len());
                    trial.steps.drain(at..end);
                    if !trial.has_sources() {
                        at += count;
                        continue;
                    }
                    if fails(&trial) {
                        self = trial;
                        is_shorter = true;
                    } else {
                        at += count;
                    }
                }
                count /= 2;
            }
        }
        self
    }

    /// Returns true if the operands of the source are there.
    fn has_sources(&self) -> bool {
        let is_made = |at: &Path| self.steps.iter().any(|step| step.made() == Some(at));
        let tops = self.run.tops();
        let mut sources = tops.iter().map(|(source, _)| Path::new("s").join(source));
        sources.all(|source| is_made(&source))
    }

    /// Returns the shell commands that repeat the trial.
    fn commands(&self) -> String {
        let mut lines: Vec<_> = self.all_steps().iter().map(Step::to_string).collect();
        if let Some((moment, signal)) = self.cut {
            lines.push(format!(
                "# first cut with {signal:?} after {moment:?}, then:"
            ));
        }
        if let Some(line) = self.run.server(Path::new("rdcp")) {
            lines.push(
                "umask 077; rdcp --new-key k | tee keys >key; chown --reference=s keys key"
                    .to_owned(),
            );
            lines.push(format!("# beside it, its port is PORT: {line}"));
        }
        lines.push(format!("HOME=$PWD; {}", self.run.rdcp(Path::new("rdcp"))));
        lines.push(format!(
            "# peer, in a scene of its own: {}",
            self.run.peers()
        ));
        lines.join("\n")
    }
}

fn add_sources(maker: &mut Maker, run: &Run) {
    // A link may lead to it.
    maker.file(Path::new("s/g"));
    if run.operands == Operands::SameName {
        maker.directory(Path::new("s/V"));
    }
    for (source, _) in run.tops() {
        match source {
            "g" => {}
            "f" => maker.named_source(Path::new("s/f")),
            tree => maker.tree(&Path::new("s").join(tree)),
        }
    }
}

/// Adds what is at the destination before.
fn add_destinations(maker: &mut Maker, run: &Run) {
    let is_merged = run.operands == Operands::Merged;
    if is_merged {
        // A file would be written into a FIFO, and wait for its reader.
        maker.leave_out_special();
    }
    for (source, destination) in run.tops() {
        let [from, to] =
            [("s", source), ("d", destination)].map(|(top, at)| Path::new(top).join(at));
        match (source, run.operands) {
            (_, Operands::New | Operands::Parents)
            | ("U" | "V/T", Operands::Merged | Operands::SameName) => {}
            ("f" | "g", operands) => match maker.within(0..3) {
                0 => maker.named_destination(&to, operands != Operands::FileNamed),
                1 if from.ends_with("g") => maker.older_copy(&from, &to),
                _ => {}
            },
            _ => match maker.within(0..10) {
                0 => {}
                1..=4 => maker.tree(&to),
                _ if is_merged => {}
                _ => maker.older_copy(&from, &to),
            },
        }
    }
}

/// Makes all entries those of the normal user, except those that the scene gives to others.
fn owned(steps: Vec<Step>) -> Vec<Step> {
    let made = |step: &Step| match step {
        Step::HardLink(..) => None,
        step => step
            .made()
            .map(|at| Step::Owners(at.to_owned(), USER, USER)),
    };
    steps
        .into_iter()
        .flat_map(|step| {
            let owners = made(&step);
            [Some(step), owners].into_iter().flatten()
        })
        .collect()
}

/// Removes what `cp` would write through: it follows a link and keeps the other names of a file, where rdcp makes a new
/// file.
fn prepare_for_cp(source: &Path, destination: &Path, run: &Run) {
    for (from, to) in run.tops() {
        prepare_below(&source.join(from), &destination.join(to), run);
    }
}

/// Prepares one entry of the destination, and what is below it.
fn prepare_below(source: &Path, destination: &Path, run: &Run) {
    let Ok(old) = fs::symlink_metadata(destination) else {
        return;
    };
    let Ok(new) = fs::symlink_metadata(source) else {
        return;
    };
    let is_replaced = match run.existing {
        Existing::NoClobber => false,
        Existing::Update => (new.mtime(), new.mtime_nsec()) > (old.mtime(), old.mtime_nsec()),
        Existing::Replace | Existing::SkipSame => true,
    };
    match (new.is_dir(), old.is_dir()) {
        (true, true) => {
            for entry in fs::read_dir(source).expect("a directory").flatten() {
                let name = entry.file_name();
                prepare_below(&source.join(&name), &destination.join(&name), run);
            }
        }
        (false, false) if is_replaced && old.is_file() => {
            let lone = destination.with_file_name(".lone");
            let copied = Command::new("cp")
                .arg("-a")
                .args([destination, &*lone])
                .status();
            assert!(copied.expect("cp").success());
            fs::rename(lone, destination).expect("our file");
        }
        (false, false) if is_replaced => fs::remove_file(destination).expect("our file"),
        _ => {}
    }
}

/// Runs a command line in a scene. What does not end in time is a fault.
fn bash(top: &TempDir, line: &str, limit: Duration) -> Result<Output, Fault> {
    let mut bash = Command::new("bash");
    bash.args(["-c", line]).current_dir(top.path());
    bash.env("HOME", top.path()).env("LC_ALL", "C.UTF-8");
    bash.stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = bash.spawn().expect("bash");
    let id = child.id();
    let (sender, ended) = channel();
    thread::spawn(move || sender.send(child.wait_with_output()));
    if let Ok(output) = ended.recv_timeout(limit) {
        return Ok(output.expect("a child"));
    }
    let _ = Command::new("kill").args(["-9", &id.to_string()]).status();
    Err(Fault::new(HUNG, line))
}

/// Starts a command line, sends a signal to it, and waits until all its processes have ended.
fn cut(top: &TempDir, line: &str, moment: Duration, signal: Signal) {
    let mut bash = Command::new("bash");
    bash.args(["-c", line]).current_dir(top.path());
    bash.env("HOME", top.path()).stdin(Stdio::null());
    bash.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = bash.spawn().expect("bash");
    thread::sleep(moment);
    let _ = kill_process(Pid::from_child(&child), signal);
    child.wait().expect("a child");
    // All processes of the copy have the home directory of the scene.
    let home = format!("HOME={}", top.path().display());
    let is_of_scene = |process: &Path| {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|entry| entry == home.as_bytes())
    };
    eventually("the ends of all processes", || {
        let processes = fs::read_dir("/proc").expect("processes").flatten();
        let mut paths = processes.map(|entry| entry.path());
        (!paths.any(|process| is_of_scene(&process))).then_some(())
    });
}

/// The kind of fault of a copy that does not end.
const HUNG: &str = "a hang";

/// The time after which a copy of a small tree hangs.
const HANG: Duration = Duration::from_secs(20);

/// The time after which a peer hangs. It is not longer on a busy machine: what is not compared is counted.
const PEERS_HANG: Duration = Duration::from_secs(5);

/// The trials that run everywhere.
const TRIALS: u64 = 40;

/// The time of the trials with `RDPIPE_FULL=1`.
const FULL: Duration = Duration::from_secs(600);

/// The time for the search of a shorter trial.
const SHORTEN_FOR: Duration = Duration::from_secs(8);

const THREADS: usize = 2;

#[test]
fn random_copies_are_those_of_cp_and_rsync() {
    if !is_root() {
        skip("only root can make devices and the files of other users");
        return;
    }
    let only = number("RDPIPE_COPY_TRIAL");
    let epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let first = match only {
        Some(only) => only,
        None if is_full() => epoch.expect("a clock").as_secs() << 20,
        None => 0,
    };
    let full = number("RDPIPE_COPY_SECONDS").map_or(FULL, Duration::from_secs);
    println!("RDPIPE_TEST_SEED={}, from trial {first}", seed());
    let begun = Instant::now();
    let next = AtomicU64::new(first);
    let not_compared = AtomicU64::new(0);
    let faults = Mutex::new(Vec::new());
    let is_over = |trial| match only {
        Some(only) => trial > only,
        None if is_full() => begun.elapsed() > full,
        None => trial >= TRIALS,
    };
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if is_over(number) {
                        return;
                    }
                    match try_trial(number) {
                        Ok(is_compared) => {
                            not_compared.fetch_add(u64::from(!is_compared), Ordering::Relaxed);
                        }
                        Err(kind) => faults.lock().unwrap().push((number, kind)),
                    }
                }
            });
        }
    });
    let count = next.into_inner() - first - THREADS as u64;
    let not_compared = not_compared.into_inner();
    println!(
        "{count} trials in {:?}, {not_compared} of them without an end of the peer",
        begun.elapsed()
    );
    assert!(
        not_compared <= 1 + count / 10,
        "{not_compared} peers did not end"
    );
    let faults = faults.into_inner().unwrap();
    assert!(
        faults.is_empty(),
        "RDPIPE_TEST_SEED={} and RDPIPE_COPY_TRIAL: {faults:?}",
        seed()
    );
}

/// Plays a trial, as [`Trial::play`] does. Prints how to repeat it if it fails, and returns the kind of its fault.
fn try_trial(number: u64) -> Result<bool, &'static str> {
    let trial = Trial::new(number);
    trial.play().map_err(|mut fault| {
        // Each try of a hang would take its time limit.
        let trial = if fault.kind == HUNG {
            trial
        } else {
            trial.shortened(&mut fault)
        };
        let (kind, text) = (fault.kind, &fault.text);
        println!("=== trial {number}: {kind}: {text}\n{}\n", trial.commands());
        kind
    })
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().expect(variable))
}
