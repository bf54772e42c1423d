//! What a device is asked for when a queue pair is made, after all of it was checked.

use std::{io, mem::zeroed, sync::Arc};

use rdma_sys as ffi;

use super::{
    completions::{CompletionQueue, QueueRoom},
    memory::MemoryRegion,
    not_null,
    sizes::QueueSizes,
};

/// The most bytes inline that a device is asked for. None carries as many, and providers compute with larger numbers carelessly.
const MOST_INLINE: u32 = 1 << 16;

/// Reserves room for the completions of sends and receives in these queues, for a queue pair with this memory.
///
/// # Errors
///
/// A queue has no room for them.
///
/// # Panics
///
/// If memory and completion queues belong to different protection domains.
pub(super) fn reserve(
    [sends, receives]: [&Arc<CompletionQueue>; 2],
    memory: &MemoryRegion,
    sizes: QueueSizes,
) -> io::Result<[QueueRoom; 2]> {
    assert!(
        Arc::ptr_eq(&memory.domain, &sends.domain),
        "two protection domains"
    );
    assert_one_domain([sends, receives]);
    Ok([
        QueueRoom::reserve(sends, sizes.sends)?,
        QueueRoom::reserve(receives, sizes.receives)?,
    ])
}

/// A device must never see completion queues of two devices together.
fn assert_one_domain([sends, receives]: [&Arc<CompletionQueue>; 2]) {
    assert!(
        Arc::ptr_eq(&sends.domain, &receives.domain),
        "two protection domains"
    );
}

/// Makes a queue pair whose sends and receives complete in these two queues. Returns it and the number of bytes that a send
/// can carry inline.
#[allow(unsafe_code)]
pub(super) fn create(
    [sends, receives]: [&Arc<CompletionQueue>; 2],
    sizes: QueueSizes,
) -> io::Result<(*mut ffi::ibv_qp, usize)> {
    assert_one_domain([sends, receives]);
    if sizes.inline_bytes > MOST_INLINE {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: integers and pointers only, for which zero is a value.
    let mut wanted: ffi::ibv_qp_init_attr = unsafe { zeroed() };
    (wanted.send_cq, wanted.recv_cq) = (sends.queue, receives.queue);
    wanted.qp_type = ffi::ibv_qp_type::IBV_QPT_RC;
    wanted.cap.max_send_wr = sizes.sends;
    wanted.cap.max_recv_wr = sizes.receives;
    (wanted.cap.max_send_sge, wanted.cap.max_recv_sge) = (1, 1);
    wanted.cap.max_inline_data = sizes.inline_bytes;
    // SAFETY: domain and completion queues exist as long as the queue pair, whose owner owns the completion queues.
    let pair = unsafe { ffi::ibv_create_qp(sends.domain.domain, &raw mut wanted) };
    Ok((not_null(pair)?, wanted.cap.max_inline_data as usize))
}
