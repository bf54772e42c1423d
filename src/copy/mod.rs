//! What rdcp does beyond streams and agents: copies files and trees from one host to another.
//!
//! Two agents do the work: the [`source`] reads and sends, the [`destination`] writes. [`job`] makes either an
//! application of the agent, and [`supervised`] is the copy as the controller's supervisor sees it. What they send each
//! other is in
//! [`order`] (rdcp and its agents), [`record`] (the lanes between the agents) and [`question`] (the control stream between
//! them).

pub(crate) mod block_digest;
mod bounded;
pub(crate) mod budget;
pub(crate) mod destination;
mod holes;
pub(crate) mod identity;
pub(crate) mod job;
pub(crate) mod metadata;
mod nameless;
pub(crate) mod order;
pub(crate) mod path;
pub(crate) mod question;
pub(crate) mod record;
pub(crate) mod source;
pub(crate) mod supervised;
pub(crate) mod temporary_names;
#[cfg(test)]
mod tests;
pub(crate) mod written;

/// The entry point of the fuzz target for what a peer of a copy sends, and for maps on a disk.
///
/// Decodes `data` as a record of a lane, as messages of the control stream and as a map. Panics if something that was
/// decoded cannot be encoded and decoded again, or if a map has a range outside its file.
#[cfg(any(test, fuzzing))]
pub fn fuzz(data: &[u8]) {
    if let Some((prefix, _)) = data.split_first_chunk::<{ record::PREFIX_BYTES }>() {
        let _ = record::RecordPrefix::decode(*prefix);
    }
    if let Ok(record) = record::decode(data) {
        let mut again = Vec::new();
        if record::encode(&record, &mut again).is_ok() {
            assert_eq!(record::decode(&again[record::PREFIX_BYTES..]), Ok(record));
        }
    }
    fuzz_message::<question::FromSource>(data);
    fuzz_message::<question::FromDestination>(data);
    destination::fuzz_map(data);
}

#[cfg(any(test, fuzzing))]
fn fuzz_message<T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(
    data: &[u8],
) {
    if let Ok(message) = postcard::from_bytes::<T>(data) {
        let again = postcard::to_stdvec(&message).expect("what was decoded can be encoded");
        assert_eq!(postcard::from_bytes(&again), Ok(message));
    }
}
