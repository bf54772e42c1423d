//! The source of a copy: walks the files and sends them.
//!
//! ```text
//! walker ─ jobs ─────────────────────────────► work board ─► lane senders ─► lanes
//!    └──── jobs whose entries are asked for ─► questions ──────┘ ▲
//!                                               └► control       └─ ranges of large files
//! ```
//!
//! The walker is a thread, each lane and the control stream have one too. They share the [`state`](SourceShared): the
//! work board, what was counted, the rate of all lanes.
//!
//! Memory does not depend on the number of files: every queue is bounded. The walker keeps the paths of directories
//! that it has not read yet, and the table of hard links keeps files with a name that was not seen yet.

mod jobs;
mod lane;
mod large_file;
mod questions;
mod removal;
mod state;
#[cfg(test)]
mod tests;
mod walk;

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{sync::mpsc, time::MissedTickBehavior};
use tokio_util::{sync::CancellationToken, task::task_tracker::TaskTrackerToken};

use self::{
    jobs::WalkOutlet,
    lane::{LanePacker, LaneSender},
    questions::{ControlCommand, Questions},
    removal::SentSpool,
    state::{SourceShared, Tally},
    walk::Walker,
};
use super::{
    budget::ListBudget,
    job::{CopyContext, CopyError, CopyStreams},
    order::{CopyOptions, CopyReport, NameFilter},
    path::{BaseDirectory, RelativePath, top_name},
};
use crate::{Stream, threads};

/// The most messages from the walk that wait for the control stream.
const MAX_COMMANDS: usize = 8;

/// The note for the user if a server had no memory for a list of hard links.
const LINKS_LEFT_OUT: &str = "some hard links were sent as files of their own, because their list needs more memory: give the server a larger -m or fewer --max-clients";

/// The time between two reports of what was found and sent.
const TICK: Duration = Duration::from_millis(200);

/// The time for a peer to receive why a stream was aborted.
const ABORT_DELAY: Duration = Duration::from_millis(500);

/// The source of a copy. Its walk is under way on a thread of its own.
///
/// Dropping it ends the walk.
pub(crate) struct SourceEngine {
    shared: Arc<SourceShared>,
    commands: Option<mpsc::Receiver<ControlCommand>>,
    budget: Arc<ListBudget>,
}

impl SourceEngine {
    /// Starts to walk through `paths`, which are relative to `base`. The walk waits until the lanes take what it has
    /// found. Its thread holds `threads`.
    /// Fails if the options or paths do not fit together.
    pub(crate) fn prepare(
        base: BaseDirectory,
        paths: Vec<Vec<u8>>,
        options: CopyOptions,
        threads: TaskTrackerToken,
    ) -> Result<Self, String> {
        if paths.is_empty() {
            return Err("there is nothing to copy".to_owned());
        }
        let has_contents = paths.iter().any(|path| top_name(path).is_none());
        if options.delete && has_contents && paths.len() > 1 {
            let why = "--delete with the contents of a directory (DIR/.) takes one source, because it would remove what the others bring";
            return Err(why.to_owned());
        }
        let filter = NameFilter::new(&options.filters)?;
        let spool = if options.remove_source_files && !options.dry_run {
            let made = SentSpool::new(base.clone());
            Some(made.map_err(|error| format!("cannot list the files to remove: {error}"))?)
        } else {
            None
        };
        let shared = Arc::new(SourceShared::new(options.clone(), spool, threads));
        let (sender, commands) = mpsc::channel(MAX_COMMANDS);
        let outlet = WalkOutlet::new(Arc::clone(&shared), sender);
        let walker = Walker::new(base, options, filter, outlet);
        thread::Builder::new()
            .name("rdcp walk".to_owned())
            .spawn(move || walker.run(paths))
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self {
            shared,
            commands: Some(commands),
            budget: Arc::new(ListBudget::of_agent()),
        })
    }

    /// Keeps no more lists than the budget allows.
    pub(crate) fn with_budget(mut self, budget: ListBudget) -> Self {
        self.budget = Arc::new(budget);
        if self.budget.is_of_server() {
            self.shared.links.limit(Arc::clone(&self.budget));
        }
        self
    }

    /// Sends all that the walk finds. Returns when the destination has confirmed every stream, and the source files
    /// were removed where that is asked for; or when the run has failed and every stream was aborted.
    /// The streams continue on their threads if the future is dropped. Cancel [`CopyContext::cancelled`] instead.
    pub(crate) async fn run(
        mut self,
        streams: CopyStreams,
        context: CopyContext,
    ) -> (CopyReport, Option<CopyError>) {
        let shared = Arc::clone(&self.shared);
        let report = Arc::clone(&context.report);
        let run = Arc::new(SourceRun::new(&shared, context, streams.lanes.len()));
        shared.tally.open(report, run.stop.clone());
        let lanes = streams.lanes.into_iter().enumerate();
        let lanes = lanes.map(|(number, (thread, stream))| {
            let run = Arc::clone(&run);
            async move { thread.run(run.lane(number, stream)).await }
        });
        let commands = self.commands.take();
        let (thread, stream) = streams.control;
        let budget = Arc::clone(&self.budget);
        let control = thread.run(Arc::clone(&run).control(stream, commands, budget));
        let working = futures::future::join(futures::future::join_all(lanes), control);
        let (_, not_written) = ticking(&shared.tally, working).await;
        let is_complete = run.end(not_written).await;
        shared.board.close();
        if shared.links.were_left_out() {
            shared.tally.note_now(LINKS_LEFT_OUT);
        }
        shared.tally.finish_list();
        shared.tally.tick();
        (shared.tally.report(is_complete), run.take_failure())
    }
}

#[cfg(test)]
impl SourceEngine {
    /// Returns what the walk shares with the run.
    fn shared(&self) -> Arc<SourceShared> {
        Arc::clone(&self.shared)
    }
}

impl Drop for SourceEngine {
    fn drop(&mut self) {
        self.shared.board.close();
        self.shared.tally.close();
    }
}

/// Awaits `work`, and reports what was found and sent meanwhile.
async fn ticking<T>(tally: &Tally, work: impl Future<Output = T>) -> T {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tokio::pin!(work);
    loop {
        tokio::select! {
            result = &mut work => return result,
            _ = ticks.tick() => tally.tick(),
        }
    }
}

struct SourceRun {
    shared: Arc<SourceShared>,
    context: CopyContext,
    /// Cancelled when a stream has failed, or the work has failed elsewhere.
    stop: CancellationToken,
    /// The first failure.
    failure: Mutex<Option<CopyError>>,
    /// The lanes that still have records to send.
    unsent: AtomicUsize,
    /// Cancelled when there are none.
    lanes_sent: CancellationToken,
}

impl SourceRun {
    fn new(shared: &Arc<SourceShared>, context: CopyContext, lanes: usize) -> Self {
        Self {
            shared: Arc::clone(shared),
            stop: context.cancelled.child_token(),
            context,
            failure: Mutex::new(None),
            unsent: AtomicUsize::new(lanes),
            lanes_sent: CancellationToken::new(),
        }
    }

    /// Sends all records of a lane.
    async fn lane(self: Arc<Self>, number: usize, stream: Stream) {
        let packer = LanePacker::new(stream, Arc::clone(&self.shared));
        let mut lane = LaneSender::new(number, packer, Arc::clone(&self.shared));
        let work = async {
            lane.send_all().await?;
            if self.unsent.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.lanes_sent.cancel();
            }
            lane.packer.finish().await
        };
        let result = self.until_stopped(work).await;
        self.close(lane.packer.into_stream(), result).await;
    }

    /// Asks and answers on the control stream. Returns what the destination has not written.
    async fn control(
        self: Arc<Self>,
        mut stream: Stream,
        commands: Option<mpsc::Receiver<ControlCommand>>,
        budget: Arc<ListBudget>,
    ) -> HashSet<RelativePath> {
        let questions = Questions::new(Arc::clone(&self.shared), budget);
        let work = async {
            match commands {
                Some(commands) => {
                    let conversed =
                        questions.answer_questions(&mut stream, commands, &self.lanes_sent);
                    conversed.await
                }
                None => Ok(HashSet::new()),
            }
        };
        match self.until_stopped(work).await {
            Ok(not_written) => {
                self.close(stream, Ok(())).await;
                not_written
            }
            Err(failure) => {
                self.close(stream, Err(failure)).await;
                HashSet::new()
            }
        }
    }

    async fn until_stopped<T>(
        &self,
        work: impl Future<Output = Result<T, CopyError>>,
    ) -> Result<T, CopyError> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(CopyError::Cancelled),
            result = work => result,
        }
    }

    /// Closes a stream. After a failure, all other streams of the run are aborted too.
    async fn close(&self, mut stream: Stream, result: Result<(), CopyError>) {
        let Err(failure) = result else {
            return stream.close().await;
        };
        let reason = self.fail(failure);
        stream.abort(&reason);
        let _ = tokio::time::timeout(ABORT_DELAY, stream.close()).await;
    }

    /// Keeps the first failure, stops the run, and returns the reason for the peers.
    fn fail(&self, failure: CopyError) -> String {
        let is_elsewhere = self.context.cancelled.is_cancelled();
        let mut first = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let first = first.get_or_insert(failure);
        let reason = match first {
            _ if is_elsewhere => (self.context.reason)(),
            CopyError::Stream(error) => error.to_string(),
            CopyError::Local(why) => why.clone(),
            CopyError::Cancelled => (self.context.reason)(),
        };
        self.shared.board.close();
        self.stop.cancel();
        reason
    }

    /// Removes the source files where that is asked for. Returns true if the run came to the end of its work.
    async fn end(&self, not_written: HashSet<RelativePath>) -> bool {
        if self.has_failed() {
            return false;
        }
        if !self.shared.tally.is_walked() {
            let why = "the walk through the source failed".to_owned();
            self.fail(CopyError::Local(why));
            return false;
        }
        if self.shared.spool.is_none() {
            return true;
        }
        let shared = Arc::clone(&self.shared);
        let cancelled = self.context.cancelled.clone();
        let removing = threads::blocking(move || {
            let spool = shared.spool.as_ref();
            let is_stopped = || cancelled.is_cancelled();
            spool.map(|spool| spool.remove_all(&not_written, &shared.tally, is_stopped))
        });
        let failure = match ticking(&self.shared.tally, removing).await {
            Ok(Some(Err(error))) => {
                CopyError::Local(format!("cannot remove the source files: {error}"))
            }
            Ok(_) if self.context.cancelled.is_cancelled() => CopyError::Cancelled,
            Ok(_) => return true,
            Err(error) => CopyError::Local(format!("cannot remove the source files: {error}")),
        };
        self.fail(failure);
        false
    }

    fn has_failed(&self) -> bool {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.is_some()
    }

    fn take_failure(&self) -> Option<CopyError> {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.take()
    }
}
