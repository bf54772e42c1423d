//! Messages over the control stream of a task: a length of four bytes, then the encoding.

use serde::{Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The most bytes of a message. The largest one has 64 sizes.
const MAX_FRAME_BYTES: usize = 4096;

/// Sends a message.
pub(super) async fn send(
    control: &mut (impl AsyncWrite + Unpin),
    message: &impl Serialize,
) -> Result<(), String> {
    let bytes = postcard::to_stdvec(message).map_err(|error| error.to_string())?;
    let length = u32::try_from(bytes.len()).map_err(|error| error.to_string())?;
    let mut frame = length.to_le_bytes().to_vec();
    frame.extend_from_slice(&bytes);
    let sent = async {
        control.write_all(&frame).await?;
        control.flush().await
    };
    let error = |error| format!("cannot send counts of packets to the other end: {error}");
    sent.await.map_err(error)
}

/// Receives a message.
pub(super) async fn receive<T: DeserializeOwned>(
    control: &mut (impl AsyncRead + Unpin),
) -> Result<T, String> {
    let mut length = [0; 4];
    let error = |error| format!("cannot receive counts of packets from the other end: {error}");
    control.read_exact(&mut length).await.map_err(error)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_FRAME_BYTES {
        return Err(malformed());
    }
    let mut bytes = vec![0; length];
    control.read_exact(&mut bytes).await.map_err(error)?;
    postcard::from_bytes(&bytes).map_err(|_| malformed())
}

fn malformed() -> String {
    "the other end has sent something that is no count of packets".to_owned()
}
