//! [`axum::serve()`] over a [`Listener`].

use std::{future::pending, io, net::SocketAddr};

use axum::{extract::connect_info::Connected, serve::IncomingStream};

use super::PeerInfo;
use crate::{Listener, Stream};

impl axum::serve::Listener for Listener {
    type Io = Stream;
    type Addr = SocketAddr;

    /// Accepts the next stream. Waits forever after the listener has ended, since axum expects no error: then
    /// [`live_streams`](Listener::live_streams) still go on.
    async fn accept(&mut self) -> (Stream, SocketAddr) {
        match Listener::accept(self).await {
            Ok(stream) => {
                let peer = stream.peer_addr();
                (stream, peer)
            }
            Err(error) => {
                tracing::error!(%error, "no more streams arrive");
                pending().await
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(Listener::local_addr(self))
    }
}

impl Connected<IncomingStream<'_, Listener>> for PeerInfo {
    fn connect_info(stream: IncomingStream<'_, Listener>) -> Self {
        stream.io().into()
    }
}
