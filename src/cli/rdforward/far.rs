//! The far end of tunnels, which connects to what the other end asks for: for one peer with a ticket
//! (`rdforward --listen`), or for many clients with keys (`rdforward serve`).

use std::sync::Arc;

use futures::FutureExt;

use super::{
    args::{ForwardServeArgs, RdforwardArgs},
    reports,
};
use crate::{
    Direction, Stream, StreamConfig,
    cli::{
        server::{
            self, Client, Limits, ServerOptions, Service, SessionOutcome, rights::ClientRights,
        },
        shared::{
            message::{Console, Level, sentence},
            run::Exit,
            ticket::{self, TicketOffer},
        },
    },
    forward::{
        policy::ForwardPolicy,
        tunnel::{
            AwaitingPlace, FurtherStreams, MOST_STREAMS, MOST_SUITABLE_STREAMS, Tunnel,
            TunnelFault, TunnelRole, flows::TunnelObserver, suitable_streams,
        },
    },
    host,
    places::Share,
    process::raise_descriptor_limit,
    ssh::edge::{EdgePlan, about_peer},
};

/// Prints a ticket, waits for the peer that has it, and connects to what the peer asks for. Returns when the peer has
/// ended.
pub(super) fn listen(args: &RdforwardArgs, console: &Console) -> Exit {
    raise_descriptor_limit();
    let policy = args.policy();
    if policy == ForwardPolicy::Any {
        console.note(
            "a peer with the ticket may connect to everything that this host reaches, and may listen here; --allow limits that",
        );
    }
    let offer = TicketOffer {
        hosts: args.peer.hosts.clone(),
        bind: None,
        config: args.peer.stream.config(Direction::Both),
        purpose: "connect",
        command: format!("rdforward -L {}", policy.example()),
    };
    let own = console.clone();
    let plan = (offer.config.clone(), offer.hosts.ports);
    let streams = args.peer.streams;
    ticket::serve_peer(offer, console, async move |stream, key, signal| {
        let (config, ports) = plan;
        let further = FurtherStreams {
            streams: streams.unwrap_or_else(|| suitable_streams(host::streams())),
            most: streams.unwrap_or(MOST_STREAMS),
            is_chosen: streams.is_some(),
            key: key.clone(),
            config: config.clone(),
            place: Some(AwaitingPlace::own(EdgePlan {
                key,
                peer: stream.peer().to_owned(),
                config,
                ports,
            })),
        };
        // --allow names what the other end may connect to, and nothing at which it may listen.
        let role = TunnelRole {
            may_listen: policy == ForwardPolicy::Any,
            policy: Some(policy),
            further: Some(further),
            ..TunnelRole::default()
        };
        let cut = async {
            match signal.await {
                Some(_) => "rdforward --listen was interrupted",
                None => std::future::pending().await,
            }
        };
        let ended = carry(stream, role, reports::observer(&own, &[], None), cut).await;
        ended.map_err(anyhow::Error::msg)
    })
}

/// The tunnels of a server: each holds at most 64 MiB of bytes that programs have not read. One client leaves room for
/// others.
const TUNNELS: Share = Share {
    all: 256,
    of_one_key: 32,
};

/// The connections of all tunnels at a time, if there are descriptors for so many.
const MOST_CONNECTIONS: usize = 1 << 16;

/// Serves clients until a signal ends the server. Returns how the program ends.
pub(super) fn serve(args: &ForwardServeArgs, console: &Console) -> Exit {
    let allowed: Vec<_> = args.allow.iter().map(ToString::to_string).collect();
    let config = args.stream.config(Direction::Both);
    let service = TunnelService {
        policy: args.policy(),
        allowed: allowed.join(", "),
        streams: args.streams,
        config: config.clone(),
    };
    let options = ServerOptions {
        key_file: &args.key_file,
        port: args.listen_port,
        stream: config,
        limits: Limits {
            sessions: TUNNELS,
            places: connections(raise_descriptor_limit()),
        },
        workers: std::thread::available_parallelism().map_or(1, usize::from),
        // A tunnel does not end by itself.
        grace: None,
    };
    server::run(options, service, console).unwrap_or_else(|error| {
        console.error(&sentence(&error));
        Exit::from(&error)
    })
}

/// Returns the connections that tunnels may have, at this limit of open files.
fn connections(descriptors: Option<u64>) -> Share {
    let limit = descriptors.and_then(|limit| usize::try_from(limit).ok());
    // A quarter is for the tunnels themselves, and for everything else.
    let all = limit.map_or(MOST_CONNECTIONS, |limit| {
        (limit - limit / 4).clamp(1, MOST_CONNECTIONS)
    });
    Share::quarter(all)
}

/// Connects the tunnels of clients to what a policy allows.
struct TunnelService {
    policy: ForwardPolicy,
    /// The policy in words.
    allowed: String,
    /// The most streams of a tunnel, as the user has chosen it.
    streams: Option<u16>,
    /// The settings of each stream.
    config: StreamConfig,
}

impl TunnelService {
    fn further_streams(&self, client: &Client) -> FurtherStreams {
        let connections = client.connections.clone();
        let place = AwaitingPlace::Shared(
            Arc::clone(&client.listener),
            client.key.id(),
            Arc::new(move |stream| connections.add(stream.watch())),
        );
        FurtherStreams {
            streams: self
                .streams
                .unwrap_or_else(|| suitable_streams(host::streams())),
            most: self.streams.unwrap_or(MOST_SUITABLE_STREAMS),
            is_chosen: self.streams.is_some(),
            key: client.key.clone(),
            config: self.config.clone(),
            place: Some(place),
        }
    }
}

impl Service for TunnelService {
    const SESSION: (&'static str, &'static str) = ("tunnel", "tunnels");
    const ENDS_WHEN_REVOKED: bool = true;

    fn offer(&self, clients: &str) -> String {
        format!("{clients} may connect to {}", self.allowed)
    }

    /// A key file may be that of `rdcp --serve` too. A client that it limits to some copies gets no tunnel.
    fn refusal(rights: &ClientRights) -> Option<&'static str> {
        (*rights != ClientRights::ALL).then_some(
            "this client gets no tunnel: its line in the server's key file limits it to copies (ro, wo, append or a \
             directory)",
        )
    }

    async fn serve(&self, client: Client, stream: Stream) -> SessionOutcome {
        client.log.print(Level::Note, "connected");
        let role = TunnelRole {
            policy: Some(self.policy.clone()),
            further: Some(self.further_streams(&client)),
            places: Some(client.places),
            ..TunnelRole::default()
        };
        let observer = reports::client_observer(client.log);
        match carry(stream, role, observer, client.cut.reason()).await {
            Ok(()) => SessionOutcome::Done("disconnected".to_owned()),
            Err(error) => SessionOutcome::Failed(error),
        }
    }
}

/// Carries the connections of a tunnel until it ends. If `cut` becomes ready, the tunnel ends with its reason. Returns
/// the failure, as a sentence for the user.
async fn carry(
    mut stream: Stream,
    role: TunnelRole,
    observer: TunnelObserver,
    cut: impl Future<Output = &'static str>,
) -> Result<(), String> {
    let tunnel = Tunnel::far(role, observer);
    let handle = tunnel.handle();
    let cut = cut.inspect(|reason| handle.give_reason(reason));
    let peer = stream.peer().to_owned();
    let ended = tokio::select! {
        ended = tunnel.run(&mut stream) => ended.map_err(|fault| match fault {
            TunnelFault::Stream(error) => about_peer(error, &peer).to_string(),
            fault => {
                stream.abort(&fault.to_string());
                format!("{peer}: {fault}")
            }
        }),
        reason = cut => {
            stream.abort(reason);
            Ok(())
        }
    };
    stream.close().await;
    ended
}
