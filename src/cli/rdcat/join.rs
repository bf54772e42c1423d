//! Joins two rdcats: one prints a ticket and listens, the other connects with that ticket.

use std::io;

use futures::FutureExt;
use serde_json::json;

use super::carry::carry;
use crate::{
    Error, Key, Listener, Stream,
    cli::{
        args::RdcatArgs,
        shared::{
            progress::is_on_terminal,
            report::Report,
            run::{Run, dial_ticket},
        },
    },
    reach::{self, ticket::Ticket},
};

/// The role of this rdcat in a connection by ticket.
pub(super) enum TicketRole {
    /// Prints a ticket, and waits for the peer.
    Listen,
    /// Connects to the addresses in this ticket.
    Dial(Ticket),
}

/// Joins stdin and stdout with those of the peer, until both directions have ended.
pub(super) async fn join(args: RdcatArgs, way: TicketRole, mut run: Run) -> Report {
    let met = match way {
        TicketRole::Listen => listen(&args, &mut run).await,
        TicketRole::Dial(ticket) => dial(&args, &ticket, &mut run).await,
    };
    let stream = match met {
        Ok(stream) => stream,
        Err(error) => return run.failed(&error),
    };
    let terminal =
        is_on_terminal(&io::stdout(), args.send) || is_on_terminal(&io::stdin(), args.recv);
    let progress = run.connected(&stream, None, terminal);
    let (stream, result) = carry(stream, &mut run).await;
    drop(progress);
    run.end(stream, result).await
}

/// Prints a ticket, and waits for the peer that has it.
async fn listen(args: &RdcatArgs, run: &mut Run) -> anyhow::Result<Stream> {
    let made = Key::generate()?;
    let mut config = args.stream_config();
    config.control_runtime = Some(run.control_runtime.clone());
    let listening = reach::listen(args.bind, args.hosts.ports, &made, &config);
    let listener = listening.await?;
    let port = listener.local_addr().port();
    let addresses = reach::ticket_addresses(args.hosts.here_address()?, args.bind);
    let ticket = Ticket::new(addresses, port, made.key().clone());
    let text = ticket.text();
    run.console.tell(
        &format!("to connect, type on the other host:\n  rdcat {}", *text),
        &json!({ "event": "listening", "ticket": *text, "port": port }),
    );
    let stream = run.interruptible(listener.accept_or_mismatch()).await?;
    turn_others_away(&listener);
    run.console.detail(&format!(
        "{} connected from {}",
        stream.peer(),
        stream.peer_addr()
    ));
    Ok(stream)
}

/// Aborts the streams of peers that have connected in the meantime, with a reason.
fn turn_others_away(listener: &Listener) {
    while let Some(arrival) = listener.accept_or_mismatch().now_or_never() {
        match arrival {
            Ok(mut stream) => {
                stream.abort("the ticket is already in use");
                tokio::spawn(stream.close());
            }
            // The listener's own tasks have ended, so no more peers arrive.
            Err(Error::Listen { .. }) => return,
            Err(_) => {}
        }
    }
}

/// Connects to the first address in the ticket at which the peer answers.
async fn dial(args: &RdcatArgs, ticket: &Ticket, run: &mut Run) -> anyhow::Result<Stream> {
    let mut config = args.stream_config();
    config.control_runtime = Some(run.control_runtime.clone());
    let dialing = dial_ticket(ticket, "rdcat -l", &config);
    let stream = run.interruptible(dialing).await?;
    run.console
        .detail(&format!("connected to {}", stream.peer_addr()));
    Ok(stream)
}
