//! What the other end of a tunnel may ask for, and how it is answered.

use std::{
    ffi::OsStr,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::{
    net::{TcpStream, UnixStream},
    sync::Semaphore,
    time::sleep,
};

use super::{
    TunnelFault,
    flows::{AskingEnd, FlowLabel, TunnelEvent, TunnelHandle, TunnelShared},
    listener::{self, ForwardListener, ListenRoute},
    messages::{ForwardRefusal, OpenTarget, RefusalKind, TunnelMessage},
    socket::LocalSocket,
    widening::{FurtherStreams, Widener},
};
use crate::{
    forward::{
        mux::frame::FlowId,
        policy::{ForwardPolicy, ForwardTarget},
        specs::ForwardSpec,
    },
    places::{Place, Places},
    printable::with_spaces,
    threads,
};

/// The most listeners that a peer may ask for.
const MOST_LISTENERS: usize = 256;

/// What one end of a tunnel does for the other one.
#[derive(Debug, Clone, Default)]
pub(crate) struct TunnelRole {
    /// What the other end may connect to from here; none is nothing.
    pub(crate) policy: Option<ForwardPolicy>,
    /// How many connections the other end may have; none is as many as there is memory for.
    pub(crate) places: Option<Places>,
    /// Whether the other end may listen here.
    pub(crate) may_listen: bool,
    /// Where the other end listens, and what this end connects the connections to.
    pub(crate) remote: Vec<ForwardSpec>,
    /// How the tunnel gets further streams; none is one stream.
    pub(crate) further: Option<FurtherStreams>,
}

/// The most bytes of the name of a target: more than DNS and UNIX sockets have. The smallest window of a connection
/// covers what is kept of it until it is made.
const MOST_NAME_BYTES: usize = 255;

/// Answers what the peer asks for.
pub(super) struct TunnelPeer {
    role: TunnelRole,
    listeners: usize,
    /// What makes further streams; none on a further stream, and once it was used.
    widener: Option<Widener>,
    is_first: bool,
}

impl TunnelPeer {
    /// Returns what answers the peer over the first stream of a tunnel.
    pub(super) fn of_first(role: TunnelRole, widener: Widener) -> Self {
        Self {
            role,
            listeners: 0,
            widener: Some(widener),
            is_first: true,
        }
    }

    /// Returns what answers the peer over a further stream.
    pub(super) fn of_further(role: TunnelRole) -> Self {
        Self {
            role,
            listeners: 0,
            widener: None,
            is_first: false,
        }
    }

    /// Handles a message about the tunnel.
    pub(super) fn message(
        &mut self,
        message: TunnelMessage,
        shared: &Arc<TunnelShared>,
    ) -> Result<(), TunnelFault> {
        match message {
            // What is about the tunnel as a whole belongs to its first stream.
            _ if !self.is_first => Err(TunnelFault::Message),
            TunnelMessage::Hello { .. } => Err(TunnelFault::Message),
            TunnelMessage::AskStreams { streams, is_chosen } => {
                let widener = self.widener.take().ok_or(TunnelFault::Message)?;
                widener.offer(streams, is_chosen, shared);
                Ok(())
            }
            TunnelMessage::AwaitsStreams {
                streams,
                port,
                salt,
            } => {
                let widener = self.widener.take().ok_or(TunnelFault::Message)?;
                widener.connect(streams, port, salt)
            }
            TunnelMessage::Listen { id, at } => {
                self.listeners += 1;
                if self.listeners > MOST_LISTENERS {
                    return Err(TunnelFault::Message);
                }
                let may_listen = self.role.may_listen;
                let shared = Arc::clone(shared);
                let over = shared.end.over.clone();
                let work = async move {
                    let bound = if may_listen {
                        ForwardListener::bind(&at).await
                    } else {
                        Err(format!("cannot listen at {at}: this end does not allow it"))
                    };
                    match bound {
                        Ok(listener) => {
                            let port = listener.port();
                            shared.tell(&TunnelMessage::Listening { id, port });
                            let handle = TunnelHandle::new(&shared.end);
                            listener::start(listener, ListenRoute::Remote(id), &handle);
                        }
                        Err(text) => shared.tell(&TunnelMessage::CannotListen { id, text }),
                    }
                };
                threads::spawn(over.run_until_cancelled_owned(work));
                Ok(())
            }
            TunnelMessage::Listening { id, port } => {
                (shared.end.observer)(TunnelEvent::Listening { id, port });
                Ok(())
            }
            TunnelMessage::CannotListen { text, .. } => {
                Err(TunnelFault::CannotListen(with_spaces(&text)))
            }
        }
    }

    /// Makes the connection that the peer asks for.
    pub(super) fn open(&self, id: FlowId, target: OpenTarget, shared: &Arc<TunnelShared>) {
        if name_bytes(&target) > MOST_NAME_BYTES {
            let label = FlowLabel {
                from: PEER.to_owned(),
                to: "a target with a name of more than 255 bytes".to_owned(),
            };
            let refusal = ForwardRefusal {
                kind: RefusalKind::Unknown,
                text: "the name has more than 255 bytes".to_owned(),
            };
            return shared.refuse(id, label, &refusal);
        }
        let Resolved { way, label } = match self.resolve(target) {
            Ok(resolved) => resolved,
            Err(label) => {
                let kind = RefusalKind::Forbidden;
                let text = "this target is not among those of --allow there".to_owned();
                return shared.refuse(id, label, &ForwardRefusal { kind, text });
            }
        };
        let place = match self.role.places.as_ref().map(Places::take) {
            Some(None) => return shared.refuse(id, label, &ForwardRefusal::full()),
            place => place.flatten().map(Arc::new),
        };
        let over = shared.end.over.clone();
        let shared = Arc::clone(shared);
        let lookups = Arc::clone(&shared.end.lookups);
        let given_up = shared.connecting(id);
        let work = async move {
            let connecting = async {
                match way {
                    Way::To(target) => connect(&target, lookups, place.clone()).await,
                    Way::Own(address, port) => connect_own(address, port).await,
                }
            };
            let connected = tokio::select! {
                connected = connecting => connected,
                _ = given_up => return,
            };
            match connected {
                Ok(socket) => shared.attach(id, socket, label, AskingEnd::Peer(place)),
                Err(refusal) => shared.refuse(id, label, &refusal),
            }
        };
        threads::spawn(over.run_until_cancelled_owned(work));
    }

    /// Returns what a connection is connected to. Returns only the names of its ends if that is not allowed.
    fn resolve(&self, target: OpenTarget) -> Result<Resolved, FlowLabel> {
        let policy = self.role.policy.as_ref();
        let (way, from, to, is_allowed) = match target {
            OpenTarget::Connect(target) => {
                let to = target.to_string();
                let is_allowed = policy.is_some_and(|policy| policy.allows(&target));
                (Some(Way::To(target)), PEER.to_owned(), to, is_allowed)
            }
            OpenTarget::OwnPort { address, port } => {
                let host = "localhost".to_owned();
                let own = ForwardTarget::Tcp { host, port };
                let is_allowed = policy.is_some_and(|policy| policy.allows(&own));
                let to = SocketAddr::new(address, port).to_string();
                (
                    Some(Way::Own(address, port)),
                    PEER.to_owned(),
                    to,
                    is_allowed,
                )
            }
            OpenTarget::Accepted { listener, from } => {
                let index = usize::try_from(listener).unwrap_or(usize::MAX);
                let target = self.role.remote.get(index).map(|spec| spec.target.clone());
                let to = target
                    .as_ref()
                    .map_or_else(String::new, ToString::to_string);
                (target.map(Way::To), with_spaces(&from), to, true)
            }
        };
        let label = FlowLabel { from, to };
        match way {
            Some(way) if is_allowed => Ok(Resolved { way, label }),
            _ => Err(label),
        }
    }
}

/// The name of the other end where it has none.
const PEER: &str = "the other end";

/// A connection that may be made.
struct Resolved {
    way: Way,
    label: FlowLabel,
}

/// How a connection is made.
enum Way {
    To(ForwardTarget),
    Own(IpAddr, u16),
}

/// The time after which the next address of a name is tried, while the addresses before it have not answered: the value
/// of RFC 8305.
const STAGGER: Duration = Duration::from_millis(250);

fn name_bytes(target: &OpenTarget) -> usize {
    match target {
        OpenTarget::Connect(ForwardTarget::Tcp { host, .. }) => host.len(),
        OpenTarget::Connect(ForwardTarget::Unix(path)) => path.len(),
        OpenTarget::OwnPort { .. } => 0,
        OpenTarget::Accepted { from, .. } => from.len(),
    }
}

/// Connects to a target. Looks up its name when `lookups` allow one more. A resolver that takes its time holds that and
/// `place`, also after the future was dropped.
/// Dropping the future closes what it has opened.
pub(super) async fn connect(
    target: &ForwardTarget,
    lookups: Arc<Semaphore>,
    place: Option<Arc<Place>>,
) -> Result<LocalSocket, ForwardRefusal> {
    match target {
        ForwardTarget::Tcp { host, port } => {
            let turn = lookups.acquire_owned().await.ok();
            let addresses = threads::lookup_host_holding(host, *port, (turn, place)).await;
            let addresses = addresses.map_err(|error| unknown(host, &error))?;
            let connected = connect_first(&addresses).await;
            connected.map(LocalSocket::from)
        }
        ForwardTarget::Unix(path) => {
            let connected = UnixStream::connect(Path::new(OsStr::from_bytes(path))).await;
            connected.map(LocalSocket::Unix)
        }
    }
    .map_err(|error| ForwardRefusal::of(&error))
}

/// Connects to the first of these addresses that answers. The next one is tried when one fails or has not answered for
/// [`STAGGER`], and IPv4 and IPv6 take turns, as RFC 8305 says: an address that drops packets delays the connection by
/// that much only.
pub(super) async fn connect_first(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut untried = in_turns(addresses).into_iter();
    let first = untried.next().map(TcpStream::connect);
    let mut connecting: FuturesUnordered<_> = first.into_iter().collect();
    let mut fault = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        tokio::select! {
            Some(connected) = connecting.next() => match connected {
                Ok(socket) => return Ok(socket),
                // A host without IPv6 says more by its other addresses.
                Err(error) if error.kind() == io::ErrorKind::NetworkUnreachable && addresses.len() > 1 => {
                    fault = if fault.kind() == io::ErrorKind::NotFound { error } else { fault };
                }
                Err(error) => fault = error,
            },
            () = sleep(STAGGER), if untried.len() > 0 => {}
            else => return Err(fault),
        }
        connecting.extend(untried.next().map(TcpStream::connect));
    }
}

/// Returns the addresses so that those of both families take turns, beginning with the first.
fn in_turns(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let is_like_first = |address: &&SocketAddr| address.is_ipv6() == addresses[0].is_ipv6();
    let (one, other): (Vec<_>, Vec<_>) = addresses.iter().partition(is_like_first);
    let (mut one, mut other) = (one.into_iter(), other.into_iter());
    let mut all = Vec::with_capacity(addresses.len());
    while all.len() < addresses.len() {
        all.extend(one.next().into_iter().chain(other.next()).copied());
    }
    all
}

/// Connects to a port of this host: at `address` if this host has it, otherwise or if nothing listens there at a
/// loopback address.
/// Dropping the future closes what it has opened.
pub(super) async fn connect_own(address: IpAddr, port: u16) -> Result<LocalSocket, ForwardRefusal> {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let own = interfaces.iter().map(if_addrs::Interface::ip);
    let named = own.filter(|own| *own == address.to_canonical());
    let loopback = [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ];
    let all = named.chain(loopback);
    let addresses: Vec<_> = all.map(|address| SocketAddr::new(address, port)).collect();
    let mut first = None;
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(socket) => return Ok(LocalSocket::from(socket)),
            Err(error) => first = first.or(Some(ForwardRefusal::of(&error))),
        }
    }
    Err(first.unwrap_or_else(ForwardRefusal::full))
}

fn unknown(host: &str, error: &io::Error) -> ForwardRefusal {
    ForwardRefusal {
        kind: RefusalKind::Unknown,
        text: format!("cannot find {host}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_families_take_turns() {
        let addresses = |text: &[&str]| -> Vec<SocketAddr> {
            text.iter().map(|text| text.parse().unwrap()).collect()
        };
        let sorted = addresses(&["[::1]:1", "[::2]:1", "[::3]:1", "1.0.0.1:1"]);
        let turns = addresses(&["[::1]:1", "1.0.0.1:1", "[::2]:1", "[::3]:1"]);
        assert_eq!(in_turns(&sorted), turns);
        assert_eq!(in_turns(&[]), []);
    }
}
