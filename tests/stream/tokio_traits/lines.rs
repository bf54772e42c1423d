//! Lines of text, read from the buffers of the stream and through tokio's `BufReader`.

use anyhow::{Result, ensure};
use rdpipe::StreamConfig;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWriteExt, BufReader, BufWriter};

use super::{CHUNK, pair};
use crate::support::{data_path::DataPath, random::Random};

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
