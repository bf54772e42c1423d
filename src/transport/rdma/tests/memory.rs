//! Memory that the peer can write: what frees it, and what a peer can do to it. These tests need a device.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use tokio::sync::Mutex;

use super::*;
use crate::{
    Direction,
    faults::Faults,
    transport::{
        control::{
            noise::Role,
            seal::{Guard, StreamSeal},
            state::{RailState, State},
        },
        data::{
            frame::{Chain, HEADER_BYTES},
            receive::{ReceivePart, SharedReceiver},
        },
        rdma::{
            link::{Link, MemoryAccess, Posting, Region, SlotToken, UnconnectedQueuePair},
            link_setup::{FirstPools, LinkOffer, LinkPlan, LinkPorts},
            pool::PoolPlan,
            receive_path::RdmaReceive,
            renewal::RenewalShared,
            verbs::queue_pair::QueuePairConfig,
        },
    },
};

#[path = "../../../../tests/support/process.rs"]
#[allow(dead_code, reason = "the tests of streams use the rest")]
mod process;

const CHUNK: usize = 256 << 10;
const DEPTH: u32 = 4;
const SEED: u8 = 9;

const POOL: PoolPlan = PoolPlan {
    chunk_bytes: CHUNK,
    depth: DEPTH,
    copies: false,
};

/// A lock for the tests that pin memory, because one of them counts it.
pub(super) static ALONE: Mutex<()> = Mutex::const_new(());

/// Checks that as much is pinned now, but for what other tests pin, which is less than half a chunk.
#[track_caller]
fn assert_pinned(expected: u64) {
    let pinned = process::pinned_bytes();
    assert!(
        pinned.abs_diff(expected) < CHUNK as u64 / 2,
        "{pinned} bytes are pinned, and not {expected}"
    );
}

#[tokio::test]
async fn no_memory_is_freed_before_its_queue_pair() {
    let Some(config) = config() else { return };
    let _alone = ALONE.lock().await;
    let before = process::pinned_bytes();
    let pair = UnconnectedQueuePair::build(&config, Posting::Inline).unwrap();
    let slots = POOL.register(pair.owner(), MemoryAccess::Remote, 0);
    let mut slots = slots.unwrap();
    let all = process::pinned_bytes();
    let least = before + u64::from(DEPTH) * CHUNK as u64;
    assert!(all > least - CHUNK as u64 / 2, "{all}");
    // A renewal copies a slot to the heap, and a failure drops a slot.
    slots[0].unpin();
    drop(slots.pop());
    assert_pinned(all);
    // A user may hold a slot for longer than the link lives.
    drop(pair);
    // Each of the two slots that are left has room for a header beside its chunk.
    assert_pinned(before + CHUNK as u64 * 2);
    drop(slots);
    assert_pinned(before);
}

/// A peer that has the key, and writes any bytes into the slots of the other end.
struct HostilePeer {
    link: Link,
    slots: Vec<SlotToken>,
}

impl HostilePeer {
    /// Writes `region` into slot 0, whether that slot is granted or not.
    async fn write(&self, region: Region) {
        let mut write = self.link.write(region, HEADER_BYTES + CHUNK, self.slots[0]);
        let completion = poll_fn(|cx| write.poll(cx)).await;
        completion.result.unwrap();
    }
}

/// Returns a region that has a frame, the first of its stream, whose payload is all `value`.
fn frame(pair: &UnconnectedQueuePair, value: u8) -> Region {
    let mut payload = vec![value; CHUNK];
    let header = Chain::new(Guard::of_seed(SEED)).seal(0, &mut payload);
    let bytes = HEADER_BYTES + CHUNK;
    let mut region = pair.owner().register(bytes, MemoryAccess::Local).unwrap();
    region.bytes_mut()[..HEADER_BYTES].copy_from_slice(&header.encode());
    region.bytes_mut()[HEADER_BYTES..bytes].copy_from_slice(&payload);
    region
}

/// Returns a chunk of ones that was verified and lent to the user, after the peer has overwritten its slot with twos.
async fn rewritten(config: QueuePairConfig, copies: bool) -> Bytes {
    let plan = LinkPlan {
        ports: vec![LinkPorts {
            name: String::new(),
            remedy: "",
            queue_pair: config.clone(),
            posting: Posting::Inline,
        }],
        direction: Direction::Receive,
        pool: PoolPlan { copies, ..POOL },
        first_pools: FirstPools {
            send: false,
            receive: true,
        },
        renew_after: u64::MAX,
        ring: None,
        busy_poll: None,
        faults: Faults::default(),
        seal: StreamSeal::of_seed(SEED, Role::Dialer, None),
    };
    let ours = plan.open(0, true).unwrap();
    let pair = UnconnectedQueuePair::build(&config, Posting::Inline).unwrap();
    let [ones, twos] = [1, 2].map(|value| frame(&pair, value));
    let LinkOffer {
        endpoint,
        slots,
        nudge_page,
        ..
    } = ours.part();
    let theirs = LinkOffer {
        endpoint: pair.endpoint(),
        depth: 0,
        slots: Vec::new(),
        nudge_page,
        express: None,
    };
    let receive = ours.connect(theirs).await.unwrap().into_live().receive;
    let link = pair.connect(endpoint).await.unwrap();
    let peer = HostilePeer { link, slots };

    let state = RailState::new(&State::new("hostB".to_owned(), Direction::Receive, 2), 0);
    let renewal = Arc::new(RenewalShared::new(state.clone(), u64::MAX));
    let path = RdmaReceive::new(receive.unwrap(), renewal);
    let receiver = SharedReceiver::new(
        path,
        DEPTH,
        Chain::new(Guard::of_seed(SEED)),
        ReceivePart::Only,
        Faults::default(),
    );
    receiver.grant_all(&state);
    peer.write(ones).await;
    let next = |cx: &mut Context<'_>| match receiver.lock().next(&state, cx) {
        Some(chunk) => Poll::Ready(chunk),
        None => Poll::Pending,
    };
    let chunk = poll_fn(next).await;
    let bytes = receiver.lock().lend(&state, chunk);
    peer.write(twos).await;
    bytes
}

#[tokio::test]
async fn a_peer_cannot_change_a_chunk_that_was_copied() {
    let Some(config) = config() else { return };
    let _alone = ALONE.lock().await;
    let lent = rewritten(config.clone(), false).await;
    assert!(
        lent == vec![2; CHUNK],
        "the peer did not rewrite the slot, so the test measures nothing"
    );
    let copied = rewritten(config, true).await;
    assert!(copied == vec![1; CHUNK], "the peer changed the copy");
}
