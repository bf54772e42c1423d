//! `read_exact` over the borders of chunks and at the end of a stream.

use std::io::ErrorKind;

use anyhow::{Result, bail, ensure};
use rdpipe::{Error, Stream, StreamConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{CHUNK, POOL, pair};
use crate::support::{data_path::DataPath, pattern::Pattern, waiting::together};

/// `read_exact` returns sizes that end before, at and after the borders of chunks, and sizes larger than a pool.
pub(crate) async fn read_exact_works_across_chunks(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut from, mut to) = pair(over, &base).await?;
    let sizes = [
        1,
        CHUNK - 1,
        CHUNK,
        CHUNK + 1,
        CHUNK * 7 / 2,
        3,
        POOL,
        2 * POOL + CHUNK / 2,
        CHUNK - 4,
        1,
    ];
    let bytes: u64 = sizes.iter().sum();
    let writer = async move {
        Pattern::new(101).write(&mut from, 0..bytes).await?;
        from.shutdown().await?;
        Ok(from)
    };
    let reader = async move {
        let (pattern, mut at) = (Pattern::new(101), 0);
        for size in sizes {
            at += exactly(&mut to, &pattern, at, size).await?;
        }
        ends_early(&mut to, 1).await?;
        Ok(to)
    };
    together(writer, reader).await?;
    Ok(())
}

/// `read_exact` fails with `UnexpectedEof` when fewer bytes are left: in a chunk, at its border, and with none at all.
pub(crate) async fn read_exact_reports_an_early_end(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    for bytes in [0, 1, CHUNK, CHUNK + 10] {
        let (mut from, mut to) = pair(over, &base).await?;
        let pattern = Pattern::new(102);
        pattern.write(&mut from, 0..bytes).await?;
        from.shutdown().await?;
        let read = exactly(&mut to, &pattern, 0, bytes / 2).await?;
        ends_early(&mut to, bytes - read + 1).await?;
        ends_early(&mut to, 1).await?;
        ensure!(to.read(&mut [0]).await? == 0, "no end");
        // The reader has read everything, so it can confirm.
        to.confirm()?;
        from.finish().await?;
    }
    Ok(())
}

async fn exactly(stream: &mut Stream, pattern: &Pattern, at: u64, size: u64) -> Result<u64> {
    let mut bytes = vec![0; usize::try_from(size)?];
    let count = stream.read_exact(&mut bytes).await?;
    ensure!(count == bytes.len(), "{count} bytes");
    pattern.check(at, &bytes)?;
    Ok(size)
}

/// Checks that the stream ends before `size` bytes, and that the error is tokio's own, not one of the stream.
async fn ends_early(stream: &mut Stream, size: u64) -> Result<()> {
    let mut bytes = vec![0; usize::try_from(size)?];
    match stream.read_exact(&mut bytes).await {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            ensure!(Error::from_io(&error).is_none(), "{error:?}");
            Ok(())
        }
        other => bail!("{size} bytes: {other:?}"),
    }
}
