//! Finds completions that async-rdma has missed.
//!
//! The crate polls its completion queue, arms it, and does not poll once more (see [`link`](super::link)). So a
//! completion can be missed only in the moment after another one, and only until the next one. While chunks flow there
//! always is a next one. When they pause, this end makes one itself: a *nudge* is a write of one byte into a page that
//! the peer reserves. It is posted after twice the recent time of a chunk, and then again in longer pauses, since the
//! completion of a nudge can be followed by a missed one as well. A link that stays idle is not nudged.

use std::{
    convert::Infallible,
    future::poll_fn,
    io,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures::task::AtomicWaker;
use tokio::time::{Instant, sleep, timeout};

use super::link::{Link, MOST_NUDGES, Region, SlotToken, WorkRequest};

/// The time without a completion before the first nudge, if the link was idle before. Also the time after a nudge
/// within which completions count as found by it.
const FIRST_PAUSE: Duration = Duration::from_millis(2);

/// The shortest time without a completion before the first nudge, while completions come: each look is a wake-up. In a
/// steady flow it doubles with each look, up to [`MIN_STEADY_PAUSE`]: it is about as long as the flow has lasted. In
/// user-mode Linux, looks each 10 ms took 2% of the speed.
const MIN_ACTIVE_PAUSE: Duration = Duration::from_millis(10);

/// The shortest time without a completion before the first nudge, in a flow that has lasted for as long.
const MIN_STEADY_PAUSE: Duration = Duration::from_millis(80);

/// The longest time without a completion before the first nudge, where chunks come slowly.
const MAX_ACTIVE_PAUSE: Duration = Duration::from_secs(1);

/// The first pause between nudges while one frame is awaited that proves a link. Each pause is twice the last one.
const FIRST_PROOF_PAUSE: Duration = Duration::from_millis(2);

const MAX_PROOF_PAUSE: Duration = Duration::from_millis(16);

/// What is needed to nudge one link. It keeps the queue pair, so it is dropped before the link is destroyed.
pub(super) struct Nudge {
    posted: Vec<WorkRequest<io::Result<()>>>,
    link: Link,
    from: Arc<Region>,
    target: SlotToken,
}

impl Nudge {
    /// Writes the first byte of `from` to the page of the peer.
    pub(super) fn new(link: Link, from: Region, target: SlotToken) -> Self {
        Self {
            posted: Vec::new(),
            link,
            from: Arc::new(from),
            target,
        }
    }

    /// Posts a write of one byte that completes a receive of the peer, as a frame does: it proves the link.
    pub(super) fn prove(&self) -> WorkRequest<io::Result<()>> {
        self.link.write_byte(&self.from, self.target, true)
    }

    /// Waits for `work` on a link of which no completion is counted yet, and nudges it meanwhile.
    pub(super) async fn beside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let mut pause = FIRST_PROOF_PAUSE;
        loop {
            if let Ok(done) = timeout(pause, work.as_mut()).await {
                return done;
            }
            // If the link is lost, the work fails.
            let _ = self.post();
            pause = (2 * pause).min(MAX_PROOF_PAUSE);
        }
    }

    /// Posts one nudge, unless too many are under way. Returns false then.
    /// Fails if an earlier nudge has: the link is lost.
    fn post(&mut self) -> io::Result<bool> {
        let mut failure = Ok(());
        self.posted.retain_mut(
            |nudge| match nudge.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Pending => true,
                Poll::Ready(result) => {
                    if result.is_err() {
                        failure = result;
                    }
                    false
                }
            },
        );
        failure?;
        if self.posted.len() >= MOST_NUDGES as usize {
            return Ok(false);
        }
        let nudge = self.link.write_byte(&self.from, self.target, false);
        self.posted.push(nudge);
        Ok(true)
    }
}

/// The nudges of a stream, over one link after the other.
#[derive(Default)]
pub(super) struct Nudges {
    current: Mutex<Option<Nudge>>,
    completions: AtomicU64,
    waker: AtomicWaker,
}

impl Nudges {
    /// Nudges this link from now on, or none.
    pub(super) fn set(&self, nudge: Option<Nudge>) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = nudge;
    }

    /// Counts a completion of a chunk.
    pub(super) fn count(&self) {
        self.completions.fetch_add(1, Relaxed);
        self.waker.wake();
    }

    /// Nudges the link whenever its completions pause. `posted` is called for each nudge, with its failure if the link
    /// is lost, and `found` with the number of completions that were found right after a nudge.
    pub(super) async fn run(
        &self,
        posted: impl Fn(io::Result<()>),
        found: impl Fn(u64),
    ) -> Infallible {
        let mut seen = 0;
        let mut timer = pin!(sleep(Duration::ZERO));
        loop {
            self.completion_after(seen).await;
            let mut pace = Pace::default();
            loop {
                timer.as_mut().reset(Instant::now() + pace.pause);
                timer.as_mut().await;
                let now = self.completions.load(Relaxed);
                let step = pace.next(now - seen);
                seen = now;
                match step {
                    PaceStep::Wait => {}
                    PaceStep::Nudge => {
                        if let Some(result) = self.post() {
                            posted(result);
                            sleep(FIRST_PAUSE).await;
                            found(self.completions.load(Relaxed) - now);
                        }
                    }
                    PaceStep::Idle => break,
                }
            }
        }
    }

    fn post(&self) -> Option<io::Result<()>> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        match current.as_mut()?.post() {
            Ok(true) => Some(Ok(())),
            Ok(false) => None,
            Err(error) => {
                // The link is lost: the next one brings its own nudge.
                *current = None;
                Some(Err(error))
            }
        }
    }

    async fn completion_after(&self, seen: u64) {
        poll_fn(|cx| {
            self.waker.register(cx.waker());
            if self.completions.load(Relaxed) == seen {
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        })
        .await;
    }
}

/// Decides when the link is nudged. Pure, no I/O.
#[derive(Debug)]
struct Pace {
    /// The time until the next look at the completions.
    pause: Duration,
    /// The shortest such time, if the next look finds completions.
    least: Duration,
    /// The nudges since the last completion.
    nudges: u32,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PaceStep {
    /// Look again after the pause.
    Wait,
    /// Nudge, and look again after the pause.
    Nudge,
    /// Wait for a completion.
    Idle,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            pause: FIRST_PAUSE,
            least: MIN_ACTIVE_PAUSE,
            nudges: 0,
        }
    }
}

impl Pace {
    /// Decides after a pause in which `completions` were found, and sets the next pause.
    fn next(&mut self, completions: u64) -> PaceStep {
        if completions > 0 {
            let each = self.pause / u32::try_from(completions).unwrap_or(u32::MAX);
            self.pause = (2 * each).clamp(self.least, MAX_ACTIVE_PAUSE);
            self.least = (2 * self.least).min(MIN_STEADY_PAUSE);
            self.nudges = 0;
            return PaceStep::Wait;
        }
        if self.nudges == MOST_NUDGES {
            return PaceStep::Idle;
        }
        self.nudges += 1;
        self.pause *= 2;
        self.least = MIN_ACTIVE_PAUSE;
        PaceStep::Nudge
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_pause_is_nudged_a_few_times_at_growing_distances() {
        let mut pace = Pace::default();
        assert_eq!(pace.next(1), PaceStep::Wait);
        assert_eq!(pace.pause, MIN_ACTIVE_PAUSE);
        for pause in [20, 40, 80, 160].map(ms) {
            assert_eq!((pace.next(0), pace.pause), (PaceStep::Nudge, pause));
        }
        assert_eq!(pace.next(0), PaceStep::Idle);
    }

    #[test]
    fn a_steady_flow_is_looked_at_less_and_less_often() {
        let mut pace = Pace::default();
        let mut flow = Duration::ZERO;
        for pause in [10, 20, 40, 80, 80].map(ms) {
            flow += pace.pause;
            assert_eq!((pace.next(9), pace.pause), (PaceStep::Wait, pause));
            assert!(pause <= flow + MIN_ACTIVE_PAUSE, "{pause:?} after {flow:?}");
        }
        // A pause begins again.
        assert_eq!(pace.next(0), PaceStep::Nudge);
        assert_eq!(pace.next(99), PaceStep::Wait);
        assert_eq!(pace.pause, MIN_ACTIVE_PAUSE);
    }

    #[test]
    fn chunks_that_come_slowly_are_not_nudged() {
        for (completions, before, after) in [(4, 60, 30), (1, 30, 60), (1, 900, 1000), (90, 9, 10)]
        {
            let mut pace = Pace {
                pause: ms(before),
                least: MIN_ACTIVE_PAUSE,
                nudges: 0,
            };
            assert_eq!(pace.next(completions), PaceStep::Wait);
            assert_eq!(pace.pause, ms(after), "{completions}");
        }
    }
}
