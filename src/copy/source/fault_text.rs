//! Sentences for entries that cannot be sent. Pure, no I/O.

use rustix::io::Errno;

use crate::copy::record::RecordError;

/// Returns the sentence for an entry whose opening or reading has failed.
pub(super) fn unreadable(error: Errno) -> String {
    match error {
        Errno::NOENT => "vanished before it was copied".to_owned(),
        Errno::LOOP | Errno::NXIO | Errno::NOTDIR => {
            "was replaced by something else while it was copied".to_owned()
        }
        error => format!("cannot be read: {error}"),
    }
}

/// Returns the sentence for metadata that do not fit into a record.
pub(super) fn too_long(error: &RecordError) -> String {
    format!("its metadata cannot be sent: {error}")
}
