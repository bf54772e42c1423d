//! What the tests of both sides of a copy have in common: the streams of a copy over loopback, and its context.

use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;

use super::{
    job::{CopyContext, CopyStreams},
    order::{CopyOptions, FromCopy},
};
use crate::{Key, Listener, Stream, StreamConfig, TransportPolicy, carry::CarryThread, connect};

/// Returns the streams of one side of a copy with this number of lanes, and their far ends.
pub(super) async fn streams(
    lanes: usize,
    chunk_bytes: usize,
) -> (CopyStreams, Stream, Vec<Stream>) {
    let (control, far_control) = stream(chunk_bytes).await;
    let mut near_lanes = Vec::new();
    let mut far_lanes = Vec::new();
    for _ in 0..lanes {
        let (near, far) = stream(chunk_bytes).await;
        near_lanes.push(near);
        far_lanes.push(far);
    }
    let lanes = near_lanes;
    (CopyStreams { control, lanes }, far_control, far_lanes)
}

/// Returns the two ends of a stream; the near one belongs to a thread.
pub(super) async fn stream(chunk_bytes: usize) -> ((CarryThread, Stream), Stream) {
    let config = StreamConfig {
        transport: TransportPolicy::Tcp,
        chunk_bytes,
        ..StreamConfig::default()
    };
    let key = Key::generate().unwrap().key().clone();
    let listening = Listener::bind("127.0.0.1:0", key.clone(), config.clone());
    let listener = listening.await.unwrap();
    let address = listener.local_addr();
    let thread = CarryThread::start("test lane").unwrap();
    let dialing = thread.run(async move { connect(address, &key, &config).await });
    let (accepted, connected) = tokio::join!(listener.accept(), dialing);
    ((thread, connected.unwrap()), accepted.unwrap())
}

/// Returns a context that keeps all messages.
pub(super) fn context(
    messages: &Arc<Mutex<Vec<FromCopy>>>,
    cancelled: CancellationToken,
) -> CopyContext {
    let messages = Arc::clone(messages);
    CopyContext {
        report: Arc::new(move |message: FromCopy| messages.lock().unwrap().push(message)),
        cancelled,
        reason: Arc::new(|| "enough".to_owned()),
        give_up: Arc::new(|_| {}),
    }
}

pub(super) fn archive() -> CopyOptions {
    CopyOptions {
        recursive: true,
        archive: true,
        ..CopyOptions::default()
    }
}
