//! The entry points of the fuzz targets. They are compiled only for fuzzing, stand above all layers, and no layer depends
//! on them.
//!
//! Each function must return for any bytes, and checks the promise that its doc comment makes.
//!
//! | file | what is fuzzed |
//! |---|---|
//! | `parsers` | each parser of bytes from the network, by itself |
//! | `stream` | the state and the lanes of a stream whose peer has the key |
//! | `rdma` | the setup and the renewal of a link with such a peer |
//! | [`script`] | a fuzzer's bytes as decisions |

mod parsers;
#[cfg(feature = "rdma")]
mod rdma;
pub(crate) mod script;
mod stream;

pub use parsers::{control, handshake, header};
#[cfg(feature = "rdma")]
pub use rdma::rdma;
pub use stream::stream;
