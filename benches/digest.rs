//! Measures the digest alone: xxh3-64 over chunks of the default size that stay in the cache, as they do in a stream.
//!
//! Prints one line, as `digest 56.1 GB/s`. From this speed `scripts/bench` computes the processor time that a stream
//! may spend on digests.

use std::hint::black_box;
use std::time::{Duration, Instant};

use rdpipe::StreamConfig;

/// The number of rounds. The fastest one counts, because other load on the machine can only make a round slower.
const ROUNDS: u32 = 5;
/// The length of a round: so long that the resolution of the clock and the ramp-up of the processor do not matter.
const ROUND: Duration = Duration::from_millis(200);
/// The number of chunks between two reads of the clock.
const BATCH: u32 = 64;

fn main() {
    let chunk: Vec<u8> = (0_u32..)
        .map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes()[0])
        .take(StreamConfig::default().chunk_bytes)
        .collect();
    let best = (0..ROUNDS)
        .map(|_| bytes_per_second(&chunk))
        .fold(0.0, f64::max);
    println!("digest {:.1} GB/s", best / 1e9);
}

fn bytes_per_second(chunk: &[u8]) -> f64 {
    let start = Instant::now();
    let mut chunks = 0;
    let mut digest = 0;
    while start.elapsed() < ROUND {
        for _ in 0..BATCH {
            // The seed is the digest before, so that the processor does not compute two digests in parallel: in a
            // stream it reads and writes between them.
            digest = rdpipe_digest::xxh3_64_with_seed(digest, black_box(chunk));
        }
        chunks += BATCH;
    }
    black_box(digest);
    let chunk_bytes = u32::try_from(chunk.len()).expect("a chunk is smaller than 4 GiB");
    f64::from(chunks) * f64::from(chunk_bytes) / start.elapsed().as_secs_f64()
}
