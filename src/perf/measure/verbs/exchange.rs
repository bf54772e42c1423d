//! The messages of the control connection between the two ends of a measurement with verbs.
//!
//! A message is its length as 32 bits, the lowest byte first, and its bytes in the encoding of postcard. Each step has
//! a message each way: what the end has, or why it has failed. So both ends know what the other one knows.

use std::{io, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

/// The longest message. The ports of an end, with their names, take a few kilobytes.
const MAX_BYTES: u32 = 64 << 10;

/// The longest time that one step of the other end takes: it registers memory, which for gigabytes takes seconds.
pub(super) const STEP_LIMIT: Duration = Duration::from_secs(30);

/// Sends what this end has or why it has failed, receives the same from the other end, and returns what the other end
/// has.
///
/// # Errors
///
/// The reason why this end has failed, why the other end has failed, or a fault of the connection.
///
/// # Cancel safety
///
/// None: the connection is of no use afterwards.
pub(super) async fn exchange<T: Serialize + DeserializeOwned>(
    control: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ours: Result<T, String>,
) -> Result<T, String> {
    let theirs = swap(control, &ours).await?;
    ours?;
    theirs.map_err(|text| of_other_end(&text))
}

/// Sends a message, and receives one of the same type.
///
/// # Errors
///
/// A fault of the connection.
///
/// # Cancel safety
///
/// None: the connection is of no use afterwards.
pub(super) async fn swap<T: Serialize + DeserializeOwned>(
    control: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ours: &T,
) -> Result<T, String> {
    send(control, ours).await?;
    within(STEP_LIMIT, receive(control)).await
}

/// Names the end of a sentence that came from the other end.
pub(super) fn of_other_end(text: &str) -> String {
    format!("the other end: {text}")
}

/// Limits the time of [`receive`].
///
/// # Errors
///
/// A fault of the connection, or the time has passed.
///
/// # Cancel safety
///
/// That of `message`.
pub(super) async fn within<T>(
    limit: Duration,
    message: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let silent = || {
        let seconds = limit.as_secs();
        Err(format!("the other end was silent for {seconds} s"))
    };
    timeout(limit, message).await.unwrap_or_else(|_| silent())
}

/// Sends a message.
///
/// # Errors
///
/// A fault of the connection.
///
/// # Cancel safety
///
/// None: the connection is of no use afterwards.
pub(super) async fn send(
    control: &mut (impl AsyncWrite + Unpin),
    message: &impl Serialize,
) -> Result<(), String> {
    let bytes = postcard::to_stdvec(message).map_err(|error| error.to_string())?;
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    if length > MAX_BYTES {
        return Err(format!("a message of {length} bytes is too long"));
    }
    let mut frame = length.to_le_bytes().to_vec();
    frame.extend(bytes);
    let sent = async {
        control.write_all(&frame).await?;
        control.flush().await
    };
    within(STEP_LIMIT, async { sent.await.map_err(lost) }).await
}

/// Receives a message.
///
/// # Errors
///
/// A fault of the connection, or of the message.
///
/// # Cancel safety
///
/// None: the connection is of no use afterwards.
pub(super) async fn receive<T: DeserializeOwned>(
    control: &mut (impl AsyncRead + Unpin),
) -> Result<T, String> {
    let mut length = [0; 4];
    control.read_exact(&mut length).await.map_err(lost)?;
    let length = u32::from_le_bytes(length);
    if length > MAX_BYTES {
        return Err(format!(
            "the other end has sent a message of {length} bytes, which is too long"
        ));
    }
    let mut bytes = vec![0; length as usize];
    control.read_exact(&mut bytes).await.map_err(lost)?;
    postcard::from_bytes(&bytes)
        .map_err(|error| format!("the other end has sent a message that is none: {error}"))
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn lost(error: io::Error) -> String {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return "the other end has closed the connection".to_owned();
    }
    format!("the connection to the other end is lost: {error}")
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    #[tokio::test]
    async fn both_ends_know_what_the_other_one_has() {
        let (mut one, mut two) = duplex(1000);
        let ours = exchange(&mut one, Ok(1_u32));
        let theirs = exchange(&mut two, Ok(2_u32));
        assert_eq!(tokio::join!(ours, theirs), (Ok(2), Ok(1)));
    }

    #[tokio::test]
    async fn both_ends_know_why_one_has_failed() {
        let (mut one, mut two) = duplex(1000);
        let ours = exchange(&mut one, Err::<u32, _>("no port".to_owned()));
        let theirs = exchange(&mut two, Ok(2_u32));
        let (ours, theirs) = tokio::join!(ours, theirs);
        assert_eq!(ours.unwrap_err(), "no port");
        assert_eq!(theirs.unwrap_err(), "the other end: no port");
    }

    #[tokio::test]
    async fn a_closed_connection_and_nonsense_are_errors() {
        let (mut one, two) = duplex(1000);
        drop(two);
        assert!(
            receive::<u32>(&mut one)
                .await
                .unwrap_err()
                .contains("closed")
        );
        let (mut one, mut two) = duplex(1000);
        two.write_all(&u32::MAX.to_le_bytes()).await.unwrap();
        assert!(
            receive::<u32>(&mut one)
                .await
                .unwrap_err()
                .contains("too long")
        );
        let (mut one, mut two) = duplex(1000);
        two.write_all(&[1, 0, 0, 0, 0xff]).await.unwrap();
        assert!(receive::<u32>(&mut one).await.unwrap_err().contains("none"));
    }

    #[tokio::test]
    async fn a_silent_end_is_an_error() {
        let (mut one, _two) = duplex(1000);
        let silent = within(Duration::ZERO, receive::<u32>(&mut one));
        let error = silent.await.unwrap_err();
        assert_eq!(error, "the other end was silent for 0 s");
    }
}
