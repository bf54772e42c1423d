//! A stage that sends several files, one after the other: for rdcat.

use std::{io, path::PathBuf};

use super::{StageContext, StageEdges, path, read};
use crate::{
    fd::Source,
    ssh::{
        agent::connected_edge::{ConnectedEdge, Trouble},
        stage::{FromStage, Status},
    },
};

/// Sends all that can be opened. The status is 1 where some could not.
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

/// Sends one file. The inner error is that of one of which nothing was sent: the next one may follow. After one
/// that fails later nothing may, since it would look like the rest of it.
async fn send_one(
    edge: &mut ConnectedEdge,
    path: &std::path::Path,
) -> Result<io::Result<()>, Trouble> {
    let mut source = match Source::open(path) {
        Ok(source) => source,
        Err(error) => return Ok(Err(error)),
    };
    match edge.fill(&mut source).await {
        Err(Trouble::Local(error, 0)) => Ok(Err(error)),
        filled => filled.map(Ok),
    }
}

/// Returns the words that cat has for the error: its name, without its number.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((name, _)) => name.to_owned(),
        None => text,
    }
}
