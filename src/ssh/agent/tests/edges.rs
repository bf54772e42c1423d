//! Edges that connect and break, and processes that die.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::{SinkExt, StreamExt, future::join_all};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split},
    time::timeout,
};
use tokio_util::{
    codec::{FramedRead, FramedWrite},
    task::TaskTracker,
};

use super::{
    INPUT, OUTPUT, TestAgent, TestPipeline, command, dial, edge,
    limits::{generous, limit, patience},
    order, skip_to_greeting, stream_options,
};
use crate::{
    Direction, GeneratedKey, Key, Stream,
    ssh::{
        agent::{
            edges::{ConnectedEdge, EdgeAcceptance},
            hello,
            job::{ConnectedEdges, Job, JobContext, Messages, OrderRun, OrderedEdge, OrderedEdges},
            open,
            served::{ClientSession, SessionKill},
        },
        frames::{FrameCodec, codec},
        protocol::{
            AgentReport, EdgeId, EdgeOrder, FaultKind, FromAgent, Order, Payload, ToAgent, Work,
            decode, encode, greeting,
        },
        sealed::SealedSession,
        stage::Status,
    },
};

/// An application that moves four bytes over each of its edges and sends every message back. It ends after the
/// message "end".
struct Echo {
    context: JobContext,
    directions: BTreeMap<EdgeId, Direction>,
}

impl Job for Echo {
    fn prepare(
        context: &JobContext,
        order: &Payload,
        edges: &OrderedEdges,
    ) -> Result<Self, String> {
        let text: String = order.decode().map_err(|error| error.to_string())?;
        assert_eq!(text, "echo");
        let direction = |(id, edge): (&EdgeId, &OrderedEdge)| (*id, edge.direction);
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

async fn echo(mut edge: ConnectedEdge, direction: Direction) -> ConnectedEdge {
    let mut bytes = *b"sent";
    if direction != Direction::Send {
        edge.stream.read_exact(&mut bytes).await.unwrap();
    }
    if direction != Direction::Receive {
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

/// Runs a worker that serves one order for [`Echo`], in this process, at the other end of `stream`, with this limit for
/// its edges.
async fn serve(stream: DuplexStream, connect_limit: Option<Duration>) {
    let (input, output) = split(stream);
    let opened = open(input, output, hello(), generous(), None).await;
    let (order, inbox, outbox, writer) = opened.unwrap();
    let context = JobContext {
        name: order.name.clone(),
        first_fault: Arc::default(),
        outbox,
        threads: TaskTracker::new().token(),
    };
    let run = OrderRun {
        context: context.clone(),
        acceptance: EdgeAcceptance::OwnListeners,
        connect_limit,
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
        stream: stream_options(),
        ports: None,
    }))
}

fn with(direction: Direction, mut edge: EdgeOrder) -> EdgeOrder {
    edge.direction = direction;
    edge
}

/// The other end of an edge: it receives where the agent sends, and sends where the agent receives.
async fn other_end(port: u16, key: &GeneratedKey, direction: Direction) -> Stream {
    let opposite = match direction {
        Direction::Send => Direction::Receive,
        Direction::Receive => Direction::Send,
        Direction::Both => Direction::Both,
    };
    dial(port, key, opposite).await
}

/// Starts an agent with edges of these directions, and moves bytes and messages over all of them.
async fn bring_up(directions: &[Direction]) {
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
            if *direction != Direction::Send {
                stream.write_all(&bytes).await.unwrap();
                stream.flush().await.unwrap();
            }
            if *direction != Direction::Receive {
                stream.read_exact(&mut bytes).await.unwrap();
            }
            let expected = match direction {
                Direction::Send => b"sent",
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
    tokio::join!(serve(theirs, None), controlling);
}

/// A client of a server that connects no edge, and one that connects its edge and never starts the work.
#[tokio::test]
async fn an_order_that_is_not_carried_on_has_a_limit() {
    for (connects, limit, expected) in [
        (false, Duration::from_millis(50), "did not connect within"),
        (
            true,
            Duration::from_secs(5),
            "did not start the work within",
        ),
    ] {
        let (ours, theirs) = duplex(1 << 16);
        let controlling = async {
            let mut session = EchoSession::open(ours).await;
            assert!(matches!(session.next().await, FromAgent::Hello(_)));
            let key = Key::generate().unwrap();
            let edges = vec![with(Direction::Both, edge(INPUT, &key, true))];
            session.send(echo_order(edges)).await;
            let FromAgent::Listening { port, .. } = session.next().await else {
                panic!("it does not listen");
            };
            let mut stream = None;
            if connects {
                stream = Some(other_end(port, &key, Direction::Both).await);
                assert!(matches!(session.next().await, FromAgent::Connected { .. }));
            }
            let FromAgent::Report(report) = session.next().await else {
                panic!("no report");
            };
            let text = report.fault.unwrap().text;
            assert!(text.contains(expected), "{text}");
            drop(stream);
        };
        tokio::join!(serve(theirs, Some(limit)), controlling);
    }
}

#[tokio::test]
async fn an_agent_serves_any_number_of_edges() {
    use Direction::{Both, Receive, Send};
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
async fn the_work_begins_without_the_edges_that_are_left_out() {
    let (ours, theirs) = duplex(1 << 16);
    let controlling = async {
        let mut session = EchoSession::open(ours).await;
        assert!(matches!(session.next().await, FromAgent::Hello(_)));
        let key = Key::generate().unwrap();
        // One listens, one waits for a request, and one is connected.
        let edges = [(0, true), (1, false), (2, true)];
        let edges =
            edges.map(|(id, listens)| with(Direction::Both, edge(EdgeId(id), &key, listens)));
        session.send(echo_order(edges.to_vec())).await;
        let mut ports = BTreeMap::new();
        while ports.len() < 2 {
            if let FromAgent::Listening { edge, port } = session.next().await {
                ports.insert(edge, port);
            }
        }
        session.send(ToAgent::LeaveOut { edge: EdgeId(0) }).await;
        let mut stream = other_end(ports[&EdgeId(2)], &key, Direction::Both).await;
        session.send(ToAgent::LeaveOut { edge: EdgeId(1) }).await;
        assert!(matches!(session.next().await, FromAgent::Connected { .. }));
        session.send(ToAgent::Go).await;
        let mut bytes = *b"ping";
        stream.write_all(&bytes).await.unwrap();
        stream.flush().await.unwrap();
        stream.read_exact(&mut bytes).await.unwrap();
        let port = ports[&EdgeId(0)];
        let refused = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
        assert!(refused.is_err(), "an edge that is left out still listens");
        let message = Payload::encode(&"end").unwrap();
        session.send(ToAgent::Application(message.clone())).await;
        assert_eq!(session.next().await, FromAgent::Application(message));
        assert!(matches!(
            session.next().await,
            FromAgent::Report(AgentReport { fault: None, .. })
        ));
    };
    tokio::join!(serve(theirs, None), controlling);
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
    let backwards = vec![with(Direction::Both, edge(OUTPUT, &key, true))];
    for (edges, expected) in [
        (twice, "the order names its edge 0 twice"),
        (backwards, "the order's edge 1 leads the wrong way"),
    ] {
        let mut agent = TestAgent::start().await;
        let order = super::order(1, command("true"), edges);
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
    let order = super::order(1, command("true"), vec![]);
    agent.send(ToAgent::Order(Box::new(order))).await;
    let edge = EdgeId(u32::MAX);
    agent.send(ToAgent::Listen { edge }).await;
    agent.send(ToAgent::Go).await;
    super::ends_with(&mut agent, crate::ssh::stage::Status::Exited(0)).await;
}

#[tokio::test]
async fn a_message_that_the_application_cannot_decode_ends_the_work() {
    let mut agent = TestAgent::start().await;
    let order = super::order(1, command("sleep 1000"), vec![]);
    agent.send(ToAgent::Order(Box::new(order))).await;
    agent.send(ToAgent::Go).await;
    let message = Payload::encode(&"nonsense").unwrap();
    agent.send(ToAgent::Application(message)).await;
    let (_, report, _) = agent.end().await;
    let fault = report.fault.unwrap();
    assert_eq!(fault.kind, FaultKind::Ordered);
    assert!(fault.text.contains("invalid message"), "{}", fault.text);
}

/// Commands whose processes are hard to end: they ignore SIGTERM, leave the session, fork or wait.
const STUBBORN: [&str; 6] = [
    "sleep 1000 & wait",
    "setsid sleep 1000 & wait",
    "(setsid sh -c 'sleep 1000 & sleep 1000' &) ; sleep 1000",
    "trap '' TERM; while :; do sleep 0.2; done",
    "f() { sleep 0.01; f & }; f; sleep 1000",
    "cat > /dev/null; sleep 1000",
];

/// Returns a command that runs `text` with a mark file open as descriptor 9. All its processes inherit the descriptor,
/// by which [`left`] finds them.
fn marked(directory: &Path, text: &str) -> String {
    let mark = directory.join("mark");
    fs::write(&mark, "").unwrap();
    format!("exec 9<{}; echo begun; {text}", mark.display())
}

/// Returns the processes that have the mark file open.
fn left(directory: &Path) -> Vec<String> {
    let mark = directory.join("mark");
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let marked = processes.filter(|process| {
        let descriptor = process.path().join("fd/9");
        fs::read_link(descriptor).is_ok_and(|path| path == mark)
    });
    marked
        .map(|process| process.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Waits until no marked process is left. rdpipe promises that within five seconds; a busy machine needs more.
async fn none_left(directory: &Path, since: Instant) {
    let limit = limit(Duration::from_secs(20));
    while !left(directory).is_empty() {
        assert!(since.elapsed() < limit, "{:?} are left", left(directory));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Returns the worker: the only child of the guard.
fn worker(agent: &TestAgent) -> Pid {
    let tasks = fs::read_dir(format!("/proc/{}/task", agent.guard.id())).unwrap();
    // Any thread of the guard may have started the worker, so the children of all threads are read.
    let children = tasks
        .flatten()
        .map(|task| fs::read_to_string(task.path().join("children")));
    let children: String = children.map(Result::unwrap_or_default).collect();
    let number = children.trim().parse().unwrap();
    Pid::from_raw(number).unwrap()
}

fn pid(child: &std::process::Child) -> Pid {
    Pid::from_child(child)
}

/// Starts a stage, and returns when its command has begun.
async fn begun(directory: &Path, text: &str) -> TestPipeline {
    use tokio::io::AsyncReadExt;
    let mut pipeline = TestPipeline::start(vec![command(&marked(directory, text))], true).await;
    let mut line = [0; 6];
    let reading = pipeline.output.read_exact(&mut line);
    tokio::time::timeout(generous(), reading)
        .await
        .unwrap()
        .unwrap();
    pipeline
}

#[tokio::test]
async fn a_killed_worker_leaves_no_process_behind() {
    for text in STUBBORN {
        let directory = tempfile::tempdir().unwrap();
        let mut pipeline = begun(directory.path(), text).await;
        let since = Instant::now();
        kill_process(worker(&pipeline.agents[0]), Signal::KILL).unwrap();
        assert_eq!(pipeline.agents[0].exit().await, 137, "{text}");
        none_left(directory.path(), since).await;
    }
}

#[tokio::test]
async fn a_killed_guard_leaves_no_process_behind() {
    for text in STUBBORN {
        let directory = tempfile::tempdir().unwrap();
        let mut pipeline = begun(directory.path(), text).await;
        let since = Instant::now();
        kill_process(pid(&pipeline.agents[0].guard), Signal::KILL).unwrap();
        none_left(directory.path(), since).await;
        pipeline.read().await.unwrap_err();
    }
}

#[tokio::test]
async fn a_controller_that_is_gone_leaves_no_process_behind() {
    for text in STUBBORN {
        let directory = tempfile::tempdir().unwrap();
        let mut pipeline = begun(directory.path(), text).await;
        let since = Instant::now();
        pipeline.agents[0].input = None;
        let (_, report, exit) = pipeline.agents[0].end().await;
        let fault = report.fault.unwrap();
        assert_eq!((fault.text.as_str(), exit), ("the controller is gone", 1));
        assert_eq!(fault.kind, FaultKind::Ordered);
        none_left(directory.path(), since).await;
    }
}

#[tokio::test]
async fn a_killed_command_leaves_no_process_behind() {
    let directory = tempfile::tempdir().unwrap();
    // The command dies at a time that the test chooses: bytes that it wrote shortly before would race with the abort
    // that follows its death.
    let text = "sleep 1000 & setsid sleep 1000 & read line; kill -9 $$";
    let mut pipeline = begun(directory.path(), text).await;
    let mut input = pipeline.input.take().unwrap();
    input.write_all(b"die\n").await.unwrap();
    input.flush().await.unwrap();
    let (_, report, _) = pipeline.agents[0].end().await;
    assert_eq!(
        (report.stage.status, report.fault),
        (Some(Status::Signaled(9)), None)
    );
    assert!(left(directory.path()).is_empty());
}

#[tokio::test]
async fn a_command_sees_no_end_of_file_after_half_an_input() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copy");
    let text = format!("cat > {}; echo done > {0}.end", copy.display());
    let mut pipeline = begun(directory.path(), &text).await;
    let mut input = pipeline.input.take().unwrap();
    input.write_all(b"half").await.unwrap();
    input.flush().await.unwrap();
    drop(input);
    let (messages, report, _) = pipeline.agents[0].end().await;
    assert_eq!(messages, []);
    assert!(report.fault.is_some());
    assert_eq!(report.stage.status, Some(Status::Signaled(15)));
    assert!(!directory.path().join("copy.end").exists());
    pipeline.read().await.unwrap_err();
}

#[tokio::test]
async fn a_command_sees_no_end_of_file_when_its_worker_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copy");
    let text = format!("cat > {}; echo done > {0}.end", copy.display());
    let mut pipeline = begun(directory.path(), &text).await;
    let mut input = pipeline.input.take().unwrap();
    input.write_all(b"half").await.unwrap();
    while fs::read(&copy).unwrap_or_default() != b"half" {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    kill_process(worker(&pipeline.agents[0]), Signal::KILL).unwrap();
    assert_eq!(pipeline.agents[0].exit().await, 137);
    assert!(left(directory.path()).is_empty());
    assert!(!directory.path().join("copy.end").exists());
}

#[tokio::test]
async fn a_signal_or_an_invalid_message_ends_a_stage() {
    use bytes::Bytes;
    use futures::SinkExt;
    let directory = tempfile::tempdir().unwrap();
    let mut pipeline = begun(directory.path(), STUBBORN[0]).await;
    kill_process(worker(&pipeline.agents[0]), Signal::TERM).unwrap();
    let (_, report, exit) = pipeline.agents[0].end().await;
    assert_eq!(
        report.fault.unwrap().text,
        "the agent was ended by signal 15 (SIGTERM)"
    );
    assert_eq!(exit, 143);

    let mut pipeline = begun(directory.path(), STUBBORN[0]).await;
    let agent = &mut pipeline.agents[0];
    let garbage = Bytes::from_static(b"\xff\xff\xff");
    agent.input.as_mut().unwrap().send(garbage).await.unwrap();
    let (_, report, exit) = agent.end().await;
    assert!(report.fault.unwrap().text.contains("invalid message"));
    assert_eq!(exit, 1);
    assert!(left(directory.path()).is_empty());
}

#[tokio::test]
async fn a_stage_ends_after_a_silent_controller_has_timed_out() {
    let mut agent = TestAgent::start().await;
    let mut order = super::order(1, command("sleep 1000"), vec![]);
    order.stream.timeout = Some(patience(Duration::from_secs(1)));
    agent.send(ToAgent::Order(Box::new(order))).await;
    agent.send(ToAgent::Ping).await;
    agent.send(ToAgent::Go).await;
    let (messages, report, exit) = agent.end().await;
    assert_eq!((messages, exit), (vec![], 1));
    assert!(report.fault.unwrap().text.starts_with("received nothing"));
    assert!(agent.seen.contains(&FromAgent::Pong));
}

/// An application that leaves its thread in a system call which nothing interrupts, until the test lets it end.
struct Hanging(mpsc::Receiver<()>);

impl Job for Hanging {
    fn prepare(_: &JobContext, _: &Payload, _: &OrderedEdges) -> Result<Self, String> {
        Err("this job is made by the test".to_owned())
    }

    async fn run(&mut self, mut edges: ConnectedEdges, _: Messages) {
        let (thread, edge) = edges.take(INPUT).unwrap();
        let release = std::mem::replace(&mut self.0, mpsc::channel().1);
        tokio::spawn(async move {
            let hanging = async move {
                let _ = release.recv();
                drop(edge);
            };
            thread.run(hanging).await;
        });
    }

    fn report(&self) -> Option<Payload> {
        None
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_place_of_a_session_is_taken_until_its_last_thread_has_ended() {
    let (near, far) = duplex(1 << 16);
    let (input, output) = split(far);
    let session = SealedSession {
        input: Box::new(input),
        output: Box::new(output),
    };
    let (warned, mut warning) = tokio::sync::mpsc::unbounded_channel();
    let client = ClientSession {
        edges: EdgeAcceptance::OwnListeners,
        end: SessionKill::default(),
        warn: Box::new(move |text| warned.send(text.to_owned()).unwrap()),
        most_streams: None,
    };
    let place = Arc::new(());
    let taken = Arc::clone(&place);
    let (release, hang) = mpsc::channel();
    let serving = tokio::spawn(async move {
        let place = std::future::ready(Ok(taken));
        let prepare = |_: &_, _: &_, _: &_| Ok(Hanging(hang));
        client.serve(session, place, |_| Ok(()), prepare).await
    });
    let mut session = EchoSession::open(near).await;
    assert!(matches!(session.next().await, FromAgent::Hello(_)));
    let key = Key::generate().unwrap();
    let input = with(Direction::Receive, edge(INPUT, &key, true));
    session.send(echo_order(vec![input])).await;
    let FromAgent::Listening { port, .. } = session.next().await else {
        panic!("no port");
    };
    let _other_end = other_end(port, &key, Direction::Receive).await;
    assert!(matches!(session.next().await, FromAgent::Connected { .. }));
    session.send(ToAgent::Go).await;
    assert!(matches!(session.next().await, FromAgent::Report(_)));
    drop(session);
    let text = timeout(generous(), warning.recv()).await.expect("in time");
    assert!(text.unwrap().contains("a thread of this copy hangs"));
    assert!(!serving.is_finished());
    assert_eq!(Arc::strong_count(&place), 2);
    drop(release);
    let report = timeout(generous(), serving).await.expect("in time");
    report.unwrap().unwrap();
    assert_eq!(Arc::strong_count(&place), 1);
}
