//! Reads and writes of no bytes.

use std::{io::IoSlice, pin::Pin, sync::Arc, task::Poll};

use anyhow::{Result, ensure};
use rdpipe::{Stream, StreamConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::{CHUNK, FULL, fill, pair};
use crate::support::{data_path::DataPath, pattern::Pattern, waiting::until, wakes::Wakes};

/// Reads and writes of no bytes complete at once in every state: before the first byte, in the middle of a chunk,
/// while other writes wait, at the end and after it.
pub(crate) async fn empty_reads_and_writes_complete_at_once(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut a, mut b) = pair(over, &base).await?;
    let pattern = Pattern::new(100);
    both_ways([&mut a, &mut b], "fresh")?;
    pattern.write(&mut a, 0..CHUNK + 1).await?;
    both_ways([&mut a, &mut b], "written")?;
    pattern.read(&mut b, 0..CHUNK / 2).await?;
    both_ways([&mut a, &mut b], "half read")?;
    pattern.read(&mut b, CHUNK / 2..CHUNK + 1).await?;
    both_ways([&mut a, &mut b], "all read")?;
    fill(&mut a, &b, &pattern, CHUNK + 1).await?;
    let end = CHUNK + 1 + FULL;
    both_ways([&mut a, &mut b], "full")?;
    let ending = async { anyhow::Ok(a.shutdown().await?) };
    tokio::try_join!(ending, pattern.read_all(&mut b, CHUNK + 1..end))?;
    both_ways([&mut a, &mut b], "one end")?;
    b.confirm()?;
    a.finish().await?;
    b.shutdown().await?;
    ensure!(a.read(&mut [0]).await? == 0, "no end");
    both_ways([&mut a, &mut b], "both ends")
}

/// Writes of no bytes send no chunk and wake no task.
pub(crate) async fn empty_writes_send_nothing_and_wake_no_task(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut a, mut b) = pair(over, &base).await?;
    let (reader, writer) = (Wakes::new(), Wakes::new());
    ensure!(poll_read(&mut b, &reader, &mut [0]).is_pending());
    for _ in 0..1000 {
        let written = poll_write(&mut a, &writer, &[]);
        ensure!(matches!(written, Poll::Ready(Ok(0))), "{written:?}");
    }
    a.flush().await?;
    a.write_all(b"!").await?;
    a.flush().await?;
    until(|| reader.count() > 0).await;
    ensure!(b.read_u8().await? == b'!');
    ensure!(b.stats().chunks_received == 1, "{:?}", b.stats());
    ensure!(a.stats().chunks_sent == 1, "{:?}", a.stats());
    ensure!(writer.count() == 0, "woken for nothing");
    ensure!(reader.count() <= 8, "woken {} times", reader.count());
    Ok(())
}

fn both_ways(ends: [&mut Stream; 2], state: &str) -> Result<()> {
    for stream in ends {
        let wakes = Wakes::new();
        let before = (stream.stats().bytes_sent, stream.stats().chunks_sent);
        let written = poll_write(stream, &wakes, &[]);
        ensure!(
            matches!(written, Poll::Ready(Ok(0))),
            "{state}: {written:?}"
        );
        for pieces in [&[][..], &[IoSlice::new(&[]), IoSlice::new(&[])]] {
            let written = wakes.poll(|cx| Pin::new(&mut *stream).poll_write_vectored(cx, pieces));
            ensure!(
                matches!(written, Poll::Ready(Ok(0))),
                "{state}, vectored: {written:?}"
            );
        }
        let read = poll_read(stream, &wakes, &mut []);
        ensure!(matches!(read, Poll::Ready(Ok(0))), "{state}: {read:?}");
        let after = (stream.stats().bytes_sent, stream.stats().chunks_sent);
        ensure!(before == after, "{state}: {before:?}, then {after:?}");
        ensure!(wakes.count() == 0, "{state}: woken");
    }
    Ok(())
}

fn poll_write(
    stream: &mut Stream,
    wakes: &Arc<Wakes>,
    bytes: &[u8],
) -> Poll<std::io::Result<usize>> {
    wakes.poll(|cx| Pin::new(stream).poll_write(cx, bytes))
}

fn poll_read(
    stream: &mut Stream,
    wakes: &Arc<Wakes>,
    bytes: &mut [u8],
) -> Poll<std::io::Result<usize>> {
    let mut buffer = ReadBuf::new(bytes);
    let read = wakes.poll(|cx| Pin::new(stream).poll_read(cx, &mut buffer));
    read.map_ok(|()| buffer.filled().len())
}
