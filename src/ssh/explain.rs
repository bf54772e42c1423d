//! Explains to the user why a session could not be opened or was lost, and what to do. Pure, no I/O.

use std::time::Duration;

use super::{
    deploy::DeployPolicy,
    launch::{Launch, LaunchKind},
    stage::Status,
};

/// What is known about a session that ended without a report.
#[derive(Debug)]
pub(crate) struct Evidence<'a> {
    /// The last lines of stderr, and of the output before the greeting.
    pub(crate) stderr_lines: &'a [String],
    /// How the process that led to the agent (ssh, say) ended.
    pub(crate) status: Option<Status>,
    /// Whether the agent had sent its greeting.
    pub(crate) greeted: bool,
}

/// Explains the end of a session in one sentence.
pub(crate) fn explain(launch: &Launch, evidence: &Evidence<'_>) -> String {
    if evidence.greeted {
        lost(launch, evidence)
    } else {
        unopened(launch, evidence)
    }
}

/// Explains why a session was given up whose agent did not send its greeting within `limit`. A program such as `srun`
/// says on stderr what it waits for.
pub(crate) fn unanswered(launch: &Launch, limit: Duration, stderr_lines: &[String]) -> String {
    let (host, last) = (&launch.host, said(launch, stderr_lines));
    format!("rdpipe on {host} has not answered within {limit:.0?}{last}")
}

/// Explains why a session was given up that was silent for `silence` after the agent's greeting. `has_message`: the
/// agent had sent a message as well.
pub(crate) fn silent(launch: &Launch, silence: Duration, has_message: bool) -> String {
    let host = &launch.host;
    if has_message || launch.kind != LaunchKind::Rsh {
        return format!(
            "received nothing from {host} for {silence:.0?} (host down or cable out; see --timeout)"
        );
    }
    let program = program(launch);
    format!(
        "the greeting of rdpipe on {host} arrived, and no message within {silence:.0?}; {program} probably holds back its output: turn its buffering off"
    )
}

/// Explains the end of a session whose agent had sent its greeting.
fn lost(launch: &Launch, evidence: &Evidence<'_>) -> String {
    let host = &launch.host;
    let last = said(launch, evidence.stderr_lines);
    match evidence.status {
        // ssh exits with 255 if it fails itself. An agent never does.
        Some(Status::Exited(255)) if launch.kind == LaunchKind::Ssh => {
            format!("lost the connection to {host}{last}")
        }
        Some(Status::Exited(status @ 129..=192)) => {
            format!("the agent on {host} was killed by {}", signal(status - 128))
        }
        Some(Status::Exited(status)) => {
            format!("the agent on {host} exited too early, with status {status}{last}")
        }
        Some(Status::Signaled(number)) if launch.kind == LaunchKind::Here => {
            format!("the agent on {host} was killed by {}", signal(number))
        }
        Some(Status::Signaled(number)) => {
            let program = program(launch);
            format!("lost {host}: {program} was killed by {}", signal(number))
        }
        None => format!("lost {host}{last}"),
    }
}

/// Explains the end of a session whose agent never sent a greeting.
fn unopened(launch: &Launch, evidence: &Evidence<'_>) -> String {
    let Launch {
        host, destination, ..
    } = launch;
    let last = said(launch, evidence.stderr_lines);
    let status = match evidence.status {
        Some(Status::Exited(status)) => status,
        Some(Status::Signaled(number)) => {
            let program = program(launch);
            return format!(
                "cannot reach {host}: {program} was killed by {}",
                signal(number)
            );
        }
        None => return format!("cannot reach {host}{last}"),
    };
    if let Some(fault) = evidence
        .stderr_lines
        .iter()
        .find_map(|line| start_fault(line))
    {
        return format!("rdpipe on {host} does not start: {fault}");
    }
    let is_crash = |line: &String| CRASHES.iter().any(|text| line.contains(text));
    if evidence.stderr_lines.iter().any(is_crash) {
        return format!("rdpipe on {host} crashed{last}; try: ssh {destination} rdpipe --version");
    }
    if launch.is_users && status == 255 {
        // The user has read what ssh wrote.
        return String::new();
    }
    if launch.kind == LaunchKind::Ssh && status == 255 {
        // So ssh ends, too, if the command over there was killed by a signal.
        if evidence.stderr_lines.is_empty() {
            return format!(
                "ssh {destination} ended with 255 and no message; try: ssh {destination} rdpipe --version"
            );
        }
        let has = |text: &str| evidence.stderr_lines.iter().any(|line| line.contains(text));
        let known = SSH_FAILURES
            .iter()
            .find(|(texts, _)| texts.iter().any(|text| has(text)));
        let advice = known.map_or("", |(_, advice)| advice);
        let advice = advice.replace("{dest}", destination);
        return format!("cannot reach {host}{last}{advice}");
    }
    let said_not_found = evidence.stderr_lines.iter().any(|line| {
        if line.starts_with(UNSTARTED_AGENT) {
            return false;
        }
        let line = line.to_lowercase();
        line.contains("not found")
            || line.contains("no such file")
            || line.contains("unknown command")
    });
    let rejects_agent = || {
        evidence
            .stderr_lines
            .iter()
            .any(|line| line.contains("--agent"))
    };
    if launch.deploy != DeployPolicy::Never && (status == 127 || said_not_found) {
        return format!(
            "there is no sh on {host}, which starts rdpipe there{last}; install rdpipe, and give --deploy never"
        );
    }
    match status {
        _ if status == 127 || (status != 0 && said_not_found) => format!(
            "there is no rdpipe on {host}{last}; install it there, or give its path with --remote-rdpipe PATH"
        ),
        126 => format!("rdpipe on {host} cannot be run{last}"),
        2 if rejects_agent() => format!(
            "rdpipe on {host} is another program, or too old to be part of a pipeline{last}"
        ),
        0 => format!(
            "the session on {host} ended before rdpipe began there; does a profile of its login shell exit?{last}"
        ),
        129..=192 => format!("the agent on {host} was killed by {}", signal(status - 128)),
        _ => format!("cannot start rdpipe on {host}: status {status}{last}"),
    }
}

/// Returns why a program cannot start, if a line of the dynamic loader or of a shell says so.
fn start_fault(line: &str) -> Option<String> {
    if let Some((_, rest)) = line.split_once("error while loading shared libraries: ") {
        let library = rest.split(':').next().unwrap_or(rest);
        let package = PACKAGES.iter().find(|(file, _)| *file == library);
        let install = package.map_or("install it".to_owned(), |(_, names)| {
            format!("install {names}")
        });
        return Some(format!("{library} is missing there; {install}"));
    }
    if let Some((_, rest)) = line.split_once("version `GLIBC_") {
        let version = rest.split('\'').next().unwrap_or(rest);
        return Some(format!(
            "it needs glibc {version}, and that host has an older one; install an rdpipe that was built for it"
        ));
    }
    let is_foreign =
        line.contains("Exec format error") || line.contains("cannot execute binary file");
    is_foreign.then(|| "it was built for another kind of processor".to_owned())
}

/// Libraries that rdpipe may need, and the packages that have them.
const PACKAGES: [(&str, &str); 2] = [
    (
        "libibverbs.so.1",
        "libibverbs1 (Debian, Ubuntu) or libibverbs (Fedora, RHEL)",
    ),
    (
        "librdmacm.so.1",
        "librdmacm1 (Debian, Ubuntu) or librdmacm (Fedora, RHEL)",
    ),
];

/// Texts of shells about a program that a signal has killed.
const CRASHES: [&str; 5] = [
    "Segmentation fault",
    "Illegal instruction",
    "Bus error",
    "Aborted",
    "panicked at",
];

/// Returns true for a line of ssh, the loader or a shell that is part of the explanation when the session cannot be
/// opened, so that it is not shown twice.
pub(crate) fn explains(line: &str) -> bool {
    let mut texts = SSH_FAILURES.iter().flat_map(|(texts, _)| *texts);
    line.starts_with("ssh: ")
        || texts.any(|text| line.contains(text))
        || CRASHES.iter().any(|text| line.contains(text))
        || line.ends_with("not found")
        || line.ends_with("No such file or directory")
        || start_fault(line).is_some()
}

/// The beginning of the line in which rdpipe says why its agent cannot start.
pub(super) const UNSTARTED_AGENT: &str = "rdpipe: cannot start the agent";

/// Texts in the messages of ssh, and the advice for each.
const SSH_FAILURES: [(&[&str], &str); 6] = [
    (
        &["Could not resolve hostname"],
        "; is the name right? (--ssh-opt -oHostName=ADDR gives an address)",
    ),
    (
        &[
            "Host key verification failed",
            "REMOTE HOST IDENTIFICATION HAS CHANGED",
        ],
        "; its host key is unknown or has changed: check it with `ssh {dest}`, and accept it there if it is right",
    ),
    (
        &["Permission denied", "Too many authentication failures"],
        "; rdpipe never asks for a password: install a key with `ssh-copy-id {dest}`, or load yours into the agent with `ssh-add`",
    ),
    (
        &["Connection refused"],
        "; does sshd run there, on this port? (--ssh-opt -oPort=N)",
    ),
    (
        &["timed out", "No route to host", "Network is unreachable"],
        "; is the host up, and its port for ssh open?",
    ),
    (
        &[
            "Bad configuration option",
            "Bad owner or permissions",
            "command-line: line 0",
        ],
        "; see --ssh-opt and ssh's configuration",
    ),
];

/// Returns `: ssh said "..."` with the last line that ssh itself wrote, or else the last line of all.
fn said(launch: &Launch, stderr_lines: &[String]) -> String {
    let own = |line: &&String| {
        line.starts_with("ssh: ")
            || line.contains("Permission denied")
            || line.contains("verification failed")
    };
    let line = stderr_lines.iter().rev().find(own).or(stderr_lines.last());
    let Some(line) = line else {
        return String::new();
    };
    match launch.kind {
        LaunchKind::Here => format!(": {line}"),
        LaunchKind::Ssh | LaunchKind::Rsh => {
            let program = program(launch);
            let line = line.strip_prefix(&format!("{program}: ")).unwrap_or(line);
            format!(": {program} said \"{}\"", line.trim())
        }
    }
}

/// Returns the name of the program without its path.
fn program(launch: &Launch) -> String {
    let name = std::path::Path::new(launch.program()).file_name();
    name.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Returns a signal's number, and its name where it has a common one.
pub(crate) fn signal(number: u8) -> String {
    let name = match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        _ => return format!("signal {number}"),
    };
    format!("signal {number} ({name})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssh::{launch::Remote, plan::StageHost};

    fn launch(rsh: Option<&str>) -> Launch {
        let remote = Remote {
            rsh: rsh.map(|rsh| vec![rsh.to_owned()]),
            deploy: DeployPolicy::Never,
            ..Remote::default()
        };
        let place = StageHost::Host {
            destination: "me@fs1".to_owned(),
            host: "fs1".to_owned(),
        };
        remote.launch(&place, "/usr/bin/rdpipe".as_ref()).unwrap()
    }

    fn before(words: &[&str], status: Status) -> String {
        told(&launch(None), words, status, false)
    }

    fn told(launch: &Launch, words: &[&str], status: Status, greeted: bool) -> String {
        let words: Vec<_> = words.iter().map(|&line| line.to_owned()).collect();
        let evidence = Evidence {
            stderr_lines: &words,
            status: Some(status),
            greeted,
        };
        explain(launch, &evidence)
    }

    #[test]
    fn ssh_failures_come_with_advice() {
        for (line, hint) in [
            (
                "ssh: Could not resolve hostname fs1: Name or service not known",
                "is the name right?",
            ),
            (
                "ssh: connect to host fs1 port 22: Connection refused",
                "does sshd run there",
            ),
            (
                "ssh: connect to host fs1 port 22: Connection timed out",
                "is the host up",
            ),
            (
                "ssh: connect to host fs1 port 22: No route to host",
                "is the host up",
            ),
            (
                "me@fs1: Permission denied (publickey,password).",
                "ssh-copy-id me@fs1",
            ),
            ("Host key verification failed.", "`ssh me@fs1`"),
            (
                "command-line: line 0: Bad configuration option: bogus",
                "--ssh-opt",
            ),
        ] {
            let text = before(&["Warning: something", line], Status::Exited(255));
            assert!(text.starts_with("cannot reach fs1: ssh said \""), "{text}");
            assert!(text.contains(hint), "{text}");
            assert!(
                text.contains(line.strip_prefix("ssh: ").unwrap_or(line)),
                "{text}"
            );
        }
        let text = before(&["ssh: some new trouble"], Status::Exited(255));
        assert_eq!(text, "cannot reach fs1: ssh said \"some new trouble\"");
        assert_eq!(
            before(&[], Status::Exited(255)),
            "ssh me@fs1 ended with 255 and no message; try: ssh me@fs1 rdpipe --version"
        );
    }

    #[test]
    fn a_host_without_rdpipe_gets_advice_about_installing_it() {
        for (line, status) in [
            ("bash: line 1: rdpipe: command not found", 127),
            ("sh: 1: rdpipe: not found", 127),
            ("rdpipe: Command not found.", 1),
            ("fish: Unknown command: rdpipe", 127),
            (
                "OCI runtime exec failed: exec: \"rdpipe\": executable file not found in $PATH",
                126,
            ),
        ] {
            let text = before(&[line], Status::Exited(status));
            assert!(text.starts_with("there is no rdpipe on fs1"), "{text}");
            assert!(text.contains("--remote-rdpipe"), "{text}");
        }
    }

    #[test]
    fn a_program_that_does_not_start_is_told_apart_from_none() {
        let of_loader = "rdpipe: error while loading shared libraries: ";
        let (missing, old) = (
            "cannot open shared object file: No such file or directory",
            "(required by rdpipe)",
        );
        for (line, status, words) in [
            (
                format!("{of_loader}libibverbs.so.1: {missing}"),
                127,
                &[
                    "does not start: libibverbs.so.1 is missing there",
                    "libibverbs1 (Debian",
                ][..],
            ),
            (
                format!("{of_loader}libx.so.2: {missing}"),
                127,
                &["libx.so.2 is missing there; install it"],
            ),
            (
                format!("rdpipe: /lib/libc.so.6: version `GLIBC_2.39' not found {old}"),
                1,
                &["does not start: it needs glibc 2.39"],
            ),
            (
                "bash: /usr/bin/rdpipe: cannot execute binary file: Exec format error".into(),
                126,
                &["another kind of processor"],
            ),
            (
                "bash: line 1: 77 Segmentation fault  rdpipe --agent".into(),
                139,
                &[
                    "rdpipe on fs1 crashed: ssh said",
                    "try: ssh me@fs1 rdpipe --version",
                ],
            ),
        ] {
            let text = before(&["Welcome", &line], Status::Exited(status));
            for word in words {
                assert!(text.contains(word), "{text}");
            }
            assert!(
                !text.contains("cannot reach") && !text.contains("no rdpipe"),
                "{text}"
            );
            assert!(explains(&line), "{line}");
        }
        assert!(!explains("srun: job 7 queued and waiting for resources"));
    }

    #[test]
    fn a_host_without_a_shell_is_told_apart_from_one_without_rdpipe() {
        let mut launch = launch(Some("docker"));
        launch.deploy = DeployPolicy::Auto;
        let line = "OCI runtime exec failed: exec: \"sh\": executable file not found in $PATH";
        let text = told(&launch, &[line], Status::Exited(126), false);
        assert!(text.starts_with("there is no sh on fs1"), "{text}");
        assert!(text.contains("--deploy never"), "{text}");
    }

    #[test]
    fn an_agent_that_cannot_start_is_explained() {
        let old = before(
            &["error: unexpected argument '--agent' found"],
            Status::Exited(2),
        );
        assert!(old.contains("too old"), "{old}");
        let profile = before(&["bye"], Status::Exited(0));
        assert!(profile.contains("does a profile"), "{profile}");
        let denied = before(&["sh: rdpipe: Permission denied"], Status::Exited(126));
        assert!(denied.contains("cannot be run"), "{denied}");
        let surroundings = before(
            &[
                "rdpipe: cannot start the agent: cannot open /dev/null: No such file or directory (os error 2)",
            ],
            Status::Exited(1),
        );
        assert!(
            surroundings.starts_with("cannot start rdpipe on fs1: status 1"),
            "{surroundings}"
        );
        let killed = before(&[], Status::Signaled(9));
        assert_eq!(
            killed,
            "cannot reach fs1: ssh was killed by signal 9 (SIGKILL)"
        );
        // Only ssh uses 255 for a lost connection. The same status of another program has no special meaning.
        let rsh = told(
            &launch(Some("/opt/krun")),
            &["no pod"],
            Status::Exited(255),
            false,
        );
        assert_eq!(
            rsh,
            "cannot start rdpipe on fs1: status 255: krun said \"no pod\""
        );
    }

    #[test]
    fn output_that_is_held_back_after_the_greeting_is_named_as_the_likely_cause() {
        let srun = launch(Some("/usr/bin/srun"));
        let limit = Duration::from_secs(30);
        assert_eq!(
            silent(&srun, limit, false),
            "the greeting of rdpipe on fs1 arrived, and no message within 30s; srun probably holds back its output: turn its buffering off"
        );
        for text in [
            silent(&srun, limit, true),
            silent(&launch(None), limit, false),
        ] {
            assert!(
                text.starts_with("received nothing from fs1 for 30s"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_job_that_is_not_started_is_explained_by_what_its_program_said() {
        let queued = "srun: job 5 queued and waiting for resources".to_owned();
        assert_eq!(
            unanswered(&launch(Some("srun")), Duration::from_secs(30), &[queued]),
            "rdpipe on fs1 has not answered within 30s: srun said \"job 5 queued and waiting for resources\""
        );
        assert_eq!(
            unanswered(&launch(None), Duration::from_secs(30), &[]),
            "rdpipe on fs1 has not answered within 30s"
        );
    }

    #[test]
    fn a_killed_agent_and_a_lost_connection_are_explained_differently() {
        let lost = |words: &[&str], status| told(&launch(None), words, status, true);
        assert_eq!(
            lost(&[], Status::Exited(137)),
            "the agent on fs1 was killed by signal 9 (SIGKILL)"
        );
        assert_eq!(
            lost(
                &["Connection to fs1 closed by remote host."],
                Status::Exited(255)
            ),
            "lost the connection to fs1: ssh said \"Connection to fs1 closed by remote host.\""
        );
        assert_eq!(
            lost(&[], Status::Signaled(9)),
            "lost fs1: ssh was killed by signal 9 (SIGKILL)"
        );
        assert_eq!(
            lost(&[], Status::Exited(0)),
            "the agent on fs1 exited too early, with status 0"
        );
        let here = Remote::default().launch(&StageHost::Here, "/usr/bin/rdpipe".as_ref());
        let here = here.unwrap();
        assert_eq!(
            told(&here, &[], Status::Signaled(9), true),
            "the agent on this machine was killed by signal 9 (SIGKILL)"
        );
    }
}
