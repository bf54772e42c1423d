//! What the loop needs of a stream besides its bytes: a watch, and an end.

use crate::{Error, ReadHalf, Stream, Watch, WriteHalf};

/// A stream, or a half of one, whose failure can be awaited while its bytes are moved.
pub(crate) trait Watched {
    /// Returns a watch on the stream.
    fn watch(&self) -> Watch;
}

/// The sending side of a stream.
pub(crate) trait Finish {
    /// Sends the end of the stream and waits until the peer has confirmed all bytes.
    ///
    /// # Errors
    ///
    /// Fails if the stream fails before the confirmation arrives.
    ///
    /// # Cancel safety
    ///
    /// Safe: a later call waits for the same confirmation.
    fn finish(&mut self) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Waits for `work`, or fails as soon as the watched stream does.
///
/// If both are ready at the same time, the result of `work` is returned.
///
/// # Errors
///
/// Returns the error that ended the stream.
///
/// # Cancel safety
///
/// That of `work`, which is dropped when the stream fails.
pub(crate) async fn unless_interrupted<T>(
    watch: &Watch,
    work: impl Future<Output = T>,
) -> Result<T, Error> {
    tokio::select! {
        biased;
        result = work => Ok(result),
        error = watch.interrupted() => Err(error),
    }
}

impl Watched for Stream {
    fn watch(&self) -> Watch {
        Self::watch(self)
    }
}

impl Watched for ReadHalf {
    fn watch(&self) -> Watch {
        Self::watch(self)
    }
}

impl Watched for WriteHalf {
    fn watch(&self) -> Watch {
        Self::watch(self)
    }
}

impl Finish for Stream {
    async fn finish(&mut self) -> Result<(), Error> {
        Self::finish(self).await
    }
}

impl Finish for WriteHalf {
    async fn finish(&mut self) -> Result<(), Error> {
        Self::finish(self).await
    }
}
