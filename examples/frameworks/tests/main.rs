//! Unmodified frameworks over streams: every connection ends without an error, at both ends, and a panic is an error at
//! the peer.

#[macro_use]
#[path = "../../../tests/support/mod.rs"]
mod support;

mod examples;
mod framed;
mod grpc;
mod http;

use std::sync::{Arc, Mutex};

use anyhow::{Result, ensure};
use rdpipe::{Builder, Error, Key, Listener, Stream, StreamConfig, Watch};

use crate::support::{data_path::DataPath, limits::generous};

/// Makes a module with every test over one data path.
macro_rules! over {
    ($module:ident, $path:ident) => {
        mod $module {
            promises! { over $path:
                http::answers_end_without_an_error, http::answers_without_keep_alive_end_without_an_error,
                http::a_graceful_shutdown_ends_idle_clients, http::a_panic_in_a_handler_is_an_error_at_the_client,
                http::a_server_of_hyper_ends_without_an_error,
                grpc::many_megabytes_go_both_ways,
                framed::many_clients_end_without_an_error,
            }
        }
    };
}

over!(tcp, Tcp);
#[cfg(feature = "rdma")]
over!(rdma, Rdma);

/// A listener, a builder for its clients, and views of all streams of both ends.
struct House {
    listener: Listener,
    builder: Builder,
    watches: Watches,
}

/// Views of the streams of a test.
#[derive(Clone, Default)]
struct Watches(Arc<Mutex<Vec<(&'static str, Watch)>>>);

impl House {
    async fn open(over: DataPath, mut base: StreamConfig) -> Result<Self> {
        // The tests are about ends, and a slow machine with many clients needs longer than the usual timeouts.
        (base.handshake_timeout, base.connect_timeout) = (generous(), generous());
        base.timeout = generous();
        let builder = Builder::with_config(&Key::generate()?, over.config(base));
        Ok(Self {
            listener: builder.bind("127.0.0.1:0").await?,
            builder,
            watches: Watches::default(),
        })
    }

    async fn connect(&self) -> Result<Stream> {
        let stream = self.builder.connect(self.listener.local_addr()).await?;
        Ok(self.watches.over("the client", stream))
    }
}

impl Watches {
    /// Keeps a view of `stream`.
    fn over(&self, end: &'static str, stream: Stream) -> Stream {
        self.note(end, &stream);
        stream
    }

    fn note(&self, end: &'static str, stream: &Stream) {
        self.0.lock().expect("no panic").push((end, stream.watch()));
    }

    /// Checks that `count` streams were watched, and none of them ended with an error.
    fn check(&self, count: usize) -> Result<()> {
        let watches = self.0.lock().expect("no panic");
        ensure!(watches.len() == count, "{} streams", watches.len());
        for (end, watch) in watches.iter() {
            ensure!(watch.error().is_none(), "{end}: {:?}", watch.error());
        }
        Ok(())
    }

    /// Returns the errors of the streams at this end.
    fn errors(&self, of: &str) -> Vec<Option<Error>> {
        let watches = self.0.lock().expect("no panic");
        let here = watches.iter().filter(|(end, _)| *end == of);
        here.map(|(_, watch)| watch.error()).collect()
    }
}
