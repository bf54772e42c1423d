//! Parses the arguments of rdpipe into stages and edges. Pure, no I/O.

use std::{ffi::OsString, fmt, os::unix::ffi::OsStrExt};

use super::stage::StageWork;
use crate::printable::is_printable;

/// A pipeline: what runs on which host, in order. The stages determine the edges: edge `k` is the input of stage `k`
/// (counted from 0) and the output of stage `k - 1`. The first edge carries rdpipe's own input, the last one rdpipe's
/// own output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The stages, at least one.
    pub(crate) stages: Vec<PlannedStage>,
    /// Whether the first stage reads the standard input of rdpipe.
    pub(crate) has_input: bool,
}

/// The standard input of rdpipe, for the first stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlanInput {
    /// The first stage reads it.
    Standard,
    /// There is none: the first stage has an empty input.
    Nothing,
    /// It is closed: every read of it fails.
    Closed,
}

/// A stage as one segment of the command line describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlannedStage {
    pub(crate) place: StageHost,
    pub(crate) work: StageWork,
    /// The text after the colon, for messages and tables.
    pub(crate) text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StageHost {
    /// On this machine, without ssh.
    Here,
    /// On another host, over ssh.
    Host {
        /// The destination argument of ssh: `host` or `user@host`.
        destination: String,
        /// The host without the user, as it was typed.
        host: String,
    },
    /// At a server, without ssh. Only rdcp knows servers.
    Server {
        /// The host, as it was typed.
        host: String,
        port: u16,
    },
}

impl Plan {
    /// Parses the segments of a command line. A pipeline that begins with `<` does not read `input`.
    /// Fails with the first segment that is invalid, or with a file to write without an input, which would only be
    /// emptied.
    pub(crate) fn parse(segments: &[OsString], input: PlanInput) -> Result<Self, PlanError> {
        let stage = |segment: &OsString| {
            PlannedStage::parse(segment.as_bytes()).map_err(|fault| PlanError {
                segment: segment.to_string_lossy().into_owned(),
                fault,
            })
        };
        let mut stages: Vec<_> = segments.iter().map(stage).collect::<Result<_, _>>()?;
        let reads_file = |stage: &PlannedStage| matches!(stage.work, StageWork::Read(_));
        let has_input = input == PlanInput::Standard && !stages.first().is_some_and(reads_file);
        if let (PlanInput::Closed | PlanInput::Nothing, Some(first)) = (input, stages.first_mut()) {
            match &mut first.work {
                StageWork::Write { .. } => {
                    return Err(PlanError {
                        segment: segments[0].to_string_lossy().into_owned(),
                        fault: SegmentFault::NoInput,
                    });
                }
                StageWork::Command(command) if input == PlanInput::Closed => {
                    first.work = StageWork::CommandWithoutStdin(std::mem::take(command));
                }
                _ => {}
            }
        }
        Ok(Self { stages, has_input })
    }

    /// Returns the plan of rdsh: one command, which runs as it would under sshd at `destination`, an argument of ssh.
    pub(crate) fn ssh(destination: &str, command: Vec<u8>, has_input: bool) -> Self {
        let url = destination.strip_prefix("ssh://");
        let host = url.unwrap_or(destination);
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        let host = match (url, host.rsplit_once(':')) {
            (Some(_), Some((name, port))) if !port.ends_with(']') => name,
            _ => host,
        };
        let text = String::from_utf8_lossy(&command).into_owned();
        let place = StageHost::Host {
            destination: destination.to_owned(),
            host: unbracketed(host),
        };
        let work = StageWork::SshCommand(command);
        Self {
            stages: vec![PlannedStage { place, work, text }],
            has_input,
        }
    }

    /// Returns the name of a stage in messages: `2 (fs2)`. For rdcat and rdsh it is the host alone.
    pub(crate) fn name(&self, stage: usize) -> String {
        let place = &self.stages[stage].place;
        if self.is_files() || self.is_ssh() {
            place.to_string()
        } else {
            format!("{} ({place})", stage + 1)
        }
    }

    /// Returns the name of a stage as it stands in a sentence: `stage 2 (fs2)`. For rdcat and rdsh it is the host alone.
    pub(crate) fn site(&self, stage: usize) -> String {
        let name = self.name(stage);
        if self.is_files() || self.is_ssh() {
            name
        } else {
            format!("stage {name}")
        }
    }

    /// Returns the name of the program that runs the plan: "rdpipe", "rdcat" or "rdsh".
    pub(crate) fn program(&self) -> &'static str {
        if self.is_files() {
            "rdcat"
        } else if self.is_ssh() {
            "rdsh"
        } else {
            "rdpipe"
        }
    }

    /// Returns true if the plan is that of rdsh.
    pub(crate) fn is_ssh(&self) -> bool {
        let is_ssh = |stage: &PlannedStage| matches!(stage.work, StageWork::SshCommand(_));
        self.stages.first().is_some_and(is_ssh)
    }

    fn is_files(&self) -> bool {
        let is_files = |stage: &PlannedStage| matches!(stage.work, StageWork::Files(_));
        self.stages.first().is_some_and(is_files)
    }

    /// Returns the names of the two ends of an edge, for messages: the end that sends and the end that receives.
    pub(crate) fn ends(&self, edge: usize) -> (String, String) {
        let own = || self.program().to_owned();
        let from = edge
            .checked_sub(1)
            .map_or_else(own, |stage| self.site(stage));
        let to = if edge < self.stages.len() {
            self.site(edge)
        } else {
            own()
        };
        (from, to)
    }
}

impl PlannedStage {
    fn parse(segment: &[u8]) -> Result<Self, SegmentFault> {
        let (place, command) = StageHost::split(segment)?;
        Ok(Self {
            place,
            work: work(command)?,
            text: String::from_utf8_lossy(command).into_owned(),
        })
    }

    /// Returns true if the stage reads or writes files and runs no command.
    pub(crate) fn is_file(&self) -> bool {
        use StageWork::{Command, CommandWithoutStdin, SshCommand};
        !matches!(
            self.work,
            Command(_) | CommandWithoutStdin(_) | SshCommand(_)
        )
    }
}

impl StageHost {
    /// Returns the host as it was typed, or none for this machine.
    pub(crate) fn host(&self) -> Option<&str> {
        match self {
            Self::Here => None,
            Self::Host { host, .. } | Self::Server { host, .. } => Some(host),
        }
    }

    /// Splits a segment at its colon into the host and the bytes after the colon.
    pub(crate) fn split(segment: &[u8]) -> Result<(Self, &[u8]), SegmentFault> {
        let is_url = |scheme: &&str| segment.starts_with(scheme.as_bytes());
        if ["ssh://", "scp://", "sftp://", "rsync://"]
            .iter()
            .any(is_url)
        {
            return Err(SegmentFault::Url);
        }
        let colon = segment.iter().position(|&byte| byte == b':');
        let colon = colon.ok_or(SegmentFault::NoColon)?;
        if colon == 0 {
            return Ok((Self::Here, &segment[1..]));
        }
        // An IPv6 address in brackets contains colons. A user name cannot contain one.
        let user_end = segment[..colon].iter().rposition(|&byte| byte == b'@');
        let host_start = user_end.map_or(0, |at| at + 1);
        let (host, command) = if segment[host_start..].starts_with(b"[") {
            let rest = &segment[host_start + 1..];
            let length = rest.iter().position(|&byte| byte == b']');
            let length = length.ok_or(SegmentFault::Brackets)?;
            let command = rest[length + 1..].strip_prefix(b":");
            let command = command.ok_or(SegmentFault::Brackets)?;
            let host = name(&rest[..length])?;
            let (address, zone) = host.split_once('%').unwrap_or((host, "-"));
            if address.parse::<std::net::Ipv6Addr>().is_err() || zone.is_empty() {
                return Err(SegmentFault::Brackets);
            }
            (host, command)
        } else {
            (name(&segment[host_start..colon])?, &segment[colon + 1..])
        };
        let destination = match user_end {
            None => host.to_owned(),
            Some(end) => format!("{}@{host}", name(&segment[..end])?),
        };
        let host = host.to_owned();
        Ok((Self::Host { destination, host }, command))
    }
}

/// Checks the name of a user or a host: ssh must not read it as an option, and it must be one word that a terminal
/// shows as it is.
fn name(bytes: &[u8]) -> Result<&str, SegmentFault> {
    let name = std::str::from_utf8(bytes).map_err(|_| SegmentFault::Host)?;
    let strange = |c: char| c.is_whitespace() || !is_printable(c);
    if name.starts_with('-') {
        return Err(SegmentFault::Dash);
    }
    if name.is_empty() || name.contains(strange) {
        return Err(SegmentFault::Host);
    }
    Ok(name)
}

/// Returns what the text after the colon asks for: a file if it begins with `<`, `>` or `>>`, else a command.
fn work(command: &[u8]) -> Result<StageWork, SegmentFault> {
    let trimmed = command.trim_ascii_start();
    if trimmed.is_empty() {
        return Err(SegmentFault::NoCommand);
    }
    let path = |rest: &[u8]| match rest.trim_ascii_start() {
        [] => Err(SegmentFault::NoFile),
        path => Ok(path.to_vec()),
    };
    match trimmed {
        [b'<', rest @ ..] => path(rest).map(StageWork::Read),
        [b'>', b'>', rest @ ..] => path(rest).map(|path| StageWork::Write { path, append: true }),
        [b'>', rest @ ..] => path(rest).map(|path| StageWork::Write {
            path,
            append: false,
        }),
        _ => Ok(StageWork::Command(command.to_vec())),
    }
}

impl fmt::Display for StageHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here => f.write_str("here"),
            Self::Host { host, .. } | Self::Server { host, .. } => f.write_str(host),
        }
    }
}

/// A segment of the command line that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{segment:?}: {fault}")]
pub(crate) struct PlanError {
    pub(super) segment: String,
    pub(super) fault: SegmentFault,
}

/// The reason why a segment of the command line cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SegmentFault {
    #[error(
        "a segment is HOST:COMMAND, or :COMMAND for this machine; put a command of several words into quotes, as in \
         HOST:'wc -c'"
    )]
    NoColon,
    #[error("write HOST:PATH in place of a URL; --ssh-opt -oPort=N is the port of ssh")]
    Url,
    #[error("give HOST:PATH, :PATH for a file of this machine, or the ticket of rdcat -l")]
    NoTicket,
    #[error("brackets are for an IPv6 address, with a colon after them: [::1]:")]
    Brackets,
    #[error("a user or host cannot begin with -, it would be an option of ssh")]
    Dash,
    #[error("the user or the host before the colon is not a valid name")]
    Host,
    #[error("there is no command after the colon")]
    NoCommand,
    #[error("there is no file after the operator")]
    NoFile,
    #[error(
        "there is nothing to write to the file: stdin is a terminal or closed. Begin with a command or HOST:< FILE, or \
         pipe data into rdpipe; < /dev/null makes the file empty"
    )]
    NoInput,
    #[error("there is no file after the colon")]
    NoPath,
    #[error("HOST:PORT:PATH is a path of a server, which has no users; its key names the client")]
    ServerUser,
    #[error(
        "the number between two colons is the port of a server, from 1 to 65535; write HOST:./PATH for a path that begins with a number and a colon"
    )]
    Port,
    #[error("an operand is empty; give a path, or . for the current directory")]
    EmptyPath,
}

/// `--addr HOST=ADDR[,ADDR]`: the addresses at which other hosts reach HOST.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Addresses {
    /// The host as it stands in the segments, without the user.
    pub(crate) host: String,
    /// The addresses to use in place of those that the host reports itself.
    pub(crate) addresses: Vec<String>,
}

impl Addresses {
    /// Parses the value of the option.
    /// Fails if the value has no host or no address.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let form = || "give a host and its addresses, like fs1=10.0.0.1,10.1.0.1".to_owned();
        let (host, addresses) = text.split_once('=').ok_or_else(form)?;
        let addresses: Vec<_> = addresses.split(',').map(unbracketed).collect();
        let bad = |address: &String| name(address.as_bytes()).is_err();
        if host.is_empty() || addresses.iter().any(bad) {
            return Err(form());
        }
        Ok(Self {
            host: unbracketed(host),
            addresses,
        })
    }
}

/// Returns an address without the brackets that an IPv6 address may have.
pub(crate) fn unbracketed(address: &str) -> String {
    let inner = address.strip_prefix('[').and_then(|a| a.strip_suffix(']'));
    inner.unwrap_or(address).to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ssh::launch::Remote;
    use crate::ssh::quote;

    fn plan(segments: &[&str]) -> Result<Plan, PlanError> {
        let segments: Vec<OsString> = segments.iter().map(OsString::from).collect();
        Plan::parse(&segments, PlanInput::Standard)
    }

    fn one(segment: &str) -> PlannedStage {
        plan(&[segment]).unwrap().stages.remove(0)
    }

    fn fault(segment: &str) -> SegmentFault {
        plan(&[segment]).unwrap_err().fault
    }

    fn host(destination: &str, host: &str) -> StageHost {
        StageHost::Host {
            destination: destination.to_owned(),
            host: host.to_owned(),
        }
    }

    fn command(text: &str) -> StageWork {
        StageWork::Command(text.as_bytes().to_vec())
    }

    #[test]
    fn segments_come_in_every_form() {
        for (segment, place, text) in [
            ("fs1:wc -c", host("fs1", "fs1"), "wc -c"),
            ("me@fs1:wc", host("me@fs1", "fs1"), "wc"),
            ("me@corp@fs1:wc", host("me@corp@fs1", "fs1"), "wc"),
            ("[::1]:wc", host("::1", "::1"), "wc"),
            (
                "me@[fe80::1%eth0]:wc",
                host("me@fe80::1%eth0", "fe80::1%eth0"),
                "wc",
            ),
            (
                "10.0.0.1:tr a:b c@d",
                host("10.0.0.1", "10.0.0.1"),
                "tr a:b c@d",
            ),
            (":echo hello", StageHost::Here, "echo hello"),
            (":: is a command", StageHost::Here, ": is a command"),
            ("a: echo 'ä\n$x!'", host("a", "a"), " echo 'ä\n$x!'"),
        ] {
            let stage = one(segment);
            assert_eq!(
                (stage.place, stage.work),
                (place, command(text)),
                "{segment}"
            );
            assert_eq!(stage.text, text);
        }
    }

    #[test]
    fn a_segment_that_begins_with_an_operator_names_a_file() {
        let write = |path: &str, append| StageWork::Write {
            path: path.into(),
            append,
        };
        for (text, work) in [
            ("<f", StageWork::Read(b"f".to_vec())),
            ("<  a b ", StageWork::Read(b"a b ".to_vec())),
            ("> mycopy", write("mycopy", false)),
            (">>\t~/log", write("~/log", true)),
            ("  > f", write("f", false)),
            (">$HOME/x", write("$HOME/x", false)),
        ] {
            let stage = one(&format!("h:{text}"));
            assert!(stage.is_file());
            assert_eq!(stage.work, work, "{text}");
        }
    }

    #[test]
    fn a_pipeline_that_begins_with_a_file_reads_no_input() {
        assert!(!plan(&["a:< f", "b:cat"]).unwrap().has_input);
        assert!(plan(&["a:cat", "b:< f"]).unwrap().has_input);
        assert!(plan(&["a:> f"]).unwrap().has_input);
        let with = |segment: &str, input| Plan::parse(&[segment.into()], input).unwrap();
        assert!(!with("a:cat", PlanInput::Nothing).has_input);
        let closed = with("a:cat", PlanInput::Closed);
        assert!(!closed.has_input);
        let work = StageWork::CommandWithoutStdin(b"cat".to_vec());
        assert_eq!(closed.stages[0].work, work);
        for (segment, input) in [("a:> f", PlanInput::Closed), ("a:>> f", PlanInput::Nothing)] {
            let refused = Plan::parse(&[segment.into(), "b:cat".into()], input);
            assert_eq!(refused.unwrap_err().fault, SegmentFault::NoInput);
        }
    }

    #[test]
    fn an_invalid_segment_is_refused_with_a_reason() {
        for (segment, expected) in [
            ("fs1", SegmentFault::NoColon),
            ("", SegmentFault::NoColon),
            ("[::1]", SegmentFault::Brackets),
            ("[::1:wc", SegmentFault::Brackets),
            ("[fs1]:wc", SegmentFault::Brackets),
            ("[::1]wc", SegmentFault::Brackets),
            ("[fe80::1%]:wc", SegmentFault::Brackets),
            ("-oProxyCommand=x:wc", SegmentFault::Dash),
            ("me@-x:wc", SegmentFault::Dash),
            ("-x@fs1:wc", SegmentFault::Dash),
            ("@fs1:wc", SegmentFault::Host),
            ("me@:wc", SegmentFault::Host),
            ("two words:wc", SegmentFault::Host),
            ("fs1:", SegmentFault::NoCommand),
            ("fs1:  \n", SegmentFault::NoCommand),
            (":", SegmentFault::NoCommand),
            ("fs1:<", SegmentFault::NoFile),
            ("fs1:>> ", SegmentFault::NoFile),
        ] {
            assert_eq!(fault(segment), expected, "{segment}");
        }
        let text = plan(&["a:b", "c"]).unwrap_err().to_string();
        assert!(
            text.starts_with("\"c\": a segment is HOST:COMMAND"),
            "{text}"
        );
    }

    #[test]
    fn stages_and_the_ends_of_edges_have_names() {
        let plan = plan(&["fs1:a", ":b"]).unwrap();
        assert_eq!(plan.name(1), "2 (here)");
        let ends = |edge| plan.ends(edge);
        let text = |from: &str, to: &str| (from.to_owned(), to.to_owned());
        assert_eq!(ends(0), text("rdpipe", "stage 1 (fs1)"));
        assert_eq!(ends(1), text("stage 1 (fs1)", "stage 2 (here)"));
        assert_eq!(ends(2), text("stage 2 (here)", "rdpipe"));
    }

    #[test]
    fn addresses_are_given_by_host() {
        let given = Addresses::parse("fs1=10.0.0.1,[::1],fs1.fast").unwrap();
        assert_eq!(given.host, "fs1");
        assert_eq!(given.addresses, ["10.0.0.1", "::1", "fs1.fast"]);
        for text in ["", "fs1", "fs1=", "=10.0.0.1", "fs1=a,,b", "fs1=-x"] {
            assert!(Addresses::parse(text).is_err(), "{text}");
        }
    }

    fn words(remote: &Remote, segment: &str) -> Vec<String> {
        let launch = remote.launch(&one(segment).place, "/own/rdpipe".as_ref());
        let launch = launch.unwrap();
        let word = |word: OsString| word.into_string().unwrap();
        launch.argv.into_iter().map(word).collect()
    }

    #[test]
    fn the_users_ssh_options_come_first() {
        let remote = Remote {
            ssh_options: vec!["-F".to_owned(), "cfg".to_owned()],
            program: Some("/opt/r d".to_owned()),
            ..Remote::default()
        };
        let words = words(&remote, "me@fs1:wc");
        assert_eq!(words[..4], ["ssh", "-F", "cfg", "-T"]);
        assert_eq!(
            words[words.len() - 3..],
            ["me@fs1", "'/opt/r d'", "--agent"]
        );
        assert!(words.contains(&"-oBatchMode=yes".to_owned()));
    }

    #[test]
    fn the_words_of_rsh_are_passed_unchanged() {
        let rsh = |text: &str| Remote {
            rsh: quote::split_words(text),
            program: Some("/opt/r d".to_owned()),
            ..Remote::default()
        };
        assert_eq!(
            words(&rsh("kubectl exec -i pod-{host} --"), "fs1:wc"),
            [
                "kubectl", "exec", "-i", "pod-fs1", "--", "/opt/r d", "--agent"
            ]
        );
        assert_eq!(
            words(&rsh("myrsh -q"), "me@fs1:wc"),
            ["myrsh", "-q", "me@fs1", "/opt/r d", "--agent"]
        );
        assert_eq!(words(&rsh("myrsh"), ":wc"), ["/own/rdpipe", "--agent"]);
    }

    proptest! {
        #[test]
        fn every_command_arrives_as_it_was_typed(command in "[^\0<> \t\n\r\x0c][^\0]*") {
            let stage = one(&format!("fs1:{command}"));
            prop_assert_eq!(stage.work, StageWork::Command(command.into_bytes()));
        }

        #[test]
        fn no_segment_makes_the_plan_panic(bytes: Vec<u8>) {
            let _ = PlannedStage::parse(&bytes);
        }

        #[test]
        fn no_host_or_user_that_ssh_would_read_as_an_option_is_accepted(segment in "[-@:a\\[\\] ]{0,9}") {
            if let Ok(stage) = PlannedStage::parse(segment.as_bytes()) {
                if let StageHost::Host { destination, host } = stage.place {
                    prop_assert!(!destination.starts_with('-') && !host.starts_with('-'));
                }
            }
        }
    }
}
