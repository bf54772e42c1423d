//! What the two ends of a copy ask each other, on the two-way edge beside the lanes. Pure, no I/O.
//!
//! Each message is a length (u32, little-endian) and its encoding in postcard, of at most [`MAX_QUESTION_BYTES`] from the
//! source and [`MAX_ANSWER_BYTES`] from the destination.

use bytes::Bytes;
use rdpipe_digest::xxh3_64;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio_util::codec::LengthDelimitedCodec;

use super::{
    block_digest::{BLOCK_DIGEST_BYTES, DigestKey},
    bounded::{MAX_ATTRIBUTES, at_most, at_most_if_any},
    identity::SourceOperand,
    metadata::{Attribute, EntryKind, Timestamp},
    path::{EntryName, RelativePath},
};

/// The most bytes of one encoded message of the destination: the answers with the ranges of many files.
pub(crate) const MAX_ANSWER_BYTES: usize = 4 << 20;

/// The most bytes of one encoded message of the source.
pub(crate) const MAX_QUESTION_BYTES: usize = 1 << 20;

/// The most entries in one [`FromSource::Ask`] or [`FromSource::Names`].
pub(crate) const MAX_ENTRIES: usize = 512;

/// The most operands in one [`FromSource::Operands`]: a path takes up to 4 KiB, and the directories that it is in as much.
pub(crate) const MAX_OPERANDS: usize = 64;

/// The most bytes of extended attributes in one [`FromSource::Ask`] without its last entry, and of one entry.
pub(crate) const MAX_ASKED_ATTRIBUTE_BYTES: usize = 256 << 10;

/// A message from the source. The order of the variants is the wire format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FromSource {
    /// Asks which of these entries of a folder are wanted. Sent only if an option needs the answer: `--no-clobber`,
    /// `--update`, `--skip-same`, `--resume`, `--dry-run`. At most a few are unanswered at a time.
    Ask {
        folder: RelativePath,
        /// At most [`MAX_ENTRIES`] entries of it, directories left out.
        #[serde(deserialize_with = "at_most::<MAX_ENTRIES, _, _>")]
        entries: Vec<AskedEntry>,
    },
    /// With `--delete`: the names of all entries that the source has in a folder. What else the destination has there
    /// is removed. Not sent for a folder that could not be read to its end.
    Names {
        folder: RelativePath,
        /// At most [`MAX_ENTRIES`] names.
        #[serde(deserialize_with = "at_most::<MAX_ENTRIES, _, _>")]
        names: Vec<EntryName>,
        /// True if these are the last names of the folder.
        last: bool,
    },
    /// The last message: the walk is complete, and every lane carries all of its records.
    Finished,
    /// Names the numbers of owners. Sent before a number is used in [`AskedMetadata`], if owners are kept by name.
    Owner {
        user: Option<(u32, String)>,
        group: Option<(u32, String)>,
    },
    /// The first messages: the operands of the source. The destination writes nothing before it has compared all of them
    /// with their copies.
    Operands {
        /// At most [`MAX_OPERANDS`] operands.
        #[serde(deserialize_with = "at_most::<MAX_OPERANDS, _, _>")]
        operands: Vec<SourceOperand>,
        /// True if these are the last ones.
        last: bool,
    },
}

/// An entry that the source could send.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AskedEntry {
    /// The name in the folder.
    pub(crate) name: EntryName,
    pub(crate) kind: EntryKind,
    pub(crate) size: u64,
    /// The time of the last modification.
    pub(crate) modified: Timestamp,
    /// The time of the last change, which no program can set.
    pub(crate) changed: Timestamp,
    /// With `-a`: what an entry gets whose contents the destination has already. None if no option skips such entries.
    pub(crate) metadata: Option<AskedMetadata>,
    /// The digest (XXH3-64) of the target of a symbolic link. None for other entries, and if the link cannot be read.
    pub(crate) target: Option<u64>,
}

/// The metadata of an entry, without its times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AskedMetadata {
    /// The permission bits, with set-user-ID, set-group-ID and the sticky bit (0o7777).
    pub(crate) mode: u32,
    /// The number of the owner at the source.
    pub(crate) uid: u32,
    /// The number of the group at the source.
    pub(crate) gid: u32,
    /// Extended attributes, ACLs among them: name and value. None if the source could not read them.
    #[serde(deserialize_with = "at_most_if_any::<MAX_ATTRIBUTES, _, _>")]
    pub(crate) attributes: Option<Vec<Attribute>>,
}

/// A message from the destination. The order of the variants is the wire format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FromDestination {
    /// Answers the oldest unanswered [`FromSource::Ask`]: one answer for each entry, in its order.
    Answers(#[serde(deserialize_with = "at_most::<MAX_ENTRIES, _, _>")] Vec<AnswerKind>),
    /// With `--remove-source-files`: this entry was not written, so the source keeps its file.
    NotWritten(RelativePath),
    /// The last message: everything has its final name, or was reported in [`NotWritten`](Self::NotWritten).
    Done,
}

/// What the destination wants of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AnswerKind {
    /// All of it.
    Send,
    /// Nothing: the destination has the same, with the metadata of [`AskedEntry::metadata`].
    Skip,
    /// With `--resume`: the rest of a file. The destination has these ranges of the contents, verified by the run that
    /// wrote them, since the last start of the machine and the last change of the source's file. No server answers so.
    Resume(Vec<ByteRange>),
    /// With `--resume`: the rest of a file, and the blocks that differ. The destination is a server, or its machine was
    /// restarted since, or something of the source's file has changed, or `--checksum` lists the file: so each block has
    /// a digest of what is there now. The source sends the blocks whose own digest differs, with their holes.
    Compare {
        key: DigestKey,
        blocks: Vec<ComparedBlock>,
    },
    /// Nothing, because the destination could not write the entry or makes none of its kind (`--dry-run`), or cannot
    /// look at what it would keep (`--no-clobber`, `--update`). The destination has reported that.
    Leave,
    /// Nothing: the destination keeps what it has, which may be something else (`--no-clobber`, `--update`).
    Keep,
}

impl AnswerKind {
    /// Returns true if nothing of the entry is sent.
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self, Self::Skip | Self::Leave | Self::Keep)
    }
}

pub(crate) type ComparedBlock = (ByteRange, [u8; BLOCK_DIGEST_BYTES]);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ByteRange {
    /// The offset of the first byte.
    pub(crate) start: u64,
    /// The offset behind the last byte.
    pub(crate) end: u64,
}

/// Returns the digest of the target of a symbolic link.
pub(crate) fn target_digest(target: &[u8]) -> u64 {
    xxh3_64(target)
}

/// Returns the codec for the frames of messages of so many bytes at most.
pub(crate) fn codec(most_bytes: usize) -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder()
        .little_endian()
        .length_field_length(4)
        .max_frame_length(most_bytes)
        .new_codec()
}

/// Encodes a message, without the length of its frame.
pub(crate) fn encode(message: &impl Serialize) -> Result<Bytes, postcard::Error> {
    postcard::to_stdvec(message).map(Bytes::from)
}

/// Decodes a message from its frame.
/// Fails if the frame is not exactly one message.
pub(crate) fn decode<T: DeserializeOwned>(frame: &[u8]) -> Result<T, postcard::Error> {
    match postcard::take_from_bytes(frame)? {
        (message, []) => Ok(message),
        _ => Err(postcard::Error::DeserializeBadEncoding),
    }
}
