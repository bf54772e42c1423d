//! A controller of a few lines: it brings up agents, and lets the tests speak to them.

use std::{process::Stdio, time::Duration};

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::unix::pipe,
    time::timeout,
};
use tokio_util::codec::{FramedRead, FramedWrite, LengthDelimitedCodec};

use super::slow::generous;
use crate::{
    Direction, GeneratedKey, Key, Stream, StreamConfig, connect,
    ssh::{
        agent::reaper::is_broken_pipe,
        protocol::{
            Edge, End, FromAgent, Order, Report, Status, StreamOrder, ToAgent, Work, decode,
            encode, greeting, parse_greeting,
        },
    },
};

/// An agent under a guard, and the session with it.
pub(super) struct Agent {
    pub(super) guard: std::process::Child,
    pub(super) input: Option<FramedWrite<pipe::Sender, LengthDelimitedCodec>>,
    output: FramedRead<pipe::Receiver, LengthDelimitedCodec>,
    /// What was received and is none of the test's business, such as warnings.
    pub(super) seen: Vec<FromAgent>,
}

impl Agent {
    pub(super) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub(super) async fn start_with(change: impl FnOnce(&mut std::process::Command)) -> Self {
        let mut command = super::part("guard");
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
            input: Some(FramedWrite::new(input, LengthDelimitedCodec::new())),
            output: FramedRead::new(output, LengthDelimitedCodec::new()),
            seen: Vec::new(),
        };
        let hello = agent.next().await;
        assert!(matches!(hello, FromAgent::Hello(_)), "{hello:?}");
        agent
    }

    pub(super) async fn send(&mut self, message: ToAgent) {
        let bytes = Bytes::from(encode(&message).unwrap());
        self.input.as_mut().unwrap().send(bytes).await.unwrap();
    }

    /// The next message that is not just news.
    pub(super) async fn next(&mut self) -> FromAgent {
        loop {
            let frame = timeout(generous(), self.output.next())
                .await
                .expect("in time");
            let message = decode(&frame.expect("no end").unwrap()).unwrap();
            match message {
                FromAgent::Warning(_) | FromAgent::Progress { .. } | FromAgent::Pong => {
                    self.seen.push(message);
                }
                message => return message,
            }
        }
    }

    pub(super) async fn listening(&mut self) -> (End, u16) {
        match self.next().await {
            FromAgent::Listening { end, port } => (end, port),
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn connected(&mut self) {
        let message = self.next().await;
        assert!(
            matches!(message, FromAgent::Connected { .. }),
            "{message:?}"
        );
    }

    /// Everything up to the report, and how the guard exited.
    pub(super) async fn end(&mut self) -> (Vec<FromAgent>, Report, i32) {
        let mut messages = Vec::new();
        let report = loop {
            match self.next().await {
                FromAgent::Report(report) => break report,
                message => messages.push(message),
            }
        };
        (messages, report, self.exit().await)
    }

    /// As a shell would show it.
    pub(super) async fn exit(&mut self) -> i32 {
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

/// A pipeline that runs: its agents, and the controller's own edges.
pub(super) struct Pipeline {
    pub(super) agents: Vec<Agent>,
    pub(super) input: Option<Stream>,
    pub(super) output: Stream,
}

pub(super) fn command(text: &str) -> Work {
    Work::Command(text.into())
}

/// Orders for the default stream over TCP.
pub(super) fn stream_order() -> StreamOrder {
    StreamOrder {
        transport: 2,
        chunk_bytes: None,
        depth: None,
        timeout_ms: 30_000,
        ports: None,
        device: None,
        ib_port: None,
        gid_index: None,
        traffic_class: 0,
        service_level: 0,
        pkey_index: 0,
    }
}

pub(super) fn order(number: u32, work: Work) -> Order {
    Order {
        number,
        name: format!("{number} (here)"),
        work,
        input: None,
        output: None,
        stream: stream_order(),
        fsync: false,
    }
}

pub(super) fn edge(key: &GeneratedKey, listens: bool) -> Edge {
    Edge {
        peer: "its peer".into(),
        key: key.text().to_string(),
        listens,
    }
}

pub(super) async fn dial(port: u16, key: &GeneratedKey, direction: Direction) -> Stream {
    let config = StreamConfig {
        direction,
        transport: crate::TransportPolicy::Tcp,
        ..StreamConfig::default()
    };
    connect("127.0.0.1", port, key.key(), &config)
        .await
        .unwrap()
}

impl Pipeline {
    /// Brings up one agent for each of `works`, and says `Go`.
    pub(super) async fn start(works: Vec<Work>, has_input: bool) -> Self {
        let count = works.len();
        let keys: Vec<_> = (0..=count).map(|_| Key::generate().unwrap()).collect();
        let mut agents = Vec::new();
        for (index, work) in works.into_iter().enumerate() {
            let mut agent = Agent::start().await;
            let mut order = order(u32::try_from(index).unwrap() + 1, work);
            if index > 0 || has_input {
                order.input = Some(edge(&keys[index], true));
            }
            order.output = Some(edge(&keys[index + 1], index + 1 == count));
            agent.send(ToAgent::Order(Box::new(order))).await;
            agents.push(agent);
        }
        // All of them before anybody dials: an edge that stands says so, in between.
        let mut listening = Vec::new();
        for (index, agent) in agents.iter_mut().enumerate() {
            let inputs = usize::from(index > 0 || has_input);
            for _ in 0..inputs + usize::from(index + 1 == count) {
                listening.push((index, agent.listening().await));
            }
        }
        let mut input_port = None;
        let mut output_port = None;
        for (index, (end, port)) in listening {
            if end == End::Output {
                output_port = Some(port);
            } else if index == 0 {
                input_port = Some(port);
            } else {
                let addresses = vec!["127.0.0.1".to_owned()];
                let dial = ToAgent::Dial {
                    end: End::Output,
                    addresses,
                    port,
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

    /// Reads the output to its end, and confirms it.
    pub(super) async fn read(&mut self) -> Result<Vec<u8>, std::io::Error> {
        let mut bytes = Vec::new();
        timeout(generous(), self.output.read_to_end(&mut bytes))
            .await
            .expect("in time")?;
        self.output.confirm().unwrap();
        Ok(bytes)
    }
}

/// What an agent with that status says at its end, and nothing else.
pub(super) async fn ends_with(agent: &mut Agent, status: Status) -> Report {
    let report = ends(agent).await;
    assert_eq!(report.status, Some(status), "{report:?}");
    report
}

/// The same where the command died of SIGPIPE: some shells become a last command, and others wait for
/// it and tell its end by their own status.
pub(super) async fn ends_by_broken_pipe(agent: &mut Agent) -> Report {
    let report = ends(agent).await;
    assert!(report.status.is_some_and(is_broken_pipe), "{report:?}");
    report
}

async fn ends(agent: &mut Agent) -> Report {
    let (messages, report, exit) = agent.end().await;
    let said: Vec<_> = report.status.map(FromAgent::Ended).into_iter().collect();
    assert_eq!(messages, said, "{report:?}");
    assert_eq!((&report.fault, exit), (&None, 0));
    report
}
