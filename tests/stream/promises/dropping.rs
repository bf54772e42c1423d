//! A stream that is dropped before its end is an error at the peer, never an end of file.

use anyhow::{Result, ensure};
use rdpipe::{Error, Stream, StreamConfig};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::yield_now,
};

use super::{CHUNK, POOL, pair};
use crate::support::{
    data_path::DataPath,
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
