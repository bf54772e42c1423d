//! The states in which the test of buffers drops a stream, and the values that are left to drop in each.

use std::io::Write;

use anyhow::{Context, Result, ensure};
use futures::{FutureExt, future::BoxFuture};
use rdpipe::{Error, Stream, StreamConfig};
use tokio::io::AsyncWriteExt;

use crate::support::{
    data_path::{self, CHUNK, DataPath, POOL, fill, small},
    pattern::{Pattern, own},
    proxy::Proxy,
    waiting::until,
};

/// The values that are left to drop, in this order or reversed.
pub(crate) type Left = Vec<Box<dyn Send>>;

/// Brings a new stream into a state.
pub(crate) type Reach = fn(Stream, Stream) -> BoxFuture<'static, Result<Left>>;

/// All states except [`dead`].
pub(crate) const STATES: &[(&str, Reach)] = &[
    ("fresh", |a, b| async { Ok(both(a, b)) }.boxed()),
    ("half_filled", |a, b| half_filled(a, b).boxed()),
    ("in_flight", |a, b| in_flight(a, b).boxed()),
    ("without_credit", |a, b| without_credit(a, b).boxed()),
    ("half_read", |a, b| half_read(a, b).boxed()),
    ("filled_slot_looked_at", |a, b| looked_at(a, b).boxed()),
    ("fin", |a, b| fin(a, b).boxed()),
    ("shut_down", |a, b| shut_down(a, b).boxed()),
    ("finished", |a, b| finished(a, b).boxed()),
    ("stopped", |a, b| stopped(a, b).boxed()),
    ("aborted", |a, b| aborted(a, b).boxed()),
    ("halves", |a, b| halves(a, b).boxed()),
    ("halves_by_tokio", |a, b| halves_by_tokio(a, b).boxed()),
    ("lent", |a, b| lent(a, b).boxed()),
    ("lent_and_gone", |a, b| lent_and_gone(a, b).boxed()),
    ("unsent", |a, b| unsent(a, b).boxed()),
    ("unsent_and_gone", |a, b| unsent_and_gone(a, b).boxed()),
    ("sent_without_credit", |a, b| sent(a, b).boxed()),
];

/// A write has partly filled a slot for which there is no credit. What it holds is too much for the express path, which
/// needs none.
async fn half_filled(mut a: Stream, b: Stream) -> Result<Left> {
    let pattern = Pattern::new(120);
    pattern.write(&mut a, 0..POOL + CHUNK * 3 / 4).await?;
    until(|| b.stats().bytes_received == POOL).await;
    Ok(both(a, b))
}

/// Some chunks may still be in flight.
async fn in_flight(mut a: Stream, b: Stream) -> Result<Left> {
    Pattern::new(121).write(&mut a, 0..POOL).await?;
    Ok(both(a, b))
}

/// A full slot waits for credit, and the peer has read nothing.
async fn without_credit(mut a: Stream, b: Stream) -> Result<Left> {
    fill(DataPath::Tcp, (&mut a, &b), &Pattern::new(122), 0).await?;
    Ok(both(a, b))
}

async fn half_read(mut a: Stream, mut b: Stream) -> Result<Left> {
    let pattern = Pattern::new(123);
    fill(DataPath::Tcp, (&mut a, &b), &pattern, 0).await?;
    pattern.read(&mut b, 0..CHUNK * 3 / 2).await?;
    Ok(both(a, b))
}

/// The reader has called `fill_buf` and consumed nothing.
async fn looked_at(mut a: Stream, mut b: Stream) -> Result<Left> {
    let pattern = Pattern::new(124);
    pattern.write(&mut a, 0..CHUNK).await?;
    let bytes = tokio::io::AsyncBufReadExt::fill_buf(&mut b).await?;
    pattern.check(0, bytes)?;
    Ok(both(a, b))
}

/// The FIN of both directions has arrived, with unread bytes before it.
async fn fin(mut a: Stream, mut b: Stream) -> Result<Left> {
    for stream in [&mut a, &mut b] {
        Pattern::new(125).write(stream, 0..CHUNK + 1).await?;
        stream.shutdown().await?;
    }
    Ok(both(a, b))
}

/// One direction has ended, and was read to its end.
async fn shut_down(mut a: Stream, mut b: Stream) -> Result<Left> {
    let pattern = Pattern::new(126);
    pattern.write(&mut a, 0..CHUNK + 1).await?;
    a.shutdown().await?;
    pattern.read_all(&mut b, 0..CHUNK + 1).await?;
    Ok(both(a, b))
}

/// Both directions have ended, everything was confirmed, and both ends are closed.
pub(crate) async fn finished(mut a: Stream, mut b: Stream) -> Result<Left> {
    let pattern = Pattern::new(127);
    let one = async {
        pattern.write(&mut a, 0..DataPath::Tcp.full()).await?;
        a.finish().await?;
        pattern.read_all(&mut a, 0..1).await
    };
    let other = async {
        pattern.read_all(&mut b, 0..DataPath::Tcp.full()).await?;
        b.confirm()?;
        pattern.write(&mut b, 0..1).await?;
        anyhow::Ok(b.shutdown().await?)
    };
    tokio::try_join!(one, other)?;
    tokio::join!(a.close(), b.close());
    Ok(Vec::new())
}

/// The reader has called `stop` in the middle of a chunk.
async fn stopped(mut a: Stream, mut b: Stream) -> Result<Left> {
    let pattern = Pattern::new(128);
    fill(DataPath::Tcp, (&mut a, &b), &pattern, 0).await?;
    pattern.read(&mut b, 0..10).await?;
    b.stop();
    pattern.write_on(&mut a).await?;
    Ok(both(a, b))
}

/// One end has aborted the stream while chunks were unread.
async fn aborted(mut a: Stream, mut b: Stream) -> Result<Left> {
    fill(DataPath::Tcp, (&mut a, &b), &Pattern::new(129), 0).await?;
    a.abort("part of the test");
    until(|| b.watch().error().is_some()).await;
    let error = own(&b.write_all(b"!").await.expect_err("it was aborted"))?;
    ensure!(matches!(error, Error::PeerAborted { .. }), "{error:?}");
    Ok(both(a, b))
}

/// The stream is split into owned halves while both directions are full.
async fn halves(mut a: Stream, mut b: Stream) -> Result<Left> {
    fill(DataPath::Tcp, (&mut a, &b), &Pattern::new(130), 0).await?;
    fill(DataPath::Tcp, (&mut b, &a), &Pattern::new(131), 0).await?;
    let ((a_reads, a_writes), (b_reads, b_writes)) = (a.into_split(), b.into_split());
    Ok(vec![
        Box::new(a_reads),
        Box::new(b_writes),
        Box::new(b_reads),
        Box::new(a_writes),
    ])
}

async fn halves_by_tokio(mut a: Stream, b: Stream) -> Result<Left> {
    fill(DataPath::Tcp, (&mut a, &b), &Pattern::new(132), 0).await?;
    let ((a_reads, a_writes), (b_reads, b_writes)) = (tokio::io::split(a), tokio::io::split(b));
    Ok(vec![
        Box::new(a_writes),
        Box::new(b_reads),
        Box::new(a_reads),
        Box::new(b_writes),
    ])
}

/// The reader keeps some chunks as `Bytes`, and has others in its pool.
async fn lent(mut a: Stream, mut b: Stream) -> Result<Left> {
    fill(DataPath::Tcp, (&mut a, &b), &Pattern::new(135), 0).await?;
    let first = b.read_chunk().await?.context("no chunk")?;
    let second = b.read_chunk().await?.context("no chunk")?;
    Ok(vec![
        Box::new(first.slice(1..)),
        Box::new(a),
        Box::new(b),
        Box::new((first, second)),
    ])
}

/// The stream is closed, and its reader still keeps chunks as `Bytes`.
async fn lent_and_gone(mut a: Stream, mut b: Stream) -> Result<Left> {
    fill(DataPath::Tcp, (&mut a, &b), &Pattern::new(136), 0).await?;
    let first = b.read_chunk().await?.context("no chunk")?;
    let second = b.read_chunk().await?.context("no chunk")?;
    tokio::join!(a.close(), b.close());
    Ok(vec![Box::new(first), Box::new(second)])
}

/// Send buffers are lent, one of them filled and none of them sent.
async fn unsent(mut a: Stream, b: Stream) -> Result<Left> {
    let mut first = a.send_buffer().await?;
    let second = a.send_buffer().await?;
    first.write_all(b"unsent")?;
    Ok(vec![
        Box::new(first),
        Box::new(b),
        Box::new(a),
        Box::new(second),
    ])
}

/// The stream is closed, and its send buffers are still lent.
async fn unsent_and_gone(mut a: Stream, b: Stream) -> Result<Left> {
    let buffers = [a.send_buffer().await?, a.send_buffer().await?];
    tokio::join!(a.close(), b.close());
    Ok(buffers.map(|buffer| Box::new(buffer) as _).into())
}

/// A send buffer has been sent while the peer has no room for it.
async fn sent(mut a: Stream, b: Stream) -> Result<Left> {
    let mut buffer = a.send_buffer().await?;
    fill(DataPath::Tcp, (&mut a, &b), &Pattern::new(137), 0).await?;
    buffer.write_all(b"sent")?;
    a.send(buffer)?;
    Ok(both(a, b))
}

/// Each end has lost the connection to the other, with chunks unread and unsent.
pub(crate) async fn dead(over: DataPath) -> Result<Left> {
    let config = over.config(small(&StreamConfig::default()));
    let (listener, key) = data_path::listener(config.clone()).await?;
    let proxy = Proxy::start(listener.local_addr(), None);
    let (mut a, b) = data_path::meet(listener, proxy.port(), &key, &config).await?;
    fill(DataPath::Tcp, (&mut a, &b), &Pattern::new(133), 0).await?;
    drop(proxy);
    let error = Pattern::new(134).write_on(&mut a).await?;
    own(&error).context("of the writer")?;
    until(|| b.watch().error().is_some()).await;
    Ok(both(a, b))
}

fn both(a: Stream, b: Stream) -> Left {
    vec![Box::new(a), Box::new(b)]
}
