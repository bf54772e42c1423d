//! Requests and answers: a program ported from TCP needs no extra `flush`, and a request cannot deadlock.

use anyhow::Result;
use rdpipe::{Stream, StreamConfig};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::oneshot,
};

use super::{CHUNK, POOL, pair};
use crate::support::{data_path::DataPath, pattern::Pattern, waiting::together};

/// A request of one byte gets an answer of one byte, a hundred times, and neither end calls `flush`.
pub(crate) async fn one_byte_is_answered_without_a_flush(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut client, mut server) = pair(over, &base).await?;
    let asking = async move {
        for number in 0..100 {
            client.write_all(&[number]).await?;
            let mut answer = [0];
            client.read_exact(&mut answer).await?;
            anyhow::ensure!(answer == [number + 1], "{number}: {answer:?}");
        }
        Ok(client)
    };
    let answering = async move {
        for _ in 0..100 {
            let question = server.read_u8().await?;
            server.write_all(&[question + 1]).await?;
        }
        Ok(server)
    };
    together(asking, answering).await?;
    Ok(())
}

/// Many small writes arrive without a call of `flush`, both while the sender has credit and after its credit has
/// run out.
pub(crate) async fn small_writes_are_sent_without_a_flush(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    for before in [0, POOL] {
        let (mut client, mut server) = pair(over, &base).await?;
        let bytes = before + (1..=200).sum::<u64>();
        let (told, written) = oneshot::channel();
        let asking = async move {
            let pattern = Pattern::new(8);
            pattern.write(&mut client, 0..before).await?;
            let mut at = before;
            for count in 1..=200 {
                pattern.write(&mut client, at..at + count).await?;
                at += count;
            }
            told.send(()).ok();
            client.read_exact(&mut [0]).await?;
            Ok(client)
        };
        let answering = async move {
            written.await?;
            Pattern::new(8).read(&mut server, 0..bytes).await?;
            server.write_all(b"!").await?;
            Ok(server)
        };
        together(asking, answering).await?;
    }
    Ok(())
}

/// Both ends make many small writes, flush, and read only then. While the bytes of one end would fit
/// into half a pool as one piece, neither end waits for the other.
pub(crate) async fn both_ends_can_write_before_they_read(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let (mut a, mut b) = pair(over, &base).await?;
    let pattern = Pattern::new(32);
    // One exchange takes both ends past the start, where no credit has arrived and all writes are combined.
    one_each(&mut a, &mut b).await?;
    for at in 0..POOL / 2 / 10 {
        pattern.write(&mut a, at * 10..at * 10 + 10).await?;
        pattern.write(&mut b, at * 10..at * 10 + 10).await?;
        if at < 500 {
            a.flush().await?;
            b.flush().await?;
        }
    }
    a.shutdown().await?;
    b.shutdown().await?;
    pattern.read_all(&mut a, 0..POOL / 2 / 10 * 10).await?;
    pattern.read_all(&mut b, 0..POOL / 2 / 10 * 10).await
}

async fn one_each(a: &mut Stream, b: &mut Stream) -> Result<()> {
    a.write_all(b"a").await?;
    b.write_all(b"b").await?;
    anyhow::ensure!(a.read_u8().await? == b'b' && b.read_u8().await? == b'a');
    Ok(())
}

/// A client that reads only after its `shutdown` has returned gets its answer, even if the answer fits into
/// no pool, and even if the server begins to send it before it reads the request.
pub(crate) async fn a_large_answer_does_not_block_shutdown(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    for (request, eager) in [(3, false), (3 * POOL, false), (CHUNK + 3, true)] {
        let (mut client, mut server) = pair(over, &base).await?;
        let answer = 5 * POOL + 1;
        let asking = async move {
            Pattern::new(9).write(&mut client, 0..request).await?;
            client.shutdown().await?;
            Pattern::new(10).read_all(&mut client, 0..answer).await?;
            Ok(client)
        };
        let answering = async move {
            let first = if eager { answer } else { 0 };
            Pattern::new(10).write(&mut server, 0..first).await?;
            Pattern::new(9).read_all(&mut server, 0..request).await?;
            Pattern::new(10).write(&mut server, first..answer).await?;
            server.shutdown().await?;
            Ok(server)
        };
        together(asking, answering).await?;
    }
    Ok(())
}
