//! One end of an edge in the hands of its stage: moves bytes, and ends for the right reason.

use std::{io, sync::Arc};

use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    cause::FirstCause,
    meter::{Meter, Metered},
};
use crate::{
    Error, Stream,
    carry::pump::{self, PumpError},
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

impl Trouble {
    fn stream(error: Error) -> Self {
        match error {
            Error::Stopped { .. } => Self::Stopped,
            error => Self::Stream(error),
        }
    }
}

impl From<PumpError> for Trouble {
    fn from(error: PumpError) -> Self {
        match error {
            PumpError::Source(error, offset) | PumpError::Sink(error, offset) => {
                Self::Local(error, offset)
            }
            PumpError::Stream(error) => match Error::from_io(&error) {
                Some(inner) => Self::stream(inner.clone()),
                None => Self::Local(error, 0),
            },
        }
    }
}

impl ConnectedEdge {
    /// Writes the whole input to `sink`, up to a verified FIN.
    pub(super) async fn drain(
        &mut self,
        sink: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), Trouble> {
        let (watch, cause) = (self.stream.watch(), Arc::clone(&self.cause));
        let mut input = Metered::new(&mut self.stream, &self.meter);
        tokio::select! {
            biased;
            drained = pump::drain(&mut input, sink) => { drained?; }
            error = watch.interrupted() => return Err(Trouble::stream(error)),
            () = cause.failed() => return Err(Trouble::Elsewhere),
        }
        // What came after the last byte counts as well: only now nothing may turn back.
        watch
            .error()
            .map_or(Ok(()), |error| Err(Trouble::stream(error)))
    }

    /// Sends all of `source`, and no FIN.
    pub(super) async fn fill(
        &mut self,
        source: &mut (impl AsyncRead + Unpin),
    ) -> Result<(), Trouble> {
        let (watch, cause) = (self.stream.watch(), Arc::clone(&self.cause));
        let mut output = Metered::new(&mut self.stream, &self.meter);
        tokio::select! {
            biased;
            filled = pump::fill(source, &mut output) => { filled?; Ok(()) }
            error = watch.interrupted() => Err(Trouble::stream(error)),
            () = cause.failed() => Err(Trouble::Elsewhere),
        }
    }

    /// Waits for `event`, and for nothing that makes it pointless.
    ///
    /// # Cancel safety
    ///
    /// That of `event`.
    pub(super) async fn until<T>(&self, event: impl Future<Output = T>) -> Result<T, Trouble> {
        let watch = self.stream.watch();
        tokio::select! {
            biased;
            result = event => Ok(result),
            error = watch.interrupted() => Err(Trouble::stream(error)),
            () = self.cause.failed() => Err(Trouble::Elsewhere),
        }
    }

    /// Sends the FIN, and waits until the peer's sink has confirmed that it took all.
    pub(super) async fn finish(&mut self) -> Result<(), Trouble> {
        let cause = Arc::clone(&self.cause);
        tokio::select! {
            biased;
            finished = self.stream.finish() => finished.map_err(Trouble::stream),
            () = cause.failed() => Err(Trouble::Elsewhere),
        }
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
