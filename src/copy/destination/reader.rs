//! Reads the records of a lane, and hands out their contents from the slots of the stream.

use std::pin::Pin;

use tokio::io::{AsyncBufRead, AsyncBufReadExt};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::{
    Stream,
    copy::{
        job::CopyFailure,
        record::{LaneRecord, PREFIX_BYTES, RecordPrefix, decode},
    },
};

/// The records of a lane.
///
/// A record is copied before it is decoded, because a peer can change the bytes of a slot over RDMA. Contents are not
/// copied: whatever they are, they are contents.
pub(super) struct RecordReader {
    stream: Stream,
    /// The bytes of one record.
    record: Vec<u8>,
    /// The bytes of contents that are still to be read.
    contents_left: usize,
    halt: CancellationToken,
    halted: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl RecordReader {
    /// Returns the reader of a lane, which ends with [`CopyFailure::Cancelled`] when `halt` is cancelled.
    pub(super) fn new(stream: Stream, halt: CancellationToken) -> Self {
        let halted = Box::pin(halt.clone().cancelled_owned());
        Self {
            stream,
            record: Vec::new(),
            contents_left: 0,
            halt,
            halted,
        }
    }

    /// Returns the next record, after what is left of the contents of the last one.
    ///
    /// # Errors
    ///
    /// Fails if the stream breaks or ends, the record is not valid, or the work is cancelled.
    pub(super) async fn next(&mut self) -> Result<LaneRecord, CopyFailure> {
        self.skip_contents().await?;
        if self.halt.is_cancelled() {
            return Err(CopyFailure::Cancelled);
        }
        tokio::task::consume_budget().await;
        self.fill(PREFIX_BYTES).await?;
        let prefix = self.record[..PREFIX_BYTES].try_into();
        let prefix = RecordPrefix::decode(prefix.unwrap_or_default()).map_err(broken)?;
        self.fill(prefix.record_bytes).await?;
        self.contents_left = prefix.content_bytes;
        decode(&self.record).map_err(broken)
    }

    /// Returns the bytes of contents that are still to be read.
    pub(super) fn contents_left(&self) -> usize {
        self.contents_left
    }

    /// Returns the next piece of the contents, in its slot; empty at their end.
    ///
    /// # Errors
    ///
    /// Fails if the stream breaks or ends, or the work is cancelled.
    pub(super) async fn piece(&mut self) -> Result<&[u8], CopyFailure> {
        if self.contents_left == 0 {
            return Ok(&[]);
        }
        let left = self.contents_left;
        let bytes = self.bytes().await?;
        let count = bytes.len().min(left);
        Ok(&bytes[..count])
    }

    /// Consumes `count` bytes of the piece that was returned last.
    pub(super) fn consume(&mut self, count: usize) {
        Pin::new(&mut self.stream).consume(count);
        self.contents_left -= count;
    }

    /// Reads to the end of the stream behind the last record.
    ///
    /// # Errors
    ///
    /// Fails if more bytes follow, the stream breaks, or the work is cancelled.
    pub(super) async fn end(&mut self) -> Result<(), CopyFailure> {
        self.skip_contents().await?;
        let rest = tokio::select! {
            biased;
            rest = self.stream.fill_buf() => rest.map_err(|error| CopyFailure::of_stream(&error))?,
            () = self.halted.as_mut() => return Err(CopyFailure::Cancelled),
        };
        if rest.is_empty() {
            Ok(())
        } else {
            Err(broken("bytes follow the last record"))
        }
    }

    /// Returns the stream.
    pub(super) fn into_stream(self) -> Stream {
        self.stream
    }

    async fn skip_contents(&mut self) -> Result<(), CopyFailure> {
        while self.contents_left > 0 {
            let count = self.piece().await?.len();
            self.consume(count);
        }
        Ok(())
    }

    /// Copies the next `count` bytes of the stream to `record`.
    async fn fill(&mut self, count: usize) -> Result<(), CopyFailure> {
        self.record.clear();
        while self.record.len() < count {
            let missing = count - self.record.len();
            // The field is taken out while the bytes are borrowed from the stream.
            let mut record = std::mem::take(&mut self.record);
            let bytes = self.bytes().await?;
            let piece = &bytes[..bytes.len().min(missing)];
            record.extend_from_slice(piece);
            let taken = piece.len();
            Pin::new(&mut self.stream).consume(taken);
            self.record = record;
        }
        Ok(())
    }

    /// Returns the unread rest of the current slot, which is not empty.
    async fn bytes(&mut self) -> Result<&[u8], CopyFailure> {
        let bytes = tokio::select! {
            biased;
            bytes = self.stream.fill_buf() => bytes.map_err(|error| CopyFailure::of_stream(&error))?,
            () = self.halted.as_mut() => return Err(CopyFailure::Cancelled),
        };
        if bytes.is_empty() {
            return Err(broken("the lane ended too early"));
        }
        Ok(bytes)
    }
}

/// Returns the failure with a source that breaks the protocol.
pub(super) fn broken(what: impl std::fmt::Display) -> CopyFailure {
    CopyFailure::Local(format!("the source broke the protocol: {what}"))
}
