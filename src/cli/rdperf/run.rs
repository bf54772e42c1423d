//! A run with hosts: checks them, measures, and prints the report; and its other end, which waits with a ticket.

use std::{
    future::ready,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use futures::executor::block_on;

use super::{
    args::{self, NamedPlace},
    checks::{self, Checked, CheckedPair},
    hosts::{Coordinator, PerfHosts, RunContext, SharedSteps},
    measuring::{MeasuredPath, measure},
    outcome::RunOutcome,
    page::PictureFiles,
    pingpong,
};
use crate::{
    Direction, Key, Stream,
    cli::{
        args::RdperfArgs,
        shared::{
            message::{self, Console, sentence},
            progress::RunProgress,
            run::{Exit, control_runtime},
            signals,
            supervision::Supervision,
            ticket::{self, TicketOffer},
        },
    },
    perf::{job::PerfJob, messages::PerfOrder},
    reach::{self, ticket::Ticket},
    ssh::{
        agent::{
            edges::EdgeAcceptance,
            job::Job,
            served::{ClientSession, SessionKill},
        },
        plan::StageHost,
        protocol::{Order, Work},
        sealed,
        session::{ServerKind, session_config},
    },
};

/// Measures with the host that has printed a ticket.
pub(super) fn run_with_ticket(args: &RdperfArgs, ticket: &Ticket, console: &Console) -> Exit {
    let addresses: Vec<_> = ticket.addresses.iter().map(ToString::to_string).collect();
    let found = control_runtime().and_then(|control| {
        let port = ticket.port;
        let finding = async move { reach::first_answering(&addresses, port).await };
        let found = block_on(control.spawn(finding))?;
        found.map_err(|tried| {
            anyhow::anyhow!(
                "no rdperf --listen waits at port {port} ({tried}); a ticket is good for one run, so begin with a new one"
            )
        })
    });
    match found {
        Ok(address) => run(
            args,
            args::of_ticket(address, ticket.port),
            Some(&ticket.key),
            console,
        ),
        Err(error) => {
            console.error(&sentence(&error));
            Exit::Connection
        }
    }
}

/// Runs all that the command line asks for. `key` is that of a ticket.
pub(super) fn run(
    args: &RdperfArgs,
    places: Vec<NamedPlace>,
    key: Option<&Key>,
    console: &Console,
) -> Exit {
    let paths = match paths(args, &places) {
        Ok(paths) => paths,
        Err(error) => super::usage(error),
    };
    if let Err(exit) = message::require_stdout(console) {
        return exit;
    }
    let ended = run_hosts(args, places, &paths, key, console);
    ended.unwrap_or_else(|error| {
        console.error(&sentence(&error));
        Exit::from(&error)
    })
}

/// Returns the paths of `--read` and `--write`. By default the first host is the source and the last one the sink.
fn paths(args: &RdperfArgs, places: &[NamedPlace]) -> Result<Vec<MeasuredPath>, String> {
    let mut paths = Vec::new();
    for (value, default, is_written) in [
        (&args.measure.read, 0, false),
        (&args.measure.write, places.len() - 1, true),
    ] {
        if let Some(value) = value {
            let (host, path) = args::path_at(value, places, default)?;
            if matches!(places[host].0, StageHost::Server { .. }) {
                return Err(
                    "a host that was reached by a ticket lets no one read or write its files"
                        .to_owned(),
                );
            }
            paths.push(MeasuredPath {
                host,
                path,
                is_written,
            });
        }
    }
    Ok(paths)
}

fn run_hosts(
    args: &RdperfArgs,
    places: Vec<NamedPlace>,
    paths: &[MeasuredPath],
    key: Option<&Key>,
    console: &Console,
) -> anyhow::Result<Exit> {
    let control = control_runtime()?;
    let pictures = match PictureFiles::open(&args.pictures, &control) {
        Ok(pictures) => pictures,
        Err(error) => {
            console.error(&sentence(&error));
            return Ok(Exit::Local);
        }
    };
    let signal = signals::watch(&control, console).context("cannot catch signals")?;
    let signal = signals::shared(signal);
    let supervision = Supervision {
        hosts: &args.hosts,
        stream: &args.stream,
        console,
        client_key: key.map(|key| (key, ServerKind::Measurements)),
        control: &control,
    };
    let order = PerfOrder {
        stream: args.stream.clone(),
        ports: args.hosts.ports,
    };
    let places = if args.measure.pingpong {
        pingpong::places(places)
    } else {
        places
    };
    let started = SystemTime::now().duration_since(UNIX_EPOCH);
    let hosts = PerfHosts::start(&supervision, &places, &order, &signal)?;
    let context = RunContext {
        args,
        console,
        steps: SharedSteps::default(),
    };
    let steps = context.steps.clone();
    let progress = RunProgress::start_steps(console, move || steps.look());
    let mut coordinator = Coordinator::new(hosts);
    let outcome = block_on(async {
        let outcome = carry_out(&mut coordinator, &context, paths).await;
        coordinator.hosts.finish().await;
        outcome
    });
    drop(progress);
    let mut outcome = outcome;
    outcome.document.started = started.map_or(0, |time| time.as_secs());
    Ok(outcome.end(&coordinator, &context, pictures))
}

/// Checks, measures, and returns what was found.
async fn carry_out(
    coordinator: &mut Coordinator,
    context: &RunContext<'_>,
    paths: &[MeasuredPath],
) -> RunOutcome {
    context.steps.begin("connecting");
    coordinator.hosts.gather().await;
    let mut outcome = RunOutcome::new(coordinator, context.args);
    if context.args.measure.pingpong {
        outcome.pingpong = pingpong::measure(coordinator, context, &mut outcome.failures).await;
        return outcome;
    }
    let Checked { findings, pairs } = checks::check(coordinator, context).await;
    outcome.checked(context, findings, &pairs);
    if context.args.measure.check || coordinator.is_interrupted() || outcome.is_unwritten() {
        return outcome;
    }
    let measured: Vec<_> = pairs.iter().filter_map(CheckedPair::measured).collect();
    let series = measure(
        coordinator,
        context,
        &measured,
        paths,
        &mut outcome.failures,
    )
    .await;
    let expected = context.args.measure.expect.as_ref();
    outcome.measured(coordinator, series, &measured, expected);
    outcome
}

/// Prints a ticket, waits for the peer that has it, and carries out what the peer asks for. Returns when the peer has
/// ended.
pub(super) fn listen(args: &RdperfArgs, console: &Console) -> Exit {
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
