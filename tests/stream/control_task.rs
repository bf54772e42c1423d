//! A stream fails when its control task ends before it does, and a time limit of any length is kept.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rdpipe::{Error, Fault, Stream, StreamConfig};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    runtime::{Builder, Handle},
};

use crate::support::{
    data_path::DataPath,
    pattern::own,
    waiting::{generous, within},
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
