//! Stages between connected edges: commands and files.

use std::{
    fs,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::Path,
};

use tokio::io::AsyncWriteExt;

use super::{
    INPUT, OUTPUT, TestAgent, TestPipeline, command, dial, edge, ends_by_broken_pipe, ends_with,
    order,
};
use crate::{
    Direction, Error, Key,
    ssh::{
        protocol::{FaultKind, FromAgent, ToAgent},
        stage::{FromStage, StageWork, Status},
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
            is_relayed: false,
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
    order.ports = Some((port, port));
    agent.send(ToAgent::Order(Box::new(order))).await;
    let (_, report, _) = agent.end().await;
    let text = report.fault.unwrap().text;
    assert!(
        text.starts_with(&format!("cannot listen on port {port}: Address")),
        "{text}"
    );
}

fn read(path: &Path) -> StageWork {
    StageWork::Read(path.as_os_str().as_bytes().to_vec())
}

fn write(path: &Path, append: bool) -> StageWork {
    let path = path.as_os_str().as_bytes().to_vec();
    StageWork::Write { path, append }
}

async fn proceed(pipeline: &mut TestPipeline, index: usize) {
    let agent = &mut pipeline.agents[index];
    assert_eq!(agent.next_of_stage().await, FromStage::InputComplete);
    agent.proceed().await;
}

#[tokio::test]
async fn a_file_goes_through_a_command_to_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (directory.path().join("from"), directory.path().join("to"));
    fs::write(&from, "text").unwrap();
    let works = vec![read(&from), command("tr a-z A-Z"), write(&to, false)];
    let mut pipeline = TestPipeline::start(works, false).await;
    assert_eq!(
        pipeline.agents[2].next_of_stage().await,
        FromStage::InputComplete
    );
    assert!(!to.exists());
    pipeline.agents[2].proceed().await;
    assert_eq!(pipeline.read().await.unwrap(), b"");
    assert_eq!(fs::read(&to).unwrap(), b"TEXT");
    for agent in &mut pipeline.agents {
        ends_with(agent, OK).await;
    }
}

#[tokio::test]
async fn an_append_keeps_the_bytes_of_the_file_and_adds_the_input() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    fs::write(&path, "one ").unwrap();
    let mut pipeline = TestPipeline::start(vec![write(&path, true)], true).await;
    let mut input = pipeline.input.take().unwrap();
    input.write_all(b"two").await.unwrap();
    input.shutdown().await.unwrap();
    proceed(&mut pipeline, 0).await;
    input.finish().await.unwrap();
    assert_eq!(pipeline.read().await.unwrap(), b"");
    assert_eq!(fs::read(&path).unwrap(), b"one two");
    ends_with(&mut pipeline.agents[0], OK).await;
}

#[tokio::test]
async fn without_input_a_file_is_created_or_emptied() {
    for (append, kept) in [(false, "".as_bytes()), (true, b"kept")] {
        let directory = tempfile::tempdir().unwrap();
        let (old, new) = (directory.path().join("old"), directory.path().join("new"));
        fs::write(&old, "kept").unwrap();
        for path in [&old, &new] {
            let mut pipeline = TestPipeline::start(vec![write(path, append)], false).await;
            proceed(&mut pipeline, 0).await;
            assert_eq!(pipeline.read().await.unwrap(), b"");
            ends_with(&mut pipeline.agents[0], OK).await;
        }
        assert_eq!(fs::read(&old).unwrap(), kept);
        assert_eq!(fs::read(&new).unwrap(), b"");
    }
}

#[tokio::test]
async fn a_file_in_the_middle_waits_for_the_earlier_stages() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let works = vec![command("echo dropped"), read(&path)];
    let mut pipeline = TestPipeline::start(works, false).await;
    assert_eq!(
        pipeline.agents[1].next_of_stage().await,
        FromStage::InputComplete
    );
    ends_with(&mut pipeline.agents[0], OK).await;
    fs::write(&path, "anew").unwrap();
    pipeline.agents[1].proceed().await;
    assert_eq!(pipeline.read().await.unwrap(), b"anew");
    ends_with(&mut pipeline.agents[1], OK).await;
}

#[tokio::test]
async fn a_killed_stage_keeps_the_old_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, "old").unwrap();
    let works = vec![command("echo new; exit 3"), write(&path, false)];
    let mut pipeline = TestPipeline::start(works, false).await;
    let agent = &mut pipeline.agents[1];
    assert_eq!(agent.next_of_stage().await, FromStage::InputComplete);
    agent
        .send(ToAgent::Kill {
            reason: "stage 1 failed".into(),
        })
        .await;
    let (_, report, exit) = agent.end().await;
    assert_eq!((report.fault.unwrap().kind, exit), (FaultKind::Ordered, 0));
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn the_message_names_the_file_that_failed() {
    let works = vec![read(Path::new("/no/such/file"))];
    let mut pipeline = TestPipeline::start(works, false).await;
    pipeline.read().await.unwrap_err();
    let (_, report, _) = pipeline.agents[0].end().await;
    let fault = report.fault.unwrap();
    assert!(
        fault
            .text
            .starts_with("cannot read /no/such/file: No such file"),
        "{}",
        fault.text
    );
    assert_eq!(
        (fault.kind, report.stage.status),
        (FaultKind::Local, Some(Status::Exited(1)))
    );

    let works = vec![command("echo x"), write(Path::new("/dev/full"), true)];
    let mut pipeline = TestPipeline::start(works, false).await;
    pipeline.read().await.unwrap_err();
    let (_, report, _) = pipeline.agents[1].end().await;
    let fault = report.fault.unwrap();
    assert!(
        fault
            .text
            .starts_with("cannot write /dev/full: No space left"),
        "{}",
        fault.text
    );
}

#[tokio::test]
async fn several_files_arrive_in_order_and_unreadable_ones_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).into_os_string().into_vec();
    fs::write(directory.path().join("a"), "first, ").unwrap();
    fs::write(directory.path().join("b"), "second").unwrap();
    let paths = ["a", "none", "b", "."].map(path).to_vec();
    let mut pipeline = TestPipeline::start(vec![StageWork::Files(paths)], false).await;
    let unreadable = |name, why: &str| FromStage::Unreadable {
        path: path(name),
        why: why.to_owned(),
    };
    assert_eq!(pipeline.read().await.unwrap(), b"first, second");
    let agent = &mut pipeline.agents[0];
    let missing = unreadable("none", "No such file or directory");
    assert_eq!(agent.next_of_stage().await, missing);
    assert_eq!(
        agent.next_of_stage().await,
        unreadable(".", "Is a directory")
    );
    let report = ends_with(agent, Status::Exited(1)).await;
    assert_eq!(report.bytes_out, 13);
}

#[tokio::test]
async fn a_failed_append_reports_the_length_that_the_file_had() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    fs::write(&path, "one ").unwrap();
    let mut pipeline = TestPipeline::start(vec![write(&path, true)], true).await;
    let mut input = pipeline.input.take().unwrap();
    input.write_all(b"two").await.unwrap();
    input.flush().await.unwrap();
    while fs::read(&path).unwrap() != b"one two" {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    input.abort("the source broke");
    let (_, report, _) = pipeline.agents[0].end().await;
    assert_eq!(report.fault.unwrap().kind, FaultKind::PeerAborted);
    let warned = |message: &FromAgent| matches!(message, FromAgent::Warning(text) if text.contains("had 4 bytes before"));
    assert!(pipeline.agents[0].seen.iter().any(warned));
}
