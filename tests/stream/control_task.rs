//! A stream fails when its control task ends before it does, and a time limit of any length is kept. A program with a
//! blocked thread, as when a disk stalls, counts as alive if it has a keepalive runtime.

use std::{io, thread, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use rdpipe::{Error, Fault, Key, Stream, StreamConfig, TransportPolicy, connect};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    runtime::{Builder, Handle, Runtime},
};

use crate::support::{
    data_path::{self, DataPath},
    pattern::{Pattern, own},
    waiting::{generous, patience, within},
};

/// Returns a dialer whose control task is in the runtime of `control`, and its peer.
async fn pair(control: &Handle) -> Result<(Stream, Stream)> {
    let mut config = StreamConfig::default();
    config.control_runtime = Some(control.clone());
    DataPath::Tcp.pair(config, StreamConfig::default()).await
}

/// Checks that reads and writes, also those that wait already, fail because the control task ended. `end` ends the
/// task.
async fn fails(stream: Stream, end: impl FnOnce()) -> Result<()> {
    let (mut reads, mut writes) = stream.into_split();
    let mut reading = tokio::spawn(async move { reads.read_u8().await });
    tokio::select! {
        biased;
        read = &mut reading => ensure!(false, "nothing was to be read yet: {read:?}"),
        () = tokio::task::yield_now() => {}
    }
    end();
    let read = own(&reading.await?.err().context("the read succeeded")?)?;
    let written = writes.shutdown().await;
    let written = own(&written.err().context("the shutdown succeeded")?)?;
    let expected = matches!(
        (&read, &written),
        (
            Error::Receive {
                fault: Fault::ControlTask,
                ..
            },
            Error::Send {
                fault: Fault::ControlTask,
                ..
            } | Error::Unconfirmed {
                fault: Fault::ControlTask,
                ..
            }
        )
    );
    ensure!(expected, "{read}; {written}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_fails_when_its_control_runtime_is_shut_down() -> Result<()> {
    let body = async {
        let control = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let (stream, mut peer) = pair(control.handle()).await?;
        fails(stream, || control.shutdown_background()).await?;
        let error = own(&peer.read_u8().await.err().context("the peer read")?)?;
        let told = matches!(
            error,
            Error::Receive {
                fault: Fault::PeerDied(_),
                ..
            }
        );
        ensure!(told, "the peer: {error}");
        Ok(())
    };
    within(generous(), "a control runtime that is shut down", body).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_fails_when_its_control_runtime_never_ran() -> Result<()> {
    let body = async {
        let control = Builder::new_current_thread().enable_all().build()?;
        let (stream, _peer) = pair(control.handle()).await?;
        fails(stream, || control.shutdown_background()).await
    };
    within(generous(), "a control runtime that never runs", body).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_without_end_works() -> Result<()> {
    let body = async {
        let mut config = StreamConfig::default();
        config.timeout = Duration::MAX;
        config.connect_timeout = Duration::MAX;
        config.handshake_timeout = Duration::MAX;
        let (mut a, mut b) = DataPath::Tcp.pair(config.clone(), config).await?;
        a.write_all(b"hello").await?;
        let reading = async {
            let mut read = String::new();
            b.read_to_string(&mut read).await?;
            b.confirm()?;
            anyhow::Ok(read)
        };
        let (finished, read) = tokio::join!(a.finish(), reading);
        finished?;
        ensure!(read? == "hello");
        Ok(())
    };
    within(generous(), "a timeout without end", body).await
}

/// The time that a peer may be silent, and the time that the thread of the sender is blocked.
#[derive(Clone, Copy)]
struct Times {
    patience: Duration,
    stall: Duration,
}

fn config_of(times: Times) -> StreamConfig {
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
        let (listener, key) = data_path::listener(config_of(times)).await?;
        let mut config = config_of(times);
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
        let (listener, key) = data_path::listener(config.clone()).await?;
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
