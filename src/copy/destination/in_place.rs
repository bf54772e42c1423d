//! Destinations that no new file replaces: devices and FIFOs that the user named, and files in directories where
//! nothing can be made or renamed.

use std::{
    ffi::OsStr,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, SeekFrom, Stat, StatxAttributes, StatxFlags, fstat,
        ftruncate, openat, seek, stat, statat, statx,
    },
    io::{Errno, retry_on_intr},
};
use tokio::{
    io::AsyncWriteExt,
    sync::{Mutex, watch},
};
use tokio_util::sync::CancellationToken;

use super::{
    attributes::{EntryHandle, MetadataPlan, PRIVATE_MODE},
    entry::{create_file, write_all},
    folders::proc_path,
    part_file::read_range,
    placement::EntryNaming,
    state::{DestinationState, ENDED, errno_text},
    written::{MAY_NOT_REPLACE, TargetFolder},
};
use crate::{
    copy::{
        holes::{next_data, zeros},
        metadata::Metadata,
        path::EntryName,
    },
    fd::{Sink, close, open_in_place, special_path, sync},
};

/// The position of a target that is not written any more.
const ABANDONED: u64 = u64::MAX;

/// A device or a FIFO that the user named. It is written in place and from its first byte to its last, as cp does.
#[derive(Debug)]
pub(super) struct SpecialTarget {
    path: PathBuf,
    /// The target, once there is something to write.
    fd: Mutex<Option<OwnedFd>>,
    /// The offset of the next byte: parts that come too early wait for it.
    position: watch::Sender<u64>,
    halt: CancellationToken,
}

impl SpecialTarget {
    /// Returns the target that the entry `name` of a folder is or leads to, if it is a device or a FIFO and the user
    /// named it. Opens nothing.
    /// Fails with the reason for the user if the target is of that kind and must not be written, or if another source
    /// of the run has brought the entry.
    pub(super) fn find(
        state: &DestinationState,
        target: TargetFolder<'_>,
        name: &EntryName,
        naming: EntryNaming,
    ) -> Result<Option<Self>, String> {
        if naming == EntryNaming::Tree {
            return Ok(None);
        }
        let folder = target.fd;
        if state.keeper.is_served() {
            let found = statat(folder, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW);
            return match found {
                Ok(found) if is_special(&found) => Err(
                    "is a device, a FIFO or a socket, which a server does not write to".to_owned(),
                ),
                _ => Ok(None),
            };
        }
        let path = Path::new(&proc_path(folder)).join(OsStr::from_bytes(name.as_bytes()));
        let Some(path) = special_path(&path) else {
            return Ok(None);
        };
        if let Some(why) = state.written.refusal(target, name.as_bytes()) {
            return Err(why.to_owned());
        }
        if is_own_descriptor(&path) {
            let why = "is not a stream of your rdcp; give - as the destination for its stdout";
            return Err(why.to_owned());
        }
        if let Ok(found) = stat(&path) {
            may_write(&found, naming)?;
        }
        Ok(Some(Self {
            path,
            fd: Mutex::new(None),
            position: watch::Sender::new(0),
            halt: state.halt.clone(),
        }))
    }

    /// Writes the bytes at `offset`, after all bytes before them. Waits for those, and for a reader of a FIFO.
    /// Not cancel safe: some of the bytes may be written.
    pub(super) async fn write(&self, bytes: &[u8], offset: u64) -> Result<(), String> {
        self.wait_for(offset).await?;
        let mut fd = self.fd.lock().await;
        if *self.position.borrow() != offset {
            return Err("its parts do not come in their order".to_owned());
        }
        self.put(&mut fd, bytes).await?;
        let _ = self.position.send_replace(offset + bytes.len() as u64);
        Ok(())
    }

    /// Writes zeros for a hole from `start` to `end`.
    /// Not cancel safe: some of the zeros may be written.
    pub(super) async fn write_hole(&self, start: u64, end: u64) -> Result<(), String> {
        let mut offset = start;
        while offset < end {
            let piece = zeros(end - offset);
            self.write(piece, offset).await?;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    /// Ends a file of `size` bytes whose parts are all written.
    /// Not cancel safe: the target may be closed or not.
    pub(super) async fn finish(&self, size: u64, fsync: bool) -> Result<(), String> {
        let position = *self.position.borrow();
        self.write_hole(position, size).await?;
        let mut fd = self.fd.lock().await;
        // An empty file opens the target too: the reader of a FIFO gets the end of it.
        self.put(&mut fd, &[]).await?;
        let Some(fd) = fd.take() else { return Ok(()) };
        if fsync {
            sync(fd.as_fd()).map_err(|error| format!("cannot fsync: {}", errno_text(error)))?;
        }
        close(fd).map_err(cannot_write)
    }

    /// Fails the parts that wait for their turn.
    pub(super) fn give_up(&self) {
        let _ = self.position.send_replace(ABANDONED);
    }

    async fn wait_for(&self, offset: u64) -> Result<(), String> {
        let mut position = self.position.subscribe();
        let reached = tokio::select! {
            reached = position.wait_for(|&position| position >= offset) => reached.is_ok_and(|at| *at != ABANDONED),
            () = self.halt.cancelled() => false,
        };
        let ended = || ENDED.to_owned();
        reached.then_some(()).ok_or_else(ended)
    }

    /// Writes bytes to the target, which is opened if it is not open yet.
    async fn put(&self, fd: &mut Option<OwnedFd>, bytes: &[u8]) -> Result<(), String> {
        let fd = match fd {
            Some(fd) => fd,
            None => fd.insert(self.open().await?),
        };
        // A sink belongs to the runtime of one lane, so each piece has its own.
        let duplicate = fd.try_clone().map_err(cannot_write)?;
        let mut sink = Sink::new(duplicate, "").map_err(cannot_write)?;
        tokio::select! {
            written = sink.write_all(bytes) => written.map_err(cannot_write),
            () = self.halt.cancelled() => Err(ENDED.to_owned()),
        }
    }

    async fn open(&self) -> Result<OwnedFd, String> {
        tokio::select! {
            opened = open_in_place(&self.path, OFlags::TRUNC) => {
                opened.map_err(|error| format!("cannot open: {}", errno_text(error)))
            }
            () = self.halt.cancelled() => Err(ENDED.to_owned()),
        }
    }
}

/// Checks that what the user named may be written.
fn may_write(found: &Stat, naming: EntryNaming) -> Result<(), String> {
    let why = match FileType::from_raw_mode(found.st_mode) {
        FileType::Socket => "is a socket, which cannot be written as a file",
        FileType::BlockDevice if naming != EntryNaming::Destination => {
            "is a block device; name it as the destination to overwrite it"
        }
        _ => return Ok(()),
    };
    Err(why.to_owned())
}

/// Returns true for stdin and stdout of this process, which are not those of the user's rdcp. Other descriptors may be
/// ones that a shell on this machine has opened for it.
fn is_own_descriptor(path: &Path) -> bool {
    let own = ["/proc/self/fd/0", "/proc/self/fd/1"];
    own.iter().any(|own| path == Path::new(own))
}

/// Returns true for devices, FIFOs and sockets.
pub(super) fn is_special(found: &Stat) -> bool {
    matches!(
        FileType::from_raw_mode(found.st_mode),
        FileType::CharacterDevice | FileType::BlockDevice | FileType::Fifo | FileType::Socket
    )
}

/// The reason why a new file cannot be made, or cannot get its name.
#[derive(Debug)]
pub(super) enum PlacingFault {
    /// The directory or the name does not allow it. A file that has the name may still be written in place.
    Denied(String),
    /// An entry has the name, and the source may replace none.
    Exists,
    /// Another reason.
    Other(String),
}

impl PlacingFault {
    /// Returns the fault that a failure of a system call is.
    pub(super) fn new(what: &str, errno: Errno) -> Self {
        let text = format!("{what}: {}", errno_text(errno));
        match errno {
            // A mount point is busy. Directories that are read-only, append-only or sticky deny the rest.
            Errno::BUSY | Errno::ACCESS | Errno::PERM | Errno::ROFS => Self::Denied(text),
            _ => Self::Other(text),
        }
    }

    /// Returns the reason for the user.
    pub(super) fn into_text(self) -> String {
        match self {
            Self::Denied(text) | Self::Other(text) => text,
            Self::Exists => MAY_NOT_REPLACE.to_owned(),
        }
    }
}

/// Returns true if names in a directory can be made but neither changed nor removed (`chattr +a`).
pub(super) fn is_append_only(folder: BorrowedFd<'_>) -> bool {
    statx(folder, "", AtFlags::EMPTY_PATH, StatxFlags::empty())
        .is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::APPEND))
}

/// Opens the file that has a name, and makes it empty. Follows a link only if the user named it as the destination.
/// Fails as open(2) does, with `EEXIST` if a file is not what has the name or if the source may replace nothing, and
/// with `ECANCELED` if the work has ended early.
pub(super) fn open_existing(
    state: &DestinationState,
    folder: BorrowedFd<'_>,
    name: &EntryName,
    naming: EntryNaming,
) -> rustix::io::Result<OwnedFd> {
    state.check_running().map_err(|_| Errno::CANCELED)?;
    if !state.existing.replaces {
        return Err(Errno::EXIST);
    }
    let mut flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    if naming != EntryNaming::Destination || state.keeper.is_served() {
        flags |= OFlags::NOFOLLOW;
    }
    let fd = retry_on_intr(|| openat(folder, name.as_bytes(), flags, Mode::empty()))?;
    let stat = fstat(&fd)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    // The other names of a file may be outside what a server serves.
    if !is_file || (state.keeper.is_served() && stat.st_nlink != 1) {
        return Err(Errno::EXIST);
    }
    // Another source of the run has brought it.
    if !state.written.claim(&stat) {
        return Err(Errno::EXIST);
    }
    retry_on_intr(|| ftruncate(&fd, 0))?;
    Ok(fd)
}

/// Creates a file that has its name at once, and that no other source of the run may write.
/// Fails as open(2) does, with `EEXIST` if another source has opened the new file first and writes it, and with
/// `ECANCELED` if the work has ended early.
pub(super) fn create_in_place(
    state: &DestinationState,
    folder: BorrowedFd<'_>,
    name: &EntryName,
    mode: u32,
) -> rustix::io::Result<OwnedFd> {
    state.check_running().map_err(|_| Errno::CANCELED)?;
    let fd = create_file(folder, name.as_bytes(), mode)?;
    if !state.written.claim(&fstat(&fd)?) {
        return Err(Errno::EXIST);
    }
    Ok(fd)
}

/// Returns the mode to create a file with that has its name at once. Its plan is that of a file that exists.
pub(super) fn mode_in_place(state: &DestinationState, metadata: &Metadata) -> u32 {
    if state.keeper.keeps_all() {
        PRIVATE_MODE
    } else {
        metadata.mode & 0o777
    }
}

/// Returns the plan for a file that exists and is written in place: without `-a` it keeps what it has, with `-a` it
/// gets what the source's has and nothing else.
pub(super) fn plan_in_place(
    state: &DestinationState,
    stat: &Stat,
    metadata: &Metadata,
) -> MetadataPlan {
    if !state.keeper.keeps_all() {
        return MetadataPlan::default();
    }
    let note = |text| state.note(text);
    state.keeper.plan_for_existing(metadata, stat, &note)
}

/// Returns what a file that was written in place has after a failure, in words that follow the reason.
pub(super) fn left_in_place(written: u64, size: u64) -> String {
    format!(
        "; it was written in place, because it cannot be replaced here, and now has {written} of {size} bytes"
    )
}

/// Copies the complete temporary file `from` into the file `name`, because the one cannot get the name of the other.
/// Fails with the reason for the user; none if the file `name` cannot be written either, and is unchanged.
pub(super) fn copy_into_place(
    state: &DestinationState,
    folder: BorrowedFd<'_>,
    from: &[u8],
    (name, naming): (&EntryName, EntryNaming),
    metadata: &Metadata,
) -> Result<(), Option<String>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let from = openat(folder, from, flags, Mode::empty()).map_err(|_| None)?;
    let size = fstat(&from).map_err(|_| None)?.st_size;
    let size = u64::try_from(size).unwrap_or(0);
    let to = match open_existing(state, folder, name, naming) {
        Err(Errno::NOENT) => {
            let mode = mode_in_place(state, metadata);
            create_in_place(state, folder, name, mode)
        }
        result => result,
    };
    let to = to.map_err(|_| None)?;
    let copied = copy_and_finish(state, (&from, size), to, metadata);
    copied.map_err(|(why, written)| Some(why + &left_in_place(written, size)))
}

/// Copies a file with its holes, gives the copy its metadata and closes it. An error has the bytes that were copied.
fn copy_and_finish(
    state: &DestinationState,
    (from, size): (&OwnedFd, u64),
    to: OwnedFd,
    metadata: &Metadata,
) -> Result<(), (String, u64)> {
    let mut written = 0;
    let mut copy = || {
        let mut at = 0;
        while at < size {
            state.check_running()?;
            // A hole that was written would take the room of others.
            let data = next_data(from, at, size);
            seek(&to, SeekFrom::Start(data.start)).map_err(errno_text)?;
            read_range(state, from, data.start, data.end, |bytes| {
                write_all(&to, bytes)?;
                written += bytes.len() as u64;
                Ok(())
            })?;
            at = data.end;
        }
        ftruncate(&to, size).map_err(|errno| cannot_write(errno.into()))
    };
    let copied = copy();
    copied.map_err(|why| (why, written))?;
    let finished = || {
        let stat = fstat(&to).map_err(errno_text)?;
        let note = |text| state.note(text);
        let plan = plan_in_place(state, &stat, metadata);
        let handle = EntryHandle::Open(to.as_fd());
        state.keeper.apply(handle, plan, metadata, &note);
        if state.options.fsync {
            sync(to.as_fd()).map_err(|error| format!("cannot fsync: {}", errno_text(error)))?;
        }
        Ok(())
    };
    finished().map_err(|why| (why, written))?;
    close(to).map_err(|error| (cannot_write(error), written))
}

fn cannot_write(error: std::io::Error) -> String {
    format!("cannot write: {}", errno_text(error))
}
