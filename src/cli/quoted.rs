//! What README and the guide in `docs/` say in numbers, held against the code.

use crate::{
    Key, StreamConfig,
    config::{LONE_POOL, POOL},
    ssh::protocol,
};

const README: &str = include_str!("../../README.md");
const STREAMS: &str = include_str!("../../docs/streams.md");
const ARCHITECTURE: &str = include_str!("../../docs/architecture.md");

#[track_caller]
fn says(page: &str, text: &str) {
    assert!(page.contains(text), "the page does not say: {text}");
}

#[test]
fn pools() {
    let StreamConfig {
        chunk_bytes, depth, ..
    } = StreamConfig::default();
    let ((chunk, slots), (lone_chunk, lone_slots)) = (POOL, LONE_POOL);
    let (tcp, rdma, lone) = (chunk_bytes >> 10, chunk >> 20, lone_chunk >> 20);
    says(
        STREAMS,
        &format!(
            "({tcp}K × {depth} over TCP, {rdma}M × {slots} over RDMA, with one processor {lone}M × {lone_slots})"
        ),
    );
    says(
        ARCHITECTURE,
        &format!("Chunk size over TCP: {tcp} KiB × {depth}."),
    );
    says(ARCHITECTURE, &format!("{rdma} MiB × {slots} one way"));
    says(
        ARCHITECTURE,
        &format!("on a machine of one processor {lone} MiB × {lone_slots}"),
    );
}

#[test]
fn limits_of_time() {
    let default = StreamConfig::default();
    let seconds = default.timeout.as_secs();
    says(STREAMS, &format!("after this much silence ({seconds} s)"));
    says(ARCHITECTURE, &format!("| `--timeout`, {seconds} s |"));
    assert_eq!(default.connect_timeout.as_secs(), 3);
    says(STREAMS, "within three seconds");
}

#[test]
fn versions() {
    let version = protocol::VERSION;
    let program = env!("CARGO_PKG_VERSION");
    says(ARCHITECTURE, &format!("`rdpipe-agent {version} {program}`"));
    says(
        README,
        &format!("supported Rust is {}.", env!("CARGO_PKG_RUST_VERSION")),
    );
}

#[test]
fn keys() {
    let made = Key::generate().unwrap().text().to_string();
    let (prefix, rest) = made.split_at(4);
    let shown = README.split("RDPIPE_KEY=").nth(1).unwrap();
    let shown = shown.split(' ').next().unwrap();
    assert_eq!((&shown[..4], shown.len()), (prefix, 4 + rest.len()));
    Key::parse(shown).expect("the key that README shows is whole");
    says(STREAMS, &format!("`{prefix}`"));
}
