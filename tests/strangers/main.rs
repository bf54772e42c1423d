//! A peer without the key cannot connect, and cannot keep a peer with the key from connecting.

mod crowds;
mod house;
mod shares;
#[path = "../support/mod.rs"]
mod support;
mod tokens;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::{FutureExt, future::join_all};
use rdpipe::{Error, HandshakeFault, Key, StreamConfig, connect};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::{Instant, timeout},
};

use crate::{
    house::{House, SLACK_BYTES, alone, hung_up},
    support::{
        PROTOCOL_VERSION as VERSION, process,
        proxy::{Connection, Proxy},
        random::Random,
        waiting::{generous, limit, patience},
    },
};

macro_rules! strangers {
    ($($(#[$doc:meta])* $name:ident($house:ident) $body:block)*) => { $(
        $(#[$doc])*
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() -> Result<()> {
            alone(stringify!($name), SLACK_BYTES, async {
                let $house = House::open().await?;
                $body
                $house.serves_the_right_peer().await
            })
            .await
        }
    )* };
}

strangers! {
    /// A dialer with a wrong key gets its error at once, long before its timeout.
    a_wrong_key_is_reported_at_once(house) {
        let mut patient = house.config.clone();
        (patient.connect_timeout, patient.handshake_timeout) = (generous(), generous());
        patient.retry_for = generous();
        let key = Key::generate()?.key().clone();
        let started = Instant::now();
        let error = connect(house.address, &key, &patient).await;
        let fault = handshake_fault(error.map(drop))?;
        ensure!(matches!(fault, HandshakeFault::Key), "{fault:?}");
        ensure!(started.elapsed() < limit(Duration::from_secs(15)), "told after {:?}", started.elapsed());
    }

    random_bytes_are_refused(house) {
        for number in 0..8 {
            let mut stranger = house.stranger().await?;
            // The listener closes the connection during this write.
            let _ = stranger.write_all(&Random::new(number).bytes(1 << 20)).await;
            hung_up(&mut stranger).await?;
        }
    }

    /// A megabyte of random bytes after a valid preamble makes the listener close the connection.
    random_bytes_after_a_preamble_are_refused(house) {
        for kind in *b"CDRKV?" {
            let mut stranger = house.stranger().await?;
            let mut bytes = preamble(VERSION, kind).to_vec();
            bytes.extend(Random::new(u64::from(kind)).bytes(1 << 20));
            let _ = stranger.write_all(&bytes).await;
            hung_up(&mut stranger).await?;
        }
    }

    a_thousand_short_connections_block_no_peer(house) {
        for _ in 0..500 {
            drop(house.stranger().await?);
        }
        let address = house.address;
        let crowd = tokio::spawn(async move {
            for _ in 0..500 {
                drop(TcpStream::connect(address).await?);
            }
            anyhow::Ok(())
        });
        house.serves_the_right_peer().await.context("among them")?;
        crowd.await??;
    }

    two_hundred_silent_connections_block_no_peer(house) {
        let mut resident_bytes = Vec::new();
        for _ in 0..10 {
            let silent = join_all((0..100).map(|_| house.stranger())).await;
            let address = house.address;
            let more = tokio::spawn(async move {
                join_all((0..100).map(|_| TcpStream::connect(address))).await
            });
            house.serves_the_right_peer().await.context("among them")?;
            let more = more.await?;
            house.serves_the_right_peer().await.context("after them")?;
            drop((silent, more));
            resident_bytes.push(process::resident_bytes());
        }
        // The allocator reuses the memory of one round in the next: a leak of 2 KiB for each connection would show.
        let grown = resident_bytes[9].saturating_sub(resident_bytes[0]);
        ensure!(grown < SLACK_BYTES / 2, "not flat: {resident_bytes:?}");
    }

    /// The recorded bytes of both connections of a stream open no second stream, in any of 20 attempts.
    a_replayed_handshake_is_refused(house) {
        let proxy = Proxy::start(house.address, None);
        house.serves_through(proxy.port()).await.context("the recording")?;
        ensure!(proxy.connections() == 2, "{} connections", proxy.connections());
        for _ in 0..20 {
            let (mut control, mut data) = (house.stranger().await?, house.stranger().await?);
            control.write_all(&proxy.tape(Connection::Control)).await?;
            data.write_all(&proxy.tape(Connection::Data)).await?;
            hung_up(&mut data).await.context("the data connection")?;
            hung_up(&mut control).await.context("the control connection")?;
            ensure!(house.listener.accept().now_or_never().is_none(), "a recording got in");
        }
    }

    /// The token of a stream is valid once: a second use is refused while the stream is open, and does it no harm.
    a_replayed_token_is_refused(house) {
        let proxy = Proxy::start(house.address, None);
        let dialing = connect(("127.0.0.1", proxy.port()), &house.key, &house.config);
        let (dialed, accepted) = tokio::join!(dialing, house.listener.accept());
        let (mut here, mut there) = (dialed?, accepted?);
        let mut thief = house.stranger().await?;
        thief.write_all(&proxy.tape(Connection::Data)).await?;
        hung_up(&mut thief).await?;
        here.write_all(b"unharmed").await?;
        here.shutdown().await?;
        let mut said = String::new();
        there.read_to_string(&mut said).await?;
        ensure!(said == "unharmed", "{said:?}");
    }

    /// A dialer with another version gets the version of the listener, so that its own program can report it.
    another_version_gets_an_answer_with_the_version(house) {
        for (version, rest) in [(0, 48), (VERSION - 1, 48), (VERSION + 1, 48), (200, 0), (255, 100)] {
            let mut stranger = house.stranger().await?;
            stranger.write_all(&preamble(version, b'C')).await?;
            stranger.write_all(&vec![7; rest]).await?;
            let mut answer = [0; 8];
            stranger.read_exact(&mut answer).await.with_context(|| format!("version {version}"))?;
            ensure!(answer == preamble(VERSION, b'V'), "version {version}: {answer:?}");
        }
    }

    an_http_request_is_refused(house) {
        let mut stranger = house.stranger().await?;
        stranger.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
        hung_up(&mut stranger).await?;
    }
}

/// A connection that stops in the middle of its handshake is closed after the timeout, and blocks no other
/// peer until then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_handshake_times_out() -> Result<()> {
    let body = Box::pin(async {
        let house = House::with_patience(patience(Duration::from_millis(500))).await?;
        let whole = [&preamble(VERSION, b'C')[..], &[7; 63]].concat();
        let label = [&preamble(VERSION, b'D')[..], &[7; 15]].concat();
        let mut silent = Vec::new();
        for words in [
            &whole[..0],
            &whole[..4],
            &whole[..8],
            &whole[..],
            &label[..],
        ] {
            let mut stranger = house.stranger().await?;
            stranger.write_all(words).await?;
            silent.push(stranger);
        }
        house.serves_the_right_peer().await.context("among them")?;
        for mut stranger in silent {
            hung_up(&mut stranger).await?;
        }
        house.serves_the_right_peer().await
    });
    alone("a_stalled_handshake_times_out", SLACK_BYTES, body).await
}

/// If the program that answers is not rdpipe, the dialer reports that at once.
#[tokio::test]
async fn dialing_another_program_fails_at_once() -> Result<()> {
    for banner in [
        &b"SSH-2.0-OpenSSH_9.9\r\n"[..],
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ] {
        let fault = dial_a_fake(banner).await?;
        ensure!(matches!(fault, HandshakeFault::NotRdpipe(_)), "{fault:?}");
        ensure!(fault.to_string().contains("not rdpipe"), "{fault}");
    }
    Ok(())
}

/// The error of a dialer about different versions names both versions.
#[tokio::test]
async fn dialing_another_version_names_both_versions() -> Result<()> {
    let next = VERSION + 1;
    for kind in *b"VRK!" {
        let fault = dial_a_fake(&preamble(next, kind)).await?;
        ensure!(
            matches!(
                fault,
                HandshakeFault::Version { ours: VERSION, theirs } if theirs == next
            ),
            "{fault:?}"
        );
        let text = fault.to_string();
        ensure!(
            text.contains(&format!("version {next} there, {VERSION} here")),
            "{text}"
        );
    }
    Ok(())
}

/// An acceptor that answers without the key gets no stream.
#[tokio::test]
async fn dialing_an_acceptor_without_the_key_fails() -> Result<()> {
    let reply = [&preamble(VERSION, b'R')[..], &[7; 48]].concat();
    let fault = dial_a_fake(&reply).await?;
    ensure!(matches!(fault, HandshakeFault::Key), "{fault:?}");
    Ok(())
}

/// If the acceptor accepts and sends nothing, the dialer times out.
#[tokio::test]
async fn dialing_a_silent_acceptor_times_out() -> Result<()> {
    let fault = dial_a_fake(b"").await?;
    ensure!(matches!(fault, HandshakeFault::Timeout(_)), "{fault:?}");
    Ok(())
}

/// Dials an acceptor that sends `banner` and then nothing. Returns the fault of the dialer.
async fn dial_a_fake(banner: &[u8]) -> Result<HandshakeFault> {
    let fake = TcpListener::bind("127.0.0.1:0").await?;
    let port = fake.local_addr()?.port();
    let mut config = StreamConfig::default();
    // Only the silent acceptor must run into the timeout.
    config.handshake_timeout = match banner {
        [] => Duration::from_millis(500),
        _ => generous(),
    };
    config.connect_timeout = 2 * generous();
    config.retry_for = 2 * generous();
    let key = Key::generate()?.key().clone();
    let answering = async {
        let (mut dialer, _) = fake.accept().await?;
        dialer.write_all(banner).await?;
        anyhow::Ok(dialer)
    };
    let dialing = connect(("127.0.0.1", port), &key, &config);
    let both = async { tokio::join!(dialing, answering) };
    let (dialed, _dialer) = timeout(generous(), both)
        .await
        .context("the dialer hangs")?;
    handshake_fault(dialed.map(drop))
}

fn handshake_fault(outcome: Result<(), Error>) -> Result<HandshakeFault> {
    match outcome {
        Err(Error::Handshake { fault, .. }) => Ok(fault),
        other => bail!("{other:?}"),
    }
}

fn preamble(version: u8, kind: u8) -> [u8; 8] {
    [b'R', b'D', b'P', b'I', b'P', b'E', version, kind]
}
