//! What the digest alone costs: xxh3-64 over chunks of the default size that stay in the cache, as a stream's do.
//!
//! Prints one line, `digest 56.1 GB/s`. scripts/bench turns it into the processor time that a stream may spend on it.

use std::hint::black_box;
use std::time::{Duration, Instant};

use rdpipe::StreamConfig;

/// Rounds to take the best of: whatever else this machine does can only make one slower.
const ROUNDS: u32 = 5;
/// Long enough for the clock's resolution and the processor's ramp-up not to matter.
const ROUND: Duration = Duration::from_millis(200);
/// Chunks between two looks at the clock.
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
            // Seeded with the one before, as in a stream: no two digests may be computed side by side.
            digest = twox_hash::XxHash3_64::oneshot_with_seed(digest, black_box(chunk));
        }
        chunks += BATCH;
    }
    black_box(digest);
    let chunk_bytes = u32::try_from(chunk.len()).expect("a chunk is smaller than 4 GiB");
    f64::from(chunks) * f64::from(chunk_bytes) / start.elapsed().as_secs_f64()
}
