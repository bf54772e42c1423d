//! What a stream promises, whatever carries it: each promise once, generic over the data path, and
//! every one of them run over every data path.

#[macro_use]
mod common;
mod contract;

/// Makes a test of every promise, over one data path.
macro_rules! contract {
    ($path:ident, $ends:ty) => {
        mod $path {
            promises! { contract over $ends:
                order::every_size, order::random_sizes,
                pace::slow_reader, pace::slow_writer, pace::one_half_left_alone,
                pace::paused_reader, pace::shutdown_without_a_reader,
                answers::one_byte_without_a_flush, answers::small_writes_get_out,
                answers::small_talk_at_both_ends,
                answers::large_answer_after_shutdown,
                closing::half_close, closing::finish_waits_for_confirm, closing::unconfirmed,
                closing::stopped, closing::goodbye_to_a_peer_that_stays, closing::stopped_one_way, closing::stopped_at_the_end, closing::aborted,
                dropping::dropped_mid_write, dropping::dropped_without_shutdown,
                dropping::dropped_half, dropping::dropped_mid_read,
                dropping::dropped_with_bytes_unread, dropping::panicked,
                sharing::both_directions, sharing::halves_in_two_tasks,
                sharing::cancelled_futures, sharing::vectored_and_empty,
            }
        }
    };
}

contract!(tcp, crate::common::ends::Tcp);
#[cfg(feature = "rdma")]
contract!(rdma, crate::common::ends::Rdma);
#[cfg(feature = "rdma")]
contract!(renewed_rdma, crate::common::ends::Renewed);

mod damaged_tcp {
    promises! { contract over crate::common::ends::Flipped: order::never_a_wrong_byte }
}

/// The contract is able to fail: with a rule broken on purpose, the promise that rests on it is.
#[cfg(feature = "fault-injection")]
mod broken_on_purpose {
    use std::time::Duration;

    use anyhow::{Result, ensure};
    use rdpipe::{Faults, StreamConfig};

    use crate::{
        common::{
            ends::{Flipped, Tcp},
            limit::{generous, within},
        },
        contract::{order, pace},
    };

    /// Waited out by a promise that never is kept.
    const HANG: Duration = Duration::from_secs(5);

    fn with(fault: impl FnOnce(&mut Faults)) -> StreamConfig {
        let mut config = StreamConfig::default();
        fault(&mut config.faults);
        config
    }

    /// Why `outcome` is a failure, as it must be.
    fn red(outcome: Result<()>, cause: &str) -> Result<()> {
        let told = outcome
            .err()
            .map(|error| format!("{error:#}"))
            .unwrap_or_default();
        ensure!(
            told.contains(cause),
            "expected a failure with {cause:?}, but: {told:?}"
        );
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_credit_skipped() -> Result<()> {
        let healthy = order::every_size::<Tcp>(with(|_| {}));
        within(generous(), "every_size", healthy).await?;
        let body = order::every_size::<Tcp>(with(|faults| faults.skip_credits = true));
        red(within(HANG, "every_size", body).await, "hangs")
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_slot_reused_early() -> Result<()> {
        within(
            generous(),
            "slow_reader",
            pace::slow_reader::<Tcp>(with(|_| {})),
        )
        .await?;
        let body = pace::slow_reader::<Tcp>(with(|faults| faults.reuse_slots_early = true));
        red(
            within(generous(), "slow_reader", body).await,
            "a slot that was not granted",
        )
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_digest_unchecked() -> Result<()> {
        let damaged = order::never_a_wrong_byte::<Flipped>(with(|_| {}));
        within(generous(), "never_a_wrong_byte", damaged).await?;
        let body = order::never_a_wrong_byte::<Flipped>(with(|faults| faults.ignore_digest = true));
        let outcome = within(generous(), "never_a_wrong_byte", body).await;
        red(outcome, "is not the one that was written")
    }
}
