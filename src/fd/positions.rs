//! Regular files that several threads read or write at once, each at the offset of its chunk.
//!
//! A file is read as if by one reader: [`PositionedReader`] lets the threads read at once, but a chunk counts only when
//! every byte before it has been read. So a file that grows or shrinks meanwhile has the end that a sequential reader
//! would find, and nothing of what lies behind it is sent. A file is written in any order, and
//! [`PositionedWriter`] knows up to where it is whole: what is written behind that is cut off if the rest does not come.
//!
//! An open file description is often shared, with a shell for example. Its position is that of a sequential reader or
//! writer before and after, and is not used in between.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::{
        Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
};

use rustix::{
    fs::{FileType, OFlags, SeekFrom, Stat, fcntl_getfl, fstat, ftruncate, major, minor, seek},
    io::{pread, pwrite, retry_on_intr},
};

/// A regular file that several threads read at once.
pub(crate) struct PositionedReader {
    fd: OwnedFd,
    /// The position of the open file description, where the first byte is read.
    base: u64,
    /// The number of bytes that the threads have claimed.
    claimed: AtomicU64,
    order: Mutex<ReadOrder>,
}

/// Up to where the bytes have been read without a gap.
#[derive(Default)]
struct ReadOrder {
    bytes: u64,
    /// The file, or its reading, has ended there.
    has_ended: bool,
    /// The readers that wait for those of earlier bytes, by the place of their chunk.
    waiting: Vec<(u64, Waker)>,
}

/// What one thread has read.
pub(crate) struct Claim {
    /// The number of bytes before.
    pub(crate) at: u64,
    /// The number of bytes, fewer than asked for at the end of the file.
    pub(crate) count: usize,
    asked: usize,
    /// The error that came in place of more bytes.
    error: Option<io::Error>,
}

impl PositionedReader {
    /// Returns a reader of `fd` from its position on; `None` unless it is a regular file with `least` bytes left.
    pub(super) fn new(fd: BorrowedFd<'_>, least: u64) -> Option<Self> {
        let stat = fstat(fd).ok().filter(is_regular)?;
        let base = seek(fd, SeekFrom::Current(0)).ok()?;
        let is_large =
            u64::try_from(stat.st_size).is_ok_and(|size| size >= base.saturating_add(least));
        Some(Self {
            fd: is_large.then(|| fd.try_clone_to_owned().ok()).flatten()?,
            base,
            claimed: AtomicU64::new(0),
            order: Mutex::default(),
        })
    }

    /// Claims the next bytes, as many as `slot` has room for, and reads them. They are not the file's next bytes before
    /// [`confirm`](Self::confirm) says so.
    pub(crate) fn read(&self, slot: &mut [u8]) -> Claim {
        let at = self.claimed.fetch_add(slot.len() as u64, Ordering::Relaxed);
        let mut claim = Claim {
            at,
            count: 0,
            asked: slot.len(),
            error: None,
        };
        while claim.count < slot.len() {
            let rest = &mut slot[claim.count..];
            let offset = self.base + at + claim.count as u64;
            match retry_on_intr(|| pread(&self.fd, &mut *rest, offset)) {
                Ok(0) => break,
                Ok(count) => claim.count += count,
                Err(error) => {
                    claim.error = Some(error.into());
                    break;
                }
            }
        }
        claim
    }

    /// Waits until all bytes before those of `claim` have been read. Returns false if the file ends earlier: the bytes
    /// are none of its then. After a claim that is not full, every later one gets false.
    /// An error comes with the number of bytes before it. It also ends the reading; bytes that were read before the
    /// error are lost.
    /// Not cancel safe: without the bytes of this claim, the reading does not go on.
    pub(crate) async fn confirm(&self, claim: Claim) -> Result<bool, (io::Error, u64)> {
        if !poll_fn(|cx| self.poll_turn(claim.at, cx)).await {
            return Ok(false);
        }
        let error = claim.error;
        let mut order = self.lock();
        order.has_ended = claim.count < claim.asked;
        if error.is_none() {
            order.bytes += claim.count as u64;
        }
        let (end, has_ended) = (order.bytes, order.has_ended);
        let waiting = std::mem::take(&mut order.waiting).into_iter();
        let (woken, waiting) = waiting.partition(|(at, _)| has_ended || *at == end);
        order.waiting = waiting;
        drop(order);
        let woken: Vec<(u64, Waker)> = woken;
        for (_, waker) in woken {
            waker.wake();
        }
        match error {
            Some(error) => Err((error, end)),
            None => Ok(claim.count > 0),
        }
    }

    fn poll_turn(&self, at: u64, cx: &Context<'_>) -> Poll<bool> {
        let mut order = self.lock();
        if order.has_ended || order.bytes == at {
            return Poll::Ready(!order.has_ended);
        }
        order.waiting.retain(|(other, _)| *other != at);
        order.waiting.push((at, cx.waker().clone()));
        Poll::Pending
    }

    /// Moves the position of the open file description behind what was read, and returns the number of those bytes.
    pub(crate) fn finish(&self) -> u64 {
        let bytes = self.lock().bytes;
        // The file was at a position before, so it can be at another.
        let _ = seek(&self.fd, SeekFrom::Start(self.base + bytes));
        bytes
    }

    fn lock(&self) -> MutexGuard<'_, ReadOrder> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A regular file, or `/dev/null`, that several threads write at once.
pub(crate) struct PositionedWriter {
    fd: OwnedFd,
    /// The position of the open file description, where the first byte is written; none for `/dev/null`.
    base: Option<u64>,
    /// The size of the file before.
    size: u64,
    /// False once nothing may be written any more. A thread holds the lock while it writes.
    is_open: RwLock<bool>,
    written: Mutex<WrittenBytes>,
}

#[derive(Default)]
struct WrittenBytes {
    /// The number of bytes without a gap.
    whole: u64,
    /// The pieces behind a gap: their ends, by their beginnings.
    pieces: BTreeMap<u64, u64>,
}

impl WrittenBytes {
    fn add(&mut self, at: u64, end: u64) {
        self.pieces.insert(at, end);
        while let Some(end) = self.pieces.remove(&self.whole) {
            self.whole = end;
        }
    }
}

impl PositionedWriter {
    /// Returns a writer of `fd` from its position on; `None` unless it is `/dev/null` or a regular file that can be
    /// written at any place. If the messages of this process go to the same file, they need the position of the open file
    /// description.
    pub(super) fn new(fd: BorrowedFd<'_>, messages: BorrowedFd<'_>) -> Option<Self> {
        let stat = fstat(fd).ok()?;
        let is_same = |other: &Stat| (other.st_dev, other.st_ino) == (stat.st_dev, stat.st_ino);
        let is_file = is_regular(&stat)
            && !fcntl_getfl(fd).ok()?.contains(OFlags::APPEND)
            && !fstat(messages).is_ok_and(|other| is_same(&other));
        if !is_file && !is_null(&stat) {
            return None;
        }
        Some(Self {
            fd: fd.try_clone_to_owned().ok()?,
            base: if is_file {
                Some(seek(fd, SeekFrom::Current(0)).ok()?)
            } else {
                None
            },
            size: u64::try_from(stat.st_size).ok()?,
            is_open: RwLock::new(true),
            written: Mutex::default(),
        })
    }

    /// Writes all of `bytes`, which come after `at` others.
    /// An error comes with the number of bytes that the file holds without a gap.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), (io::Error, u64)> {
        let is_open = self.is_open.read().unwrap_or_else(PoisonError::into_inner);
        if !*is_open {
            return Ok(());
        }
        let place = self.base.unwrap_or(0) + at;
        let mut done = 0;
        while done < bytes.len() {
            let result = retry_on_intr(|| pwrite(&self.fd, &bytes[done..], place + done as u64));
            match result {
                Ok(count) if count > 0 => done += count,
                failed => {
                    let error =
                        failed.map_or_else(io::Error::from, |_| io::ErrorKind::WriteZero.into());
                    // What was written of these bytes may lie behind a gap too.
                    return Err((error, self.add(at, done)));
                }
            }
        }
        self.add(at, done);
        Ok(())
    }

    /// Ends the writing: moves the position of the open file description behind the bytes that the file holds without a
    /// gap, cuts off what was written behind them, and returns their number. Nothing is written afterwards.
    pub(crate) fn finish(&self) -> u64 {
        let mut is_open = self.is_open.write().unwrap_or_else(PoisonError::into_inner);
        let WrittenBytes { whole, pieces } = &*self.lock();
        if let Some(base) = self.base.filter(|_| std::mem::take(&mut *is_open)) {
            let end = base + whole;
            let _ = seek(&self.fd, SeekFrom::Start(end));
            if !pieces.is_empty() {
                // What is left has a gap if this fails; the caller reports a failure in any case.
                let _ = ftruncate(&self.fd, end.max(self.size));
            }
        }
        *whole
    }

    /// Records that `count` bytes were written after `at` others. Returns how many the file holds without a gap.
    fn add(&self, at: u64, count: usize) -> u64 {
        let mut written = self.lock();
        if count > 0 {
            written.add(at, at + count as u64);
        }
        written.whole
    }

    fn lock(&self) -> MutexGuard<'_, WrittenBytes> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// Returns true for `/dev/null` (1:3), where no byte has a place.
fn is_null(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
        && (major(stat.st_rdev), minor(stat.st_rdev)) == (1, 3)
}

#[cfg(test)]
mod tests {
    use std::{io::Seek, os::fd::AsFd};

    use super::PositionedWriter;

    #[test]
    fn what_lies_behind_a_gap_is_cut_off() {
        let mut file = tempfile::tempfile().unwrap();
        let messages = tempfile::tempfile().unwrap();
        let writer = PositionedWriter::new(file.as_fd(), messages.as_fd()).unwrap();
        writer.write(0, b"whole").unwrap();
        writer.write(9, b"late").unwrap();
        assert_eq!((writer.finish(), file.metadata().unwrap().len()), (5, 5));
        assert_eq!(file.stream_position().unwrap(), 5);
        writer.write(5, b"too late").unwrap();
        assert_eq!(file.metadata().unwrap().len(), 5);
    }
}
