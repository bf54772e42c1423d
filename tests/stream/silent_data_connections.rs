//! A data connection that delivers nothing any more, while the control connection works: both ends report it in time. A
//! data connection that is only slow is never taken for one.

use std::{fs, time::Duration};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use rdpipe::{Error, Fault, Stream, StreamConfig, TransportPolicy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    damaged_connections::{WAYS, fault, through_a_proxy, told},
    support::{
        ends, is_full,
        pattern::{Pattern, own},
        proxy::{Act, Connection, Plan, Proxy, Towards},
        random::{Random, seed},
        waiting::{generous, limit, patience, soon, together, until, within},
    },
};

/// The number of places in each direction at which each kind of hole is tried.
const ROUNDS: u64 = 3;

/// The bytes among which a hole begins.
const MOST: u64 = 2 << 20;

/// Returns a configuration with small chunks and with `timeout`.
fn config(timeout: Duration) -> StreamConfig {
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
    let config = config(patience(Duration::from_secs(1)));
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
        damaged || told(error, "damaged on the way") || names_the_data_connection(error)
    })
    .await
}

/// One message of an idle stream is lost, and nothing follows it: each end waits for the other one, until both fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_message_of_an_idle_stream_fails_both_ends() -> Result<()> {
    let config = config(patience(Duration::from_secs(1)));
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
    let (listener, key) = ends::listener(config.clone()).await?;
    let proxy = Proxy::start(listener.local_addr(), None);
    let (mut dialer, mut acceptor) = ends::meet(listener, proxy.port(), &key, &config).await?;
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
    let config = config(Duration::from_secs(3600));
    let (listener, key) = ends::listener(config.clone()).await?;
    let port = listener.local_addr().port();
    let _ends = ends::meet(listener, port, &key, &config).await?;
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
