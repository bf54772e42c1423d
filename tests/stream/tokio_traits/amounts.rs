//! Reads and writes of any amount: of no bytes, of one, of very many, of exactly so many, and of lines.

use std::{
    io::{ErrorKind, IoSlice},
    pin::Pin,
    sync::Arc,
    task::Poll,
};

use anyhow::{Result, bail, ensure};
use rdpipe::{Error, Stream, StreamConfig};
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader,
    BufWriter, ReadBuf,
};

use super::{CHUNK, POOL, fill, pair, small};
use crate::support::{
    self,
    data_path::DataPath,
    pattern::Pattern,
    random::Random,
    waiting::{together, until},
    wakes::Wakes,
};

/// The number of single bytes over RDMA, except in a full run: the processor may be emulated.
const FEWER: u64 = 20_000;

/// The bytes of one write over RDMA, except in a full run.
const LESS: u64 = 24 << 20;

/// A million bytes, each with a `write_all` of its own and without `flush`, arrive in fewer chunks than bytes.
pub(crate) async fn single_byte_writes_arrive_and_are_combined(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (from, to) = pair(over, &base).await?;
    let count = full_amount(&from, 1_000_000, FEWER);
    let (from, to) = carry(from, to, count, async |from, pattern| {
        for at in 0..count {
            from.write_all(pattern.piece(at, 1)).await?;
        }
        Ok(())
    })
    .await?;
    // As many chunks as bytes would mean that no bytes were combined while they waited.
    ensure!(
        from.stats().chunks_sent < count,
        "{:?} {:?}",
        from.stats(),
        to.stats()
    );
    Ok(())
}

/// Half a gibibyte in one `write_all` arrives whole; over RDMA less, but more than the pools hold.
pub(crate) async fn one_very_large_write_arrives(over: DataPath, base: StreamConfig) -> Result<()> {
    // Pools of the default size, and small pools that the write fills hundreds of times over.
    for config in [base.clone(), small(&base)] {
        let (from, to) = over.pair(config.clone(), config).await?;
        let bytes = full_amount(&from, 512 << 20, LESS);
        carry(from, to, bytes, async |from, pattern| {
            let mut all = Vec::with_capacity(usize::try_from(bytes)?);
            while (all.len() as u64) < bytes {
                let left = usize::try_from(bytes)? - all.len();
                all.extend_from_slice(pattern.piece(all.len() as u64, left));
            }
            Ok(from.write_all(&all).await?)
        })
        .await?;
    }
    Ok(())
}

fn full_amount(stream: &Stream, all: u64, over_rdma: u64) -> u64 {
    let is_limited = stream.transport() == rdpipe::Transport::Rdma && !support::is_full();
    if is_limited { over_rdma } else { all }
}

/// Runs `write`, and checks that `bytes` bytes arrive, followed by the end of file.
async fn carry(
    mut from: Stream,
    mut to: Stream,
    bytes: u64,
    write: impl AsyncFnOnce(&mut Stream, &Pattern) -> Result<()>,
) -> Result<(Stream, Stream)> {
    let reader = tokio::spawn(async move {
        Pattern::new(103).read_all(&mut to, 0..bytes).await?;
        to.confirm()?;
        anyhow::Ok(to)
    });
    write(&mut from, &Pattern::new(103)).await?;
    from.finish().await?;
    Ok((from, reader.await??))
}

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
    fill(over, (&mut a, &b), &pattern, CHUNK + 1).await?;
    let end = CHUNK + 1 + over.full();
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

/// The way from the stream to the code that reads lines.
#[derive(Debug, Clone, Copy)]
enum Reader {
    /// The slots of the stream itself, as `AsyncBufRead`.
    Own,
    /// A `BufReader` with this capacity in bytes.
    Buffered(usize),
}

const READERS: [Reader; 3] = [
    Reader::Own,
    Reader::Buffered(1000),
    Reader::Buffered(100_000),
];

/// `lines` returns every line, also lines that cross a chunk border or are longer than a chunk.
pub(crate) async fn lines_of_every_length_are_read(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    for reader in READERS {
        read_by(over, &base, reader, async |stream, text| {
            let mut lines = stream.lines();
            for (number, line) in text.iter().enumerate() {
                let found = lines.next_line().await?;
                ensure!(found.as_ref() == Some(line), "{reader:?}: line {number}");
            }
            ensure!(lines.next_line().await?.is_none(), "more lines");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// `read_until` and `read_line` return each line with its newline, and the last line without one.
pub(crate) async fn read_until_returns_lines_with_their_ends(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    for reader in READERS {
        read_by(over, &base, reader, async |stream, text| {
            let (last, whole) = text.split_last().expect("there are lines");
            for (number, line) in whole.iter().enumerate() {
                let mut found = Vec::new();
                if number % 2 == 0 {
                    stream.read_until(b'\n', &mut found).await?;
                } else {
                    let mut text = String::new();
                    stream.read_line(&mut text).await?;
                    found = text.into();
                }
                ensure!(found.pop() == Some(b'\n'), "{reader:?}: {number}: no end");
                ensure!(found == line.as_bytes(), "{reader:?}: line {number}");
            }
            let mut found = Vec::new();
            stream.read_until(b'\n', &mut found).await?;
            ensure!(found == last.as_bytes(), "{reader:?}: the last line");
            let more = stream.read_until(b'\n', &mut found).await?;
            ensure!(more == 0, "more than there was");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Sends lines through a stream, calls `look` with the receiving end, and confirms the end of file.
async fn read_by(
    over: DataPath,
    base: &StreamConfig,
    reader: Reader,
    look: impl AsyncFnOnce(&mut (dyn AsyncBufRead + Unpin + Send), Vec<String>) -> Result<()>,
) -> Result<()> {
    let (mut from, mut to) = pair(over, base).await?;
    let writer = tokio::spawn(async move {
        let text = text().join("\n");
        let (first, second) = text.as_bytes().split_at(text.len() / 2);
        let mut buffered = BufWriter::new(&mut from);
        for piece in first.chunks(777) {
            buffered.write_all(piece).await?;
        }
        buffered.flush().await?;
        from.write_all(second).await?;
        from.finish().await?;
        anyhow::Ok(from)
    });
    match reader {
        Reader::Own => look(&mut to, text()).await?,
        Reader::Buffered(bytes) => {
            look(&mut BufReader::with_capacity(bytes, &mut to), text()).await?;
        }
    }
    to.confirm()?;
    writer.await??;
    Ok(())
}

/// Returns 1000 lines with lengths from zero to more than a chunk.
fn text() -> Vec<String> {
    let mut random = Random::new(104);
    let lengths = (0..1000).map(|number| match number % 100 {
        0 => 0,
        50 => CHUNK + CHUNK / 2,
        _ => random.within(0..400),
    });
    let lengths: Vec<_> = lengths.collect();
    let line = |length| {
        let bytes = (0..length).map(|_| char::from(b' ' + (random.number() % 95) as u8));
        bytes.collect()
    };
    lengths.into_iter().map(line).collect()
}
