//! A stream that is dropped before its end is an error at the peer, never an end of file. An end with nothing
//! outstanding is no failure: at neither end, and however the program lets go of the stream.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::FutureExt;
use rdpipe::{Error, OnDrop, Stream, StreamConfig};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::yield_now,
    time::timeout,
};

use super::{CHUNK, POOL, pair};
use crate::support::{
    data_path::{DataPath, fill},
    limits::{limit, patience},
    pattern::{End, Pattern, own},
    waiting::together,
};

/// A writer is dropped without `shutdown` after various numbers of bytes: the reader gets an error.
pub(crate) async fn a_writer_dropped_early_is_no_end_of_file(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    for bytes in [0, 1, CHUNK, CHUNK + 1, POOL, 3 * POOL + 7] {
        let (mut from, mut to) = pair(over, &base).await?;
        let writer = async move {
            Pattern::new(19).write(&mut from, 0..bytes).await?;
            drop(from);
            Ok(())
        };
        let reader = async move { Pattern::new(19).drain(&mut to, 0).await };
        let ((), end) = together(writer, reader).await?;
        abandoned(end)?;
    }
    Ok(())
}

/// A writer is dropped without `shutdown` after the reader has read all bytes: the reader gets an error.
pub(crate) async fn a_drop_without_shutdown_is_no_end_of_file(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut from, mut to) = pair(over, &base).await?;
    Pattern::new(20).write(&mut from, 0..CHUNK + 1).await?;
    from.flush().await?;
    Pattern::new(20).read(&mut to, 0..CHUNK + 1).await?;
    drop(from);
    abandoned(Pattern::new(20).drain(&mut to, CHUNK + 1).await?)
}

/// A write half that is dropped without `shutdown` is an error at the peer, as a dropped stream is.
pub(crate) async fn a_dropped_write_half_is_an_error_at_the_peer(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut from, mut to) = pair(over, &base).await?;
    Pattern::new(21).write(&mut from, 0..CHUNK).await?;
    let (_reads, writes) = from.into_split();
    drop(writes);
    abandoned(Pattern::new(21).drain(&mut to, 0).await?)
}

/// A reader is dropped before its first read, in the middle of a chunk, and between two chunks: the writer gets an
/// error.
pub(crate) async fn a_dropped_reader_is_an_error_at_the_writer(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    for bytes in [0, 1, CHUNK, 2 * CHUNK + 5, 2 * POOL] {
        let (mut from, mut to) = pair(over, &base).await?;
        let writer = async move { refused(&mut from).await };
        let reader = async move {
            Pattern::new(22).read(&mut to, 0..bytes).await?;
            drop(to);
            Ok(())
        };
        together(writer, reader).await?;
    }
    Ok(())
}

/// The FIN has arrived, but the reader is dropped before it has read all bytes: `finish` fails at the writer.
pub(crate) async fn finish_fails_if_the_reader_left_bytes_unread(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut from, mut to) = pair(over, &base).await?;
    Pattern::new(23).write(&mut from, 0..CHUNK + 1).await?;
    from.shutdown().await?;
    Pattern::new(23).read(&mut to, 0..CHUNK).await?;
    drop(to);
    let error = from.finish().await.expect_err("finished with bytes unread");
    ensure!(matches!(error, Error::PeerAborted { .. }), "{error:?}");
    Ok(())
}

/// A panic of the writing task is an error at the reader, not an end of file.
pub(crate) async fn a_panic_is_no_end_of_file(over: DataPath, base: StreamConfig) -> Result<()> {
    let (mut from, mut to) = pair(over, &base).await?;
    let task = tokio::spawn(async move {
        Pattern::new(24)
            .write(&mut from, 0..CHUNK)
            .await
            .expect("the peer reads");
        from.flush().await.expect("the peer reads");
        panic!("this panic is part of the test");
    });
    abandoned(Pattern::new(24).drain(&mut to, 0).await?)?;
    ensure!(
        task.await.is_err_and(|error| error.is_panic()),
        "it was to panic"
    );
    Ok(())
}

fn abandoned(end: End) -> Result<()> {
    let error = end.failure()?;
    ensure!(matches!(error, Error::PeerAborted { .. }), "{error:?}");
    Ok(())
}

/// Checks that both writing and reading fail at `stream`, whose peer dropped its end.
async fn refused(stream: &mut Stream) -> Result<()> {
    let writing = own(&Pattern::new(22).write_on(stream).await?)?;
    ensure!(matches!(writing, Error::PeerAborted { .. }), "{writing:?}");
    yield_now().await;
    let reading = own(&stream.read(&mut [0]).await.expect_err("an end of file"))?;
    ensure!(matches!(reading, Error::PeerAborted { .. }), "{reading:?}");
    Ok(())
}

/// A stream that is dropped after its shutdown lets the peer end as well: the peer reads the end, answers, and shuts
/// down without an error.
pub(crate) async fn a_drop_after_shutdown_lets_the_peer_end(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    for bytes in [0, 1, CHUNK + 1] {
        loop {
            let (mut leaves, stays) = pair(over, &base).await?;
            Pattern::new(40).write(&mut leaves, 0..bytes).await?;
            leaves.shutdown().await?;
            drop(leaves);
            let began = Instant::now();
            let ended = end_after(stays, bytes).await;
            // A dropped end waits for two seconds. If this machine was slower than that, the test says nothing.
            if ended.is_ok() || began.elapsed() < Duration::from_secs(1) {
                ended?;
                break;
            }
        }
    }
    Ok(())
}

/// Reads to the end, answers, and ends.
async fn end_after(mut stays: Stream, bytes: u64) -> Result<()> {
    Pattern::new(40).read_all(&mut stays, 0..bytes).await?;
    // As the answer to a goodbye whose sender does not wait for it.
    stays.write_all(b"goodbye").await?;
    stays.shutdown().await?;
    let watch = stays.watch();
    stays.close().await;
    ensure!(watch.error().is_none(), "{bytes}: {:?}", watch.error());
    Ok(())
}

/// A peer that writes on after this end was shut down and dropped is told to stop, and has no other failure.
pub(crate) async fn a_drop_after_shutdown_stops_a_peer_that_goes_on(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut leaves, mut stays) = pair(over, &base).await?;
    leaves.shutdown().await?;
    drop(leaves);
    let error = own(&Pattern::new(41).write_on(&mut stays).await?)?;
    ensure!(
        matches!(error, Error::Stopped { offset: 0, .. }),
        "{error:?}"
    );
    ensure!(stays.read(&mut [0]).await? == 0, "no end of file");
    Ok(())
}

/// A peer that neither writes nor ends is told to stop too, so that the dropped end does not stay forever.
pub(crate) async fn a_dropped_end_does_not_wait_for_ever(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut leaves, stays) = pair(over, &base).await?;
    leaves.shutdown().await?;
    timeout(limit(Duration::from_secs(20)), leaves.close()).await?;
    let error = stays.watch().interrupted().await;
    ensure!(matches!(error, Error::Stopped { .. }), "{error:?}");
    Ok(())
}

/// `shutdown` after the peer's `stop` succeeds if the peer's reader had taken everything, and only then.
pub(crate) async fn shutdown_succeeds_if_a_stopped_reader_had_all(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    for unread in [0, 1] {
        let (mut from, mut to) = pair(over, &base).await?;
        Pattern::new(42).write(&mut from, 0..100).await?;
        from.flush().await?;
        Pattern::new(42).read(&mut to, 0..100 - unread).await?;
        to.stop();
        from.watch().interrupted().await;
        let outcome = from.shutdown().await;
        match (unread, outcome) {
            (0, Ok(())) => {}
            (1, Err(error)) => ensure!(matches!(own(&error)?, Error::Stopped { .. })),
            (_, outcome) => anyhow::bail!("{unread} bytes unread: {outcome:?}"),
        }
        let error = own(&from.write_all(b"more").await.expect_err("it was stopped"))?;
        ensure!(matches!(error, Error::Stopped { .. }), "{error:?}");
    }
    Ok(())
}

/// A read half that is dropped loses nothing of what the write half writes, before or after.
pub(crate) async fn a_dropped_read_half_leaves_the_writer_alone(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (from, mut to) = pair(over, &base).await?;
    let (reads, mut writes) = from.into_split();
    let writing = async move {
        Pattern::new(43).write(&mut writes, 0..CHUNK).await?;
        drop(reads);
        Pattern::new(43).write(&mut writes, CHUNK..4 * POOL).await?;
        writes.shutdown().await?;
        Ok(())
    };
    let reader = async move {
        to.write_all(b"unread").await?;
        Pattern::new(43).read_all(&mut to, 0..4 * POOL).await?;
        let error = own(&Pattern::new(43).write_on(&mut to).await?)?;
        ensure!(matches!(error, Error::Stopped { .. }), "{error:?}");
        Ok(())
    };
    together(writing, reader).await?;
    Ok(())
}

/// A `shutdown` that is cancelled before there is room for the last bytes still ends the stream with FIN.
pub(crate) async fn a_cancelled_shutdown_sends_its_fin(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut from, mut to) = pair(over, &base).await?;
    let pattern = Pattern::new(44);
    fill(over, (&mut from, &to), &pattern, 0).await?;
    let ended = from.shutdown().now_or_never();
    ensure!(ended.is_none(), "it ended without room: {ended:?}");
    pattern.read_all(&mut to, 0..over.full()).await?;
    let error = own(&from
        .write_all(b"more")
        .await
        .expect_err("written after shutdown"))?;
    ensure!(matches!(error, Error::Misuse(_)), "{error:?}");
    from.shutdown().await?;
    Ok(())
}

/// With `OnDrop::Fin`, a stream that is dropped delivers what was written, and its end.
pub(crate) async fn with_fin_a_dropped_stream_delivers_everything(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    for bytes in [0, 1, CHUNK, POOL, 2 * POOL + 7] {
        let (mut from, mut to) = pair(over, &ending(&base)).await?;
        let writer = async move {
            Pattern::new(45).write(&mut from, 0..bytes).await?;
            drop(from);
            Ok(())
        };
        let reader = async move {
            Pattern::new(45).read_all(&mut to, 0..bytes).await?;
            to.shutdown().await?;
            let watch = to.watch();
            to.close().await;
            ensure!(watch.error().is_none(), "{bytes}: {:?}", watch.error());
            Ok(())
        };
        together(writer, reader).await?;
    }
    Ok(())
}

/// With `OnDrop::Fin`, two ends that are dropped at the same moment both end without a failure.
pub(crate) async fn with_fin_both_ends_can_be_dropped_at_once(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    for _ in 0..if over.is_slow() { 5 } else { 20 } {
        let (mut a, mut b) = pair(over, &ending(&base)).await?;
        a.write_all(b"request").await?;
        b.read_exact(&mut [0; 7]).await?;
        b.write_all(b"answer").await?;
        a.read_exact(&mut [0; 6]).await?;
        let watches = [a.watch(), b.watch()];
        tokio::join!(a.close(), b.close());
        for watch in watches {
            ensure!(watch.error().is_none(), "{:?}", watch.error());
        }
    }
    Ok(())
}

/// With `OnDrop::Fin`, a panic is an error at the peer all the same.
pub(crate) async fn with_fin_a_panic_is_no_end_of_file(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut from, mut to) = pair(over, &ending(&base)).await?;
    let task = tokio::spawn(async move {
        let held = from.write_all(b"half an answer").await;
        held.expect("the peer reads");
        panic!("this panic is part of the test");
    });
    let Err(panicked) = task.await;
    ensure!(panicked.is_panic());
    let mut read = Vec::new();
    let error = to.read_to_end(&mut read).await.expect_err("an end of file");
    ensure!(
        matches!(own(&error)?, Error::PeerAborted { .. }),
        "{error:?}"
    );
    Ok(())
}

/// With `OnDrop::Fin`, a peer that does not take the last bytes in time learns that they were not all.
pub(crate) async fn with_fin_a_peer_that_does_not_read_gets_no_false_end(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let mut config = ending(&base);
    config.timeout = patience(Duration::from_secs(2));
    let (mut from, mut to) = pair(over, &config).await?;
    let pattern = Pattern::new(46);
    fill(over, (&mut from, &to), &pattern, 0).await?;
    from.close().await;
    let error = pattern.drain(&mut to, 0).await?.failure()?;
    ensure!(matches!(error, Error::PeerAborted { .. }), "{error:?}");
    Ok(())
}

/// Returns `base`, with a FIN for a stream that is dropped.
fn ending(base: &StreamConfig) -> StreamConfig {
    let mut config = base.clone();
    config.on_drop = OnDrop::Fin;
    config
}
