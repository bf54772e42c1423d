//! The name of this host.

/// Returns this host's own name, as `uname -n` prints it. Messages to users and peers contain this name.
pub(crate) fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}
