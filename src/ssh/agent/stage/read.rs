//! Stages that read files: `< path`, and the files of rdcat, one after the other.

use std::{
    io,
    path::{Path, PathBuf},
};

use tokio_util::sync::CancellationToken;

use super::{
    StageContext, StageEdges,
    path::{self, refuse_own_descriptor},
    read,
};
use crate::{
    fd::Source,
    ssh::{
        agent::connected_edge::{ConnectedEdge, EarlyEnd},
        stage::{FromStage, Status},
    },
};

/// Reads the input to its end, if there is one, waits until all earlier stages have succeeded, and sends the file.
pub(super) async fn run(stage: &StageContext, path: PathBuf, ends: StageEdges) -> Option<Status> {
    let StageEdges { input, output } = ends;
    let start = CancellationToken::new();
    let draining = async {
        if let Some((thread, edge)) = input {
            thread.run(discard(edge)).await;
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
        let (thread, edge) = output?;
        let sending = send(stage.clone(), edge, path, start.clone());
        Some(thread.run(sending).await)
    };
    tokio::join!(draining, sending).1
}

/// Reads the input to its end, discards it, and confirms it.
async fn discard(mut edge: ConnectedEdge) {
    match edge.drain(&mut tokio::io::sink()).await {
        Ok(()) => {
            let _ = edge.stream.confirm();
        }
        Err(EarlyEnd::Stream(error)) => edge.broken(error),
        Err(EarlyEnd::Local(error, _)) => edge.fail_local(error.to_string()),
        Err(EarlyEnd::Stopped | EarlyEnd::Elsewhere) => {}
    }
    edge.close().await;
}

/// Sends the file after `start` is cancelled.
async fn send(
    stage: StageContext,
    mut edge: ConnectedEdge,
    path: PathBuf,
    start: CancellationToken,
) -> Status {
    let sent = send_from(&mut edge, &path, &start).await;
    let sent = sent.map(|()| Status::Exited(0));
    conclude(&stage, edge, &path, sent).await
}

/// Ends the output of a stage that has sent files: with a FIN if it succeeded, else with the failure. `path` is the
/// last file that it sent.
pub(super) async fn conclude(
    stage: &StageContext,
    mut edge: ConnectedEdge,
    path: &Path,
    sent: Result<Status, EarlyEnd>,
) -> Status {
    let mut status = Status::Exited(0);
    match sent {
        Ok(sent) => {
            status = sent;
            stage.send(&FromStage::Ended(status));
        }
        Err(EarlyEnd::Stopped) => {
            edge.cause.output_stopped.set();
            stage.send(&FromStage::Ended(status));
        }
        Err(end) => {
            status = Status::Exited(1);
            tell(&edge, path, end);
        }
    }
    if sent_all(&edge) {
        match edge.finish().await {
            Ok(()) | Err(EarlyEnd::Elsewhere) => {}
            Err(EarlyEnd::Stopped) => edge.cause.output_stopped.set(),
            Err(end) => tell(&edge, path, end),
        }
    }
    edge.close().await;
    status
}

fn sent_all(edge: &ConnectedEdge) -> bool {
    !edge.cause.has_failed() && !edge.cause.output_stopped.is_set()
}

async fn send_from(
    edge: &mut ConnectedEdge,
    path: &Path,
    start: &CancellationToken,
) -> Result<(), EarlyEnd> {
    edge.until(start.cancelled()).await?;
    let opened = refuse_own_descriptor(path).and_then(|()| Source::open(path));
    let mut source = opened.map_err(|error| EarlyEnd::Local(error, 0))?;
    edge.fill(&mut source).await
}

fn tell(edge: &ConnectedEdge, path: &Path, end: EarlyEnd) {
    let path = path.display();
    match end {
        EarlyEnd::Stream(error) => edge.broken(error),
        EarlyEnd::Local(error, 0) => edge.fail_local(format!("cannot read {path}: {error}")),
        EarlyEnd::Local(error, offset) => {
            edge.fail_local(format!("cannot read {path} at byte {offset}: {error}"));
        }
        EarlyEnd::Stopped | EarlyEnd::Elsewhere => {}
    }
}

/// Sends every file that can be opened. The status is 1 if a file could not be opened, else 0.
pub(super) async fn run_files(
    stage: &StageContext,
    paths: Vec<Vec<u8>>,
    ends: StageEdges,
) -> Option<Status> {
    let (thread, edge) = ends.output?;
    Some(thread.run(send_files(stage.clone(), edge, paths)).await)
}

async fn send_files(stage: StageContext, mut edge: ConnectedEdge, paths: Vec<Vec<u8>>) -> Status {
    let mut status = Status::Exited(0);
    let mut at = PathBuf::new();
    let sending = async {
        for typed in paths {
            at = path::resolve(typed.clone());
            if let Err(error) = send_one(&mut edge, &at).await? {
                status = Status::Exited(1);
                let why = plain(&error);
                stage.send(&FromStage::Unreadable { path: typed, why });
            }
        }
        Ok(status)
    };
    let sent = sending.await;
    read::conclude(&stage, edge, &at, sent).await
}

/// Sends one file. The inner error is that of a file none of whose bytes were sent: the next file may follow. A file
/// that fails after its first byte ends the output, because the next file would look like the rest of this one.
async fn send_one(edge: &mut ConnectedEdge, path: &Path) -> Result<io::Result<()>, EarlyEnd> {
    let opened = path::refuse_own_descriptor(path).and_then(|()| Source::open(path));
    let mut source = match opened {
        Ok(source) => source,
        Err(error) => return Ok(Err(error)),
    };
    match edge.fill(&mut source).await {
        Err(EarlyEnd::Local(error, 0)) => Ok(Err(error)),
        filled => filled.map(Ok),
    }
}

/// Returns the text of an error as cat shows it: without the number of the error.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((name, _)) => name.to_owned(),
        None => text,
    }
}
