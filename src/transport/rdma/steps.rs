//! The steps towards a link, as they travel on the control connection.

use serde::{Serialize, de::DeserializeOwned};

/// A step as it travels.
pub(super) fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("plain data, and memory does not fail")
}

/// A step of the peer's.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    postcard::from_bytes(bytes).map_err(|_| "the other end's RDMA offer makes no sense".to_owned())
}
