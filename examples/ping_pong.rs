//! Sends a message there and back many times, and prints how long a round trip takes. Or sends many small messages one
//! way, and prints how many there were in a second.
//!
//! ```console
//! hostB $ RDPIPE_KEY=... cargo run --release --example ping_pong serve PORT
//! hostA $ RDPIPE_KEY=... cargo run --release --example ping_pong ask HOST PORT 64 100000
//!
//! hostB $ RDPIPE_KEY=... cargo run --release --example ping_pong drain PORT
//! hostA $ RDPIPE_KEY=... cargo run --release --example ping_pong flood HOST PORT 64 1000000 10
//! ```
//!
//! The last number of `flood` says how many messages are written before each flush.
//!
//! Set `RDPIPE_TRANSPORT` to `rdma` or `tcp` to allow only this transport. Over RDMA, `RDPIPE_SMALL_FRAMES=0` at one
//! end does without the express path, and `RDPIPE_BUSY_POLL` sets how many microseconds a read polls before it waits
//! for an event. `RDPIPE_RAILS` at both ends sets the number of rails.

mod common;

use std::{
    env,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use rdpipe::{Builder, RdmaConfig, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

// One thread, so that no message waits for another thread to wake up.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", port] => {
            let listener = common::listen(&builder()?, port).await?;
            answer(listener.accept().await?).await
        }
        ["drain", port] => {
            let listener = common::listen(&builder()?, port).await?;
            drain(listener.accept().await?).await
        }
        ["flood", host, port, bytes, count, every] => {
            let stream = builder()?.connect((host, port.parse()?)).await?;
            flood(stream, bytes.parse()?, count.parse()?, every.parse()?).await
        }
        ["ask", host, port, bytes, rounds] => {
            let began = Instant::now();
            let stream = builder()?.connect((host, port.parse()?)).await?;
            eprintln!("connected in {:.1} ms", began.elapsed().as_secs_f64() * 1e3);
            ask(stream, bytes.parse()?, rounds.parse()?).await
        }
        _ => bail!(
            "usage: ping_pong serve PORT | ping_pong ask HOST PORT BYTES ROUNDS | \
             ping_pong drain PORT | ping_pong flood HOST PORT BYTES COUNT EVERY"
        ),
    }
}

fn builder() -> Result<Builder> {
    let mut rdma = RdmaConfig::default();
    if let Ok(frames) = env::var("RDPIPE_SMALL_FRAMES") {
        rdma.small_frames = frames.parse()?;
    }
    if let Ok(time) = env::var("RDPIPE_BUSY_POLL") {
        rdma.busy_poll = Some(Duration::from_micros(time.parse()?));
    }
    let mut builder = common::builder()?.rdma(rdma);
    if let Ok(rails) = env::var("RDPIPE_RAILS") {
        builder = builder.rails(rails.parse()?);
    }
    Ok(builder)
}

/// Returns every byte that arrives, as soon as it arrives.
async fn answer(mut stream: Stream) -> Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return common::goodbye(stream).await;
        }
        stream.write_all(&buffer[..count]).await?;
        stream.flush().await?;
    }
}

async fn ask(mut stream: Stream, bytes: usize, rounds: usize) -> Result<()> {
    ensure!(rounds > 0, "at least one round");
    common::tell(&stream);
    let (message, mut answer) = (vec![7; bytes], vec![0; bytes]);
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let began = Instant::now();
        stream.write_all(&message).await?;
        stream.flush().await?;
        stream.read_exact(&mut answer).await?;
        times.push(began.elapsed());
        ensure!(answer == message, "another answer");
    }
    times.sort_unstable();
    let [median, slow] = [50, 99].map(|percent| times[rounds * percent / 100].as_secs_f64() * 1e6);
    println!("{bytes} bytes, {rounds} times: median {median:.1} µs, 99th percentile {slow:.1} µs");
    let late = stream.stats().late_completions;
    eprintln!("{late} completions were found by a timer");
    common::goodbye(stream).await
}

/// Reads everything.
async fn drain(mut stream: Stream) -> Result<()> {
    let mut buffer = vec![0; 64 << 10];
    while stream.read(&mut buffer).await? > 0 {}
    common::goodbye(stream).await
}

/// Writes `count` messages, with a flush after each `every`.
async fn flood(mut stream: Stream, bytes: usize, count: u32, every: u32) -> Result<()> {
    ensure!(
        count > 0 && every > 0,
        "at least one message, and one before each flush"
    );
    common::tell(&stream);
    let message = vec![7; bytes];
    let began = Instant::now();
    for number in 1..=count {
        stream.write_all(&message).await?;
        if number % every == 0 {
            stream.flush().await?;
        }
    }
    // The goodbye waits until the peer has read everything.
    common::goodbye(stream).await?;
    let rate = f64::from(count) / began.elapsed().as_secs_f64();
    println!("{count} messages of {bytes} bytes, flushed each {every}: {rate:.0} a second");
    Ok(())
}
