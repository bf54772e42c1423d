//! The program rdpipe: commands on several hosts, and data from one to the next.

mod dry_run;
mod ending;

use std::{
    env,
    io::{self, IsTerminal},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use anyhow::Context;
use clap::{CommandFactory, Parser, error::ErrorKind};
use tokio::{runtime::Handle, sync::oneshot};

use super::{
    args::{Agent, RdpipeArgs},
    message::Console,
    progress::{Progress, is_on_terminal},
    run, signals,
};
use crate::{
    Direction, GeneratedKey, Key,
    ssh::{
        agent,
        own::{self, Lane, Parts},
        plan::Plan,
        protocol::End,
        supervisor::{
            Notice, Settings, Summary,
            driver::{Driver, Inbox, inbox},
            machine::Machine,
        },
    },
};

/// Parses the command line, runs the pipeline, and says how it went.
#[must_use]
pub fn main() -> ExitCode {
    let args = RdpipeArgs::parse();
    match args.agent {
        Some(Agent::Guard) => return agent::guard_main(),
        Some(Agent::Worker) => return agent::worker_main(),
        None => {}
    }
    // A terminal is no input: a pipeline in the background must not stop on it.
    let plan = match Plan::parse(&args.segments, !io::stdin().is_terminal()) {
        Ok(plan) => plan,
        Err(error) => RdpipeArgs::command()
            .error(ErrorKind::ValueValidation, error)
            .exit(),
    };
    if args.dry_run {
        return dry_run::print(&plan, &args);
    }
    let console = Console::new("rdpipe", args.messages());
    let code = run(&args, &plan, &console).unwrap_or_else(|error| {
        console.error(&super::message::sentence(&error));
        FAILED_HERE
    });
    ExitCode::from(code)
}

/// As [`Exit::Local`](super::exit::Exit::Local).
const FAILED_HERE: u8 = 1;

fn run(args: &RdpipeArgs, plan: &Plan, console: &Console) -> anyhow::Result<u8> {
    let started = Instant::now();
    let control = run::control_runtime()?;
    let signal = signals::watch(&control).context("cannot catch signals")?;
    let moved = Arc::new(AtomicU64::new(0));
    let driver = driver(args, plan, console, &control, Arc::clone(&moved))?;
    let terminal = is_on_terminal(&io::stdout(), false);
    let progress = Progress::start(console, None, terminal, move || {
        moved.load(Ordering::Relaxed)
    });
    let summary = supervise(driver, signal, &control)?;
    drop(progress);
    Ok(ending::tell(
        args,
        plan,
        &summary,
        started.elapsed(),
        console,
    ))
}

/// Runs the driver beside the stream's control tasks, undisturbed by reads and writes of files.
fn supervise(
    driver: Driver,
    signal: oneshot::Receiver<signals::Caught>,
    control: &Handle,
) -> anyhow::Result<Summary> {
    let (sender, caught) = oneshot::channel();
    control.spawn(async move {
        if let Ok(caught) = signal.await {
            let _ = sender.send((caught.number, caught.name));
        }
    });
    let running = control.spawn(driver.run(caught));
    // The other thread's runtime drives it; this one only waits.
    futures::executor::block_on(running).context("the supervisor failed")
}

fn driver(
    args: &RdpipeArgs,
    plan: &Plan,
    console: &Console,
    control: &Handle,
    moved: Arc<AtomicU64>,
) -> anyhow::Result<Driver> {
    let keys: Result<Vec<GeneratedKey>, _> =
        (0..=plan.stages.len()).map(|_| Key::generate()).collect();
    let keys = keys?;
    let own_program = env::current_exe().context("cannot find the own program")?;
    let remote = args.hosts.remote();
    let launch = |stage: &crate::ssh::plan::Stage| remote.launch(&stage.place, &own_program);
    let launches: Vec<_> = plan.stages.iter().map(launch).collect();
    for (stage, launch) in launches.iter().enumerate() {
        console.detail(&format!("stage {}: {}", plan.name(stage), launch.display()));
    }
    let (inbox, happenings) = inbox();
    let lane = |end| lane(args, plan, end, &keys, control, &inbox);
    let lanes = [
        plan.has_input.then(|| lane(End::Input)).transpose()?,
        Some(lane(End::Output)?),
    ];
    let settings = Settings {
        stream: args.stream_order(),
        fsync: args.fsync,
        addresses: args.hosts.addresses.clone(),
        here: args.hosts.here(),
        machine: Some(agent::machine()),
    };
    let texts = keys.iter().map(|key| key.text().to_string()).collect();
    let names: Vec<_> = (0..plan.stages.len())
        .map(|stage| plan.name(stage))
        .collect();
    let console = console.clone();
    Ok(Driver {
        machine: Machine::new(plan.clone(), settings, texts),
        launches,
        silence: args.stream_config(Direction::Both).timeout,
        lanes,
        inbox,
        happenings,
        tell: Arc::new(move |notice| match notice {
            Notice::Words(stage, text) => console.words(&names[stage], &text),
            Notice::Warning(text) => console.warn(&text),
            Notice::Note(text) => console.note(&text),
            Notice::Detail(text) => console.detail(&text),
        }),
        moved,
    })
}

/// Serves one of rdpipe's own edges on a thread of its own: a disk or a terminal that stalls holds up nobody
/// else, and both ways go on at once.
fn lane(
    args: &RdpipeArgs,
    plan: &Plan,
    end: End,
    keys: &[GeneratedKey],
    control: &Handle,
    inbox: &Inbox,
) -> anyhow::Result<tokio::sync::mpsc::UnboundedSender<own::Command>> {
    let (edge, direction, name) = match end {
        End::Input => (0, Direction::Send, "input"),
        End::Output => (plan.stages.len(), Direction::Receive, "output"),
    };
    let (from, to) = plan.ends(edge);
    let mut config = args.stream_config(direction);
    config.control_runtime = Some(control.clone());
    let parts = Parts {
        end,
        key: keys[edge].key().clone(),
        peer: if end == End::Input { to } else { from },
        config,
    };
    let (lane, commands) = Lane::new(parts, inbox.own(end));
    let runtime = run::runtime()?;
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || runtime.block_on(lane.serve()))
        .context("cannot start a thread")?;
    Ok(commands)
}
