//! The destination of a copy: writes what the lanes carry.
//!
//! | file | holds |
//! |---|---|
//! | `placement` | where the sources go, by the rules of cp |
//! | `claims` | what each copy of a server writes, so that no two copies write the same |
//! | `control` | the two-way stream: questions and the end; `control/answers` what is wanted, and what an earlier run has left of it |
//! | `lane` | the writer of one lane; `lane/parts` its large files |
//! | `reader` | the records of a lane |
//! | `in_place` | devices, FIFOs, and files that cannot be replaced |
//! | `entry` | small entries: files, links, special files; `temporary_name` the names under which they are written |
//! | `large` | files that arrive in parts; `large/part` their temporary files, `large/map` their maps |
//! | `attributes` | owners, modes, times; `attributes/extended` extended attributes and ACLs |
//! | `tree` | directories: `beneath` opens them below the place and nowhere else, `folders` makes them, `mirror` removes what the source has not by `deletion`, `links` makes the hard links at the end |
//! | `written` | what the run has written, and the renames that overwrite none of it |
//!
//! Every lane is written on its own thread, with blocking system calls. A small file costs an open, a write, a rename
//! and a close, and with all metadata the times; further calls only if the mode or the owner of a new file is not the
//! wanted one. No entry is a task, and none is acknowledged.
//!
//! The source is authenticated and may all the same be hostile. Nothing outside the place is written, removed or
//! changed: names are checked when they are decoded, and directories are opened below the place and without symbolic
//! links. Memory is bounded, except for the directories.

mod attributes;
mod claims;
mod control;
mod entry;
mod in_place;
mod lane;
mod large;
mod placement;
mod reader;
mod state;
mod stored_times;
#[cfg(test)]
mod tests;
mod tree;
mod written;

pub(crate) use claims::CopyClaims;
pub(crate) use claims::DestinationClaims;
#[cfg(fuzzing)]
pub(crate) use large::map::fuzz as fuzz_map;

use std::sync::Arc;

use futures::future::join_all;
use tokio::sync::{mpsc, oneshot};

use self::{
    control::DestinationControl,
    lane::LaneWriter,
    large::target::PartUse,
    placement::Placement,
    state::{DestinationShared, DestinationState},
    written::WrittenGuard,
};
use super::{
    base::BaseDirectory,
    filter::NameFilter,
    job::{CopyContext, CopyFailure, CopyStreams},
    order::{CopyOptions, CopyReport, ExistingFiles, FromCopy, RunPart},
    path::CopiedSources,
    written::{WrittenEntries, WrittenPart},
};
use crate::{Stream, carry::thread::CarryThread};

/// The paths of unwritten entries that wait for the control stream. A lane waits if there are more.
const UNWRITTEN_PATHS: usize = 1024;

/// The destination of a copy, ready to run.
#[derive(Debug)]
pub(crate) struct DestinationEngine {
    placement: Placement,
    filter: NameFilter,
    options: CopyOptions,
    /// True if a server writes for a client.
    is_served: bool,
    claims: Option<CopyClaims>,
    part: RunPart,
    /// What earlier copies of the run have written.
    earlier: WrittenEntries,
}

/// A lane whose records are all written.
type EndedLane = (CarryThread, Stream);

impl DestinationEngine {
    /// Finds the place that receives the copy. Makes nothing.
    ///
    /// `path` is the destination as the user typed it, relative to `base`; `sources` what arrives there.
    ///
    /// # Errors
    ///
    /// Fails with a sentence for the user if the sources cannot go there.
    pub(crate) fn prepare(
        base: &BaseDirectory,
        path: &[u8],
        sources: CopiedSources,
        options: CopyOptions,
    ) -> Result<Self, String> {
        let placement = Placement::find(base, path, sources, &options)?;
        let filter = NameFilter::new(&options.filters)?;
        Ok(Self {
            placement,
            filter,
            options,
            is_served: base.is_confined(),
            claims: None,
            part: RunPart::default(),
            earlier: WrittenEntries::default(),
        })
    }

    /// Overwrites nothing that another source of its run has brought.
    pub(crate) fn with_part(mut self, part: RunPart) -> Self {
        self.part = part;
        self
    }

    /// Adds entries that earlier copies of the run have written.
    pub(crate) fn add_earlier(&mut self, part: WrittenPart) {
        self.earlier.add(part);
    }

    /// Writes nothing that another copy with the same claims writes at the time.
    pub(crate) fn with_claims(mut self, claims: CopyClaims) -> Self {
        self.claims = Some(claims);
        self
    }

    /// Writes all that the source sends. Returns what was done, and why that is not everything, if it is not.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: cancel [`CopyContext::cancelled`] to end the work.
    pub(crate) async fn run(
        self,
        streams: CopyStreams,
        context: CopyContext,
    ) -> (CopyReport, Option<CopyFailure>) {
        let Self {
            placement,
            filter,
            options,
            is_served,
            claims,
            part,
            earlier,
        } = self;
        let keeps_existing = options.existing == ExistingFiles::Keep;
        let written = WrittenGuard::new(part, earlier, keeps_existing);
        let report = Arc::clone(&context.report);
        let state = DestinationState::new(placement, filter, options, is_served, written, context);
        let shared = Arc::new(DestinationShared::new(state, claims));
        let failure = write_all(&shared, streams).await.err();
        let failure = failure.map(|last| shared.state.first_failure().unwrap_or(last));
        for target in shared.large.clear() {
            target.give_up(PartUse::Continuable);
            if let Some(left) = target.left() {
                let why = format!("was not copied to its end{left}");
                shared.state.fail(&target.local, why);
            }
        }
        shared.folders.lock_again(&shared.state);
        shared.release_claims();
        for part in shared.state.written.for_later() {
            report(FromCopy::Written(part));
        }
        (shared.state.report(failure.is_none()), failure)
    }
}

async fn write_all(
    shared: &Arc<DestinationShared>,
    streams: CopyStreams,
) -> Result<(), CopyFailure> {
    let (unwritten_paths, unwritten) = mpsc::channel(UNWRITTEN_PATHS);
    let (lanes_ended, when_lanes_ended) = oneshot::channel();
    let (thread, stream) = streams.control;
    let control = DestinationControl::new(Arc::clone(shared), stream, unwritten);
    let control = thread.run(control.run(when_lanes_ended));
    let lanes = write_lanes(shared, streams.lanes, unwritten_paths);
    let lanes = async {
        let ended = lanes.await?;
        // A control that has ended has its own failure.
        let _ = lanes_ended.send(());
        Ok(ended)
    };
    let (control, lanes) = tokio::join!(control, lanes);
    let (control, lanes) = match (control, lanes) {
        (Ok(control), Ok(lanes)) => (control, lanes),
        (Err(failure), Ok(lanes)) => {
            abort(&shared.state, lanes).await;
            return Err(failure);
        }
        (_, Err(failure)) => return Err(failure),
    };
    confirm(lanes).await?;
    thread.run(control.end()).await;
    Ok(())
}

/// Writes all lanes. The first failure ends the others.
async fn write_lanes(
    shared: &Arc<DestinationShared>,
    lanes: Vec<EndedLane>,
    unwritten_paths: mpsc::Sender<super::path::RelativePath>,
) -> Result<Vec<EndedLane>, CopyFailure> {
    let writing = lanes.into_iter().map(|(thread, stream)| {
        let writer = LaneWriter::new(Arc::clone(shared), stream, unwritten_paths.clone());
        async move {
            let stream = thread.run(writer.run()).await?;
            Ok((thread, stream))
        }
    });
    let writing = join_all(writing.collect::<Vec<_>>());
    drop(unwritten_paths);
    let (ended, failed): (Vec<_>, Vec<_>) = writing.await.into_iter().partition(Result::is_ok);
    let ended = ended.into_iter().flatten().collect();
    match failed.into_iter().find_map(Result::err) {
        None => Ok(ended),
        Some(failure) => {
            abort(&shared.state, ended).await;
            Err(failure)
        }
    }
}

/// Tells the source that everything has its final name.
async fn confirm(lanes: Vec<EndedLane>) -> Result<(), CopyFailure> {
    for (thread, mut stream) in lanes {
        let confirmed = thread.run(async move {
            let confirmed = stream.confirm();
            stream.close().await;
            confirmed
        });
        confirmed.await.map_err(CopyFailure::Stream)?;
    }
    Ok(())
}

/// Ends lanes whose records were all written, because the work has failed elsewhere.
async fn abort(state: &DestinationState, lanes: Vec<EndedLane>) {
    let reason = state.reason();
    for (thread, mut stream) in lanes {
        let reason = reason.clone();
        let aborting = async move {
            stream.abort(&reason);
            stream.close().await;
        };
        thread.run(aborting).await;
    }
}
