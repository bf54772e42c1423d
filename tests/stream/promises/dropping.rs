//! Whoever lets go of a stream before its end leaves an error behind, never an end of file.

use anyhow::{Result, ensure};
use rdpipe::{Error, Stream, StreamConfig};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::yield_now,
};

use super::{CHUNK, POOL, pair};
use crate::support::{
    ends::Ends,
    pattern::{End, Pattern, own},
    waiting::together,
};

/// At various places in the middle of what is to be written.
pub(crate) async fn a_writer_dropped_early_is_no_end_of_file<E: Ends>(
    base: StreamConfig,
) -> Result<()> {
    for bytes in [0, 1, CHUNK, CHUNK + 1, POOL, 3 * POOL + 7] {
        let (mut from, mut to) = pair::<E>(&base).await?;
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

/// All was written, even flushed, and taken: without a `shutdown` that is no end.
pub(crate) async fn a_drop_without_shutdown_is_no_end_of_file<E: Ends>(
    base: StreamConfig,
) -> Result<()> {
    let (mut from, mut to) = pair::<E>(&base).await?;
    Pattern::new(20).write(&mut from, 0..CHUNK + 1).await?;
    from.flush().await?;
    Pattern::new(20).read(&mut to, 0..CHUNK + 1).await?;
    drop(from);
    abandoned(Pattern::new(20).drain(&mut to, CHUNK + 1).await?)
}

/// The halves of a stream are no more patient than the whole.
pub(crate) async fn a_dropped_half_is_an_error_at_the_peer<E: Ends>(
    base: StreamConfig,
) -> Result<()> {
    let (mut from, mut to) = pair::<E>(&base).await?;
    Pattern::new(21).write(&mut from, 0..CHUNK).await?;
    let (_reads, writes) = from.into_split();
    drop(writes);
    abandoned(Pattern::new(21).drain(&mut to, 0).await?)?;
    let (mut from, to) = pair::<E>(&base).await?;
    let (reads, _writes) = to.into_split();
    drop(reads);
    refused(&mut from).await
}

/// Before anything was read, in the middle of a chunk, and between two.
pub(crate) async fn a_dropped_reader_is_an_error_at_the_writer<E: Ends>(
    base: StreamConfig,
) -> Result<()> {
    for bytes in [0, 1, CHUNK, 2 * CHUNK + 5, 2 * POOL] {
        let (mut from, mut to) = pair::<E>(&base).await?;
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

/// The end was there, but the reader left before it had all the bytes: it is not content.
pub(crate) async fn finish_fails_if_the_reader_left_bytes_unread<E: Ends>(
    base: StreamConfig,
) -> Result<()> {
    let (mut from, mut to) = pair::<E>(&base).await?;
    Pattern::new(23).write(&mut from, 0..CHUNK + 1).await?;
    from.shutdown().await?;
    Pattern::new(23).read(&mut to, 0..CHUNK).await?;
    drop(to);
    let error = from.finish().await.expect_err("taken by nobody");
    ensure!(matches!(error, Error::PeerAborted { .. }), "{error:?}");
    Ok(())
}

/// A panic must not look like an end.
pub(crate) async fn a_panic_is_no_end_of_file<E: Ends>(base: StreamConfig) -> Result<()> {
    let (mut from, mut to) = pair::<E>(&base).await?;
    let task = tokio::spawn(async move {
        Pattern::new(24)
            .write(&mut from, 0..CHUNK)
            .await
            .expect("somebody listens");
        from.flush().await.expect("somebody listens");
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

/// Writing and reading at `stream` both come to an error, whose peer dropped its end.
async fn refused(stream: &mut Stream) -> Result<()> {
    let writing = own(&Pattern::new(22).write_on(stream).await?)?;
    ensure!(matches!(writing, Error::PeerAborted { .. }), "{writing:?}");
    yield_now().await;
    let reading = own(&stream.read(&mut [0]).await.expect_err("an end of file"))?;
    ensure!(matches!(reading, Error::PeerAborted { .. }), "{reading:?}");
    Ok(())
}
