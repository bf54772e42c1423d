//! Packs records and contents into the registered buffers of a lane.

use std::sync::Arc;

use tokio::io::AsyncWriteExt;

use crate::{
    SendBuffer, Stream,
    copy::{
        job::CopyFailure,
        record::{LaneRecord, RecordError, encode, set_content_length},
        source::shared::{RateLimit, SourceShared},
    },
};

/// Packs records back to back, with contents that are read straight into the buffer behind them.
pub(crate) struct LanePacker {
    stream: Stream,
    shared: Arc<SourceShared>,
    /// The buffer that is being filled.
    buffer: Option<SendBuffer>,
    /// The record that was encoded last.
    record: Vec<u8>,
    /// Where the length of its contents stands.
    length_at: usize,
}

impl LanePacker {
    /// Returns a packer for a lane.
    pub(crate) fn new(stream: Stream, shared: Arc<SourceShared>) -> Self {
        Self {
            stream,
            shared,
            buffer: None,
            record: Vec::new(),
            length_at: 0,
        }
    }

    /// Encodes a record that contents follow. Returns its length.
    ///
    /// # Errors
    ///
    /// Fails if the record is too long.
    pub(crate) fn encode(&mut self, record: &LaneRecord) -> Result<usize, RecordError> {
        self.record.clear();
        self.length_at = encode(record, &mut self.record)?;
        Ok(self.record.len())
    }

    /// Makes sure that the next `bytes` bytes fit into one buffer. Returns false if no buffer is so large.
    ///
    /// # Errors
    ///
    /// Fails if the stream broke.
    pub(crate) async fn reserve(&mut self, bytes: usize) -> Result<bool, CopyFailure> {
        for _ in 0..2 {
            let room = self.room().await?;
            if bytes <= room.len() {
                return Ok(true);
            }
            if self.buffer.as_ref().is_none_or(|buffer| buffer.is_empty()) {
                return Ok(false);
            }
            self.push().await?;
        }
        Ok(false)
    }

    /// Appends the encoded record and the contents that `fill` reads into the room behind it. If `fill` fails, nothing
    /// is appended. [`reserve`](Self::reserve) has made room.
    ///
    /// # Errors
    ///
    /// Those of `fill`.
    pub(crate) fn append<E>(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let most = self.most_bytes();
        let Some(buffer) = &mut self.buffer else {
            return Ok(0);
        };
        let filled = buffer.len();
        let room = buffer.unfilled_mut();
        let end = room.len().min(most.saturating_sub(filled));
        let (head, contents) = room[..end].split_at_mut(self.record.len());
        let count = fill(contents)?;
        head.copy_from_slice(&self.record);
        let length = u32::try_from(count).unwrap_or(u32::MAX);
        set_content_length(head, self.length_at, length);
        buffer.advance(self.record.len() + count);
        self.shared.tally.sent_bytes(count as u64);
        Ok(count)
    }

    /// Appends a record without contents. It may be longer than a buffer.
    ///
    /// # Errors
    ///
    /// Fails if the stream broke. The inner error is that of [`encode`](Self::encode): then nothing was appended.
    pub(crate) async fn put(
        &mut self,
        record: &LaneRecord,
    ) -> Result<Result<(), RecordError>, CopyFailure> {
        if let Err(error) = self.encode(record) {
            return Ok(Err(error));
        }
        let record = std::mem::take(&mut self.record);
        let mut rest = &record[..];
        while !rest.is_empty() {
            let room = self.room().await?;
            let count = room.len().min(rest.len());
            room[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            match &mut self.buffer {
                Some(buffer) if count > 0 => buffer.advance(count),
                _ => self.push().await?,
            }
        }
        self.record = record;
        Ok(Ok(()))
    }

    /// Sends what was packed, and waits as the limit of the rate says.
    ///
    /// # Errors
    ///
    /// Fails if the stream broke.
    pub(crate) async fn push(&mut self) -> Result<(), CopyFailure> {
        let Some(buffer) = self.buffer.take_if(|buffer| !buffer.is_empty()) else {
            return Ok(());
        };
        let bytes = buffer.len();
        self.stream
            .send(buffer)
            .map_err(|error| CopyFailure::of_stream(&error))?;
        if let Some(limit) = &self.shared.limit {
            tokio::time::sleep(limit.count(bytes)).await;
        }
        // Files are read without waiting: the other tasks of the thread run here.
        tokio::task::yield_now().await;
        Ok(())
    }

    /// Sends all that was packed, and waits until the network has accepted it.
    ///
    /// # Errors
    ///
    /// Fails if the stream broke.
    pub(crate) async fn flush(&mut self) -> Result<(), CopyFailure> {
        self.push().await?;
        let flushed = self.stream.flush().await;
        flushed.map_err(|error| CopyFailure::of_stream(&error))
    }

    /// Ends the stream, and waits until the destination has confirmed it.
    ///
    /// # Errors
    ///
    /// Fails if the stream broke.
    pub(crate) async fn finish(&mut self) -> Result<(), CopyFailure> {
        self.buffer = None;
        self.stream.finish().await.map_err(CopyFailure::Stream)
    }

    /// Returns the stream, without what was not sent.
    pub(crate) fn into_stream(self) -> Stream {
        self.stream
    }

    /// Returns the free bytes of a buffer.
    async fn room(&mut self) -> Result<&mut [u8], CopyFailure> {
        let most = self.most_bytes();
        let buffer = match &mut self.buffer {
            Some(buffer) => buffer,
            empty => {
                let lent = self.stream.send_buffer().await;
                empty.insert(lent.map_err(|error| CopyFailure::of_stream(&error))?)
            }
        };
        let filled = buffer.len();
        let room = buffer.unfilled_mut();
        let end = room.len().min(most.saturating_sub(filled));
        Ok(&mut room[..end])
    }

    fn most_bytes(&self) -> usize {
        let limit = self.shared.limit.as_ref();
        limit.map_or(usize::MAX, RateLimit::most_bytes)
    }
}
