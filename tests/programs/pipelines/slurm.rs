//! Programs for `--rsh` that hold back what they carry, as `srun` does, which passes on whole lines only; and a real
//! Slurm with two nodes on this machine, which `scripts/slurm` starts. Only `scripts/test --full` installs Slurm and
//! runs these tests.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::support::{
    is_full,
    programs::{
        End, Running, Setup, eventually,
        local_hosts::{Hosts, feed},
        patience, program, random_bytes, skip, soon,
    },
};

/// Passes on what it reads in whole lines. GNU sed reads up to a newline, and then writes the line at once.
const WHOLE_LINES: &str = "env LC_ALL=C sed -u ''";

/// Lines of shell for [`Hosts`], with which everything that an agent reads, writes, or both, goes through
/// [`WHOLE_LINES`]. The agent is a child of the shell, as it is a child of `srun`.
fn stand_ins() -> [String; 3] {
    let agent = "INSIDE=1 \"$0\" \"$@\"";
    let chains = [
        (format!("{WHOLE_LINES} | {agent}"), 1),
        (format!("{agent} | {WHOLE_LINES}"), 0),
        (format!("{WHOLE_LINES} | {agent} | {WHOLE_LINES}"), 1),
    ];
    chains.map(|(chain, place)| {
        format!("[[ -v INSIDE ]] || {{ {chain}; exit ${{PIPESTATUS[{place}]}}; }}")
    })
}

#[test]
fn a_program_that_passes_on_whole_lines_only_carries_a_pipeline() {
    for stand_in in stand_ins() {
        let hosts = Hosts::new(&stand_in);
        let data = random_bytes(3_000_000);
        hosts.file("a", "in", &data);
        let end = hosts.run(&["a:< in", "b:tee copy", "c:> out"]);
        assert_eq!(end.exits(0), "", "{stand_in}");
        assert!(hosts.read("c", "out") == data && hosts.read("b", "copy") == data);
        let end = feed(
            hosts.rdpipe(&["a:cat; exit 3", "b:cat; echo done"]),
            b"fed\n",
        )
        .end();
        assert!(end.exits(3).contains("stage 1 (a) exited with 3"));
        assert_eq!(end.stdout, b"fed\ndone\n", "{stand_in}");
        let end = hosts.run(&["a:kill -9 $$", "b:> killed"]);
        assert!(
            end.exits(137)
                .contains("stage 1 (a) was killed by signal 9")
        );
        assert!(!hosts.has("b", "killed"));
    }
}

#[test]
fn a_command_of_many_lines_and_kibibytes_passes_whole_lines() {
    let [.., both] = stand_ins();
    let hosts = Hosts::new(&both);
    let word = "x".repeat(100 << 10);
    let end = hosts.run(&[&format!("a:printf %s {word} | wc -c\n\n\necho end")]);
    end.exits(0);
    assert_eq!(end.stdout, format!("{}\nend\n", word.len()).as_bytes());
}

#[test]
fn an_idle_session_stays_alive_through_whole_lines() {
    let [.., both] = stand_ins();
    let hosts = Hosts::new(&both);
    let timeout = patience(std::time::Duration::from_secs(2));
    let silence = timeout.as_secs_f64().to_string();
    let pause = (timeout * 3).as_secs_f64();
    let command = format!("a:sleep {pause}; echo awake");
    let end = hosts.run(&["--timeout", &silence, &command]);
    end.exits(0);
    assert_eq!(end.stdout, b"awake\n");
}

#[test]
fn output_that_is_held_back_after_the_greeting_is_explained() {
    // The empty line and the greeting pass, and nothing after them. The shell keeps stdout open.
    let hosts = Hosts::new("exec > >(head -n 2; cat >/dev/null; :)");
    let timeout = patience(std::time::Duration::from_secs(2)).as_secs_f64();
    let end = hosts.run(&["--timeout", &timeout.to_string(), "a:touch begun"]);
    let text = end.exits(255);
    let why = "the greeting of rdpipe on a arrived, and no message within ";
    let advice = "; rsh probably holds back its output: turn its buffering off";
    assert!(text.contains(why) && text.contains(advice), "{text}");
    assert!(!hosts.has("a", "begun"));
}

#[test]
fn a_program_that_must_clean_up_is_told_to_end_when_rdpipe_is_interrupted() {
    // A program that cancels its job at SIGTERM, as srun does, and never starts an agent. It has half a second for
    // that, which may be too short on a busy machine.
    let has_cancelled = (0..10).any(|_| {
        let hosts = Hosts::new(
            "trap ': >\"$0.cancelled\"; exit 1' TERM; echo waiting >&2; sleep 1000 & wait; #",
        );
        let running = hosts.rdpipe(&["a:true"]).start();
        running.said("that it waits", |text| {
            text.contains("waiting").then_some(())
        });
        running.signal(rustix::process::Signal::INT);
        running.end().exits(130);
        hosts.directory().join("rsh.cancelled").exists()
    });
    assert!(has_cancelled, "the program was killed each time");
}

/// The nodes n1 and n2, in their own namespaces. Dropping this value stops both nodes.
struct Slurm {
    script: Child,
    directory: PathBuf,
    process: String,
}

impl Slurm {
    /// Starts Slurm; `None` without `--full`, and where Slurm is not installed.
    fn start() -> Option<Self> {
        if !is_full() {
            return None;
        }
        let mut script = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/slurm"))
            .args(["--timeout", "3600", "echo $RDPIPE_SLURM; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("scripts/slurm");
        let mut directory = String::new();
        let mut stdout = BufReader::new(script.stdout.take().expect("stdout is a pipe"));
        if stdout
            .read_line(&mut directory)
            .is_ok_and(|count| count == 0)
        {
            let output = script.wait_with_output().expect("it has ended");
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            let may_be_missing = !geteuid().is_root() || why.contains("there is no ");
            assert!(may_be_missing, "{why}");
            skip(&why);
            return None;
        }
        let directory = PathBuf::from(directory.trim());
        let process = fs::read_to_string(directory.join("pid")).expect("the script wrote it");
        fs::create_dir(directory.join("work")).expect("a directory");
        Some(Self {
            script,
            directory,
            process: process.trim().to_owned(),
        })
    }

    /// Returns a line of shell, to be run beside Slurm in the directory of its files.
    fn shell(&self, line: &str) -> Setup {
        let programs = Path::new(env!("CARGO_BIN_EXE_rdpipe")).parent();
        let programs = programs.expect("it is in a directory").display();
        let path = std::env::var("PATH").unwrap_or_default();
        program("/usr/bin/nsenter", "rdpipe")
            .args(["--net", "--mount", "--uts", "--pid", "--target"])
            .arg(&self.process)
            .args(["--", "bash", "-c", line])
            .env("PATH", format!("{programs}:{path}:/usr/sbin"))
            .env("SHELL", "/bin/bash")
            .env("SLURM_CONF", self.directory.join("slurm.conf"))
    }

    /// Returns `rdpipe` with this program for `--rsh` and these arguments, which must not contain a single quote.
    fn rdpipe(&self, rsh: &str, arguments: &[&str]) -> Setup {
        let quoted: Vec<_> = arguments.iter().map(|word| format!("'{word}'")).collect();
        let work = self.path("");
        self.shell(&format!(
            "cd {} && exec rdpipe --rsh '{rsh}' {}",
            work.display(),
            quoted.join(" ")
        ))
    }

    /// Returns the path of a file in the directory where commands start.
    fn path(&self, name: &str) -> PathBuf {
        self.directory.join("work").join(name)
    }

    /// Runs a line of shell beside Slurm, and returns its output.
    #[track_caller]
    fn says(&self, line: &str) -> String {
        let end = self.shell(line).start().end();
        end.exits(0);
        String::from_utf8_lossy(&end.stdout).trim().to_owned()
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        drop(self.script.stdin.take());
        let _ = self.script.wait();
    }
}

/// The programs for `--rsh` that must work: the shortest, and the one that docs/pipelines.md shows.
fn lines() -> [&'static str; 2] {
    let page = include_str!("../../../docs/pipelines.md");
    let shown = page
        .split('\'')
        .find(|words| words.starts_with("srun "))
        .expect("the page shows a line for Slurm");
    ["srun -w {host}", shown]
}

#[track_caller]
fn gives(end: &End, code: i32, output: &str) {
    end.exits(code);
    assert_eq!(String::from_utf8_lossy(&end.stdout), output);
}

/// Waits until a program that was started by [`Slurm::shell`] runs, and returns it: the child of `nsenter`.
fn inner(running: &Running) -> Pid {
    let id = running.id();
    let children = format!("/proc/{id}/task/{id}/children");
    eventually("the child of nsenter", || {
        let children = fs::read_to_string(&children).unwrap_or_default();
        let child = children.split_whitespace().next()?.parse().ok()?;
        Pid::from_raw(child)
    })
}

#[test]
fn slurm_carries_bytes_files_and_statuses() {
    let Some(slurm) = Slurm::start() else { return };
    let data = random_bytes(5_000_000);
    fs::write(slurm.path("in"), &data).unwrap();
    for rsh in lines() {
        let run = |arguments: &[&str]| slurm.rdpipe(rsh, arguments).start().end();
        let end = run(&["n1:echo $SLURMD_NODENAME", "n2:cat; echo $SLURMD_NODENAME"]);
        gives(&end, 0, "n1\nn2\n");
        run(&["n1:< in", "n2:cat", "n1:> out"]).exits(0);
        assert!(fs::read(slurm.path("out")).unwrap() == data, "{rsh}");
        let end = run(&["n1:exit 3", "n2:cat; echo done"]);
        gives(&end, 3, "done\n");
        let end = run(&["n1:echo x; kill -9 $$", "n2:> killed"]);
        let text = end.exits(137);
        assert!(
            text.contains("stage 1 (n1) was killed by signal 9"),
            "{text}"
        );
        assert!(!slurm.path("killed").exists());
    }
}

#[test]
fn a_job_step_that_is_cancelled_fails_the_pipeline() {
    let Some(slurm) = Slurm::start() else { return };
    for rsh in lines() {
        let running = slurm
            .rdpipe(rsh, &["n1:echo up >&2; exec sleep 987654", "n2:> out"])
            .start();
        running.said("that it runs", |text| text.contains("up").then_some(()));
        let job = slurm.says("squeue --noheader --nodelist n1 --format %i");
        slurm.says(&format!("scancel {job}.0"));
        let end = running.end();
        assert!(end.code() != 0, "{end:?}");
        assert!(end.stderr.contains("stage 1 (n1)"), "{}", end.stderr);
        assert!(!slurm.path("out").exists(), "{end:?}");
        eventually("the end of the command", || {
            slurm
                .says("pgrep -f 'sleep 98765[4]' || true")
                .is_empty()
                .then_some(())
        });
    }
}

#[test]
fn a_job_that_is_never_started_is_explained_and_ends_at_an_interrupt() {
    let Some(slurm) = Slurm::start() else { return };
    slurm.says("scontrol update nodename=n2 state=drain reason=test");
    for is_interrupted in [true, false] {
        let running = slurm.rdpipe(lines()[0], &["n1:echo x", "n2:> out"]).start();
        let queued = "queued and waiting for resources";
        running.said("that the job waits", |text| {
            text.contains(queued).then_some(())
        });
        let end = if is_interrupted {
            let since = std::time::Instant::now();
            kill_process(inner(&running), Signal::INT).unwrap();
            let end = running.end();
            assert!(end.at - since < soon(), "{end:?}");
            end.exits(130);
            end
        } else {
            let end = running.end();
            let text = end.exits(255);
            let why = "rdpipe on n2 has not answered within 30s: srun said \"job ";
            assert!(text.contains(why), "{text}");
            end
        };
        // A job that still waits would start one day, and find no rdpipe.
        eventually(&format!("an empty queue after {end:?}"), || {
            slurm.says("squeue --noheader").is_empty().then_some(())
        });
        assert!(!slurm.path("out").exists());
    }
}

#[test]
fn a_pipeline_runs_inside_an_allocation() {
    let Some(slurm) = Slurm::start() else { return };
    let shown = lines()[1];
    let line = format!(
        "cd {} && salloc -N2 rdpipe --rsh '{shown}' 'n1:echo $SLURM_JOB_ID $SLURMD_NODENAME' 'n2:cat; echo $SLURM_JOB_ID $SLURMD_NODENAME' 'n1:cat'",
        slurm.path("").display()
    );
    let end = slurm.shell(&line).start().end();
    end.exits(0);
    let output = String::from_utf8_lossy(&end.stdout).into_owned();
    let words: Vec<_> = output.split_whitespace().collect();
    assert!(
        matches!(words[..], [job, "n1", again, "n2"] if job == again),
        "{end:?}"
    );
}
