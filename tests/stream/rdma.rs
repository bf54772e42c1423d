//! `RdmaStream` uses RDMA or fails. The promises test the bytes that it carries.

use rdpipe::{Error, HandshakeFault, Key, Listener, RdmaStream, StreamConfig, TransportPolicy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{
    ends::{Ends, Rdma, Tcp},
    skip,
};

#[tokio::test]
async fn a_stream_over_tcp_is_returned_unharmed() {
    let config = StreamConfig::default;
    let (mut dialer, acceptor) = Tcp::pair(config(), config()).await.unwrap();
    let not = RdmaStream::try_from(acceptor).unwrap_err();
    assert!(
        not.to_string().starts_with("the data would go over TCP: "),
        "{not}"
    );
    let mut acceptor = not.into_inner();
    dialer.write_all(b"all the same").await.unwrap();
    let shutdown = dialer.shutdown();
    let mut text = String::new();
    let (shutdown, read) = tokio::join!(shutdown, acceptor.read_to_string(&mut text));
    shutdown.unwrap();
    read.unwrap();
    assert_eq!(text, "all the same");
}

#[tokio::test]
async fn an_acceptor_that_requires_rdma_tells_the_dialer_why() {
    let key = Key::generate().unwrap();
    let mut config = StreamConfig::default();
    config.transport = TransportPolicy::Tcp;
    let address = "127.0.0.1:0".parse().unwrap();
    let mut listener = Listener::bind(address, key.key().clone(), config.clone()).unwrap();
    let port = listener.local_addr().port();
    let dialing = rdpipe::connect("127.0.0.1", port, key.key(), &config);
    let (dialer, acceptor) = tokio::join!(dialing, RdmaStream::accept(&mut listener));
    let error = acceptor.unwrap_err();
    let transport = |error: &Error| {
        matches!(
            error,
            Error::Handshake {
                fault: HandshakeFault::Transport(_),
                ..
            }
        )
    };
    assert!(transport(&error), "{error}");
    let error = dialer.unwrap().read_u8().await.unwrap_err();
    assert!(
        error.to_string().contains("the data would go over TCP"),
        "{error}"
    );
}

#[tokio::test]
async fn a_dialer_that_requires_rdma_never_gets_tcp() {
    let key = Key::generate().unwrap();
    let mut config = StreamConfig::default();
    config.transport = TransportPolicy::Tcp;
    let address = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(address, key.key().clone(), config.clone()).unwrap();
    let port = listener.local_addr().port();
    // Without a device the error is the missing device; with one it is the refusal of the peer.
    let dialed = RdmaStream::connect("127.0.0.1", port, key.key(), &config).await;
    let error = dialed.unwrap_err();
    let refused = matches!(
        error,
        Error::Device { .. }
            | Error::Handshake {
                fault: HandshakeFault::Refused(_),
                ..
            }
    );
    assert!(refused && error.to_string().contains("RDMA"), "{error}");
}

#[tokio::test]
async fn bytes_copied_into_an_rdma_stream_come_out() {
    if let Some(why) = Rdma::missing() {
        return skip(&why);
    }
    let config = StreamConfig::default;
    let (dialer, acceptor) = Rdma::pair(config(), config()).await.unwrap();
    let mut dialer = RdmaStream::try_from(dialer).unwrap();
    let mut acceptor = RdmaStream::try_from(acceptor).unwrap();
    let input = vec![7; 3_000_000];
    let giving = async {
        tokio::io::copy(&mut &input[..], &mut dialer).await?;
        Ok::<_, std::io::Error>(dialer.finish().await?)
    };
    let taking = async {
        let mut output = Vec::new();
        tokio::io::copy_buf(&mut acceptor, &mut output).await?;
        acceptor.confirm()?;
        Ok::<_, std::io::Error>(output)
    };
    let (given, taken) = tokio::join!(giving, taking);
    given.unwrap();
    assert!(taken.unwrap() == input);
}
