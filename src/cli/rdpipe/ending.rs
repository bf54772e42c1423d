//! The end of a run of rdpipe: error messages, the table of stages, and the exit code; and the dry run, `-n`.

use std::{env, fs, path::PathBuf, time::Duration};

use super::table::Table;
use crate::{
    cli::{
        args::RdpipeArgs,
        shared::{exit::Exit, message::Console, report::rate, stdout},
    },
    ssh::{
        outcome::{RunFault, Site, Verdict, describe},
        plan::{Plan, StageHost},
        protocol::FaultKind,
        stage::StageWork,
        supervisor::Summary,
    },
};

/// Prints what failed, prints the table of stages, writes it for `--json`, and returns the exit code.
pub(super) fn tell(
    args: &RdpipeArgs,
    plan: &Plan,
    summary: &Summary,
    elapsed: Duration,
    console: &Console,
) -> u8 {
    let outcome = &summary.outcome;
    let (errors, details) = words(plan, summary);
    for error in &errors {
        console.error(error);
    }
    for detail in &details {
        console.detail(detail);
    }
    let table = Table::new(plan, summary, errors, elapsed);
    let is_failure = !outcome.is_success() && outcome.signal.is_none();
    if args.report.verbose || (is_failure && !args.report.quiet) {
        console.lines(&table.lines());
    }
    let (bytes, seconds) = (table.bytes(), table.stage_seconds());
    console.detail(&format!("Bytes {bytes}"));
    console.detail(&format!("Seconds {:.3}", elapsed.as_secs_f64()));
    let gigabytes = rate(bytes, seconds) / 1e9;
    console.detail(&format!("Bandwidth {gigabytes:.3} GB/s"));
    let exit = outcome.exit();
    if let Some(path) = &args.report.json {
        if let Err(error) = fs::write(path, table.json()) {
            console.error(&format!("cannot write {}: {error}", path.display()));
            return if exit == 0 { super::FAILED_HERE } else { exit };
        }
    }
    exit
}

/// Returns the errors, the first cause first, and then the details: failures that followed from the errors.
fn words(plan: &Plan, summary: &Summary) -> (Vec<String>, Vec<String>) {
    let outcome = &summary.outcome;
    if let Some(number) = outcome.signal {
        let text = crate::ssh::explain::signal(number);
        return (vec![format!("interrupted by {text}")], Vec::new());
    }
    let mut errors = Vec::new();
    let mut details = Vec::new();
    for cause in outcome.ranked() {
        // The first of several faults of the same kind is the cause; the others mostly follow from it.
        let is_first = errors.is_empty() && cause.fault.kind <= FaultKind::Edge;
        let text = sentence(plan, cause);
        if is_first || cause.fault.kind == FaultKind::Local {
            errors.push(text);
        } else {
            details.push(text);
        }
    }
    for (stage, verdict) in outcome.verdicts().into_iter().enumerate() {
        // A fault that a peer or the controller passed to the stage does not explain the stage's own failure.
        let own = |cause: &RunFault| {
            cause.site == Site::Agent(stage) && cause.fault.kind <= FaultKind::Edge
        };
        let has_cause = outcome.causes.iter().any(own);
        let status = outcome.stages[stage].status();
        if let (Verdict::Failed(_), Some(status), false) = (verdict, status, has_cause) {
            errors.push(format!("{} {}", plan.site(stage), describe(status)));
        }
    }
    if errors.is_empty() && !details.is_empty() {
        // Without an error, the first detail is the best explanation.
        errors.push(details.remove(0));
    }
    (errors, details)
}

fn sentence(plan: &Plan, cause: &RunFault) -> String {
    let text = &cause.fault.text;
    match cause.site {
        Site::Agent(stage) => format!("{}: {text}", plan.site(stage)),
        Site::Input | Site::Output | Site::Edge(_) => text.clone(),
    }
}

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
        // The stage that reads an edge listens. rdpipe reads the last edge and never listens, so the last stage
        // listens.
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
