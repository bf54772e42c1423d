//! Ends on purpose: half-close, confirmation, STOP and ABORT.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::FutureExt;
use rdpipe::{Direction, Error, Stream, StreamConfig};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::yield_now,
};

use super::{CHUNK, POOL, order::undisturbed, pair, small};
use crate::support::{
    data_path::DataPath,
    pattern::{Pattern, own},
    waiting::together,
};

/// Either end can shut down its direction first; the other direction goes on.
pub(crate) async fn one_direction_ends_and_the_other_goes_on(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (dialer, acceptor) = pair(over, &base).await?;
    first_then_second(dialer, acceptor)
        .await
        .context("the dialer first")?;
    let (dialer, acceptor) = pair(over, &base).await?;
    first_then_second(acceptor, dialer)
        .await
        .context("the acceptor first")
}

async fn first_then_second(mut first: Stream, mut second: Stream) -> Result<()> {
    let (early, late) = (CHUNK + 1, 3 * POOL + 1);
    let one = async move {
        Pattern::new(11).write(&mut first, 0..early).await?;
        first.shutdown().await?;
        let refused = own(&first
            .write_all(b"more")
            .await
            .expect_err("written after shutdown"))?;
        ensure!(matches!(refused, Error::Misuse(_)), "{refused:?}");
        Pattern::new(12).read_all(&mut first, 0..late).await?;
        Ok(first)
    };
    let other = async move {
        Pattern::new(11).read_all(&mut second, 0..early).await?;
        Pattern::new(12).write(&mut second, 0..late).await?;
        second.shutdown().await?;
        Ok(second)
    };
    let (first, second) = together(one, other).await?;
    undisturbed(&[&first, &second])?;
    let watches = [first.watch(), second.watch()];
    tokio::join!(first.close(), second.close());
    for watch in watches {
        let cause = watch.interrupted().now_or_never();
        ensure!(cause.is_none(), "after both ends closed: {cause:?}");
    }
    Ok(())
}

/// `finish` waits until the peer calls `confirm`; `shutdown` returns without that.
pub(crate) async fn finish_waits_for_confirm(over: DataPath, base: StreamConfig) -> Result<()> {
    let (mut from, mut to) = pair(over, &base).await?;
    let early = to.confirm().expect_err("confirmed before the end");
    ensure!(matches!(early, Error::Misuse(_)), "{early:?}");
    Pattern::new(13).write(&mut from, 0..CHUNK + 1).await?;
    from.shutdown().await?;
    Pattern::new(13).read_all(&mut to, 0..CHUNK + 1).await?;
    for _ in 0..1000 {
        ensure!(
            from.finish().now_or_never().is_none(),
            "finished without a confirmation"
        );
        yield_now().await;
    }
    to.confirm()?;
    from.finish().await?;
    from.finish().await.context("asked again")?;
    Ok(())
}

/// If the reader drops its stream without `confirm`, `finish` fails with `Error::Unconfirmed`.
pub(crate) async fn finish_reports_a_missing_confirmation(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut from, mut to) = pair(over, &base).await?;
    Pattern::new(14).write(&mut from, 0..100).await?;
    from.shutdown().await?;
    Pattern::new(14).read_all(&mut to, 0..100).await?;
    to.shutdown().await?;
    ensure!(from.read(&mut [0]).await? == 0, "no end");
    drop(to);
    let error = from
        .finish()
        .await
        .expect_err("finished without a confirmation");
    ensure!(
        matches!(error, Error::Unconfirmed { bytes: 100, .. }),
        "{error:?}"
    );
    Ok(())
}

/// A reader calls `stop`: its writer gets a broken pipe, and neither end reports another failure.
pub(crate) async fn a_reader_can_stop_its_writer(over: DataPath, base: StreamConfig) -> Result<()> {
    let (mut dialer, mut acceptor) = (small(&base), small(&base));
    dialer.direction = Direction::Send;
    acceptor.direction = Direction::Receive;
    let (mut from, mut to) = over.pair(dialer, acceptor).await?;
    let writer = async move {
        let error = Pattern::new(15).write_on(&mut from).await?;
        ensure!(error.kind() == std::io::ErrorKind::BrokenPipe, "{error:?}");
        let error = own(&error)?;
        ensure!(
            matches!(error, Error::Stopped { offset: 100, .. }),
            "{error:?}"
        );
        Ok(from)
    };
    let reader = async move {
        Pattern::new(15).read(&mut to, 0..100).await?;
        to.stop();
        Ok(to)
    };
    let (from, to) = together(writer, reader).await?;
    let (at_writer, at_reader) = (from.watch(), to.watch());
    tokio::join!(from.close(), to.close());
    let cause = at_reader.interrupted().now_or_never();
    ensure!(cause.is_none(), "the reader reports a failure: {cause:?}");
    let cause = at_writer.interrupted().now_or_never();
    ensure!(
        matches!(cause, Some(Error::Stopped { .. })),
        "the writer reports another cause: {cause:?}"
    );
    Ok(())
}

/// `close` returns before the peer closes its end, and the peer can still read everything.
pub(crate) async fn close_does_not_wait_for_the_peer_to_close(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    // A `close` that keeps the promise takes almost no time; one that waits for the peer takes two seconds, every time.
    for _ in 0..5 {
        if says_goodbye(over, &base).await? < Duration::from_secs(1) {
            return Ok(());
        }
    }
    bail!("close waits until the peer closes");
}

/// Closes one end while the other stays open. Returns the time that `close` took.
async fn says_goodbye(over: DataPath, base: &StreamConfig) -> Result<Duration> {
    let (mut leaves, mut stays) = pair(over, base).await?;
    Pattern::new(33).write(&mut leaves, 0..POOL).await?;
    leaves.shutdown().await?;
    stays.shutdown().await?;
    ensure!(leaves.read(&mut [0]).await? == 0, "no end");
    let since = Instant::now();
    leaves.close().await;
    let took = since.elapsed();
    Pattern::new(33).read_all(&mut stays, 0..POOL).await?;
    stays.confirm().context("confirmed after the peer closed")?;
    stays.shutdown().await.context("asked again")?;
    undisturbed(&[&stays])?;
    Ok(took)
}

/// `stop` ends one direction; the other direction goes on.
pub(crate) async fn stop_ends_one_direction_only(over: DataPath, base: StreamConfig) -> Result<()> {
    let (mut a, mut b) = pair(over, &base).await?;
    b.stop();
    let error = own(&Pattern::new(16).write_on(&mut a).await?)?;
    ensure!(matches!(error, Error::Stopped { .. }), "{error:?}");
    let reader = async move {
        Pattern::new(17).read_all(&mut a, 0..3 * POOL).await?;
        Ok(a)
    };
    let writer = async move {
        Pattern::new(17).write(&mut b, 0..3 * POOL).await?;
        b.shutdown().await?;
        Ok(b)
    };
    let (a, b) = together(reader, writer).await?;
    let watch = b.watch();
    tokio::join!(a.close(), b.close());
    let cause = watch.interrupted().now_or_never();
    ensure!(
        cause.is_none(),
        "the end that stopped reports a failure: {cause:?}"
    );
    Ok(())
}

/// A STOP that is sent just before or after the FIN, or crosses it on the way, is no failure of the reader. The
/// `shutdown` of the writer either succeeds or fails with `Error::Stopped`.
pub(crate) async fn a_stop_near_the_end_is_no_failure(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    for number in (0..100).step_by(if over.is_slow() { 5 } else { 1 }) {
        let (mut dialer, mut acceptor) = (small(&base), small(&base));
        dialer.direction = Direction::Send;
        acceptor.direction = Direction::Receive;
        let (mut from, mut to) = over.pair(dialer, acceptor).await?;
        from.write_all(b"all there is").await?;
        let watch = to.watch();
        let writer = async move {
            let outcome = from.shutdown().await;
            Ok((outcome, from))
        };
        let reader = async move {
            for _ in 0..number {
                yield_now().await;
            }
            to.stop();
            to.close().await;
            Ok(())
        };
        let ((outcome, from), ()) = together(writer, reader).await?;
        if let Err(error) = outcome {
            let error = own(&error)?;
            ensure!(
                matches!(error, Error::Stopped { .. }),
                "{number}: {error:?}"
            );
        }
        drop(from);
        let cause = watch.interrupted().now_or_never();
        ensure!(
            cause.is_none(),
            "{number}: the reader reports a failure: {cause:?}"
        );
    }
    Ok(())
}

/// Reads, writes and `shutdown` at the peer of an aborted stream fail with the reason that `abort` was given.
pub(crate) async fn both_ends_get_the_reason_of_an_abort(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut a, mut b) = pair(over, &base).await?;
    Pattern::new(18).write(&mut a, 0..100).await?;
    Pattern::new(18).read(&mut b, 0..100).await?;
    a.abort("the disk is full");
    let here = own(&a
        .write_all(b"more")
        .await
        .expect_err("written after an abort"))?;
    ensure!(
        matches!(&here, Error::Aborted { reason } if reason == "the disk is full"),
        "{here:?}"
    );
    let reading = own(&b.read(&mut [0]).await.expect_err("read after an abort"))?;
    let writing = own(&b
        .write_all(b"more")
        .await
        .expect_err("written after an abort"))?;
    let ending = own(&b.shutdown().await.expect_err("ended after an abort"))?;
    for error in [reading, writing, ending] {
        let told = matches!(&error, Error::PeerAborted { reason, offset: 100, .. } if reason == "the disk is full");
        ensure!(told, "{error:?}");
    }
    Ok(())
}
