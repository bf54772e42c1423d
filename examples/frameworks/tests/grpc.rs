//! tonic, at both ends, with a codec for plain bytes.

#[path = "../grpc_echo.rs"]
mod grpc_echo;

use anyhow::{Result, ensure};
use bytes::Bytes;
use futures::{StreamExt, stream};
use hyper::http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use rdpipe::{OnDrop, StreamConfig};
use tonic::transport::{Endpoint, Server};

use self::grpc_echo::{Echo, PATH, PlainCodec};
use super::House;
use crate::support::data_path::DataPath;

/// Each message, and how many of them there are; fewer where it is slow.
const MESSAGE_BYTES: usize = 1 << 20;
const MESSAGES: usize = 100;
const FEW_MESSAGES: usize = 20;

/// Messages of a megabyte are echoed. Then the client drops its channel.
pub(crate) async fn many_megabytes_go_both_ways(over: DataPath, base: StreamConfig) -> Result<()> {
    let many = if over.is_slow() {
        FEW_MESSAGES
    } else {
        MESSAGES
    };
    let mut base = base;
    base.on_drop = OnDrop::Fin;
    let house = House::open(over, base).await?;
    let (builder, watches) = (house.builder.clone(), house.watches.clone());
    let (address, live) = (house.listener.local_addr(), house.listener.live_streams());
    let incoming = {
        let watches = watches.clone();
        house.listener.incoming().inspect(move |stream| {
            if let Ok(stream) = stream {
                watches.note("the server", stream);
            }
        })
    };
    let serving = Server::builder().serve_with_incoming(Echo, incoming);
    let server = tokio::spawn(serving);
    let connector = {
        let watches = watches.clone();
        tower::service_fn(move |_| {
            let (builder, watches) = (builder.clone(), watches.clone());
            async move {
                let stream = builder.connect(address).await?;
                Ok::<_, rdpipe::Error>(TokioIo::new(watches.over("the client", stream)))
            }
        })
    };
    let endpoint = Endpoint::from_static("http://server");
    let channel = endpoint.connect_with_connector(connector).await?;
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await?;
    let messages = stream::iter(
        (0..many).map(|number| Bytes::from(vec![u8::try_from(number).unwrap_or(0); MESSAGE_BYTES])),
    );
    let path = PathAndQuery::from_static(PATH);
    let answers = client
        .streaming(tonic::Request::new(messages), path, PlainCodec)
        .await?;
    let mut answers = answers.into_inner();
    let mut count = 0;
    while let Some(answer) = answers.next().await.transpose()? {
        ensure!(
            answer.len() == MESSAGE_BYTES && answer.iter().all(|byte| usize::from(*byte) == count)
        );
        count += 1;
    }
    ensure!(count == many, "{count} messages");
    drop((client, answers));
    live.ended().await;
    server.abort();
    watches.check(2)
}
