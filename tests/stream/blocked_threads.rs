//! A program with a blocked thread, as when a disk stalls, counts as alive if it has a keepalive runtime.

use std::{io, thread, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use rdpipe::{Error, Fault, Key, StreamConfig, TransportPolicy, connect};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    runtime::{Builder, Handle, Runtime},
};

use crate::support::{
    ends,
    pattern::{Pattern, own},
    waiting::{generous, patience, within},
};

/// The time that a peer may be silent, and the time that the thread of the sender is blocked.
#[derive(Clone, Copy)]
struct Times {
    patience: Duration,
    stall: Duration,
}

fn config(times: Times) -> StreamConfig {
    let mut config = StreamConfig::default();
    config.timeout = times.patience;
    config.transport = TransportPolicy::Tcp;
    config
}

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// Sends a word, blocks its thread for three times the timeout of its peer, and sends another word.
async fn stall(port: u16, key: Key, config: StreamConfig, times: Times) -> Result<()> {
    let mut stream = connect(("127.0.0.1", port), &key, &config).await?;
    stream.write_all(b"before ").await?;
    stream.flush().await?;
    // This sleep is the blocked thread itself, as with a read from a stalled disk. It waits for no event.
    thread::sleep(times.stall);
    stream.write_all(b"after").await?;
    stream.finish().await?;
    Ok(())
}

/// Returns what the peer of a sender that stalls has read, or the error of its read.
fn beside_a_stall(keepalive: Option<Handle>) -> Result<io::Result<String>> {
    let patience = patience(Duration::from_secs(2));
    let times = Times {
        patience,
        stall: 3 * patience,
    };
    let most = generous() + times.stall;
    runtime()?.block_on(within(most, "the reader", async {
        let (listener, key) = ends::listener(config(times)).await?;
        let mut config = config(times);
        config.keepalive_runtime = keepalive;
        let port = listener.local_addr().port();
        let sender = thread::spawn(move || runtime()?.block_on(stall(port, key, config, times)));
        let mut stream = listener.accept().await?;
        let mut read = String::new();
        let reading = stream.read_to_string(&mut read).await;
        if let Err(error) = reading {
            return Ok(Err(error));
        }
        stream.confirm()?;
        stream.close().await;
        let sent = tokio::task::spawn_blocking(|| sender.join()).await?;
        sent.ok().context("the sender panicked")??;
        Ok(Ok(read))
    }))
}

#[test]
fn a_keepalive_runtime_keeps_a_blocked_program_alive() -> Result<()> {
    let other = runtime()?;
    let handle = other.handle().clone();
    thread::spawn(move || other.block_on(std::future::pending::<()>()));
    let read = beside_a_stall(Some(handle))??;
    ensure!(read == "before after", "{read:?}");
    Ok(())
}

/// The thread of a reader is blocked, and its control task is not. What the writer has sent waits in the socket for
/// longer than a data connection may deliver nothing, and arrives whole when the thread goes on.
#[test]
fn a_blocked_reader_is_not_a_dead_data_connection() -> Result<()> {
    let timeout = patience(Duration::from_secs(1));
    let (stall, bytes) = (2 * timeout + Duration::from_secs(2), 6 << 20);
    let others = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let mut config = StreamConfig::default();
    config.timeout = timeout;
    config.transport = TransportPolicy::Tcp;
    config.control_runtime = Some(others.handle().clone());
    runtime()?.block_on(within(generous() + stall, "the reader", async {
        let (listener, key) = ends::listener(config.clone()).await?;
        let port = listener.local_addr().port();
        let writer = others.spawn(async move {
            config.control_runtime = None;
            let mut stream = connect(("127.0.0.1", port), &key, &config).await?;
            Pattern::new(59).write(&mut stream, 0..bytes).await?;
            stream.finish().await?;
            anyhow::Ok(())
        });
        let mut stream = listener.accept().await?;
        // This sleep is the blocked thread itself. It waits for no event.
        thread::sleep(stall);
        Pattern::new(59).read_all(&mut stream, 0..bytes).await?;
        stream.confirm()?;
        stream.close().await;
        writer.await??;
        Ok(())
    }))
}

#[test]
fn without_a_keepalive_runtime_a_blocked_program_is_taken_for_dead() -> Result<()> {
    let Err(error) = beside_a_stall(None)? else {
        bail!("the stall was not noticed: the other test proves nothing");
    };
    let error = own(&error)?;
    let is_silent = matches!(
        &error,
        Error::Receive {
            fault: Fault::PeerSilent(_),
            ..
        }
    );
    ensure!(is_silent, "{error}");
    Ok(())
}
