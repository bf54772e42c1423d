//! Buffers that are filled in place, writes from several slices, and received chunks that the reader keeps as `Bytes`.

use std::{
    io::{IoSlice, Write},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use rdpipe::{Error, SendBuffer, Stream, StreamConfig};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    task::{JoinHandle, yield_now},
    time::sleep,
};

use super::{CHUNK, DEPTH, POOL, cancelled::at_once, fill, pair, small};
use crate::support::{
    data_path::DataPath,
    pattern::{Pattern, own},
    random::Random,
    waiting::together,
};

/// Send buffers that are filled partly, fully or not at all, and are sent or dropped, with writes between them: the
/// bytes that were sent arrive in the order in which they were sent.
pub(crate) async fn buffers_arrive_in_the_order_sent(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    for depth in [2, 4] {
        let mut config = small(&base);
        config.depth = depth;
        let (mut from, mut to) = over.pair(config.clone(), config).await?;
        let writer = async move {
            let (pattern, mut random) = (Pattern::new(150), Random::new(150));
            let mut at = 0;
            while at < 10 * POOL {
                let size = match random.within(0..4) {
                    0 => 0,
                    1 => CHUNK,
                    _ => random.within(1..CHUNK),
                };
                match random.within(0..4) {
                    0 => pattern.write(&mut from, at..at + size).await?,
                    1 => {
                        let mut dropped = from.send_buffer().await?;
                        fill_buffer(&mut dropped, &pattern, at, size)?;
                        continue;
                    }
                    _ => {
                        let mut buffer = from.send_buffer().await?;
                        fill_buffer(&mut buffer, &pattern, at, size)?;
                        from.send(buffer)?;
                    }
                }
                at += size;
            }
            from.finish().await?;
            Ok(at)
        };
        let reader = async move {
            let end = Pattern::new(150).drain(&mut to, 0).await?;
            to.confirm()?;
            Ok(end)
        };
        let (written, end) = together(writer, reader).await?;
        let is_all = matches!(end, crate::support::pattern::End::Eof(at) if at == written);
        ensure!(is_all, "depth {depth}: {end:?} of {written}");
    }
    Ok(())
}

/// All buffers that can be lent at once are lent, and then sent in another order; writes go on meanwhile.
pub(crate) async fn several_buffers_can_be_lent_at_once(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut from, mut to) = pair(over, &base).await?;
    let pattern = Pattern::new(151);
    let mut buffers = Vec::new();
    for _ in 1..DEPTH {
        buffers.push(from.send_buffer().await?);
    }
    for _ in 0..100 {
        ensure!(at_once(from.send_buffer()).await.is_none(), "one too many");
        yield_now().await;
    }
    // One buffer is left in the pool, which is enough for writes.
    let reading = pattern.read(&mut to, 0..2 * POOL);
    let writing = async { anyhow::Ok(pattern.write(&mut from, 0..2 * POOL).await?) };
    tokio::try_join!(writing, reading)?;
    let mut at = 2 * POOL;
    buffers.reverse();
    for mut buffer in buffers {
        ensure!(buffer.is_empty(), "it holds {} bytes", buffer.len());
        at += fill_buffer(&mut buffer, &pattern, at, CHUNK - 7)?;
        from.send(buffer)?;
    }
    let mut again = from.send_buffer().await?;
    at += fill_buffer(&mut again, &pattern, at, 5)?;
    from.send(again)?;
    from.shutdown().await?;
    pattern.read_all(&mut to, 2 * POOL..at).await
}

/// `send` accepts a buffer while the peer has no room, and `flush` waits until the buffer is on its way.
pub(crate) async fn a_buffer_without_credit_is_sent_later(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut from, mut to) = pair(over, &base).await?;
    let pattern = Pattern::new(152);
    let mut buffer = from.send_buffer().await?;
    fill(over, (&mut from, &to), &pattern, 0).await?;
    let end = over.full() + fill_buffer(&mut buffer, &pattern, over.full(), 100)?;
    from.send(buffer)?;
    ensure!(at_once(from.flush()).await.is_none(), "there is no room");
    let ending = async { anyhow::Ok(from.shutdown().await?) };
    tokio::try_join!(ending, pattern.read_all(&mut to, 0..end))?;
    Ok(())
}

/// Sent buffers arrive without a call of `flush`.
pub(crate) async fn buffers_are_sent_without_a_flush(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut from, mut to) = pair(over, &base).await?;
    for number in 0..20 {
        let mut buffer = from.send_buffer().await?;
        buffer.write_all(&[number])?;
        from.send(buffer)?;
        ensure!(to.read_u8().await? == number);
    }
    Ok(())
}

/// `send` refuses a buffer of another stream, a buffer after `shutdown` and a buffer after `abort`, each with its own
/// error, and loses no slot.
pub(crate) async fn a_misused_buffer_is_refused(over: DataPath, base: StreamConfig) -> Result<()> {
    let (mut a, mut b) = pair(over, &base).await?;
    let (mut c, _d) = pair(over, &base).await?;
    for _ in 0..2 * DEPTH {
        let mut foreign = c.send_buffer().await?;
        foreign.write_all(b"?")?;
        misused(a.send(foreign))?;
        // A buffer of the peer is refused, too.
        misused(a.send(b.send_buffer().await?))?;
    }
    let mut late = a.send_buffer().await?;
    late.write_all(b"late")?;
    let dropped = a.send_buffer().await?;
    a.write_all(b"!").await?;
    a.shutdown().await?;
    misused(a.send(late))?;
    drop(dropped);
    let none = own(&a.send_buffer().await.err().context("after shutdown")?)?;
    ensure!(matches!(none, Error::Misuse(_)), "{none:?}");
    ensure!(b.read_u8().await? == b'!' && b.read(&mut [0]).await? == 0);
    let mut orphan = b.send_buffer().await?;
    b.abort("part of the test");
    orphan.write_all(b"late")?;
    let error = own(&b.send(orphan).err().context("after an abort")?)?;
    ensure!(matches!(error, Error::Aborted { .. }), "{error:?}");
    Ok(())
}

/// Lent buffers stay valid after their stream is closed, and can be dropped on any thread.
pub(crate) async fn buffers_outlive_the_stream(over: DataPath, base: StreamConfig) -> Result<()> {
    let (mut from, mut to) = pair(over, &base).await?;
    let pattern = Pattern::new(153);
    let mut kept = [from.send_buffer().await?, from.send_buffer().await?];
    pattern.write(&mut from, 0..CHUNK).await?;
    from.shutdown().await?;
    pattern.read_all(&mut to, 0..CHUNK).await?;
    tokio::join!(from.close(), to.close());
    for buffer in &mut kept {
        fill_buffer(buffer, &pattern, 0, CHUNK)?;
    }
    let later = std::thread::spawn(move || {
        let checked = kept.iter().map(|buffer| pattern.check(0, buffer));
        checked.collect::<Result<()>>()
    });
    later.join().ok().context("a panic")?
}

/// A wait for a buffer that is cancelled while all buffers are lent loses no buffer.
pub(crate) async fn a_cancelled_wait_for_a_buffer_loses_none(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut from, mut to) = pair(over, &base).await?;
    let pattern = Pattern::new(154);
    let mut at = 0;
    for _ in 0..200 {
        let mut buffers = Vec::new();
        while let Some(buffer) = at_once(from.send_buffer()).await {
            buffers.push(buffer?);
            ensure!((buffers.len() as u64) < DEPTH, "one too many");
        }
        // Some buffers are still in flight.
        let Some(mut buffer) = buffers.pop() else {
            yield_now().await;
            continue;
        };
        drop(buffers);
        let size = fill_buffer(&mut buffer, &pattern, at, 5000)?;
        from.send(buffer)?;
        pattern.read(&mut to, at..at + size).await?;
        at += size;
    }
    from.shutdown().await?;
    pattern.read_all(&mut to, at..at).await
}

/// Vectored writes of many small slices, some of them empty, arrive whole across the borders of chunks.
pub(crate) async fn many_small_slices_arrive_whole(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut from, mut to) = pair(over, &base).await?;
    ensure!(from.is_write_vectored(), "the stream");
    let bytes = 3 * POOL + 11;
    let writer = async move {
        let (pattern, mut random) = (Pattern::new(155), Random::new(155));
        let mut at = 0;
        while at < bytes {
            let mut slices = vec![IoSlice::new(&[])];
            let mut end = at;
            for _ in 0..random.within(1..200) {
                let most = [0, 1, 20, 3000][usize::try_from(random.within(0..4))?];
                let most = most.min(usize::try_from(bytes - end)?);
                let slice = if most == 0 {
                    &[]
                } else {
                    pattern.piece(end, most)
                };
                end += slice.len() as u64;
                slices.push(IoSlice::new(slice));
            }
            let count = from.write_vectored(&slices).await? as u64;
            let room = (end - at).min(CHUNK);
            ensure!(count > 0 || end == at, "nothing of {room} bytes");
            ensure!(count <= room, "{count} of {room} bytes");
            at += count;
        }
        from.finish().await?;
        let (_, writes) = from.into_split();
        ensure!(writes.is_write_vectored(), "its half");
        Ok(())
    };
    let reader = async move {
        Pattern::new(155).read_all(&mut to, 0..bytes).await?;
        to.confirm()?;
        Ok(to)
    };
    together(writer, reader).await?;
    Ok(())
}

/// One vectored write takes exactly the slices that fit into a chunk.
pub(crate) async fn one_write_takes_all_slices_that_fit(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut from, mut to) = pair(over, &base).await?;
    let pattern = Pattern::new(156);
    let mut slices = Vec::new();
    for number in 0..100 {
        slices.push(IoSlice::new(pattern.piece(number * 1000, 1000)));
        slices.push(IoSlice::new(&[]));
    }
    let count = from.write_vectored(&slices).await? as u64;
    ensure!(count == CHUNK, "{count} bytes");
    from.shutdown().await?;
    pattern.read_all(&mut to, 0..CHUNK).await
}

/// Puts `size` bytes of `pattern` into `buffer`, half of them in place and half by `Write`. Returns `size`.
fn fill_buffer(buffer: &mut SendBuffer, pattern: &Pattern, at: u64, size: u64) -> Result<u64> {
    ensure!(buffer.capacity() as u64 == CHUNK, "{}", buffer.capacity());
    let half = usize::try_from(size / 2)?;
    let mut done = 0;
    while done < half {
        let piece = pattern.piece(at + done as u64, half - done);
        buffer.unfilled_mut()[..piece.len()].copy_from_slice(piece);
        buffer.advance(piece.len());
        done += piece.len();
    }
    while (done as u64) < size {
        let left = usize::try_from(size)? - done;
        let piece = pattern.piece(at + done as u64, left);
        buffer.write_all(piece)?;
        done += piece.len();
    }
    ensure!(buffer.len() as u64 == size, "{} of {size}", buffer.len());
    if size == CHUNK {
        ensure!(buffer.unfilled_mut().is_empty() && buffer.write(b"!")? == 0);
    }
    Ok(size)
}

fn misused(sent: std::io::Result<()>) -> Result<()> {
    let error = own(&sent.err().context("it was sent")?)?;
    ensure!(matches!(error, Error::Misuse(_)), "{error:?}");
    Ok(())
}

/// Received chunks with their offsets in the stream.
type Kept = Vec<(u64, Bytes)>;

/// A reader that keeps chunks forever still receives ten more pools of bytes, and the kept chunks do not change.
pub(crate) async fn kept_chunks_never_block_the_stream(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    for depth in [2, 3, 4, 16] {
        let mut config = small(&base);
        config.depth = depth;
        let (from, mut to) = over.pair(config.clone(), config).await?;
        let bytes = 10 * CHUNK * depth as u64 + 5;
        let writer = sending(from, bytes);
        let (pattern, mut at) = (Pattern::new(140), 0);
        let mut kept = Kept::new();
        while at < bytes {
            let chunk = to.read_chunk().await?.context("it ends early")?;
            ensure!(!chunk.is_empty(), "an empty chunk");
            let begin = at;
            at += chunk.len() as u64;
            if kept.len() < 2 * depth {
                kept.push((begin, chunk));
            } else {
                pattern.check(begin, &chunk)?;
            }
        }
        ensure!(to.read_chunk().await?.is_none(), "more than was sent");
        ensure!(
            to.read_chunk().await?.is_none(),
            "an end that does not last"
        );
        to.confirm()?;
        writer.await??;
        unchanged(&kept).with_context(|| format!("depth {depth}"))?;
        drop(to);
        unchanged(&kept).with_context(|| format!("depth {depth}, the stream is gone"))?;
    }
    Ok(())
}

/// `read_chunk` (also cancelled), `read` and `fill_buf` can be mixed in any order, with chunks kept for a while.
pub(crate) async fn all_ways_to_read_can_be_mixed(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (from, mut to) = pair(over, &base).await?;
    let bytes = 10 * POOL + 7;
    let writer = sending(from, bytes);
    let (pattern, mut random) = (Pattern::new(140), Random::new(141));
    let (mut at, mut kept) = (0, Kept::new());
    let mut buffer = vec![0; 30_000];
    loop {
        let count = match random.within(0..4) {
            0 | 1 => {
                let chunk = match at_once(to.read_chunk()).await {
                    Some(chunk) => chunk?,
                    None => to.read_chunk().await?,
                };
                let Some(chunk) = chunk else { break };
                let count = chunk.len();
                kept.push((at, chunk));
                count
            }
            2 => {
                let most = usize::try_from(random.within(1..30_000))?;
                let count = to.read(&mut buffer[..most]).await?;
                pattern.check(at, &buffer[..count])?;
                count
            }
            _ => {
                let found = to.fill_buf().await?;
                pattern.check(at, found)?;
                // Sometimes no byte, or only a part of the chunk, is consumed.
                let count = found.len() / usize::try_from(random.within(1..4))?;
                to.consume(count);
                count
            }
        };
        at += count as u64;
        while !kept.is_empty() && random.within(0..3) == 0 {
            let place = usize::try_from(random.within(0..kept.len() as u64))?;
            unchanged(&[kept.swap_remove(place)])?;
        }
        if at == bytes && to.fill_buf().await?.is_empty() {
            break;
        }
    }
    ensure!(at == bytes, "{at} of {bytes} bytes");
    to.confirm()?;
    writer.await??;
    unchanged(&kept)
}

/// Dropping the last clone of a chunk, on any thread, returns its credit to the writer. A writer that waits only for
/// this credit goes on, although the reading end makes no call.
pub(crate) async fn dropping_a_kept_chunk_returns_its_credit(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    for elsewhere in [false, true] {
        let (mut from, mut to) = pair(over, &base).await?;
        let pattern = Pattern::new(140);
        fill(over, (&mut from, &to), &pattern, 0).await?;
        let chunk = to.read_chunk().await?.context("no chunk")?;
        pattern.check(0, &chunk)?;
        let part = chunk.slice(1..chunk.len() - 1);
        drop(chunk);
        // 50 ms are long enough for all tasks of the reading end to become idle.
        for _ in 0..50 {
            let flushed = at_once(from.flush()).await;
            ensure!(flushed.is_none(), "the chunk is still held");
            sleep(Duration::from_millis(1)).await;
        }
        if elsewhere {
            // This thread has no runtime.
            let dropped = std::thread::spawn(move || drop(part)).join();
            ensure!(dropped.is_ok(), "a panic");
        } else {
            drop(part);
        }
        from.flush().await?;
        let received = to.stats().bytes_received;
        ensure!(received >= POOL, "{received}");
        from.shutdown().await?;
        pattern.read_all(&mut to, CHUNK..over.full()).await?;
    }
    Ok(())
}

/// Kept chunks stay valid after their stream and its peer are gone, whether the stream was closed or aborted.
pub(crate) async fn chunks_outlive_the_stream(over: DataPath, base: StreamConfig) -> Result<()> {
    for aborted in [false, true] {
        let (mut from, mut to) = pair(over, &base).await?;
        let pattern = Pattern::new(140);
        fill(over, (&mut from, &to), &pattern, 0).await?;
        let mut kept = Kept::new();
        for number in 0..DEPTH {
            let chunk = to.read_chunk().await?.context("no chunk")?;
            ensure!(chunk.len() as u64 == CHUNK, "{}", chunk.len());
            kept.push((number * CHUNK, chunk));
        }
        if aborted {
            from.abort("part of the test");
            // Chunks that were already on their way may arrive first.
            let end = loop {
                let next = to.read_chunk().await;
                if !matches!(next, Ok(Some(_))) {
                    break next;
                }
            };
            ensure!(end.is_err(), "an abort is no end of file");
        }
        tokio::join!(from.close(), to.close());
        unchanged(&kept)?;
        let later = tokio::task::spawn_blocking(move || unchanged(&kept));
        later.await??;
    }
    Ok(())
}

/// `read_chunk` returns the rest of a chunk that was partly read, and a chunk that is not full.
pub(crate) async fn read_chunk_returns_the_rest_of_a_chunk(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut from, mut to) = pair(over, &base).await?;
    let pattern = Pattern::new(140);
    pattern.write(&mut from, 0..2 * CHUNK + 10).await?;
    from.shutdown().await?;
    pattern.read(&mut to, 0..1000).await?;
    let rest = to.read_chunk().await?.context("no chunk")?;
    ensure!(rest.len() as u64 == CHUNK - 1000, "{}", rest.len());
    pattern.read(&mut to, CHUNK..2 * CHUNK).await?;
    let small = to.read_chunk().await?.context("no chunk")?;
    ensure!(small.len() == 10, "{}", small.len());
    ensure!(to.read_chunk().await?.is_none() && to.read(&mut [0]).await? == 0);
    to.confirm()?;
    from.finish().await?;
    unchanged(&[(1000, rest), (2 * CHUNK, small)])
}

/// Spawns a task that writes `bytes` bytes and finishes the stream.
fn sending(mut from: Stream, bytes: u64) -> JoinHandle<Result<()>> {
    tokio::spawn(async move {
        Pattern::new(140).write(&mut from, 0..bytes).await?;
        Ok(from.finish().await?)
    })
}

fn unchanged(kept: &[(u64, Bytes)]) -> Result<()> {
    let pattern = Pattern::new(140);
    for (at, chunk) in kept {
        pattern.check(*at, chunk).context("a kept chunk")?;
    }
    Ok(())
}
