//! Parses the arguments of rdpipe and rdcat into stages and edges, and the operands of rdcp. Pure, no I/O.

pub(crate) mod launch;
pub(crate) mod operands;
#[cfg(test)]
mod tests;

use std::{ffi::OsString, fmt, os::unix::ffi::OsStrExt};

pub(crate) use self::operands::has_room;
use super::stage::StageWork;

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
    /// Where the stage runs.
    pub(crate) place: StageHost,
    /// What the stage does.
    pub(crate) work: StageWork,
    /// The text after the colon, for messages and tables.
    pub(crate) text: String,
}

/// Where a stage runs.
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
        /// The port of the server.
        port: u16,
    },
}

impl Plan {
    /// Parses the segments of a command line. A pipeline that begins with `<` does not read `input`.
    ///
    /// # Errors
    ///
    /// The first segment that is invalid, and why.
    pub(crate) fn parse(segments: &[OsString], input: PlanInput) -> Result<Self, PlanError> {
        let stage = |segment: &OsString| {
            PlannedStage::parse(segment.as_bytes()).map_err(|fault| PlanError {
                segment: segment.to_string_lossy().into_owned(),
                fault,
            })
        };
        let mut stages: Vec<_> = segments.iter().map(stage).collect::<Result<_, _>>()?;
        let reads_file = |stage: &PlannedStage| matches!(stage.work, StageWork::Read(_));
        // A stage that writes a file has no use for a closed stdin. The edge of the input fails, and says so.
        let writes_file = |stage: &PlannedStage| matches!(stage.work, StageWork::Write { .. });
        let has_input = match input {
            PlanInput::Standard => !stages.first().is_some_and(reads_file),
            PlanInput::Closed => stages.first().is_some_and(writes_file),
            PlanInput::Nothing => false,
        };
        if let (PlanInput::Closed, Some(first)) = (input, stages.first_mut()) {
            if let StageWork::Command(command) = &mut first.work {
                first.work = StageWork::CommandWithoutStdin(std::mem::take(command));
            }
        }
        Ok(Self { stages, has_input })
    }

    /// Returns the name of a stage in messages: `2 (fs2)`. For rdcat it is the host alone.
    pub(crate) fn name(&self, stage: usize) -> String {
        let place = &self.stages[stage].place;
        if self.is_files() {
            place.to_string()
        } else {
            format!("{} ({place})", stage + 1)
        }
    }

    /// Returns the name of a stage as it stands in a sentence: `stage 2 (fs2)`. For rdcat it is the host alone.
    pub(crate) fn site(&self, stage: usize) -> String {
        let name = self.name(stage);
        if self.is_files() {
            name
        } else {
            format!("stage {name}")
        }
    }

    /// Returns the name of the program that runs the plan: "rdpipe" or "rdcat".
    pub(crate) fn program(&self) -> &'static str {
        if self.is_files() { "rdcat" } else { "rdpipe" }
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
        use StageWork::{Command, CommandWithoutStdin};
        !matches!(self.work, Command(_) | CommandWithoutStdin(_))
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

/// Checks the name of a user or a host: ssh must not read it as an option, and it must be one word without control
/// characters.
fn name(bytes: &[u8]) -> Result<&str, SegmentFault> {
    let name = std::str::from_utf8(bytes).map_err(|_| SegmentFault::Host)?;
    let strange = |c: char| c.is_whitespace() || c.is_control();
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
    segment: String,
    fault: SegmentFault,
}

/// The reason why a segment of the command line cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SegmentFault {
    #[error("a segment is HOST:COMMAND, or :COMMAND for this machine")]
    NoColon,
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
    ///
    /// # Errors
    ///
    /// A sentence for the user, when the value has no host or no address.
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
