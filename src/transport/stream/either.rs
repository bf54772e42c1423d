//! One thing over whichever data path a stream was given: every call goes through one `match`, none
//! through a table of functions.

/// By data path.
pub(crate) enum Either<T, R> {
    /// Over TCP.
    Tcp(T),
    /// Over RDMA. A build without it has no such thing, and the compiler knows: `R` is
    /// [`Infallible`](std::convert::Infallible) there.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code))]
    Rdma(R),
}

/// Runs the same expression on whichever there is.
macro_rules! either {
    ($either:expr, $inner:ident => $call:expr) => {
        match $either {
            $crate::transport::stream::either::Either::Tcp($inner) => $call,
            #[cfg(feature = "rdma")]
            $crate::transport::stream::either::Either::Rdma($inner) => $call,
            #[cfg(not(feature = "rdma"))]
            $crate::transport::stream::either::Either::Rdma(never) => match *never {},
        }
    };
}

pub(super) use either;
