//! The connections to which the control connection of a stream over several networks moves when it is lost.
//!
//! The Noise session goes on: its messages are numbered, and each end keeps those that the peer has not confirmed, as
//! they were sealed. An end that moves sends how many messages it has received, as a message of eight bytes, shorter
//! than any sealed one. The peer moves too when that arrives, and answers in the same way; then each end sends the sealed
//! messages again that the other has not received. So nothing is sealed twice, and a message that is left out, repeated or
//! changed does not open. Who forges the number gets a stream that ends as damaged, which a person on the path can always
//! achieve.
//!
//! Either end may begin. If both move at the same time to different connections, both go on over the later one.

use std::{future::poll_fn, io, task::Poll};

use futures::FutureExt;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, ReadBuf},
    net::TcpStream,
};

use super::{connection::ControlConnection, state::State};

/// The size of the message that says how many messages an end has received.
const RECEIVED_BYTES: u16 = 8;

/// The connections in reserve, one over each network but that of the control connection.
pub(super) struct Reserve {
    /// By network: the connection that has not been used.
    sockets: Vec<Option<TcpStream>>,
    /// The number of the network in use.
    network: usize,
}

impl Reserve {
    /// The connections over the networks from the second one on.
    pub(super) fn new(sockets: Vec<TcpStream>) -> Self {
        let used = std::iter::once(None);
        Self {
            sockets: used.chain(sockets.into_iter().map(Some)).collect(),
            network: 0,
        }
    }

    /// Returns true if no connection is left.
    pub(super) fn is_empty(&self) -> bool {
        self.sockets.iter().all(Option::is_none)
    }

    /// Fails if the network of the control connection is lost, and another one is left.
    pub(super) fn check(&self, state: &State) -> io::Result<()> {
        if !self.is_empty() && state.is_network_lost(self.network) {
            return Err(io::Error::other("its network is lost"));
        }
        Ok(())
    }

    /// Waits until [`check`](Self::check) fails.
    pub(super) async fn lost(&self, state: &State) -> io::Error {
        loop {
            if let Err(error) = self.check(state) {
                return error;
            }
            state.to_control.notified().await;
        }
    }

    /// Waits until the peer uses a connection of the reserve after that with this number. One that is broken is never
    /// used.
    pub(super) async fn called(&self, after: usize) -> usize {
        poll_fn(|cx| {
            for (number, socket) in self.sockets.iter().enumerate().skip(after + 1) {
                let Some(socket) = socket else { continue };
                let mut byte = [0];
                let peeked = socket.poll_peek(cx, &mut ReadBuf::new(&mut byte));
                if matches!(peeked, Poll::Ready(Ok(1))) {
                    return Poll::Ready(number);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Returns the number of the network in use.
    pub(super) fn network(&self) -> usize {
        self.network
    }

    /// Moves `connection` to a connection of the reserve, which it agrees on with the peer.
    ///
    /// # Errors
    ///
    /// When none is left.
    pub(super) async fn replace(
        &mut self,
        connection: &ControlConnection,
        state: &State,
    ) -> io::Result<()> {
        let received = connection.received();
        let mut wanted = self.called(self.network).now_or_never();
        loop {
            let lives =
                |number: &usize| self.sockets[*number].is_some() && !state.is_network_lost(*number);
            let next = wanted
                .take()
                .or_else(|| (0..self.sockets.len()).find(lives));
            let number = next.ok_or(io::ErrorKind::NotConnected)?;
            let Some(mut socket) = self.sockets[number].take() else {
                continue;
            };
            let agreed = tokio::select! {
                agreed = exchange(&mut socket, received) => agreed,
                later = self.called(number) => {
                    wanted = Some(later);
                    continue;
                }
            };
            if let Ok(received) = agreed {
                self.network = number;
                return connection.go_on_over(socket, received);
            }
        }
    }
}

/// Tells the peer how many messages this end has received, and returns how many the peer has.
async fn exchange(socket: &mut TcpStream, received: u64) -> io::Result<u64> {
    let told = [&RECEIVED_BYTES.to_be_bytes()[..], &received.to_be_bytes()];
    socket.write_all(&told.concat()).await?;
    let length = socket.read_u16().await?;
    let received = socket.read_u64().await?;
    if length != RECEIVED_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(received)
}
