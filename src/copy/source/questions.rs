//! The source's end of the control stream.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use rustix::{
    fs::{Access, AtFlags, Stat, accessat},
    io::Errno,
};
use tokio::{
    io::AsyncReadExt,
    sync::{Semaphore, mpsc},
};
use tokio_util::{
    codec::{FramedRead, FramedWrite, LengthDelimitedCodec},
    sync::CancellationToken,
};

use super::{
    jobs::{FolderJob, SourceFolder, entry_name},
    state::{SourceShared, unreadable},
};
use crate::{
    ReadHalf, Stream, WriteHalf,
    copy::{
        budget::{ListBudget, PATH_ENTRY_BYTES},
        job::CopyError,
        metadata::{EntryKind, OwnerNames, changed, content_size, link_count, modified, size},
        order::ExistingFiles,
        path::RelativePath,
        question::{
            AnswerKind, AskedEntry, AskedMetadata, ByteRange, ComparedBlock, FromDestination,
            FromSource, MAX_ANSWER_BYTES, MAX_QUESTION_BYTES, codec, decode, encode,
        },
    },
};

/// The most jobs that were asked for and that no lane has taken: enough for 20,000 entries a second over 100 ms of
/// distance.
const MAX_ASKED: usize = 16;

/// The time for the end of the destination's direction, when all is done.
const END_DELAY: Duration = Duration::from_secs(1);

/// What the walk has for the control stream.
pub(crate) enum ControlCommand {
    /// The destination is asked for the entries of a job; then the job goes to the lanes.
    Ask(FolderJob),
    /// The destination is told, and does not answer.
    Tell(FromSource),
}

/// Asks the destination, and passes on jobs with their answers.
pub(crate) struct Questions {
    shared: Arc<SourceShared>,
    state: Mutex<AskedState>,
    /// One permit for each job from its question until a lane takes it. So the answers never wait for a lane: a lane
    /// may itself wait until the destination gets rid of a message on this stream.
    free: Arc<Semaphore>,
    budget: Arc<ListBudget>,
}

#[derive(Default)]
struct AskedState {
    /// Jobs whose question has no answer, in the order of the questions.
    waiting: VecDeque<FolderJob>,
    /// The number of jobs that are not on the board yet.
    unfinished: usize,
    /// True if the last question was sent.
    is_last: bool,
}

type QuestionFrames<'a> = FramedWrite<&'a mut WriteHalf, LengthDelimitedCodec>;

impl Questions {
    /// Returns the questions of a run, which keep no more of the answers than the budget allows.
    pub(crate) fn new(shared: Arc<SourceShared>, budget: Arc<ListBudget>) -> Self {
        Self {
            shared,
            state: Mutex::default(),
            free: Arc::new(Semaphore::new(MAX_ASKED)),
            budget,
        }
    }

    /// Asks and answers until the destination is done, and returns the paths that it has not written. `lanes_sent` is
    /// cancelled when every lane has sent all of its records.
    /// Fails if the stream broke, or if the destination does not keep to the protocol.
    /// The stream cannot be used after the future was dropped.
    pub(crate) async fn answer_questions(
        &self,
        stream: &mut Stream,
        commands: mpsc::Receiver<ControlCommand>,
        lanes_sent: &CancellationToken,
    ) -> Result<HashSet<RelativePath>, CopyError> {
        let (read, write) = stream.split();
        let asking = self.ask_all(write, commands, lanes_sent);
        let ((), not_written) = tokio::try_join!(asking, self.hear_all(read))?;
        end(stream).await?;
        Ok(not_written)
    }

    async fn ask_all(
        &self,
        stream: &mut WriteHalf,
        mut commands: mpsc::Receiver<ControlCommand>,
        lanes_sent: &CancellationToken,
    ) -> Result<(), CopyError> {
        let mut frames = FramedWrite::new(stream, codec(MAX_QUESTION_BYTES));
        let mut owners = OwnerNames::default();
        loop {
            let command = if let Ok(command) = commands.try_recv() {
                Some(command)
            } else {
                flush(&mut frames).await?;
                commands.recv().await
            };
            match command {
                Some(ControlCommand::Ask(mut job)) => {
                    if self.free.available_permits() == 0 {
                        flush(&mut frames).await?;
                    }
                    let turn = Arc::clone(&self.free).acquire_owned().await;
                    if self.shared.asks_with_metadata() {
                        name_owners(&mut frames, &mut owners, &job).await?;
                    }
                    let question = question(&mut job)?;
                    self.wait_for_answer(FolderJob {
                        turn: turn.ok(),
                        ..job
                    });
                    send(&mut frames, &question).await?;
                }
                Some(ControlCommand::Tell(message)) => send(&mut frames, &message).await?,
                None => break,
            }
        }
        self.settle(|state| state.is_last = true);
        lanes_sent.cancelled().await;
        send(&mut frames, &FromSource::Finished).await?;
        flush(&mut frames).await
    }

    fn wait_for_answer(&self, job: FolderJob) {
        let mut state = self.state();
        state.waiting.push_back(job);
        state.unfinished += 1;
    }

    async fn hear_all(&self, stream: &mut ReadHalf) -> Result<HashSet<RelativePath>, CopyError> {
        let mut frames = FramedRead::new(stream, codec(MAX_ANSWER_BYTES));
        let mut not_written = HashSet::new();
        while let Some(frame) = frames.next().await {
            let frame = frame.map_err(|error| CopyError::of_stream(&error))?;
            match decode(&frame) {
                Ok(FromDestination::Answers(answers)) => self.answered(answers)?,
                Ok(FromDestination::NotWritten(path)) => {
                    // Without a list of what is removed, the path is not needed.
                    if self.shared.spool.is_some() && !not_written.contains(&path) {
                        self.keep(path.as_bytes().len() + PATH_ENTRY_BYTES)?;
                        not_written.insert(path);
                    }
                }
                Ok(FromDestination::Done) => return Ok(not_written),
                Err(error) => return Err(broken(&format!("sent an unknown message ({error})"))),
            }
        }
        Err(broken("ended the control stream before it was done"))
    }

    fn keep(&self, bytes: usize) -> Result<(), CopyError> {
        let has_room = self.budget.take(bytes);
        has_room
            .then_some(())
            .ok_or_else(|| CopyError::Local(self.budget.exceeded()))
    }

    /// Passes on the job that was asked for first.
    fn answered(&self, answers: Vec<AnswerKind>) -> Result<(), CopyError> {
        let job = self.state().waiting.pop_front();
        let Some(mut job) = job.filter(|job| job.entries.len() == answers.len()) else {
            return Err(broken("gave answers to no question"));
        };
        let bytes = answers.iter().map(range_bytes).sum();
        let held = self.budget.hold(bytes);
        job.held = Some(held.ok_or_else(|| CopyError::Local(self.budget.exceeded()))?);
        job.answers = answers;
        self.count(&job);
        self.note_kept(&mut job);
        if self.shared.options.dry_run {
            self.list(&job);
        } else if self.shared.board.push_asked(job).is_err() {
            return Err(CopyError::Cancelled);
        }
        self.settle(|state| state.unfinished -= 1);
        Ok(())
    }

    fn count(&self, job: &FolderJob) {
        let tally = &self.shared.tally;
        for (stat, answer) in job.stats.iter().zip(&job.answers) {
            if answer.is_nothing() {
                tally.not_wanted();
            } else if EntryKind::of(stat) == Some(EntryKind::File) {
                tally.sized(1, content_size(stat));
            } else {
                tally.sized(1, 0);
            }
        }
    }

    /// Counts what the destination keeps. What it has as the source has it can be a name of a file with several names.
    fn note_kept(&self, job: &mut FolderJob) {
        let options = &self.shared.options;
        // Then what is there stays as it is.
        let may_link = options.existing != ExistingFiles::Keep;
        let entries = job.entries.iter().zip(&job.stats).zip(&job.answers);
        for (index, (((name, _), stat), answer)) in entries.enumerate() {
            let is_same = match answer {
                AnswerKind::Skip => true,
                AnswerKind::Keep => false,
                _ => continue,
            };
            self.shared.tally.skipped();
            if !is_same || !options.archive || link_count(stat) < 2 {
                continue;
            }
            let Some(name) = entry_name(name) else {
                continue;
            };
            let path = job.folder.path.join(&name);
            let first = self.shared.links.first_name(stat, &path);
            job.kept_links
                .extend(first.filter(|_| may_link).map(|first| (index, first)));
        }
    }

    /// Lists what would be sent.
    fn list(&self, job: &FolderJob) {
        let tally = &self.shared.tally;
        for (((name, _), stat), answer) in job.entries.iter().zip(&job.stats).zip(&job.answers) {
            if answer.is_nothing() {
                continue;
            }
            let Some(name) = entry_name(name) else {
                continue;
            };
            if let Err(error) = check_readable(&job.folder, name.as_bytes(), stat) {
                tally.fail(job.folder.shown(name.as_bytes()), unreadable(error));
                continue;
            }
            tally.sent();
            if EntryKind::of(stat) == Some(EntryKind::File) {
                tally.sent_bytes(content_size(stat));
            }
            tally.list(job.folder.path.join(&name).into());
        }
    }

    /// Changes the state, and tells the lanes if no job will come.
    fn settle(&self, change: impl FnOnce(&mut AskedState)) {
        let mut state = self.state();
        change(&mut state);
        let is_over = state.is_last && state.unfinished == 0;
        drop(state);
        if is_over {
            self.shared.board.complete();
        }
    }

    fn state(&self) -> MutexGuard<'_, AskedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks that a file could be opened. For a dry run.
fn check_readable(folder: &SourceFolder, name: &[u8], stat: &Stat) -> Result<(), Errno> {
    if EntryKind::of(stat) != Some(EntryKind::File) {
        return Ok(());
    }
    match accessat(&folder.fd, name, Access::READ_OK, AtFlags::EACCESS) {
        Err(Errno::ACCESS) => Err(Errno::ACCESS),
        _ => Ok(()),
    }
}

fn range_bytes(answer: &AnswerKind) -> usize {
    match answer {
        AnswerKind::Resume(ranges) => ranges.capacity() * size_of::<ByteRange>(),
        AnswerKind::Compare { blocks, .. } => blocks.capacity() * size_of::<ComparedBlock>(),
        _ => 0,
    }
}

/// Ends both directions of the control stream.
async fn end(stream: &mut Stream) -> Result<(), CopyError> {
    let (read, write) = stream.split();
    let mut rest = [0; 64];
    let ended = async {
        while read.read(&mut rest).await.is_ok_and(|count| count > 0) {}
        let _ = read.confirm();
    };
    tokio::pin!(ended);
    tokio::select! {
        finished = write.finish() => finished.map_err(CopyError::Stream)?,
        // The destination may wait for this confirmation before it gives its own.
        () = &mut ended => return write.finish().await.map_err(CopyError::Stream),
    }
    // All is done at both ends. The destination need not end its direction.
    let _ = tokio::time::timeout(END_DELAY, ended).await;
    Ok(())
}

/// Names the owners of the entries of a job that were not named before.
async fn name_owners(
    frames: &mut QuestionFrames<'_>,
    owners: &mut OwnerNames,
    job: &FolderJob,
) -> Result<(), CopyError> {
    for stat in &job.stats {
        if let Some((user, group)) = owners.names(stat.st_uid, stat.st_gid) {
            send(frames, &FromSource::Owner { user, group }).await?;
        }
    }
    Ok(())
}

fn question(job: &mut FolderJob) -> Result<FromSource, CopyError> {
    let mut attributes = std::mem::take(&mut job.attributes).into_iter();
    let targets = std::mem::take(&mut job.targets);
    let entries = job.entries.iter().zip(&job.stats).zip(targets);
    let asked = entries.map(|(((name, _), stat), target)| {
        let metadata = attributes.next().map(|attributes| AskedMetadata {
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            attributes,
        });
        Some(AskedEntry {
            metadata,
            target,
            name: entry_name(name)?,
            kind: EntryKind::of(stat)?,
            size: size(stat),
            modified: modified(stat),
            changed: changed(stat),
        })
    });
    let entries = asked.collect::<Option<Vec<AskedEntry>>>();
    Ok(FromSource::Ask {
        folder: job.folder.path.clone(),
        entries: entries.ok_or_else(|| {
            CopyError::Local("a folder has an entry of an unknown type".to_owned())
        })?,
    })
}

async fn flush(frames: &mut QuestionFrames<'_>) -> Result<(), CopyError> {
    let flushed = SinkExt::<Bytes>::flush(frames).await;
    flushed.map_err(|error| CopyError::of_stream(&error))
}

async fn send(frames: &mut QuestionFrames<'_>, message: &FromSource) -> Result<(), CopyError> {
    let bytes = encode(message).map_err(|error| CopyError::Local(error.to_string()))?;
    let fed = frames.feed(bytes).await;
    fed.map_err(|error| CopyError::of_stream(&error))
}

fn broken(what: &str) -> CopyError {
    CopyError::Local(format!("the destination {what}"))
}
