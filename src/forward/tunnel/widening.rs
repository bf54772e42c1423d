//! Further streams of a tunnel. The near end asks for them over the first stream, the far end answers where it waits for
//! them, and the near end connects them while the first stream carries connections already.
//!
//! The keys of the streams follow from the key of the first one and from random bytes of the far end: only the two ends
//! of the tunnel can compute them, and an observer who reads the messages learns nothing.
//!
//! A stream joins the tunnel with the first message of its peer. One that fails before that is left out, and the tunnel
//! goes on with fewer.

use std::{fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use tokio::{
    runtime::Handle,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{sleep, timeout},
};

use super::{
    TunnelFault, TunnelRole, carry,
    end::{FurtherStream, TunnelEnd},
    flows::{StreamKind, TunnelEvent, TunnelShared},
    messages::TunnelMessage,
    peer::TunnelPeer,
};
use crate::{
    Key, KeyId, Listener, Stream, StreamConfig, carry::CarryThread, connect, key, threads,
};

/// The most streams of a tunnel where the user gives no number: each costs a thread at both ends, and over RDMA up to 16
/// MiB of pinned memory.
pub(crate) const MOST_SUITABLE_STREAMS: u16 = 4;

pub(crate) const MOST_STREAMS: u16 = 16;

/// Returns the number of streams of a tunnel where the user gives none, for a host that this number of streams suits.
pub(crate) fn suitable_streams(streams: u16) -> u16 {
    streams.clamp(1, MOST_SUITABLE_STREAMS)
}

/// How long a further stream may take to be connected: RDMA registers memory at both ends.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// How long a stream waits for the first message of its peer once the tunnel is being closed.
const GREETING_LIMIT: Duration = Duration::from_secs(5);

/// The reason why a stream was left out that the other end has not connected.
const NOT_CONNECTED: &str = "the other end has not connected it in time";

/// How an end of a tunnel gets further streams.
#[derive(Clone)]
pub(crate) struct FurtherStreams {
    /// The number of streams that the tunnel should have, the first one included.
    pub(crate) streams: u16,
    /// The most streams, whatever the other end asks for.
    pub(crate) most: u16,
    pub(crate) is_chosen: bool,
    /// The key of the first stream.
    pub(crate) key: Key,
    /// The settings of each stream.
    pub(crate) config: StreamConfig,
    /// Where this end waits for them; none is the near end, which connects them.
    pub(crate) place: Option<AwaitingPlace>,
}

/// Where the far end waits for further streams.
#[derive(Clone)]
pub(crate) enum AwaitingPlace {
    /// At a listener that is made for them. The streams have threads of their own.
    Own(Arc<dyn Fn(Key) -> BoxFuture<'static, Result<Listener, String>> + Send + Sync>),
    /// At the listener of a server, in the share of this key. The streams belong to the runtime of the server, and the
    /// function receives each.
    Shared(Arc<Listener>, KeyId, Arc<dyn Fn(&Stream) + Send + Sync>),
}

impl fmt::Debug for FurtherStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FurtherStreams")
            .field("streams", &self.streams)
            .finish_non_exhaustive()
    }
}

/// Makes the further streams of a tunnel, once.
pub(super) struct Widener {
    further: Option<FurtherStreams>,
    /// The address of the peer of the first stream.
    peer: SocketAddr,
    carrier: FurtherCarrier,
}

#[derive(Clone)]
struct FurtherCarrier {
    end: Arc<TunnelEnd>,
    role: TunnelRole,
    faults: UnboundedSender<TunnelFault>,
}

/// Receives how each further stream was connected.
type Settled = UnboundedSender<Result<(), String>>;

impl Widener {
    pub(super) fn new(
        end: &Arc<TunnelEnd>,
        role: &TunnelRole,
        peer: SocketAddr,
        faults: UnboundedSender<TunnelFault>,
    ) -> Self {
        Self {
            further: role.further.clone(),
            peer,
            carrier: FurtherCarrier {
                end: Arc::clone(end),
                role: TunnelRole {
                    further: None,
                    may_listen: false,
                    ..role.clone()
                },
                faults,
            },
        }
    }

    /// Returns the message of a near end that wants further streams.
    pub(super) fn asking(&self) -> Option<TunnelMessage> {
        let further = self.further.as_ref()?;
        let &FurtherStreams {
            streams, is_chosen, ..
        } = further;
        (further.place.is_none() && streams > 1)
            .then_some(TunnelMessage::AskStreams { streams, is_chosen })
    }

    /// Connects further streams of a near end that has asked for them, at what the far end has answered.
    /// Fails if this end has not asked.
    pub(super) fn connect(
        self,
        streams: u16,
        port: Option<u16>,
        salt: [u8; 16],
    ) -> Result<(), TunnelFault> {
        if self.asking().is_none() {
            return Err(TunnelFault::Message);
        }
        let Self {
            further,
            peer,
            carrier,
        } = self;
        let Some(further) = further else {
            return Err(TunnelFault::Message);
        };
        let wanted = streams.clamp(1, further.streams);
        let mut address = peer;
        address.set_port(port.unwrap_or(peer.port()));
        let settled = carrier.settle();
        for number in 1..wanted {
            let (carrier, settled) = (carrier.clone(), settled.clone());
            let place = FurtherStream::new(&carrier.end);
            let key = further_key(&further.key, &salt, number);
            let config = further.config.clone();
            threads::spawn(async move {
                let connecting = async move {
                    let connected = timeout(CONNECT_LIMIT, connect(address, &key, &config)).await;
                    match connected {
                        Ok(connected) => connected.map_err(|error| error.to_string()),
                        Err(_) => Err("the other end does not answer".to_owned()),
                    }
                };
                match CarryThread::start("tunnel") {
                    Ok(thread) => {
                        let work = async move {
                            let kind = StreamKind::Further(Some(Handle::current()));
                            carrier.serve(connecting, kind, place, settled).await;
                        };
                        thread.run(work).await;
                    }
                    Err(error) => {
                        let _ = settled.send(Err(no_thread(&error)));
                    }
                }
            });
        }
        Ok(())
    }

    /// Answers a near end that asks for so many streams, over `first`, and waits for them.
    pub(super) fn offer(self, asked: u16, is_chosen: bool, first: &Arc<TunnelShared>) {
        let own = self.further.filter(|further| further.place.is_some());
        let streams = own.as_ref().map_or(1, |own| {
            let wanted = if is_chosen { own.most } else { own.streams };
            asked.min(wanted).min(own.most).max(1)
        });
        let mut salt = [0; 16];
        let is_random = getrandom::fill(&mut salt).is_ok();
        let Some(own) = own.filter(|_| streams > 1 && is_random) else {
            return first.tell(&TunnelMessage::AwaitsStreams {
                streams: 1,
                port: None,
                salt,
            });
        };
        let (carrier, first) = (self.carrier, Arc::clone(first));
        let over = first.end.over.clone();
        let work = async move {
            let settled = carrier.settle();
            let place = Awaiting::at(&own, &salt).await;
            let opened = match &place {
                Ok(_) => streams,
                Err(text) => {
                    let _ = settled.send(Err(text.clone()));
                    1
                }
            };
            let port = place.as_ref().ok().and_then(Awaiting::port);
            if let Ok(place) = place {
                for number in 1..streams {
                    let key = further_key(&own.key, &salt, number);
                    place
                        .serve(&carrier, key, own.config.clone(), settled.clone())
                        .await;
                }
            }
            // After this message the near end may connect.
            first.tell(&TunnelMessage::AwaitsStreams {
                streams: opened,
                port,
                salt,
            });
        };
        threads::spawn(over.run_until_cancelled_owned(work));
    }
}

/// The place at which a far end waits.
enum Awaiting {
    Own(Arc<Listener>),
    Shared(Arc<Listener>, KeyId, Arc<dyn Fn(&Stream) + Send + Sync>),
}

impl Awaiting {
    async fn at(own: &FurtherStreams, salt: &[u8; 16]) -> Result<Self, String> {
        match &own.place {
            // No stream of this key comes: each further stream has a key of its own.
            Some(AwaitingPlace::Own(listen)) => {
                let listener = listen(further_key(&own.key, salt, 0)).await?;
                Ok(Self::Own(Arc::new(listener)))
            }
            Some(AwaitingPlace::Shared(listener, owner, connected)) => Ok(Self::Shared(
                Arc::clone(listener),
                *owner,
                Arc::clone(connected),
            )),
            None => Err("this end waits for no streams".to_owned()),
        }
    }

    /// Returns the port for the near end; none if it is the one that the near end knows.
    fn port(&self) -> Option<u16> {
        match self {
            Self::Own(listener) => Some(listener.local_addr().port()),
            Self::Shared(..) => None,
        }
    }

    /// Waits for the stream of this key, and carries it. Returns when the listener expects it.
    async fn serve(
        &self,
        carrier: &FurtherCarrier,
        key: Key,
        config: StreamConfig,
        settled: Settled,
    ) {
        let place = FurtherStream::new(&carrier.end);
        let carrier = carrier.clone();
        match self {
            Self::Own(listener) => {
                let thread = match CarryThread::start("tunnel") {
                    Ok(thread) => thread,
                    Err(error) => {
                        let _ = settled.send(Err(no_thread(&error)));
                        return;
                    }
                };
                let listener = Arc::clone(listener);
                let expecting = async move {
                    let runtime = Handle::current();
                    let acceptor = listener.accept_key(key, config, runtime.clone(), None);
                    (acceptor, listener, runtime)
                };
                let (acceptor, listener, runtime) = thread.run(expecting).await;
                let accepting = async move {
                    let accepted = accepted(acceptor).await;
                    drop(listener);
                    accepted
                };
                let kind = StreamKind::Further(Some(runtime));
                let serving = carrier.serve(accepting, kind, place, settled);
                threads::spawn(async move { thread.run(serving).await });
            }
            Self::Shared(listener, owner, connected) => {
                let runtime = Handle::current();
                let acceptor = listener.accept_key(key, config, runtime, Some(*owner));
                let connected = Arc::clone(connected);
                let accepting = async move {
                    let stream = accepted(acceptor).await?;
                    connected(&stream);
                    Ok(stream)
                };
                let kind = StreamKind::Further(None);
                threads::spawn(carrier.serve(accepting, kind, place, settled));
            }
        }
    }
}

/// Waits for the stream of an acceptor, which then ends.
async fn accepted(acceptor: Option<crate::KeyAcceptor>) -> Result<Stream, String> {
    let mut acceptor = acceptor.ok_or("its key is in use already")?;
    match timeout(CONNECT_LIMIT, acceptor.accept()).await {
        Ok(accepted) => accepted.map_err(|error| error.to_string()),
        Err(_) => Err(NOT_CONNECTED.to_owned()),
    }
}

impl FurtherCarrier {
    /// Returns the sender for how each further stream was connected. When all have said so, the user is told the number
    /// of streams.
    fn settle(&self) -> Settled {
        let (settled, results) = unbounded_channel();
        let end = Arc::clone(&self.end);
        let over = end.over.clone();
        threads::spawn(over.run_until_cancelled_owned(report(end, results)));
        settled
    }

    /// Carries the connections of a further stream once it is connected, until it or the tunnel has ended. `place` is
    /// dropped at its end.
    async fn serve(
        self,
        connecting: impl Future<Output = Result<Stream, String>>,
        kind: StreamKind,
        place: FurtherStream,
        settled: Settled,
    ) {
        let Self { end, role, faults } = self;
        let connected = tokio::select! {
            connected = connecting => connected,
            () = end.closing.cancelled() => return,
            () = end.over.cancelled() => return,
        };
        let mut stream = match connected {
            Ok(stream) => stream,
            Err(why) => {
                let _ = settled.send(Err(why));
                return;
            }
        };
        let shared = Arc::new(TunnelShared::new(&end, kind));
        let greeted = shared.greeted.clone();
        let ended = {
            let carrying = carry(shared, TunnelPeer::of_further(role), &mut stream);
            let mut carrying = std::pin::pin!(carrying);
            let early = tokio::select! {
                biased;
                () = greeted.cancelled() => None,
                ended = &mut carrying => Some(ended),
                () = end.over.cancelled() => Some(Ok(())),
                () = never_greeted(&end) => Some(Ok(())),
            };
            let is_early = early.is_some();
            let _ = settled.send(match early {
                Some(Err(fault)) => Err(fault.to_string()),
                Some(Ok(())) | None => Ok(()),
            });
            drop(settled);
            if is_early {
                None
            } else {
                tokio::select! {
                    ended = carrying => Some(ended),
                    () = end.over.cancelled() => None,
                }
            }
        };
        match ended {
            Some(Ok(())) => {}
            Some(Err(fault)) => {
                end.give_reason(&fault.to_string());
                end.over.cancel();
                stream.abort(&end.reason());
                let _ = faults.send(fault);
            }
            None => stream.abort(&end.reason()),
        }
        drop(place);
        stream.close().await;
    }
}

/// Waits until the tunnel is being closed, and then for as long as the first message of a peer may be under way.
async fn never_greeted(end: &TunnelEnd) {
    end.closing.cancelled().await;
    sleep(GREETING_LIMIT).await;
}

/// Tells the user how many streams the tunnel has, when each further one was connected or left out.
async fn report(end: Arc<TunnelEnd>, mut results: UnboundedReceiver<Result<(), String>>) {
    let mut missing = None;
    while let Some(result) = results.recv().await {
        missing = missing.or(result.err());
    }
    let count = end.count();
    (end.observer)(TunnelEvent::Streams { count, missing });
}

/// Returns the key of a further stream: of the first one's key, and of the far end's random bytes.
fn further_key(key: &Key, salt: &[u8; 16], number: u16) -> Key {
    let message = [&b"rdpipe tunnel 1"[..], salt, &number.to_le_bytes()].concat();
    Key::from_secret(&key::keyed_digest(key.secret(), &message))
}

fn no_thread(error: &io::Error) -> String {
    format!("cannot start a thread: {error}")
}
