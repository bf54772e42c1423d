//! Stages that run commands between edges.

use tokio::io::AsyncWriteExt;

use super::controller::{
    INPUT, OUTPUT, TestAgent, TestPipeline, command, dial, edge, ends_by_broken_pipe, ends_with,
    order,
};
use crate::{
    Direction, Error, Key,
    ssh::{
        protocol::{FaultKind, FromAgent, ToAgent},
        stage::Status,
    },
};

const OK: Status = Status::Exited(0);

#[tokio::test]
async fn bytes_go_through_three_commands() {
    let works = ["tr a-z A-Z", "cat", "rev; echo done"]
        .map(command)
        .to_vec();
    let mut pipeline = TestPipeline::start(works, true).await;
    let mut input = pipeline.input.take().unwrap();
    input.write_all(b"hello\n").await.unwrap();
    input.finish().await.unwrap();
    assert_eq!(pipeline.read().await.unwrap(), b"OLLEH\ndone\n");
    for agent in &mut pipeline.agents {
        let report = ends_with(agent, OK).await;
        assert_eq!(report.bytes_in, 6);
        assert!(!report.input_stopped && !report.output_stopped);
    }
}

#[tokio::test]
async fn many_bytes_go_through_unchanged() {
    let mut pipeline = TestPipeline::start(vec![command("cat"), command("cat")], true).await;
    let mut input = pipeline.input.take().unwrap();
    let sent: Vec<u8> = (0..20_000_000_u32)
        .map(|n| (n / 7).to_le_bytes()[0])
        .collect();
    let copy = sent.clone();
    let writing = tokio::spawn(async move {
        input.write_all(&copy).await.unwrap();
        input.finish().await.unwrap();
    });
    assert!(
        pipeline.read().await.unwrap() == sent,
        "other bytes arrived"
    );
    writing.await.unwrap();
    for agent in &mut pipeline.agents {
        let report = ends_with(agent, OK).await;
        assert_eq!(
            (report.bytes_in, report.bytes_out),
            (20_000_000, 20_000_000)
        );
        assert!(report.elapsed_us >= report.blocked_on_input_us.max(report.blocked_on_output_us));
    }
}

#[tokio::test]
async fn a_command_that_fails_still_ends_its_output_and_reports_its_status() {
    let mut pipeline = TestPipeline::start(vec![command("echo x; exit 3")], false).await;
    assert_eq!(pipeline.read().await.unwrap(), b"x\n");
    ends_with(&mut pipeline.agents[0], Status::Exited(3)).await;
}

#[tokio::test]
async fn a_stage_waits_for_all_descendants_and_takes_the_status_of_the_first_that_fails() {
    // Each descendant waits until an earlier process has been reaped: the first one waits for the shell, which has
    // become `true`, and the second one for the first, whose failure must count.
    let gone = |pid: &str| format!("while kill -0 {pid} 2>/dev/null; do sleep 0.01; done");
    let (first, second) = (gone("$$"), gone("$x"));
    let text = format!("({first}; exit 3) & x=$!; ({second}; exit 4) & exec true");
    let mut pipeline = TestPipeline::start(vec![command(&text)], false).await;
    assert_eq!(pipeline.read().await.unwrap(), b"");
    ends_with(&mut pipeline.agents[0], Status::Exited(3)).await;
}

#[tokio::test]
async fn no_end_of_file_follows_the_output_of_a_killed_command() {
    let mut pipeline = TestPipeline::start(vec![command("echo x; kill -9 $$")], false).await;
    let error = pipeline.read().await.unwrap_err();
    let Some(Error::PeerAborted { reason, .. }) = Error::from_io(&error) else {
        panic!("{error:?}");
    };
    assert_eq!(
        reason,
        "stage 1 (here): its command was killed by signal 9 (SIGKILL)"
    );
    ends_with(&mut pipeline.agents[0], Status::Signaled(9)).await;
}

#[tokio::test]
async fn a_stage_that_stops_reading_ends_the_stages_before_it() {
    let works = vec![command("yes"), command("cat"), command("head -n 1")];
    let mut pipeline = TestPipeline::start(works, false).await;
    assert_eq!(pipeline.read().await.unwrap(), b"y\n");
    let last = ends_with(&mut pipeline.agents[2], OK).await;
    assert!(last.input_stopped && !last.output_stopped);
    for agent in &mut pipeline.agents[..2] {
        assert!(ends_by_broken_pipe(agent).await.output_stopped);
    }
}

#[tokio::test]
async fn a_missing_shell_fails_its_own_stage() {
    let mut agent = TestAgent::start_with(|command| {
        command.env("SHELL", "/no/such/shell");
    })
    .await;
    agent
        .send(ToAgent::Order(Box::new(order(1, command("true"), vec![]))))
        .await;
    agent.send(ToAgent::Go).await;
    let (_, report, _) = agent.end().await;
    let fault = report.fault.unwrap();
    assert_eq!((fault.kind, report.stage.status), (FaultKind::Local, None));
    assert!(
        fault
            .text
            .starts_with("cannot run the shell /no/such/shell: No such file"),
        "{}",
        fault.text
    );
}

#[tokio::test]
async fn a_sender_that_cannot_dial_listens_for_the_receiver() {
    let key = Key::generate().unwrap();
    let mut agent = TestAgent::start().await;
    let order = order(1, command("echo x"), vec![edge(OUTPUT, &key, false)]);
    agent.send(ToAgent::Order(Box::new(order))).await;
    // No process listens on port 1, and the name has no address.
    let addresses = ["127.0.0.1", "nowhere.invalid"].map(str::to_owned).to_vec();
    agent
        .send(ToAgent::Dial {
            edge: OUTPUT,
            addresses,
            port: 1,
        })
        .await;
    let FromAgent::Unreachable {
        edge: OUTPUT,
        tried,
    } = agent.next().await
    else {
        panic!("it was reached");
    };
    assert_eq!(tried.len(), 2);
    let refused = tried
        .iter()
        .find(|(address, _)| address == "127.0.0.1")
        .unwrap();
    assert!(refused.1.contains("refused"), "{tried:?}");
    agent.send(ToAgent::Listen { edge: OUTPUT }).await;
    let (_, port) = agent.listening().await;
    let output = dial(port, &key, Direction::Receive).await;
    agent.connected().await;
    agent.send(ToAgent::Go).await;
    let mut pipeline = TestPipeline {
        agents: vec![agent],
        input: None,
        output,
    };
    assert_eq!(pipeline.read().await.unwrap(), b"x\n");
    ends_with(&mut pipeline.agents[0], OK).await;
}

#[tokio::test]
async fn every_port_of_a_range_is_tried() {
    let taken = std::net::TcpListener::bind("[::]:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let key = Key::generate().unwrap();
    let mut agent = TestAgent::start().await;
    let mut order = order(1, command("true"), vec![edge(INPUT, &key, true)]);
    order.stream.ports = Some((port, port));
    agent.send(ToAgent::Order(Box::new(order))).await;
    let (_, report, _) = agent.end().await;
    let text = report.fault.unwrap().text;
    assert!(
        text.starts_with(&format!("cannot listen on port {port}: Address")),
        "{text}"
    );
}
