//! The end of a run of rdpipe: error messages, the table of stages for people and as JSON for programs, and the exit
//! code; and the dry run, `-n`.

use std::{
    env,
    io::{self, IsTerminal},
    path::PathBuf,
    time::Duration,
};

use serde::Serialize;

use crate::{
    Cipher, Transport,
    cli::{
        args::RdpipeArgs,
        shared::{
            message::{self, Console, without_numbers},
            progress::width,
            report::{amount, decimal, rate},
            run::Exit,
            stderr::terminal_size,
            table::TextTable,
        },
    },
    printable::with_spaces,
    ssh::{
        outcome::{PipelineOutcome, RunFault, Site, StageOutcome, Verdict, describe},
        plan::{Plan, PlannedStage, StageHost},
        protocol::{EdgeLink, FaultKind},
        stage::{StageReport, StageWork, Status},
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
) -> Exit {
    let outcome = &summary.outcome;
    let (errors, details) = words(plan, summary);
    for error in &errors {
        console.error(error);
    }
    for detail in &details {
        console.detail(detail);
    }
    let errors = errors.iter().map(|error| without_numbers(error));
    let table = Table::new(plan, summary, errors.collect(), elapsed);
    let is_cut = !outcome.is_success() || outcome.signal.is_some();
    // A table of zeros explains nothing.
    if args.messages.verbose > 0 || (is_cut && table.bytes() > 0 && !args.messages.quiet) {
        console.lines(&table.lines(columns()));
    }
    for text in kept_files(plan, outcome) {
        console.note(&text);
    }
    let (bytes, seconds) = (table.bytes(), table.stage_seconds());
    if let Some(text) = last_words(outcome, bytes, elapsed) {
        console.note(&text);
    }
    console.detail(&format!("Bytes {bytes}"));
    console.detail(&format!("Seconds {:.3}", elapsed.as_secs_f64()));
    let gigabytes = rate(bytes, seconds) / 1e9;
    console.detail(&format!("Bandwidth {gigabytes:.3} GB/s"));
    console.end(&table);
    match outcome.exit() {
        0 => Exit::Ok,
        code => Exit::Command(code),
    }
}

/// Returns the line that ends a run on a terminal: how far it came.
fn last_words(outcome: &PipelineOutcome, bytes: u64, elapsed: Duration) -> Option<String> {
    let is_shown = bytes > 0 && (outcome.is_success() || outcome.signal.is_some());
    let seconds = elapsed.as_secs_f64();
    (is_shown && io::stderr().is_terminal()).then(|| {
        format!(
            "{} in {seconds:.1} s ({}/s)",
            amount(bytes),
            decimal(rate(bytes, seconds))
        )
    })
}

/// Returns the number of columns for the table; none if stderr is no terminal, where a line may have any length.
fn columns() -> Option<usize> {
    io::stderr().is_terminal().then(|| terminal_size().0)
}

/// Returns what is under the names of the files of `>` that were not written.
fn kept_files(plan: &Plan, outcome: &PipelineOutcome) -> Vec<String> {
    let stages = plan.stages.iter().zip(&outcome.stages).enumerate();
    let kept = stages.filter_map(|(number, (planned, end))| {
        let kept = end.kept_file(&planned.work)?;
        Some(format!("{}: {kept}", plan.site(number)))
    });
    kept.collect()
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
    message::print_lines(&text, console)
        .err()
        .unwrap_or_default()
}

fn stages(plan: &Plan, args: &RdpipeArgs) -> String {
    let remote = args.hosts.remote();
    let own = env::current_exe().unwrap_or_else(|_| PathBuf::from("rdpipe"));
    let stage = |(number, stage): (usize, &PlannedStage)| {
        let name = plan.name(number);
        let work = match &stage.work {
            StageWork::Command(command)
            | StageWork::CommandWithoutStdin(command)
            | StageWork::SshCommand(command) => {
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

/// The report of a pipeline: its stages and edges, and how they ended.
#[derive(Debug, Serialize)]
pub(crate) struct Table {
    /// The exit code of rdpipe.
    exit: u8,
    /// The error messages, the one nearest to the cause first.
    errors: Vec<String>,
    /// The time from the first ssh to the end of the run.
    seconds: f64,
    stages: Vec<Row>,
    edges: Vec<EdgeRow>,
}

#[derive(Debug, Serialize)]
struct Row {
    number: usize,
    /// The host as it was typed; `None` is this machine.
    host: Option<String>,
    /// The host's own name, as `uname -n` prints it.
    host_name: Option<String>,
    command: String,
    /// The command's exit status; `None` if a signal killed it, or if the status is unknown.
    status: Option<u8>,
    /// The number of the signal that killed the command.
    signal: Option<u8>,
    outcome: &'static str,
    fault: Option<String>,
    output_stopped: bool,
    input_stopped: bool,
    bytes_in: u64,
    bytes_out: u64,
    seconds: f64,
    bytes_per_second: f64,
    blocked_on_input_seconds: f64,
    blocked_on_output_seconds: f64,
}

#[derive(Debug, Serialize)]
struct EdgeRow {
    from: String,
    to: String,
    transport: Option<Transport>,
    reason: Option<String>,
    cipher: Option<String>,
    rails: Option<u16>,
    address: Option<String>,
}

impl Table {
    /// Makes the report of a run that has ended.
    pub(crate) fn new(
        plan: &Plan,
        summary: &Summary,
        errors: Vec<String>,
        elapsed: Duration,
    ) -> Self {
        let verdicts = summary.outcome.verdicts();
        let stage = |number: usize| {
            let end = &summary.outcome.stages[number];
            let site = Site::Agent(number);
            let mut causes = summary.outcome.causes.iter();
            let is_lost = causes.any(|cause| cause.site == site && cause.is_infrastructure);
            let row = row(plan, number, end, verdicts[number], is_lost);
            Row {
                host_name: summary.hosts[number].clone(),
                ..row
            }
        };
        let edge = |(number, link): (usize, &Option<EdgeLink>)| {
            let is_there = number > 0 || plan.has_input;
            is_there.then(|| edge(plan.ends(number), link.as_ref()))
        };
        Self {
            exit: summary.outcome.exit(),
            errors,
            seconds: elapsed.as_secs_f64(),
            stages: (0..plan.stages.len()).map(stage).collect(),
            edges: summary.links.iter().enumerate().filter_map(edge).collect(),
        }
    }

    /// Returns the number of bytes that the busiest stage read or wrote.
    pub(crate) fn bytes(&self) -> u64 {
        let most = |row: &Row| row.bytes_in.max(row.bytes_out);
        self.stages.iter().map(most).max().unwrap_or(0)
    }

    /// Returns the longest time that a stage ran, in seconds.
    pub(crate) fn stage_seconds(&self) -> f64 {
        self.stages
            .iter()
            .map(|row| row.seconds)
            .fold(0.0, f64::max)
    }

    /// Returns the report as lines of a table. Where they do not fit into so many columns, the table has fewer ones of
    /// its own, and shorter commands. The columns that say where and how a stage ended are always there.
    pub(crate) fn lines(&self, columns: Option<usize>) -> Vec<String> {
        let whole = self.whole(COMMAND_CHARS);
        let room = columns.unwrap_or(usize::MAX);
        if excess(&whole, room) == 0 {
            return whole;
        }
        let narrow = self.narrow(COMMAND_CHARS);
        let commands = self.stages.iter().map(|row| row.command(COMMAND_CHARS));
        let longest = commands.map(|command| width(&command)).max().unwrap_or(0);
        let rest = longest.saturating_sub(excess(&narrow, room));
        if rest >= LEAST_COMMAND_CHARS {
            return self.narrow(rest);
        }
        let mut short = self.narrow_table(LEAST_COMMAND_CHARS);
        for column in LEAST_NEEDED {
            if excess(&short.lines(), room) > 0 {
                short.remove(column);
            }
        }
        short.lines()
    }

    fn whole(&self, command_chars: usize) -> Vec<String> {
        let mut table = TextTable::new(&[1, 2, 3], HEADER);
        let rows = self.stages.iter().map(|row| row.cells(command_chars));
        table.rows.extend(rows);
        table.lines()
    }

    fn narrow(&self, command_chars: usize) -> Vec<String> {
        self.narrow_table(command_chars).lines()
    }

    fn narrow_table(&self, command_chars: usize) -> TextTable {
        let mut table = TextTable::new(&[1, 2, 3, 6], NARROW_HEADER);
        let rows = self
            .stages
            .iter()
            .map(|row| row.narrow_cells(command_chars));
        table.rows.extend(rows);
        table
    }
}

/// Returns the number of columns that the longest line has more than there is room.
fn excess(lines: &[String], room: usize) -> usize {
    let longest = lines.iter().map(|line| width(line)).max();
    longest.unwrap_or(0).saturating_sub(room)
}

const HEADER: [&str; 9] = [
    "stage",
    "host",
    "command",
    "status",
    "in",
    "out",
    "rate",
    "waited for input",
    "for output",
];

/// The heading of the table on a narrow terminal.
const NARROW_HEADER: [&str; 7] = [
    "stage",
    "host",
    "command",
    "status",
    "in",
    "out",
    "waited for",
];

/// The columns that an even narrower terminal goes without, the first one first: what a stage waited for, its command, and the
/// bytes that it received.
const LEAST_NEEDED: [&str; 3] = ["waited for", "command", "in"];

/// The number of characters to which a long command is shortened.
const COMMAND_CHARS: usize = 32;

/// The number of characters to which it is shortened at most on a narrow terminal.
const LEAST_COMMAND_CHARS: usize = 8;

fn row(plan: &Plan, number: usize, end: &StageOutcome, verdict: Verdict, is_lost: bool) -> Row {
    let stage = &plan.stages[number];
    let host = stage.place.host().map(str::to_owned);
    let (status, signal) = match end.status() {
        Some(Status::Exited(code)) => (Some(code), None),
        Some(Status::Signaled(number)) => (None, Some(number)),
        None => (None, None),
    };
    let report = end.report.as_ref();
    let micros = |us: u64| Duration::from_micros(us).as_secs_f64();
    let bytes = |side: fn(&StageReport) -> u64| report.map_or(0, side);
    let (bytes_in, bytes_out) = (bytes(|r| r.bytes_in), bytes(|r| r.bytes_out));
    let seconds = micros(bytes(|r| r.elapsed_us));
    Row {
        number: number + 1,
        host,
        host_name: None,
        command: stage.text.clone(),
        status,
        signal,
        outcome: match verdict {
            Verdict::Fine => "ok",
            Verdict::ExpectedSigpipe => "stopped",
            Verdict::Failed(_) => "failed",
            Verdict::Consequence => "ended",
            Verdict::Infrastructure if is_lost => "lost",
            Verdict::Infrastructure => "broken",
        },
        fault: end.fault.as_ref().map(|fault| without_numbers(&fault.text)),
        output_stopped: report.is_some_and(|report| report.output_stopped),
        input_stopped: report.is_some_and(|report| report.input_stopped),
        bytes_in,
        bytes_out,
        seconds,
        bytes_per_second: rate(bytes_in.max(bytes_out), seconds),
        blocked_on_input_seconds: micros(bytes(|r| r.blocked_on_input_us)),
        blocked_on_output_seconds: micros(bytes(|r| r.blocked_on_output_us)),
    }
}

fn edge((from, to): (String, String), link: Option<&EdgeLink>) -> EdgeRow {
    EdgeRow {
        from,
        to,
        transport: link.map(|link| link.transport),
        reason: link.map(|link| link.reason.clone()),
        cipher: link
            .and_then(|link| link.cipher.as_ref())
            .map(Cipher::to_string),
        rails: link.map(|link| link.rails),
        address: link.map(|link| link.address.clone()),
    }
}

impl Row {
    fn cells(&self, command_chars: usize) -> Vec<String> {
        let waited = |part: f64| format!("{part:.1} s ({:.0}%)", self.percent(part));
        let mut cells = self.first_cells(command_chars);
        cells.extend([
            format!("{}/s", decimal(self.bytes_per_second)),
            waited(self.blocked_on_input_seconds),
            waited(self.blocked_on_output_seconds),
        ]);
        cells
    }

    fn narrow_cells(&self, command_chars: usize) -> Vec<String> {
        let (input, output) = (
            self.percent(self.blocked_on_input_seconds),
            self.percent(self.blocked_on_output_seconds),
        );
        let mut cells = self.first_cells(command_chars);
        cells.push(if input > output {
            format!("input {input:.0}%")
        } else {
            format!("output {output:.0}%")
        });
        cells
    }

    fn first_cells(&self, command_chars: usize) -> Vec<String> {
        let status = match (self.status, self.signal) {
            (Some(code), _) => code.to_string(),
            (None, Some(number)) => format!("signal {number}"),
            (None, None) => "-".to_owned(),
        };
        let status = match self.outcome {
            "stopped" => "told to stop".to_owned(),
            // The status 1 of a file says no more.
            "ended" if self.status.is_none() || self.is_file() => "ended by rdpipe".to_owned(),
            "ended" if self.status != Some(0) => format!("{status}, ended by rdpipe"),
            "lost" => "lost".to_owned(),
            "broken" => "its connection broke".to_owned(),
            _ => status,
        };
        vec![
            self.number.to_string(),
            self.host.clone().unwrap_or_else(|| "here".to_owned()),
            self.command(command_chars),
            status,
            amount(self.bytes_in),
            amount(self.bytes_out),
        ]
    }

    fn is_file(&self) -> bool {
        self.command.trim_start().starts_with(['<', '>'])
    }

    /// Returns how much of the stage's time that is.
    fn percent(&self, seconds: f64) -> f64 {
        (seconds / self.seconds.max(f64::MIN_POSITIVE) * 100.0).min(100.0)
    }

    fn command(&self, chars: usize) -> String {
        shortened(&self.command, chars)
    }
}

/// Returns the command in one line of at most so many characters, with spaces in place of what is not printable.
fn shortened(command: &str, chars: usize) -> String {
    let line = with_spaces(command.trim());
    if line.chars().count() <= chars {
        return line;
    }
    let start: String = line.chars().take(chars - 3).collect();
    start + "..."
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::ssh::{outcome::PipelineOutcome, plan::PlanInput, stage::TargetFile};

    fn table() -> Table {
        let segments = [
            "fs1:< big",
            ":tr a-z A-Z | a very long command\nof two lines",
        ];
        let segments: Vec<_> = segments.iter().map(OsString::from).collect();
        let plan = Plan::parse(&segments, PlanInput::Standard).unwrap();
        let report = |status, bytes_in, bytes_out| StageReport {
            status: Some(status),
            output_stopped: false,
            input_stopped: false,
            bytes_in,
            bytes_out,
            elapsed_us: 2_000_000,
            blocked_on_input_us: 0,
            blocked_on_output_us: 1_500_000,
            file: TargetFile::Old,
        };
        let end = |report| StageOutcome {
            report: Some(report),
            ..StageOutcome::default()
        };
        let stages = vec![
            end(report(Status::Exited(0), 0, 3_000_000_000)),
            end(report(Status::Signaled(9), 3_000_000_000, 17)),
        ];
        let link = EdgeLink {
            transport: Transport::Tcp,
            reason: "no RDMA device here".to_owned(),
            is_fallback: false,
            cipher: None,
            rails: 1,
            address: "10.0.0.2".to_owned(),
        };
        let summary = Summary {
            outcome: PipelineOutcome {
                stages,
                ..PipelineOutcome::default()
            },
            hosts: vec![Some("one".to_owned()), None],
            links: vec![None, Some(link), None],
        };
        let elapsed = Duration::from_secs(3);
        Table::new(&plan, &summary, vec!["stage 2".to_owned()], elapsed)
    }

    #[test]
    fn the_table_has_aligned_columns() {
        let lines = table().lines(None);
        assert_eq!(lines.len(), 3);
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            words(&lines[1]),
            "1 fs1 < big 0 0 B 3.0 GB 1.5 GB/s 0.0 s (0%) 1.5 s (75%)"
        );
        assert_eq!(
            words(&lines[2]),
            "2 here tr a-z A-Z | a very long comm... signal 9 3.0 GB 17 B 1.5 GB/s 0.0 s (0%) 1.5 s (75%)"
        );
        // The columns are aligned.
        assert_eq!(lines[0].find("command"), lines[1].find("< big"));
        assert!(lines.iter().all(|line| line.len() == lines[0].len()));
    }

    #[test]
    fn a_narrow_terminal_gets_fewer_columns_and_short_commands() {
        let table = table();
        let whole = table.lines(None);
        let longest = whole[0].len();
        assert_eq!(table.lines(Some(longest)), whole);
        for columns in 40..longest {
            let lines = table.lines(Some(columns));
            assert!(lines.iter().all(|line| width(line) <= columns), "{lines:?}");
        }
        assert_eq!(
            table.lines(Some(70)),
            [
                "stage  host  command              status        in     out  waited for",
                "    1  fs1   < big                0            0 B  3.0 GB  output 75%",
                "    2  here  tr a-z A-Z | a v...  signal 9  3.0 GB    17 B  output 75%",
            ]
        );
        assert_eq!(
            table.lines(Some(55)),
            [
                "stage  host  command   status        in     out",
                "    1  fs1   < big     0            0 B  3.0 GB",
                "    2  here  tr a-...  signal 9  3.0 GB    17 B",
            ]
        );
        assert_eq!(
            table.lines(Some(40)),
            [
                "stage  host  status        in     out",
                "    1  fs1   0            0 B  3.0 GB",
                "    2  here  signal 9  3.0 GB    17 B",
            ]
        );
    }

    #[test]
    fn json_has_every_stage_and_edge() {
        let value = serde_json::to_value(table()).unwrap();
        assert_eq!(value["exit"], 137);
        assert_eq!(value["errors"][0], "stage 2");
        let stages = value["stages"].as_array().unwrap();
        assert_eq!(stages[0]["host"], "fs1");
        assert_eq!(stages[0]["host_name"], "one");
        assert_eq!(stages[0]["status"], 0);
        assert_eq!(stages[0]["bytes_per_second"], 1.5e9);
        assert_eq!(stages[1]["host"], serde_json::Value::Null);
        assert_eq!(stages[1]["signal"], 9);
        assert_eq!(stages[1]["outcome"], "failed");
        assert_eq!(stages[1]["blocked_on_output_seconds"], 1.5);
        let edges = value["edges"].as_array().unwrap();
        assert_eq!(
            edges.len(),
            2,
            "a file as the first stage needs no edge from rdpipe's stdin"
        );
        assert_eq!(edges[0]["address"], "10.0.0.2");
        assert_eq!(edges[1]["to"], "rdpipe");
    }
}
