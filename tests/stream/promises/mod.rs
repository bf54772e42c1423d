//! The promises of a stream over any data path. Each promise is one function of the data path, that returns
//! `Ok` if the promise is kept. Every promise runs over every data path.

pub(crate) mod closing;
pub(crate) mod dropping;
pub(crate) mod order;
pub(crate) mod sharing;

pub(crate) use crate::support::data_path::{CHUNK, DEPTH, POOL, pair, small};

/// Makes a module with a test of every promise over one data path.
macro_rules! over {
    ($module:ident, $path:ident) => {
        mod $module {
            promises! { over $path:
                order::bytes_of_every_size_arrive_in_order, order::streams_of_random_sizes_arrive_whole,
                order::small_and_large_writes_arrive_in_order,
                order::a_slow_reader_loses_nothing, order::a_slow_writer_loses_nothing,
                order::an_unread_direction_does_not_block_the_other,
                order::a_paused_reader_is_not_taken_for_dead,
                order::a_pause_in_small_messages_is_not_taken_for_a_death,
                order::shutdown_does_not_wait_for_the_reader,
                sharing::one_byte_is_answered_without_a_flush,
                sharing::small_writes_are_sent_without_a_flush,
                sharing::both_ends_can_write_before_they_read,
                sharing::a_large_answer_does_not_block_shutdown,
                closing::one_direction_ends_and_the_other_goes_on, closing::finish_waits_for_confirm,
                closing::finish_reports_a_missing_confirmation, closing::a_reader_can_stop_its_writer,
                closing::close_does_not_wait_for_the_peer_to_close, closing::stop_ends_one_direction_only,
                closing::a_stop_near_the_end_is_no_failure, closing::both_ends_get_the_reason_of_an_abort,
                dropping::a_writer_dropped_early_is_no_end_of_file,
                dropping::a_drop_without_shutdown_is_no_end_of_file,
                dropping::a_dropped_write_half_is_an_error_at_the_peer,
                dropping::a_dropped_reader_is_an_error_at_the_writer,
                dropping::finish_fails_if_the_reader_left_bytes_unread, dropping::a_panic_is_no_end_of_file,
                dropping::a_drop_after_shutdown_lets_the_peer_end,
                dropping::a_drop_after_shutdown_stops_a_peer_that_goes_on,
                dropping::a_dropped_end_does_not_wait_for_ever,
                dropping::shutdown_succeeds_if_a_stopped_reader_had_all,
                dropping::a_dropped_read_half_leaves_the_writer_alone,
                dropping::a_cancelled_shutdown_sends_its_fin,
                dropping::with_fin_a_dropped_stream_delivers_everything,
                dropping::with_fin_both_ends_can_be_dropped_at_once,
                dropping::with_fin_a_panic_is_no_end_of_file,
                dropping::with_fin_a_peer_that_does_not_read_gets_no_false_end,
                sharing::both_directions_work_at_once, sharing::halves_work_in_two_tasks_at_once,
                sharing::cancelled_futures_lose_nothing, sharing::vectored_and_empty_writes_arrive,
            }
        }
    };
}

over!(tcp, Tcp);
over!(plain_tcp, PlainTcp);
over!(two_rails, TwoRails);
over!(five_rails, FiveRails);
#[cfg(feature = "rdma")]
over!(rdma, Rdma);
#[cfg(feature = "rdma")]
over!(renewed_rdma, RenewedRdma);
#[cfg(feature = "rdma")]
over!(railed_rdma, RdmaRails);
#[cfg(feature = "rdma")]
over!(many_railed_rdma, ManyRdmaRails);
#[cfg(feature = "rdma")]
over!(express_rdma, ExpressRdma);
#[cfg(feature = "rdma")]
over!(narrow_express_rdma, NarrowExpressRdma);
#[cfg(all(feature = "rdma", feature = "fault-injection"))]
over!(failing_express_rdma, FailingExpress);
#[cfg(all(feature = "rdma", feature = "fault-injection"))]
over!(failing_links_rdma, FailingLinks);
#[cfg(all(feature = "rdma", feature = "fault-injection"))]
over!(failing_rails_rdma, FailingRails);

mod damaged_tcp {
    promises! { over FlippedTcp: order::a_reader_never_gets_a_wrong_byte }
}
