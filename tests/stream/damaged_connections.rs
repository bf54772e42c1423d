//! Whatever happens to either connection, both ends report an error; no reader gets a wrong byte or a false
//! end of file, and no end hangs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rdpipe::{Error, Fault, Stream, StreamConfig, TransportPolicy, connect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{
    ends,
    pattern::{End, Pattern, own},
    proxy::{Act, Connection, Plan, Proxy, Towards},
    random::Random,
    waiting::{generous, patience, together, within},
};

pub(crate) const WAYS: [Towards; 2] = [Towards::Acceptor, Towards::Dialer];

/// The bytes that the dialer sends on the data connection before its first frame: preamble, label and proof.
const DATA_PROLOGUE_BYTES: u64 = 8 + 16 + 32;

/// The length of the header before the payload of each frame.
const HEADER_BYTES: u64 = 128;

/// Returns a configuration with small chunks, so that a few megabytes are many control messages, and with a short
/// timeout.
fn config() -> StreamConfig {
    let mut config = StreamConfig::default();
    (config.chunk_bytes, config.depth) = (16 << 10, 4);
    config.timeout = patience(Duration::from_secs(1));
    config.transport = TransportPolicy::Tcp;
    config
}

/// Returns the dialer, the acceptor, and the proxy between them.
pub(crate) async fn through_a_proxy(config: &StreamConfig) -> Result<(Stream, Stream, Proxy)> {
    let (listener, key) = ends::listener(config.clone()).await?;
    let proxy = Proxy::start(listener.local_addr(), None);
    let (dialer, acceptor) = ends::meet(listener, proxy.port(), &key, config).await?;
    Ok((dialer, acceptor, proxy))
}

/// Writes and reads at both ends until everything has failed. Returns the errors of the dialer, then of the
/// acceptor: of writing, then of reading.
async fn rage(dialer: Stream, acceptor: Stream) -> Result<[Error; 4]> {
    let (here, there) = together(rage_at(dialer, 50, 51), rage_at(acceptor, 51, 50)).await?;
    let ([a, b], [c, d]) = (here, there);
    Ok([a, b, c, d])
}

async fn rage_at(stream: Stream, ours: u64, theirs: u64) -> Result<[Error; 2]> {
    let (mut reads, mut writes) = stream.into_split();
    let writing = async move { own(&Pattern::new(ours).write_on(&mut writes).await?) };
    let reading = async move { Pattern::new(theirs).drain(&mut reads, 0).await?.failure() };
    let (writing, reading) = together(writing, reading).await?;
    Ok([writing, reading])
}

/// Damages `connection` at random places, in the middle of a stream that is busy in both directions. Every
/// error of both ends must satisfy `sensible`.
async fn in_the_middle(
    connection: Connection,
    most: u64,
    mut act: impl FnMut(&mut Random) -> Act,
    sensible: impl Fn(&Error) -> bool,
) -> Result<()> {
    let mut random = Random::new(52 + connection as u64);
    for towards in WAYS {
        for _ in 0..4 {
            let (dialer, acceptor, proxy) = through_a_proxy(&config()).await?;
            let plan = Plan {
                connection,
                towards,
                at: random.within(0..most),
                act: act(&mut random),
            };
            proxy.plan_from_here(plan);
            let body = rage(dialer, acceptor);
            let errors = within(generous(), "the stream", body).await;
            let errors = errors.with_context(|| format!("{plan:?}"))?;
            ensure!(
                proxy.has_acted(),
                "{plan:?} has not happened, but: {errors:?}"
            );
            ensure!(errors.iter().all(&sensible), "{plan:?}: {errors:?}");
        }
    }
    Ok(())
}

/// Returns the fault inside `error`, if it is an error of sending or receiving.
pub(crate) fn fault(error: &Error) -> Option<&Fault> {
    match error {
        Error::Send { fault, .. } | Error::Receive { fault, .. } => Some(fault),
        _ => None,
    }
}

pub(crate) fn told(error: &Error, what: &str) -> bool {
    matches!(error, Error::PeerAborted { reason, .. } if reason.contains(what))
}

fn flip(random: &mut Random) -> Act {
    Act::Flip(u8::try_from(random.within(0..8)).expect("below 8"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ends_report_a_cut_data_connection() -> Result<()> {
    in_the_middle(
        Connection::Data,
        2 << 20,
        |_| Act::Cut,
        |error| {
            matches!(fault(error), Some(Fault::Data(_))) || told(error, "the data connection broke")
        },
    )
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ends_report_a_cut_control_connection() -> Result<()> {
    in_the_middle(
        Connection::Control,
        2000,
        |_| Act::Cut,
        |error| matches!(fault(error), Some(Fault::PeerDied(_))),
    )
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ends_report_a_flipped_bit_in_the_data() -> Result<()> {
    in_the_middle(Connection::Data, 2 << 20, flip, |error| {
        matches!(fault(error), Some(Fault::Corrupt(_))) || told(error, "damaged on the way")
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ends_report_a_flipped_bit_in_the_control_messages() -> Result<()> {
    in_the_middle(Connection::Control, 2000, flip, |error| {
        matches!(fault(error), Some(Fault::Corrupt(_))) || told(error, "damaged on the way")
    })
    .await
}

/// A chunk whose length was changed on the way is detected even if no bytes follow it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_length_is_found_without_further_bytes() -> Result<()> {
    for byte in 0..4 {
        for bit in 0..8 {
            let body = last_length_changed(byte, bit);
            within(generous(), &format!("byte {byte}, bit {bit}"), body).await?;
        }
    }
    Ok(())
}

async fn last_length_changed(byte: u64, bit: u8) -> Result<()> {
    let mut config = config();
    config.timeout = generous();
    let (mut dialer, mut acceptor, proxy) = through_a_proxy(&config).await?;
    Pattern::new(53).write(&mut dialer, 0..1000).await?;
    Pattern::new(53).read(&mut acceptor, 0..1000).await?;
    let at = DATA_PROLOGUE_BYTES + HEADER_BYTES + 1000 + byte;
    proxy.plan(Plan {
        connection: Connection::Data,
        towards: Towards::Acceptor,
        at,
        act: Act::Flip(bit),
    });
    Pattern::new(53).write(&mut dialer, 1000..1500).await?;
    let end = Pattern::new(53).drain(&mut acceptor, 1000).await?;
    ensure!(matches!(end, End::Failed(1000, _)), "{end:?}");
    let error = end.failure()?;
    ensure!(
        matches!(fault(&error), Some(Fault::Corrupt(_))),
        "{error:?}"
    );
    let error = own(&dialer.read(&mut [0]).await.expect_err("an end of file"))?;
    ensure!(told(&error, "damaged on the way"), "{error:?}");
    Ok(())
}

/// A bit of the FIN flips on the way: `shutdown` fails, and the reader gets an error instead of an end of file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_fin_is_no_end_of_file() -> Result<()> {
    let mut random = Random::new(54);
    // Length, then the FIN of a stream of 1000 bytes (1 + 2 + the bytes of the digest), and the tag. A digest takes at
    // most 10 bytes, and fewer than 6 once in a thousand million streams.
    for byte in 0..2 + 1 + 2 + 6 + 16 {
        let act = flip(&mut random);
        let body = damaged_fin(byte, act);
        within(generous(), &format!("byte {byte}, {act:?}"), body).await?;
    }
    Ok(())
}

async fn damaged_fin(byte: u64, act: Act) -> Result<()> {
    let (mut dialer, mut acceptor, proxy) = through_a_proxy(&config()).await?;
    Pattern::new(55).write(&mut dialer, 0..1000).await?;
    Pattern::new(55).read(&mut acceptor, 0..1000).await?;
    // If a keepalive comes before the FIN, it is the one that is damaged.
    proxy.plan_from_here(Plan {
        connection: Connection::Control,
        towards: Towards::Acceptor,
        at: byte,
        act,
    });
    let error = own(&dialer.shutdown().await.expect_err("a damaged FIN"))?;
    let cause =
        matches!(fault(&error), Some(Fault::Corrupt(_))) || told(&error, "damaged on the way");
    ensure!(cause, "{error:?}");
    let error = Pattern::new(55)
        .drain(&mut acceptor, 1000)
        .await?
        .failure()?;
    let cause =
        matches!(fault(&error), Some(Fault::Corrupt(_))) || told(&error, "damaged on the way");
    ensure!(cause, "{error:?}");
    Ok(())
}

/// The peer has taken all bytes, but its confirmation is lost: `finish` reports an unconfirmed delivery, which is not
/// the error of lost bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_confirmation_is_reported_as_unconfirmed() -> Result<()> {
    within(generous(), "a lost confirmation", async {
        let (mut dialer, mut acceptor, proxy) = through_a_proxy(&config()).await?;
        Pattern::new(58).write(&mut dialer, 0..1000).await?;
        dialer.shutdown().await?;
        Pattern::new(58).read_all(&mut acceptor, 0..1000).await?;
        proxy.plan_from_here(Plan {
            connection: Connection::Control,
            towards: Towards::Dialer,
            at: 0,
            act: Act::Cut,
        });
        acceptor.confirm()?;
        let error = dialer
            .finish()
            .await
            .expect_err("a confirmation that was lost");
        ensure!(
            matches!(error, Error::Unconfirmed { bytes: 1000, .. }),
            "{error:?}"
        );
        Ok(())
    })
    .await
}

/// A connection is damaged during the handshake: the dialer either retries and gets a working stream, or
/// fails in time; the acceptor serves the next dialer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_handshake_leaves_the_listener_working() -> Result<()> {
    let mut random = Random::new(56);
    for (connection, towards, most) in [
        (Connection::Control, Towards::Acceptor, 100),
        (Connection::Control, Towards::Dialer, 150),
        (Connection::Data, Towards::Acceptor, DATA_PROLOGUE_BYTES),
    ] {
        for number in 0..16 {
            let act = if number % 4 == 0 {
                Act::Cut
            } else {
                flip(&mut random)
            };
            let at = random.within(0..most);
            let plan = Plan {
                connection,
                towards,
                at,
                act,
            };
            let body = shaken(plan);
            within(generous(), &format!("{plan:?}"), body).await?;
        }
    }
    Ok(())
}

async fn shaken(plan: Plan) -> Result<()> {
    let mut config = config();
    // Some damage is only noticed at the end of this time.
    config.handshake_timeout = patience(Duration::from_millis(500));
    let (listener, key) = ends::listener(config.clone()).await?;
    let proxy = Proxy::start(listener.local_addr(), Some(plan));
    let serving = tokio::spawn(async move {
        loop {
            let mut stream = listener.accept().await?;
            let end = Pattern::new(57).drain(&mut stream, 0).await?;
            if matches!(end, End::Eof(1000)) {
                stream.confirm()?;
                stream.close().await;
                return anyhow::Ok(listener);
            }
        }
    });
    let send = async |port: u16| {
        let mut stream = connect(("127.0.0.1", port), &key, &config).await?;
        let written = Pattern::new(57).write(&mut stream, 0..1000).await;
        written.map_err(|error| Error::from_io(&error).cloned().expect("its own error"))?;
        stream.finish().await
    };
    match send(proxy.port()).await {
        Ok(()) => {}
        Err(Error::Handshake { .. }) => send(proxy.port()).await.context("afterwards")?,
        Err(error) => {
            // The damage came after the handshake, so it is an ordinary failure of the stream.
            ensure!(fault(&error).is_some() || told(&error, ""), "{error:?}");
            send(proxy.port()).await.context("afterwards")?;
        }
    }
    serving.await??;
    Ok(())
}
