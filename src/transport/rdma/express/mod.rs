//! The express path: a queue pair for small frames beside that of async-rdma.
//!
//! A small write over async-rdma takes as long as a chunk: each operation registers memory, is signalled and wakes a
//! poller (2.75 ms for 64 bytes there and back in the guest, where TCP takes 0.38 and two raw queue pairs 0.22). So a
//! link has a second queue pair for small frames, of up to 4 KiB of payload.
//!
//! - *Frames.* A small frame is one SEND into a receive that is posted already; header and payload are sent inline if
//!   the device takes so much. Up to 32 KiB that are due (a flush, or nothing is under way), but never more than half
//!   of a chunk, are sent in several such frames: that is cheaper than one chunk, which costs several wake-ups at each
//!   end. The peer gets no key, so it can write nothing but the receives. The receiver copies a frame to heap memory at
//!   once and posts the receive again, so the frames of a reader that is away occupy no receives.
//! - *Order.* Link and express path are two FIFOs. The sender posts frames in the order of their offsets, on either.
//!   Each header says where the frame before it on its rail ends, since other rails may carry the bytes in between; the
//!   receiver takes the frame that follows the last one. Frames of the link that are there before a small frame that
//!   precedes them wait in the slots that they were granted. Both have one chain of digests. FIN needs no order with
//!   the express path: it carries the number of bytes.
//! - *Rails.* The first rail of a stream has the express path: what is no full chunk stays on it, and its user's thread
//!   sends and receives it.
//! - *Window.* At most `small_frames` frames are not yet reported as consumed: read by the user, or joined to a chunk
//!   before. Each frame carries the count of the other direction; a *report*, a frame without payload, is sent when
//!   half a window was consumed and no frame has carried it. Reports need no window: at most three are unread, and four
//!   receives are kept for them. A reader that is away holds at most one window of heap slots, of 8 KiB each.
//! - *Back-pressure.* While half a window is under way, bytes that are written without a flush collect in their chunk.
//!   A small frame waits for room in the express path instead of taking a slot of the link, which is many times slower;
//!   but if its writer has waited for the whole of the steward's patience, the reader is away, and the frame takes a
//!   credit. So both ends can write a pool before they read.
//! - *Renewal.* A link and its express path are one generation: if either fails, or the link has been used up, both are
//!   replaced. Completions of the express path do not count. The sender keeps each small frame in the ring until it is
//!   reported as consumed. When a link is taken down, frames that are not reported, and writes that failed, wait in the
//!   order of their offsets; those before the bytes that the peer has verified are dropped, the others are sent again
//!   before anything new. A receiver keeps the frames of the link that are still early then, because the sender has
//!   used their slots again: it moves them to the heap, and drops those that the sender does not know to be delivered.
//!   An honest peer needs at most a pool for that; more than four pools are an error.
//! - *Optional.* One end without an express path (`small_frames` 0, no room under the memlock limit, a device that
//!   refuses) is enough to have none. If three express paths in a row carry no frame, the stream goes on without. If a
//!   stream loses its express path while its reader has a whole pool unread, one slot is granted beyond, for a small
//!   frame that has to be sent again.
//! - *Waiting.* Both sides of the data path share one completion queue, since an event does not identify the side: it
//!   wakes both. Sends share the queue too: one in 32 is signalled, and an error is noticed at once. Both ends poll
//!   again after the same numbers of frames, because one polling end alone gains little. An express path polls only if
//!   the last eight waits on its thread were its own, so a thread with many streams does not poll.

pub(super) mod order;
pub(super) mod path;
pub(super) mod queue;
mod spin;
#[cfg(test)]
mod tests;
mod window;
