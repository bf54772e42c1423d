//! One queue pair, and the memory registered with it: the only file that names async-rdma. A posted work request is a
//! future of async-rdma, and is posted by the first poll.
//!
//! What that crate does behind these calls was found by running it:
//!
//! - A work request is posted when its future is polled for the first time. So each future is polled at once, in the
//!   order of the calls, which is the order on the wire.
//! - With hardware, to post a write takes next to no time. With a software device it is a system call that does all of
//!   the device's work: a separate thread can make it (see [`Posting`]), and returns the future when it is posted.
//! - A dropped future leaves its work request posted: async-rdma keeps the memory of a write until it has completed,
//!   and a receive still takes one of the peer's writes. Both end with the link, so futures are dropped only with the
//!   link.
//! - `retry_cnt` 7 retries forever on soft-RoCE; 6 does not.
//! - The immediate value of a receive is not reliable, so it is not used.
//! - Everything registered here uses async-rdma's raw strategy: its allocator keeps devices and
//!   memory for the life of the process.
//! - The connection modes of the crate mean an agent, a sleep of one second, and 512 bytes a message; so endpoints are
//!   exchanged on the control connection.
//! - A waiting receive does not notice that its peer died. The control connection does.
//! - Path MTU, GID index and numbers of work requests are all set, because the defaults are poor. Packet sequence
//!   numbers are random, so a late packet of a dead connection fits no new one.
//!
//! # Teardown
//!
//! The order is: operations, then the queue pair, then the memory. [`QueuePairOwner`] holds all memory that was
//! registered with its queue pair, and drops the memory after it: a slot that is dropped earlier, by a reader, by an
//! error or by a renewal, frees nothing while the peer could still write it. Each write owns the region that it is made
//! from and a reference to its queue pair. A write that the posting thread has not posted yet is dropped by that
//! thread, which ends with the link. A region that outlives its queue pair does no harm; lent slots do so, for as long
//! as their holder keeps them.

use std::{
    alloc::Layout,
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError, mpsc},
    task::{Context, Poll, Waker, ready},
    thread,
    time::{Duration, SystemTime},
};

use async_rdma::{
    AccessFlag, ConnectionType, LocalMr, LocalMrReadAccess, LocalMrWriteAccess, MRManageStrategy,
    MTU, MrAccess, MrTokenBuilder, QueuePairEndpoint, Rdma, RdmaBuilder, RemoteMr,
};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::verbs::queue_pair::QueuePairConfig;

/// The alignment of registered memory: a page.
const PAGE_BYTES: usize = 4096;

/// The local ACK timeout of the queue pair, as the exponent that verbs take: 4.096 us x 2^17 = 0.54 s. With six
/// retries, a lost link is detected after some 4 s, and a second without a cable is survived.
pub(super) const ACK_TIMEOUT: u8 = 17;

/// The number of retries before a write fails. 7 would retry forever on soft-RoCE.
pub(super) const RETRIES: u8 = 6;

/// The retries for a receiver that is not ready; 7 does not count them. A receive is always posted before its slot is
/// granted, so such a receiver is ready in a moment.
pub(super) const RNR_RETRIES: u8 = 7;

/// How long a completion may be missed. The crate re-arms its completion queue and then does not poll it once more, so
/// a completion between the two waits for the next one, or for this time. On an idle link it costs a wake-up each time,
/// so it is long: [`nudge`](super::nudge) finds such completions sooner. With one second, an idle pair took 0.20% of a
/// processor at native speed.
pub(super) const COMPLETION_LIMIT: Duration = Duration::from_secs(2);

/// The most writes of [`nudge`](super::nudge) in one pause, for which the queues have room.
pub(super) const MOST_NUDGES: u32 = 4;

/// The number of completions that are polled at once.
const POLLED_AT_ONCE: i32 = 16;

/// The least length of the completion queue, which must be longer than the number polled at once.
const QUEUE_LENGTH: u32 = 32;

/// The address of a queue pair, for the peer to connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Endpoint(QueuePairEndpoint);

/// The address and the key with which the peer writes one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SlotToken {
    address: u64,
    bytes: u32,
    key: u32,
}

impl SlotToken {
    /// Returns a token with a wrong key: a write with it breaks the link.
    pub(crate) fn forged(self) -> Self {
        Self {
            key: !self.key,
            ..self
        }
    }
}

/// A queue pair, and all memory that was registered with it, in the order in which they are dropped. As long as the
/// queue pair is up, the peer's device may write into that memory. So the memory is kept here until the queue pair is
/// destroyed, also if its user drops it earlier.
pub(crate) struct QueuePairOwner {
    rdma: Rdma,
    regions: Mutex<Vec<Arc<dyn Send + Sync>>>,
}

/// A queue pair that is not connected yet.
pub(crate) struct UnconnectedQueuePair {
    pair: QueuePairOwner,
    posting: Posting,
}

/// Which thread posts the writes of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Posting {
    /// The thread that makes the write.
    Inline,
    /// A separate thread of the link.
    Thread,
}

/// A connected queue pair. The last clone or the last work request destroys it.
#[derive(Clone)]
pub(crate) struct Link {
    pair: Arc<QueuePairOwner>,
    poster: Option<PostingThread>,
}

impl UnconnectedQueuePair {
    /// Opens the device and makes a queue pair. Its completions are polled in this runtime.
    pub(crate) fn build(config: &QueuePairConfig, posting: Posting) -> io::Result<Self> {
        RdmaBuilder::default()
            .set_conn_type(ConnectionType::RCIBV)
            .set_raw(true)
            .set_mr_strategy(MRManageStrategy::Raw)
            .set_dev(&config.device)
            .set_port_num(config.port)
            .set_gid_index(config.gid_index)
            .set_mtu(mtu(config.mtu))
            .set_sq_psn(config.send_psn)
            .set_rq_psn(config.receive_psn)
            .set_qp_max_send_wr(config.depth + MOST_NUDGES)
            // One more for the frame that proves the path.
            .set_qp_max_recv_wr(config.depth + 1)
            .set_qp_max_send_sge(1)
            .set_qp_max_recv_sge(1)
            .set_cq_size((2 * config.depth + MOST_NUDGES + 2).max(QUEUE_LENGTH))
            .set_max_cqe(POLLED_AT_ONCE)
            .set_qp_access(AccessFlag::LocalWrite | AccessFlag::RemoteWrite)
            .set_mr_access(AccessFlag::LocalWrite.into())
            .set_traffic_class(config.traffic_class)
            .set_service_level(config.service_level)
            .set_pkey_index(config.pkey_index)
            .set_timeout(ACK_TIMEOUT)
            .set_retry_cnt(RETRIES)
            .set_rnr_retry(RNR_RETRIES)
            .set_min_rnr_timer(1)
            .set_cc_evnet_timeout(COMPLETION_LIMIT)
            .build()
            .map(|rdma| Self {
                pair: QueuePairOwner {
                    rdma,
                    regions: Mutex::default(),
                },
                posting,
            })
    }

    /// Returns the address of this queue pair, for the peer.
    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint(self.pair.rdma.get_qp_endpoint())
    }

    /// Returns the owner of the queue pair, with which memory is registered.
    pub(crate) fn owner(&self) -> &QueuePairOwner {
        &self.pair
    }

    /// Connects to the peer's queue pair. Nothing may be written before the peer has connected as well.
    /// Fails when the two ends do not match, for instance because there is no GID or no route.
    pub(crate) async fn connect(mut self, peer: Endpoint) -> io::Result<Link> {
        self.pair.rdma.ibv_connect(peer.0).await?;
        let poster = match self.posting {
            Posting::Inline => None,
            Posting::Thread => Some(PostingThread::start()?),
        };
        Ok(Link {
            pair: Arc::new(self.pair),
            poster,
        })
    }
}

impl QueuePairOwner {
    /// Allocates and registers `bytes` of zeroed memory, which is freed after the queue pair was destroyed and the
    /// region dropped.
    /// Fails most often with [`io::ErrorKind::OutOfMemory`]: the memlock limit.
    #[allow(unsafe_code)]
    pub(crate) fn register(&self, bytes: usize, reach: MemoryAccess) -> io::Result<Region> {
        let layout = Layout::from_size_align(bytes, PAGE_BYTES).map_err(io::Error::other)?;
        let access = match reach {
            MemoryAccess::Local => AccessFlag::LocalWrite.into(),
            MemoryAccess::Remote => AccessFlag::LocalWrite | AccessFlag::RemoteWrite,
        };
        let rdma = &self.rdma;
        // SAFETY: the region is filled below, before anything reads it.
        let mut region = unsafe { rdma.alloc_local_mr_uninit_with_access(layout, access)? };
        // Registered before the first byte is written: the kernel makes all pages at once, and not one for each fault.
        // SAFETY: the region has that many bytes, and nothing else uses them yet.
        unsafe { region.as_mut_ptr_unchecked().write_bytes(0, bytes) };
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        regions.push(region.get_inner().clone());
        Ok(Region(region))
    }
}

/// Which end may write a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryAccess {
    /// Only this end.
    Local,
    /// The peer as well.
    Remote,
}

/// A memory region. The crate frees the memory before it deregisters it. That is harmless, because no work request uses
/// it then: work requests own their regions, and the peer's writes end with the queue pair, which keeps the memory
/// ([`QueuePairOwner`]).
pub(crate) struct Region(LocalMr);

impl Region {
    /// Returns the address and the key of the region, for the peer to write it.
    pub(crate) fn token(&self) -> SlotToken {
        SlotToken {
            address: self.0.addr() as u64,
            bytes: u32::try_from(self.0.length()).unwrap_or(u32::MAX),
            key: self.0.rkey(),
        }
    }

    /// Returns a copy of the first `N` bytes, or `None` if the region is shorter. Each byte is read once, whatever the
    /// peer writes meanwhile.
    #[allow(unsafe_code)]
    pub(crate) fn first<const N: usize>(&self) -> Option<[u8; N]> {
        if self.0.length() < N {
            return None;
        }
        let start = self.0.as_ptr_unchecked().cast::<[u8; N]>();
        // SAFETY: the region has at least `N` initialised bytes for as long as `self.0` lives, and bytes need no
        // alignment. The peer's device may write them at the same time. So the read is volatile: the compiler cannot
        // read the memory again in place of the copy, and every value of a byte is a valid one.
        Some(unsafe { start.read_volatile() })
    }

    /// Copies the first bytes of the region into `copy`, which must not be longer than the region.
    #[allow(unsafe_code)]
    pub(crate) fn copy_to(&self, copy: &mut [u8]) {
        assert!(copy.len() <= self.0.length(), "the region is shorter");
        let start = self.0.as_ptr_unchecked();
        // SAFETY: the region has that many initialised bytes for as long as `self.0` lives, and `copy` is other memory.
        // The peer's device may write the region at the same time. No reference to the region is made, and every value
        // of a byte is a valid one.
        unsafe { start.copy_to_nonoverlapping(copy.as_mut_ptr(), copy.len()) };
    }

    /// Returns the bytes of the region. Two reads of a byte may differ if the peer can write the region and breaks the
    /// protocol.
    #[allow(unsafe_code)]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the region is that many initialised bytes (it is allocated zeroed) for as long as
        // `self.0` lives. This end does not write them meanwhile: its only operation on a region, the
        // write that reads from it, owns it until it has completed, so that this cannot be called then.
        // A peer that keeps the protocol writes only slots that were granted to it, and a granted slot is in the
        // hands of the receiving path, which does not read it before the peer's write has completed.
        //
        // A peer that has the key and breaks the protocol can change the bytes of its slots under a reader, for as long
        // as the link lives: to take the right from it for one chunk would be to register the slot again for the next.
        // So no code of this crate reads such a byte twice and relies on both reads being equal. The header, on which
        // lengths depend, is copied once (`first`). The payload is digested, and then copied or lent to the user, whose
        // documentation says so (`ReadHalf::read_chunk`); with `StreamConfig::copy_received` this is not called for
        // received frames. Every value of a byte is valid.
        unsafe { self.0.as_slice_unchecked() }
    }

    /// Returns the bytes of the region, to be filled.
    #[allow(unsafe_code)]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the region is initialised and no operation uses it, as argued in `bytes`; `&mut self` is
        // the only reference to it.
        unsafe { self.0.as_mut_slice_unchecked() }
    }
}

impl Link {
    /// Returns the owner of the queue pair, with which memory is registered.
    pub(crate) fn owner(&self) -> &QueuePairOwner {
        &self.pair
    }

    /// Posts a write of the first `bytes` of `region` into the peer's slot, which completes one of the receives that
    /// the peer has posted. The region is returned with the completion.
    pub(crate) fn write(
        &self,
        region: Region,
        bytes: usize,
        slot: SlotToken,
    ) -> WorkRequest<WriteCompletion> {
        let link = Arc::clone(&self.pair);
        let write = async move {
            let result = match (region.0.get(0..bytes), remote(slot)) {
                (Some(local), Ok(mut remote)) => {
                    let written = link.rdma.write_with_imm(&local, &mut remote, 0).await;
                    written.map_err(brief)
                }
                (None, _) => Err(io::ErrorKind::InvalidInput.into()),
                (_, Err(error)) => Err(error),
            };
            WriteCompletion { result, region }
        };
        self.post(write)
    }

    /// Posts a write on the posting thread, if the link has one. With a software device, a thread that posts a write
    /// can also have to do the device's work for the writes that other threads post during that time.
    fn post<T: Send + 'static>(
        &self,
        write: impl Future<Output = T> + Send + 'static,
    ) -> WorkRequest<T> {
        match &self.poster {
            Some(poster) => poster.post(write),
            None => WorkRequest::post(write),
        }
    }

    /// Posts a write of the first byte of `from` into the peer's memory `target`. It completes one of the receives that
    /// the peer has posted, or none.
    pub(crate) fn write_byte(
        &self,
        from: &Arc<Region>,
        target: SlotToken,
        completes_receive: bool,
    ) -> WorkRequest<io::Result<()>> {
        let (link, from) = (Arc::clone(&self.pair), Arc::clone(from));
        self.post(async move {
            let byte = from.0.get(0..1);
            let byte = byte.ok_or(io::ErrorKind::InvalidInput)?;
            let mut target = remote(target)?;
            let written = if completes_receive {
                link.rdma.write_with_imm(&byte, &mut target, 0).await
            } else {
                link.rdma.write(&byte, &mut target).await
            };
            written.map_err(brief)
        })
    }

    /// Posts a receive, which one write of the peer completes.
    pub(crate) fn receive(&self) -> WorkRequest<io::Result<()>> {
        let link = Arc::clone(&self.pair);
        WorkRequest::post(async move {
            // The payload goes to its slot; the receive only says that it has arrived.
            let received = link.rdma.receive_raw_with_imm(Layout::new::<u8>()).await;
            received.map(drop).map_err(brief)
        })
    }
}

/// The completion of a write, and the memory that was written.
pub(crate) struct WriteCompletion {
    /// `Ok` if the peer's device has acknowledged the write.
    pub(crate) result: io::Result<()>,
    /// The memory, which is free again.
    pub(crate) region: Region,
}

/// Returns the name of a failed completion, such as "Transport Retry Counter Exceeded", without the paragraph of the
/// manual that async-rdma appends.
fn brief(error: io::Error) -> io::Error {
    let text = error.to_string();
    match text.split_once(": ") {
        Some((name, _)) if error.raw_os_error().is_none() => {
            io::Error::new(error.kind(), name.to_owned())
        }
        _ => error,
    }
}

fn remote(slot: SlotToken) -> io::Result<RemoteMr> {
    let token = MrTokenBuilder::default()
        .addr(usize::try_from(slot.address).map_err(io::Error::other)?)
        .len(slot.bytes as usize)
        .rkey(slot.key)
        .ddl(SystemTime::UNIX_EPOCH)
        .access(AccessFlag::LocalWrite | AccessFlag::RemoteWrite)
        .build()
        .map_err(io::Error::other)?;
    Ok(RemoteMr::new(token))
}

fn mtu(bytes: u32) -> MTU {
    match bytes {
        4096.. => MTU::MTU4096,
        2048.. => MTU::MTU2048,
        1024.. => MTU::MTU1024,
        512.. => MTU::MTU512,
        _ => MTU::MTU256,
    }
}

/// A posted work request. Work requests are posted in the order in which they are made.
pub(crate) struct WorkRequest<T>(RequestState<T>);

/// A future of async-rdma, which completes with its work request.
type Operation<T> = Pin<Box<dyn Future<Output = T> + Send>>;

enum RequestState<T> {
    /// The first poll found the request complete.
    Done(Option<T>),
    /// The request is posted, and its future is polled here.
    Here(Operation<T>),
    /// The request is in the queue of the thread that posts it.
    Elsewhere(oneshot::Receiver<RequestState<T>>),
}

impl<T> RequestState<T> {
    /// Posts a work request by the first poll of its future.
    fn begin(mut operation: Operation<T>) -> Self {
        let mut cx = Context::from_waker(Waker::noop());
        match operation.as_mut().poll(&mut cx) {
            Poll::Ready(output) => Self::Done(Some(output)),
            Poll::Pending => Self::Here(operation),
        }
    }
}

impl<T> WorkRequest<T> {
    pub(super) fn post(operation: impl Future<Output = T> + Send + 'static) -> Self {
        Self(RequestState::begin(Box::pin(operation)))
    }

    pub(crate) fn done(output: T) -> Self {
        Self(RequestState::Done(Some(output)))
    }

    /// Waits for the completion.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<T> {
        if let RequestState::Elsewhere(posted) = &mut self.0 {
            // The thread ends only with the link, so without an answer this link is being destroyed.
            let progress = ready!(Pin::new(posted).poll(cx));
            self.0 = progress.unwrap_or(RequestState::Done(None));
        }
        match &mut self.0 {
            RequestState::Done(output) => output.take().map_or(Poll::Pending, Poll::Ready),
            RequestState::Here(operation) => operation.as_mut().poll(cx),
            RequestState::Elsewhere(_) => Poll::Pending,
        }
    }
}

/// A thread that posts work requests in the order of a queue. It ends with the last owner of the queue.
#[derive(Clone)]
pub(super) struct PostingThread(mpsc::Sender<PostRequest>);

/// Posts a work request, and returns its future to the one who waits for it.
type PostRequest = Box<dyn FnOnce() + Send>;

impl PostingThread {
    pub(super) fn start() -> io::Result<Self> {
        let (queue, requests) = mpsc::channel::<PostRequest>();
        let post = move || requests.into_iter().for_each(|request| request());
        thread::Builder::new()
            .name("poster".to_owned())
            .spawn(post)?;
        Ok(Self(queue))
    }

    /// Queues a work request.
    pub(super) fn post<T: Send + 'static>(
        &self,
        operation: impl Future<Output = T> + Send + 'static,
    ) -> WorkRequest<T> {
        let (back, returned) = oneshot::channel();
        let operation: Operation<T> = Box::pin(operation);
        let request = move || {
            // The stream of a closed channel is gone.
            if !back.is_closed() {
                let _ = back.send(RequestState::begin(operation));
            }
        };
        // The thread runs as long as this queue has an owner.
        let _ = self.0.send(Box::new(request));
        WorkRequest(RequestState::Elsewhere(returned))
    }
}
