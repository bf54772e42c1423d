//! The two-way stream to the source: questions and answers, and the end of the work.

pub(super) mod answers;

use std::{sync::Arc, time::Duration};

use bytes::BytesMut;
use futures::{SinkExt, StreamExt};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::{mpsc::Receiver, oneshot},
};
use tokio_util::codec::{FramedRead, FramedWrite, LengthDelimitedCodec};

use self::answers::answer;
use super::{
    entry::TemporaryName, large::target::PartUse, reader::broken, state::DestinationShared,
    tree::mirror::MirroredFolder,
};
use crate::{
    ReadHalf, Stream, WriteHalf,
    copy::{
        job::CopyFailure,
        metadata::LocalOwners,
        path::RelativePath,
        question::{FromDestination, FromSource, codec, decode, encode},
    },
    threads,
};

/// The time between two progress messages: five a second look alive, and cost nothing.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// How many hard links are made before other tasks of the thread run.
const LINKS_PER_TURN: usize = 64;

/// The control of a destination.
pub(super) struct DestinationControl {
    shared: Arc<DestinationShared>,
    questions: FramedRead<ReadHalf, LengthDelimitedCodec>,
    answers: FramedWrite<WriteHalf, LengthDelimitedCodec>,
    mirrored: MirroredFolder,
    /// The owners of the entries that the source asks for.
    owners: Arc<LocalOwners>,
    /// The paths of entries that a lane could not write.
    unwritten: Receiver<RelativePath>,
}

impl DestinationControl {
    /// Returns the control over a stream.
    pub(super) fn new(
        shared: Arc<DestinationShared>,
        stream: Stream,
        unwritten: Receiver<RelativePath>,
    ) -> Self {
        let (read, write) = stream.into_split();
        Self {
            shared,
            questions: FramedRead::new(read, codec()),
            answers: FramedWrite::new(write, codec()),
            mirrored: MirroredFolder::default(),
            owners: Arc::default(),
            unwritten,
        }
    }

    /// Answers the source until it has finished and all lanes have ended, which `lanes` tells; finishes what is left;
    /// and tells the source. Returns the control, for [`end`](Self::end).
    ///
    /// # Errors
    ///
    /// Fails if the stream breaks, the source breaks the protocol, or the work is cancelled. The stream is then
    /// aborted.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: the work is left as it is.
    pub(super) async fn run(mut self, lanes: oneshot::Receiver<()>) -> Result<Self, CopyFailure> {
        let reporting = tokio::spawn(report_progress(Arc::clone(&self.shared)));
        let result = self.work(lanes).await;
        reporting.abort();
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
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the stream.
    pub(super) async fn end(mut self) {
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

    async fn work(&mut self, mut lanes: oneshot::Receiver<()>) -> Result<(), CopyFailure> {
        let halt = self.shared.state.halt.clone();
        let mut is_finished = false;
        let mut have_lanes_ended = false;
        while !(is_finished && have_lanes_ended) {
            tokio::select! {
                biased;
                () = halt.cancelled() => return Err(CopyFailure::Cancelled),
                Some(path) = self.unwritten.recv() => {
                    self.send(&FromDestination::NotWritten(path)).await?;
                }
                question = self.questions.next(), if !is_finished => {
                    is_finished = self.handle(question).await?;
                }
                ended = &mut lanes, if !have_lanes_ended => {
                    ended.map_err(|_| CopyFailure::Cancelled)?;
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
            result = shutdown => result.map_err(|error| CopyFailure::of_stream(&error)),
            () = halt.cancelled() => Err(CopyFailure::Cancelled),
        }
    }

    /// Handles a message of the source. Returns true if it is the last one.
    async fn handle(
        &mut self,
        question: Option<std::io::Result<BytesMut>>,
    ) -> Result<bool, CopyFailure> {
        let question = match question {
            None => return Err(broken("the control stream ended too early")),
            Some(Err(error)) if crate::Error::from_io(&error).is_none() => {
                return Err(broken(error));
            }
            Some(Err(error)) => return Err(CopyFailure::of_stream(&error)),
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
                let owners = Arc::make_mut(&mut self.owners);
                if !owners.add_names(user, group) {
                    return Err(broken("too many owners"));
                }
            }
            FromSource::Finished => return Ok(true),
        }
        Ok(false)
    }

    /// Reports the files of which the source has not sent all parts.
    async fn finish_files(&mut self) -> Result<(), CopyFailure> {
        for target in self.shared.large.clear() {
            target.give_up(PartUse::Continuable);
            let why = "the source has not sent all of it".to_owned();
            let why = why + &target.left().unwrap_or_default();
            self.shared.state.fail(&target.local, why);
            self.tell_unwritten(target.file.path.clone()).await?;
        }
        Ok(())
    }

    async fn finish_links(&mut self) -> Result<(), CopyFailure> {
        let local =
            |error| CopyFailure::Local(format!("cannot read the list of hard links: {error}"));
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
                return Err(CopyFailure::Cancelled);
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

    async fn tell_unwritten(&mut self, path: RelativePath) -> Result<(), CopyFailure> {
        if self.shared.state.options.remove_source_files {
            self.send(&FromDestination::NotWritten(path)).await?;
        }
        Ok(())
    }

    async fn send(&mut self, message: &FromDestination) -> Result<(), CopyFailure> {
        let bytes = encode(message).map_err(|error| CopyFailure::Local(error.to_string()))?;
        let halt = self.shared.state.halt.clone();
        tokio::select! {
            sent = self.answers.send(bytes) => sent.map_err(|error| CopyFailure::of_stream(&error)),
            () = halt.cancelled() => Err(CopyFailure::Cancelled),
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
    work: impl FnOnce() -> Result<T, CopyFailure> + Send + 'static,
) -> Result<T, CopyFailure> {
    let worked = threads::blocking(work).await;
    worked.map_err(|error| CopyFailure::Local(error.to_string()))?
}
