//! A stage that reads a file: `< path`.

use std::path::{Path, PathBuf};

use tokio_util::sync::CancellationToken;

use super::{StageContext, StageEdges};
use crate::{
    fd::Source,
    ssh::{
        agent::connected_edge::{ConnectedEdge, Trouble},
        stage::{FromStage, Status},
    },
};

/// Drains the input to nothing, if there is one, and when all before it has succeeded sends the file.
pub(super) async fn run(stage: &StageContext, path: PathBuf, ends: StageEdges) -> Option<Status> {
    let StageEdges { input, output } = ends;
    let start = CancellationToken::new();
    let draining = async {
        if let Some((thread, joint)) = input {
            thread.run(discard(joint)).await;
            if stage.context.cause.has_failed() {
                return;
            }
            stage.send(&FromStage::InputComplete);
            if !stage.may_proceed().await {
                return;
            }
        }
        start.cancel();
    };
    let sending = async {
        let (thread, joint) = output?;
        let sending = send(stage.clone(), joint, path, start.clone());
        Some(thread.run(sending).await)
    };
    tokio::join!(draining, sending).1
}

/// Reads the input to its end, and confirms it.
async fn discard(mut joint: ConnectedEdge) {
    match joint.drain(&mut tokio::io::sink()).await {
        Ok(()) => {
            let _ = joint.stream.confirm();
        }
        Err(Trouble::Stream(error)) => joint.broken(error),
        Err(Trouble::Local(error, _)) => joint.fail_local(error.to_string()),
        Err(Trouble::Stopped | Trouble::Elsewhere) => {}
    }
    joint.close().await;
}

/// Sends the file once it may `start`.
async fn send(
    stage: StageContext,
    mut joint: ConnectedEdge,
    path: PathBuf,
    start: CancellationToken,
) -> Status {
    let sent = send_from(&mut joint, &path, &start).await;
    let sent = sent.map(|()| Status::Exited(0));
    conclude(&stage, joint, &path, sent).await
}

/// Ends the output of a stage that has sent files, the last of them `path`: with its FIN if all went well.
pub(super) async fn conclude(
    stage: &StageContext,
    mut joint: ConnectedEdge,
    path: &Path,
    sent: Result<Status, Trouble>,
) -> Status {
    let mut status = Status::Exited(0);
    match sent {
        Ok(sent) => {
            status = sent;
            stage.send(&FromStage::Ended(status));
        }
        Err(Trouble::Stopped) => {
            joint.cause.output_stopped.set();
            stage.send(&FromStage::Ended(status));
        }
        Err(trouble) => {
            status = Status::Exited(1);
            tell(&joint, path, trouble);
        }
    }
    if sent_all(&joint) {
        match joint.finish().await {
            Ok(()) | Err(Trouble::Elsewhere) => {}
            Err(Trouble::Stopped) => joint.cause.output_stopped.set(),
            Err(trouble) => tell(&joint, path, trouble),
        }
    }
    joint.close().await;
    status
}

fn sent_all(joint: &ConnectedEdge) -> bool {
    !joint.cause.has_failed() && !joint.cause.output_stopped.is_set()
}

async fn send_from(
    joint: &mut ConnectedEdge,
    path: &Path,
    start: &CancellationToken,
) -> Result<(), Trouble> {
    joint.until(start.cancelled()).await?;
    let mut source = Source::open(path).map_err(|error| Trouble::Local(error, 0))?;
    joint.fill(&mut source).await
}

fn tell(joint: &ConnectedEdge, path: &Path, trouble: Trouble) {
    let path = path.display();
    match trouble {
        Trouble::Stream(error) => joint.broken(error),
        Trouble::Local(error, 0) => joint.fail_local(format!("cannot read {path}: {error}")),
        Trouble::Local(error, offset) => {
            joint.fail_local(format!("cannot read {path} at byte {offset}: {error}"));
        }
        Trouble::Stopped | Trouble::Elsewhere => {}
    }
}
