//! The entry points of the fuzz targets. They are compiled only for fuzzing, stand above all layers, and no layer depends
//! on them.
//!
//! Each function must return for any bytes, and checks the promise that its doc comment makes.

mod parsers;
#[cfg(feature = "rdma")]
mod rdma;
pub(crate) mod runtime;
pub(crate) mod script;
mod stream;

pub use parsers::{control, handshake, header};
#[cfg(feature = "rdma")]
pub use rdma::rdma;
pub use stream::stream;
