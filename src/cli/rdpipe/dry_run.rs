//! The dry run, `-n`: prints what rdpipe would do.

use std::{env, path::PathBuf};

use crate::{
    cli::{
        args::RdpipeArgs,
        shared::{exit::Exit, message::Console, stdout},
    },
    ssh::{
        plan::{Plan, StageHost},
        stage::StageWork,
    },
};

/// Prints the stages and edges of the plan to stdout. Returns how the program ends.
pub(super) fn print(plan: &Plan, args: &RdpipeArgs, console: &Console) -> Exit {
    let mut text = stages(plan, args);
    text += &edges(plan, args);
    stdout::print(&text, console).err().unwrap_or_default()
}

fn stages(plan: &Plan, args: &RdpipeArgs) -> String {
    let remote = args.hosts.remote();
    let own = env::current_exe().unwrap_or_else(|_| PathBuf::from("rdpipe"));
    let stage = |(number, stage): (usize, &crate::ssh::plan::PlannedStage)| {
        let name = plan.name(number);
        let work = match &stage.work {
            StageWork::Command(command) | StageWork::CommandWithoutStdin(command) => {
                format!("runs, in the login shell: {}", lossy(command))
            }
            StageWork::Read(path) => format!("reads the file {}", lossy(path)),
            // rdcat makes such a stage; no command line of rdpipe does.
            StageWork::Files(paths) => format!("reads {} files", paths.len()),
            StageWork::Write { path, append: true } => {
                format!("appends to the file {}", lossy(path))
            }
            StageWork::Write { path, .. } => format!("writes the file {}", lossy(path)),
        };
        let agent = remote.launch(&stage.place, &own);
        let agent = agent.map(|launch| launch.display()).unwrap_or_default();
        format!("stage {name}\n  {work}\n  agent: {agent}\n")
    };
    plan.stages.iter().enumerate().map(stage).collect()
}

fn edges(plan: &Plan, args: &RdpipeArgs) -> String {
    let count = plan.stages.len();
    let first = usize::from(!plan.has_input);
    let edge = |number: usize| {
        let (from, to) = plan.ends(number);
        let (from, to) = match number {
            0 => ("standard input".to_owned(), to),
            _ if number == count => (from, "standard output".to_owned()),
            _ => (from, to),
        };
        // The stage that reads an edge listens. rdpipe reads the last edge and never listens, so the last stage listens.
        let listener = number.min(count - 1);
        let addresses = addresses(&plan.stages[listener].place, args);
        let name = plan.name(listener);
        let port = match args.hosts.ports {
            None => "any free port".to_owned(),
            Some((first, last)) if first == last => format!("port {first}"),
            Some((first, last)) => format!("a port from {first} to {last}"),
        };
        format!("edge from {from} to {to}\n  stage {name} listens on {port}, at {addresses}\n")
    };
    (first..=count).map(edge).collect()
}

/// Returns the addresses of a stage's host, as far as they are known before the host reports them.
fn addresses(place: &StageHost, args: &RdpipeArgs) -> String {
    match place.host() {
        None => match args.hosts.here() {
            None => "the addresses that this machine has".to_owned(),
            Some(here) => format!("{here} and the addresses that this machine has"),
        },
        Some(host) => {
            let given = args.hosts.addresses.iter();
            let given = given.clone().find(|given| given.host == host);
            match given {
                Some(given) => given.addresses.join(", "),
                None => format!("the addresses that {host} reports, and {host}"),
            }
        }
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
