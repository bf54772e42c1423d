//! The loops of a stream of several rails whose source or sink is a file: each rail reads or writes its own chunks, on
//! its own thread.
//!
//! A rail that sends claims the next bytes of the file, reads them into its slot, and sends them as soon as all earlier
//! ones have been read. A rail that receives writes each chunk at its place in the file. So a chunk is touched by one
//! thread at each end, and nothing is handed over.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::pin,
    sync::Arc,
    task::{Poll, ready},
};

use futures::future::join_all;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{CarryError, Observer, Railed, WaitClock, pump::TURN_BYTES};
use crate::{
    fd::{PositionedReader, PositionedWriter},
    transport::{Rail, RecvEither, SendEither},
};

/// Sends all of `file`, over all rails. Returns the number of bytes.
/// Fails with [`CarryError::Source`] or [`CarryError::Stream`], for the end that fails first.
/// Cancelling loses only the number of bytes: those that were read stay in the stream's slots.
pub(super) async fn send(file: PositionedReader, railed: Railed<'_>) -> Result<u64, CarryError> {
    let (work, _stop) = RailWork::new(railed.observer);
    let (first, others) = railed.stream.rails_to_send();
    let start = first.begin_placed()?;
    let file = Arc::new(file);
    let run = |mut rail: Rail| {
        let (work, file, thread) = (work.clone(), Arc::clone(&file), rail.thread.clone());
        let sending = async move {
            let result = work
                .run(work.send(&mut rail.send, &file, start, WaitClock::default()))
                .await;
            (rail, result)
        };
        async move { thread.run(sending).await }
    };
    let sending = join_all(mem::take(others).into_iter().map(run));
    let clock = work.clock();
    let sending_first = work.run(work.send(first, &file, start, clock));
    let (result, ended) = tokio::join!(sending_first, sending);
    let bytes = file.finish();
    first.end_placed(start + bytes);
    conclude(result, ended, others)?;
    Ok(bytes)
}

/// Receives all of the stream into `file`, over all rails, up to the verified end of the stream. Returns the number of
/// bytes.
/// Fails with [`CarryError::Stream`] or [`CarryError::Sink`], for the end that fails first. The file then holds the
/// bytes up to the first one that is missing.
/// Dropping the future loses the number of bytes.
pub(super) async fn receive(file: PositionedWriter, railed: Railed<'_>) -> Result<u64, CarryError> {
    let (work, _stop) = RailWork::new(railed.observer);
    let (first, others) = railed.stream.rails_to_receive();
    let start = first.begin_placed();
    let file = FinishedFile(Arc::new(file));
    let run = |mut rail: Rail| {
        let (work, file, thread) = (work.clone(), Arc::clone(&file.0), rail.thread.clone());
        let receiving = async move {
            let received = work.receive(&mut rail.recv, &file, start, WaitClock::default());
            let result = work.run(received).await;
            (rail, result)
        };
        async move { thread.run(receiving).await }
    };
    let receiving = join_all(mem::take(others).into_iter().map(run));
    let clock = work.clock();
    let receiving_first = work.run(work.receive(first, &file.0, start, clock));
    let (result, ended) = tokio::join!(receiving_first, receiving);
    let bytes = file.0.finish();
    first.end_placed(start + bytes);
    conclude(result, ended, others)?;
    Ok(bytes)
}

/// Puts the rails back, and returns the error that the others followed.
fn conclude(
    first: Result<(), CarryError>,
    ended: Vec<(Rail, Result<(), CarryError>)>,
    others: &mut Vec<Rail>,
) -> Result<(), CarryError> {
    let (rails, results): (Vec<_>, Vec<_>) = ended.into_iter().unzip();
    *others = rails;
    let errors = [first].into_iter().chain(results).filter_map(Result::err);
    // A failure of this end's file is the cause of a failure of the stream, and not the other way round.
    let is_consequence = |error: &CarryError| matches!(error, CarryError::Stream(_));
    errors.min_by_key(is_consequence).map_or(Ok(()), Err)
}

/// A file in which nothing is written any more when this value is dropped, by a caller who gives up, for example.
struct FinishedFile(Arc<PositionedWriter>);

impl Drop for FinishedFile {
    fn drop(&mut self) {
        self.0.finish();
    }
}

/// What the loops of all rails share.
#[derive(Clone)]
struct RailWork {
    stopped: CancellationToken,
    observer: Option<Arc<dyn Observer>>,
}

impl RailWork {
    /// Returns the work, and what stops all loops when it is dropped.
    fn new(observer: Option<Arc<dyn Observer>>) -> (Self, DropGuard) {
        let stopped = CancellationToken::new();
        let guard = stopped.clone().drop_guard();
        (Self { stopped, observer }, guard)
    }

    /// Runs the loop of one rail until it ends, or another one fails. Its failure stops the others.
    async fn run(
        &self,
        rail: impl Future<Output = Result<(), CarryError>>,
    ) -> Result<(), CarryError> {
        let result = self.stopped.run_until_cancelled(pin!(rail)).await;
        let result = result.unwrap_or(Ok(()));
        if result.is_err() {
            self.stopped.cancel();
        }
        result
    }

    async fn send(
        &self,
        rail: &mut SendEither,
        file: &PositionedReader,
        start: u64,
        mut clock: WaitClock,
    ) -> Result<(), CarryError> {
        let mut turn = 0;
        loop {
            let reading = poll_fn(|cx| {
                let slot = ready!(clock.watch(rail.poll_slot(cx)));
                Poll::Ready(slot.map(|slot| file.read(slot)))
            });
            let claim = reading
                .await
                .map_err(|error| CarryError::of_stream(&error))?;
            let (at, count) = (claim.at, claim.count);
            let confirmed = file.confirm(claim).await;
            let is_next =
                confirmed.map_err(|(source, offset)| CarryError::Source { offset, source })?;
            if !is_next {
                break;
            }
            poll_fn(|cx| Poll::Ready(rail.post_at(count, start + at, cx))).await?;
            self.moved(count, &mut turn).await;
        }
        poll_fn(|cx| rail.poll_all_posted(cx)).await?;
        Ok(())
    }

    async fn receive(
        &self,
        rail: &mut RecvEither,
        file: &PositionedWriter,
        start: u64,
        mut clock: WaitClock,
    ) -> Result<(), CarryError> {
        let mut turn = 0;
        loop {
            let writing = poll_fn(|cx| {
                let (offset, rest) = ready!(clock.watch(rail.poll_placed(cx)))?;
                let written = file.write(offset.saturating_sub(start), rest);
                let sink = |(source, offset)| CarryError::Sink { offset, source };
                Poll::Ready(written.map(|()| rest.len()).map_err(sink))
            });
            let count = writing.await?;
            if count == 0 {
                return Ok(());
            }
            rail.take(count);
            self.moved(count, &mut turn).await;
        }
    }

    /// Counts moved bytes, and lets the other tasks of the thread run after so many of them.
    async fn moved(&self, count: usize, turn: &mut usize) {
        if let Some(observer) = &self.observer {
            observer.moved(count);
        }
        *turn += count;
        if *turn >= TURN_BYTES {
            *turn = 0;
            tokio::task::yield_now().await;
        }
    }

    /// Returns the clock of the first rail.
    fn clock(&self) -> WaitClock {
        WaitClock::new(self.observer.clone())
    }
}
