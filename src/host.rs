//! The name of this host.

/// Returns this host's own name, as `uname -n` prints it. Messages to the user and to peers name the host so.
pub(crate) fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}
