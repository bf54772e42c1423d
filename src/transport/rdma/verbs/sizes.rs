//! What a queue pair may have under way at once.

/// The sizes of the queues.
#[derive(Debug, Clone, Copy)]
pub struct QueueSizes {
    /// The most SENDs, WRITEs and READs that are posted at once.
    pub sends: u32,
    /// The most receives that are posted at once.
    pub receives: u32,
    /// The number of bytes that a SEND or WRITE can carry in its work request. Devices carry some 200 to 1,000.
    pub inline_bytes: u32,
}

impl QueueSizes {
    pub(super) fn with_inline(self, inline_bytes: u32) -> Self {
        Self {
            inline_bytes,
            ..self
        }
    }
}

/// The most RDMA READs of a queue pair that are under way at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadDepths {
    /// Those that this end begins.
    pub begun: u8,
    /// Those of the peer that this end answers.
    pub answered: u8,
}
