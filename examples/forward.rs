//! A tunnel for TCP connections, like a pair of `socat` processes, with `tokio::io::copy_bidirectional`.
//!
//! ```console
//! hostB $ RDPIPE_KEY=... cargo run --example forward connect PORT TCP-HOST:TCP-PORT
//! hostA $ RDPIPE_KEY=... cargo run --example forward listen TCP-PORT hostB PORT
//! ```
//!
//! A program that connects to TCP-PORT of hostA reaches TCP-HOST:TCP-PORT from hostB. Each connection
//! has a stream of its own. Set `RDPIPE_TRANSPORT` to `rdma` or `tcp` to allow only this transport.

mod common;

use std::{net::Ipv4Addr, time::Duration};

use anyhow::{Result, bail};
use rdpipe::Stream;
use socket2::SockRef;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["listen", tcp_port, host, port] => listen(tcp_port, host, port).await,
        ["connect", port, target] => {
            common::serve(port, |stream| connect(stream, target.to_owned())).await
        }
        _ => bail!(
            "usage: forward listen TCP-PORT HOST PORT | forward connect PORT TCP-HOST:TCP-PORT"
        ),
    }
}

/// Forwards TCP connections from this machine as streams to `host`.
async fn listen(tcp_port: &str, host: &str, port: &str) -> Result<()> {
    let builder = common::builder()?;
    let port = port.parse()?;
    // Only on loopback: a TCP connection needs no key, and would give other machines what the key protects.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, tcp_port.parse()?)).await?;
    eprintln!("listening on port {}", listener.local_addr()?.port());
    loop {
        let (tcp, peer) = listener.accept().await?;
        let (builder, host) = (builder.clone(), host.to_owned());
        common::spawn(peer, async move {
            match builder.connect((host.as_str(), port)).await {
                Ok(stream) => {
                    common::tell(&stream);
                    join(tcp, stream).await
                }
                Err(error) => reset(&tcp, error.into()),
            }
        });
    }
}

/// Forwards a stream from a peer that has the key as a TCP connection to `target`.
async fn connect(mut stream: Stream, target: String) -> Result<()> {
    match TcpStream::connect(&target).await {
        Ok(tcp) => join(tcp, stream).await,
        Err(error) => {
            stream.abort(&format!("cannot connect to {target}: {error}"));
            stream.close().await;
            bail!("cannot connect to {target}: {error}");
        }
    }
}

async fn join(mut tcp: TcpStream, mut stream: Stream) -> Result<()> {
    tcp.set_nodelay(true)?;
    match copy_bidirectional(&mut tcp, &mut stream).await {
        // Both directions have ended. `copy_bidirectional` has turned the end of file on each side into a
        // shutdown of the other side: a FIN for the stream, a half-close for TCP.
        Ok(_) => {
            stream.close().await;
            Ok(())
        }
        Err(error) => {
            stream.abort(&format!("the forwarded connection broke: {error}"));
            stream.close().await;
            reset(&tcp, error.into())
        }
    }
}

/// Makes the TCP connection end with a reset and returns `error`. A normal close would be an end of file for the TCP
/// peer, and a broken tunnel is not an end of file.
fn reset(tcp: &TcpStream, error: anyhow::Error) -> Result<()> {
    SockRef::from(tcp).set_linger(Some(Duration::ZERO))?;
    Err(error)
}
