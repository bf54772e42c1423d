//! One end of an edge in the hands of its stage: moves bytes, and ends for the right reason.

use std::{io, sync::Arc};

use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    cause::FirstCause,
    meter::{Meter, Metered},
};
use crate::{
    Error, Stream,
    carry::{self, CarryError},
    ssh::{edge::about_peer, protocol::FaultKind},
};

/// A stream, and what is known about it.
pub(super) struct ConnectedEdge {
    pub(super) stream: Stream,
    pub(super) meter: Arc<Meter>,
    /// Who is at the other end.
    pub(super) peer: String,
    pub(super) cause: Arc<FirstCause>,
    /// How peers know this stage.
    pub(super) stage: String,
}

/// Why an edge cannot go on.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The next stage wants no more.
    Stopped,
    /// The stream broke.
    Stream(Error),
    /// The local end of a pump failed after so many bytes.
    Local(io::Error, u64),
    /// Something else broke, and has been told to the [`FirstCause`].
    Elsewhere,
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        match error {
            Error::Stopped { .. } => Self::Stopped,
            error => Self::Stream(error),
        }
    }
}

impl From<CarryError> for Trouble {
    fn from(error: CarryError) -> Self {
        match error {
            CarryError::Source { offset, source } | CarryError::Sink { offset, source } => {
                Self::Local(source, offset)
            }
            CarryError::Stream(error) => error.into(),
        }
    }
}

impl ConnectedEdge {
    /// Writes the whole input to `sink`, up to a verified FIN.
    pub(super) async fn drain(
        &mut self,
        sink: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), Trouble> {
        let mut input = Metered::new(&mut self.stream, &self.meter);
        let draining = carry::receive_all(&mut input, sink);
        unless_failed(&self.cause, draining).await.map(drop)
    }

    /// Sends all of `source`, and no FIN.
    pub(super) async fn fill(
        &mut self,
        source: &mut (impl AsyncRead + Unpin),
    ) -> Result<(), Trouble> {
        let mut output = Metered::new(&mut self.stream, &self.meter);
        let filling = carry::send_all(source, &mut output);
        unless_failed(&self.cause, filling).await.map(drop)
    }

    /// Waits for `event`, and for nothing that makes it pointless.
    ///
    /// # Cancel safety
    ///
    /// That of `event`.
    pub(super) async fn until<T>(&self, event: impl Future<Output = T>) -> Result<T, Trouble> {
        let watch = self.stream.watch();
        unless_failed(&self.cause, carry::unless_interrupted(&watch, event)).await
    }

    /// Sends the FIN, and waits until the peer's sink has confirmed that it took all.
    pub(super) async fn finish(&mut self) -> Result<(), Trouble> {
        unless_failed(&self.cause, self.stream.finish()).await
    }

    /// Fails the work because the edge broke; the peers on all edges are told.
    pub(super) fn broken(&self, error: Error) {
        let kind = match error {
            Error::PeerAborted { .. } => FaultKind::PeerAborted,
            _ => FaultKind::Edge,
        };
        let text = about_peer(error.clone(), &self.peer).to_string();
        let reason = match error {
            // The peer that gave up first knows the reason best.
            Error::PeerAborted { reason, .. } => reason,
            _ => format!("{}: {text}", self.stage),
        };
        self.cause.fail(kind, text, reason);
    }

    /// Fails the work because of something of its own.
    pub(super) fn fail_local(&self, text: impl Into<String>) {
        let text = text.into();
        let reason = format!("{}: {text}", self.stage);
        self.cause.fail(FaultKind::Local, text, reason);
    }

    /// Tells the peer if this stage has failed.
    pub(super) fn abort_if_failed(&mut self) {
        if self.cause.has_failed() {
            self.stream.abort(&self.cause.reason());
        }
    }

    /// Lets go, and waits until the peer has heard how it ended.
    pub(super) async fn close(mut self) {
        self.abort_if_failed();
        self.stream.close().await;
    }
}

/// Waits for `work`, or for the stage to fail elsewhere.
///
/// # Cancel safety
///
/// That of `work`, which is dropped when the stage fails.
async fn unless_failed<T, E: Into<Trouble>>(
    cause: &FirstCause,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Trouble> {
    tokio::select! {
        biased;
        result = work => result.map_err(Into::into),
        () = cause.failed() => Err(Trouble::Elsewhere),
    }
}
