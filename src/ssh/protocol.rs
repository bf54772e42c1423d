//! What the controller and an agent tell each other, over ssh's stdin and stdout. Pure, no I/O.
//!
//! Each side begins with one line of text, [`greeting`], that every version can read: whatever comes
//! before it was printed by a shell profile. After it come frames: a length (u32, big-endian) and a
//! message in postcard's encoding. ssh protects them, so they carry the keys of the edges.

use std::net::IpAddr;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Version of everything in this file. It changes with the messages.
pub(crate) const VERSION: u32 = 2;

/// Most bytes of one encoded message: a command as long as Linux lets an argument be (128 KiB), and
/// its surroundings.
pub(crate) const MAX_MESSAGE_BYTES: usize = 256 << 10;

/// Controller to agent. The order of the variants is the wire format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToAgent {
    /// First, once: what the agent is to do. It opens its listeners, and starts nothing yet.
    Order(Box<Order>),
    /// The other end of this edge listens at these addresses, the best first: connect to it.
    Dial {
        end: End,
        addresses: Vec<String>,
        port: u16,
    },
    /// The other end could not reach this one: now be the one that listens.
    Listen { end: End },
    /// Every edge of the whole pipeline stands: run the command, open the file.
    Go,
    /// Everything before this stage has succeeded: commit the file (`>`), open it (`<`).
    Proceed,
    /// End now, in failure: kill what runs, keep no output. With the reason, for the log.
    Kill { reason: String },
    /// Still here.
    Ping,
}

/// Agent to controller. The order of the variants is the wire format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FromAgent {
    /// First, once.
    Hello(Hello),
    /// This end of an edge listens.
    Listening { end: End, port: u16 },
    /// None of the addresses to dial could be reached: each with what happened there.
    Unreachable {
        end: End,
        tried: Vec<(String, String)>,
    },
    /// This end of an edge stands.
    Connected { end: End, link: Link },
    /// The stage has its whole input, verified, and waits for [`ToAgent::Proceed`]: a `>` or `>>` before
    /// it commits, a `<` with an input before it opens its file.
    AtEnd,
    /// The command and all that it started have ended, or the file was committed. What it wrote may
    /// still be on its way.
    Ended(Status),
    /// Something the user should know about, though it is no failure.
    Warning(String),
    /// How far the stage is, a few times a second at most.
    Progress { bytes_in: u64, bytes_out: u64 },
    /// Last: nothing of the stage runs any more.
    Report(Report),
    /// Still here.
    Pong,
    /// Nothing of this one of several files was sent, for this reason, and the next one's turn has come.
    Unreadable { path: Vec<u8>, why: String },
}

/// Which of a stage's edges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum End {
    /// Its input.
    Input,
    /// Its output.
    Output,
}

/// What an agent is, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// The host's own name.
    pub(crate) host: String,
    /// The same for two agents if and only if they can reach each other at 127.0.0.1.
    pub(crate) machine: String,
    /// Where the host may be reached, the likeliest first; no loopback and no link-local ones.
    pub(crate) addresses: Vec<IpAddr>,
}

/// One stage for one agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    /// Its place in the pipeline, from 1.
    pub(crate) number: u32,
    /// How messages call it: "2 (fs2)".
    pub(crate) name: String,
    pub(crate) work: Work,
    /// Where its bytes come from; none is an empty input.
    pub(crate) input: Option<Edge>,
    /// Where its bytes go; none is nowhere.
    pub(crate) output: Option<Edge>,
    pub(crate) stream: StreamOrder,
    /// fsync files before they are committed.
    pub(crate) fsync: bool,
}

/// What a stage does. Paths and commands are bytes, as the system has them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Work {
    /// Runs this in the user's login shell.
    Command(Vec<u8>),
    /// `< path`: the file is the output; the input, if any, is drained first.
    Read(Vec<u8>),
    /// `> path` and `>> path`: the input goes to the file; the output is empty.
    Write { path: Vec<u8>, append: bool },
    /// For rdcat: these files are the output, one after the other. Those that cannot be opened are named
    /// ([`FromAgent::Unreadable`]) and left out.
    Files(Vec<Vec<u8>>),
}

/// One end of an edge.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Edge {
    /// Who is at the other end, for messages: "stage 1 (fs1)", "rdpipe", "rdcat".
    pub(crate) peer: String,
    /// The text of the key that only the two ends of this edge have.
    pub(crate) key: String,
    /// Whether this end listens from the start; otherwise it waits for [`ToAgent::Dial`].
    pub(crate) listens: bool,
}

impl std::fmt::Debug for Edge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Edge")
            .field("peer", &self.peer)
            .field("listens", &self.listens)
            .finish_non_exhaustive()
    }
}

/// How every edge of the stage is set up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreamOrder {
    /// 0 auto, 1 RDMA, 2 TCP: as `--transport`.
    pub(crate) transport: u8,
    /// Bytes of a chunk and number of chunks, where the user gave them.
    pub(crate) chunk_bytes: Option<u64>,
    pub(crate) depth: Option<u32>,
    /// After how long a silence a peer counts as dead, the controller too, in milliseconds.
    pub(crate) timeout_ms: u64,
    /// First and last port to listen on; none is any.
    pub(crate) ports: Option<(u16, u16)>,
    /// `--device`, `--ib-port`, `--gid-index`, `--traffic-class`, `--service-level`, `--pkey-index`.
    pub(crate) device: Option<String>,
    pub(crate) ib_port: Option<u8>,
    pub(crate) gid_index: Option<u8>,
    pub(crate) traffic_class: u8,
    pub(crate) service_level: u8,
    pub(crate) pkey_index: u16,
}

/// What carries an edge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Link {
    /// "rdma" or "tcp".
    pub(crate) transport: String,
    /// Device, port, GID type, MTU, or why it is TCP.
    pub(crate) reason: String,
    /// Whether there was RDMA hardware, and it did not work.
    pub(crate) is_fallback: bool,
    /// The address of the peer.
    pub(crate) address: String,
}

/// How a process, or a stage without one, ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Status {
    /// With this exit status.
    Exited(u8),
    /// By this signal.
    Signaled(u8),
}

/// A stage's end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// How its command ended; `Exited(0)` for a file that was committed; none if it never began.
    pub(crate) status: Option<Status>,
    /// What broke, if anything other than the command's own status did.
    pub(crate) fault: Option<Fault>,
    /// The next stage wanted no more before this one had finished writing.
    pub(crate) output_stopped: bool,
    /// This stage wanted no more before its input had ended.
    pub(crate) input_stopped: bool,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    /// From `Go` to the end.
    pub(crate) elapsed_us: u64,
    /// How much of that the stage could have gone on, had there been input.
    pub(crate) blocked_on_input_us: u64,
    /// How much of that the stage could have gone on, had the next one taken its output.
    pub(crate) blocked_on_output_us: u64,
}

/// What broke, and how near to the cause this is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    /// One sentence, without the stage's name.
    pub(crate) text: String,
}

/// How near a fault is to the first cause: the first variant is the nearest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum FaultKind {
    /// Here: a file, the shell, a signal to the agent.
    Own,
    /// An edge broke, by its own account: network, corruption, a peer that died.
    Edge,
    /// The peer on an edge gave up and said why.
    PeerAborted,
    /// The controller said so, or is gone.
    Ordered,
}

/// The line that each side begins with: `role` is "agent" or "controller".
pub(crate) fn greeting(role: &str) -> String {
    format!("\nrdpipe-{role} {VERSION} {}\n", env!("CARGO_PKG_VERSION"))
}

/// What a line says about its writer, if it is a greeting: the protocol's version and the program's.
pub(crate) fn parse_greeting<'a>(line: &'a str, role: &str) -> Option<(u32, &'a str)> {
    let rest = line.trim_end().strip_prefix("rdpipe-")?;
    let mut words = rest.strip_prefix(role)?.strip_prefix(' ')?.split(' ');
    let version = words.next()?.parse().ok()?;
    let program = words.next()?;
    words.next().is_none().then_some((version, program))
}

/// A message as it travels, without its length.
pub(crate) fn encode(message: &impl Serialize) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_stdvec(message)
}

/// A message that travelled.
///
/// # Errors
///
/// When it is none, or something comes after it.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, postcard::Error> {
    match postcard::take_from_bytes(bytes)? {
        (message, []) => Ok(message),
        _ => Err(postcard::Error::DeserializeBadEncoding),
    }
}
