//! Stages that read and write files: `<`, `>`, `>>`, and the files of rdcat.

use std::{
    fs,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::Path,
};

use tokio::io::AsyncWriteExt;

use super::controller::{TestPipeline, command, ends_with};
use crate::ssh::{
    protocol::{FaultKind, FromAgent, ToAgent},
    stage::{FromStage, StageWork, Status},
};

const OK: Status = Status::Exited(0);

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
