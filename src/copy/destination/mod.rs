//! The destination of a copy: writes what the lanes carry, and answers over the control stream.
//!
//! A `placement` says where the sources go, by the rules of cp. Each `lane` is written on its own thread, with blocking
//! system calls: folders, small entries, and the parts of large files. The control stream brings the questions of the
//! source and what is to be removed; at its end files are completed, hard links made, and folders get their metadata.
//!
//! A small file costs an open, a write, a rename and a close, and with all metadata the times; further calls only if
//! the mode or the owner of a new file is not the wanted one. No entry is a task, and none is acknowledged.
//!
//! The source is authenticated and may all the same be hostile. Nothing outside the place is written, removed or
//! changed: names are checked when they are decoded, and directories are opened below the place and without symbolic
//! links. Memory is bounded: long lists are in files without names, and all others have one [`budget`](super::budget).

mod answers;
mod attributes;
mod claims;
mod ends;
mod entry;
mod extended_attributes;
mod folders;
mod in_place;
mod lane;
mod large;
mod large_target;
mod mirror;
mod part_file;
mod placement;
mod state;
mod stored_times;
#[cfg(test)]
mod tests;
mod written;

use std::{sync::Arc, time::Duration};

use bytes::BytesMut;
use futures::{SinkExt, StreamExt, future::join_all};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::{
        mpsc::{self, Receiver},
        oneshot,
    },
};
use tokio_util::codec::{FramedRead, FramedWrite, LengthDelimitedCodec};

use self::{
    answers::answer,
    attributes::MetadataKeeper,
    entry::TemporaryName,
    lane::{LaneWriter, broken},
    large_target::PartUse,
    mirror::MirroredFolder,
    placement::ComparedOperands,
    placement::Placement,
    state::{DestinationShared, DestinationState},
    written::{KeptExisting, WrittenGuard},
};
use super::{
    budget::{ListBudget, SET_ENTRY_BYTES},
    job::{CopyContext, CopyError, CopyStreams, ReportSink},
    metadata::LocalOwners,
    order::{CopyOptions, CopyReport, FromCopy, KeptRights, NameFilter, RunPart},
    path::{BaseDirectory, CopiedSources, RelativePath},
    question::{
        FromDestination, FromSource, MAX_ANSWER_BYTES, MAX_QUESTION_BYTES, codec, decode, encode,
    },
    temporary_names::PartOwner,
    written::{BLOCK_BYTES, WrittenEntries, WrittenPart},
};
use crate::{ReadHalf, Stream, WriteHalf, carry::CarryThread, threads};

pub(crate) use claims::{CopyClaims, DestinationClaims};

#[cfg(any(test, fuzzing))]
pub(crate) use self::part_file::fuzz as fuzz_map;

/// The paths of unwritten entries that wait for the control stream. A lane waits if there are more.
const UNWRITTEN_PATHS: usize = 64;

/// The destination of a copy, ready to run.
#[derive(Debug)]
pub(crate) struct DestinationEngine {
    placement: Placement,
    filter: NameFilter,
    options: CopyOptions,
    budget: Arc<ListBudget>,
    /// True if a server writes for a client.
    is_served: bool,
    rights: KeptRights,
    claims: Option<CopyClaims>,
    existing: ExistingRights,
    owner: PartOwner,
    part: RunPart,
    earlier: WrittenEntries,
}

/// What a server decides of the copies that it writes for a client.
#[derive(Debug)]
pub(crate) struct ServedDestination {
    pub(crate) claims: CopyClaims,
    /// Whose unfinished files the copy continues.
    pub(crate) owner: PartOwner,
    /// True if everything is kept that the server's process may set (`--privileged`).
    pub(crate) is_privileged: bool,
    /// What the client may do with entries that exist.
    pub(crate) existing: ExistingRights,
}

/// What the source of a copy may do with entries that the destination has already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExistingRights {
    /// True if the source is told what an entry is: its size, its time, and whether it is the same.
    pub(crate) reads: bool,
    /// True if an entry is replaced, and gets other metadata.
    pub(crate) replaces: bool,
}

impl ExistingRights {
    /// The rights of a source that no server limits.
    pub(crate) const ALL: Self = Self {
        reads: true,
        replaces: true,
    };
}

/// A lane whose records are all written.
type EndedLane = (CarryThread, Stream);

impl DestinationEngine {
    /// Finds the place that receives the copy. Makes nothing.
    ///
    /// `path` is the destination as the user typed it, relative to `base`; `sources` what arrives there.
    /// Fails with a sentence for the user if the sources cannot go there.
    pub(crate) fn prepare(
        base: &BaseDirectory,
        path: &[u8],
        sources: CopiedSources,
        options: CopyOptions,
    ) -> Result<Self, String> {
        let placement = Placement::find(base, path, sources, &options)?;
        let filter = NameFilter::new(&options.filters)?;
        let is_served = base.is_confined();
        let rights = match (is_served, options.drops_lent_rights) {
            (true, _) => KeptRights::Permissions,
            (false, true) => KeptRights::Owners,
            (false, false) => KeptRights::All,
        };
        Ok(Self {
            placement,
            filter,
            options,
            budget: Arc::new(ListBudget::of_agent()),
            is_served,
            rights,
            claims: None,
            existing: ExistingRights::ALL,
            owner: PartOwner::user(),
            part: RunPart::default(),
            earlier: WrittenEntries::default(),
        })
    }

    /// Overwrites nothing that another source of its run has brought.
    pub(crate) fn with_part(mut self, part: RunPart) -> Self {
        self.part = part;
        self
    }

    /// Adds entries that earlier copies of the run have written. A source that may replace nothing could name what exists
    /// as its own, and needs none: nothing is replaced.
    pub(crate) fn add_earlier(&mut self, part: WrittenPart) {
        if !self.existing.replaces {
            return;
        }
        if self.budget.take_spare(part.len() * BLOCK_BYTES) {
            self.earlier.add(part);
        } else {
            self.earlier.set_full();
        }
    }

    /// Keeps no more lists than the budget allows.
    pub(crate) fn with_budget(mut self, budget: ListBudget) -> Self {
        self.budget = Arc::new(budget);
        self
    }

    /// Keeps all that the process may set, for a server whose administrator has said so.
    pub(crate) fn with_all_rights(mut self) -> Self {
        self.rights = KeptRights::All;
        self
    }

    /// Writes nothing that another copy with the same claims writes at the time.
    pub(crate) fn with_claims(mut self, claims: CopyClaims) -> Self {
        self.claims = Some(claims);
        self
    }

    /// Does with entries that exist what the source may.
    pub(crate) fn with_existing_rights(mut self, existing: ExistingRights) -> Self {
        self.existing = existing;
        self
    }

    /// Continues what earlier copies of this owner have left, and nothing else.
    pub(crate) fn with_owner(mut self, owner: PartOwner) -> Self {
        self.owner = owner;
        self
    }

    /// Writes all that the source sends. Returns what was done, and why that is not everything, if it is not.
    /// Not cancel safe: cancel [`CopyContext::cancelled`] to end the work.
    pub(crate) async fn run(
        self,
        streams: CopyStreams,
        context: CopyContext,
    ) -> (CopyReport, Option<CopyError>) {
        let Self {
            placement,
            filter,
            options,
            budget,
            is_served,
            rights,
            claims,
            existing,
            owner,
            part,
            earlier,
        } = self;
        let kept = KeptExisting::of(&options, existing);
        let written = WrittenGuard::new(part, earlier, kept, Arc::clone(&budget));
        let report = Arc::clone(&context.report);
        let keeper = MetadataKeeper::of_process(options.archive, is_served, rights);
        let mut state =
            DestinationState::new(placement, filter, options, keeper, written, budget, context);
        state.existing = existing;
        state.owner = owner;
        let shared = Arc::new(DestinationShared::new(state, claims));
        let thread = streams.control.0.clone();
        let failure = write_all(&shared, streams).await.err();
        let failure = failure.map(|last| shared.state.first_failure().unwrap_or(last));
        // Large files and many folders may take long.
        let ending = Arc::clone(&shared);
        let cleaning = async move {
            clean_up(&ending);
            report_written(&ending, &report);
        };
        thread.run(cleaning).await;
        // No thread of the copy writes any more. If this future was dropped before, the last one releases the claims.
        shared.release_claims();
        (shared.state.report(failure.is_none()), failure)
    }
}

/// Removes what no later run can continue, and gives folders the modes that they had.
fn clean_up(shared: &DestinationShared) {
    for target in shared.large.clear() {
        target.give_up(PartUse::Continuable);
        if let Some(left) = target.left(PartUse::None) {
            let why = format!("was not copied to its end{left}");
            shared.state.fail(&target.local, why);
        }
    }
    shared.folders.lock_again(&shared.state);
}

/// Reports what later copies of the run must not replace. Blocks this thread while there is no room for it.
fn report_written(shared: &DestinationShared, report: &ReportSink) {
    for part in shared.state.written.for_later() {
        report.send_when_room(FromCopy::Written(part), &shared.state.halt);
    }
}

async fn write_all(shared: &Arc<DestinationShared>, streams: CopyStreams) -> Result<(), CopyError> {
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
    unwritten_paths: mpsc::Sender<RelativePath>,
) -> Result<Vec<EndedLane>, CopyError> {
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
async fn confirm(lanes: Vec<EndedLane>) -> Result<(), CopyError> {
    for (thread, mut stream) in lanes {
        let confirmed = thread.run(async move {
            let confirmed = stream.confirm();
            stream.close().await;
            confirmed
        });
        confirmed.await.map_err(CopyError::Stream)?;
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

/// The time between two progress messages: five a second look alive, and cost nothing.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// How many hard links are made before other tasks of the thread run.
const LINKS_PER_TURN: usize = 64;

struct DestinationControl {
    shared: Arc<DestinationShared>,
    questions: FramedRead<ReadHalf, LengthDelimitedCodec>,
    answers: FramedWrite<WriteHalf, LengthDelimitedCodec>,
    operands: ComparedOperands,
    mirrored: MirroredFolder,
    /// The owners of the entries that the source asks for.
    owners: Arc<LocalOwners>,
    /// The paths of entries that a lane could not write.
    unwritten: Receiver<RelativePath>,
}

impl DestinationControl {
    /// Returns the control over a stream.
    fn new(
        shared: Arc<DestinationShared>,
        stream: Stream,
        unwritten: Receiver<RelativePath>,
    ) -> Self {
        let (read, write) = stream.into_split();
        Self {
            shared,
            questions: FramedRead::new(read, codec(MAX_QUESTION_BYTES)),
            answers: FramedWrite::new(write, codec(MAX_ANSWER_BYTES)),
            operands: ComparedOperands::default(),
            mirrored: MirroredFolder::default(),
            owners: Arc::default(),
            unwritten,
        }
    }

    /// Answers the source until it has finished and all lanes have ended, which `lanes` tells; finishes what is left;
    /// and tells the source. Returns the control, for [`end`](Self::end).
    /// Fails if the stream breaks, the source breaks the protocol, or the work is cancelled. The stream is then
    /// aborted.
    /// Not cancel safe: the work is left as it is.
    async fn run(mut self, lanes: oneshot::Receiver<()>) -> Result<Self, CopyError> {
        let reporting = threads::spawn(report_progress(Arc::clone(&self.shared)));
        let result = self.work(lanes).await;
        reporting.abort();
        self.shared.state.report_digests();
        self.shared.state.report_progress();
        match result {
            Ok(()) => Ok(self),
            Err(failure) => {
                self.shared.state.end_early(&failure);
                let reason = self.shared.state.reason();
                self.answers.get_mut().abort(&reason);
                if let Ok(stream) = self.into_stream() {
                    stream.close().await;
                }
                Err(failure)
            }
        }
    }

    /// Waits until the source has ended the stream, too. A failure does not matter any more: everything is done.
    /// Dropping the future drops the stream.
    async fn end(mut self) {
        let halt = self.shared.state.halt.clone();
        let end = async {
            let read = self.questions.get_mut();
            let mut rest = [0; 64];
            while matches!(read.read(&mut rest).await, Ok(count) if count > 0) {}
            let _ = read.confirm();
        };
        tokio::select! {
            () = end => {}
            () = halt.cancelled() => {}
        }
        if let Ok(stream) = self.into_stream() {
            stream.close().await;
        }
    }

    fn into_stream(self) -> Result<Stream, ()> {
        let (read, write) = (self.questions.into_inner(), self.answers.into_inner());
        read.reunite(write).map_err(drop)
    }

    async fn work(&mut self, mut lanes: oneshot::Receiver<()>) -> Result<(), CopyError> {
        let halt = self.shared.state.halt.clone();
        let mut is_finished = false;
        let mut have_lanes_ended = false;
        while !(is_finished && have_lanes_ended) {
            tokio::select! {
                biased;
                () = halt.cancelled() => return Err(CopyError::Cancelled),
                Some(path) = self.unwritten.recv() => {
                    self.send(&FromDestination::NotWritten(path)).await?;
                }
                question = self.questions.next(), if !is_finished => {
                    is_finished = self.handle(question).await?;
                }
                ended = &mut lanes, if !have_lanes_ended => {
                    ended.map_err(|_| CopyError::Cancelled)?;
                    have_lanes_ended = true;
                }
            }
        }
        while let Ok(path) = self.unwritten.try_recv() {
            self.send(&FromDestination::NotWritten(path)).await?;
        }
        self.finish_files().await?;
        self.finish_links().await?;
        self.shared.folders.finish(&self.shared.state).await?;
        let state = &self.shared.state;
        if let Some(why) = state.removals.failure() {
            state.fail(&state.placement.base(), why);
        }
        self.send(&FromDestination::Done).await?;
        let shutdown = self.answers.get_mut().shutdown();
        tokio::select! {
            result = shutdown => result.map_err(|error| CopyError::of_stream(&error)),
            () = halt.cancelled() => Err(CopyError::Cancelled),
        }
    }

    /// Handles a message of the source. Returns true if it is the last one.
    async fn handle(
        &mut self,
        question: Option<std::io::Result<BytesMut>>,
    ) -> Result<bool, CopyError> {
        let question = match question {
            None => return Err(broken("the control stream ended too early")),
            Some(Err(error)) if crate::Error::from_io(&error).is_none() => {
                return Err(broken(error));
            }
            Some(Err(error)) => return Err(CopyError::of_stream(&error)),
            Some(Ok(question)) => question,
        };
        let question = decode(&question).map_err(|_| broken("not a message of this version"))?;
        match question {
            FromSource::Ask { folder, entries } => {
                let shared = Arc::clone(&self.shared);
                // To look for what an earlier run has left may take long: files are digested.
                let owners = Arc::clone(&self.owners);
                let answers = move || answer(&shared, &folder, &entries, &owners);
                let answers = if self.shared.state.options.resume {
                    elsewhere(answers).await?
                } else {
                    answers()?
                };
                self.send(&FromDestination::Answers(answers)).await?;
            }
            FromSource::Names {
                folder,
                names,
                last,
            } => {
                let shared = Arc::clone(&self.shared);
                let mut mirrored = std::mem::take(&mut self.mirrored);
                self.mirrored = elsewhere(move || {
                    mirrored.add(&shared, &folder, &names, last)?;
                    Ok(mirrored)
                })
                .await?;
            }
            FromSource::Owner { user, group } => {
                self.shared.state.keep(2 * SET_ENTRY_BYTES)?;
                let owners = Arc::make_mut(&mut self.owners);
                if !owners.add_names(user, group) {
                    return Err(broken("too many owners"));
                }
            }
            FromSource::Operands { operands, last } => {
                self.operands.compare(&self.shared.state, &operands)?;
                if last {
                    self.shared.compared.cancel();
                }
            }
            FromSource::Finished if self.shared.compared.is_cancelled() => return Ok(true),
            FromSource::Finished => return Err(broken("the operands were not named")),
        }
        Ok(false)
    }

    /// Reports the files of which the source has not sent all parts.
    async fn finish_files(&mut self) -> Result<(), CopyError> {
        for target in self.shared.large.clear() {
            target.give_up(PartUse::Continuable);
            let why = "the source has not sent all of it".to_owned();
            let why = why + &target.left(PartUse::Continuable).unwrap_or_default();
            self.shared.state.fail(&target.local, why);
            self.tell_unwritten(target.file.path.clone()).await?;
        }
        Ok(())
    }

    async fn finish_links(&mut self) -> Result<(), CopyError> {
        let local =
            |error| CopyError::Local(format!("cannot read the list of hard links: {error}"));
        let Some(mut links) = self.shared.links.reader().map_err(local)? else {
            return Ok(());
        };
        let mut temporary = TemporaryName::random();
        let mut count = 0;
        while let Some(link) = links.next().map_err(local)? {
            count += 1;
            if count % LINKS_PER_TURN == 0 {
                tokio::task::yield_now().await;
            }
            if self.shared.state.halt.is_cancelled() {
                return Err(CopyError::Cancelled);
            }
            if let Err(why) = self.shared.make_link(&mut temporary, &link) {
                let path = link.path;
                let entry = self.shared.state.placement.entry(&path);
                let local =
                    entry.map_or_else(|_| path.clone(), |(folder, name)| folder.join(&name));
                self.shared.state.fail(&local, why);
                self.tell_unwritten(path).await?;
            }
        }
        Ok(())
    }

    async fn tell_unwritten(&mut self, path: RelativePath) -> Result<(), CopyError> {
        if self.shared.state.options.remove_source_files {
            self.send(&FromDestination::NotWritten(path)).await?;
        }
        Ok(())
    }

    async fn send(&mut self, message: &FromDestination) -> Result<(), CopyError> {
        let bytes = encode(message).map_err(|error| CopyError::Local(error.to_string()))?;
        let halt = self.shared.state.halt.clone();
        tokio::select! {
            sent = self.answers.send(bytes) => sent.map_err(|error| CopyError::of_stream(&error)),
            () = halt.cancelled() => Err(CopyError::Cancelled),
        }
    }
}

async fn report_progress(shared: Arc<DestinationShared>) {
    let mut ticks = tokio::time::interval(PROGRESS_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        shared.state.report_progress();
    }
}

/// Runs `work`, which may block for long, on another thread.
async fn elsewhere<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CopyError> + Send + 'static,
) -> Result<T, CopyError> {
    let worked = threads::blocking(work).await;
    worked.map_err(|error| CopyError::Local(error.to_string()))?
}
