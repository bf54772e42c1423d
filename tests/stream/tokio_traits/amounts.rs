//! The smallest and the largest amounts in one write.

use anyhow::{Result, ensure};
use rdpipe::{Stream, StreamConfig};
use tokio::io::AsyncWriteExt;

use super::{pair, small};
use crate::support::{self, data_path::DataPath, pattern::Pattern};

/// The number of single bytes over RDMA, except in a full run: the processor may be emulated.
const FEWER: u64 = 100_000;

/// The bytes of one write over RDMA, except in a full run.
const LESS: u64 = 64 << 20;

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

/// Half a gibibyte in one `write_all` arrives whole.
pub(crate) async fn one_very_large_write_arrives(over: DataPath, base: StreamConfig) -> Result<()> {
    // Pools of the default size, and small pools that the write fills a thousand times over.
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
