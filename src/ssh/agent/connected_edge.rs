//! One end of a connected edge: moves the bytes of its stage, and reports why it ends.

use std::{io, sync::Arc};

use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    cause::FirstCause,
    meter::{Meter, Metered},
};
use crate::{
    Error, Stream,
    carry::{self, CarryError},
    ssh::protocol::FaultKind,
};

/// The stream of an edge, with its counts and the names for messages.
pub(crate) struct ConnectedEdge {
    pub(crate) stream: Stream,
    pub(super) meter: Arc<Meter>,
    /// The name of the other end in messages: "stage 1 (fs1)".
    pub(crate) peer: String,
    pub(super) cause: Arc<FirstCause>,
    /// The name of this stage in messages to peers: "stage 2 (fs2)".
    pub(super) stage: String,
}

/// The reason why an edge ends before all of its bytes are carried.
#[derive(Debug)]
pub(super) enum EarlyEnd {
    /// The next stage has stopped reading.
    Stopped,
    /// The stream broke.
    Stream(Error),
    /// The local source or sink failed after this many bytes.
    Local(io::Error, u64),
    /// Another part of the order failed. The failure is in the [`FirstCause`] already.
    Elsewhere,
}

impl From<Error> for EarlyEnd {
    fn from(error: Error) -> Self {
        match error {
            Error::Stopped { .. } => Self::Stopped,
            error => Self::Stream(error),
        }
    }
}

impl From<CarryError> for EarlyEnd {
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
    ) -> Result<(), EarlyEnd> {
        let mut input = Metered::new(&mut self.stream, &self.meter);
        let draining = carry::receive_all(&mut input, sink);
        unless_failed(&self.cause, draining).await.map(drop)
    }

    /// Sends all of `source`, without a FIN.
    pub(super) async fn fill(
        &mut self,
        source: &mut (impl AsyncRead + Unpin),
    ) -> Result<(), EarlyEnd> {
        let mut output = Metered::new(&mut self.stream, &self.meter);
        let filling = carry::send_all(source, &mut output);
        unless_failed(&self.cause, filling).await.map(drop)
    }

    /// Waits for `event`. Fails earlier if the stream breaks, the peer stops reading, or the order fails.
    ///
    /// # Cancel safety
    ///
    /// That of `event`.
    pub(super) async fn until<T>(&self, event: impl Future<Output = T>) -> Result<T, EarlyEnd> {
        let watch = self.stream.watch();
        unless_failed(&self.cause, carry::unless_interrupted(&watch, event)).await
    }

    /// Sends the FIN, and waits until the peer has confirmed that its sink accepted all bytes.
    pub(super) async fn finish(&mut self) -> Result<(), EarlyEnd> {
        unless_failed(&self.cause, self.stream.finish()).await
    }

    /// Fails the order because this edge broke. The peers on all edges receive the reason.
    pub(super) fn broken(&self, error: Error) {
        self.cause.broken(error, &self.peer, &self.stage);
    }

    /// Fails the order because of a failure in this process: of a file or a pipe, say.
    pub(super) fn fail_local(&self, text: impl Into<String>) {
        let text = text.into();
        let reason = format!("{}: {text}", self.stage);
        self.cause.fail(FaultKind::Local, text, reason);
    }

    /// Aborts the stream with the reason of the first failure, if the order has failed.
    pub(super) fn abort_if_failed(&mut self) {
        if self.cause.has_failed() {
            self.stream.abort(&self.cause.reason());
        }
    }

    /// Closes the edge, and waits until the peer has received how it ended.
    pub(super) async fn close(mut self) {
        self.abort_if_failed();
        self.stream.close().await;
    }
}

/// Waits for `work`. Fails with [`EarlyEnd::Elsewhere`] if another part of the order fails first.
///
/// # Cancel safety
///
/// That of `work`, which is dropped when the order fails.
async fn unless_failed<T, E: Into<EarlyEnd>>(
    cause: &FirstCause,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, EarlyEnd> {
    tokio::select! {
        biased;
        result = work => result.map_err(Into::into),
        () = cause.failed() => Err(EarlyEnd::Elsewhere),
    }
}
