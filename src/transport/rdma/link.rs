//! One queue pair, and the memory registered with it: the only file that names async-rdma.
//!
//! What that crate does behind these few calls, and why they are made in this way, was found by
//! running it:
//!
//! - An operation is posted when its future is polled for the first time, so that is done at once, in the
//!   order of the calls: the order on the wire.
//! - To post a write is next to nothing with hardware. Where the device is software it is a system call that
//!   does all of the device's work: a thread of its own can do that (see [`Posting`]), and hands
//!   the operation back when it is posted.
//! - A future that is dropped leaves its operation posted: the crate keeps the memory of a write
//!   until it has completed, and a receive goes on eating the peer's writes. Both end with the
//!   link, so operations are only ever dropped together with it.
//! - `retry_cnt` 7 means for ever on soft-RoCE; 6 does not.
//! - The immediate value of a receive is not reliable, so nobody looks at it.
//! - Everything registered here uses the crate's raw strategy: its allocator keeps devices and
//!   memory for the life of the process.

use std::{
    alloc::Layout,
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, mpsc},
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

/// Memory is registered in whole pages.
const PAGE_BYTES: usize = 4096;

/// Local ACK timeout of the queue pair, as the exponent that verbs want: 4.096 us x 2^17 = 0.54 s. Six
/// retries of that make a lost link known after some 4 s, while a second without a cable is survived.
const ACK_TIMEOUT: u8 = 17;

/// Retries before a write fails. See the module for 7.
const RETRIES: u8 = 6;

/// A receive is always posted before its slot is granted, so a receiver that is not ready is the
/// hardware's own moment between the two: 7 waits for it without counting.
const RNR_RETRIES: u8 = 7;

/// How long a completion may go unnoticed: the crate re-arms its completion queue and then does not
/// look once more, so one that came in between waits for this, unless another one comes. An idle
/// link looks so often, which costs a wake-up each time.
const COMPLETION_LIMIT: Duration = Duration::from_millis(25);

/// Completions taken from the queue in one go.
const POLLED_AT_ONCE: i32 = 16;

/// Least length of the completion queue: the crate wants it longer than what it takes in one go.
const QUEUE_LENGTH: u32 = 32;

/// Where a queue pair lives, and what both ends must have agreed on before either can build it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueuePairConfig {
    /// The device's name.
    pub(crate) device: String,
    /// The device's port, from 1.
    pub(crate) port: u8,
    /// The row of the port's GID table.
    pub(crate) gid_index: usize,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096.
    pub(crate) mtu: u32,
    /// First packet sequence number of what this end sends, 24 bits.
    pub(crate) send_psn: u32,
    /// First packet sequence number of what the peer sends, 24 bits.
    pub(crate) receive_psn: u32,
    /// Most operations of each kind at once.
    pub(crate) depth: u32,
    /// Traffic class of each packet.
    pub(crate) traffic_class: u8,
    /// Service level, 0 to 15.
    pub(crate) service_level: u8,
    /// Row of the partition key table.
    pub(crate) pkey_index: u16,
}

/// How the peer reaches this end's queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Endpoint(QueuePairEndpoint);

/// How the peer writes one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SlotToken {
    address: u64,
    bytes: u32,
    key: u32,
}

/// A queue pair that is not connected yet.
pub(crate) struct UnconnectedQueuePair {
    rdma: Rdma,
    posting: Posting,
}

/// Who posts a link's writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Posting {
    /// Whoever makes them.
    Inline,
    /// A thread of the link's own.
    Thread,
}

/// Where a thread takes the writes that it posts from. It ends with the last of these.
type PostingThread = mpsc::Sender<PostRequest>;

/// A write to be posted, and the way back for it.
type PostRequest = (
    Operation<WriteCompletion>,
    oneshot::Sender<RequestState<WriteCompletion>>,
);

/// A connected queue pair. It is torn down with the last clone and the last operation.
#[derive(Clone)]
pub(crate) struct Link {
    rdma: Arc<Rdma>,
    poster: Option<PostingThread>,
}

/// An operation of the crate's, and what becomes of it.
type Operation<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl UnconnectedQueuePair {
    /// Opens the device and makes a queue pair, whose completions are looked for in this runtime.
    ///
    /// # Errors
    ///
    /// Of the device: it is not there, not active, or this user has no right to it.
    pub(crate) fn build(place: &QueuePairConfig, posting: Posting) -> io::Result<Self> {
        RdmaBuilder::default()
            .set_conn_type(ConnectionType::RCIBV)
            .set_raw(true)
            .set_mr_strategy(MRManageStrategy::Raw)
            .set_dev(&place.device)
            .set_port_num(place.port)
            .set_gid_index(place.gid_index)
            .set_mtu(mtu(place.mtu))
            .set_sq_psn(place.send_psn)
            .set_rq_psn(place.receive_psn)
            .set_qp_max_send_wr(place.depth)
            // One for the message that proves the path.
            .set_qp_max_recv_wr(place.depth + 1)
            .set_qp_max_send_sge(1)
            .set_qp_max_recv_sge(1)
            .set_cq_size((2 * place.depth + 2).max(QUEUE_LENGTH))
            .set_max_cqe(POLLED_AT_ONCE)
            .set_qp_access(AccessFlag::LocalWrite | AccessFlag::RemoteWrite)
            .set_mr_access(AccessFlag::LocalWrite.into())
            .set_traffic_class(place.traffic_class)
            .set_service_level(place.service_level)
            .set_pkey_index(place.pkey_index)
            .set_timeout(ACK_TIMEOUT)
            .set_retry_cnt(RETRIES)
            .set_rnr_retry(RNR_RETRIES)
            .set_min_rnr_timer(1)
            .set_cc_evnet_timeout(COMPLETION_LIMIT)
            .build()
            .map(|rdma| Self { rdma, posting })
    }

    /// What the peer needs to connect to this queue pair.
    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint(self.rdma.get_qp_endpoint())
    }

    /// Registers `bytes` of memory, zeroed; only what the peer shall write is reachable for it.
    ///
    /// # Errors
    ///
    /// Most often [`io::ErrorKind::OutOfMemory`]: the memlock limit.
    pub(crate) fn register(&self, bytes: usize, reach: MemoryAccess) -> io::Result<Region> {
        let layout = Layout::from_size_align(bytes, PAGE_BYTES).map_err(io::Error::other)?;
        let access = match reach {
            MemoryAccess::Local => AccessFlag::LocalWrite.into(),
            MemoryAccess::Remote => AccessFlag::LocalWrite | AccessFlag::RemoteWrite,
        };
        self.rdma
            .alloc_local_mr_with_access(layout, access)
            .map(Region)
    }

    /// Connects to the peer's queue pair. Nothing may be written before the peer has done the same.
    ///
    /// # Errors
    ///
    /// When the two do not fit: a GID that is not there, networks that do not meet.
    pub(crate) async fn connect(mut self, peer: Endpoint) -> io::Result<Link> {
        self.rdma.ibv_connect(peer.0).await?;
        let poster = match self.posting {
            Posting::Inline => None,
            Posting::Thread => Some(start_poster()?),
        };
        Ok(Link {
            rdma: Arc::new(self.rdma),
            poster,
        })
    }
}

/// Who may reach a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryAccess {
    /// This end only.
    Local,
    /// The peer may write it.
    Remote,
}

/// Registered memory. The crate frees it and then tells the device, which is harmless only because no
/// operation uses it then: those own their regions, and the peer's writes end with the link, which only a
/// region that was lent to the user outlives.
pub(crate) struct Region(LocalMr);

impl Region {
    /// What the peer needs to write it.
    pub(crate) fn token(&self) -> SlotToken {
        SlotToken {
            address: self.0.addr() as u64,
            bytes: u32::try_from(self.0.length()).unwrap_or(u32::MAX),
            key: self.0.rkey(),
        }
    }

    /// Its bytes.
    #[allow(unsafe_code)]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the region is that many initialised bytes (it is allocated zeroed) for as long as
        // `self.0` lives. Nothing writes them meanwhile: this end's only operation on a region, the
        // write that reads from it, owns it until it has completed, so nobody can call this then;
        // the peer writes only slots that were granted to it, and a granted slot is in the hands
        // of the receiving path, which does not look at it before the peer's write has completed.
        // (A peer that has the key and breaks this rule can change bytes under a reader, for as long as
        // the link lives. They are plain bytes, and the digest was checked on what was there; no
        // decision of ours is made on them twice.)
        unsafe { self.0.as_slice_unchecked() }
    }

    /// Its bytes, to be filled.
    #[allow(unsafe_code)]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` says that nobody else looks at it.
        unsafe { self.0.as_mut_slice_unchecked() }
    }
}

impl Link {
    /// Writes the first `bytes` of `region` into the peer's slot, and takes up one of the receives
    /// that the peer has posted. The region comes back with the result.
    pub(crate) fn write(
        &self,
        region: Region,
        bytes: usize,
        slot: SlotToken,
    ) -> WorkRequest<WriteCompletion> {
        let link = Arc::clone(&self.rdma);
        let write = async move {
            let result = match (region.0.get(0..bytes), remote(slot)) {
                (Some(local), Ok(mut remote)) => {
                    let written = link.write_with_imm(&local, &mut remote, 0).await;
                    written.map_err(brief)
                }
                (None, _) => Err(io::ErrorKind::InvalidInput.into()),
                (_, Err(error)) => Err(error),
            };
            WriteCompletion { result, region }
        };
        let write = Box::pin(write);
        let Some(poster) = &self.poster else {
            return WorkRequest(RequestState::begin(write));
        };
        let (back, returned) = oneshot::channel();
        // The thread lives as long as this link.
        let _ = poster.send((write, back));
        WorkRequest(RequestState::Elsewhere(returned))
    }

    /// Takes notice of one write by the peer.
    pub(crate) fn receive(&self) -> WorkRequest<io::Result<()>> {
        let link = Arc::clone(&self.rdma);
        WorkRequest(RequestState::begin(Box::pin(async move {
            // The write goes to its slot; what is received is only that it happened.
            let received = link.receive_raw_with_imm(Layout::new::<u8>()).await;
            received.map(drop).map_err(brief)
        })))
    }
}

/// A write that has completed, and the memory that it was made from.
pub(crate) struct WriteCompletion {
    /// Whether the peer's device has it.
    pub(crate) result: io::Result<()>,
    /// Free again.
    pub(crate) region: Region,
}

/// Starts a thread that posts writes in the order in which they come.
fn start_poster() -> io::Result<PostingThread> {
    let (poster, orders) = mpsc::channel::<PostRequest>();
    let post = move || {
        for (write, back) in orders {
            // Nobody waits for a write of a stream that is gone.
            if !back.is_closed() {
                let _ = back.send(RequestState::begin(write));
            }
        }
    };
    thread::Builder::new()
        .name("poster".to_owned())
        .spawn(post)?;
    Ok(poster)
}

/// An operation that is posted in the order in which these were made.
pub(crate) struct WorkRequest<T>(RequestState<T>);

enum RequestState<T> {
    /// The first poll found it complete. It keeps its place in the order all the same.
    Done(Option<T>),
    /// It is polled by whoever waits for it.
    Here(Operation<T>),
    /// It is on its way to the thread that posts it, or there.
    Elsewhere(oneshot::Receiver<RequestState<T>>),
}

impl<T> RequestState<T> {
    /// Posts `operation`.
    fn begin(mut operation: Operation<T>) -> Self {
        let mut cx = Context::from_waker(Waker::noop());
        match operation.as_mut().poll(&mut cx) {
            Poll::Ready(output) => Self::Done(Some(output)),
            Poll::Pending => Self::Here(operation),
        }
    }
}

impl<T> WorkRequest<T> {
    /// Waits for the completion.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<T> {
        if let RequestState::Elsewhere(posted) = &mut self.0 {
            // A thread that is gone had nobody left to post for.
            let Ok(progress) = ready!(Pin::new(posted).poll(cx)) else {
                return Poll::Pending;
            };
            self.0 = progress;
        }
        match &mut self.0 {
            RequestState::Done(output) => output.take().map_or(Poll::Pending, Poll::Ready),
            RequestState::Here(operation) => operation.as_mut().poll(cx),
            RequestState::Elsewhere(_) => Poll::Pending,
        }
    }
}

/// The name of a failed completion, such as "Transport Retry Counter Exceeded", without the paragraph of
/// the manual that the crate puts behind it.
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
