//! The files of `--plot` and `--report`: the picture of a report, and the report as one HTML page, which needs no other
//! file and no script.

use std::path::{Path, PathBuf};

use anyhow::Context;
use futures::executor::block_on;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use time::OffsetDateTime;
use tokio::{io::AsyncWriteExt, runtime::Handle};

use super::{args::PictureArgs, outcome, table::has_several_pairs};
use crate::{
    cli::{
        rdperf::table::{pair, tables},
        shared::{
            message::{Console, sentence},
            run::{Exit, control_runtime},
            table::TextTable,
        },
    },
    fd::OutputTarget,
    perf::{
        check::{Finding, Severity},
        picture::{picture, svg},
        report::PerfDocument,
    },
};

/// How the page looks, on a screen and on paper.
const STYLE: &str = "
:root { color-scheme: light dark }
* { box-sizing: border-box }
body { font: 15px/1.5 Helvetica, Arial, sans-serif; color: #222; background: #fff; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left } caption { text-align: left; font-weight: bold }
th { border-bottom: 2px solid #888 } pre { background: #f4f4f4; padding: .6rem; white-space: pre-wrap }
pre, code { font-family: 'DejaVu Sans Mono', Menlo, Consolas, monospace; font-size: .92em; overflow-wrap: anywhere }
.wide { overflow-x: auto } figure { margin: 1rem 0; overflow-x: auto }
svg { max-width: 100%; height: auto; border-radius: 4px } .verdict { white-space: pre-line; font-weight: bold }
@media (max-width: 40rem) { body { margin: .5rem auto; padding: 0 .6rem } th, td { padding: .2rem .4rem; white-space: nowrap } }
@media (prefers-color-scheme: dark) {
body { color: #ddd; background: #16181b } th, td { border-color: #444 } th { border-color: #888 } pre { background: #24272b }
}
@media print { body { margin: 0; max-width: none } figure, table { break-inside: avoid } }
";

/// Returns the page of a report. `rates` has the rate of the port of each transport in bytes per second, where it is
/// known.
pub(super) fn page(document: &PerfDocument, rates: [Option<f64>; 2]) -> String {
    let title = match pair(&document.series) {
        Some((from, to)) => format!("rdperf: {from} to {to}"),
        None => "rdperf".to_owned(),
    };
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (title) }
                p { (date(document.started)) ", rdperf " (document.rdperf) }
                @if !document.verdict.is_empty() {
                    p.verdict { (with_code(&document.verdict)) }
                }
                @for error in &document.errors {
                    p { strong { "Error: " } (with_code(error)) }
                }
                (pictures(document))
                @for table in tables(document, rates) {
                    div.wide { (table_markup(&table)) }
                }
                (findings(&document.findings))
                (settings(document))
                (hosts(document))
            }
        }
    };
    markup.into_string() + "\n"
}

fn pictures(document: &PerfDocument) -> Markup {
    let picture = picture(document);
    html! {
        @if !picture.charts.is_empty() && pair(&document.series).is_some() {
            figure { (PreEscaped(svg(&picture))) }
        }
    }
}

fn table_markup(table: &TextTable) -> Markup {
    let (heading, rows) = match &table.rows[..] {
        [heading, rows @ ..] => (&heading[..], rows),
        [] => (&[][..], &[][..]),
    };
    html! {
        table {
            @if let Some(title) = table.title {
                caption { (title) }
            }
            thead {
                @if !table.groups.is_empty() {
                    tr {
                        th {}
                        @for (name, columns) in &table.groups {
                            th colspan=(columns) { (name) }
                        }
                    }
                }
                tr {
                    @for cell in heading {
                        th { (cell) }
                    }
                }
            }
            tbody {
                @for row in rows {
                    tr {
                        @for cell in row {
                            td { (cell) }
                        }
                    }
                }
            }
        }
    }
}

fn findings(findings: &[Finding]) -> Markup {
    html! {
        @if !findings.is_empty() {
            h2 { "Findings" }
            @for finding in findings {
                p {
                    @if finding.severity == Severity::Repair { strong { "To repair: " } }
                    (finding.subject) ": " (with_code(&finding.what))
                }
                @if let Some(remedy) = &finding.remedy {
                    p.remedy { (with_code(remedy)) }
                }
            }
        }
    }
}

/// Returns the command line, and how it was measured.
fn settings(document: &PerfDocument) -> Markup {
    html! {
        @if !document.command.is_empty() {
            h2 { "Settings" }
            pre { (document.command) }
            ul {
                @for setting in &document.settings {
                    li { (setting) }
                }
            }
        }
    }
}

/// Returns a text in which the parts between backticks are code.
fn with_code(text: &str) -> Markup {
    let parts = text.split('`').enumerate();
    html! {
        @for (at, part) in parts {
            @if at % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

fn hosts(document: &PerfDocument) -> Markup {
    html! {
        h2 { "Hosts" }
        @for host in &document.hosts {
            p { (with_code(&host.line())) }
            ul {
                @for detail in host.details() {
                    li { (with_code(&detail)) }
                }
            }
        }
        @for choice in &document.choices {
            p { (choice.from) " to " (choice.to) ": auto uses " (choice.transport) " (" (with_code(&choice.reason)) ")" }
        }
    }
}

/// Returns the date and the time in UTC of a number of seconds since 1970.
fn date(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).unwrap_or_default();
    let time = OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    format!(
        "{} {:02}:{:02} UTC",
        time.date(),
        time.hour(),
        time.minute()
    )
}

/// The files of a run. Each is opened before anything is measured, and has its name when it is complete.
pub(super) struct PictureFiles {
    plot: Option<OutputTarget>,
    page: Option<OutputTarget>,
    runtime: Handle,
}

impl PictureFiles {
    /// Opens the files.
    /// Fails if a file cannot be created. What exists is unchanged then.
    pub(super) fn open(args: &PictureArgs, runtime: &Handle) -> anyhow::Result<Self> {
        let open = |path: &Option<PathBuf>| {
            let opened = path.as_deref().map(|path| create(path, runtime));
            opened.transpose()
        };
        Ok(Self {
            plot: open(&args.plot)?,
            page: open(&args.report)?,
            runtime: runtime.clone(),
        })
    }

    /// Writes what was measured. Without a measurement the files stay as they were. Returns the errors, which it has
    /// printed.
    pub(super) fn write(
        self,
        document: &PerfDocument,
        rates: [Option<f64>; 2],
        console: &Console,
    ) -> Vec<String> {
        if self.plot.is_none() && self.page.is_none() {
            return Vec::new();
        }
        if document.series.is_empty() {
            console.warn("nothing was measured, so no picture and no page was written");
            return Vec::new();
        }
        let files = [
            (self.plot, svg(&picture(document))),
            (self.page, page(document, rates)),
        ];
        let mut errors = Vec::new();
        for (file, text) in files {
            let Some(file) = file else { continue };
            let name = file.describe().to_owned();
            let writing = self.runtime.spawn(write(file, text));
            match block_on(writing).context("a task has failed") {
                Ok(Ok(())) => {}
                Ok(Err(error)) | Err(error) => {
                    let text = sentence(&error.context(format!("cannot write {name}")));
                    console.error(&text);
                    errors.push(text);
                }
            }
        }
        errors
    }
}

/// Opens a file that is to be replaced whole.
fn create(path: &Path, runtime: &Handle) -> anyhow::Result<OutputTarget> {
    let owned = path.to_owned();
    let creating = runtime.spawn(async move { OutputTarget::create(&owned).await });
    let created = block_on(creating)?;
    created.with_context(|| format!("cannot create {}", path.display()))
}

async fn write(mut file: OutputTarget, text: String) -> anyhow::Result<()> {
    let sink = file.sink();
    sink.write_all(text.as_bytes()).await?;
    sink.flush().await?;
    Ok(file.commit(false).await?)
}

/// Draws a report that was saved with `--json`.
pub(super) fn draw(report: &Path, args: &PictureArgs, console: &Console) -> Exit {
    let document = match outcome::read(report) {
        Ok(document) => document,
        Err(error) => {
            console.error(&sentence(&error));
            return Exit::Usage;
        }
    };
    let name = report.display();
    let why = if document.series.is_empty() {
        Some(format!("{name} has no measurements to draw"))
    } else if args.plot.is_some() && has_several_pairs(&document.series) {
        Some(format!(
            "--plot draws one pair of hosts, and {name} has several"
        ))
    } else {
        None
    };
    if let Some(why) = why {
        console.error(&why);
        return Exit::Usage;
    }
    let drawn = control_runtime().and_then(|runtime| PictureFiles::open(args, &runtime));
    match drawn {
        Ok(files) => match &files.write(&document, [None, None], console)[..] {
            [] => Exit::Ok,
            _ => Exit::Local,
        },
        Err(error) => {
            console.error(&sentence(&error));
            Exit::Local
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::report::{
        measurand::{FigureName, Operations, tests::send_of_64},
        series::tests::point,
    };

    #[test]
    fn a_page_has_all_parts_and_everything_is_escaped() {
        let rate = Operations {
            figure: FigureName::Rate,
            ..send_of_64()
        };
        let mut document = PerfDocument {
            series: vec![point(rate, &[64e6])],
            verdict: "a < b & \"c\"".to_owned(),
            errors: vec!["<script>".to_owned()],
            findings: vec![Finding {
                code: "mtu".into(),
                severity: Severity::Repair,
                subject: "h1".to_owned(),
                what: "it is <small>".to_owned(),
                remedy: Some("`ip link set mtu 9000`; see `ip link`".to_owned()),
            }],
            command: "rdperf --time 0.2 fs2".to_owned(),
            settings: vec!["5 runs".to_owned()],
            started: 1_795_564_800,
            ..PerfDocument::default()
        };
        document.series[0].from = "h<1>".to_owned();
        let text = page(&document, [None, None]);
        for words in [
            "<h1>rdperf: h&lt;1&gt; to h2</h1>",
            "2026-11-25 00:00 UTC",
            "a &lt; b &amp; ",
            "&lt;script&gt;",
            "it is &lt;small&gt;",
            "<code>ip link set mtu 9000</code>; see <code>ip link</code>",
            "<pre>rdperf --time 0.2 fs2</pre>",
            "<li>5 runs</li>",
            "width=device-width, initial-scale=1",
            "prefers-color-scheme: dark",
            "overflow-x: auto",
            "<caption>throughput</caption>",
            "<td>1000000</td>",
            "<svg ",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        for unwanted in ["<script", "src=", "href=", "@import", "url(", "`"] {
            assert!(!text.contains(unwanted), "{unwanted}: {text}");
        }
    }

    #[test]
    fn a_date_is_in_utc() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_827_696), "2000-02-29 12:34 UTC");
        assert_eq!(date(u64::MAX), "1970-01-01 00:00 UTC");
    }
}
