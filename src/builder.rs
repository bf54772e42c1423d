//! The builder of streams and listeners.

use std::{io, time::Duration};

use tokio::{
    net::{TcpStream, ToSocketAddrs},
    runtime::Handle,
};

#[cfg(feature = "rdma")]
use crate::RdmaStream;
use crate::{
    Direction, Encryption, Error, Key, Listener, OnDrop, RdmaConfig, Stream, StreamConfig,
    ToPeerAddress, TransportPolicy,
    config::{MOST_RAILS, Rails},
    connect, connect_with,
};

/// A builder of streams and listeners, with a key and the settings that differ from the defaults.
///
/// | setting | default |
/// |---|---|
/// | [`transport`](Self::transport) | RDMA if both ends have it and a message has crossed it, otherwise TCP |
/// | [`encryption`](Self::encryption) | yes, if the data leaves the machine |
/// | [`direction`](Self::direction) | both ways |
/// | [`chunk_bytes`](Self::chunk_bytes) × [`depth`](Self::depth) | 512 KiB × 16 over TCP |
/// | [`rails`](Self::rails) | 1 |
/// | [`rdma`](Self::rdma) | 2 MiB × 4 over RDMA (× 3 each way when bytes go both ways; 3 MiB × 2 with one processor), less where the memlock limit allows less |
/// | [`copy_received`](Self::copy_received) | no: over RDMA, chunks are read in the memory that the peer's device has written |
/// | [`on_drop`](Self::on_drop) | a drop before `shutdown` aborts the stream |
/// | [`timeout`](Self::timeout) | 30 s of silence |
/// | [`connect_timeout`](Self::connect_timeout) | 13 s; failed attempts are repeated for 3 s |
/// | [`handshake_timeout`](Self::handshake_timeout) | 10 s |
/// | [`control_runtime`](Self::control_runtime) | the runtime in which the stream is made |
/// | [`keepalive_runtime`](Self::keepalive_runtime) | none, which is right if the program never blocks the control runtime |
///
/// One builder can make any number of streams. Cloning it is cheap.
///
/// ```
/// use rdpipe::{Direction, Key, Stream};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), rdpipe::Error> {
/// # let key = Key::generate().unwrap();
/// let receiving = Stream::builder(&key).direction(Direction::Receive);
/// let listener = receiving.bind("127.0.0.1:0").await?;
///
/// let sending = Stream::builder(&key).direction(Direction::Send);
/// let dialing = sending.connect(listener.local_addr());
/// let (to, from) = tokio::try_join!(dialing, listener.accept())?;
/// assert_eq!((to.direction(), from.direction()), (Direction::Send, Direction::Receive));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Builder {
    key: Key,
    config: StreamConfig,
}

impl Builder {
    /// Returns a builder with the default settings, [`StreamConfig::default`].
    #[must_use]
    pub fn new(key: impl AsRef<Key>) -> Self {
        Self::with_config(key, StreamConfig::default())
    }

    /// Returns a builder with this configuration.
    #[must_use]
    pub fn with_config(key: impl AsRef<Key>, config: StreamConfig) -> Self {
        Self {
            key: key.as_ref().clone(),
            config,
        }
    }

    /// Sets the transports that may be used.
    #[must_use]
    pub fn transport(mut self, transport: TransportPolicy) -> Self {
        self.config.transport = transport;
        self
    }

    /// Sets whether the data is encrypted: see [`Encryption`].
    #[must_use]
    pub fn encryption(mut self, encryption: Encryption) -> Self {
        self.config.encryption = encryption;
        self
    }

    /// Sets the direction. An end that only sends or only receives has one pool instead of two.
    #[must_use]
    pub fn direction(mut self, direction: Direction) -> Self {
        self.config.direction = direction;
        self
    }

    /// Sets the payload of one chunk over TCP in bytes: see [`StreamConfig::chunk_bytes`].
    #[must_use]
    pub fn chunk_bytes(mut self, chunk_bytes: usize) -> Self {
        self.config.chunk_bytes = chunk_bytes;
        self
    }

    /// Sets the number of slots of a pool over TCP: see [`StreamConfig::depth`].
    #[must_use]
    pub fn depth(mut self, depth: usize) -> Self {
        self.config.depth = depth;
        self
    }

    /// Sets the number of rails, 1 to 32: data connections, or RDMA links, that carry the chunks of one stream beside each
    /// other. Each rail after the first has a thread of its own at each end, which encrypts, sends, receives and
    /// verifies, and a pool of [`depth`](Self::depth) chunks. Small messages stay on the first rail, which over RDMA has
    /// the express path for them. With the feature `cli`, the data connections of [`connect`](Self::connect) are spread
    /// over the networks that both hosts have an interface in, if these are as fast as that of the address which was
    /// dialed, and the listener accepts connections at all of its addresses.
    ///
    /// The default is 1: the user of the stream drives its only rail. An end that asks for 1 gets 1; otherwise a stream
    /// has the smaller number of both ends.
    #[must_use]
    pub fn rails(mut self, rails: usize) -> Self {
        let rails = u8::try_from(rails)
            .unwrap_or(MOST_RAILS)
            .clamp(1, MOST_RAILS);
        self.config.rails = Rails::Exactly(rails);
        self
    }

    /// Sets chunk size, depth, device and port for RDMA.
    #[must_use]
    pub fn rdma(mut self, rdma: RdmaConfig) -> Self {
        self.config.rdma = rdma;
        self
    }

    /// Sets how long a read over RDMA polls for a small message before it waits for an event: see
    /// [`RdmaConfig::busy_poll`].
    #[must_use]
    pub fn busy_poll(mut self, time: Duration) -> Self {
        self.config.rdma.busy_poll = Some(time);
        self
    }

    /// Copies chunks that arrive over RDMA to memory that the peer cannot write, for peers that are not trusted: see
    /// [`StreamConfig::copy_received`].
    #[must_use]
    pub fn copy_received(mut self, copy: bool) -> Self {
        self.config.copy_received = copy;
        self
    }

    /// Sets what happens when a stream is dropped before its shutdown has completed: see [`OnDrop`].
    #[must_use]
    pub fn on_drop(mut self, on_drop: OnDrop) -> Self {
        self.config.on_drop = on_drop;
        self
    }

    /// Sets the silence after which the peer is treated as dead: see [`StreamConfig::timeout`].
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.config.timeout = timeout;
        self
    }

    /// Sets the time limit of [`connect`](Self::connect), from its first attempt to the end of the handshake. Failed
    /// attempts are repeated for as long, unless [`retry`](Self::retry) forbids it.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.connect_timeout = timeout;
        if !self.config.retry_for.is_zero() {
            self.config.retry_for = timeout;
        }
        self
    }

    /// Sets whether [`connect`](Self::connect) repeats failed attempts, as it does by default: often the acceptor is
    /// being started at the same time. Without it a closed port is an error at once.
    #[must_use]
    pub fn retry(mut self, retry: bool) -> Self {
        self.config.retry_for = match (retry, self.config.retry_for) {
            (false, _) => Duration::ZERO,
            (true, Duration::ZERO) => self.config.connect_timeout,
            (true, set) => set,
        };
        self
    }

    /// Sets the time limit of a handshake.
    #[must_use]
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.config.handshake_timeout = timeout;
        self
    }

    /// Sets the runtime of the streams' control tasks: see [`StreamConfig::control_runtime`].
    #[must_use]
    pub fn control_runtime(mut self, runtime: Handle) -> Self {
        self.config.control_runtime = Some(runtime);
        self
    }

    /// Sets the runtime that sends keepalives while the control tasks' runtime is blocked: see
    /// [`StreamConfig::keepalive_runtime`].
    #[must_use]
    pub fn keepalive_runtime(mut self, runtime: Handle) -> Self {
        self.config.keepalive_runtime = Some(runtime);
        self
    }

    /// Returns the configuration that this builder gives to its streams.
    #[must_use]
    pub fn config(&self) -> &StreamConfig {
        &self.config
    }

    /// Connects to the acceptor at `peer`, for instance `"hostB:12345"`: see [`connect`](crate::connect()).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`connect`](crate::connect()).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connections that it has opened. The acceptor continues to listen.
    pub async fn connect(&self, peer: impl ToPeerAddress) -> Result<Stream, Error> {
        connect(peer, &self.key, &self.config).await
    }

    /// Connects over the TCP connections that `open` opens, for instance through a proxy: see
    /// [`connect_with`](crate::connect_with()).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`connect`](crate::connect()).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connections that it has opened. The acceptor continues to listen.
    pub async fn connect_with<F>(&self, peer: &str, open: impl Fn() -> F) -> Result<Stream, Error>
    where
        F: Future<Output = io::Result<TcpStream>>,
    {
        connect_with(peer, open, &self.key, &self.config).await
    }

    /// Connects to the acceptor at `peer` over RDMA, and fails if RDMA is not possible: see
    /// [`RdmaStream::connect`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`RdmaStream::connect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connections that it has opened. The acceptor continues to listen.
    #[cfg(feature = "rdma")]
    pub async fn connect_rdma(&self, peer: impl ToPeerAddress) -> Result<RdmaStream, Error> {
        RdmaStream::connect(peer, &self.key, &self.config).await
    }

    /// Listens on `address` for peers with the key, for instance on `"[::]:12345"`: see [`Listener::bind`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Listener::bind`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what it had opened.
    pub async fn bind(&self, address: impl ToSocketAddrs) -> Result<Listener, Error> {
        Listener::bind(address, self.key.clone(), self.config.clone()).await
    }

    /// Accepts from a socket that listens already, for instance one that systemd has opened: see
    /// [`Listener::from_std`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Listener::from_std`].
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub fn listener_from_std(&self, socket: std::net::TcpListener) -> Result<Listener, Error> {
        Listener::from_std(socket, self.key.clone(), self.config.clone())
    }
}

impl Stream {
    /// Returns a builder of streams with `key`, a [`Key`] or a [`GeneratedKey`](crate::GeneratedKey). A stream uses
    /// RDMA if both ends have it, otherwise TCP.
    #[must_use]
    pub fn builder(key: impl AsRef<Key>) -> Builder {
        Builder::new(key)
    }
}

#[cfg(feature = "rdma")]
impl RdmaStream {
    /// Returns a builder of streams with `key` that use RDMA only. Use it for [`connect_rdma`](Builder::connect_rdma),
    /// or for a listener that refuses peers without RDMA.
    #[must_use]
    pub fn builder(key: impl AsRef<Key>) -> Builder {
        Builder::new(key).transport(TransportPolicy::Rdma)
    }
}
