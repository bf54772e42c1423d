//! It is really a tokio stream: what users of tokio's traits expect of any stream, each expectation once, generic over the
//! data path (`Ok` when it is met), and every one of them run over every data path.

pub(crate) mod amounts;
pub(crate) mod cancelled;
pub(crate) mod dials;
pub(crate) mod exact;
pub(crate) mod halves;
pub(crate) mod lending;
pub(crate) mod lines;
pub(crate) mod nothing;
pub(crate) mod sending;
pub(crate) mod wakers;

use crate::support::pools::{CHUNK, DEPTH, FULL, POOL, fill, pair, small};

/// Makes a test of every expectation, over one data path.
macro_rules! over {
    ($path:ident, $ends:ty) => {
        mod $path {
            promises! { over $ends:
                nothing::nothing_at_any_time, nothing::nobody_hears_of_nothing,
                exact::exact_across_chunks, exact::unexpected_eof,
                amounts::single_bytes, amounts::one_large_write,
                lines::lines, lines::read_until,
                cancelled::cancelled_reads, cancelled::cancelled_writes, cancelled::cancelled_ends,
                dials::cancelled_accepts, dials::cancelled_connects,
                halves::both_stop_reading, halves::both_stop_reading_split_by_tokio,
                halves::both_shut_down_unread, halves::borrowed_and_reunited,
                wakers::woken, wakers::replaced_wakers, wakers::idle_wakers, wakers::woken_by_failure,
                wakers::a_wake_for_every_chunk,
                lending::chunks_kept_for_ever, lending::chunks_in_any_order, lending::credit_of_a_kept_chunk,
                lending::chunks_outlive_the_stream, lending::the_rest_of_a_chunk,
                sending::buffers_in_order, sending::several_buffers, sending::buffers_without_credit,
                sending::buffers_without_a_flush, sending::refused_buffers, sending::buffers_outlive_the_stream,
                sending::cancelled_buffers, sending::many_slices, sending::slices_that_fit,
            }
        }
    };
}

over!(tcp, crate::support::ends::Tcp);
#[cfg(feature = "rdma")]
over!(rdma, crate::support::ends::Rdma);

/// Those in which a new link could lose something, or forget to wake somebody.
#[cfg(feature = "rdma")]
mod renewed_rdma {
    promises! { over crate::support::ends::Renewed:
        exact::exact_across_chunks,
        cancelled::cancelled_writes, cancelled::cancelled_ends,
        halves::both_stop_reading,
        wakers::woken, wakers::a_wake_for_every_chunk,
        lending::chunks_kept_for_ever, lending::chunks_in_any_order, lending::credit_of_a_kept_chunk,
        sending::buffers_in_order, sending::several_buffers,
    }
}
