//! What is measured, and the task that measures it: throughput, times, files, and for sweeps the operations of RDMA
//! with all of their settings.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::SizeText;
use crate::{
    Transport,
    perf::messages::{
        BandwidthTask, LatencyTask, Layer, PortPairProof, TaskKind, Traffic, Verb, VerbsTask,
        WaitMode,
    },
};

/// What is measured between two hosts, or at one. Two reports have the same measurement if these values are equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "measure", rename_all = "lowercase")]
pub(crate) enum Measurand {
    /// Bytes per second.
    Bandwidth {
        carrier: Carrier,
        transport: Transport,
        traffic: Traffic,
        streams: u16,
        /// The number of rails of each stream, where it was chosen: of a measurement that compares them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rails: Option<u8>,
        /// The size of an operation in bytes: of verbs only.
        size: Option<u32>,
    },
    /// The time of a message there and back.
    Latency {
        carrier: Carrier,
        transport: Transport,
        wait: WaitMode,
        /// The size of the message in bytes.
        size: u32,
    },
    /// The time from dialing to the first byte from the other end.
    Connect { transport: Transport },
    /// Operations of RDMA: a point of a sweep.
    Operations(Operations),
    /// Bytes per second of a file that is read.
    Read { path: String },
    /// Bytes per second of a file that is written, until it is on the disk.
    Write { path: String },
}

/// What carries the bytes of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Carrier {
    Stream,
    /// A TCP socket.
    Socket,
    /// RDMA WRITE, without a stream.
    Write,
    /// RDMA SEND, without a stream.
    Send,
}

/// The most operations of verbs that are posted and not complete, as in `ib_write_bw`.
const BANDWIDTH_DEPTH: u32 = 128;

/// Of so many operations one makes a completion, as in `ib_write_bw`.
const BANDWIDTH_SIGNAL: u32 = 100;

/// The largest operation of a ping-pong that carries its bytes in the work request, as in `ib_write_lat`.
const PING_INLINE: u32 = 220;

impl Measurand {
    /// Returns the transport; none of a measurement of one host.
    pub(crate) fn transport(&self) -> Option<Transport> {
        match self {
            Self::Bandwidth { transport, .. }
            | Self::Latency { transport, .. }
            | Self::Connect { transport } => Some(*transport),
            Self::Operations(_) => Some(Transport::Rdma),
            Self::Read { .. } | Self::Write { .. } => None,
        }
    }

    /// Returns true if a larger value is a better one.
    pub(crate) fn is_rate(&self) -> bool {
        match self {
            Self::Bandwidth { .. } | Self::Read { .. } | Self::Write { .. } => true,
            Self::Operations(operations) => operations.figure == FigureName::Rate,
            Self::Latency { .. } | Self::Connect { .. } => false,
        }
    }

    /// Returns the task of two hosts that measures this for `millis`. Verbs use this pair of ports. Returns none if two
    /// hosts cannot measure it.
    pub(crate) fn task(&self, millis: u32, ports: Option<&PortPairProof>) -> Option<TaskKind> {
        match *self {
            Self::Bandwidth {
                carrier,
                traffic,
                streams,
                rails,
                size,
                ..
            } => match carrier.layer() {
                Ok(layer) => Some(TaskKind::Bandwidth(BandwidthTask {
                    layer,
                    traffic,
                    streams,
                    rails,
                    millis,
                })),
                Err(verb) => Some(TaskKind::Verbs(VerbsTask {
                    depth: BANDWIDTH_DEPTH,
                    signal_every: BANDWIDTH_SIGNAL,
                    inline_bytes: 0,
                    ..verbs(verb, WaitMode::Busy, size?, millis, ports?)
                })),
            },
            Self::Latency {
                carrier,
                wait,
                size,
                ..
            } => match carrier.layer() {
                Ok(layer) => Some(TaskKind::Latency(LatencyTask {
                    layer,
                    wait,
                    size,
                    millis,
                })),
                Err(verb) => Some(TaskKind::Verbs(VerbsTask {
                    is_pingpong: true,
                    ..verbs(verb, wait, size, millis, ports?)
                })),
            },
            Self::Connect { .. } => Some(TaskKind::Connect { millis }),
            Self::Operations(operations) => Some(TaskKind::Verbs(operations.task(millis, ports?))),
            Self::Read { .. } | Self::Write { .. } => None,
        }
    }
}

fn verbs(verb: Verb, wait: WaitMode, size: u32, millis: u32, ports: &PortPairProof) -> VerbsTask {
    VerbsTask {
        verb,
        wait,
        is_pingpong: false,
        size,
        depth: 1,
        inline_bytes: PING_INLINE,
        signal_every: 1,
        millis,
        dialer: ports.dialer.clone(),
        listener: ports.listener.clone(),
        mtu: ports.mtu,
    }
}

impl Carrier {
    /// Returns the layer of a measurement without verbs, or the verb.
    fn layer(self) -> Result<Layer, Verb> {
        match self {
            Self::Stream => Ok(Layer::Stream),
            Self::Socket => Ok(Layer::Socket),
            Self::Write => Err(Verb::Write),
            Self::Send => Err(Verb::Send),
        }
    }
}

/// Shows a measurement without its transport: "stream, both ways".
impl fmt::Display for Measurand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bandwidth {
                carrier,
                traffic,
                streams,
                rails,
                size,
                ..
            } => {
                match (carrier, streams) {
                    (Carrier::Stream, 1) => f.write_str("stream")?,
                    (Carrier::Stream, count) => write!(f, "{count} streams")?,
                    (Carrier::Socket, 1) => f.write_str("socket")?,
                    (Carrier::Socket, count) => write!(f, "{count} sockets")?,
                    (Carrier::Write, _) => f.write_str("verbs WRITE")?,
                    (Carrier::Send, _) => f.write_str("verbs SEND")?,
                }
                match rails {
                    None => {}
                    Some(1) => f.write_str(" of 1 rail")?,
                    Some(rails) => write!(f, " of {rails} rails")?,
                }
                if let Some(size) = size {
                    write!(f, " of {}", SizeText(*size))?;
                }
                f.write_str(match traffic {
                    Traffic::Forward => ", one way",
                    Traffic::Backward => ", the other way",
                    Traffic::Both => ", both ways",
                })
            }
            Self::Latency {
                carrier,
                wait,
                size,
                ..
            } => {
                write!(f, "{}, ", SizeText(*size))?;
                f.write_str(match carrier {
                    Carrier::Stream => "stream",
                    Carrier::Socket => "socket",
                    Carrier::Write => "verbs WRITE",
                    Carrier::Send => "verbs SEND",
                })?;
                f.write_str(match wait {
                    WaitMode::Adaptive => "",
                    WaitMode::Event => ", events",
                    WaitMode::Busy => ", busy",
                })
            }
            Self::Connect { .. } => f.write_str("connect"),
            Self::Operations(operations) => operations.fmt(f),
            Self::Read { path } => write!(f, "read {path}"),
            Self::Write { path } => write!(f, "write {path}"),
        }
    }
}

/// Of operations below this size in bytes, that of a packet, operations per second say more than bytes per second.
pub(crate) const SMALL_OPERATION: u32 = 4 << 10;

/// Operations of RDMA with all of their settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Operations {
    /// What is measured.
    pub(crate) figure: FigureName,
    pub(crate) verb: Verb,
    pub(crate) wait: WaitMode,
    pub(crate) inline: InlineName,
    /// Of so many operations one makes a completion at the end that posts them.
    pub(crate) signal: u32,
    /// The most operations that are posted and not complete.
    pub(crate) depth: u32,
    /// The size of an operation in bytes.
    pub(crate) size: u32,
}

/// What is measured with operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FigureName {
    /// The time of an operation there and back.
    Time,
    /// Bytes per second.
    Rate,
}

/// Which operations carry their bytes in the work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum InlineName {
    /// None: the device fetches the bytes from memory.
    Never,
    /// Those of at most so many bytes.
    UpTo(u32),
    /// All of them, as far as the device can.
    Always,
}

/// The settings that differ between the curves of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "one for each setting, and all are independent"
)]
pub(crate) struct Differences {
    verb: bool,
    wait: bool,
    inline: bool,
    signal: bool,
    depth: bool,
}

impl Operations {
    /// Returns true if the work request carries the bytes.
    pub(crate) fn is_inline(&self) -> bool {
        match self.inline {
            InlineName::Never => false,
            InlineName::UpTo(most) => self.size <= most,
            InlineName::Always => true,
        }
    }

    /// Returns the task that measures this for `millis` over a pair of ports.
    pub(crate) fn task(&self, millis: u32, ports: &PortPairProof) -> VerbsTask {
        VerbsTask {
            verb: self.verb,
            wait: self.wait,
            is_pingpong: self.figure == FigureName::Time,
            size: self.size,
            depth: self.depth,
            inline_bytes: match self.inline {
                InlineName::Never => 0,
                InlineName::UpTo(most) => most,
                InlineName::Always => self.size,
            },
            signal_every: self.signal,
            millis,
            dialer: ports.dialer.clone(),
            listener: ports.listener.clone(),
            mtu: ports.mtu,
        }
    }

    /// Returns the settings without the size: those that all points of a curve have.
    pub(crate) fn of_curve(&self) -> Self {
        Self { size: 0, ..*self }
    }

    /// Returns the name of the curve among others that have these differences. Without a difference it is that of the
    /// verb.
    pub(crate) fn curve_name(&self, differences: Differences) -> String {
        let mut parts = Vec::new();
        if differences.verb || differences == Differences::default() {
            parts.push(self.verb.to_string());
        }
        if differences.wait {
            parts.push(wait_text(self.wait).to_owned());
        }
        if differences.inline {
            parts.push(self.inline.to_string());
        }
        if differences.signal {
            parts.push(signal_text(self.signal));
        }
        if differences.depth {
            parts.push(depth_text(self.depth));
        }
        parts.join(", ")
    }
}

impl Differences {
    /// Returns the settings that differ between these curves.
    pub(crate) fn between(curves: &[Operations]) -> Self {
        let differ = |same: fn(&Operations, &Operations) -> bool| {
            curves.windows(2).any(|pair| !same(&pair[0], &pair[1]))
        };
        Self {
            verb: differ(|one, other| one.verb == other.verb),
            wait: differ(|one, other| one.wait == other.wait),
            inline: differ(|one, other| one.inline == other.inline),
            signal: differ(|one, other| one.signal == other.signal),
            // The depth of a ping-pong follows from its completions.
            depth: differ(|one, other| one.depth == other.depth || one.figure == FigureName::Time),
        }
    }
}

fn wait_text(wait: WaitMode) -> &'static str {
    match wait {
        WaitMode::Adaptive => "adaptive",
        WaitMode::Event => "events",
        WaitMode::Busy => "busy",
    }
}

fn signal_text(signal: u32) -> String {
    match signal {
        1 => "all signalled".to_owned(),
        count => format!("1 in {count} signalled"),
    }
}

fn depth_text(depth: u32) -> String {
    format!("{depth} at a time")
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "WRITE",
            Self::Read => "READ",
            Self::Send => "SEND",
        })
    }
}

impl fmt::Display for InlineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("not inline"),
            Self::UpTo(most) => write!(f, "inline up to {}", SizeText(*most)),
            Self::Always => f.write_str("inline"),
        }
    }
}

/// Shows all settings: "verbs SEND of 64 B, there and back, busy, inline, all signalled".
impl fmt::Display for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "verbs {} of {}, ", self.verb, SizeText(self.size))?;
        match self.figure {
            FigureName::Time => f.write_str("there and back")?,
            FigureName::Rate => f.write_str(&depth_text(self.depth))?,
        }
        write!(
            f,
            ", {}, {}, {}",
            wait_text(self.wait),
            self.inline,
            signal_text(self.signal)
        )
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A SEND of 64 bytes there and back.
    pub(crate) fn send_of_64() -> Operations {
        Operations {
            figure: FigureName::Time,
            verb: Verb::Send,
            wait: WaitMode::Busy,
            inline: InlineName::Never,
            signal: 1,
            depth: 1,
            size: 64,
        }
    }

    #[test]
    fn a_curve_is_named_after_what_differs() {
        let one = send_of_64().of_curve();
        assert_eq!(one.curve_name(Differences::between(&[one])), "SEND");
        let names = |curves: &[Operations]| {
            let differences = Differences::between(curves);
            let names = curves.iter().map(|curve| curve.curve_name(differences));
            names.collect::<Vec<_>>()
        };
        let inline = Operations {
            inline: InlineName::Always,
            ..one
        };
        assert_eq!(names(&[one, inline]), ["not inline", "inline"]);
        let sparse = Operations {
            verb: Verb::Write,
            signal: 16,
            depth: 16,
            ..one
        };
        assert_eq!(
            names(&[one, sparse]),
            ["SEND, all signalled", "WRITE, 1 in 16 signalled"]
        );
        let rate = |depth| Operations {
            figure: FigureName::Rate,
            depth,
            ..one
        };
        assert_eq!(names(&[rate(1), rate(16)]), ["1 at a time", "16 at a time"]);
    }

    #[test]
    fn a_point_shows_all_of_its_settings() {
        assert_eq!(
            send_of_64().to_string(),
            "verbs SEND of 64 B, there and back, busy, not inline, all signalled"
        );
        let rate = Operations {
            figure: FigureName::Rate,
            verb: Verb::Write,
            wait: WaitMode::Event,
            inline: InlineName::UpTo(220),
            signal: 64,
            depth: 128,
            size: 1 << 20,
        };
        assert_eq!(
            rate.to_string(),
            "verbs WRITE of 1 MiB, 128 at a time, events, inline up to 220 B, 1 in 64 signalled"
        );
    }

    #[test]
    fn only_short_operations_are_inline() {
        let up_to = |most, size| Operations {
            inline: InlineName::UpTo(most),
            size,
            ..send_of_64()
        };
        assert!(up_to(64, 64).is_inline());
        assert!(!up_to(64, 65).is_inline());
        assert!(!send_of_64().is_inline());
    }
}
