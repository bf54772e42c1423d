//! What the sessions of a server share.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::{
    figures::tally::ServerTally, kills::SessionKills, memory::CopyPools,
    served_copies::ServedCopies,
};
use crate::{
    Listener,
    cli::{keys::client_keys::ClientKeys, shared::message::Console},
};

/// What the sessions of a server share.
pub(super) struct ServerShared {
    pub(super) copies: ServedCopies,
    pub(super) keys: ClientKeys,
    pub(super) listener: Arc<Listener>,
    /// The settings of the streams of every copy.
    pub(super) pools: CopyPools,
    /// The places of copies that run.
    pub(super) places: Arc<Semaphore>,
    pub(super) tally: Arc<ServerTally>,
    pub(super) kills: SessionKills,
    pub(super) console: Console,
}
