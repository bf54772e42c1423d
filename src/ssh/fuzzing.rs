//! The entry points of the fuzz targets for what other hosts send over ssh, and for the controller of a pipeline, to
//! which agents and local edges send any events. They are compiled only for fuzzing.

use std::{ffi::OsString, fmt::Debug, time::Duration};

use bytes::BytesMut;
use serde::{Serialize, de::DeserializeOwned};
use tokio_util::codec::Decoder;

use super::{
    frames::{Found, FrameCodec, Greeting, codec},
    local_edge::{LocalEdgeEnd, LocalEdgeEvent},
    plan::{Plan, PlanInput},
    protocol::{
        AgentHello, AgentReport, EdgeId, EdgeLink, Envelope, FaultKind, FromAgent,
        MAX_MESSAGE_BYTES, Payload, ToAgent, ViaSsh, WorkFault, decode, encode,
    },
    session::SessionEnd,
    stage::{FromStage, StageOrder, StageReport, Status, ToStage},
    supervisor::{
        Action, Event, Settings,
        pipeline::{OwnFiles, PipelineMachine, PipelineOptions, PipelineWork},
        relay::RelayEvent,
    },
};
use crate::{Transport, options::StreamOptions, transport::fuzzing::FuzzScript};

pub use super::agent::{fuzz_controller as controller, fuzz_proc_stat as proc_stat};

/// Decodes `data` as the output of a login shell and of an agent. Panics if a message that was decoded cannot be
/// encoded and decoded again.
pub fn agent_messages(data: &[u8]) {
    let mut greeting = Greeting::new("agent");
    greeting.feed(data);
    let rest = loop {
        match greeting.next() {
            Found::Noise(line) => assert!(!line.is_empty() && !line.contains('\n')),
            Found::Greeting { .. } => break greeting.into_rest(),
            Found::NotYet | Found::TooMuch => break data.to_vec(),
        }
    };
    if let Some(payload) = message::<FromAgent>(&rest) {
        application::<FromStage>(&payload);
        application::<StageReport>(&payload);
    }
    if let Some(payload) = message::<ToAgent>(&rest) {
        application::<ToStage>(&payload);
        application::<StageOrder>(&payload);
    }
}

/// Decodes a message of the envelope, encodes it, and panics if the result decodes to another message. Returns the
/// application's message inside it.
fn message<T: Envelope + Debug + PartialEq>(bytes: &[u8]) -> Option<Payload> {
    let message = decode::<T>(bytes).ok()?;
    let again = encode(&message).expect("what was decoded can be encoded");
    let payload = message.payload().cloned();
    assert_eq!(decode(&again), Ok(message));
    payload
}

/// Decodes an application's message, encodes it, and panics if the result decodes to another message.
fn application<T: Serialize + DeserializeOwned + Debug + PartialEq>(payload: &Payload) {
    if let Ok(message) = payload.decode::<T>() {
        let again = Payload::encode(&message).expect("what was decoded can be encoded");
        assert_eq!(again.decode(), Ok(message));
    }
}

/// What was found in the bytes of an agent.
#[derive(Debug, Default, PartialEq)]
struct Findings {
    noise: Vec<String>,
    /// The version and the program of the greeting.
    greeting: Option<(u32, String)>,
    messages: Vec<Option<FromAgent>>,
    /// No more bytes are read.
    is_refused: bool,
}

/// Reads all of `data` but its first byte, once as a whole and once in pieces of as many bytes as the first byte says.
/// Both find the same lines, greeting and messages. Panics if they differ, or if more bytes are kept than one message
/// may have.
pub fn session(data: &[u8]) {
    let Some((&size, bytes)) = data.split_first() else {
        return;
    };
    let whole = find(bytes, bytes.len().max(1));
    let pieces = find(bytes, usize::from(size).max(1));
    assert_eq!(whole, pieces);
}

fn find(bytes: &[u8], size: usize) -> Findings {
    let mut found = Findings::default();
    let mut pieces = bytes.chunks(size);
    let Some(mut buffer) = find_greeting(&mut pieces, &mut found) else {
        return found;
    };
    let mut codec = codec();
    loop {
        take_messages(&mut codec, &mut buffer, &mut found);
        assert!(buffer.len() <= MAX_MESSAGE_BYTES + size + 5);
        match pieces.next() {
            Some(piece) if !found.is_refused => buffer.extend_from_slice(piece),
            _ => return found,
        }
    }
}

/// Reads up to the greeting. Returns the bytes behind it that were read as well.
fn find_greeting<'a>(
    pieces: &mut impl Iterator<Item = &'a [u8]>,
    found: &mut Findings,
) -> Option<BytesMut> {
    let mut scanner = Greeting::new("agent");
    loop {
        match scanner.next() {
            Found::Noise(line) => {
                assert!(!line.is_empty() && !line.contains('\n'));
                found.noise.push(line);
            }
            Found::Greeting { version, program } => {
                found.greeting = Some((version, program));
                return Some(BytesMut::from(&scanner.into_rest()[..]));
            }
            Found::NotYet => scanner.feed(pieces.next()?),
            Found::TooMuch => {
                found.is_refused = true;
                return None;
            }
        }
    }
}

fn take_messages(codec: &mut FrameCodec, buffer: &mut BytesMut, found: &mut Findings) {
    while !found.is_refused {
        match codec.decode(buffer) {
            Ok(Some(frame)) => {
                assert!(frame.len() <= MAX_MESSAGE_BYTES);
                let message = decode(&frame).ok();
                found.is_refused = message.is_none();
                found.messages.push(message);
            }
            Ok(None) => return,
            Err(_) => found.is_refused = true,
        }
    }
}

/// The stages of the pipeline that is run: commands here and there, and files that wait for the earlier stages.
const SEGMENTS: [&str; 4] = [":a", "h:b", "g:>> f", "h:> f"];

/// The most faults that one place of the pipeline may keep, whatever the agents send.
const MOST_CAUSES: usize = 8;

/// Passes any events of agents, sessions and local edges to the machine of a pipeline. Panics if the machine asks an
/// end to dial more than twice for one edge, gives an order, Go or Proceed twice or too early, keeps more and more
/// faults, takes a lost agent for a success, or does not end.
pub fn pipeline(data: &[u8]) {
    let mut script = FuzzScript::new(data);
    let input = if script.flag() {
        PlanInput::Standard
    } else {
        PlanInput::Nothing
    };
    let segments: Vec<_> = SEGMENTS.iter().map(OsString::from).collect();
    let plan = Plan::parse(&segments, input).expect("the segments are valid");
    let count = plan.stages.len();
    let keys = (0..=count)
        .map(|edge| format!("key {edge}").into())
        .collect();
    let mut run = PipelineRun {
        machine: PipelineMachine::new(
            PipelineWork::new(plan, PipelineOptions::default(), OwnFiles::default()),
            settings(),
            keys,
        ),
        now: Duration::ZERO,
        stages: (0..count).map(|_| StageRecord::default()).collect(),
        dials: vec![0; count + 1],
        is_running: false,
        is_done: false,
    };
    while let Some(kind) = script.byte() {
        let event = event(kind, &mut script, count);
        run.play(event);
    }
    run.finish();
}

/// A machine, and what it has asked for so far.
struct PipelineRun {
    machine: PipelineMachine,
    now: Duration,
    stages: Vec<StageRecord>,
    /// By edge: how often an end was told to dial.
    dials: Vec<usize>,
    is_running: bool,
    is_done: bool,
}

/// What one stage has sent and received.
#[derive(Default)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "they are no state of one machine, but what was seen"
)]
struct StageRecord {
    is_ordered: bool,
    is_answered: bool,
    has_ended: bool,
    has_reported: bool,
    is_closed: bool,
    /// The session ended before its agent had reported.
    is_lost: bool,
}

impl PipelineRun {
    fn play(&mut self, event: Event) {
        match &event {
            // A session closes once, and sends nothing after that.
            Event::Message(stage, _) | Event::Closed(stage, _) if self.stages[*stage].is_closed => {
                return;
            }
            Event::Message(stage, FromAgent::Report(_)) => self.stages[*stage].has_reported = true,
            Event::Message(stage, FromAgent::Application(message)) => {
                let is_end = matches!(message.decode(), Ok(FromStage::Ended(_)));
                self.stages[*stage].has_ended |= is_end;
            }
            Event::Closed(stage, _) => {
                let record = &mut self.stages[*stage];
                record.is_closed = true;
                record.is_lost = !record.has_reported;
            }
            Event::Tick => self.now += Duration::from_millis(700),
            _ => {}
        }
        let actions = self.machine.handle(self.now, event);
        assert!(actions.len() <= 8 * (self.stages.len() + 1), "{actions:?}");
        for action in actions {
            self.check(&action);
        }
        self.check_outcome();
    }

    fn check(&mut self, action: &Action) {
        match action {
            Action::Dial { edge, .. } | Action::Send(_, ToAgent::Dial { edge, .. }) => {
                self.dials[edge.index()] += 1;
                assert!(self.dials[edge.index()] <= 3, "edge {edge} is dialed again");
            }
            Action::Send(stage, ToAgent::Order(_)) => {
                let before = std::mem::replace(&mut self.stages[*stage].is_ordered, true);
                assert!(!before, "a second order");
            }
            Action::Send(stage, ToAgent::Application(_)) => {
                let before = std::mem::replace(&mut self.stages[*stage].is_answered, true);
                assert!(!before, "a second Proceed");
                let ended = |record: &StageRecord| record.has_ended || record.has_reported;
                assert!(self.stages[..*stage].iter().all(ended), "an early Proceed");
            }
            Action::Go => {
                assert!(!self.is_running, "a second Go");
                self.is_running = true;
            }
            Action::Done => self.is_done = true,
            _ => {}
        }
    }

    fn check_outcome(&self) {
        let outcome = self.machine.summary().outcome;
        let places = self.stages.len() + 2 + self.dials.len();
        assert!(outcome.causes.len() <= MOST_CAUSES * places);
        let _ = outcome.ranked();
        let is_lost = self.stages.iter().any(|stage| stage.is_lost);
        let is_whole = self
            .stages
            .iter()
            .all(|stage| stage.has_reported || stage.has_ended);
        assert!(
            !outcome.is_success() || outcome.reader_left || (!is_lost && is_whole),
            "a false success"
        );
    }

    /// Closes whatever is open, and lets the time pass: the machine must come to its end.
    fn finish(&mut self) {
        for stage in 0..self.stages.len() {
            if !self.stages[stage].is_closed {
                self.play(Event::Closed(stage, end("closed", false)));
            }
        }
        for _ in 0..3 {
            if let Some(deadline) = self.machine.deadline() {
                self.now = self.now.max(deadline);
            }
            self.play(Event::Tick);
        }
        assert!(self.is_done, "the pipeline does not end");
    }
}

fn event(kind: u8, script: &mut FuzzScript<'_>, count: usize) -> Event {
    let stage = script.below(count);
    let edge = EdgeId::of_index(script.below(count + 2));
    match kind % 16 {
        0..=9 => Event::Message(stage, agent_message(kind % 16, script, edge)),
        10 => Event::Closed(stage, end("lost", script.flag())),
        11 => Event::Local(
            local(script, count),
            LocalEdgeEvent::Connected(link(script)),
        ),
        12 => Event::Local(
            local(script, count),
            LocalEdgeEvent::Unreachable(tried(script)),
        ),
        13 => {
            let end = LocalEdgeEnd {
                fault: script.flag().then(|| fault(script)),
                reader_left: script.flag(),
            };
            Event::Local(local(script, count), LocalEdgeEvent::Ended(end))
        }
        14 => Event::Signal {
            number: script.byte().unwrap_or(2),
            name: "SIGINT",
        },
        _ if script.below(4) == 3 => Event::Relay(
            edge,
            if script.flag() {
                RelayEvent::Ready(script.number())
            } else {
                RelayEvent::Ended(end("lost", false))
            },
        ),
        _ => Event::Tick,
    }
}

/// Returns one of the controller's own edges: its input or its output. They are no other host's.
fn local(script: &mut FuzzScript<'_>, count: usize) -> EdgeId {
    EdgeId::of_index(if script.flag() { 0 } else { count })
}

fn agent_message(kind: u8, script: &mut FuzzScript<'_>, edge: EdgeId) -> FromAgent {
    match kind {
        0 => FromAgent::Hello(AgentHello {
            host: text(script),
            machine: text(script),
            addresses: (0..script.below(40))
                .map(|_| [10, 0, 0, script.byte().unwrap_or(1)].into())
                .collect(),
            streams: script.number(),
            most_streams: script.flag().then(|| script.number()),
        }),
        1 => FromAgent::Listening {
            edge,
            port: script.number(),
        },
        2 => FromAgent::Unreachable {
            edge,
            tried: tried(script),
        },
        3 | 4 => FromAgent::Connected {
            edge,
            link: link(script),
        },
        5 | 6 => stage_message(script),
        7 => FromAgent::Report(AgentReport {
            fault: script.flag().then(|| fault(script)),
            result: Payload::encode(&StageReport {
                status: script.flag().then(|| status(script)),
                output_stopped: script.flag(),
                ..StageReport::default()
            })
            .ok(),
        }),
        8 => FromAgent::Warning(text(script)),
        // Any bytes that are a message; hardly any are.
        _ => decode(script.piece()).unwrap_or(FromAgent::Pong),
    }
}

fn stage_message(script: &mut FuzzScript<'_>) -> FromAgent {
    let message = match script.below(5) {
        0 => FromStage::InputComplete,
        1 | 2 => FromStage::Ended(status(script)),
        3 => FromStage::Unreadable {
            path: script.piece().to_vec(),
            why: text(script),
        },
        _ => {
            let nonsense = Payload::encode(&(77_u8, script.number()));
            return FromAgent::Application(nonsense.expect("it is short"));
        }
    };
    FromAgent::Application(Payload::encode(&message).expect("it is short"))
}

fn text(script: &mut FuzzScript<'_>) -> String {
    String::from_utf8_lossy(script.piece()).into_owned()
}

fn tried(script: &mut FuzzScript<'_>) -> Vec<(String, String)> {
    let address = |_| (text(script), "no answer".to_owned());
    (0..2).map(address).collect()
}

fn status(script: &mut FuzzScript<'_>) -> Status {
    match script.below(4) {
        0 | 1 => Status::Exited(0),
        2 => Status::Exited(script.byte().unwrap_or(1)),
        _ => Status::Signaled(script.byte().unwrap_or(13)),
    }
}

fn fault(script: &mut FuzzScript<'_>) -> WorkFault {
    let kinds = [
        FaultKind::Local,
        FaultKind::Edge,
        FaultKind::PeerAborted,
        FaultKind::Ordered,
    ];
    WorkFault {
        kind: kinds[script.below(kinds.len())],
        text: text(script),
    }
}

fn link(script: &mut FuzzScript<'_>) -> EdgeLink {
    EdgeLink {
        transport: Transport::Tcp,
        reason: text(script),
        is_fallback: script.flag(),
        cipher: None,
        rails: 1,
        address: "10.0.0.9".to_owned(),
    }
}

fn end(why: &str, killed: bool) -> SessionEnd {
    let why = why.to_owned();
    SessionEnd { why, killed }
}

fn settings() -> Settings {
    Settings {
        stream: StreamOptions::default(),
        ports: None,
        addresses: Vec::new(),
        here: None,
        machine: Some("m0".to_owned()),
        via_ssh: ViaSsh::Auto,
    }
}
