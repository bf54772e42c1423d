//! Waits for one peer with a ticket, and is the other end of its tunnel.

use std::net::IpAddr;

use anyhow::Context;
use futures::FutureExt;
use serde_json::json;
use tokio::sync::oneshot;

use super::{args::RdforwardArgs, peer};
use crate::{
    Direction, Key, Listener, StreamConfig,
    carry::thread::CarryThread,
    cli::shared::{
        exit::Exit,
        message::{Console, sentence},
        run::control_runtime,
        signals::{self, Caught},
    },
    forward::{policy::ForwardPolicy, tunnel::TunnelRole},
    process::raise_descriptor_limit,
    reach::{self, ticket::Ticket},
};

/// Prints a ticket, waits for the peer that has it, and connects to what the peer asks for. Returns when the peer has
/// ended.
pub(super) fn run(args: &RdforwardArgs, console: &Console) -> Exit {
    serve(args, console).unwrap_or_else(|error| {
        console.error(&sentence(&error));
        match Exit::from(&error) {
            Exit::Local => Exit::Connection,
            exit => exit,
        }
    })
}

fn serve(args: &RdforwardArgs, console: &Console) -> anyhow::Result<Exit> {
    raise_descriptor_limit();
    let control = control_runtime()?;
    let signal = signals::watch(&control, console).context("cannot catch signals")?;
    let thread = CarryThread::start("tunnel").context("cannot start a thread")?;
    let listening = TicketHolder {
        config: args.peer.stream.config(Direction::Both),
        ports: args.peer.hosts.ports,
        here: args.peer.hosts.here_address()?,
        policy: args.policy(),
        console: console.clone(),
    };
    let (cut, cutting) = oneshot::channel();
    let serving = thread.run(listening.serve(cutting));
    let ending = async move {
        tokio::pin!(serving);
        tokio::select! {
            served = &mut serving => served.map(|()| Exit::Ok),
            Ok(Caught { number, name }) = signal => {
                let _ = cut.send(());
                // The other end receives the reason.
                let _ = serving.await;
                Err(anyhow::anyhow!("interrupted by {name}").context(Interruption(number)))
            }
        }
    };
    match futures::executor::block_on(ending) {
        Err(error) => match error.downcast_ref() {
            Some(&Interruption(number)) => {
                console.error(&error.root_cause().to_string());
                Ok(Exit::Signal(number))
            }
            None => Err(error),
        },
        ended => ended,
    }
}

/// The number of the signal that has ended the program.
#[derive(Debug, thiserror::Error)]
#[error("signal {0}")]
struct Interruption(u8);

/// The end that has made a ticket.
struct TicketHolder {
    config: StreamConfig,
    ports: Option<(u16, u16)>,
    here: Option<IpAddr>,
    policy: ForwardPolicy,
    console: Console,
}

impl TicketHolder {
    async fn serve(self, cut: oneshot::Receiver<()>) -> anyhow::Result<()> {
        let made = Key::generate()?;
        let key = made.key().clone();
        let listener = reach::listen(None, self.ports, &key, &self.config).await?;
        let port = listener.local_addr().port();
        let ticket = Ticket::new(reach::ticket_addresses(self.here, None), port, key);
        let text = ticket.text();
        self.console.tell(
            &format!(
                "to connect, type on the other host:\n  rdforward -L {} {}",
                self.policy.example(),
                *text
            ),
            &json!({ "event": "ticket", "ticket": *text, "port": port }),
        );
        let cut = async move {
            match cut.await {
                Ok(()) => "rdforward --listen was interrupted",
                Err(_) => std::future::pending().await,
            }
        };
        let cut = cut.shared();
        let stream = tokio::select! {
            stream = listener.accept_or_mismatch() => stream?,
            _ = cut.clone() => return Ok(()),
        };
        let console = &self.console;
        console.detail(&format!("{} connected", stream.peer_addr()));
        // --allow names what the other end may connect to, and nothing at which it may listen.
        let role = TunnelRole {
            may_listen: self.policy == ForwardPolicy::Any,
            policy: Some(self.policy),
            ..TunnelRole::default()
        };
        let carrying = peer::carry(stream, role, console, cut);
        tokio::select! {
            ended = carrying => ended.map_err(anyhow::Error::msg),
            () = turn_away(&listener) => anyhow::bail!("the listener has ended"),
        }
    }
}

/// Ends every further connection with the ticket, which is good for one run. Returns if the listener ends.
async fn turn_away(listener: &Listener) {
    while let Ok(mut stream) = listener.accept().await {
        stream.abort("the ticket is in use already, and is good for one run");
    }
}
