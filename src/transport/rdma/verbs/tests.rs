//! Two queue pairs of this process, on a real device; and what a careless or hostile program can call without `unsafe`:
//! each call works, fails or panics, and touches no memory that is not its own.

use std::{
    io,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use tokio::io::{Interest, unix::AsyncFd};

use super::{
    device::{Completion, CompletionQueue, ProtectionDomain},
    memory::MemoryRegion,
    queue_pair::{QueuePair, QueuePairConfig, QueueSizes},
};
use crate::transport::rdma::{
    tests::config,
    verbs::operation::{PairFault, VerbsOperation},
};

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

/// Two connected queue pairs, of which the second has memory that the first may write and read.
fn sharing(config: &QueuePairConfig) -> [QueuePair; 2] {
    let end = |is_shared: bool| {
        let domain = Arc::new(ProtectionDomain::open(&config.device).unwrap());
        let memory = if is_shared {
            MemoryRegion::register_shared(&domain, BYTES)
        } else {
            MemoryRegion::register(&domain, BYTES)
        };
        let completions = Arc::new(CompletionQueue::new(&domain, 16).unwrap());
        let queues = [&completions, &completions];
        QueuePair::exact(queues, memory.unwrap(), config, SIZES).unwrap()
    };
    let (mut one, mut two) = (end(false), end(true));
    let addresses = [one.address(config).unwrap(), two.address(config).unwrap()];
    let answered = [&one, &two].map(|pair| pair.read_depths().unwrap().answered);
    one.connect_for_reads(config, addresses[1], answered[1])
        .unwrap();
    two.connect_for_reads(config, addresses[0], answered[0])
        .unwrap();
    [one, two]
}

#[tokio::test]
async fn a_write_is_read_back_and_seen_without_a_receive() {
    let Some(config) = config() else { return };
    let [mut one, mut two] = sharing(&config);
    let region = two.remote();
    assert!((BYTES as u64..2 * BYTES as u64).contains(&region.bytes()));
    one.write(0, b"over there");
    one.post(&VerbsOperation::write(1, 0..10, 5000), Some(&region))
        .unwrap();
    one.post(&VerbsOperation::read(2, 100..110, 5000), Some(&region))
        .unwrap();
    for id in [1, 2] {
        let completion = next(&one).await;
        assert_eq!((completion.id, completion.result.is_ok()), (id, true));
    }
    let mut copies = [[0; 10]; 2];
    one.read(100, &mut copies[0]);
    two.read(5000, &mut copies[1]);
    assert_eq!(copies, [*b"over there"; 2]);
    assert_eq!(two.poll_byte(5009), b'e');
    assert!(two.completions().poll_one().unwrap().is_none());

    // An empty message is a message.
    two.post_receive(3, &(0..0)).unwrap();
    one.post(&VerbsOperation::send(4, 0..0), None).unwrap();
    let completion = next(&two).await;
    assert_eq!((completion.id, completion.result.unwrap()), (3, 0));
}

#[tokio::test]
async fn memory_without_rights_for_a_peer_cannot_be_written() {
    let Some(config) = config() else { return };
    let [one, mut two] = sharing(&config);
    let region = one.remote();
    two.write(0, &[7; 10]);
    two.post(&VerbsOperation::write(1, 0..10, 0), Some(&region))
        .unwrap();
    assert!(next(&two).await.result.is_err());
    let mut bytes = [1; 10];
    one.read(0, &mut bytes);
    assert_eq!(bytes, [0; 10]);
}

#[test]
fn work_requests_that_cannot_be_are_errors() {
    let Some(config) = config() else { return };
    let [mut one, two] = sharing(&config);
    let region = two.remote();
    let kind = |error: io::Result<()>| error.unwrap_err().kind();
    let write = VerbsOperation::write(1, 0..10, 0);
    assert_eq!(kind(one.post(&write, None)), io::ErrorKind::InvalidInput);
    for beyond in [BYTES * 2, usize::MAX] {
        let write = VerbsOperation::write(1, 0..10, beyond);
        let posted = one.post(&write, Some(&region));
        assert_eq!(kind(posted), io::ErrorKind::InvalidInput);
    }
    for inline in [
        VerbsOperation::read(1, 0..10, 0),
        VerbsOperation::write(1, 0..one.inline_bytes() + 1, 0),
    ] {
        let inline = VerbsOperation {
            is_inline: true,
            ..inline
        };
        let posted = one.post(&inline, Some(&region));
        assert_eq!(kind(posted), io::ErrorKind::InvalidInput);
    }
    let mut alone = end(&config);
    let posted = alone.post(&VerbsOperation::send(1, 0..10), None);
    assert_eq!(kind(posted), io::ErrorKind::NotConnected);
    // Such a READ would never complete on soft-RoCE.
    let [mut without_reads, _peer] = connected(&config);
    let posted = without_reads.post(&VerbsOperation::read(1, 0..10, 0), Some(&region));
    assert_eq!(kind(posted), io::ErrorKind::Unsupported);
}

/// A queue of unsignalled sends fills up, although each of them is complete.
#[test]
fn a_full_queue_is_an_error() {
    let Some(config) = config() else { return };
    let [mut one, two] = sharing(&config);
    let region = two.remote();
    let write = VerbsOperation {
        is_signalled: false,
        ..VerbsOperation::write(1, 0..1, 0)
    };
    // A device may make its queues a little longer than it was asked to.
    let mut posts = (0..100_000).map(|_| one.post(&write, Some(&region)));
    if let Some(error) = posts.find_map(Result::err) {
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory, "{error}");
    }
}

#[test]
fn places_outside_the_memory_panic() {
    let Some(config) = config() else { return };
    let [mut one, _two] = sharing(&config);
    let mut panics = |call: &mut dyn FnMut(&mut QueuePair)| {
        let call = AssertUnwindSafe(|| call(&mut one));
        assert!(catch_unwind(call).is_err());
    };
    panics(&mut |pair| pair.write(usize::MAX, b"ab"));
    panics(&mut |pair| pair.write(BYTES * 2, b""));
    panics(&mut |pair| pair.read(usize::MAX - 1, &mut [0; 8]));
    panics(&mut |pair| pair.set_byte(usize::MAX, 1));
    panics(&mut |pair| assert_eq!(pair.poll_byte(BYTES * 2), 0));
    #[allow(clippy::reversed_empty_ranges, reason = "that is the question")]
    for range in [0..BYTES * 2, 20..10, BYTES * 2..BYTES * 2] {
        panics(&mut |pair| pair.post_receive(1, &range).unwrap());
        let send = VerbsOperation::send(1, range.clone());
        panics(&mut |pair| pair.post(&send, None).unwrap());
    }
}

#[test]
fn a_completion_queue_has_room_for_all_of_its_queue_pairs() {
    let Some(config) = config() else { return };
    let domain = Arc::new(ProtectionDomain::open(&config.device).unwrap());
    let completions = Arc::new(CompletionQueue::new(&domain, 32).unwrap());
    let make = |sizes: QueueSizes| {
        let memory = MemoryRegion::register(&domain, 1).unwrap();
        QueuePair::new(&completions, memory, &config, sizes)
    };
    let refusal = |sizes| make(sizes).err().map(|error| error.kind());
    let first = make(SIZES).unwrap();
    let _second = make(SIZES).unwrap();
    assert_eq!(refusal(SIZES), Some(io::ErrorKind::InvalidInput));
    drop(first);
    let third = make(SIZES).unwrap();
    drop(third);
    let sends = QueueSizes {
        sends: u32::MAX,
        ..SIZES
    };
    assert_eq!(refusal(sends), Some(io::ErrorKind::InvalidInput));
    assert!(CompletionQueue::new(&domain, u32::MAX).is_err());
    assert!(CompletionQueue::new(&domain, 1 << 30).is_err());
    assert!(MemoryRegion::register(&domain, usize::MAX).is_err());
    assert!(MemoryRegion::register(&domain, 1 << 60).is_err());
}

#[test]
fn too_many_bytes_inline_are_refused_or_become_fewer() {
    let Some(config) = config() else { return };
    let domain = Arc::new(ProtectionDomain::open(&config.device).unwrap());
    let completions = Arc::new(CompletionQueue::new(&domain, 32).unwrap());
    let memory = || MemoryRegion::register(&domain, 1).unwrap();
    let sizes = QueueSizes {
        inline_bytes: u32::MAX,
        ..SIZES
    };
    let queues = [&completions, &completions];
    let fault = QueuePair::exact(queues, memory(), &config, sizes).err();
    assert!(
        matches!(fault, Some(PairFault::Inline { most }) if (1..1 << 16).contains(&most)),
        "{fault:?}"
    );
    let fewer = QueuePair::new(&completions, memory(), &config, sizes).unwrap();
    assert!(fewer.inline_bytes() < 1 << 16);
}

#[test]
fn two_protection_domains_panic_before_a_device_sees_them() {
    let Some(config) = config() else { return };
    let domain = || Arc::new(ProtectionDomain::open(&config.device).unwrap());
    let (one, two) = (domain(), domain());
    let queue = |domain| Arc::new(CompletionQueue::new(domain, 32).unwrap());
    let (of_one, of_two) = (queue(&one), queue(&two));
    for queues in [[&of_one, &of_two], [&of_two, &of_one], [&of_two, &of_two]] {
        let memory = MemoryRegion::register(&one, 1).unwrap();
        let make = || QueuePair::exact(queues, memory, &config, SIZES).is_ok();
        assert!(catch_unwind(AssertUnwindSafe(make)).is_err());
    }
}

/// A wait ends at its limit, and an endless limit is none too long for the kernel.
#[tokio::test]
async fn an_event_is_waited_for_with_any_limit() {
    let Some(config) = config() else { return };
    let [mut one, two] = sharing(&config);
    let completions = Arc::clone(one.completions());
    completions.arm().unwrap();
    assert!(!completions.wait_event(Duration::ZERO).unwrap());
    let write = VerbsOperation::write(1, 0..1, 0);
    one.post(&write, Some(&two.remote())).unwrap();
    while !completions.wait_event(Duration::MAX).unwrap() {}
    assert_eq!(completions.poll_one().unwrap().unwrap().id, 1);
}
