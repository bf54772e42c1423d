//! Failures of system calls as text. Pure, no I/O.

/// Returns the text of a system call's failure, without its number.
pub(super) fn errno_text<E: Into<std::io::Error>>(errno: E) -> String {
    let text = errno.into().to_string();
    match text.split_once(" (os error") {
        Some((words, _)) => words.to_owned(),
        None => text,
    }
}
