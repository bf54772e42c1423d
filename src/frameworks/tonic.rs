//! Servers of tonic over the streams of a [`Listener`](crate::Listener).

use tonic::transport::server::Connected;

use super::PeerInfo;
use crate::Stream;

impl Connected for Stream {
    type ConnectInfo = PeerInfo;

    fn connect_info(&self) -> PeerInfo {
        self.into()
    }
}
