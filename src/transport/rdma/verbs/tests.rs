//! Two queue pairs of this process, on a real device.

mod safe_calls;

use std::{io, ops::Range, sync::Arc, time::Duration};

use tokio::io::{Interest, unix::AsyncFd};

use super::{
    completions::{Completion, CompletionQueue},
    device::ProtectionDomain,
    memory::MemoryRegion,
    queue_pair::QueuePair,
    sizes::QueueSizes,
};
use crate::transport::rdma::{tests::config, verbs::queue_pair_config::QueuePairConfig};

const SIZES: QueueSizes = QueueSizes {
    sends: 8,
    receives: 8,
    inline_bytes: 64,
};

/// A completion that takes so long does not come.
const HANGS: Duration = Duration::from_secs(300);

/// The bytes of the memory of each end.
const BYTES: usize = 20_000;

fn end(config: &QueuePairConfig) -> QueuePair {
    let domain = Arc::new(ProtectionDomain::open(&config.device).unwrap());
    let memory = MemoryRegion::register(&domain, BYTES).unwrap();
    let completions = Arc::new(CompletionQueue::new(&domain, 32).unwrap());
    QueuePair::new(&completions, memory, config, SIZES).unwrap()
}

fn connected(config: &QueuePairConfig) -> [QueuePair; 2] {
    let (mut one, mut two) = (end(config), end(config));
    let addresses = [one.address(config).unwrap(), two.address(config).unwrap()];
    one.connect(config, addresses[1]).unwrap();
    two.connect(config, addresses[0]).unwrap();
    [one, two]
}

/// Waits for the next completion, through the descriptor.
async fn next(pair: &QueuePair) -> Completion {
    let completions = Arc::clone(pair.completions());
    // SAFETY: the completion queue keeps its descriptor open, and the registration owns it.
    #[allow(unsafe_code)]
    let events = unsafe { AsyncFd::register_with_interest(completions, Interest::READABLE) };
    let events = events.unwrap();
    let waiting = async {
        loop {
            if let Some(completion) = pair.completions().poll_one().unwrap() {
                return completion;
            }
            pair.completions().arm().unwrap();
            if let Some(completion) = pair.completions().poll_one().unwrap() {
                return completion;
            }
            let mut ready = events.readable().await.unwrap();
            match pair.completions().take_event() {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) => panic!("{error}"),
            }
        }
    };
    let came = tokio::time::timeout(HANGS, waiting).await;
    came.expect("a completion")
}

#[tokio::test]
async fn sends_of_every_size_arrive() {
    let Some(config) = config() else { return };
    let [mut one, mut two] = connected(&config);
    for (id, length) in (0..).zip([1, 32, 64, 65, 1024, 4096, BYTES]) {
        let bytes: Vec<u8> = (0..=250).cycle().take(length).collect();
        let range: Range<usize> = BYTES - length..BYTES;
        two.post_receive(id, &range).unwrap();
        one.write(range.start, &bytes);
        one.post_send(id, &range, false).unwrap();
        let Completion {
            id: receive,
            result,
        } = next(&two).await;
        assert_eq!((receive, result.unwrap()), (id, length));
        let mut arrived = vec![0; length];
        two.read(range.start, &mut arrived);
        assert!(arrived == bytes, "{length} bytes");
    }
    assert!(one.completions().poll_one().unwrap().is_none());
}

#[tokio::test]
async fn a_signalled_send_completes() {
    let Some(config) = config() else { return };
    let [mut one, mut two] = connected(&config);
    two.post_receive(7, &(0..100)).unwrap();
    one.post_send(9, &(0..100), true).unwrap();
    assert!(matches!(
        next(&one).await,
        Completion {
            id: 9,
            result: Ok(_)
        }
    ));
}

/// Every work request that is posted completes with an error.
#[tokio::test]
async fn a_broken_queue_pair_fails_its_work_requests() {
    let Some(config) = config() else { return };
    let [mut one, mut two] = connected(&config);
    one.post_receive(1, &(0..100)).unwrap();
    two.post_receive(2, &(0..10)).unwrap();
    // The frame is longer than the receive, which breaks both ends.
    one.post_send(3, &(0..100), false).unwrap();
    let failed = next(&two).await;
    assert!((failed.id, failed.result.is_err()) == (2, true));
    let first = next(&one).await;
    assert!((first.id, first.result.is_err()) == (3, true));
    let second = next(&one).await;
    assert!((second.id, second.result.is_err()) == (1, true));
}

#[test]
fn a_device_that_does_not_exist_is_an_error() {
    let Some(config) = config() else { return };
    let error = ProtectionDomain::open("no_such")
        .err()
        .map(|error| error.kind());
    assert_eq!(error, Some(io::ErrorKind::NotFound));
    let domain = ProtectionDomain::open(&config.device).unwrap();
    assert!(domain.gid(config.port, 60_000).is_err());
    assert_eq!(domain.lid(config.port).ok(), Some(0), "RoCE has none");
}
