//! The lengths of the queues of the lanes, which the fuzz targets check. Compiled only for fuzzing.

use super::{
    path::{ReceivePath, SendPath},
    recv_lane::RecvLane,
    send_lane::SendLane,
};

impl<P: ReceivePath> RecvLane<P> {
    /// Returns the length of the longest queue, and the largest count of slots.
    pub(crate) fn longest_queue(&self) -> usize {
        let queues = [self.ready.len(), self.freed.len(), self.withheld.len()];
        let counts = [self.outstanding, self.unread];
        queues.into_iter().chain(counts).max().unwrap_or(0)
    }
}

impl<P: SendPath> SendLane<P> {
    /// Returns the length of the longest queue.
    pub(crate) fn longest_queue(&self) -> usize {
        self.sealed.len().max(self.path.in_flight())
    }
}
