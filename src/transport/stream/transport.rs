//! The transports of a stream: TCP and RDMA.

/// The transport that carries the data of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// A TCP connection beside the control connection.
    Tcp,
    /// A queue pair: the RDMA device of each end writes into the memory of the other.
    Rdma,
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp => f.write_str("TCP"),
            Self::Rdma => f.write_str("RDMA"),
        }
    }
}
