//! Sends a file through TLS, with tokio-rustls: rdpipe itself checks every byte, but does not encrypt.
//!
//! ```console
//! hostB $ RDPIPE_KEY=... cargo run -p frameworks --example tls receive PORT CERTIFICATE > FILE
//! hostA $ RDPIPE_KEY=... cargo run -p frameworks --example tls send HOST PORT CERTIFICATE < FILE
//! ```
//!
//! The receiver makes a certificate for this one run and writes it to the file CERTIFICATE. Copy this file
//! to the host of the sender, which trusts only this certificate. Set `RDPIPE_TRANSPORT` to `rdma` or `tcp` to
//! allow only this transport.

#[path = "../common/mod.rs"]
mod common;

use std::{fs, sync::Arc};

use anyhow::{Result, bail, ensure};
use rdpipe::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, stdin, stdout};
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    rustls::{
        ClientConfig, RootCertStore, ServerConfig,
        pki_types::{PrivatePkcs8KeyDer, ServerName},
    },
};

/// The host name in the certificate. It is never resolved.
const NAME: &str = "receiver.rdpipe.example";

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["receive", port, certificate] => receive(port, certificate).await,
        ["send", host, port, certificate] => send(host, port, certificate).await,
        _ => bail!(
            "usage: tls receive PORT CERTIFICATE > FILE | tls send HOST PORT CERTIFICATE < FILE"
        ),
    }
}

async fn receive(port: &str, certificate: &str) -> Result<()> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    fs::write(certificate, made.cert.der())?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.into()], key.into())?;

    let listener = common::listen(&common::builder()?, port).await?;
    let stream = listener.accept().await?;
    let mut tls = TlsAcceptor::from(Arc::new(config)).accept(stream).await?;
    let mut stdout = stdout();
    copy(&mut tls, &mut stdout).await?;
    stdout.flush().await?;
    tls.shutdown().await?;
    let mut stream = tls.into_inner().0;
    read_fin(&mut stream).await?;
    // `confirm` reports to the sender that all bytes were written, so it comes after the flush.
    stream.confirm()?;
    stream.close().await;
    Ok(())
}

async fn send(host: &str, port: &str, certificate: &str) -> Result<()> {
    let mut trusted = RootCertStore::empty();
    trusted.add(fs::read(certificate)?.into())?;
    let config = ClientConfig::builder()
        .with_root_certificates(trusted)
        .with_no_client_auth();

    let stream = common::builder()?.connect((host, port.parse()?)).await?;
    common::tell(&stream);
    let connector = TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from(NAME)?;
    let mut tls = connector.connect(name, stream).await?;
    copy(&mut stdin(), &mut tls).await?;
    // TLS ends first, then the stream with its FIN. The peer checks both ends.
    tls.shutdown().await?;
    let more = tls.read(&mut [0]).await?;
    ensure!(more == 0, "the receiver is to send nothing");
    let mut stream = tls.into_inner().0;
    read_fin(&mut stream).await?;
    // `finish` returns when the program at the receiver has confirmed every byte.
    stream.finish().await?;
    stream.close().await;
    Ok(())
}

/// Reads the end of the stream, which comes after the end of TLS, where tokio-rustls stops reading. Dropping
/// a stream that was not read to its end is an abort. The peer may still wait until its own FIN is
/// acknowledged, and would get an error.
async fn read_fin(stream: &mut Stream) -> Result<()> {
    let more = stream.read(&mut [0]).await?;
    ensure!(more == 0, "the peer went on after the end of TLS");
    Ok(())
}
