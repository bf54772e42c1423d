//! The reason why there is no RDMA.

/// This host cannot use RDMA.
#[derive(Debug, Clone)]
pub(crate) struct Unavailable {
    /// The reason, for the user.
    pub(crate) reason: String,
    /// True if the host has RDMA hardware all the same.
    pub(crate) hardware: bool,
}
