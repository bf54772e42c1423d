//! A service of gRPC that returns the messages of its client, without a compiler for protocol buffers: its messages are
//! plain bytes.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    task::{Context, Poll},
};

use bytes::{Buf, BufMut, Bytes};
use futures::{FutureExt, future::BoxFuture};
use rdpipe::PeerInfo;
use tonic::{
    Status, Streaming,
    body::Body,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    server::StreamingService,
};
use tower::Service;

/// The path of the method.
pub(crate) const PATH: &str = "/echo.Echo/Echo";

/// The service.
#[derive(Clone)]
pub(crate) struct Echo;

impl Service<hyper::Request<Body>> for Echo {
    type Response = hyper::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: hyper::Request<Body>) -> Self::Future {
        async move {
            let peer = request.extensions().get::<PeerInfo>();
            assert!(peer.is_some(), "no information about the peer");
            let mut grpc = tonic::server::Grpc::new(PlainCodec);
            Ok(grpc.streaming(EchoMethod, request).await)
        }
        .boxed()
    }
}

struct EchoMethod;

impl StreamingService<Bytes> for EchoMethod {
    type Response = Bytes;
    type ResponseStream = Streaming<Bytes>;
    type Future = Ready<Result<tonic::Response<Streaming<Bytes>>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<Bytes>>) -> Self::Future {
        ready(Ok(tonic::Response::new(request.into_inner())))
    }
}

/// Messages that are plain bytes.
#[derive(Clone, Copy, Default)]
pub(crate) struct PlainCodec;

impl Codec for PlainCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for PlainCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for PlainCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
