//! The command line of rdperf: its options, the hosts, and the paths that are measured there. Pure, no I/O.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
    time::Duration,
};

use clap::{
    Args, Parser, ValueEnum, ValueHint,
    builder::{OsStringValueParser, TypedValueParser},
};

use super::sweep::Sweep;
use crate::{
    TransportPolicy,
    cli::args::{Agent, HostOptions, MessageOptions, Secret, help, version},
    options::{self, StreamOptions, TypedRate},
    perf::{
        messages::{MAX_MESSAGE_BYTES, MAX_TASK_STREAMS},
        report::SizeText,
    },
    printable,
    reach::ticket::Ticket,
    ssh::{plan::StageHost, quote},
};

/// The number of runs of each measurement: enough for a median, and for a spread that shows noise.
const DEFAULT_RUNS: u16 = 5;

/// The number of runs of each measurement of a sweep, which has many: enough for a median.
const SWEEP_RUNS: u16 = 3;

/// The time of each run: some thousand wake-ups, and short enough that all runs of a default measurement take two
/// minutes.
const DEFAULT_TIME: Duration = Duration::from_secs(1);

/// The time of each run of a sweep: ten thousands of operations of a device.
const SWEEP_TIME: Duration = Duration::from_millis(200);

/// The size of the messages of a ping-pong: that of a cache line, and of most requests.
const DEFAULT_SIZE: u32 = 64;

/// The numbers of streams of a measurement of bytes per second.
const DEFAULT_STREAMS: [u16; 2] = [1, 4];

/// The change in percent that counts as one.
const DEFAULT_THRESHOLD: f64 = 5.0;

/// The command line of rdperf.
#[derive(Debug, Parser)]
#[command(
    name = "rdperf",
    version,
    long_version = version::long(),
    about = "Measures what hosts can do over their network, says what limits it, and how to repair it",
    override_usage = "rdperf [OPTIONS] [user@]HOST...\n       rdperf --listen [OPTIONS]\n       rdperf [OPTIONS] TICKET\n       rdperf diff OLD.json NEW.json [--threshold PERCENT]\n       rdperf draw REPORT.json [--plot FILE.svg] [--report FILE.html]",
    after_help = help::rdperf(),
    mut_arg("verbose", |arg| {
        arg.help("Print how the run went: connections, every run; -vv how ssh is called, and the addresses of the hosts, too")
    }),
    mut_arg("quiet", |arg| arg.help("Print errors only: no progress"))
)]
pub(crate) struct RdperfArgs {
    /// The hosts, a ticket, `diff` and two reports, or `draw` and a report. A ticket is a secret, so the operands
    /// appear in no message.
    #[arg(value_name = "HOST", value_hint = ValueHint::Hostname, value_parser = OsStringValueParser::new().map(Secret::new), help = help::PERF_OPERAND)]
    #[arg(conflicts_with_all = ["listen", "ticket_file"])]
    pub(crate) operands: Vec<Secret>,

    #[command(flatten)]
    pub(crate) measure: MeasureArgs,

    /// Print a ticket, and wait for one peer that has it
    #[arg(short, long, conflicts_with_all = ["ticket_file", "check", "pingpong", "measure", "read", "write", "time", "runs", "size", "streams", "sweep", "expect"])]
    #[arg(conflicts_with_all = ["csv", "json", "threshold"])]
    pub(crate) listen: bool,

    /// Read the ticket from the first line of FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) ticket_file: Option<PathBuf>,

    /// Count changes of more than this many percent, with diff [default: 5]
    #[arg(long, value_name = "PERCENT", value_parser = threshold)]
    pub(crate) threshold: Option<f64>,

    #[command(flatten)]
    pub(crate) pictures: PictureArgs,

    #[command(flatten)]
    pub(crate) hosts: HostOptions,

    #[command(flatten)]
    pub(crate) stream: StreamOptions,

    #[command(flatten)]
    pub(crate) messages: MessageOptions,

    /// Report in CSV: write a row for each measurement to stdout at the end
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,

    /// Run as an agent (used by rdperf itself)
    #[arg(long, hide = true, value_enum, num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "guard")]
    pub(crate) agent: Option<Agent>,
}

/// What is measured, and how.
#[derive(Debug, Clone, Args)]
pub(crate) struct MeasureArgs {
    /// Check the hosts and the network only, and measure nothing; exit 1 if something is to repair
    #[arg(long, conflicts_with_all = ["pingpong", "measure", "read", "write", "csv"])]
    pub(crate) check: bool,

    /// Print round trips per second over TCP and RDMA: on the first host alone, and over the network
    #[arg(long, conflicts_with_all = ["measure", "read", "write", "csv", "json"])]
    pub(crate) pingpong: bool,

    /// Measure RDMA operations of many sizes: inline, verb, poll, signal or chunk, or settings like
    /// size=1:8M:*2,verb=write,send
    #[arg(long, value_name = "NAME|SETTINGS")]
    #[arg(conflicts_with_all = ["check", "pingpong", "read", "write", "size", "streams"])]
    pub(crate) sweep: Option<Sweep>,

    /// Measure only these [default: all three; with --read or --write: bandwidth]
    #[arg(
        long,
        value_enum,
        value_name = "bandwidth,latency,connect",
        hide_possible_values = true,
        value_delimiter = ','
    )]
    pub(crate) measure: Vec<MeasureChoice>,

    /// Measure how fast PATH can be read on a host [default host: the first one]
    #[arg(long, value_name = "[HOST:]PATH")]
    pub(crate) read: Option<OsString>,

    /// Measure how fast a new file in the directory PATH can be written on a host, and remove the file [default host:
    /// the last one]
    #[arg(long, value_name = "[HOST:]PATH")]
    pub(crate) write: Option<OsString>,

    /// Exit 1 if the streams between two hosts carry less than RATE at best: 10Gbit, 940Mb/s, 1.2GB/s
    #[arg(long, value_name = "RATE", value_parser = options::network_rate)]
    #[arg(conflicts_with_all = ["check", "pingpong", "sweep"])]
    pub(crate) expect: Option<TypedRate>,

    /// Run each measurement for this long [default: 1s; with --sweep: 0.2s]
    #[arg(long, value_name = "SECS", value_parser = options::duration)]
    pub(crate) time: Option<Duration>,

    /// Repeat each measurement this many times, alternating with the others [default: 5; with --sweep: 3]
    #[arg(long, value_name = "N", value_parser = runs)]
    pub(crate) runs: Option<u16>,

    /// Send messages of these sizes there and back, with K or M for powers of 1024 [default: 64]
    #[arg(long, value_name = "SIZE,...", value_parser = size, value_delimiter = ',')]
    pub(crate) size: Vec<u32>,

    /// Use these numbers of streams at a time for bandwidth [default: 1,4]
    #[arg(long, value_name = "N,...", value_parser = streams, value_delimiter = ',')]
    pub(crate) streams: Vec<u16>,
}

/// A value of `--measure`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum MeasureChoice {
    /// Bytes per second.
    Bandwidth,
    /// The time of a message there and back.
    Latency,
    /// The time from dialing to the first byte.
    Connect,
}

/// The pictures of the report of rdperf.
#[derive(Debug, Clone, Args)]
pub(crate) struct PictureArgs {
    /// Draw what was measured between two hosts: throughput, times, and the curves of a sweep
    #[arg(long, value_name = "FILE.svg", conflicts_with_all = ["listen", "check", "pingpong"])]
    pub(crate) plot: Option<PathBuf>,

    /// Write the whole report, with its pictures, as one page
    #[arg(long, value_name = "FILE.html", conflicts_with_all = ["listen", "check", "pingpong"])]
    pub(crate) report: Option<PathBuf>,
}

impl PictureArgs {
    /// Returns true if there is a file to write.
    fn is_wanted(&self) -> bool {
        self.plot.is_some() || self.report.is_some()
    }
}

/// What the operands ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    Hosts(Vec<OsString>),
    /// Compare two reports.
    Diff(PathBuf, PathBuf),
    Draw(PathBuf),
}

impl RdperfArgs {
    pub(crate) fn messages(&self) -> MessageOptions {
        MessageOptions {
            json: self.messages.json.or_stdout(),
            ..self.messages.clone()
        }
    }

    /// Returns what the operands ask for.
    pub(super) fn request(&self) -> Result<Request, String> {
        let operands = self
            .operands
            .iter()
            .map(|operand| operand.text().to_owned());
        let operands: Vec<_> = operands.collect();
        match &operands[..] {
            [] => Err("give at least one host, or the ticket of rdperf --listen".to_owned()),
            [first, ..] if first == "diff" && self.pictures.is_wanted() => {
                Err("diff prints text; rdperf draw makes the pictures of a report".to_owned())
            }
            [first, ..] if first == "draw" && (self.messages.json.is_given() || self.csv) => {
                Err("draw prints nothing: --json and --csv belong to a run with hosts".to_owned())
            }
            [first, report] if first == "draw" && self.pictures.is_wanted() => {
                Ok(Request::Draw(report.into()))
            }
            [first, ..] if first == "draw" => Err(
                "give a report and what to draw: rdperf draw REPORT.json --plot FILE.svg"
                    .to_owned(),
            ),
            [first, ..] if first == "diff" && (self.messages.json.is_given() || self.csv) => {
                Err("diff prints text: --json and --csv belong to a run with hosts".to_owned())
            }
            [first, old, new] if first == "diff" => Ok(Request::Diff(old.into(), new.into())),
            [first, ..] if first == "diff" => {
                Err("give two reports: rdperf diff OLD.json NEW.json".to_owned())
            }
            hosts if self.threshold.is_some() => {
                let given = hosts.len();
                Err(format!(
                    "--threshold belongs to `rdperf diff OLD.json NEW.json`; {given} hosts were given"
                ))
            }
            _ if self.measure.expect.is_some() && !self.measure.wants(MeasureChoice::Bandwidth) => {
                Err("--expect compares the bandwidth, which --measure leaves out".to_owned())
            }
            hosts if self.measure.pingpong && hosts.len() > 2 => {
                Err("--pingpong measures one pair of hosts; give one host, or two".to_owned())
            }
            hosts if self.pictures.plot.is_some() && hosts.len() > 2 => {
                Err("--plot draws one pair of hosts; give one host, or two".to_owned())
            }
            hosts if self.measure.sweep.is_some() && hosts.len() > 2 => {
                Err("--sweep measures one pair of hosts; give one host, or two".to_owned())
            }
            hosts => Ok(Request::Hosts(hosts.to_vec())),
        }
    }

    /// Lets a sweep use RDMA, the only transport that has what it measures.
    /// Fails if the options ask for something else.
    pub(super) fn choose_transport(&mut self) -> Result<(), String> {
        let Some(sweep) = &mut self.measure.sweep else {
            return Ok(());
        };
        if self.stream.transport == TransportPolicy::Tcp {
            return Err("--sweep measures RDMA, which --transport tcp excludes".to_owned());
        }
        if self.measure.measure.contains(&MeasureChoice::Connect) {
            return Err("--sweep measures bandwidth and latency, and no connect".to_owned());
        }
        self.stream.transport = TransportPolicy::Rdma;
        if !self.measure.measure.is_empty() {
            let wants = |choice| self.measure.measure.contains(&choice);
            sweep.measure_only(
                wants(MeasureChoice::Latency),
                wants(MeasureChoice::Bandwidth),
            );
        }
        Ok(())
    }

    /// Returns how this command line measures, a line for each setting.
    pub(super) fn settings(&self) -> Vec<String> {
        let measure = &self.measure;
        let list = |values: Vec<String>| values.join(", ");
        let transport = match self.stream.transport {
            TransportPolicy::Auto => "auto",
            TransportPolicy::Rdma => "rdma",
            TransportPolicy::Tcp => "tcp",
        };
        let mut settings = vec![
            format!(
                "{} runs of each measurement, each of {} ms, in turns",
                measure.runs(),
                measure.millis()
            ),
            format!("transport {transport}, encryption {}", self.stream.encrypt),
        ];
        if measure.sweep.is_none() {
            let sizes = measure
                .sizes()
                .into_iter()
                .map(|size| SizeText(size).to_string());
            let streams = measure.streams().iter().map(ToString::to_string).collect();
            settings.push(format!("messages of {}", list(sizes.collect())));
            settings.push(format!("numbers of streams: {}", list(streams)));
        }
        let stream = [
            (
                "chunk",
                self.stream.chunk.map(|bytes| printable::size(bytes as u64)),
            ),
            ("depth", self.stream.depth.map(|depth| depth.to_string())),
            ("rails", self.stream.rails.map(|rails| rails.to_string())),
        ];
        let given = stream
            .into_iter()
            .filter_map(|(name, value)| Some(format!("{name} {}", value?)));
        settings.extend(given);
        settings
    }

    /// Returns the change that counts, as a part of the old value.
    pub(super) fn threshold(&self) -> f64 {
        self.threshold.unwrap_or(DEFAULT_THRESHOLD) / 100.0
    }
}

impl MeasureArgs {
    /// Returns the time of each run in milliseconds.
    pub(super) fn millis(&self) -> u32 {
        let default = match self.sweep {
            Some(_) => SWEEP_TIME,
            None => DEFAULT_TIME,
        };
        let time = self.time.unwrap_or(default);
        u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
    }

    /// Returns the number of runs of each measurement.
    pub(super) fn runs(&self) -> u16 {
        let default = match self.sweep {
            Some(_) => SWEEP_RUNS,
            None => DEFAULT_RUNS,
        };
        self.runs.unwrap_or(default)
    }

    /// Returns the sizes of messages, each once.
    pub(super) fn sizes(&self) -> Vec<u32> {
        unique(&self.size, &[DEFAULT_SIZE])
    }

    /// Returns the numbers of streams, each once.
    pub(super) fn streams(&self) -> Vec<u16> {
        unique(&self.streams, &DEFAULT_STREAMS)
    }

    /// Returns true if this is to be measured.
    pub(super) fn wants(&self, choice: MeasureChoice) -> bool {
        if self.measure.is_empty() {
            let has_ends = self.read.is_some() || self.write.is_some();
            !has_ends || choice == MeasureChoice::Bandwidth
        } else {
            self.measure.contains(&choice)
        }
    }
}

/// Returns the values that were given, or else the defaults, each once.
fn unique<T: Copy + PartialEq>(given: &[T], defaults: &[T]) -> Vec<T> {
    let values = if given.is_empty() { defaults } else { given };
    let mut unique = Vec::new();
    for &value in values {
        if !unique.contains(&value) {
            unique.push(value);
        }
    }
    unique
}

/// Parses `--runs`.
fn runs(text: &str) -> Result<u16, String> {
    let runs = text.parse().ok().filter(|runs| (1..=1000).contains(runs));
    runs.ok_or_else(|| "give a number of runs from 1 to 1000".to_owned())
}

/// Parses a size of `--size`.
fn size(text: &str) -> Result<u32, String> {
    let bytes = options::size(text)?;
    let size = u32::try_from(bytes).ok();
    let size = size.filter(|size| (1..=MAX_MESSAGE_BYTES).contains(size));
    size.ok_or_else(|| format!("a message has 1 byte to {}M", MAX_MESSAGE_BYTES >> 20))
}

/// Parses a number of `--streams`.
fn streams(text: &str) -> Result<u16, String> {
    let streams = text.parse().ok();
    let streams = streams.filter(|streams| (1..=MAX_TASK_STREAMS).contains(streams));
    streams.ok_or_else(|| format!("give a number of streams from 1 to {MAX_TASK_STREAMS}"))
}

/// Parses `--threshold`.
fn threshold(text: &str) -> Result<f64, String> {
    let percent = text.trim_end_matches('%').parse::<f64>().ok();
    let percent = percent.filter(|percent| (0.0..=1000.0).contains(percent));
    percent.ok_or_else(|| "give a number of percent from 0 to 1000".to_owned())
}

/// A host, and its name in messages and in the report.
pub(super) type NamedPlace = (StageHost, String);

/// The name of this machine in messages and in the report.
const HERE: &str = "here";

/// Returns the hosts of a command line. One host is measured against this machine.
pub(super) fn places(operands: &[OsString]) -> Result<Vec<NamedPlace>, String> {
    let mut places: Vec<NamedPlace> = Vec::new();
    for operand in operands {
        let place = place(operand)?;
        let name = name(&place);
        if places.iter().any(|(_, other)| *other == name) {
            return Err(format!(
                "{name} was given twice; each host can be measured once"
            ));
        }
        places.push((place, name));
    }
    if let [(place, _)] = &places[..] {
        if *place == StageHost::Here {
            return Err("one end is this machine already; give another host".to_owned());
        }
        places.insert(0, (StageHost::Here, HERE.to_owned()));
    }
    Ok(places)
}

/// Returns the two hosts of a run with a ticket: this machine, and the one that listens at this address.
pub(super) fn of_ticket(address: String, port: u16) -> Vec<NamedPlace> {
    let server = StageHost::Server {
        host: address.clone(),
        port,
    };
    vec![(StageHost::Here, HERE.to_owned()), (server, address)]
}

/// Returns the command line of this process, quoted for a shell. A ticket is a secret, and is left out: asterisks have
/// replaced it, unless the system refused that.
pub(super) fn command_line() -> String {
    let words = std::env::args_os().skip(1).map(|word| {
        let word = word.to_string_lossy().into_owned();
        let is_hidden = !word.is_empty() && word.chars().all(|c| c == '*');
        if is_hidden || Ticket::resembles(word.as_bytes()) {
            "TICKET".to_owned()
        } else {
            quote::word(&word)
        }
    });
    let words: Vec<_> = ["rdperf".to_owned()].into_iter().chain(words).collect();
    words.join(" ")
}

fn place(operand: &OsStr) -> Result<StageHost, String> {
    let bytes = operand.as_bytes();
    let shown = operand.to_string_lossy();
    if bytes == b":" {
        return Ok(StageHost::Here);
    }
    if bytes.is_empty() {
        return Err("the name of a host is empty".to_owned());
    }
    // The rest after the colon is empty, so an operand with a colon of its own is a path or a command.
    let segment = [bytes, b":"].concat();
    match StageHost::split(&segment) {
        Ok((place, b"")) => Ok(place),
        Ok(_) => Err(format!(
            "{shown}: give a host without a path or a port, as [user@]HOST"
        )),
        Err(fault) => Err(format!("{shown}: {fault}")),
    }
}

fn name(place: &StageHost) -> String {
    place.host().unwrap_or(HERE).to_owned()
}

/// Returns the index of the host that a value of `--read` or `--write` names, and the path there.
pub(super) fn path_at(
    value: &OsStr,
    places: &[NamedPlace],
    default: usize,
) -> Result<(usize, Vec<u8>), String> {
    let bytes = value.as_bytes();
    let first = bytes.iter().position(|byte| matches!(byte, b':' | b'/'));
    let (host, path) = match first {
        Some(at) if bytes[at] == b':' => {
            let (place, path) = StageHost::split(bytes).map_err(|fault| fault.to_string())?;
            let name = name(&place);
            let host = places.iter().position(|(_, other)| *other == name);
            let host = host.ok_or_else(|| format!("{name} is not one of the hosts of this run"))?;
            (host, path)
        }
        _ => (default, bytes),
    };
    if path.is_empty() {
        return Err("there is no path after the colon".to_owned());
    }
    Ok((host, path.to_vec()))
}

#[cfg(test)]
pub(super) mod tests {
    use clap::CommandFactory;

    use super::*;

    pub(crate) fn parse(words: &[&str]) -> Result<RdperfArgs, clap::Error> {
        RdperfArgs::try_parse_from([&["rdperf"], words].concat())
    }

    #[test]
    fn operands_are_hosts_or_two_reports() {
        let request = |words: &[&str]| parse(words).unwrap().request();
        assert_eq!(
            request(&["fs1", ":"]),
            Ok(Request::Hosts(vec!["fs1".into(), ":".into()]))
        );
        assert_eq!(
            request(&["diff", "a", "b", "--threshold", "7.5%"]),
            Ok(Request::Diff("a".into(), "b".into()))
        );
        assert!(request(&["diff", "a"]).unwrap_err().contains("two reports"));
        let wrong = request(&["diff", "a", "b", "--json"]).unwrap_err();
        assert!(wrong.contains("--json"));
        assert_eq!(
            request(&["draw", "a", "--plot", "b"]),
            Ok(Request::Draw("a".into()))
        );
        let wrong = request(&["draw", "a"]).unwrap_err();
        assert!(wrong.contains("what to draw"));
        let wrong = request(&["diff", "a", "b", "--plot=c"]).unwrap_err();
        assert!(wrong.contains("rdperf draw"));
        let wrong = request(&["a", "b", "c", "--plot=d"]).unwrap_err();
        assert!(wrong.contains("one pair"));
        let wrong = request(&["--pingpong", "a", "b", "c"]).unwrap_err();
        assert!(wrong.contains("one pair"));
        let wrong = request(&["fs1", "--threshold=3"]).unwrap_err();
        assert!(wrong.contains("--threshold belongs to"));
        assert!((parse(&["diff", "a", "b"]).unwrap().threshold() - 0.05).abs() < 1e-9);
    }

    #[test]
    fn the_defaults_are_those_of_the_help() {
        let measure = parse(&["fs1"]).unwrap().measure;
        assert_eq!((measure.millis(), measure.runs()), (1000, 5));
        assert_eq!(measure.sizes(), [64]);
        assert_eq!(measure.streams(), [1, 4]);
        let help = RdperfArgs::command().render_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for text in [
            "[default: 1s; with --sweep: 0.2s]",
            "[default: 5; with --sweep: 3]",
            "[default: 64]",
            "[default: 1,4]",
        ] {
            assert!(help.contains(text), "{text}");
        }
    }

    #[test]
    fn lists_have_each_value_once() {
        let measure = parse(&["h", "--size=1K,64,1024", "--streams", "8,1,8"])
            .unwrap()
            .measure;
        assert_eq!(measure.sizes(), [1024, 64]);
        assert_eq!(measure.streams(), [8, 1]);
    }

    #[test]
    fn only_what_is_asked_for_is_measured() {
        use MeasureChoice::{Bandwidth, Connect, Latency};
        let wants = |words: &[&str]| {
            let measure = parse(words).unwrap().measure;
            [Bandwidth, Latency, Connect].map(|choice| measure.wants(choice))
        };
        assert_eq!(wants(&["h"]), [true; 3]);
        assert_eq!(
            wants(&["h", "--measure=latency,connect"]),
            [false, true, true]
        );
        assert_eq!(wants(&["h", "--read", "/dev/zero"]), [true, false, false]);
    }

    #[test]
    fn a_sweep_uses_rdma() {
        let mut args = parse(&["h", "--sweep", "verb", "--measure=bandwidth"]).unwrap();
        assert_eq!((args.measure.millis(), args.measure.runs()), (200, 3));
        assert_eq!(args.choose_transport(), Ok(()));
        let policy = args.stream.transport;
        assert_eq!(policy, TransportPolicy::Rdma);
        let error = |words: &[&str]| {
            let mut args = parse(words).unwrap();
            args.choose_transport()
                .and_then(|()| args.request().map(drop))
        };
        let tcp = error(&["h", "--sweep=verb", "--transport=tcp"]).unwrap_err();
        assert!(tcp.contains("--transport tcp"));
        let connect = error(&["h", "--sweep=verb", "--measure=connect"]).unwrap_err();
        assert!(connect.contains("no connect"));
        let many = error(&["a", "b", "c", "--sweep=verb"]).unwrap_err();
        assert!(many.contains("one pair"));
    }

    #[test]
    fn wrong_use_is_a_usage_error() {
        assert!(parse(&[]).unwrap().request().is_err());
        for words in [
            &["h", "--size", "0"][..],
            &["h", "--size", "17M"],
            &["h", "--streams", "0"],
            &["h", "--streams", "65"],
            &["h", "--runs", "0"],
            &["h", "--time", "0"],
            &["h", "--measure", "speed"],
            &["h", "--check", "--read", "/x"],
            &["h", "--pingpong", "--json"],
            &["h", "--json", "--csv"],
            &["h", "--listen"],
            &["h", "--sweep", "verbs"],
            &["h", "--sweep=verb", "--size=64"],
            &["h", "--sweep=verb", "--check"],
            &["h", "-v", "-q"],
            &["--listen", "--runs", "3"],
            &["diff", "a", "b", "--threshold", "-1"],
        ] {
            assert_eq!(parse(words).unwrap_err().exit_code(), 2, "{words:?}");
        }
    }

    fn names(operands: &[&str]) -> Result<Vec<String>, String> {
        let operands: Vec<_> = operands.iter().map(OsString::from).collect();
        let places = places(&operands)?;
        Ok(places.into_iter().map(|(_, name)| name).collect())
    }

    #[test]
    fn one_host_is_measured_against_this_machine() {
        assert_eq!(names(&["fs1"]).unwrap(), ["here", "fs1"]);
        assert_eq!(names(&["me@fs1", "fs2"]).unwrap(), ["fs1", "fs2"]);
        assert_eq!(
            names(&["fs1", ":", "[fe80::1%eth0]"]).unwrap(),
            ["fs1", "here", "fe80::1%eth0"]
        );
    }

    #[test]
    fn wrong_hosts_get_a_sentence() {
        for (operands, sentence) in [
            (&[":"][..], "this machine already"),
            (&["a", "a"], "given twice"),
            (&["a", "me@a"], "given twice"),
            (&["a:b"], "without a path"),
            (&["a:"], "without a path"),
            (&[""], "empty"),
            (&["two words"], "not a valid name"),
        ] {
            let error = names(operands).unwrap_err();
            assert!(error.contains(sentence), "{operands:?}: {error}");
        }
    }

    #[test]
    fn a_path_is_at_one_of_the_hosts() {
        let operands: Vec<_> = ["fs1", ":"].iter().map(OsString::from).collect();
        let places = places(&operands).unwrap();
        let at = |value: &str| path_at(OsStr::new(value), &places, 1);
        assert_eq!(at("/data"), Ok((1, b"/data".to_vec())));
        assert_eq!(at("./a:b"), Ok((1, b"./a:b".to_vec())));
        assert_eq!(at("fs1:~/x"), Ok((0, b"~/x".to_vec())));
        assert_eq!(at(":x"), Ok((1, b"x".to_vec())));
        assert!(at("fs2:x").unwrap_err().contains("not one of the hosts"));
        assert!(at("fs1:").unwrap_err().contains("no path"));
    }
}
