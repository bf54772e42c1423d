//! Two connected ends of a stream.

use anyhow::{Context, Result};
use rdpipe::{Key, Listener, Stream, StreamConfig, connect};

/// Returns a listener on a free port of loopback, and a new key for it.
pub(crate) async fn listener(config: StreamConfig) -> Result<(Listener, Key)> {
    let key = Key::generate()?.key().clone();
    let listener = Listener::bind("127.0.0.1:0", key.clone(), config).await?;
    Ok((listener, key))
}

/// Dials `port`, which leads to `listener`. Returns the dialed and the accepted stream.
pub(crate) async fn meet(
    listener: Listener,
    port: u16,
    key: &Key,
    config: &StreamConfig,
) -> Result<(Stream, Stream)> {
    let dialing = async {
        let dialed = connect(("127.0.0.1", port), key, config).await;
        dialed.context("the dialer")
    };
    let accepting = async { listener.accept().await.context("the acceptor") };
    // A listener whose only dialer has failed would wait forever.
    tokio::try_join!(dialing, accepting)
}
