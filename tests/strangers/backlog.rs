//! Streams that wait for `accept`, and handshakes that never become one.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use rdpipe::{StreamConfig, connect};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::Semaphore,
    time::sleep,
};

use crate::{
    crowds::patient,
    house::{House, SLACK_BYTES, alone},
    support::{
        proxy::{Act, Connection, Plan, Proxy, Towards},
        waiting::patience,
    },
};

/// A stream that waits for `accept` for several times the timeout of both ends is alive when it is accepted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_waits_for_accept_is_kept_alive() -> Result<()> {
    let body = Box::pin(async {
        let mut config = StreamConfig::default();
        config.timeout = patience(Duration::from_millis(400));
        let house = House::with(config).await?;
        let port = house.address.port();
        let mut here = connect(("127.0.0.1", port), &house.key, &house.config).await?;
        here.write_all(b"early").await?;
        sleep(3 * house.config.timeout).await;
        let mut there = house.listener.accept().await?;
        here.shutdown().await.context("the dialer")?;
        let mut said = String::new();
        let reading = there.read_to_string(&mut said).await;
        reading.context("the acceptor")?;
        ensure!(said == "early", "{said:?}");
        Ok(())
    });
    alone(
        "a_stream_that_waits_for_accept_is_kept_alive",
        SLACK_BYTES,
        body,
    )
    .await
}

/// More peers than streams may wait connect while the program accepts none, and all of them get their stream later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_wait_until_the_program_accepts() -> Result<()> {
    const PEERS: usize = 100;
    let body = Box::pin(async {
        let house = House::with(patient()).await?;
        let port = house.address.port();
        let connected = Arc::new(Semaphore::new(0));
        let dialing = (0..PEERS).map(|number| {
            let (key, config) = (house.key.clone(), house.config.clone());
            let connected = Arc::clone(&connected);
            tokio::spawn(async move {
                let mut stream = connect(("127.0.0.1", port), &key, &config).await?;
                connected.add_permits(1);
                stream.write_all(b"!").await?;
                stream.shutdown().await?;
                ensure!(stream.read(&mut [0]).await? == 0, "peer {number}");
                anyhow::Ok(())
            })
        });
        let dialing: Vec<_> = dialing.collect();
        // So many have connected before the first of them is accepted.
        let _ = connected.acquire_many(40).await?;
        for number in 0..PEERS {
            let accepted = house.listener.accept().await;
            let mut stream = accepted.with_context(|| format!("accept {number}"))?;
            ensure!(stream.read_u8().await.context("the first byte")? == b'!');
            ensure!(stream.read(&mut [0]).await? == 0);
            stream.shutdown().await?;
        }
        for outcome in try_join_all(dialing).await? {
            outcome?;
        }
        Ok(())
    });
    alone(
        "peers_wait_until_the_program_accepts",
        2 * SLACK_BYTES,
        body,
    )
    .await
}

/// Handshakes of peers with the key that break at various points are no errors of `accept`: the next stream is that of
/// the next peer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_that_breaks_is_no_error_of_accept() -> Result<()> {
    let body = Box::pin(async {
        let house = House::with(StreamConfig::default()).await?;
        let mut impatient = house.config.clone();
        impatient.retry_for = Duration::ZERO;
        for (connection, towards, at) in [
            (Connection::Control, Towards::Acceptor, 20),
            (Connection::Control, Towards::Acceptor, 80),
            (Connection::Control, Towards::Dialer, 60),
            (Connection::Control, Towards::Dialer, 100),
            (Connection::Data, Towards::Acceptor, 4),
            (Connection::Data, Towards::Acceptor, 23),
            (Connection::Data, Towards::Acceptor, 40),
            (Connection::Data, Towards::Dialer, 10),
        ] {
            let plan = Plan {
                connection,
                towards,
                at,
                act: Act::Cut,
            };
            loop {
                let proxy = Proxy::start(house.address, Some(plan));
                let dialed = connect(("127.0.0.1", proxy.port()), &house.key, &impatient).await;
                ensure!(dialed.is_err(), "{plan:?}: connected");
                if proxy.has_acted() {
                    break;
                }
            }
            let served = house.serves_the_right_peer().await;
            served.with_context(|| format!("{plan:?}"))?;
        }
        Ok(())
    });
    alone(
        "a_handshake_that_breaks_is_no_error_of_accept",
        SLACK_BYTES,
        body,
    )
    .await
}

/// A data connection that is closed before the acceptor has read whose it is, as strangers are pushed out, is dialed
/// again, on the same control connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_connection_that_is_pushed_out_is_dialed_again() -> Result<()> {
    let body = Box::pin(async {
        let house = House::with(StreamConfig::default()).await?;
        let plan = Plan {
            connection: Connection::Data,
            towards: Towards::Acceptor,
            at: 12,
            act: Act::Cut,
        };
        let proxy = Proxy::start(house.address, Some(plan));
        house.serves_through(proxy.port()).await?;
        ensure!(proxy.has_acted(), "nothing was cut");
        let count = proxy.connections();
        ensure!(
            count == 3,
            "{count} connections: one for control, two for data"
        );
        Ok(())
    });
    alone(
        "a_data_connection_that_is_pushed_out_is_dialed_again",
        SLACK_BYTES,
        body,
    )
    .await
}
