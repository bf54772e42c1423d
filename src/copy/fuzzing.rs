//! The entry points of the fuzz targets for what a peer of a copy sends, and for maps on a disk.

use serde::{Serialize, de::DeserializeOwned};

use super::{
    destination::fuzz_map,
    question::{FromDestination, FromSource},
    record::{PREFIX_BYTES, RecordPrefix, decode, encode},
};

/// Decodes `data` as a record of a lane, as messages of the control stream and as a map. Panics if something that was
/// decoded cannot be encoded and decoded again, or if a map has a range outside its file.
pub fn copy(data: &[u8]) {
    if let Some((prefix, _)) = data.split_first_chunk::<PREFIX_BYTES>() {
        let _ = RecordPrefix::decode(*prefix);
    }
    if let Ok(record) = decode(data) {
        let mut again = Vec::new();
        if encode(&record, &mut again).is_ok() {
            assert_eq!(decode(&again[PREFIX_BYTES..]), Ok(record));
        }
    }
    message::<FromSource>(data);
    message::<FromDestination>(data);
    fuzz_map(data);
}

fn message<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(data: &[u8]) {
    if let Ok(message) = postcard::from_bytes::<T>(data) {
        let again = postcard::to_stdvec(&message).expect("what was decoded can be encoded");
        assert_eq!(postcard::from_bytes(&again), Ok(message));
    }
}
