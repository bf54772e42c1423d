//! A half or a slot over either data path.
//!
//! The public types hold an [`Either`], and forward every call through one `match`. So no call on the data path goes
//! through a table of functions.

/// A value over one of the two data paths.
pub(crate) enum Either<T, R> {
    /// Over TCP.
    Tcp(T),
    /// Over RDMA. In a build without RDMA no value of this kind is ever made.
    Rdma(R),
}

/// Runs one expression on the value of an [`Either`], whichever data path it is over.
macro_rules! either {
    ($either:expr, $inner:ident => $call:expr) => {
        match $either {
            $crate::transport::stream::either::Either::Tcp($inner) => $call,
            $crate::transport::stream::either::Either::Rdma($inner) => $call,
        }
    };
}

pub(super) use either;
