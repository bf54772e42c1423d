//! `Debug` for the objects of verbs: what a reader can use, without pointers.

use std::fmt;

use super::{
    completions::CompletionQueue, device::ProtectionDomain, memory::MemoryRegion,
    queue_pair::QueuePair,
};

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectionDomain").finish_non_exhaustive()
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut region = f.debug_struct("MemoryRegion");
        region.field("bytes", &self.layout.size());
        region.finish_non_exhaustive()
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut queue = f.debug_struct("CompletionQueue");
        queue.field("length", &self.length);
        queue.finish_non_exhaustive()
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut pair = f.debug_struct("QueuePair");
        pair.field("memory", &self.memory)
            .field("inline_bytes", &self.inline_bytes)
            .field("is_connected", &self.connection.is_some());
        pair.finish_non_exhaustive()
    }
}
