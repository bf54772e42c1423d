//! Tests that the numbers in README and `docs/` equal those in the code.

use crate::{
    Key, StreamConfig,
    cli::args::version,
    config::{ONE_PROCESSOR_POOL, POOL},
    ssh::protocol,
};

const README: &str = include_str!("../../README.md");
const STREAMS: &str = include_str!("../../docs/streams.md");
const ARCHITECTURE: &str = include_str!("../../docs/architecture.md");
const MEASUREMENTS: &str = include_str!("../../docs/measurements.md");
const WIRE_FORMAT: &str = include_str!("../../docs/wire-format.md");
const VERSIONS: &str = include_str!("../../docs/versions.md");

/// Fails unless `page` has `text`, on one line or several.
#[track_caller]
fn assert_quotes(page: &str, text: &str) {
    let words: Vec<&str> = page.split_whitespace().collect();
    let is_quoted = words.join(" ").contains(text);
    assert!(is_quoted, "the page does not say: {text}");
}

#[test]
fn the_docs_quote_the_default_pools() {
    let StreamConfig {
        chunk_bytes, depth, ..
    } = StreamConfig::default();
    let ((chunk, slots), (lone_chunk, lone_slots)) = (POOL, ONE_PROCESSOR_POOL);
    let (tcp, rdma, lone) = (chunk_bytes >> 10, chunk >> 20, lone_chunk >> 20);
    assert_quotes(
        STREAMS,
        &format!(
            "({tcp}K × {depth} over TCP, {rdma}M × {slots} over RDMA, with one processor {lone}M × {lone_slots})"
        ),
    );
    assert_quotes(
        MEASUREMENTS,
        &format!("Chunk size over TCP: {tcp} KiB × {depth}."),
    );
    assert_quotes(ARCHITECTURE, &format!("{rdma} MiB × {slots} one way"));
    assert_quotes(
        ARCHITECTURE,
        &format!("on a machine of one processor {lone} MiB × {lone_slots}"),
    );
}

#[test]
fn the_docs_quote_the_time_limits() {
    let default = StreamConfig::default();
    let seconds = default.timeout.as_secs();
    assert_quotes(STREAMS, &format!("after this much silence ({seconds} s)"));
    assert_quotes(WIRE_FORMAT, &format!("| `--timeout`, {seconds} s |"));
    assert_eq!(default.retry_for.as_secs(), 3);
    assert_quotes(STREAMS, "within three seconds");
}

#[test]
fn the_docs_quote_the_versions() {
    let number = protocol::VERSION;
    let program = env!("CARGO_PKG_VERSION");
    assert_quotes(WIRE_FORMAT, &format!("`rdpipe-agent {number} {program}`"));
    assert_quotes(WIRE_FORMAT, &format!("`rdpipe --agent={number}`"));
    let protocols = version::long().lines().last().unwrap();
    assert_quotes(VERSIONS, &format!("{protocols} ```"));
    assert_quotes(
        README,
        &format!("supported Rust is {}.", env!("CARGO_PKG_RUST_VERSION")),
    );
}

#[test]
fn the_key_in_the_readme_is_valid() {
    let made = Key::generate().unwrap().text().to_string();
    let (prefix, rest) = made.split_at(4);
    let shown = README.split("RDPIPE_KEY=").nth(1).unwrap();
    let shown = shown.split(' ').next().unwrap();
    assert_eq!((&shown[..4], shown.len()), (prefix, 4 + rest.len()));
    Key::parse(shown).expect("the key that README shows is whole");
    assert_quotes(STREAMS, &format!("`{prefix}`"));
}
