//! From arguments to stages and edges: pure, no I/O.

mod files;
pub(crate) mod launch;
#[cfg(test)]
mod tests;

use std::{ffi::OsString, fmt, os::unix::ffi::OsStrExt};

use super::stage::StageWork;

/// A pipeline: what runs where, in order. The edges follow from it: edge `k` is the input of stage `k`
/// (counted from 0) and the output of the one before it; the first and the last are rdpipe's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// At least one.
    pub(crate) stages: Vec<PlannedStage>,
    /// Whether the first stage reads what rdpipe reads.
    pub(crate) has_input: bool,
}

/// One segment of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlannedStage {
    /// Where it runs.
    pub(crate) place: StageHost,
    /// What it does.
    pub(crate) work: StageWork,
    /// What stood behind the colon, for people.
    pub(crate) text: String,
}

/// Where a stage runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StageHost {
    /// On this machine, without ssh.
    Here,
    /// Where ssh leads to.
    Host {
        /// What ssh is told: the host, maybe with the user in front.
        destination: String,
        /// The host alone, as it was typed.
        host: String,
    },
}

impl Plan {
    /// Takes the segments apart. `input` says whether rdpipe has an input to pass on: a pipeline that begins
    /// with `<` leaves it alone.
    ///
    /// # Errors
    ///
    /// The first segment that makes no sense, and why.
    pub(crate) fn parse(segments: &[OsString], input: bool) -> Result<Self, PlanError> {
        let stage = |segment: &OsString| {
            PlannedStage::parse(segment.as_bytes()).map_err(|fault| PlanError {
                segment: segment.to_string_lossy().into_owned(),
                fault,
            })
        };
        let stages: Vec<_> = segments.iter().map(stage).collect::<Result<_, _>>()?;
        let reads_file = |stage: &PlannedStage| matches!(stage.work, StageWork::Read(_));
        let has_input = input && !stages.first().is_some_and(reads_file);
        Ok(Self { stages, has_input })
    }

    /// Returns the name of a stage in messages: `2 (fs2)`. Messages of rdcat name hosts, and no stages.
    pub(crate) fn name(&self, stage: usize) -> String {
        let place = &self.stages[stage].place;
        if self.is_files() {
            place.to_string()
        } else {
            format!("{} ({place})", stage + 1)
        }
    }

    /// The same in a sentence: `stage 2 (fs2)`.
    pub(crate) fn site(&self, stage: usize) -> String {
        let name = self.name(stage);
        if self.is_files() {
            name
        } else {
            format!("stage {name}")
        }
    }

    /// The program that the plan is for.
    pub(crate) fn program(&self) -> &'static str {
        if self.is_files() { "rdcat" } else { "rdpipe" }
    }

    fn is_files(&self) -> bool {
        let is_files = |stage: &PlannedStage| matches!(stage.work, StageWork::Files(_));
        self.stages.first().is_some_and(is_files)
    }

    /// Who writes to the edge, and who reads from it, for messages.
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

    /// Whether a file is all that it has to do with.
    pub(crate) fn is_file(&self) -> bool {
        !matches!(self.work, StageWork::Command(_))
    }
}

impl StageHost {
    /// The place, and what stands behind its colon.
    fn split(segment: &[u8]) -> Result<(Self, &[u8]), SegmentFault> {
        let colon = segment.iter().position(|&byte| byte == b':');
        let colon = colon.ok_or(SegmentFault::NoColon)?;
        if colon == 0 {
            return Ok((Self::Here, &segment[1..]));
        }
        // An address in brackets has colons of its own; a user's name before it has none.
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

/// A user's or a host's name: ssh must not take it for an option, nor a shell for more than one word.
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

/// What a command asks for: one that begins with an operator is about a file.
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
            Self::Host { host, .. } => f.write_str(host),
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

/// Why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum SegmentFault {
    #[error("a segment is HOST:COMMAND, or :COMMAND for this machine")]
    NoColon,
    #[error("give HOST:PATH, :PATH for a file of this machine, or the ticket of rdcat -l")]
    NoTicket,
    #[error("brackets are for an IPv6 address, with a colon behind them: [::1]:")]
    Brackets,
    #[error("a user or host cannot begin with -, it would be an option of ssh")]
    Dash,
    #[error("that is no user or host that ssh could be told")]
    Host,
    #[error("there is no command behind the colon")]
    NoCommand,
    #[error("there is no file behind the operator")]
    NoFile,
    #[error("there is no file behind the colon")]
    NoPath,
}

/// `--addr HOST=ADDR[,ADDR]`: where the other hosts find HOST.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Addresses {
    /// As it stands in the segments, without the user.
    pub(crate) host: String,
    /// Instead of what HOST says itself.
    pub(crate) addresses: Vec<String>,
}

impl Addresses {
    /// Takes the option's value apart.
    ///
    /// # Errors
    ///
    /// In words, when there is no host or no address.
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

/// An address without the brackets that IPv6 ones may have.
pub(crate) fn unbracketed(address: &str) -> String {
    let inner = address.strip_prefix('[').and_then(|a| a.strip_suffix(']'));
    inner.unwrap_or(address).to_owned()
}
