//! Calls that `select!` cancels whenever they are not ready at once: reads, writes, flushes, shutdowns and finishes,
//! `accept` and `connect`.

use std::{
    future::{Future, poll_fn, ready},
    pin::pin,
    task::Poll,
};

use anyhow::{Result, ensure};
use futures::FutureExt;
use rdpipe::{Stream, StreamConfig, connect};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
    task::yield_now,
};

use super::{fill, pair, small};
use crate::support::{
    data_path::{DataPath, listener},
    pattern::Pattern,
    random::Random,
    waiting::together,
};

/// The number of futures that each test cancels.
const TIMES: u64 = 10_000;

/// Polls `future` once. Returns its output if it is ready; otherwise cancels it and returns `None`.
pub(crate) async fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        outcome = future => Some(outcome),
        () = ready(()) => None,
    }
}

/// Reads that are cancelled while a few bytes at a time arrive lose no bytes.
pub(crate) async fn cancelled_reads_lose_nothing(over: DataPath, base: StreamConfig) -> Result<()> {
    let (mut from, mut to) = pair(over, &base).await?;
    // The reader sends a tick after every ten cancelled reads.
    let (cancelled, mut ticks) = mpsc::unbounded_channel();
    let writer = async move {
        let (pattern, mut random) = (Pattern::new(105), Random::new(105));
        let mut at = 0;
        while ticks.recv().await.is_some() {
            let count = random.within(1..500);
            pattern.write(&mut from, at..at + count).await?;
            at += count;
        }
        from.finish().await?;
        Ok(at)
    };
    let reader = async move {
        let (pattern, mut cancelled) = (Pattern::new(105), Some(cancelled));
        let (mut at, mut times) = (0, 0);
        loop {
            match some(&mut to, &pattern, at, times % 2 == 0).await? {
                Some(0) => break,
                Some(count) => at += count,
                None => {
                    times += 1;
                    match &cancelled {
                        Some(tick) if times % 10 == 0 => tick.send(())?,
                        _ => {}
                    }
                    if times == TIMES {
                        cancelled = None;
                    }
                    yield_now().await;
                }
            }
        }
        to.confirm()?;
        ensure!(times >= TIMES, "the end after {times}");
        Ok(at)
    };
    let (written, read) = together(writer, reader).await?;
    ensure!(written == read, "{read} of {written} bytes");
    Ok(())
}

/// Reads and checks the bytes that are available at once, by `read` or by `fill_buf`. Returns their number, or `None`
/// if the read was cancelled.
async fn some(to: &mut Stream, pattern: &Pattern, at: u64, copied: bool) -> Result<Option<u64>> {
    if copied {
        let mut buffer = [0; 300];
        let Some(count) = at_once(to.read(&mut buffer)).await else {
            return Ok(None);
        };
        let count = count?;
        pattern.check(at, &buffer[..count])?;
        return Ok(Some(count as u64));
    }
    let Some(bytes) = at_once(to.fill_buf()).await else {
        return Ok(None);
    };
    let bytes = bytes?;
    pattern.check(at, bytes)?;
    let count = bytes.len().div_ceil(2);
    to.consume(count);
    Ok(Some(count as u64))
}

/// Writes and flushes that are cancelled while the reader reads a little now and then lose no bytes.
pub(crate) async fn cancelled_writes_lose_nothing(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut from, mut to) = pair(over, &base).await?;
    let (cancelled, mut ticks) = mpsc::unbounded_channel();
    let writer = async move {
        let (pattern, mut random) = (Pattern::new(106), Random::new(106));
        let (mut at, mut times) = (0, 0);
        while times < TIMES {
            let piece = pattern.piece(at, usize::try_from(random.within(1..20_000))?);
            let written = at_once(from.write(piece)).await.transpose()?;
            at += written.unwrap_or(0) as u64;
            let flushed = match random.within(0..8) {
                0 => at_once(from.flush()).await.transpose()?.is_some(),
                _ => true,
            };
            if written.is_none() || !flushed {
                times += 1;
                if times % 50 == 0 {
                    cancelled.send(())?;
                }
                yield_now().await;
            }
        }
        drop(cancelled);
        from.finish().await?;
        Ok(at)
    };
    let reader = async move {
        let (pattern, mut at) = (Pattern::new(106), 0);
        let mut buffer = vec![0; 10_000];
        while ticks.recv().await.is_some() {
            let count = to.read(&mut buffer).await?;
            pattern.check(at, &buffer[..count])?;
            at += count as u64;
        }
        let end = pattern.drain(&mut to, at).await?;
        to.confirm()?;
        Ok(end)
    };
    let (written, end) = together(writer, reader).await?;
    let is_all = matches!(end, crate::support::pattern::End::Eof(at) if at == written);
    ensure!(is_all, "{end:?} of {written}");
    Ok(())
}

/// `shutdown` and `finish` can be cancelled and called again, while there is no room for the last bytes and while the
/// peer has not confirmed.
pub(crate) async fn a_cancelled_shutdown_or_finish_can_be_retried(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut from, mut to) = pair(over, &base).await?;
    let pattern = Pattern::new(107);
    fill(over, (&mut from, &to), &pattern, 0).await?;
    for _ in 0..TIMES / 4 {
        let ended = at_once(from.shutdown()).await;
        ensure!(ended.is_none(), "it ended without room: {ended:?}");
        let ended = at_once(from.finish()).await;
        ensure!(ended.is_none(), "it finished without room: {ended:?}");
        yield_now().await;
    }
    let ending = async {
        while at_once(from.shutdown()).await.transpose()?.is_none() {
            yield_now().await;
        }
        anyhow::Ok(())
    };
    tokio::try_join!(ending, pattern.read_all(&mut to, 0..over.full()))?;
    for _ in 0..TIMES / 4 {
        let ended = at_once(from.finish()).await;
        ensure!(
            ended.is_none(),
            "finished without a confirmation: {ended:?}"
        );
        yield_now().await;
    }
    to.confirm()?;
    while at_once(from.finish()).await.transpose()?.is_none() {
        yield_now().await;
    }
    Ok(())
}

/// A listener that cancels and repeats `accept` loses no stream.
pub(crate) async fn a_cancelled_accept_loses_no_stream(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let config = over.config(small(&base));
    let (listener, key) = listener(config.clone()).await?;
    let port = listener.local_addr().port();
    for number in 0..3 {
        let dialing = async {
            let mut stream = connect(("127.0.0.1", port), &key, &config).await?;
            stream.write_all(&[number]).await?;
            stream.shutdown().await?;
            anyhow::Ok(stream)
        };
        let accepting = async {
            let mut stream = loop {
                match listener.accept().now_or_never() {
                    Some(stream) => break stream?,
                    None => yield_now().await,
                }
            };
            ensure!(stream.read_u8().await? == number, "another stream");
            Ok(stream)
        };
        tokio::try_join!(dialing, accepting)?;
    }
    Ok(())
}

/// A `connect` that is cancelled at any point leaves a listener that serves the next dialer. If the
/// cancelled dialer was already connected, the acceptor gets an error, not an end of file.
pub(crate) async fn a_cancelled_connect_leaves_the_listener_working(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let config = over.config(small(&base));
    let (listener, key) = listener(config.clone()).await?;
    let port = listener.local_addr().port();
    let dialing = async {
        let mut connected = 0;
        for polls in 1..=20 {
            let stream = polled(connect(("127.0.0.1", port), &key, &config), polls).await;
            connected += u32::from(stream.transpose()?.is_some());
        }
        let mut stream = connect(("127.0.0.1", port), &key, &config).await?;
        stream.write_all(b"!").await?;
        stream.shutdown().await?;
        ensure!(stream.read_u8().await? == b'?' && stream.read(&mut [0]).await? == 0);
        // Otherwise nothing was cancelled here.
        ensure!(connected < 20, "all of them were connected");
        Ok(())
    };
    let accepting = async {
        loop {
            // A handshake that a cancelled dialer did not complete is no error here.
            let mut stream = listener.accept().await?;
            let mut byte = [0];
            match stream.read(&mut byte).await {
                Ok(0) => anyhow::bail!("a dialer that gave up is an end of file"),
                Ok(_) => {
                    ensure!(stream.read(&mut byte).await? == 0, "more than one byte");
                    stream.write_all(b"?").await?;
                    stream.shutdown().await?;
                    return Ok(());
                }
                Err(_) => {}
            }
        }
    };
    tokio::try_join!(dialing, accepting)?;
    Ok(())
}

/// Polls `future` at most `polls` times. Returns its output, or `None` if it is still pending.
async fn polled<T>(future: impl Future<Output = T>, polls: usize) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
        Poll::Pending => {
            left -= 1;
            if left == 0 {
                Poll::Ready(None)
            } else {
                Poll::Pending
            }
        }
    })
    .await
}
