//! Waits for one peer with a ticket, and measures with it.

use std::future::ready;

use crate::{
    Direction, Key, Stream,
    cli::{
        args::RdperfArgs,
        shared::{
            message::Console,
            run::Exit,
            ticket::{self, TicketOffer},
        },
    },
    perf::job::PerfJob,
    ssh::{
        agent::{
            edges::EdgeAcceptance,
            job::Job,
            served::{ClientSession, SessionKill},
        },
        protocol::{Order, Work},
        sealed,
        session::session_config,
    },
};

/// Prints a ticket, waits for the peer that has it, and carries out what the peer asks for. Returns when the peer has
/// ended.
pub(super) fn run(args: &RdperfArgs, console: &Console) -> Exit {
    let ports = args.hosts.ports;
    if ports.is_some_and(|(first, last)| first == last) {
        super::usage(
            "-p needs two ports with --listen: one for the session, the others for what is measured",
        );
    }
    let offer = TicketOffer {
        hosts: args.hosts.clone(),
        bind: None,
        config: session_config(args.stream.config(Direction::Both).timeout),
        purpose: "measure",
        command: "rdperf".to_owned(),
    };
    ticket::serve_peer(offer, console, async move |stream, key, signal| {
        tokio::select! {
            served = serve(stream, &key, ports) => served,
            Some(_) = signal => Ok(()),
        }
    })
}

/// Carries out the order of a peer, with listeners on these ports.
async fn serve(stream: Stream, key: &Key, ports: Option<(u16, u16)>) -> anyhow::Result<()> {
    let session = sealed::of_acceptor(stream, key).await?;
    let client = ClientSession {
        // The order has no edges.
        edges: EdgeAcceptance::OwnListeners,
        end: SessionKill::default(),
        warn: Box::new(|_| {}),
        most_streams: None,
    };
    let place = ready(Ok(()));
    let serving = client.serve(session, place, admit, |context, order, edges| {
        Ok(PerfJob::prepare(context, order, edges)?.listening_only(ports))
    });
    let report = serving.await.map_err(anyhow::Error::msg)?;
    match report.fault {
        None => Ok(()),
        Some(fault) => Err(anyhow::Error::msg(fault.text)),
    }
}

/// Checks that an order only measures.
fn admit(order: &Order) -> Result<(), String> {
    match &order.work {
        Work::Measure(_) if order.edges.is_empty() => Ok(()),
        _ => Err("this end only measures".to_owned()),
    }
}
