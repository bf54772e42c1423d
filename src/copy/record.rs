//! What a lane carries: records, each with a block of contents behind it. Pure, no I/O.
//!
//! ```text
//!  0        4        8            8 + head
//! ┌────────┬────────┬────────────┬──────────────┐
//! │ head   │ data   │ LaneRecord │ contents     │
//! │ u32 LE │ u32 LE │ in postcard│ `data` bytes │
//! └────────┴────────┴────────────┴──────────────┘
//! ```
//!
//! The length of the contents stands at a fixed place, so that a sender reads a file straight into its registered
//! buffer, behind the record, and writes afterwards how many bytes there were.
//!
//! Each lane is complete in itself: a [`LaneRecord::Folder`] comes before the entries of that folder, and all small
//! entries of one folder travel in one lane. Only the parts of large files are spread over the lanes.

use serde::{Deserialize, Serialize};

use super::{
    bounded::at_most,
    metadata::{EntryKind, Metadata, Timestamp},
    path::{EntryName, RelativePath},
};

/// The bytes before a record: the length of the record and the length of its contents.
pub(crate) const PREFIX_BYTES: usize = 8;

/// The most bytes of an encoded record: the longest path that Linux accepts, and as many extended attributes as Linux
/// lists for one file (64 KiB of names), with their values.
pub(crate) const MAX_RECORD_BYTES: usize = 1 << 20;

/// The most directories above a folder: more than the longest path of Linux has, because a tree can be deeper.
const MAX_ABOVE: usize = 32 << 10;

/// The most bytes of contents behind one record.
pub(crate) const MAX_CONTENT_BYTES: usize = 64 << 20;

/// A record of a lane. The order of the variants is the wire format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LaneRecord {
    /// The entries that follow are in this folder. The destination makes it if it is missing, and gives it its metadata
    /// when everything has been written.
    ///
    /// The empty path with metadata is the place itself, if the contents of the source go straight there, as for
    /// `DIR/.` ([`CopiedSources`](crate::copy::path::CopiedSources)). The empty path without metadata is the folder of
    /// a file that the user named.
    Folder {
        /// The folder; the empty path is the place that receives the copy.
        path: RelativePath,
        /// The metadata; none for a folder that is not itself copied (the place itself, or the folder of a file that
        /// the user named).
        metadata: Option<Metadata>,
        /// The modes of the directories above that are copied too, the nearest first: another lane may not have named
        /// them yet. Empty if all metadata are kept, because modes are then set at the end.
        #[serde(deserialize_with = "at_most::<MAX_ABOVE, _, _>")]
        above: Vec<u32>,
    },
    /// A whole file, whose contents follow.
    File {
        /// The name in the current folder.
        name: EntryName,
        metadata: Metadata,
    },
    /// An entry that has no contents: a symbolic link, a FIFO, a socket or a device.
    Special {
        /// The name in the current folder.
        name: EntryName,
        /// What the entry is: neither a file nor a directory.
        kind: EntryKind,
        /// The target of a symbolic link; empty otherwise.
        #[serde(with = "serde_bytes")]
        target: Vec<u8>,
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
        user: Option<(u32, String)>,
        group: Option<(u32, String)>,
    },
    /// The last record of a lane.
    End,
    /// A hole of a large file: no part of any lane is in it. Sent before the part behind it. A destination that cannot
    /// seek, such as a FIFO, receives zeros.
    Hole {
        /// The number of the file.
        id: u64,
        /// The offset of the first byte.
        start: u64,
        /// The offset behind the last byte.
        end: u64,
    },
    /// One more name of a file, under which the destination has the same already. It becomes a hard link when
    /// everything has been written, unless it is one.
    KeptLink {
        /// The name in the current folder.
        name: EntryName,
        /// The first name of the file, which is sent or kept.
        target: RelativePath,
    },
    /// Stands for [`LargeFileEnd`](Self::LargeFileEnd) without bytes, if the source's file has changed since it was
    /// announced: no later run can continue what has arrived of it.
    LargeFileChanged {
        /// The number of the file.
        id: u64,
    },
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
    /// The bytes that the source expects to send: the size without holes, and without what an earlier run has left.
    pub(crate) content_bytes: u64,
    /// The time of the last change, which no program can set.
    pub(crate) changed: Timestamp,
    pub(crate) metadata: Metadata,
    /// True if the parts continue what an earlier run has left
    /// ([`AnswerKind::Resume`](crate::copy::question::AnswerKind)).
    pub(crate) resumed: bool,
}

/// Appends a record to `buffer`, with room for the length of its contents. Returns the position of that length, to be
/// written by [`set_content_length`].
/// Fails if the encoding is longer than [`MAX_RECORD_BYTES`].
pub(crate) fn encode(record: &LaneRecord, buffer: &mut Vec<u8>) -> Result<usize, RecordError> {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; PREFIX_BYTES]);
    let end = postcard::experimental::serialized_size(record)?;
    if end > MAX_RECORD_BYTES {
        return Err(RecordError::TooLong);
    }
    buffer.resize(start + PREFIX_BYTES + end, 0);
    postcard::to_slice(record, &mut buffer[start + PREFIX_BYTES..])?;
    let length = u32::try_from(end).map_err(|_| RecordError::TooLong)?;
    buffer[start..start + 4].copy_from_slice(&length.to_le_bytes());
    Ok(start + 4)
}

/// Writes the length of a record's contents at the position that [`encode`] returned.
pub(crate) fn set_content_length(buffer: &mut [u8], position: usize, length: u32) {
    buffer[position..position + 4].copy_from_slice(&length.to_le_bytes());
}

/// The lengths in front of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordPrefix {
    pub(crate) record_bytes: usize,
    /// The bytes of the contents behind it.
    pub(crate) content_bytes: usize,
}

impl RecordPrefix {
    /// Decodes the first [`PREFIX_BYTES`] of a record.
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

/// Decodes a record.
/// Fails if `bytes` are not exactly one record with valid names.
pub(crate) fn decode(bytes: &[u8]) -> Result<LaneRecord, RecordError> {
    match postcard::take_from_bytes(bytes)? {
        (record, []) => Ok(record),
        _ => Err(postcard::Error::DeserializeBadEncoding.into()),
    }
}

/// The reason why bytes are not a record, or a record cannot be encoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    /// A record or its contents are beyond the limit.
    #[error("a record is longer than allowed")]
    TooLong,
    /// The bytes are not the encoding of a record.
    #[error("not a record of this version")]
    Malformed(#[from] postcard::Error),
}
