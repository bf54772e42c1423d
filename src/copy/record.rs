//! What a lane carries: records, each with a block of contents behind it. Pure, no I/O.
//!
//! ```text
//!  0        4        8                           8 + head
//! ┌────────┬────────┬────────────┬──────────────┬──────────────┐
//! │ head   │ data   │ LaneRecord │ padding      │ contents     │
//! │ u32 LE │ u32 LE │ in postcard│ up to 63 × 0 │ `data` bytes │
//! └────────┴────────┴────────────┴──────────────┴──────────────┘
//! ```
//!
//! The padding lets contents begin at a multiple of 64 bytes in the sender's memory ([`CONTENT_ALIGNMENT`]).
//!
//! The length of the contents stands at a fixed place, so that a sender reads a file straight into its registered
//! buffer, behind the record, and writes afterwards how many bytes there were.
//!
//! Each lane is complete in itself: a [`LaneRecord::Folder`] comes before the entries of that folder, and all small
//! entries of one folder travel in one lane. Only the parts of large files are spread over the lanes.

use serde::{Deserialize, Serialize};

use super::{
    metadata::{EntryKind, Metadata},
    path::{EntryName, RelativePath},
};

/// The bytes before a record: the length of the record and the length of its contents.
pub(crate) const PREFIX_BYTES: usize = 8;

/// The most bytes of an encoded record: the longest path that Linux accepts, and as many extended attributes as Linux
/// lists for one file (64 KiB of names), with their values.
pub(crate) const MAX_RECORD_BYTES: usize = 1 << 20;

/// A sender lets contents begin at a multiple of this many bytes in its memory: a cache line. read(2) copies to such an
/// address up to three times faster than to another one, by the instruction `rep movsb`.
pub(crate) const CONTENT_ALIGNMENT: usize = 64;

/// The most bytes of contents behind one record.
pub(crate) const MAX_CONTENT_BYTES: usize = 64 << 20;

/// A record of a lane. The order of the variants is the wire format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LaneRecord {
    /// The entries that follow are in this folder. The destination makes it if it is missing, and gives it its metadata
    /// when everything has been written.
    ///
    /// The empty path with metadata is the place itself, if the contents of the source go straight there, as for `DIR/.`
    /// ([`CopiedSources`](super::operand::CopiedSources)). The empty path without metadata is the folder of a file that
    /// the user named.
    Folder {
        /// The folder; the empty path is the place that receives the copy.
        path: RelativePath,
        /// The metadata; none for a folder that is not itself copied (the place itself, or the folder of a file that
        /// the user named).
        metadata: Option<Metadata>,
    },
    /// A whole file, whose contents follow.
    File {
        /// The name in the current folder.
        name: EntryName,
        /// The metadata.
        metadata: Metadata,
    },
    /// An entry that has no contents: a symbolic link, a FIFO, a socket or a device.
    Special {
        /// The name in the current folder.
        name: EntryName,
        /// What the entry is: neither a file nor a directory.
        kind: EntryKind,
        /// The target of a symbolic link; empty otherwise.
        target: Vec<u8>,
        /// The metadata.
        metadata: Metadata,
    },
    /// One more name of a file that this run sends under another name. The destination makes it when everything has
    /// been written.
    HardLink {
        /// The name in the current folder.
        name: EntryName,
        /// The first name of the file.
        target: RelativePath,
    },
    /// Announces a large or sparse file. Sent in each lane before the lane's first part of it.
    LargeFile(LargeFile),
    /// A part of a large file, whose contents follow. Bytes between parts are a hole.
    Part {
        /// The number of the file.
        id: u64,
        /// The offset of the contents in the file.
        offset: u64,
    },
    /// The last record about a large file, in one lane: parts in other lanes may arrive later.
    LargeFileEnd {
        /// The number of the file.
        id: u64,
        /// The bytes of all parts in all lanes, or none if the source could not read the file: it must not get its
        /// final name.
        content_bytes: Option<u64>,
    },
    /// Names the numbers of owners. Sent in each lane before a number is used, if owners are kept by name.
    Owner {
        /// The number of a user, and its name.
        user: Option<(u32, String)>,
        /// The number of a group, and its name.
        group: Option<(u32, String)>,
    },
    /// The last record of a lane.
    End,
}

/// A file that is sent in parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LargeFile {
    /// The number of the file, unique in a run.
    pub(crate) id: u64,
    /// The file.
    pub(crate) path: RelativePath,
    /// The size, holes included.
    pub(crate) size: u64,
    /// The metadata.
    pub(crate) metadata: Metadata,
    /// True if the parts continue what an earlier run has left ([`AnswerKind::Resume`](super::question::AnswerKind)).
    pub(crate) resumed: bool,
}

/// Appends a record without contents to `buffer`.
///
/// # Errors
///
/// Fails if the encoding with its padding may be longer than [`MAX_RECORD_BYTES`].
pub(crate) fn encode(record: &LaneRecord, buffer: &mut Vec<u8>) -> Result<(), RecordError> {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; PREFIX_BYTES]);
    let end = postcard::experimental::serialized_size(record)?;
    if end + CONTENT_ALIGNMENT > MAX_RECORD_BYTES {
        return Err(RecordError::TooLong);
    }
    buffer.resize(start + PREFIX_BYTES + end, 0);
    postcard::to_slice(record, &mut buffer[start + PREFIX_BYTES..])?;
    set_lengths(&mut buffer[start..], 0);
    Ok(())
}

/// Writes the lengths into a record that [`encode`] has made, and that fills `head` with its padding.
pub(crate) fn set_lengths(head: &mut [u8], content_bytes: usize) {
    let lengths = [head.len() - PREFIX_BYTES, content_bytes];
    for (field, length) in head[..PREFIX_BYTES].chunks_exact_mut(4).zip(lengths) {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        field.copy_from_slice(&length.to_le_bytes());
    }
}

/// The lengths in front of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordPrefix {
    /// The bytes of the encoded record and its padding.
    pub(crate) record_bytes: usize,
    /// The bytes of the contents behind it.
    pub(crate) content_bytes: usize,
}

impl RecordPrefix {
    /// Decodes the first [`PREFIX_BYTES`] of a record.
    ///
    /// # Errors
    ///
    /// Fails if a length is beyond its limit.
    pub(crate) fn decode(bytes: [u8; PREFIX_BYTES]) -> Result<Self, RecordError> {
        let length = |at: usize| {
            let bytes = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
            usize::try_from(u32::from_le_bytes(bytes)).unwrap_or(usize::MAX)
        };
        let prefix = Self {
            record_bytes: length(0),
            content_bytes: length(4),
        };
        if prefix.record_bytes > MAX_RECORD_BYTES || prefix.content_bytes > MAX_CONTENT_BYTES {
            return Err(RecordError::TooLong);
        }
        Ok(prefix)
    }
}

/// Decodes a record with its padding.
///
/// # Errors
///
/// Fails if `bytes` are not exactly one record with valid names and padding.
pub(crate) fn decode(bytes: &[u8]) -> Result<LaneRecord, RecordError> {
    match postcard::take_from_bytes(bytes)? {
        (record, rest) if rest.len() < CONTENT_ALIGNMENT && rest.iter().all(|&byte| byte == 0) => {
            Ok(record)
        }
        _ => Err(postcard::Error::DeserializeBadEncoding.into()),
    }
}

/// Why bytes are not a record, or a record cannot be encoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    /// A record or its contents are beyond the limit.
    #[error("a record is longer than allowed")]
    TooLong,
    /// The bytes are not the encoding of a record.
    #[error("not a record of this version")]
    Malformed(#[from] postcard::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_with_and_without_padding() {
        let record = LaneRecord::Part {
            id: 1,
            offset: 1 << 40,
        };
        let mut bytes = Vec::new();
        encode(&record, &mut bytes).unwrap();
        for padding in [0, 1, CONTENT_ALIGNMENT - 1] {
            let mut head = [&bytes[..], &vec![0; padding]].concat();
            set_lengths(&mut head, 77);
            let (prefix, rest) = head.split_first_chunk::<PREFIX_BYTES>().unwrap();
            let prefix = RecordPrefix::decode(*prefix).unwrap();
            assert_eq!(
                (prefix.record_bytes, prefix.content_bytes),
                (rest.len(), 77)
            );
            assert_eq!(decode(rest), Ok(record.clone()));
        }
        let record = &bytes[PREFIX_BYTES..];
        assert!(decode(&[record, &[0; CONTENT_ALIGNMENT]].concat()).is_err());
        assert!(decode(&[record, &[1]].concat()).is_err());
    }
}
