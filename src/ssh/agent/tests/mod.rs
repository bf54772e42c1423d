//! Agents as processes of their own, driven by a small controller in the test.

mod edges;
// These limits are shared with the integration tests.
#[path = "../../../../tests/support/limits.rs"]
mod limits;
mod opening;
mod stages;

use std::{
    env,
    process::{Command, Stdio},
    time::Duration,
};

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::unix::pipe,
    time::timeout,
};
use tokio_util::codec::{FramedRead, FramedWrite};

use self::limits::generous;
use super::descendants::is_broken_pipe;
use crate::{
    Direction, GeneratedKey, Key, Stream, StreamConfig, TransportPolicy, connect,
    options::{FlowOptions, StreamOptions},
    ssh::{
        frames::{FrameCodec, codec},
        protocol::{
            EdgeId, EdgeOrder, FromAgent, Order, Payload, ToAgent, Work, WorkFault, decode, encode,
            greeting, parse_greeting,
        },
        stage::{FromStage, StageOrder, StageReport, StageWork, Status, ToStage},
    },
};

/// The environment variable that makes the test program an agent: [`plays_a_part`] reads it.
const PART: &str = "RDPIPE_TEST_PART";

/// Runs the test program as a guard or a worker, if [`PART`] is set. The tests start the test program again to run
/// this. Without the variable it does nothing.
#[test]
fn plays_a_part() {
    let code = match env::var(PART).as_deref() {
        Ok("guard") => super::guard::guard(&mut part("worker")),
        Ok("worker") => super::run::<OnlyStages>(),
        _ => return,
    };
    std::process::exit(code.into());
}

/// No applications beside the stages: every other order is read as one for a stage.
struct OnlyStages;

impl super::job::Applications for OnlyStages {
    type Copy = super::stage::StageJob;
    type Measure = super::stage::StageJob;
    type Forward = super::stage::StageJob;

    async fn relay<R, W>(_: super::relay::RelayEnd, _: R, _: W) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns a command that runs this program as a guard or a worker. The controller skips the lines that the test
/// harness prints first, as it skips those of a shell profile.
fn part(name: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([
        "--exact",
        "ssh::agent::tests::plays_a_part",
        "--nocapture",
        "--test-threads=1",
    ]);
    command.env(PART, name);
    command
}

/// An agent under a guard, and the session with it.
struct TestAgent {
    guard: std::process::Child,
    input: Option<FramedWrite<pipe::Sender, FrameCodec>>,
    output: FramedRead<pipe::Receiver, FrameCodec>,
    /// Messages that were received and that most tests skip, such as warnings.
    seen: Vec<FromAgent>,
}

impl TestAgent {
    async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    async fn start_with(change: impl FnOnce(&mut std::process::Command)) -> Self {
        let mut command = part("guard");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        change(&mut command);
        let mut guard = command.spawn().unwrap();
        let stdin = std::os::fd::OwnedFd::from(guard.stdin.take().unwrap());
        let stdout = std::os::fd::OwnedFd::from(guard.stdout.take().unwrap());
        let mut input = pipe::Sender::from_owned_fd(stdin).unwrap();
        let mut output = pipe::Receiver::from_owned_fd(stdout).unwrap();
        input
            .write_all(greeting("controller").as_bytes())
            .await
            .unwrap();
        skip_to_greeting(&mut output).await;
        let mut agent = Self {
            guard,
            input: Some(FramedWrite::new(input, codec())),
            output: FramedRead::new(output, codec()),
            seen: Vec::new(),
        };
        let hello = agent.next().await;
        assert!(matches!(hello, FromAgent::Hello(_)), "{hello:?}");
        agent
    }

    /// Tells the stage to proceed to its commit.
    async fn proceed(&mut self) {
        let message = Payload::encode(&ToStage::Proceed).unwrap();
        self.send(ToAgent::Application(message)).await;
    }

    async fn send(&mut self, message: ToAgent) {
        let bytes = Bytes::from_owner(encode(&message).unwrap());
        self.input.as_mut().unwrap().send(bytes).await.unwrap();
    }

    /// Returns the next message, except those that only inform the user.
    async fn next(&mut self) -> FromAgent {
        loop {
            let frame = timeout(generous(), self.output.next())
                .await
                .expect("in time");
            let message = decode(&frame.expect("no end").unwrap()).unwrap();
            let is_news = match &message {
                FromAgent::Warning(_) | FromAgent::Pong => true,
                FromAgent::Application(message) => {
                    let informs = |message| {
                        matches!(message, FromStage::Progress(_) | FromStage::Opens { .. })
                    };
                    message.decode().is_ok_and(informs)
                }
                _ => false,
            };
            if !is_news {
                return message;
            }
            self.seen.push(message);
        }
    }

    /// Returns the next message, which must be one of the stage, except those that only inform the user.
    async fn next_of_stage(&mut self) -> FromStage {
        match self.next().await {
            FromAgent::Application(message) => message.decode().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    async fn listening(&mut self) -> (EdgeId, u16) {
        match self.next().await {
            FromAgent::Listening { edge, port } => (edge, port),
            other => panic!("{other:?}"),
        }
    }

    async fn connected(&mut self) {
        let message = self.next().await;
        assert!(
            matches!(message, FromAgent::Connected { .. }),
            "{message:?}"
        );
    }

    /// Returns the stage's messages up to the report, the report, and the exit status of the guard.
    async fn end(&mut self) -> (Vec<FromStage>, TestReport, i32) {
        let mut messages = Vec::new();
        let report = loop {
            match self.next().await {
                FromAgent::Report(report) => break report,
                FromAgent::Application(message) => messages.push(message.decode().unwrap()),
                message => panic!("{message:?}"),
            }
        };
        let report = TestReport {
            fault: report.fault,
            stage: match report.result {
                Some(result) => result.decode().unwrap(),
                None => StageReport::default(),
            },
        };
        (messages, report, self.exit().await)
    }

    /// Waits for the guard, and returns its exit status as a shell shows it.
    async fn exit(&mut self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        let waiting = async {
            loop {
                match self.guard.try_wait().unwrap() {
                    Some(status) => return status,
                    None => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        };
        let status = timeout(generous(), waiting).await.expect("the guard ends");
        status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap())
    }
}

async fn skip_to_greeting(output: &mut (impl AsyncRead + Unpin)) {
    let mut line = Vec::new();
    loop {
        line.push(
            timeout(generous(), output.read_u8())
                .await
                .unwrap()
                .unwrap(),
        );
        if line.ends_with(b"\n") {
            if parse_greeting(&String::from_utf8_lossy(&line), "agent").is_some() {
                return;
            }
            line.clear();
        }
    }
}

/// The report of a stage's agent.
#[derive(Debug)]
struct TestReport {
    fault: Option<WorkFault>,
    stage: StageReport,
}

/// A running pipeline: its agents, and the controller's own edges.
struct TestPipeline {
    agents: Vec<TestAgent>,
    input: Option<Stream>,
    output: Stream,
}

fn command(text: &str) -> StageWork {
    StageWork::Command(text.into())
}

/// Returns the default stream over TCP, for orders.
fn stream_options() -> StreamOptions {
    StreamOptions {
        transport: TransportPolicy::Tcp,
        ..StreamOptions::default()
    }
}

/// The ids of a stage's edges.
const INPUT: EdgeId = EdgeId(0);
const OUTPUT: EdgeId = EdgeId(1);

/// Returns an order for a stage with these edges, whose ids are [`INPUT`] and [`OUTPUT`].
fn order(number: u32, work: StageWork, edges: Vec<EdgeOrder>) -> Order {
    let id = |id| edges.iter().map(|edge| edge.id).find(|of| *of == id);
    let stage = StageOrder {
        work,
        input: id(INPUT),
        output: id(OUTPUT),
        fsync: false,
        output_file: None,
        flow: FlowOptions::default(),
        is_watched: false,
    };
    Order {
        name: format!("stage {number} (here)"),
        work: Work::Stage(Payload::encode(&stage).unwrap()),
        edges,
        stream: stream_options(),
        ports: None,
    }
}

fn edge(id: EdgeId, key: &GeneratedKey, listens: bool) -> EdgeOrder {
    EdgeOrder {
        id,
        direction: match id {
            INPUT => Direction::Receive,
            _ => Direction::Send,
        },
        peer: "its peer".into(),
        key: key.text().to_string(),
        listens,
    }
}

async fn dial(port: u16, key: &GeneratedKey, direction: Direction) -> Stream {
    let config = StreamConfig {
        direction,
        transport: crate::TransportPolicy::Tcp,
        ..StreamConfig::default()
    };
    connect(("127.0.0.1", port), key, &config).await.unwrap()
}

impl TestPipeline {
    /// Starts one agent for each of `works`, connects their edges, and sends `Go`.
    async fn start(works: Vec<StageWork>, has_input: bool) -> Self {
        let count = works.len();
        let keys: Vec<_> = (0..=count).map(|_| Key::generate().unwrap()).collect();
        let mut agents = Vec::new();
        for (index, work) in works.into_iter().enumerate() {
            let mut agent = TestAgent::start().await;
            let mut edges = Vec::new();
            if index > 0 || has_input {
                edges.push(edge(INPUT, &keys[index], true));
            }
            edges.push(edge(OUTPUT, &keys[index + 1], index + 1 == count));
            let order = order(u32::try_from(index).unwrap() + 1, work, edges);
            agent.send(ToAgent::Order(Box::new(order))).await;
            agents.push(agent);
        }
        // All agents listen before any of them dials: a connected edge sends a message of its own.
        let mut listening = Vec::new();
        for (index, agent) in agents.iter_mut().enumerate() {
            let inputs = usize::from(index > 0 || has_input);
            for _ in 0..inputs + usize::from(index + 1 == count) {
                listening.push((index, agent.listening().await));
            }
        }
        let mut input_port = None;
        let mut output_port = None;
        for (index, (edge, port)) in listening {
            if edge == OUTPUT {
                output_port = Some(port);
            } else if index == 0 {
                input_port = Some(port);
            } else {
                let addresses = vec!["127.0.0.1".to_owned()];
                let dial = ToAgent::Dial {
                    edge: OUTPUT,
                    addresses,
                    port,
                    is_relayed: false,
                };
                agents[index - 1].send(dial).await;
            }
        }
        let input = match input_port {
            Some(port) => Some(dial(port, &keys[0], Direction::Send).await),
            None => None,
        };
        let output = dial(output_port.unwrap(), &keys[count], Direction::Receive).await;
        for (index, agent) in agents.iter_mut().enumerate() {
            for _ in 0..=usize::from(index > 0 || has_input) {
                agent.connected().await;
            }
        }
        for agent in &mut agents {
            agent.send(ToAgent::Go).await;
        }
        Self {
            agents,
            input,
            output,
        }
    }

    /// Returns the output up to its end, and confirms it.
    async fn read(&mut self) -> Result<Vec<u8>, std::io::Error> {
        let mut bytes = Vec::new();
        timeout(generous(), self.output.read_to_end(&mut bytes))
            .await
            .expect("in time")?;
        self.output.confirm().unwrap();
        Ok(bytes)
    }
}

/// Asserts that the agent ends with this status and without a fault. Returns its report.
async fn ends_with(agent: &mut TestAgent, status: Status) -> StageReport {
    let report = ends(agent).await;
    assert_eq!(report.status, Some(status), "{report:?}");
    report
}

/// Asserts that the agent ends with SIGPIPE or 141 and without a fault. Returns its report. Some shells replace
/// themselves by their last command; others wait for it and exit with 141.
async fn ends_by_broken_pipe(agent: &mut TestAgent) -> StageReport {
    let report = ends(agent).await;
    assert!(report.status.is_some_and(is_broken_pipe), "{report:?}");
    report
}

async fn ends(agent: &mut TestAgent) -> StageReport {
    let (messages, report, exit) = agent.end().await;
    let said = report.stage.status.map(FromStage::Ended);
    let said: Vec<_> = said.into_iter().collect();
    assert_eq!(messages, said, "{report:?}");
    assert_eq!((&report.fault, exit), (&None, 0));
    report.stage
}
