//! One thing over whichever data path a stream was given: every call goes through one `match`, none
//! through a table of functions.

/// By data path.
pub(crate) enum Either<T, R> {
    /// Over TCP.
    Tcp(T),
    /// Over RDMA. In a build without RDMA no value of this kind is ever made.
    Rdma(R),
}

/// Runs the same expression on whichever there is.
macro_rules! either {
    ($either:expr, $inner:ident => $call:expr) => {
        match $either {
            $crate::transport::stream::either::Either::Tcp($inner) => $call,
            $crate::transport::stream::either::Either::Rdma($inner) => $call,
        }
    };
}

pub(super) use either;
