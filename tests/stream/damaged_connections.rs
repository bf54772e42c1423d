//! Whatever happens to either connection, both ends report an error; no reader gets a wrong byte or a false end of
//! file, and no end hangs. A data connection that delivers nothing any more is reported in time, and one that is only
//! slow is never taken for one.

use std::{fs, time::Duration};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use rdpipe::{Encryption, Error, Fault, Stream, StreamConfig, TransportPolicy, connect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{
    data_path, is_full,
    pattern::{End, Pattern, own},
    proxy::{Act, Connection, Plan, Proxy, Towards},
    random::{Random, seed},
    waiting::{generous, limit, patience, soon, together, until, within},
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
    let (listener, key) = data_path::listener(config.clone()).await?;
    let proxy = Proxy::start(listener.local_addr(), None);
    let (dialer, acceptor) = data_path::meet(listener, proxy.port(), &key, config).await?;
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

/// Damages `connection` at random places, in the middle of a stream that is busy in both directions, with and without
/// encryption. Every error of both ends must satisfy `sensible`.
async fn in_the_middle(
    connection: Connection,
    most: u64,
    mut act: impl FnMut(&mut Random) -> Act,
    sensible: impl Fn(&Error) -> bool,
) -> Result<()> {
    let mut random = Random::new(52 + connection as u64);
    for towards in WAYS {
        for round in 0..6 {
            let mut config = config();
            if round % 2 == 1 {
                config.encryption = Encryption::Always;
            }
            let (dialer, acceptor, proxy) = through_a_proxy(&config).await?;
            let is_encrypted = dialer.cipher().is_some() && acceptor.cipher().is_some();
            ensure!(is_encrypted == (round % 2 == 1));
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
        matches!(fault(error), Some(Fault::Corrupt(_)))
            || told(error, "damaged or changed on the way")
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ends_report_a_flipped_bit_in_the_control_messages() -> Result<()> {
    in_the_middle(Connection::Control, 2000, flip, |error| {
        matches!(fault(error), Some(Fault::Corrupt(_)))
            || told(error, "damaged or changed on the way")
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
    ensure!(told(&error, "damaged or changed on the way"), "{error:?}");
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
    let cause = matches!(fault(&error), Some(Fault::Corrupt(_)))
        || told(&error, "damaged or changed on the way");
    ensure!(cause, "{error:?}");
    let error = Pattern::new(55)
        .drain(&mut acceptor, 1000)
        .await?
        .failure()?;
    let cause = matches!(fault(&error), Some(Fault::Corrupt(_)))
        || told(&error, "damaged or changed on the way");
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
    let (listener, key) = data_path::listener(config.clone()).await?;
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

/// The number of places in each direction at which each kind of hole is tried.
const ROUNDS: u64 = 3;

/// The bytes among which a hole begins.
const MOST: u64 = 2 << 20;

/// Returns a configuration with small chunks and with `timeout`.
fn config_with(timeout: Duration) -> StreamConfig {
    let mut config = StreamConfig::default();
    (config.chunk_bytes, config.depth) = (16 << 10, 4);
    config.timeout = timeout;
    config.transport = TransportPolicy::Tcp;
    config
}

/// The time within which both ends of an idle machine report that nothing arrives.
fn promised(timeout: Duration) -> Duration {
    timeout * 5 / 4 + Duration::from_secs(2)
}

fn names_the_data_connection(error: &Error) -> bool {
    matches!(fault(error), Some(Fault::Data(_))) || told(error, "the data connection broke")
}

/// Writes at one end and reads at both until everything has failed. Returns the errors: of the writer, of the reader at
/// the same end, and of the reader at the other end.
async fn stream_on(from: Stream, mut to: Stream) -> Result<[Error; 3]> {
    let (mut reads, mut writes) = from.into_split();
    let sending = async move {
        let writing = async move { own(&Pattern::new(60).write_on(&mut writes).await?) };
        let reading = async move { Pattern::new(61).drain(&mut reads, 0).await?.failure() };
        together(writing, reading).await
    };
    let receiving = async move { Pattern::new(60).drain(&mut to, 0).await?.failure() };
    let ((a, b), c) = together(sending, receiving).await?;
    Ok([a, b, c])
}

/// Makes holes of each kind that `act` returns, at random places of both directions, all at the same time.
async fn holes(
    number: u64,
    act: impl Fn(&mut Random) -> Act,
    sensible: fn(&Error) -> bool,
) -> Result<()> {
    let mut random = Random::new(number);
    let mut plans = Vec::new();
    for towards in WAYS {
        for _ in 0..ROUNDS {
            plans.push(Plan {
                connection: Connection::Data,
                towards,
                at: random.within(0..MOST),
                act: act(&mut random),
            });
        }
    }
    let all = plans.into_iter().map(|plan| async move {
        let described = || format!("{plan:?}, RDPIPE_TEST_SEED={}", seed());
        let errors = hole(plan).await.with_context(described)?;
        ensure!(errors.iter().all(sensible), "{}: {errors:?}", described());
        Ok(())
    });
    try_join_all(all).await?;
    Ok(())
}

/// Does what is planned to a busy stream, and returns the errors of both ends.
async fn hole(plan: Plan) -> Result<[Error; 3]> {
    let config = config_with(patience(Duration::from_secs(1)));
    let (dialer, acceptor, proxy) = through_a_proxy(&config).await?;
    proxy.plan_from_here(plan);
    let (from, to) = match plan.towards {
        Towards::Acceptor => (dialer, acceptor),
        Towards::Dialer => (acceptor, dialer),
    };
    let ends = tokio::spawn(stream_on(from, to));
    within(generous(), "the stream before the hole", async {
        until(|| proxy.has_acted()).await;
        Ok(())
    })
    .await?;
    let most = limit(promised(config.timeout)) + soon();
    within(most, "a stream with a hole", async { ends.await? }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ends_report_a_data_connection_that_swallows_bytes() -> Result<()> {
    holes(62, |_| Act::Swallow, names_the_data_connection).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ends_report_a_data_connection_that_takes_no_more_bytes() -> Result<()> {
    holes(63, |_| Act::Block, names_the_data_connection).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ends_report_bytes_that_vanish_in_the_middle() -> Result<()> {
    let lose = |random: &mut Random| Act::Lose(random.within(1..100_000));
    holes(64, lose, |error| {
        let damaged = matches!(fault(error), Some(Fault::Corrupt(_)));
        damaged || told(error, "damaged or changed on the way") || names_the_data_connection(error)
    })
    .await
}

/// One message of an idle stream is lost, and nothing follows it: each end waits for the other one, until both fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_message_of_an_idle_stream_fails_both_ends() -> Result<()> {
    let config = config_with(patience(Duration::from_secs(1)));
    let (mut dialer, mut acceptor, proxy) = through_a_proxy(&config).await?;
    Pattern::new(65).write(&mut dialer, 0..1000).await?;
    Pattern::new(65).read(&mut acceptor, 0..1000).await?;
    proxy.plan_from_here(Plan {
        connection: Connection::Data,
        towards: Towards::Acceptor,
        at: 0,
        act: Act::Swallow,
    });
    Pattern::new(65).write(&mut dialer, 1000..1500).await?;
    dialer.flush().await?;
    let most = limit(promised(config.timeout)) + soon();
    let errors = within(most, "the loss", async {
        let (mut here, mut there) = ([0], [0]);
        let (here, there) = tokio::join!(dialer.read(&mut here), acceptor.read(&mut there));
        let failed = |read: std::io::Result<usize>| own(&read.expect_err("a message was lost"));
        Ok([failed(here)?, failed(there)?])
    })
    .await?;
    ensure!(errors.iter().all(names_the_data_connection), "{errors:?}");
    let text = errors[1].to_string();
    ensure!(text.contains("that were sent on it arrived for"), "{text}");
    Ok(())
}

/// Moves `bytes` over a data connection of 1 MB/s, in chunks of the default size: far more is on its way than arrives
/// within the timeout, all the time.
async fn slowly(bytes: u64, timeout: Duration) -> Result<()> {
    let mut config = StreamConfig::default();
    config.timeout = timeout;
    config.transport = rdpipe::TransportPolicy::Tcp;
    let (listener, key) = data_path::listener(config.clone()).await?;
    let proxy = Proxy::start(listener.local_addr(), None);
    let (mut dialer, mut acceptor) = data_path::meet(listener, proxy.port(), &key, &config).await?;
    proxy.plan_from_here(Plan {
        connection: Connection::Data,
        towards: Towards::Acceptor,
        at: 0,
        act: Act::Slow(RATE),
    });
    let writing = async move {
        Pattern::new(66).write(&mut dialer, 0..bytes).await?;
        dialer.finish().await?;
        Ok(())
    };
    let reading = async move {
        Pattern::new(66).read_all(&mut acceptor, 0..bytes).await?;
        acceptor.confirm()?;
        acceptor.close().await;
        Ok(())
    };
    let most = generous() + Duration::from_secs(2 * bytes / RATE);
    within(most, "a slow network", together(writing, reading)).await?;
    ensure!(proxy.has_acted(), "the network was not slow");
    Ok(())
}

/// The speed of the slow network, in bytes per second.
const RATE: u64 = 1_000_000;

/// With `RDPIPE_FULL`, 64 MiB and a timeout of 3 s, which takes a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_network_is_not_a_dead_data_connection() -> Result<()> {
    if is_full() {
        return slowly(64 << 20, patience(Duration::from_secs(3))).await;
    }
    let timeout = patience(Duration::from_secs(1));
    slowly(RATE * 2 * promised(timeout).as_secs(), timeout).await
}

/// Firewalls forget connections that are silent. The kernel sends a keepalive on both connections of an idle stream, at
/// both ends, after at most a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_stream_is_kept_alive_for_firewalls() -> Result<()> {
    let config = config_with(Duration::from_secs(3600));
    let (listener, key) = data_path::listener(config.clone()).await?;
    let port = listener.local_addr().port();
    let _ends = data_path::meet(listener, port, &key, &config).await?;
    within(generous(), "the keepalives", async {
        until(|| keepalives(port).len() == 4).await;
        let due = keepalives(port);
        ensure!(due.iter().all(|ticks| *ticks <= 60 * 100), "{due:?}");
        Ok(())
    })
    .await
}

/// Returns the clock ticks, a hundred in a second, until the kernel sends the next keepalive on each established
/// connection that has `port` at one end and a timer for keepalives.
fn keepalives(port: u16) -> Vec<u64> {
    let port = format!(":{port:04X}");
    let table = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let due = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, here, there, state, _, timer, ..] = fields[..] else {
            return None;
        };
        let is_ours = (here.ends_with(&port) || there.ends_with(&port)) && state == "01";
        let ticks = timer.strip_prefix("02:").filter(|_| is_ours)?;
        u64::from_str_radix(ticks, 16).ok()
    };
    table.lines().filter_map(due).collect()
}
