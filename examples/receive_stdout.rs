//! Takes one stream from a peer that has the key, such as `rdsend` or the example `send_stdin`,
//! and writes it to stdout.
//!
//! ```console
//! $ RDPIPE_KEY=... cargo run --example receive_stdout PORT > FILE
//! ```

use std::{error::Error, net::Ipv6Addr};

use rdpipe::{Direction, Key, Listener, StreamConfig};
use tokio::io::AsyncWriteExt;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let Some(port) = std::env::args().nth(1) else {
        return Err("usage: receive_stdout PORT > FILE".into());
    };
    let key = Key::parse(std::env::var("RDPIPE_KEY")?)?;
    let mut config = StreamConfig::default();
    config.direction = Direction::Receive;

    let address = (Ipv6Addr::UNSPECIFIED, port.parse()?).into();
    let mut listener = Listener::bind(address, key, config)?;
    eprintln!("listening on port {}", listener.local_addr().port());
    let mut stream = listener.accept().await?;
    let mut stdout = tokio::io::stdout();
    // From the slot that the chunk arrived in straight to stdout.
    tokio::io::copy_buf(&mut stream, &mut stdout).await?;
    stdout.flush().await?;
    // Only now is the sender told that its bytes were taken.
    stream.confirm()?;
    stream.close().await;
    Ok(())
}
