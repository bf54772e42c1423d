//! An open device and its protection domain.

use std::{
    ffi::CStr,
    fmt, io,
    mem::{MaybeUninit, zeroed},
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    ptr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use rdma_sys as ffi;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::Errno,
};

use super::{
    check,
    memory::MemoryRegion,
    not_null,
    queue_pair::{QueuePair, ReadDepths},
};

/// An open device and its protection domain: regions and queue pairs of one domain can be used together.
pub struct ProtectionDomain {
    context: *mut ffi::ibv_context,
    pub(super) domain: *mut ffi::ibv_pd,
}

// SAFETY: the API of verbs promises that every thread may use its objects (ibv_open_device(3) and the manual of
// libibverbs).
#[allow(unsafe_code)]
unsafe impl Send for ProtectionDomain {}
// SAFETY: the API of verbs promises the same for several threads at once.
#[allow(unsafe_code)]
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// Opens the device `name`, such as `mlx5_0`.
    ///
    /// # Errors
    ///
    /// There is no such device ([`io::ErrorKind::NotFound`]), or this user may not open it.
    #[allow(unsafe_code)]
    pub fn open(name: &str) -> io::Result<Self> {
        let context = open_device(name)?;
        // SAFETY: the context is open.
        let domain = not_null(unsafe { ffi::ibv_alloc_pd(context) });
        domain
            .map(|domain| Self { context, domain })
            .inspect_err(|_| {
                // SAFETY: nothing else has this context.
                unsafe { ffi::ibv_close_device(context) };
            })
    }

    pub(super) fn context(&self) -> *mut ffi::ibv_context {
        self.context
    }

    /// Returns an entry of the GID table of a port.
    /// Fails if there is no such entry.
    #[allow(unsafe_code)]
    pub(crate) fn gid(&self, port: u8, index: usize) -> io::Result<[u8; 16]> {
        let index = i32::try_from(index).map_err(io::Error::other)?;
        let mut gid = ffi::ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open, and `gid` is memory for one entry.
        check(unsafe { ffi::ibv_query_gid(self.context, port, index, &raw mut gid) })?;
        // SAFETY: both fields of the union are sixteen bytes, all of which are initialised.
        Ok(unsafe { gid.raw })
    }

    /// Returns the local identifier of a port, which InfiniBand needs.
    /// Fails if there is no such port.
    #[allow(unsafe_code)]
    pub(crate) fn lid(&self, port: u8) -> io::Result<u16> {
        // SAFETY: integers only, for which zero is a value.
        let mut attributes: ffi::ibv_port_attr = unsafe { zeroed() };
        // SAFETY: the context is open. The function writes the older form of the attributes, which is a prefix of this
        // form.
        check(unsafe { ffi::ibv_query_port(self.context, port, (&raw mut attributes).cast()) })?;
        Ok(attributes.lid)
    }

    /// Returns the most RDMA READs that a queue pair of the device can have under way at once.
    #[allow(unsafe_code)]
    pub(crate) fn read_depths(&self) -> io::Result<ReadDepths> {
        // SAFETY: integers, arrays of integers and plain enumerations of C, for which zero is a value.
        let mut attributes: ffi::ibv_device_attr = unsafe { zeroed() };
        // SAFETY: the context is open, and `attributes` is memory for the answer.
        check(unsafe { ffi::ibv_query_device(self.context, &raw mut attributes) })?;
        let depth = |most: i32| u8::try_from(most.clamp(0, i32::from(u8::MAX))).unwrap_or(0);
        Ok(ReadDepths {
            begun: depth(attributes.max_qp_init_rd_atom),
            answered: depth(attributes.max_qp_rd_atom),
        })
    }
}

impl Drop for ProtectionDomain {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: all regions, queues and queue pairs own the domain, so none is left.
        unsafe {
            ffi::ibv_dealloc_pd(self.domain);
            ffi::ibv_close_device(self.context);
        }
    }
}

/// Has libibverbs load the drivers of the devices, which it does for its first list of them.
#[allow(unsafe_code)]
pub(in crate::transport::rdma) fn load_drivers() {
    // SAFETY: the call writes no count to a null pointer.
    let list = unsafe { ffi::ibv_get_device_list(std::ptr::null_mut()) };
    if !list.is_null() {
        // SAFETY: the list came from `ibv_get_device_list`, and no device of it is used.
        unsafe { ffi::ibv_free_device_list(list) };
    }
}

#[allow(unsafe_code)]
fn open_device(name: &str) -> io::Result<*mut ffi::ibv_context> {
    let mut count = MaybeUninit::zeroed();
    // SAFETY: `count` is memory for one integer.
    let list = not_null(unsafe { ffi::ibv_get_device_list(count.as_mut_ptr()) })?;
    // SAFETY: the call has written it, and zero was valid before.
    let count = usize::try_from(unsafe { count.assume_init() }).unwrap_or(0);
    let device = (0..count)
        // SAFETY: the list has `count` entries until it is freed.
        .map(|at| unsafe { *list.add(at) })
        .find(|device| {
            // SAFETY: the entries are devices, and a name is a string that ends with zero.
            let found = unsafe { CStr::from_ptr(ffi::ibv_get_device_name(*device)) };
            found.to_str() == Ok(name)
        });
    // SAFETY: the device is in the list, which is not freed yet.
    let context = device.map_or(ptr::null_mut(), |device| unsafe {
        ffi::ibv_open_device(device)
    });
    let opened = match device {
        Some(_) => not_null(context),
        None => Err(io::ErrorKind::NotFound.into()),
    };
    // SAFETY: the list came from `ibv_get_device_list`. An open device does not need it.
    unsafe { ffi::ibv_free_device_list(list) };
    opened
}

/// A completion queue and its completion channel. Its file descriptor is readable while an event waits. A program only
/// waits for that, and takes the event with [`take_event`](Self::take_event): dropping the queue waits forever for an
/// event that was read from the descriptor.
pub struct CompletionQueue {
    pub(super) queue: *mut ffi::ibv_cq,
    channel: *mut ffi::ibv_comp_channel,
    /// The number of completions for which there is room.
    pub(super) length: u32,
    /// The completions for which queue pairs have reserved room.
    reserved: AtomicU32,
    /// Last: the queue is destroyed before its device may be closed.
    pub(super) domain: Arc<ProtectionDomain>,
}

// SAFETY: the API of verbs promises that every thread may use its objects.
#[allow(unsafe_code)]
unsafe impl Send for CompletionQueue {}
// SAFETY: the API of verbs promises the same for several threads at once.
#[allow(unsafe_code)]
unsafe impl Sync for CompletionQueue {}

/// The completion of a work request.
#[derive(Debug)]
pub struct Completion {
    /// The number that the work request was given.
    pub id: u64,
    /// The number of bytes that a receive has taken; undefined for other work requests. The error is the device's.
    /// After the first error the queue pair is broken: all its other work requests complete with an error too.
    pub result: io::Result<usize>,
}

/// The room that a queue pair has reserved in a completion queue, which it keeps.
pub(super) struct QueueRoom {
    queue: Arc<CompletionQueue>,
    count: u32,
}

impl CompletionQueue {
    /// Makes a queue for `length` completions, at least one. Each queue pair reserves room for all the work requests
    /// that it can have posted at once.
    ///
    /// # Errors
    ///
    /// Those of the device: it cannot make a queue of this length.
    #[allow(unsafe_code)]
    pub fn new(domain: &Arc<ProtectionDomain>, length: u32) -> io::Result<Self> {
        let room = length;
        let length = i32::try_from(length).map_err(io::Error::other)?;
        // SAFETY: the device is open.
        let channel = not_null(unsafe { ffi::ibv_create_comp_channel(domain.context()) })?;
        // SAFETY: device and channel are open, and the queue is destroyed before both.
        let queue =
            unsafe { ffi::ibv_create_cq(domain.context(), length, ptr::null_mut(), channel, 0) };
        let queue = not_null(queue).inspect_err(|_| {
            // SAFETY: no queue uses the channel.
            unsafe { ffi::ibv_destroy_comp_channel(channel) };
        })?;
        let completions = Self {
            queue,
            channel,
            length: room,
            reserved: AtomicU32::new(0),
            domain: Arc::clone(domain),
        };
        let fd = completions.as_fd();
        fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?;
        Ok(completions)
    }

    /// Takes the oldest completion off the queue. Never waits.
    ///
    /// # Errors
    ///
    /// The queue is broken.
    #[allow(unsafe_code)]
    pub fn poll_one(&self) -> io::Result<Option<Completion>> {
        // SAFETY: integers only, for which zero is a value.
        let mut found: ffi::ibv_wc = unsafe { zeroed() };
        // SAFETY: the queue exists, and `found` is memory for one completion.
        match unsafe { ffi::ibv_poll_cq(self.queue, 1, &raw mut found) } {
            0 => Ok(None),
            1 => Ok(Some(Completion::of(&found))),
            _ => Err(io::Error::other("the completion queue is broken")),
        }
    }

    /// Asks for an event for the next completion. A completion that is in the queue already makes none: poll once more.
    ///
    /// # Errors
    ///
    /// Those of the device.
    #[allow(unsafe_code)]
    pub fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue exists.
        check(unsafe { ffi::ibv_req_notify_cq(self.queue, 0) })
    }

    /// Takes the event for which [`arm`](Self::arm) asked.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] if there is none yet.
    #[allow(unsafe_code)]
    pub fn take_event(&self) -> io::Result<()> {
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel exists, and both are memory for one pointer.
        let result =
            unsafe { ffi::ibv_get_cq_event(self.channel, &raw mut queue, &raw mut context) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the event came from this queue, the only one of the channel. A queue is destroyed only after all of
        // its events were acknowledged.
        unsafe { ffi::ibv_ack_cq_events(queue, 1) };
        Ok(())
    }
}

impl QueueRoom {
    /// Reserves room for `count` completions.
    /// Fails if the queue has no room for so many more.
    pub(super) fn reserve(queue: &Arc<CompletionQueue>, count: u32) -> io::Result<Self> {
        let more = |reserved: u32| {
            let sum = reserved.checked_add(count)?;
            (sum <= queue.length).then_some(sum)
        };
        let reserved = (queue.reserved).fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        reserved.map_err(|reserved| {
            let text = format!(
                "a completion queue of {} has no room for {count} completions beside {reserved}",
                queue.length
            );
            io::Error::new(io::ErrorKind::InvalidInput, text)
        })?;
        Ok(Self {
            queue: Arc::clone(queue),
            count,
        })
    }
}

impl Drop for QueueRoom {
    fn drop(&mut self) {
        self.queue.reserved.fetch_sub(self.count, Ordering::Relaxed);
    }
}

impl Completion {
    #[allow(unsafe_code)]
    fn of(found: &ffi::ibv_wc) -> Self {
        let result = if found.status == ffi::ibv_wc_status::IBV_WC_SUCCESS {
            Ok(found.byte_len as usize)
        } else {
            // SAFETY: the library returns a constant string for every status.
            let text = unsafe { CStr::from_ptr(ffi::ibv_wc_status_str(found.status)) };
            Err(io::Error::other(text.to_string_lossy().into_owned()))
        };
        Self {
            id: found.wr_id,
            result,
        }
    }
}

impl AsFd for CompletionQueue {
    #[allow(unsafe_code)]
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, and with it the descriptor, is open as long as this value lives.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }
}

impl AsRawFd for CompletionQueue {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for CompletionQueue {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the queue pairs that use the queue own it, so there is none. All events were acknowledged when they
        // were taken. The queue goes before its channel.
        unsafe {
            ffi::ibv_destroy_cq(self.queue);
            ffi::ibv_destroy_comp_channel(self.channel);
        }
    }
}

/// The longest wait: a year, which every kernel accepts.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

impl CompletionQueue {
    /// Waits for the event for which [`arm`](Self::arm) asked, and takes it. Returns false if it has not come within
    /// `limit`, or if a signal has interrupted the wait. Blocks the thread.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn wait_event(&self, limit: Duration) -> io::Result<bool> {
        let limit = Timespec::try_from(limit.min(LONGEST)).map_err(io::Error::other)?;
        let mut channel = [PollFd::new(self, PollFlags::IN)];
        match poll(&mut channel, Some(&limit)) {
            Ok(0) | Err(Errno::INTR) => return Ok(false),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        match self.take_event() {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectionDomain").finish_non_exhaustive()
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut region = f.debug_struct("MemoryRegion");
        region.field("bytes", &self.bytes);
        region.finish_non_exhaustive()
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut queue = f.debug_struct("CompletionQueue");
        queue.field("length", &self.length);
        queue.finish_non_exhaustive()
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut pair = f.debug_struct("QueuePair");
        pair.field("memory", &self.memory)
            .field("inline_bytes", &self.inline_bytes)
            .field("is_connected", &self.connection.is_some());
        pair.finish_non_exhaustive()
    }
}
