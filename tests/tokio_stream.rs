//! It is really a tokio stream: what users of tokio's traits expect of any stream, each expectation
//! once, generic over the data path, and every one of them run over every data path.

#[macro_use]
mod common;
mod expectations;

/// Makes a test of every expectation, over one data path.
macro_rules! expectations {
    ($path:ident, $ends:ty) => {
        mod $path {
            promises! { expectations over $ends:
                nothing::at_once_at_any_time, nothing::nobody_hears_of_it,
                exact::across_chunks, exact::unexpected_eof,
                amounts::single_bytes, amounts::one_large_write,
                lines::lines, lines::read_until,
                cancelled::reads, cancelled::writes, cancelled::ends,
                dials::accepts, dials::connects,
                halves::both_stop_reading, halves::both_stop_reading_split_by_tokio,
                halves::both_shut_down_unread,
                wakers::woken, wakers::replaced, wakers::idle, wakers::woken_by_failure,
                wakers::every_chunk,
            }
        }
    };
}

expectations!(tcp, crate::common::ends::Tcp);
#[cfg(feature = "rdma")]
expectations!(rdma, crate::common::ends::Rdma);

/// Those in which a new link could lose something, or forget to wake somebody.
#[cfg(feature = "rdma")]
mod renewed_rdma {
    promises! { expectations over crate::common::ends::Renewed:
        exact::across_chunks,
        cancelled::writes, cancelled::ends,
        halves::both_stop_reading,
        wakers::woken, wakers::every_chunk,
    }
}
