//! Removes source files that the destination has confirmed.

use std::{
    collections::HashSet,
    ffi::CString,
    fs::File,
    io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write},
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError},
};

use rustix::{
    fs::{AtFlags, OFlags, Stat, fstat, statat, unlinkat},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use super::{
    jobs::{SourceFolder, SourceRoot, join_shown},
    state::Tally,
    walk::open_below,
};
use crate::copy::{
    metadata::{Timestamp, modified, size},
    nameless::NamelessFile,
    path::{BaseDirectory, EntryName, RelativePath},
};

/// The list of what was sent, in a temporary file without a name, so that memory does not depend on its length.
pub(crate) struct SentSpool {
    /// The directory that the paths of the operands are relative to.
    base: BaseDirectory,
    writer: Mutex<SpoolWriter>,
}

struct SpoolWriter {
    file: BufWriter<File>,
    /// The folder of the last entry: its operand's directory, and the path from there.
    folder: Option<(Arc<SourceRoot>, RelativePath)>,
    failure: Option<io::Error>,
}

#[derive(Serialize, Deserialize)]
enum SpoolRecord {
    /// The entries that follow are in this folder.
    Folder {
        open_path: Vec<u8>,
        /// The device and the inode of that directory.
        identity: (u64, u64),
        below: RelativePath,
        /// The path at the destination.
        path: RelativePath,
    },
    Entry {
        name: EntryName,
        identity: (u64, u64),
        size: u64,
        modified: Timestamp,
    },
}

impl SentSpool {
    /// Makes an empty list of what was found at paths relative to `base`.
    pub(crate) fn new(base: BaseDirectory) -> io::Result<Self> {
        let file = NamelessFile::make(None)?.file;
        Ok(Self {
            base,
            writer: Mutex::new(SpoolWriter {
                file: BufWriter::new(file),
                folder: None,
                failure: None,
            }),
        })
    }

    pub(crate) fn add(&self, folder: &SourceFolder, name: &EntryName, stat: &Stat) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = SpoolRecord::Entry {
            name: name.clone(),
            identity: (stat.st_dev, stat.st_ino),
            size: size(stat),
            modified: modified(stat),
        };
        let written = writer.enter(folder).and_then(|()| writer.write(&entry));
        if let Err(error) = written {
            // Later entries would belong to the wrong folder.
            writer.failure.get_or_insert(error);
        }
    }

    /// Removes the entries of the list, without those in `not_written` and those that changed since they were sent.
    /// `is_stopped` is asked before each.
    pub(crate) fn remove_all(
        &self,
        not_written: &HashSet<RelativePath>,
        tally: &Tally,
        is_stopped: impl Fn() -> bool,
    ) -> io::Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = writer.failure.take() {
            return Err(error);
        }
        writer.file.flush()?;
        let mut file = BufReader::new(writer.file.get_ref());
        file.seek(SeekFrom::Start(0))?;
        let mut remover = Remover {
            base: &self.base,
            tally,
            not_written,
            root: None,
            folder: None,
        };
        while let Some(record) = read_record(&mut file)? {
            if is_stopped() {
                break;
            }
            remover.handle(record);
        }
        Ok(())
    }
}

impl SpoolWriter {
    fn enter(&mut self, folder: &SourceFolder) -> io::Result<()> {
        if let Some(error) = &self.failure {
            return Err(error.kind().into());
        }
        let is_same = |(root, below): &(Arc<SourceRoot>, RelativePath)| {
            Arc::ptr_eq(root, &folder.root) && *below == folder.below
        };
        if self.folder.as_ref().is_some_and(is_same) {
            return Ok(());
        }
        self.folder = Some((Arc::clone(&folder.root), folder.below.clone()));
        self.write(&SpoolRecord::Folder {
            open_path: folder.root.open_path.clone(),
            identity: folder.root.identity,
            below: folder.below.clone(),
            path: folder.path.clone(),
        })
    }

    fn write(&mut self, record: &SpoolRecord) -> io::Result<()> {
        let bytes = postcard::to_stdvec(record).map_err(io::Error::other)?;
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        self.file.write_all(&length.to_le_bytes())?;
        self.file.write_all(&bytes)
    }
}

fn read_record(file: &mut impl Read) -> io::Result<Option<SpoolRecord>> {
    let mut length = [0; 4];
    match file.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        result => result?,
    }
    let length = usize::try_from(u32::from_le_bytes(length)).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    file.read_exact(&mut bytes)?;
    postcard::from_bytes(&bytes)
        .map(Some)
        .map_err(io::Error::other)
}

/// Removes the entries of one folder after the other.
struct Remover<'a> {
    base: &'a BaseDirectory,
    tally: &'a Tally,
    not_written: &'a HashSet<RelativePath>,
    /// The directory of an operand that was opened last.
    root: Option<(Vec<u8>, Arc<OwnedFd>)>,
    folder: Option<OpenedFolder>,
}

struct OpenedFolder {
    fd: Result<OwnedFd, String>,
    path: RelativePath,
    shown: Vec<u8>,
}

impl Remover<'_> {
    fn handle(&mut self, record: SpoolRecord) {
        match record {
            SpoolRecord::Folder {
                open_path,
                identity,
                below,
                path,
            } => {
                let fd = self
                    .open_root(&open_path, identity)
                    .and_then(|root| open_below(root.as_fd(), &below))
                    .map_err(|error| match self.base.refusal(&open_path, error) {
                        Some(why) => why.to_owned(),
                        None => error.to_string(),
                    });
                let shown = join_shown(&open_path, below.as_bytes());
                self.folder = Some(OpenedFolder { fd, path, shown });
            }
            SpoolRecord::Entry {
                name,
                identity,
                size,
                modified,
            } => {
                let Some(folder) = &self.folder else { return };
                if self.not_written.contains(&folder.path.join(&name)) {
                    return;
                }
                match folder.remove(&name, (identity, size, modified)) {
                    Ok(()) => self.tally.removed(),
                    Err(why) => {
                        let shown = join_shown(&folder.shown, name.as_bytes());
                        self.tally
                            .fail(shown, format!("was copied, but not removed: {why}"));
                    }
                }
            }
        }
    }

    fn open_root(&mut self, open_path: &[u8], identity: (u64, u64)) -> Result<Arc<OwnedFd>, Errno> {
        if let Some((path, root)) = &self.root {
            if path == open_path {
                return Ok(Arc::clone(root));
            }
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = self.base.open(open_path, flags)?;
        let stat = fstat(&root)?;
        if (stat.st_dev, stat.st_ino) != identity {
            return Err(Errno::NOENT);
        }
        let root = Arc::new(root);
        self.root = Some((open_path.to_vec(), Arc::clone(&root)));
        Ok(root)
    }
}

impl OpenedFolder {
    /// Removes an entry if it is the one that was sent.
    fn remove(&self, name: &EntryName, sent: ((u64, u64), u64, Timestamp)) -> Result<(), String> {
        let fd = self.fd.as_ref().map_err(String::clone)?;
        let name = CString::new(name.as_bytes()).map_err(|error| error.to_string())?;
        let stat =
            statat(fd, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| error.to_string())?;
        if ((stat.st_dev, stat.st_ino), size(&stat), modified(&stat)) != sent {
            return Err("it changed after it was sent".to_owned());
        }
        unlinkat(fd, &name, AtFlags::empty()).map_err(|error| error.to_string())
    }
}
