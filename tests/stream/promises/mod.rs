//! What a stream promises, whatever carries it: each promise once, generic over the data path (`Ok` when it is kept), and
//! every one of them run over every data path.

pub(crate) mod answers;
pub(crate) mod closing;
pub(crate) mod dropping;
pub(crate) mod order;
pub(crate) mod pace;
pub(crate) mod sharing;

pub(crate) use crate::support::pools::{CHUNK, DEPTH, POOL, pair, small};

/// Makes a test of every promise, over one data path.
macro_rules! over {
    ($path:ident, $ends:ty) => {
        mod $path {
            promises! { over $ends:
                order::every_size, order::random_sizes,
                pace::slow_reader, pace::slow_writer, pace::one_half_left_alone,
                pace::paused_reader, pace::shutdown_without_a_reader,
                answers::one_byte_without_a_flush, answers::small_writes_get_out,
                answers::small_talk_at_both_ends,
                answers::large_answer_after_shutdown,
                closing::half_close, closing::finish_waits_for_confirm, closing::unconfirmed,
                closing::stopped, closing::goodbye_to_a_peer_that_stays, closing::stopped_one_way, closing::stopped_at_the_end, closing::aborted,
                dropping::dropped_mid_write, dropping::dropped_without_shutdown,
                dropping::dropped_half, dropping::dropped_mid_read,
                dropping::dropped_with_bytes_unread, dropping::panicked,
                sharing::both_directions, sharing::halves_in_two_tasks,
                sharing::cancelled_futures, sharing::vectored_and_empty,
            }
        }
    };
}

over!(tcp, crate::support::ends::Tcp);
#[cfg(feature = "rdma")]
over!(rdma, crate::support::ends::Rdma);
#[cfg(feature = "rdma")]
over!(renewed_rdma, crate::support::ends::Renewed);

mod damaged_tcp {
    promises! { over crate::support::ends::Flipped: order::never_a_wrong_byte }
}
