//! The encoding of the steps towards a link on the control connection.

use serde::{Serialize, de::DeserializeOwned};

/// Encodes a step.
pub(super) fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("plain data, and memory does not fail")
}

/// Decodes a step of the peer.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    postcard::from_bytes(bytes)
        .map_err(|_| "the RDMA offer of the other end cannot be decoded".to_owned())
}
