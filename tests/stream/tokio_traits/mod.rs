//! What users of tokio's traits expect of any stream. Each expectation is one function of the data path, that
//! returns `Ok` if the expectation is met. Every expectation runs over every data path.

pub(crate) mod amounts;
pub(super) mod buffers;
pub(crate) mod cancelled;
pub(crate) mod halves;
pub(crate) mod wakers;

use crate::support::data_path::{CHUNK, DEPTH, POOL, fill, pair, small};

/// Makes a module with a test of every expectation over one data path.
macro_rules! over {
    ($module:ident, $path:ident) => {
        mod $module {
            promises! { over $path:
                amounts::empty_reads_and_writes_complete_at_once,
                amounts::empty_writes_send_nothing_and_wake_no_task,
                amounts::read_exact_works_across_chunks, amounts::read_exact_reports_an_early_end,
                amounts::single_byte_writes_arrive_and_are_combined, amounts::one_very_large_write_arrives,
                amounts::lines_of_every_length_are_read, amounts::read_until_returns_lines_with_their_ends,
                cancelled::cancelled_reads_lose_nothing, cancelled::cancelled_writes_lose_nothing,
                cancelled::a_cancelled_shutdown_or_finish_can_be_retried,
                cancelled::a_cancelled_accept_loses_no_stream,
                cancelled::a_cancelled_connect_leaves_the_listener_working,
                halves::both_ends_can_stop_reading_and_go_on,
                halves::both_ends_can_stop_reading_when_split_by_tokio,
                halves::both_ends_can_shut_down_with_full_pools,
                halves::halves_can_be_borrowed_and_reunited,
                wakers::a_waiting_task_is_woken, wakers::the_last_task_to_poll_is_woken,
                wakers::an_idle_task_is_not_woken, wakers::a_failure_wakes_a_waiting_task,
                wakers::wakes_alone_drive_a_stream_to_its_end,
                buffers::kept_chunks_never_block_the_stream, buffers::all_ways_to_read_can_be_mixed,
                buffers::dropping_a_kept_chunk_returns_its_credit, buffers::chunks_outlive_the_stream,
                buffers::read_chunk_returns_the_rest_of_a_chunk,
                buffers::buffers_arrive_in_the_order_sent, buffers::several_buffers_can_be_lent_at_once,
                buffers::a_buffer_without_credit_is_sent_later, buffers::buffers_are_sent_without_a_flush,
                buffers::a_misused_buffer_is_refused, buffers::buffers_outlive_the_stream,
                buffers::a_cancelled_wait_for_a_buffer_loses_none, buffers::many_small_slices_arrive_whole,
                buffers::one_write_takes_all_slices_that_fit,
            }
        }
    };
}

over!(tcp, Tcp);
#[cfg(feature = "rdma")]
over!(rdma, Rdma);

/// The expectations in which the renewal of a link could lose bytes or a wakeup.
#[cfg(feature = "rdma")]
mod railed_rdma {
    promises! { over RdmaRails:
        amounts::read_exact_works_across_chunks,
        cancelled::cancelled_writes_lose_nothing, cancelled::a_cancelled_shutdown_or_finish_can_be_retried,
        halves::both_ends_can_stop_reading_and_go_on,
        wakers::a_waiting_task_is_woken, wakers::wakes_alone_drive_a_stream_to_its_end,
        buffers::kept_chunks_never_block_the_stream, buffers::all_ways_to_read_can_be_mixed,
        buffers::buffers_arrive_in_the_order_sent, buffers::several_buffers_can_be_lent_at_once,
    }
}

/// With several rails, the credit of one chunk does not post the chunks of all.
#[cfg(feature = "rdma")]
mod renewed_rdma {
    promises! { over RenewedRdma: buffers::dropping_a_kept_chunk_returns_its_credit }
}
