//! The stage of rdcat: sends several files, one after the other.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{StageContext, StageEdges, path, read};
use crate::{
    fd::Source,
    ssh::{
        agent::connected_edge::{ConnectedEdge, EarlyEnd},
        stage::{FromStage, Status},
    },
};

/// Sends every file that can be opened. The status is 1 if a file could not be opened, else 0.
pub(super) async fn run(
    stage: &StageContext,
    paths: Vec<Vec<u8>>,
    ends: StageEdges,
) -> Option<Status> {
    let (thread, edge) = ends.output?;
    Some(thread.run(send(stage.clone(), edge, paths)).await)
}

async fn send(stage: StageContext, mut edge: ConnectedEdge, paths: Vec<Vec<u8>>) -> Status {
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
