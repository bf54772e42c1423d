//! Stands in for the RDMA data path in a build without RDMA: the same names, types without values, and the reason why
//! there is no RDMA.

use std::{
    io,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

pub(crate) use super::data::slots::Unavailable;
use super::{
    control::{
        connection::Control,
        message::Agreement,
        noise::Role,
        seal::StreamSeal,
        state::{RailState, State},
    },
    data::{
        frame::Header,
        slots::{DataPath, ReceivePath, SendPath, Slot},
        steward::Shared,
    },
};
use crate::{
    DeviceFault, Error, HandshakeFault, StreamConfig, TransportPolicy, threads::CarryThread,
};

/// The RDMA ports of this end: none.
pub(crate) enum LocalPorts {}

/// A proved link: none.
pub(crate) enum Established {}

/// A data path that no stream has. With it the code above this layer is the same with RDMA and without.
pub(crate) enum Rdma {}

/// Either side of a data path that no stream has, and a slot of its pools.
pub(crate) enum Absent {}

impl DataPath for Rdma {
    type Send = Absent;
    type Receive = Absent;
}

impl Slot for Absent {
    fn index(&self) -> u32 {
        match *self {}
    }

    fn bytes(&self) -> &[u8] {
        match *self {}
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match *self {}
    }
}

impl SendPath for Absent {
    type Slot = Self;

    fn acquire(&mut self) -> Option<Self> {
        match *self {}
    }

    fn acquire_to_lend(&mut self) -> Option<Self> {
        match *self {}
    }

    fn release(&mut self, _slot: Self) {
        match *self {}
    }

    fn post(&mut self, _slot: Self, _frame_bytes: usize, _target: u32) {
        match *self {}
    }

    fn post_small(&mut self, _header: &Header, _payload: &[u8]) {
        match *self {}
    }

    fn max_slots(&self) -> usize {
        match *self {}
    }

    fn in_flight(&self) -> usize {
        match *self {}
    }

    fn poll_complete(
        &mut self,
        _cx: &mut Context<'_>,
        _next_credit: impl FnMut() -> Option<u32>,
    ) -> Poll<io::Result<()>> {
        match *self {}
    }
}

impl ReceivePath for Absent {
    type Slot = Self;

    fn poll_frame(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<(Self, Header)>> {
        match *self {}
    }

    fn release(&mut self, _slot: Self) -> bool {
        match *self {}
    }

    fn can_grant(&self) -> bool {
        match *self {}
    }

    fn post_receive(&mut self, _index: u32) {
        match *self {}
    }
}

impl Established {
    /// The name of the link.
    pub(crate) fn name(&self) -> String {
        match *self {}
    }

    /// The reason why the pool is smaller than requested.
    pub(crate) fn smaller_pool_reason(&self) -> Option<String> {
        match *self {}
    }

    pub(crate) fn thread(&self) -> Option<CarryThread> {
        match *self {}
    }

    /// Has the watch over the data path ask these links.
    pub(crate) fn watch(_links: &mut [Self], _state: &Arc<State>) {}

    /// The payload of a chunk, in bytes.
    pub(crate) fn chunk_bytes(&self) -> usize {
        match *self {}
    }

    /// The slots of the receive pool.
    pub(crate) fn depth(&self) -> u32 {
        match *self {}
    }

    /// The slots of the peer's receive pool.
    pub(crate) fn peer_slots(&self) -> usize {
        match *self {}
    }

    /// The two sides of the data path.
    pub(crate) fn paths(&mut self, _state: &RailState) -> (Option<Absent>, Option<Absent>) {
        match *self {}
    }

    /// Replaces the link.
    #[allow(clippy::unused_async, reason = "the one that does something waits")]
    pub(crate) async fn renew(self, _shared: Arc<Shared<Rdma>>, _patience: Duration) {
        match self {}
    }
}

/// Does nothing: there is nothing to load.
pub(crate) fn prepare(_config: &StreamConfig) {}

impl LocalPorts {
    /// Returns the reason why there is no RDMA.
    pub(crate) fn discover(_config: &StreamConfig) -> Result<Self, Unavailable> {
        let reason = "this rdpipe was built without RDMA".to_owned();
        Err(Unavailable {
            reason,
            hardware: false,
        })
    }

    /// Reports early what would fail in every handshake.
    pub(crate) fn check(config: &StreamConfig) -> Result<(), Error> {
        match (config.transport, Self::discover(config)) {
            (TransportPolicy::Rdma, Err(Unavailable { reason, .. })) => Err(Error::Device {
                fault: DeviceFault::NotBuilt,
                reason,
            }),
            _ => Ok(()),
        }
    }

    /// Encodes the ports for the peer.
    pub(crate) fn offer(&self) -> Vec<u8> {
        match *self {}
    }

    pub(crate) fn propose(&self, _theirs: &[u8], _rails: usize) -> Result<(Vec<u8>, bool), String> {
        match *self {}
    }

    /// Tries the proposed pairs of ports.
    #[allow(clippy::unused_async, reason = "the one that does something waits")]
    pub(crate) async fn establish(
        &self,
        _control: &mut Control,
        _proposal: &[u8],
        _role: Role,
        _agreement: &Agreement,
        _seal: &StreamSeal,
    ) -> Result<Result<Vec<Established>, String>, HandshakeFault> {
        match *self {}
    }
}
