//! What the renewal of a link asks of the two lanes of a stream, whichever data path they have.

use std::task::Context;

use super::{
    path::{ReceivePath, SendPath},
    recv_lane::RecvLane,
    send_lane::SendLane,
};
use crate::transport::control::state::State;

/// A lane whose data path can go on over another link, with another pool.
pub(crate) trait Renewable {
    /// The data path.
    type Path;
    /// A slot of its pool.
    type Slot;

    /// Returns the data path.
    fn path(&mut self) -> &mut Self::Path {
        self.path_and_kept().0
    }

    /// Returns the data path, and the slots that hold payload which must outlive the pool. The data path does
    /// not know these slots.
    fn path_and_kept(&mut self) -> (&mut Self::Path, impl Iterator<Item = &mut Self::Slot>);
}

impl<P: SendPath> Renewable for SendLane<P> {
    type Path = P;
    type Slot = P::Slot;

    /// Keeps the chunks that the path has not been given.
    fn path_and_kept(&mut self) -> (&mut P, impl Iterator<Item = &mut P::Slot>) {
        let chunks = self.sealed.iter_mut().chain(&mut self.filling);
        (&mut self.path, chunks.map(|filling| &mut filling.slot))
    }
}

impl<P: ReceivePath> Renewable for RecvLane<P> {
    type Path = P;
    type Slot = P::Slot;

    /// Keeps the chunks that the reader has not taken.
    fn path_and_kept(&mut self) -> (&mut P, impl Iterator<Item = &mut P::Slot>) {
        let chunks = self.ready.iter_mut();
        (&mut self.path, chunks.map(|chunk| &mut chunk.slot))
    }
}

impl<P: ReceivePath> RecvLane<P> {
    /// Takes every frame that has arrived.
    pub(crate) fn take_all(&mut self, state: &State, cx: &mut Context<'_>) {
        self.receive_frames(state, cx, usize::MAX);
    }

    /// Takes the frames that have arrived without a report of the device.
    pub(crate) fn take_unreported(&mut self, state: &State, cx: &mut Context<'_>) {
        self.faults.find_completions();
        self.take_all(state, cx);
    }

    /// Returns the number of bytes that have arrived and been verified.
    pub(crate) fn verified(&self) -> u64 {
        self.chain.offset()
    }

    /// Starts again with an empty pool, and grants its slots to the peer. For each chunk that is still unread, one slot
    /// of the new pool is withheld. With `keeps_one`, one slot is granted all the same, up to two pools of unread
    /// chunks: the peer may have to send a frame again that had no slot before.
    pub(crate) fn restart(&mut self, state: &State, keeps_one: bool) {
        self.granted.fill(false);
        self.outstanding = 0;
        let depth = u32::try_from(self.granted.len()).unwrap_or(u32::MAX);
        let unread = u32::try_from(self.unread).unwrap_or(u32::MAX);
        let is_one_granted = keeps_one && unread < 2 * depth;
        let unread = unread.min(depth - u32::from(is_one_granted));
        self.freed = (0..depth - unread).collect();
        self.withheld = (depth - unread..depth).collect();
        self.grant(state);
    }
}
