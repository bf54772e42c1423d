//! The terms of each end, and the agreement that follows from both. Pure, no I/O.

use std::time::Duration;

use super::message::Terms;
use crate::{
    Direction, HandshakeFault, MAX_CHUNK_BYTES, MAX_DEPTH, MIN_CHUNK_BYTES, StreamConfig,
    config::LONGEST_LIMIT, host::host_name,
};

/// What this end does in the stream, after both ends have sent their terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agreement {
    /// The direction of the stream, as this end sees it.
    pub(crate) direction: Direction,
    /// The chunk size, in bytes.
    pub(crate) chunk_bytes: usize,
    /// The number of slots of this end's receive pool.
    pub(crate) depth: u32,
    /// The number of slots of the peer's receive pool over TCP.
    pub(crate) peer_depth: u32,
    /// The silence after which the peer treats this end as dead.
    pub(crate) peer_timeout: Duration,
}

/// Returns this end's terms.
pub(crate) fn local_terms(config: &StreamConfig) -> Terms {
    let chunk_bytes = config.chunk_bytes.clamp(MIN_CHUNK_BYTES, MAX_CHUNK_BYTES);
    let depth = config.depth.clamp(crate::MIN_DEPTH, crate::MAX_DEPTH);
    Terms {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        host: host_name(),
        direction: config.direction,
        chunk_bytes: u32::try_from(chunk_bytes).expect("at most 64 MiB"),
        depth: u32::try_from(depth).expect("at most a few thousand"),
        timeout_ms: u64::try_from(config.timeout.min(LONGEST_LIMIT).as_millis())
            .unwrap_or(u64::MAX),
    }
}

/// Derives the agreement from this end's and the peer's terms. Both ends derive the same.
///
/// # Errors
///
/// When the terms of the two ends contradict each other.
pub(crate) fn agree(ours: &Terms, theirs: &Terms) -> Result<Agreement, HandshakeFault> {
    let chunk_bytes = ours.chunk_bytes.min(theirs.chunk_bytes) as usize;
    if chunk_bytes < MIN_CHUNK_BYTES {
        return Err(HandshakeFault::Protocol("a chunk size below the least"));
    }
    if theirs.timeout_ms == 0 {
        return Err(HandshakeFault::Protocol("a time limit of nothing"));
    }
    if !(1..=MAX_DEPTH).contains(&(theirs.depth as usize)) {
        return Err(HandshakeFault::Protocol(
            "a pool of a depth that is not allowed",
        ));
    }
    Ok(Agreement {
        direction: common_direction(ours.direction, theirs.direction)?,
        chunk_bytes,
        depth: ours.depth,
        peer_depth: theirs.depth,
        peer_timeout: Duration::from_millis(theirs.timeout_ms).min(LONGEST_LIMIT),
    })
}

/// Returns this end's direction: one way if either end asks for one way.
fn common_direction(ours: Direction, theirs: Direction) -> Result<Direction, HandshakeFault> {
    match (ours, theirs) {
        (Direction::Send, Direction::Send) => Err(HandshakeFault::Direction("send")),
        (Direction::Receive, Direction::Receive) => Err(HandshakeFault::Direction("receive")),
        (Direction::Both, Direction::Both) => Ok(Direction::Both),
        (Direction::Send, _) | (Direction::Both, Direction::Receive) => Ok(Direction::Send),
        (Direction::Receive, _) | (Direction::Both, Direction::Send) => Ok(Direction::Receive),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(direction: Direction, chunk_bytes: usize) -> Terms {
        let config = StreamConfig {
            chunk_bytes,
            direction,
            ..StreamConfig::default()
        };
        local_terms(&config)
    }

    #[test]
    fn both_ends_see_the_same_stream() {
        use Direction::{Both, Receive, Send};
        for (here, there, mine, yours) in [
            (Both, Both, Both, Both),
            (Send, Both, Send, Receive),
            (Both, Send, Receive, Send),
            (Send, Receive, Send, Receive),
        ] {
            let (here, there) = (terms(here, 1 << 20), terms(there, 1 << 16));
            let (a, b) = (agree(&here, &there).unwrap(), agree(&there, &here).unwrap());
            assert_eq!((a.direction, b.direction), (mine, yours));
            assert_eq!((a.chunk_bytes, b.chunk_bytes), (1 << 16, 1 << 16));
        }
    }

    #[test]
    fn two_senders_cannot_meet() {
        let send = terms(Direction::Send, 1 << 16);
        assert!(matches!(
            agree(&send, &send),
            Err(HandshakeFault::Direction("send"))
        ));
    }

    #[test]
    fn a_damaged_chunk_size_is_refused() {
        let (here, mut there) = (
            terms(Direction::Both, 1 << 16),
            terms(Direction::Both, 1 << 16),
        );
        there.chunk_bytes = 0;
        assert!(agree(&here, &there).is_err());
    }

    #[test]
    fn a_pool_without_end_is_refused() {
        let (here, mut there) = (
            terms(Direction::Both, 1 << 16),
            terms(Direction::Both, 1 << 16),
        );
        for depth in [0, 4097, u32::MAX] {
            there.depth = depth;
            assert!(agree(&here, &there).is_err(), "{depth}");
        }
    }
}
