//! What a run has found, and how it is printed; and how the saved reports of two runs differ.

use std::{fs, path::Path};

use anyhow::Context;

use super::page::PictureFiles;
use super::table::digits;
use crate::{
    Transport, TransportPolicy,
    cli::{
        args::RdperfArgs,
        rdperf::{
            args,
            checks::CheckedPair,
            hosts::{Coordinator, RunContext},
            measuring::MeasuredPair,
            pingpong::{self, PingPongRow},
            table,
            verdict::{self, verdict},
        },
        shared::{
            message::{Console, print_lines, print_stdout, sentence, without_numbers},
            run::Exit,
            table::TextTable,
        },
    },
    options::TypedRate,
    perf::{
        check::{Finding, Severity},
        report::{
            Change, ChangeKind, DOCUMENT_VERSION, HostSummary, PairChoice, PerfDocument, changes,
            series::Series,
        },
    },
    printable::lines,
    ssh::explain,
};

/// What a run has found.
pub(super) struct RunOutcome {
    pub(super) document: PerfDocument,
    /// The measurements that failed, and true for each whose cause is a file.
    pub(super) failures: Vec<(bool, String)>,
    pub(super) pingpong: Vec<PingPongRow>,
    /// The rates of the ports of the only pair, TCP and RDMA, in bytes per second.
    rates: [Option<f64>; 2],
    /// The index of the first finding that the measurements have shown.
    late: usize,
    unmeasured: Vec<PairChoice>,
    /// The pairs of hosts that carry less than was expected.
    shortfalls: Vec<String>,
    /// The exit code of a report that stdout did not take.
    unwritten: Option<Exit>,
}

impl RunOutcome {
    /// Returns what is known when every host has answered, or is lost.
    pub(super) fn new(coordinator: &Coordinator, args: &RdperfArgs) -> Self {
        let hosts = &coordinator.hosts;
        let summary = |host: usize| Some(HostSummary::new(hosts.name(host), hosts.facts(host)?));
        Self {
            document: PerfDocument {
                version: DOCUMENT_VERSION,
                rdperf: env!("CARGO_PKG_VERSION").to_owned(),
                command: args::command_line(),
                settings: args.settings(),
                hosts: (0..hosts.count()).filter_map(summary).collect(),
                ..PerfDocument::default()
            },
            failures: Vec::new(),
            pingpong: Vec::new(),
            rates: [None, None],
            late: 0,
            unmeasured: Vec::new(),
            shortfalls: Vec::new(),
            unwritten: None,
        }
    }

    /// Adds what the checks have found, and prints it unless the report is for programs.
    pub(super) fn checked(
        &mut self,
        context: &RunContext<'_>,
        findings: Vec<Finding>,
        pairs: &[CheckedPair],
    ) {
        self.late = findings.len();
        self.document.findings = findings;
        self.document.choices = pairs.iter().map(|pair| pair.choice.clone()).collect();
        self.unmeasured = pairs
            .iter()
            .filter(|pair| pair.measured().is_none())
            .map(|pair| pair.choice.clone())
            .collect();
        if context.is_for_people() {
            let in_full = context.args.measure.check || context.args.messages.verbose > 0;
            let lines = self.check_lines(in_full);
            let text = lines.join("\n") + "\n";
            self.unwritten = print_lines(&text, context.console).err();
        }
    }

    /// Returns true if stdout takes no more.
    pub(super) fn is_unwritten(&self) -> bool {
        self.unwritten.is_some()
    }

    pub(super) fn measured(
        &mut self,
        coordinator: &Coordinator,
        series: Vec<Series>,
        pairs: &[MeasuredPair],
        expected: Option<&TypedRate>,
    ) {
        if let [pair] = pairs {
            self.rates = rates(coordinator, pair, &series);
        }
        let found = verdict::findings(&series);
        self.late = self.document.findings.len();
        self.document.findings.extend(found);
        self.document.series = series;
        // After ^C some measurements are missing, maybe the one that shows the limit.
        if !coordinator.is_interrupted() {
            self.document.verdict = verdict(&self.document, self.rates);
            let shortfalls = |expected| verdict::shortfalls(&self.document.series, expected);
            self.shortfalls = expected.map(shortfalls).unwrap_or_default();
        }
    }

    /// Writes the pictures, prints the rest of the report, and returns the exit code.
    pub(super) fn end(
        mut self,
        coordinator: &Coordinator,
        context: &RunContext<'_>,
        pictures: PictureFiles,
    ) -> Exit {
        let mut exit = self.exit(coordinator, context);
        self.tell_lost(coordinator, context);
        // Before the report for programs, which has the exit code and all errors.
        let unwritten = pictures.write(&self.document, self.rates, context.console);
        if !unwritten.is_empty() && exit == Exit::Ok {
            exit = Exit::Local;
        }
        self.document.errors.extend(unwritten);
        for error in &mut self.document.errors {
            *error = without_numbers(error);
        }
        let exit = self.unwritten.unwrap_or(exit);
        self.document.exit = exit.code();
        let args = context.args;
        if args.messages.json.is_given() {
            args.messages.json.note_stdout(context.console);
            if self.unwritten.is_none() {
                context.console.end(&self.document);
            }
            return exit;
        }
        let text = if args.csv {
            self.document.csv()
        } else {
            lines(&self.text(context))
        };
        if self.unwritten.is_none() && !text.is_empty() {
            return print_stdout(&text, context.console).err().unwrap_or(exit);
        }
        exit
    }

    /// Prints which signal has ended the run, or which hosts are lost and which pairs were not measured.
    fn tell_lost(&mut self, coordinator: &Coordinator, context: &RunContext<'_>) {
        let hosts = &coordinator.hosts;
        if let Some(number) = hosts.signal() {
            let text = format!("interrupted by {}", explain::signal(number));
            context.console.error(&text);
            self.document.errors.push(text);
            return;
        }
        let lost = (0..hosts.count()).filter_map(|host| {
            let name = hosts.name(host);
            let has_answered = self.document.hosts.iter().any(|host| host.name == name);
            let mut text = format!("{name}: {}", hosts.lost(host)?);
            // A key that is not known any more ends a connection without a word.
            if hosts.only_listens(host) && !has_answered && !text.contains("ticket") {
                text.push_str("; a ticket is good for one run, so begin with a new one");
            }
            Some(text)
        });
        let mut texts: Vec<_> = lost.collect();
        if !context.args.measure.check {
            texts.extend(self.unmeasured.iter().map(|pair| unmeasured(pair, context)));
        }
        texts.append(&mut self.shortfalls.clone());
        for text in texts {
            context.console.error(&text);
            self.document.errors.push(text);
        }
        let failed = self.failures.iter().map(|(_, text)| text.clone());
        self.document.errors.extend(failed);
    }

    fn exit(&self, coordinator: &Coordinator, context: &RunContext<'_>) -> Exit {
        let hosts = &coordinator.hosts;
        let is_lost = (0..hosts.count()).any(|host| hosts.lost(host).is_some());
        let findings = &self.document.findings;
        let has_repairs = findings
            .iter()
            .any(|finding| finding.severity == Severity::Repair);
        if let Some(number) = hosts.signal() {
            Exit::Signal(number)
        } else if is_lost || self.failures.iter().any(|(is_local, _)| !is_local) {
            Exit::Connection
        } else if context.args.measure.check && has_repairs {
            Exit::Local
        } else if !context.args.measure.check && !self.unmeasured.is_empty() {
            Exit::Connection
        } else if !(self.failures.is_empty() && self.shortfalls.is_empty()) {
            Exit::Local
        } else {
            Exit::Ok
        }
    }

    /// Returns the lines of what the checks have found, with notes and details if it is wanted `in_full`.
    fn check_lines(&self, in_full: bool) -> Vec<String> {
        let mut lines = Vec::new();
        for host in &self.document.hosts {
            lines.push(host.line());
            if in_full {
                lines.extend(host.details().iter().map(|line| format!("    {line}")));
            }
        }
        for choice in &self.document.choices {
            let PairChoice {
                from,
                to,
                transport,
                reason,
                proofs,
            } = choice;
            lines.push(format!("{from} to {to}: auto uses {transport} ({reason})"));
            if in_full {
                lines.extend(proofs.iter().map(|line| format!("    {line}")));
            }
        }
        let shown = self.document.findings.iter();
        let shown = shown.filter(|finding| in_full || finding.severity == Severity::Repair);
        lines.extend(finding_lines(shown));
        lines
    }

    /// Returns the rest of the report for people.
    fn text(&self, context: &RunContext<'_>) -> String {
        let mut lines = Vec::new();
        if context.args.measure.pingpong {
            lines.extend(pingpong::lines(&self.pingpong));
        } else if context.args.measure.check {
            let repairs = self.document.findings.iter();
            let repairs = repairs
                .filter(|finding| finding.severity == Severity::Repair)
                .count();
            lines.push(match (repairs, self.document.errors.len()) {
                (0, 0) => "All is well.".to_owned(),
                (0, _) => return String::new(),
                (1, _) => "One thing to repair.".to_owned(),
                (count, _) => format!("{count} things to repair."),
            });
        } else {
            lines.extend(self.tables());
            let late = &self.document.findings[self.late..];
            if !late.is_empty() {
                lines.push(String::new());
                lines.extend(finding_lines(late));
            }
            if !self.document.verdict.is_empty() {
                lines.push(String::new());
                lines.push(self.document.verdict.clone());
            }
        }
        if lines.is_empty() {
            return String::new();
        }
        lines.join("\n") + "\n"
    }

    fn tables(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some((from, to)) = table::pair(&self.document.series) {
            lines.extend([String::new(), format!("from {from} to {to}")]);
        }
        for (at, table) in table::tables(&self.document, self.rates).iter().enumerate() {
            if at > 0 || lines.is_empty() {
                lines.push(String::new());
            }
            lines.extend(table.lines());
        }
        lines
    }
}

/// Returns why a pair of hosts was not measured.
fn unmeasured(pair: &PairChoice, context: &RunContext<'_>) -> String {
    let medium = match context.args.stream.transport {
        TransportPolicy::Rdma => Transport::Rdma,
        _ => Transport::Tcp,
    };
    format!(
        "{} to {} cannot be measured: they have no connection over {medium}; see what rdperf --check finds",
        pair.from, pair.to
    )
}

fn finding_lines<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> Vec<String> {
    let mut lines = Vec::new();
    for finding in findings {
        let kind = match finding.severity {
            Severity::Repair => "TO REPAIR",
            Severity::Note => "note",
        };
        lines.push(format!("{kind}: {}: {}", finding.subject, finding.what));
        if let Some(remedy) = &finding.remedy {
            lines.extend(remedy.lines().map(|line| format!("    {line}")));
        }
    }
    lines
}

/// Returns the rates of the ports that a pair uses, TCP and RDMA, in bytes per second: those of the end that listens.
fn rates(coordinator: &Coordinator, pair: &MeasuredPair, series: &[Series]) -> [Option<f64>; 2] {
    let facts = coordinator.hosts.facts(pair.listener);
    let bytes = |mbps: u32| (mbps > 0).then(|| f64::from(mbps) * 1e6 / 8.0);
    let tcp = || {
        let is_tcp = |series: &&Series| series.what.transport() == Some(Transport::Tcp);
        let mut runs = series.iter().filter(is_tcp).flat_map(|series| &series.runs);
        let used = runs.find_map(|run| run.address.as_ref())?;
        let used = used.parse::<std::net::IpAddr>().ok()?.to_canonical();
        let addresses = facts.map_or(&[][..], |facts| &facts.addresses);
        let found = addresses.iter().find(|address| address.address == used)?;
        bytes(found.rate_mbps?)
    };
    let rdma = || {
        let used = &pair.ports.as_ref()?.listener;
        let devices = facts.map_or(&[][..], |facts| &facts.devices);
        let device = devices.iter().find(|device| device.name == used.device)?;
        let port = device.ports.iter().find(|port| port.number == used.port)?;
        // A software device always says the same rate.
        (!device.is_software)
            .then(|| bytes(port.rate_mbps))
            .flatten()
    };
    [tcp(), rdma()]
}

/// Prints how the measurements of two reports differ. Returns [`Exit::Local`] if one is worse.
pub(super) fn compare(old: &Path, new: &Path, threshold: f64, console: &Console) -> Exit {
    let (before, after) = match (read(old), read(new)) {
        (Ok(before), Ok(after)) => (before, after),
        (Err(error), _) | (_, Err(error)) => {
            console.error(&sentence(&error));
            return Exit::Usage;
        }
    };
    let changes = changes(&before, &after, threshold);
    let text = change_lines(&changes).join("\n") + "\n";
    if let Err(unwritten) = print_lines(&text, console) {
        return unwritten;
    }
    let is_worse = |change: &Change| matches!(change.kind, ChangeKind::Worse | ChangeKind::Gone);
    if changes.iter().any(is_worse) {
        Exit::Local
    } else {
        Exit::Ok
    }
}

/// Reads a report.
pub(super) fn read(path: &Path) -> anyhow::Result<PerfDocument> {
    let name = path.display();
    let bytes = fs::read(path).with_context(|| format!("cannot read {name}"))?;
    let document: PerfDocument = serde_json::from_slice(&bytes)
        .with_context(|| format!("{name} is no report of rdperf --json"))?;
    anyhow::ensure!(
        document.version == DOCUMENT_VERSION,
        "{name} was made by rdperf {}, whose reports have another form",
        document.rdperf
    );
    Ok(document)
}

/// Returns the lines for the user: a row for each measurement, and a sentence.
fn change_lines(changes: &[Change]) -> Vec<String> {
    let mut table = TextTable::new(&[0], ["", "old", "new", "change", ""]);
    table.rows.extend(changes.iter().map(change_row));
    let mut lines = if changes.is_empty() {
        Vec::new()
    } else {
        table.lines()
    };
    let count = |kind: ChangeKind| changes.iter().filter(|change| change.kind == kind).count();
    let (better, worse) = (count(ChangeKind::Better), count(ChangeKind::Worse));
    let gone = count(ChangeKind::Gone);
    lines.push(match (better, worse, gone) {
        (0, 0, 0) => "Nothing has changed beyond noise.".to_owned(),
        _ => format!("{worse} worse, {better} better, {gone} missing."),
    });
    lines
}

fn change_row(change: &Change) -> Vec<String> {
    let value = |value: Option<f64>| match value {
        None => "-".to_owned(),
        Some(value) if change.is_rate => format!("{} GB/s", digits(value / 1e9)),
        Some(value) => format!("{} µs", digits(value)),
    };
    let percent = match (change.old, change.new) {
        (Some(old), Some(new)) if old > 0.0 => format!("{:+.1}%", (new / old - 1.0) * 100.0),
        _ => String::new(),
    };
    let kind = match change.kind {
        ChangeKind::Noise => "",
        ChangeKind::Better => "better",
        ChangeKind::Worse => "WORSE",
        ChangeKind::Gone => "missing",
        ChangeKind::Added => "new",
    };
    vec![
        change.name.clone(),
        value(change.old),
        value(change.new),
        percent,
        kind.to_owned(),
    ]
}
