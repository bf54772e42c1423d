//! A stage that writes a file: `> path` and `>> path`.

use std::{
    io,
    path::{Path, PathBuf},
};

use tokio_util::sync::CancellationToken;

use super::{StageContext, StageEdges, output_file::OutputFile};
use crate::ssh::{
    agent::connected_edge::{ConnectedEdge, EarlyEnd},
    protocol::FromAgent,
    stage::{FromStage, Status},
};

/// Writes the input to the file, commits the file when all earlier stages have succeeded, and then sends an empty
/// output.
pub(super) async fn run(
    stage: &StageContext,
    path: PathBuf,
    append: bool,
    ends: StageEdges,
) -> Option<Status> {
    let StageEdges { input, output } = ends;
    let committed = CancellationToken::new();
    let storing = async {
        let is_stored = match input {
            Some((thread, edge)) => thread.run(store(stage.clone(), edge, path, append)).await,
            None => create(stage, &path, append).await,
        };
        if is_stored {
            committed.cancel();
        }
        Some(Status::Exited(u8::from(!is_stored)))
    };
    let ending = async {
        if let Some((thread, edge)) = output {
            thread.run(send_nothing(edge, committed.clone())).await;
        }
    };
    tokio::join!(storing, ending).0
}

/// Creates or truncates the file of a stage without input. Returns true if the file is committed.
async fn create(stage: &StageContext, path: &Path, append: bool) -> bool {
    let creating = async {
        let file = OutputFile::open(path, append).await?;
        stage.send(&FromStage::InputComplete);
        if !stage.may_proceed().await {
            return Ok(false);
        }
        file.commit(stage.fsync).await?;
        Ok::<_, io::Error>(true)
    };
    let created = tokio::select! {
        created = creating => created,
        () = stage.context.cause.failed() => Ok(false),
    };
    match &created {
        Ok(true) => stage.send(&FromStage::Ended(Status::Exited(0))),
        Ok(false) => {}
        Err(error) => stage
            .context
            .fail_local(&format!("cannot write {}: {error}", path.display())),
    }
    matches!(created, Ok(true))
}

/// Writes the input to the file. Returns true if the file is committed.
async fn store(stage: StageContext, mut edge: ConnectedEdge, path: PathBuf, append: bool) -> bool {
    let stored = match open(&edge, &path, append).await {
        Ok(file) => store_into(&stage, &mut edge, file).await,
        Err(end) => Err(("cannot open", end, String::new())),
    };
    let is_stored = stored.is_ok();
    match stored {
        Ok(()) => {
            stage.send(&FromStage::Ended(Status::Exited(0)));
            // This fails only if the peer is gone, and all its bytes have arrived.
            let _ = edge.stream.confirm();
        }
        Err((what, end, before)) => tell(&stage, &edge, &path, what, end, &before),
    }
    edge.close().await;
    is_stored
}

async fn open(edge: &ConnectedEdge, path: &Path, append: bool) -> Result<OutputFile, EarlyEnd> {
    let opened = edge.until(OutputFile::open(path, append)).await?;
    opened.map_err(|error| EarlyEnd::Local(error, 0))
}

/// Writes the input to the opened file and commits it. An error has the step that failed, and the earlier state of the
/// file if the failure leaves it changed.
async fn store_into(
    stage: &StageContext,
    edge: &mut ConnectedEdge,
    mut file: OutputFile,
) -> Result<(), (&'static str, EarlyEnd, String)> {
    let before = file.before();
    let failed = |what| move |end| (what, end, before.clone());
    let drained = edge.drain(file.sink()).await;
    drained.map_err(failed.clone()("cannot write"))?;
    stage.send(&FromStage::InputComplete);
    let proceeding = edge.until(stage.proceed.cancelled()).await;
    proceeding.map_err(failed.clone()("cannot write"))?;
    let committed = file.commit(stage.fsync).await;
    committed.map_err(|error| failed("cannot finish")(EarlyEnd::Local(error, 0)))
}

fn tell(
    stage: &StageContext,
    edge: &ConnectedEdge,
    path: &Path,
    what: &str,
    end: EarlyEnd,
    before: &str,
) {
    let path = path.display();
    match end {
        EarlyEnd::Local(error, 0) => {
            return edge.fail_local(format!("{what} {path}: {error}{before}"));
        }
        EarlyEnd::Local(error, offset) => {
            return edge.fail_local(format!("{what} {path} at byte {offset}: {error}{before}"));
        }
        EarlyEnd::Stream(error) => edge.broken(error),
        EarlyEnd::Stopped | EarlyEnd::Elsewhere => {}
    }
    if let Some(before) = before.strip_prefix("; it") {
        stage
            .context
            .outbox
            .send(FromAgent::Warning(format!("{path}{before}")));
    }
}

/// Sends an empty output after the file is committed.
async fn send_nothing(mut edge: ConnectedEdge, committed: CancellationToken) {
    let sent = match edge.until(committed.cancelled()).await {
        Ok(()) => edge.finish().await,
        Err(end) => Err(end),
    };
    match sent {
        Err(EarlyEnd::Stopped) => edge.cause.output_stopped.set(),
        Err(EarlyEnd::Stream(error)) => edge.broken(error),
        Ok(()) | Err(EarlyEnd::Local(..) | EarlyEnd::Elsewhere) => {}
    }
    edge.close().await;
}
