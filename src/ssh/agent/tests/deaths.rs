//! No process stays behind when a worker, a guard, a controller or a command is killed.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncWriteExt;

use super::{
    controller::{TestAgent, TestPipeline, command},
    limits::{generous, limit, patience},
};
use crate::ssh::{
    protocol::{FaultKind, FromAgent, ToAgent},
    stage::Status,
};

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
    let mut order = super::controller::order(1, command("sleep 1000"), vec![]);
    order.stream.timeout_ms = u64::try_from(patience(Duration::from_secs(1)).as_millis()).unwrap();
    agent.send(ToAgent::Order(Box::new(order))).await;
    agent.send(ToAgent::Ping).await;
    agent.send(ToAgent::Go).await;
    let (messages, report, exit) = agent.end().await;
    assert_eq!((messages, exit), (vec![], 1));
    assert!(report.fault.unwrap().text.starts_with("received nothing"));
    assert!(agent.seen.contains(&FromAgent::Pong));
}
