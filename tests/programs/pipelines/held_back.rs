//! Programs for `--rsh` that hold back what they carry: `srun` passes on whole lines only.

use crate::support::programs::{
    local_hosts::{Hosts, feed},
    patience, random_bytes,
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
