//! The two ends that find each other by a ticket: one prints it and waits for the other, which connects with it.

use std::net::IpAddr;

use anyhow::Context;
use futures::{FutureExt, executor::block_on};
use serde_json::json;

use super::{
    message::{Console, sentence},
    run::{Exit, control_runtime},
    signals::{self, EndingCaught},
};
use crate::{
    Error, HandshakeFault, Key, Stream, StreamConfig,
    carry::CarryThread,
    cli::args::HostOptions,
    reach::{
        self, FailedAddress, Unreached,
        ticket::{NoListener, Ticket, TicketListener, TicketPlace},
    },
};

/// What a program offers to the peer with its ticket.
pub(crate) struct TicketOffer {
    /// The ports to listen on, and the address for the ticket.
    pub(crate) hosts: HostOptions,
    /// The address to listen on; none is every address of this host.
    pub(crate) bind: Option<IpAddr>,
    pub(crate) config: StreamConfig,
    /// What the user does with the ticket: "connect".
    pub(crate) purpose: &'static str,
    /// The command on the other host, without the ticket.
    pub(crate) command: String,
}

impl TicketOffer {
    /// Listens, and prints the ticket with the command for the other host.
    /// Fails if this host cannot listen, or if `-H` is a name.
    pub(crate) async fn listen(self, console: &Console) -> anyhow::Result<TicketListener> {
        let place = TicketPlace {
            bind: self.bind,
            ports: self.hosts.ports,
            here: self.hosts.here_address()?,
        };
        let made = Key::generate()?;
        let listener = TicketListener::bind(place, made.key(), &self.config).await?;
        let (purpose, command) = (self.purpose, self.command);
        let text = listener.ticket().text();
        console.tell(
            &format!(
                "to {purpose}, type on the other host:\n  {command} {}",
                *text
            ),
            &json!({ "event": "listening", "ticket": *text, "port": listener.ticket().port }),
        );
        Ok(listener)
    }
}

/// Serves the one peer that comes with the ticket of an offer, on a thread of its own, until `serve` has ended or a
/// signal arrives. `serve` receives the peer's stream, the key of the ticket, and the signal after which it must end.
/// Returns how the program ends.
pub(crate) fn serve_peer<F>(
    offer: TicketOffer,
    console: &Console,
    serve: impl FnOnce(Stream, Key, EndingCaught) -> F + Send + 'static,
) -> Exit
where
    F: Future<Output = anyhow::Result<()>> + Send,
{
    let own = console.clone();
    let ended = control_runtime().and_then(|control| {
        let signal = signals::watch(&control, console).context("cannot catch signals")?;
        let signal = signals::shared(signal);
        let thread = CarryThread::start("ticket").context("cannot start a thread")?;
        let caught = signal.clone();
        let work = async move {
            let listener = offer.listen(&own).await?;
            let key = listener.ticket().key.clone();
            let stream = tokio::select! {
                stream = listener.peer() => stream?,
                Some(_) = caught.clone() => return Ok(()),
            };
            own.detail(&format!(
                "{} connected from {}",
                stream.peer(),
                stream.peer_addr()
            ));
            serve(stream, key, caught).await
        };
        let served = block_on(thread.run(work));
        match signal.now_or_never().flatten() {
            Some(caught) => {
                console.error(&format!("interrupted by {}", caught.name));
                Ok(Exit::Signal(caught.number))
            }
            None => served.map(|()| Exit::Ok),
        }
    });
    ended.unwrap_or_else(|error| {
        console.error(&sentence(&error));
        match Exit::from(&error) {
            Exit::Local => Exit::Connection,
            exit => exit,
        }
    })
}

/// Connects to the first address in a ticket at which the peer answers. `program` is the one that has made the ticket:
/// "rdcat -l".
/// Dropping the future closes what it has opened.
pub(crate) async fn dial(
    ticket: &Ticket,
    program: &'static str,
    config: &StreamConfig,
) -> anyhow::Result<Stream> {
    let addresses: Vec<_> = ticket.addresses.iter().map(ToString::to_string).collect();
    let dialed = reach::dial(&addresses, ticket.port, &ticket.key, config).await;
    dialed.map_err(|unreached| explain(unreached, program, ticket.port))
}

fn explain(unreached: Unreached, program: &'static str, port: u16) -> anyhow::Error {
    let tried = match unreached {
        Unreached::Final(error) => return error.into(),
        Unreached::Nowhere(tried) => tried,
    };
    if let Some(other) = tried.iter().find(|tried| tried.keys_differ) {
        let error = Error::Handshake {
            peer: other.address.clone(),
            fault: HandshakeFault::Key,
        };
        let context = format!("this is not the ticket of the {program} that waits there");
        return anyhow::Error::from(error).context(context);
    }
    let told = |tried: &FailedAddress| format!("{}: {}", tried.address, tried.what);
    let tried = tried.iter().map(told).collect::<Vec<_>>().join(", ");
    NoListener {
        program,
        port,
        tried,
    }
    .into()
}
