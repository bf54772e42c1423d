//! Which end of the control connection this is.

/// The role of this end on the control connection. Two ends on one host have the same list of RDMA ports, so that only the
/// role distinguishes (first, second) from (second, first).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The end that connected.
    Dialer,
    /// The end that was listening.
    Acceptor,
}
