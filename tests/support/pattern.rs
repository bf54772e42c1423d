//! Pseudo-random content in which a byte at a wrong offset is a wrong byte; fast to make and to check.

use std::{cmp, io, ops::Range, sync::LazyLock};

use anyhow::{Result, bail, ensure};
use rdpipe::Error;
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt,
};

use super::random::Random;

/// The length after which the content repeats. It is a prime, so that bytes which were displaced by any
/// number of chunks (short of a million of them) are wrong bytes.
const PERIOD: usize = (1 << 20) + 7;

/// One period twice, which all sequences share: it takes long to make without optimisation.
static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| Random::new(0).bytes(PERIOD).repeat(2));

/// An endless sequence of bytes, which begins at this place of the period.
pub(crate) struct Pattern(usize);

/// The way in which a stream ended for its reader, and the offset up to which all bytes were right.
#[derive(Debug)]
pub(crate) enum End {
    /// An end of file.
    Eof(u64),
    Failed(u64, io::Error),
}

impl Pattern {
    /// Returns the sequence of this number.
    pub(crate) fn new(number: u64) -> Self {
        let start = Random::new(number).within(0..PERIOD as u64);
        Self(usize::try_from(start).expect("it is below the period"))
    }

    /// Returns at least one and at most `most` bytes from `offset` on.
    pub(crate) fn piece(&self, offset: u64, most: usize) -> &[u8] {
        let start = usize::try_from(offset % PERIOD as u64).expect("it is below the period");
        &BYTES[self.0..][start..cmp::min(PERIOD, start.saturating_add(most))]
    }

    /// Writes the bytes of `range`.
    pub(crate) async fn write(
        &self,
        sink: &mut (impl AsyncWrite + Unpin),
        range: Range<u64>,
    ) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let piece = self.piece(at, usize::try_from(range.end - at).unwrap_or(usize::MAX));
            sink.write_all(piece).await?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Writes until a write fails, and returns the error, as of a reader that is gone. Fails after 16 GiB.
    pub(crate) async fn write_on(&self, sink: &mut (impl AsyncWrite + Unpin)) -> Result<io::Error> {
        match self.write(sink, 0..16 << 30).await {
            Ok(()) => bail!("16 GiB were written without an error"),
            Err(error) => Ok(error),
        }
    }

    /// Checks `bytes`, which were read at `offset`.
    pub(crate) fn check(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let right = self.piece(at, rest.len());
            let (found, further) = rest.split_at(right.len());
            if found != right {
                let differs = found
                    .iter()
                    .zip(right)
                    .position(|(found, right)| found != right);
                bail!(
                    "byte {} is not the one that was written",
                    at + differs.unwrap_or(0) as u64
                );
            }
            at += right.len() as u64;
            rest = further;
        }
        Ok(())
    }

    /// Reads exactly the bytes of `range`.
    pub(crate) async fn read(
        &self,
        source: &mut (impl AsyncRead + Unpin),
        range: Range<u64>,
    ) -> Result<()> {
        let mut buffer = vec![0; 10_007];
        let mut at = range.start;
        while at < range.end {
            let most = usize::try_from(range.end - at)
                .unwrap_or(usize::MAX)
                .min(buffer.len());
            let count = source.read(&mut buffer[..most]).await?;
            ensure!(count > 0, "it ends at byte {at}, and not at {}", range.end);
            self.check(at, &buffer[..count])?;
            at += count as u64;
        }
        Ok(())
    }

    /// Reads to an end of file or an error, and checks all bytes before it.
    pub(crate) async fn drain(
        &self,
        source: &mut (impl AsyncBufRead + Unpin),
        from: u64,
    ) -> Result<End> {
        let mut at = from;
        loop {
            let count = match source.fill_buf().await {
                Ok([]) => return Ok(End::Eof(at)),
                Ok(bytes) => {
                    self.check(at, bytes)?;
                    bytes.len()
                }
                Err(error) => return Ok(End::Failed(at, error)),
            };
            source.consume(count);
            at += count as u64;
        }
    }

    /// Reads exactly the bytes of `range` and then an end of file.
    pub(crate) async fn read_all(
        &self,
        source: &mut (impl AsyncBufRead + Unpin),
        range: Range<u64>,
    ) -> Result<()> {
        match self.drain(source, range.start).await? {
            End::Eof(at) if at == range.end => Ok(()),
            End::Eof(at) => bail!("it ends at byte {at}, and not at {}", range.end),
            End::Failed(at, error) => bail!("reading failed at byte {at}: {error}"),
        }
    }
}

impl End {
    /// Returns the error of the stream. Fails if the stream ended with an end of file.
    pub(crate) fn failure(self) -> Result<Error> {
        match self {
            Self::Eof(at) => bail!("an end of file after {at} bytes, which was to be an error"),
            Self::Failed(_, error) => own(&error),
        }
    }
}

/// Returns the [`Error`] of the stream inside `error`, and checks that both have the same kind.
pub(crate) fn own(error: &io::Error) -> Result<Error> {
    match Error::from_io(error) {
        Some(own) => {
            ensure!(
                own.kind() == error.kind(),
                "{error}: its kind is {:?}",
                error.kind()
            );
            Ok(own.clone())
        }
        None => bail!("not an error of the stream's: {error}"),
    }
}
