//! Sends stdin to a listening peer, such as `rdrecv PORT > FILE` or the example `receive_stdout`.
//!
//! ```console
//! $ RDPIPE_KEY=... cargo run --example send_stdin HOST PORT < FILE
//! ```

use std::error::Error;

use rdpipe::{Direction, Key, StreamConfig};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(host), Some(port)) = (arguments.next(), arguments.next()) else {
        return Err("usage: send_stdin HOST PORT < FILE".into());
    };
    let key = Key::parse(std::env::var("RDPIPE_KEY")?)?;
    let mut config = StreamConfig::default();
    config.direction = Direction::Send;

    let mut stream = rdpipe::connect(&host, port.parse()?, &key, &config).await?;
    tokio::io::copy(&mut tokio::io::stdin(), &mut stream).await?;
    // Without this the peer sees a failure, not an end. It completes when the peer's program has
    // confirmed that it took every byte; `shutdown()` when the peer's endpoint has them.
    stream.finish().await?;
    stream.close().await;
    Ok(())
}
