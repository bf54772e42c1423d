//! The queue between the walk and the lanes.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use super::{
    large_file::{LargeSource, NextRange},
    walk::outlet::FolderJob,
};

/// The most jobs that wait for a lane: enough that no lane waits for the walk, few enough that their open folders are
/// far from the limit of descriptors.
const MAX_JOBS: usize = 16;

/// Jobs for the lanes, and large files whose ranges any lane may send.
///
/// A lane takes the first job whose folder it has, or that no lane has. So all entries of one folder travel in one
/// lane, and a lane without work takes the next folder.
#[derive(Default)]
pub(crate) struct WorkBoard {
    state: Mutex<BoardState>,
    /// Something has changed that a lane may wait for.
    changed: Notify,
    /// A job was taken: for the walker, which is a thread.
    room: Condvar,
}

#[derive(Default)]
struct BoardState {
    jobs: VecDeque<FolderJob>,
    shared: Vec<Arc<LargeSource>>,
    /// The number of lanes that work on a job, which may still share a large file.
    busy: usize,
    is_complete: bool,
    is_closed: bool,
}

/// Work for a lane.
pub(crate) enum LaneWork {
    /// All entries of a job. The lane calls [`WorkBoard::finished`] afterwards.
    Job(FolderJob),
    /// A range of a large file that another lane has shared, and then further ranges of the same file.
    Range(Arc<LargeSource>, NextRange),
}

/// The run has ended before the walk: the walk stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WalkStopped;

/// What a lane does next.
pub(crate) enum NextWork {
    /// It sends this.
    Work(LaneWork),
    /// It waits: work may still come.
    Wait,
    /// It ends: no work will come.
    End,
}

impl WorkBoard {
    /// Adds a job. Blocks while the board is full.
    ///
    /// # Errors
    ///
    /// Fails if the board was closed.
    pub(crate) fn push_blocking(&self, job: FolderJob) -> Result<(), WalkStopped> {
        let full = |state: &mut BoardState| !state.is_closed && state.jobs.len() >= MAX_JOBS;
        let waited = self.room.wait_while(self.state(), full);
        self.add(waited.unwrap_or_else(PoisonError::into_inner), job)
    }

    /// Adds a job that the destination was asked for. Does not wait: the permits for questions bound the number of
    /// these jobs.
    ///
    /// # Errors
    ///
    /// Fails if the board was closed.
    pub(crate) fn push_asked(&self, job: FolderJob) -> Result<(), WalkStopped> {
        self.add(self.state(), job)
    }

    fn add(
        &self,
        mut state: MutexGuard<'_, BoardState>,
        job: FolderJob,
    ) -> Result<(), WalkStopped> {
        if state.is_closed {
            return Err(WalkStopped);
        }
        state.jobs.push_back(job);
        drop(state);
        self.changed.notify_waiters();
        Ok(())
    }

    /// Returns true if the next job would have to wait.
    pub(crate) fn is_full(&self) -> bool {
        let state = self.state();
        !state.is_closed && state.jobs.len() >= MAX_JOBS
    }

    /// Returns true if the run has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    /// Notes that no job will be added.
    pub(crate) fn complete(&self) {
        self.state().is_complete = true;
        self.changed.notify_waiters();
    }

    /// Drops all jobs and ends the walk.
    pub(crate) fn close(&self) {
        let jobs = {
            let mut state = self.state();
            state.is_closed = true;
            std::mem::take(&mut state.jobs)
        };
        drop(jobs);
        self.room.notify_all();
        self.changed.notify_waiters();
    }

    /// Lets other lanes send ranges of a file.
    pub(crate) fn share(&self, file: Arc<LargeSource>) {
        self.state().shared.push(file);
        self.changed.notify_waiters();
    }

    /// Notes that a lane has finished a job.
    pub(crate) fn finished(&self) {
        self.state().busy -= 1;
        self.changed.notify_waiters();
    }

    /// Returns true if a job waits that `lane` could take.
    pub(crate) fn has_job(&self, lane: usize) -> bool {
        let state = self.state();
        state.jobs.iter().any(|job| job.folder.claim(lane))
    }

    /// Waits for work for a lane. Returns work or the end.
    ///
    /// # Cancel safety
    ///
    /// Safe: work that was not returned stays on the board.
    pub(crate) async fn take(&self, lane: usize) -> NextWork {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match self.try_take(lane) {
                NextWork::Wait => changed.await,
                work => return work,
            }
        }
    }

    /// Returns work for a lane that is there now.
    pub(crate) fn try_take(&self, lane: usize) -> NextWork {
        let mut state = self.state();
        if let Some(at) = state.jobs.iter().position(|job| job.folder.claim(lane)) {
            state.busy += 1;
            let job = state.jobs.remove(at);
            drop(state);
            self.room.notify_one();
            return match job {
                Some(mut job) => {
                    job.turn = None;
                    NextWork::Work(LaneWork::Job(job))
                }
                None => NextWork::Wait,
            };
        }
        while let Some(file) = state.shared.last() {
            if let Some(range) = file.join() {
                return NextWork::Work(LaneWork::Range(Arc::clone(file), range));
            }
            state.shared.pop();
        }
        let is_over = state.is_complete && state.jobs.is_empty() && state.busy == 0;
        if is_over || state.is_closed {
            NextWork::End
        } else {
            NextWork::Wait
        }
    }

    fn state(&self) -> MutexGuard<'_, BoardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
