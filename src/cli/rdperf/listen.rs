//! Waits for one peer with a ticket, and measures with it.

use std::{future::ready, net::IpAddr, sync::Arc, time::Duration};

use anyhow::Context;
use serde_json::json;

use crate::{
    Direction, Key, Listener,
    cli::{
        args::RdperfArgs,
        shared::{
            exit::Exit,
            message::{Console, sentence},
            run::control_runtime,
            signals::{self, Caught},
        },
    },
    perf::job::PerfJob,
    reach::{self, ticket::Ticket},
    ssh::{
        agent::{
            edges::SharedListener,
            served::{ClientSession, SessionKill},
        },
        protocol::{Order, Work},
        route::session_config,
        sealed,
    },
};

/// Prints a ticket, waits for the peer that has it, and carries out what the peer asks for. Returns when the peer has
/// ended.
pub(super) fn run(args: &RdperfArgs, console: &Console) -> Exit {
    if args.hosts.ports.is_some_and(|(first, last)| first == last) {
        super::usage(
            "-p needs two ports with --listen: one for the session, the others for what is measured",
        );
    }
    let ended = control_runtime().and_then(|control| {
        let options = ListenOptions {
            ports: args.hosts.ports,
            here: args.hosts.here_address()?,
            timeout: args.stream.config(Direction::Both).timeout,
        };
        let signal = signals::watch(&control, console).context("cannot catch signals")?;
        let serving = control.spawn(serve(options, console.clone()));
        let abort = serving.abort_handle();
        let ending = async move {
            tokio::select! {
                served = serving => Ending::Served(served.unwrap_or_else(|error| Err(error.into()))),
                Ok(caught) = signal => Ending::Caught(caught),
            }
        };
        let ending = futures::executor::block_on(ending);
        abort.abort();
        Ok(ending)
    });
    match ended {
        Ok(Ending::Served(Ok(()))) => Exit::Ok,
        Ok(Ending::Caught(caught)) => {
            console.error(&format!("interrupted by {}", caught.name));
            Exit::Signal(caught.number)
        }
        Ok(Ending::Served(Err(error))) | Err(error) => {
            console.error(&sentence(&error));
            match Exit::from(&error) {
                Exit::Local => Exit::Connection,
                exit => exit,
            }
        }
    }
}

/// How the program ended.
enum Ending {
    Served(anyhow::Result<()>),
    Caught(Caught),
}

/// The options of the end that listens.
struct ListenOptions {
    ports: Option<(u16, u16)>,
    here: Option<IpAddr>,
    timeout: Duration,
}

async fn serve(options: ListenOptions, console: Console) -> anyhow::Result<()> {
    let made = Key::generate()?;
    let key = made.key().clone();
    let config = session_config(options.timeout);
    let listener = reach::listen(None, options.ports, &key, &config).await?;
    let listener = Arc::new(listener);
    let port = listener.local_addr().port();
    let addresses = reach::ticket_addresses(options.here, None);
    let ticket = Ticket::new(addresses, port, key.clone());
    let text = ticket.text();
    console.tell(
        &format!("to measure, type on the other host:\n  rdperf {}", *text),
        &json!({ "event": "listening", "ticket": *text, "port": port }),
    );
    let stream = listener.accept_or_mismatch().await?;
    console.detail(&format!("{} connected", stream.peer_addr()));
    let session = sealed::of_acceptor(stream, &key).await?;
    let client = ClientSession {
        listener: Arc::new(SharedListener {
            listener: Arc::clone(&listener),
            one_way: config.clone(),
            two_way: config,
            connected: Box::new(|_| {}),
        }),
        end: SessionKill::default(),
    };
    let ports = options.ports;
    let serving = client.serve(
        session,
        ready(Ok(())),
        admit,
        move |context, order, edges| {
            use crate::ssh::agent::job::Job;
            Ok(PerfJob::prepare(context, order, edges)?.listening_only(ports))
        },
    );
    let report = tokio::select! {
        report = serving => report.map_err(anyhow::Error::msg)?,
        () = turn_away(&listener) => anyhow::bail!("the listener has ended"),
    };
    match report.fault {
        None => Ok(()),
        Some(fault) => Err(anyhow::Error::msg(fault.text)),
    }
}

/// Ends every further connection with the ticket, which is good for one run. Returns if the listener ends.
async fn turn_away(listener: &Listener) {
    while let Ok(mut stream) = listener.accept().await {
        stream.abort("the ticket is in use already, and is good for one run");
    }
}

/// Checks that an order only measures.
fn admit(order: &Order) -> Result<(), String> {
    match &order.work {
        Work::Measure(_) if order.edges.is_empty() => Ok(()),
        _ => Err("this end only measures".to_owned()),
    }
}
