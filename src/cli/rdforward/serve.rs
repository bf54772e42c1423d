//! Lets clients that have a key connect to ports of this host.

use super::{args::ForwardServeArgs, peer};
use crate::{
    Direction, Stream,
    cli::{
        server::{self, Client, Limits, ServerOptions, Service, SessionOutcome, Share},
        shared::{
            exit::Exit,
            message::{Console, sentence},
        },
    },
    forward::{policy::ForwardPolicy, tunnel::TunnelRole},
    process::raise_descriptor_limit,
};

/// The tunnels of a server: each holds at most 64 MiB of bytes that programs have not read. One client leaves room for
/// others.
const TUNNELS: Share = Share {
    all: 256,
    of_one_key: 32,
};

/// The connections of all tunnels at a time, if there are descriptors for so many.
const MOST_CONNECTIONS: usize = 1 << 16;

/// The part of the connections that one key may have.
const SHARE_OF_ONE_KEY: usize = 4;

/// Serves clients until a signal ends the server. Returns how the program ends.
pub(super) fn run(args: &ForwardServeArgs, console: &Console) -> Exit {
    let allowed: Vec<_> = args.allow.iter().map(ToString::to_string).collect();
    let service = TunnelService {
        policy: args.policy(),
        allowed: allowed.join(", "),
        console: console.clone(),
    };
    let options = ServerOptions {
        key_file: &args.key_file,
        port: args.listen_port,
        stream: args.stream.config(Direction::Both),
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
    Share {
        all,
        of_one_key: all.div_ceil(SHARE_OF_ONE_KEY),
    }
}

/// Is the other end of the clients' tunnels.
struct TunnelService {
    policy: ForwardPolicy,
    /// The policy in words.
    allowed: String,
    console: Console,
}

impl Service for TunnelService {
    const SESSION: (&'static str, &'static str) = ("tunnel", "tunnels");
    const ENDS_WHEN_REVOKED: bool = true;

    fn offer(&self, clients: &str) -> String {
        format!("{clients} may connect to {}", self.allowed)
    }

    async fn serve(&self, client: Client, stream: Stream) -> SessionOutcome {
        client.log.print(Console::note, "connected");
        let role = TunnelRole {
            policy: Some(self.policy.clone()),
            places: Some(client.places),
            ..TunnelRole::default()
        };
        match peer::carry(stream, role, &self.console, client.cut.reason()).await {
            Ok(()) => SessionOutcome::Done("disconnected".to_owned()),
            Err(error) => SessionOutcome::Failed(error),
        }
    }
}
