//! How the two ends of a task connect the streams of the task.

use std::{io, sync::Arc};

use futures::future::try_join_all;
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;

use crate::{
    Direction, Error, Key, KeyAcceptor, Listener, Stream, StreamConfig,
    carry::thread::CarryThread,
    perf::messages::{TaskFault, UsedTransport},
    ssh::edge::{EdgePlan, about_peer, describe_link},
};

/// A stream of a task, and the thread whose runtime it belongs to.
pub(super) type PlacedStream = (CarryThread, Stream);

/// The streams of a task before they are connected, at one of its ends. Each has a key of its own, so that all of them
/// use one port, and each end knows which stream is which.
pub(super) enum PendingStreams {
    /// This end listens.
    Listen {
        /// Listens for all streams.
        listener: Arc<Listener>,
        /// Accepts each of the streams.
        acceptors: Vec<StreamAcceptor>,
        /// The name of the other end in messages.
        peer: String,
    },
    /// This end dials.
    Dial {
        streams: Vec<(CarryThread, EdgePlan)>,
        addresses: Vec<String>,
        port: u16,
    },
}

/// Accepts one stream of a task. Its thread owns the stream.
pub(super) struct StreamAcceptor {
    thread: CarryThread,
    key_acceptor: KeyAcceptor,
}

/// What both ends of a task know about its streams.
pub(super) struct StreamTerms {
    /// The key of the task.
    pub(super) key: Key,
    /// The name of the other end in messages.
    pub(super) peer: String,
    /// The settings of every stream.
    pub(super) config: StreamConfig,
    /// The first and the last port to listen on; none is any port.
    pub(super) ports: Option<(u16, u16)>,
    /// The number of streams.
    pub(super) count: usize,
}

impl StreamTerms {
    /// Returns the plan of the stream with this index.
    fn plan(&self, index: usize) -> EdgePlan {
        EdgePlan {
            key: derived_key(&self.key, index),
            peer: self.peer.clone(),
            config: self.config.clone(),
            ports: self.ports,
        }
    }

    /// Listens for all streams. A port for the other end is open when the call returns.
    ///
    /// # Cancel safety
    ///
    /// Safe: dropping the future closes the port.
    pub(super) async fn listen(&self) -> Result<PendingStreams, TaskFault> {
        // The streams have other keys: the listener's own key opens nothing.
        let unused = EdgePlan {
            key: derived_key(&self.key, usize::MAX),
            ..self.plan(0)
        };
        let listener = Arc::new(unused.listen().await?);
        let mut acceptors = Vec::with_capacity(self.count);
        for index in 0..self.count {
            let thread = start_thread()?;
            let EdgePlan { key, config, .. } = self.plan(index);
            let of = Arc::clone(&listener);
            let expecting = async move { of.accept_key(key, config, Handle::current()) };
            let key_acceptor = thread.run(expecting).await;
            let key_acceptor = key_acceptor.ok_or_else(|| "a key was made twice".to_owned())?;
            acceptors.push(StreamAcceptor {
                thread,
                key_acceptor,
            });
        }
        Ok(PendingStreams::Listen {
            listener,
            acceptors,
            peer: self.peer.clone(),
        })
    }

    /// Returns the end that dials.
    pub(super) fn dial(
        &self,
        addresses: Vec<String>,
        port: u16,
    ) -> Result<PendingStreams, TaskFault> {
        let streams = (0..self.count).map(|index| Ok((start_thread()?, self.plan(index))));
        Ok(PendingStreams::Dial {
            streams: streams.collect::<Result<_, TaskFault>>()?,
            addresses,
            port,
        })
    }
}

impl PendingStreams {
    /// Returns the port for the other end, if this end listens.
    pub(super) fn port(&self) -> Option<u16> {
        match self {
            Self::Listen { listener, .. } => Some(listener.local_addr().port()),
            Self::Dial { .. } => None,
        }
    }

    /// Connects every stream once. The end that listens waits until the other end has dialed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the streams that it has connected.
    pub(super) async fn connect(&mut self) -> Result<Vec<PlacedStream>, TaskFault> {
        match self {
            Self::Listen {
                acceptors, peer, ..
            } => {
                let accepting = acceptors.iter_mut().map(|acceptor| acceptor.accept(peer));
                try_join_all(accepting).await
            }
            Self::Dial {
                streams,
                addresses,
                port,
            } => {
                let dialing = streams.iter().map(|(thread, plan)| {
                    dial(thread.clone(), plan.clone(), addresses.clone(), *port)
                });
                try_join_all(dialing).await
            }
        }
    }

    /// Connects the only stream of a task. Fails as [`connect`](Self::connect) does.
    pub(super) async fn connect_one(&mut self) -> Result<PlacedStream, TaskFault> {
        let mut streams = self.connect().await?;
        streams
            .pop()
            .ok_or_else(|| "the task has no stream".to_owned().into())
    }
}

impl StreamAcceptor {
    async fn accept(&mut self, peer: &str) -> Result<PlacedStream, TaskFault> {
        let accepted = self.key_acceptor.accept().await;
        let stream = accepted.map_err(|error| about_peer(error, peer).to_string())?;
        Ok((self.thread.clone(), stream))
    }
}

async fn dial(
    thread: CarryThread,
    plan: EdgePlan,
    addresses: Vec<String>,
    port: u16,
) -> Result<PlacedStream, TaskFault> {
    let dialing = async move { plan.dial(&addresses, port).await };
    match thread.run(dialing).await? {
        Ok(stream) => Ok((thread, stream)),
        Err(tried) => Err(TaskFault::unreachable(port, &tried)),
    }
}

/// Starts a thread for one stream, or one direction of a stream.
pub(super) fn start_thread() -> Result<CarryThread, TaskFault> {
    let started = CarryThread::start("measure");
    started.map_err(|error| format!("cannot start a thread: {error}").into())
}

/// Returns the key of a stream of a task.
fn derived_key(key: &Key, index: usize) -> Key {
    let mut digest = Sha256::new();
    digest.update(b"rdperf stream");
    digest.update(key.secret());
    digest.update(u64::try_from(index).unwrap_or(u64::MAX).to_be_bytes());
    Key::from_secret(&digest.finalize().into())
}

/// Describes what carries a stream.
pub(super) fn used_transport(stream: &Stream) -> UsedTransport {
    let link = describe_link(stream);
    UsedTransport {
        is_rdma: link.transport == "rdma",
        reason: link.reason,
        address: link.address,
    }
}

/// Returns the fault for an error of a stream to `peer`.
pub(super) fn broken(error: &io::Error, peer: &str) -> TaskFault {
    match Error::from_io(error) {
        Some(error) => about_peer(error.clone(), peer).to_string().into(),
        None => format!("the stream to {peer}: {error}").into(),
    }
}

/// Returns the settings of a stream on which two ends exchange short messages about a measurement.
pub(super) fn control_settings(config: StreamConfig) -> StreamConfig {
    StreamConfig {
        chunk_bytes: 64 << 10,
        depth: 4,
        transport: crate::TransportPolicy::Tcp,
        direction: Direction::Both,
        ..config
    }
}
