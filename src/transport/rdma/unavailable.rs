//! The reason why there is no RDMA.

/// Why there is no way over RDMA.
#[derive(Debug, Clone)]
pub(crate) struct Unavailable {
    /// In words.
    pub(crate) reason: String,
    /// There is hardware for it all the same.
    pub(crate) hardware: bool,
}
