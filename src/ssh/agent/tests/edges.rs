//! Orders with any number of edges, and the messages of an application in both directions.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use futures::{SinkExt, StreamExt, future::join_all};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split},
    time::timeout,
};
use tokio_util::codec::{FramedRead, FramedWrite};

use super::controller::{
    INPUT, OUTPUT, TestAgent, command, dial, edge, order, skip_to_greeting, stream_order,
};
use super::limits::generous;
use crate::{
    Direction, GeneratedKey, Key, Stream,
    ssh::{
        agent::{
            addresses,
            connected_edge::ConnectedEdge,
            control,
            edges::EdgeAcceptance,
            job::{ConnectedEdges, Job, JobContext, Messages, OrderedEdges},
            order_run::OrderRun,
        },
        protocol::{
            AgentReport, EdgeDirection, EdgeId, EdgeOrder, FaultKind, FromAgent, Order, Payload,
            ToAgent, Work, decode, encode,
            frames::{FrameCodec, codec},
            greeting,
        },
    },
};

/// An application that moves four bytes over each of its edges and sends every message back. It ends after the
/// message "end".
struct Echo {
    context: JobContext,
    directions: BTreeMap<EdgeId, EdgeDirection>,
}

impl Job for Echo {
    fn prepare(
        context: &JobContext,
        order: &Payload,
        edges: &OrderedEdges,
    ) -> Result<Self, String> {
        let text: String = order.decode().map_err(|error| error.to_string())?;
        assert_eq!(text, "echo");
        let direction = |(id, (direction, _)): (&EdgeId, &(EdgeDirection, _))| (*id, *direction);
        Ok(Self {
            context: context.clone(),
            directions: edges.0.iter().map(direction).collect(),
        })
    }

    async fn run(&mut self, edges: ConnectedEdges, mut messages: Messages) {
        let moving = edges.0.into_iter().map(|(id, (thread, edge))| {
            let direction = self.directions[&id];
            async move {
                (
                    id,
                    (thread.clone(), thread.run(echo(edge, direction)).await),
                )
            }
        });
        let edges = ConnectedEdges(join_all(moving).await.into_iter().collect());
        while let Some(message) = messages.recv().await {
            let text: String = message.decode().unwrap();
            let answer = FromAgent::Application(message);
            self.context.outbox.send(answer);
            if text == "end" {
                break;
            }
        }
        edges.close().await;
    }

    fn report(&self) -> Option<Payload> {
        Payload::encode(&self.directions.len()).ok()
    }
}

async fn echo(mut edge: ConnectedEdge, direction: EdgeDirection) -> ConnectedEdge {
    let mut bytes = *b"sent";
    if direction != EdgeDirection::Send {
        edge.stream.read_exact(&mut bytes).await.unwrap();
    }
    if direction != EdgeDirection::Receive {
        edge.stream.write_all(&bytes).await.unwrap();
        edge.stream.flush().await.unwrap();
    }
    edge
}

/// The controller's end of a session with a worker in this process.
struct EchoSession {
    input: FramedWrite<WriteHalf<DuplexStream>, FrameCodec>,
    output: FramedRead<ReadHalf<DuplexStream>, FrameCodec>,
}

impl EchoSession {
    async fn open(stream: DuplexStream) -> Self {
        let (mut output, mut input) = split(stream);
        let line = greeting("controller");
        input.write_all(line.as_bytes()).await.unwrap();
        skip_to_greeting(&mut output).await;
        Self {
            input: FramedWrite::new(input, codec()),
            output: FramedRead::new(output, codec()),
        }
    }

    async fn send(&mut self, message: ToAgent) {
        let bytes = Bytes::from_owner(encode(&message).unwrap());
        self.input.send(bytes).await.unwrap();
    }

    async fn next(&mut self) -> FromAgent {
        let frame = timeout(generous(), self.output.next())
            .await
            .expect("in time");
        decode(&frame.expect("no end").unwrap()).unwrap()
    }
}

/// Runs a worker that serves one order for [`Echo`], in this process, at the other end of `stream`.
async fn serve(stream: DuplexStream) {
    let (input, output) = split(stream);
    let opened = control::open(input, output, addresses::hello(), generous()).await;
    let (order, inbox, outbox, writer) = opened.unwrap();
    let context = JobContext {
        name: order.name.clone(),
        cause: Arc::default(),
        outbox,
    };
    let run = OrderRun {
        context: context.clone(),
        acceptance: EdgeAcceptance::OwnListeners,
        connect_limit: None,
        exit: Arc::default(),
    };
    let report = run.carry_out(order, inbox, Echo::prepare).await;
    drop(run);
    context.outbox.send(FromAgent::Report(report));
    drop(context);
    writer.finish().await;
}

fn echo_order(edges: Vec<EdgeOrder>) -> ToAgent {
    ToAgent::Order(Box::new(Order {
        name: "echo".to_owned(),
        work: Work::Stage(Payload::encode(&"echo").unwrap()),
        edges,
        stream: stream_order(),
    }))
}

fn with(direction: EdgeDirection, mut edge: EdgeOrder) -> EdgeOrder {
    edge.direction = direction;
    edge
}

/// The other end of an edge: it receives where the agent sends, and sends where the agent receives.
async fn other_end(port: u16, key: &GeneratedKey, direction: EdgeDirection) -> Stream {
    let opposite = match direction {
        EdgeDirection::Send => Direction::Receive,
        EdgeDirection::Receive => Direction::Send,
        EdgeDirection::Both => Direction::Both,
    };
    dial(port, key, opposite).await
}

/// Starts an agent with edges of these directions, and moves bytes and messages over all of them.
async fn bring_up(directions: &[EdgeDirection]) {
    let (ours, theirs) = duplex(1 << 16);
    let controlling = async {
        let mut session = EchoSession::open(ours).await;
        assert!(matches!(session.next().await, FromAgent::Hello(_)));
        // Ids need not be consecutive or begin with 0.
        let ids = (0..).map(|n| EdgeId(7 + 1000 * n));
        let edges: Vec<_> = ids.zip(directions).collect();
        let keys: BTreeMap<_, _> = edges
            .iter()
            .map(|(id, _)| (*id, Key::generate().unwrap()))
            .collect();
        let order = edges
            .iter()
            .map(|&(id, &direction)| with(direction, edge(id, &keys[&id], true)));
        session.send(echo_order(order.collect())).await;
        let mut ports = BTreeMap::new();
        while ports.len() < edges.len() {
            match session.next().await {
                FromAgent::Listening { edge, port } => assert_eq!(ports.insert(edge, port), None),
                other => panic!("{other:?}"),
            }
        }
        let mut streams = Vec::new();
        for &(id, &direction) in &edges {
            let stream = other_end(ports[&id], &keys[&id], direction).await;
            match session.next().await {
                FromAgent::Connected { edge, .. } => assert_eq!(edge, id),
                other => panic!("{other:?}"),
            }
            streams.push((direction, stream));
        }
        session.send(ToAgent::Go).await;
        for (direction, stream) in &mut streams {
            let mut bytes = *b"ping";
            if *direction != EdgeDirection::Send {
                stream.write_all(&bytes).await.unwrap();
                stream.flush().await.unwrap();
            }
            if *direction != EdgeDirection::Receive {
                stream.read_exact(&mut bytes).await.unwrap();
            }
            let expected = match direction {
                EdgeDirection::Send => b"sent",
                _ => b"ping",
            };
            assert_eq!(&bytes, expected);
        }
        for text in ["hello", "", "end"] {
            let message = Payload::encode(&text).unwrap();
            session.send(ToAgent::Application(message.clone())).await;
            assert_eq!(session.next().await, FromAgent::Application(message));
        }
        let report = AgentReport {
            fault: None,
            result: Payload::encode(&edges.len()).ok(),
        };
        assert_eq!(session.next().await, FromAgent::Report(report));
    };
    tokio::join!(serve(theirs), controlling);
}

#[tokio::test]
async fn an_agent_serves_any_number_of_edges() {
    use EdgeDirection::{Both, Receive, Send};
    for directions in [
        &[][..],
        &[Both],
        &[Receive, Send],
        &[Both, Both],
        &[Send, Both, Receive, Both, Send],
    ] {
        bring_up(directions).await;
    }
}

#[tokio::test]
async fn a_peer_that_connected_before_the_others_gets_the_reason_of_a_failure() {
    let keys = [INPUT, OUTPUT].map(|id| (id, Key::generate().unwrap()));
    let edges = keys.iter().map(|(id, key)| edge(*id, key, true)).collect();
    let mut agent = TestAgent::start().await;
    let order = order(1, command("cat"), edges);
    agent.send(ToAgent::Order(Box::new(order))).await;
    let ports = BTreeMap::from([agent.listening().await, agent.listening().await]);
    let [_, (_, key)] = &keys;
    let mut stream = dial(ports[&OUTPUT], key, Direction::Receive).await;
    agent.connected().await;
    let reason = "stage 2 failed".to_owned();
    agent.send(ToAgent::Kill { reason }).await;
    let error = stream.read(&mut [0]).await.unwrap_err().to_string();
    assert!(error.contains("stage 2 failed"), "{error}");
    agent.end().await;
}

#[tokio::test]
async fn an_order_that_contradicts_itself_is_refused() {
    let key = Key::generate().unwrap();
    let twice = vec![edge(INPUT, &key, true), edge(INPUT, &key, true)];
    let backwards = vec![with(EdgeDirection::Both, edge(OUTPUT, &key, true))];
    for (edges, expected) in [
        (twice, "the order names its edge 0 twice"),
        (backwards, "the order's edge 1 leads the wrong way"),
    ] {
        let mut agent = TestAgent::start().await;
        let order = super::controller::order(1, command("true"), edges);
        agent.send(ToAgent::Order(Box::new(order))).await;
        let (_, report, exit) = agent.end().await;
        let fault = report.fault.unwrap();
        assert_eq!((&*fault.text, exit), (expected, 0));
        assert_eq!(fault.kind, FaultKind::Local);
    }
}

#[tokio::test]
async fn requests_about_edges_that_the_order_does_not_have_are_ignored() {
    let mut agent = TestAgent::start().await;
    let order = super::controller::order(1, command("true"), vec![]);
    agent.send(ToAgent::Order(Box::new(order))).await;
    let edge = EdgeId(u32::MAX);
    agent.send(ToAgent::Listen { edge }).await;
    agent.send(ToAgent::Go).await;
    super::controller::ends_with(&mut agent, crate::ssh::stage::Status::Exited(0)).await;
}

#[tokio::test]
async fn a_message_that_the_application_cannot_decode_ends_the_work() {
    let mut agent = TestAgent::start().await;
    let order = super::controller::order(1, command("sleep 1000"), vec![]);
    agent.send(ToAgent::Order(Box::new(order))).await;
    agent.send(ToAgent::Go).await;
    let message = Payload::encode(&"nonsense").unwrap();
    agent.send(ToAgent::Application(message)).await;
    let (_, report, _) = agent.end().await;
    let fault = report.fault.unwrap();
    assert_eq!(fault.kind, FaultKind::Ordered);
    assert!(fault.text.contains("invalid message"), "{}", fault.text);
}
