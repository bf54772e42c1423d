//! The tests of the promises can fail: if a rule of the protocol is broken on purpose, the promise that rests on it
//! fails.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rdpipe::{Faults, StreamConfig};

use crate::{
    promises::order,
    support::{
        data_path::DataPath,
        waiting::{generous, within},
    },
};

/// A promise that is expected to hang counts as hanging after this time and [`TIMES_HEALTHY`] times that of the healthy
/// one.
const HANG: Duration = Duration::from_secs(5);

/// See [`HANG`].
const TIMES_HEALTHY: u32 = 10;

fn with(fault: impl FnOnce(&mut Faults)) -> StreamConfig {
    let mut config = StreamConfig::default();
    fault(&mut config.faults);
    config
}

/// Checks that `outcome` is a failure whose text contains `cause`.
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
async fn a_skipped_credit_fails_a_promise() -> Result<()> {
    let started = Instant::now();
    let healthy = order::bytes_of_every_size_arrive_in_order(DataPath::Tcp, with(|_| {}));
    within(generous(), "bytes_of_every_size_arrive_in_order", healthy).await?;
    let hang = HANG + TIMES_HEALTHY * started.elapsed();
    let body = order::bytes_of_every_size_arrive_in_order(
        DataPath::Tcp,
        with(|faults| {
            faults.skip_credits = true;
        }),
    );
    red(
        within(hang, "bytes_of_every_size_arrive_in_order", body).await,
        "hangs",
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_reused_early_fails_a_promise() -> Result<()> {
    within(
        generous(),
        "a_slow_reader_loses_nothing",
        order::a_slow_reader_loses_nothing(DataPath::Tcp, with(|_| {})),
    )
    .await?;
    let body = order::a_slow_reader_loses_nothing(
        DataPath::Tcp,
        with(|faults| faults.reuse_slots_early = true),
    );
    red(
        within(generous(), "a_slow_reader_loses_nothing", body).await,
        "a slot that was not granted",
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unchecked_digest_fails_a_promise() -> Result<()> {
    let damaged = order::a_reader_never_gets_a_wrong_byte(DataPath::FlippedTcp, with(|_| {}));
    within(generous(), "a_reader_never_gets_a_wrong_byte", damaged).await?;
    let body = order::a_reader_never_gets_a_wrong_byte(
        DataPath::FlippedTcp,
        with(|faults| {
            faults.ignore_digest = true;
        }),
    );
    let outcome = within(generous(), "a_reader_never_gets_a_wrong_byte", body).await;
    red(outcome, "is not the one that was written")
}
