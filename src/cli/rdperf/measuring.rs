//! The measurements of a run: what is measured between two hosts, TCP beside RDMA, in alternating runs.

use super::{
    args::{MeasureArgs, MeasureChoice},
    hosts::{Coordinator, PairTask, RunContext, TaskError},
    sweep::{Sweep, planned},
};
use crate::{
    Transport, TransportPolicy,
    perf::{
        messages::{PortPairProof, StorageTask, Traffic, WaitMode},
        report::{
            measurand::{Carrier, FigureName, Measurand, Operations},
            name,
            series::{Sample, Series},
        },
    },
};

/// Two hosts that were checked, and what works between them.
#[derive(Debug, Clone)]
pub(super) struct MeasuredPair {
    /// The index of the host that dials.
    pub(super) dialer: usize,
    /// The index of the host that listens.
    pub(super) listener: usize,
    /// The transports that work between the two.
    pub(super) media: Vec<Transport>,
    /// The best RDMA ports that reach each other.
    pub(super) ports: Option<PortPairProof>,
}

/// A file or a directory that is measured.
#[derive(Debug, Clone)]
pub(super) struct MeasuredPath {
    pub(super) host: usize,
    pub(super) path: Vec<u8>,
    pub(super) is_written: bool,
}

/// One measurement of a run, and its runs so far.
struct PlannedSeries {
    series: Series,
    place: usize,
    step: Step,
    has_failed: bool,
}

/// What one run of a measurement consists of.
enum Step {
    Pair {
        dialer: usize,
        listener: usize,
        ports: Option<PortPairProof>,
    },
    Storage(usize, Vec<u8>),
}

/// Measures all pairs and paths. Returns the series, and adds what failed to `failures`.
pub(super) async fn measure(
    coordinator: &mut Coordinator,
    context: &RunContext<'_>,
    pairs: &[MeasuredPair],
    paths: &[MeasuredPath],
    failures: &mut Vec<(bool, String)>,
) -> Vec<Series> {
    let depth = if pairs.len() > 1 {
        Depth::Matrix
    } else {
        Depth::Full
    };
    let mut planned = Vec::new();
    for path in paths {
        planned.push(of_path(coordinator, path, planned.len()));
    }
    for pair in pairs {
        let whats = match &context.args.measure.sweep {
            None => {
                let rails = rails(coordinator, context, pair);
                measurands(&context.args.measure, depth, &pair.media, &rails)
            }
            Some(sweep) => sweep_measurands(sweep, pair, context, failures),
        };
        let first = planned.len();
        let of_pair = whats.into_iter().enumerate();
        let of_pair =
            of_pair.map(|(index, what)| of_pair_at(coordinator, pair, first + index, what));
        let mut of_pair: Vec<_> = of_pair.collect();
        // TCP and RDMA take turns, so a machine that slows down slows both down.
        of_pair.sort_by_cached_key(|planned| turn(&planned.series.what));
        planned.extend(of_pair);
    }
    let runs = u64::from(context.args.measure.runs());
    let count = planned.len() as u64;
    'runs: for run in 0..runs {
        for (index, planned) in (0..).zip(&mut planned) {
            let name = name(&planned.series);
            let current = format!("run {} of {runs}: {name}", run + 1);
            context
                .steps
                .set(run * count + index, runs * count, current);
            if planned.has_failed {
                continue;
            }
            match one_run(coordinator, context, planned).await {
                Ok(sample) => {
                    context.tell_sample(&name, &planned.series.what, &sample);
                    planned.series.runs.push(sample);
                }
                Err(_) if coordinator.is_interrupted() => break 'runs,
                Err(failure) => {
                    planned.has_failed = true;
                    if let Some((is_local, text)) = failure {
                        let text = format!("{name}: {text}");
                        context.console.error(&text);
                        failures.push((is_local, text));
                    }
                }
            }
        }
    }
    planned.retain(|planned| !planned.series.runs.is_empty());
    planned.sort_by_key(|planned| planned.place);
    planned.into_iter().map(|planned| planned.series).collect()
}

/// The numbers of rails that are compared with one.
const RAILS: [u8; 3] = [2, 4, 8];

/// Returns the numbers of rails to measure: up to the number of processors of the host that has fewer. None if the user
/// has chosen a number.
fn rails(coordinator: &Coordinator, context: &RunContext<'_>, pair: &MeasuredPair) -> Vec<u8> {
    if context.args.stream.rails.is_some() {
        return Vec::new();
    }
    let hosts = [pair.dialer, pair.listener].into_iter();
    let processors = hosts.map(|host| {
        let facts = coordinator.hosts.facts(host);
        facts.map_or(1, |facts| facts.processors)
    });
    let fewest = processors.min().unwrap_or(1);
    let rails = RAILS.into_iter();
    rails.filter(|rails| u32::from(*rails) <= fewest).collect()
}

/// Returns what a sweep measures between two hosts. What their devices cannot do is added to `failures`.
fn sweep_measurands(
    sweep: &Sweep,
    pair: &MeasuredPair,
    context: &RunContext<'_>,
    failures: &mut Vec<(bool, String)>,
) -> Vec<Measurand> {
    let limits = pair.ports.as_ref().and_then(|ports| ports.limits);
    let Some(limits) = limits else {
        let text = "the devices do not tell what they can do".to_owned();
        context.console.error(&text);
        failures.push((true, text));
        return Vec::new();
    };
    let plan = planned(sweep, limits);
    for note in plan.notes {
        context.console.note(&note);
    }
    for text in plan.refused {
        context.console.error(&text);
        failures.push((true, text));
    }
    let points = plan.points.into_iter();
    points.map(Measurand::Operations).collect()
}

/// Returns the key that brings measurements together that are compared: of TCP and RDMA, or of one size.
fn turn(what: &Measurand) -> (u8, u32, String, Option<Transport>) {
    let (class, size) = match what {
        Measurand::Bandwidth { .. } => (0, 0),
        Measurand::Latency { .. } => (1, 0),
        Measurand::Operations(Operations { figure, size, .. }) => {
            (2 + u8::from(*figure == FigureName::Rate), *size)
        }
        _ => (4, 0),
    };
    (class, size, what.to_string(), what.transport())
}

fn of_pair_at(
    coordinator: &Coordinator,
    pair: &MeasuredPair,
    place: usize,
    what: Measurand,
) -> PlannedSeries {
    PlannedSeries {
        series: Series {
            from: coordinator.hosts.name(pair.dialer).to_owned(),
            to: Some(coordinator.hosts.name(pair.listener).to_owned()),
            what,
            runs: Vec::new(),
        },
        place,
        step: Step::Pair {
            dialer: pair.dialer,
            listener: pair.listener,
            ports: pair.ports.clone(),
        },
        has_failed: false,
    }
}

fn of_path(coordinator: &Coordinator, path: &MeasuredPath, place: usize) -> PlannedSeries {
    let text = String::from_utf8_lossy(&path.path).into_owned();
    PlannedSeries {
        series: Series {
            from: coordinator.hosts.name(path.host).to_owned(),
            to: None,
            what: if path.is_written {
                Measurand::Write { path: text }
            } else {
                Measurand::Read { path: text }
            },
            runs: Vec::new(),
        },
        place,
        step: Step::Storage(path.host, path.path.clone()),
        has_failed: false,
    }
}

/// Measures once. Fails with a sentence, and true if a file is the cause and no connection; or with none if a host is
/// lost, which is printed once.
async fn one_run(
    coordinator: &mut Coordinator,
    context: &RunContext<'_>,
    planned: &PlannedSeries,
) -> Result<Sample, Option<(bool, String)>> {
    let millis = context.args.measure.millis();
    let what = &planned.series.what;
    match &planned.step {
        Step::Storage(host, path) => {
            let path = path.clone();
            let task = match what {
                Measurand::Write { .. } => StorageTask::Write { path, millis },
                _ => StorageTask::Read { path, millis },
            };
            let result = coordinator.storage(*host, task).await;
            // The name of the measurement begins with that of the host.
            let result = result.map_err(|failure| match failure {
                TaskError::Lost(_) => None,
                TaskError::Failed(_, fault) => Some((true, fault.text)),
            })?;
            Sample::of_storage(&result).map_err(|text| Some((false, text)))
        }
        Step::Pair {
            dialer,
            listener,
            ports,
        } => {
            let kind = what.task(millis, ports.as_ref());
            let kind =
                kind.ok_or_else(|| Some((false, "there is no such measurement".to_owned())))?;
            let task = PairTask {
                dialer: *dialer,
                listener: *listener,
                transport: match what.transport() {
                    Some(Transport::Rdma) => TransportPolicy::Rdma,
                    _ => TransportPolicy::Tcp,
                },
                kind,
            };
            let result = coordinator.run(&task).await;
            let result = result.map_err(|failure| match failure {
                TaskError::Lost(_) => None,
                TaskError::Failed(..) => Some((false, coordinator.text(&failure))),
            })?;
            Sample::of(&result.dialer, &result.listener).map_err(|text| Some((false, text)))
        }
    }
}

/// The size of an operation of raw verbs: that of a chunk, and that of `ib_write_bw` with its default is a part of it.
const OPERATION_BYTES: u32 = 1 << 20;

/// How many of the measurements are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// All: of a pair of hosts.
    Full,
    /// Those that fill a matrix: of many pairs.
    Matrix,
}

/// Returns what is measured between two hosts, in the order of the report. `media` are the transports that work between
/// them, and `rails` the numbers of rails that one stream over TCP has beside one.
pub(super) fn measurands(
    args: &MeasureArgs,
    depth: Depth,
    media: &[Transport],
    rails: &[u8],
) -> Vec<Measurand> {
    let mut measurands = Vec::new();
    for &medium in media {
        if args.wants(MeasureChoice::Bandwidth) {
            measurands.extend(bandwidths(args, depth, medium, rails));
        }
    }
    for &medium in media {
        if args.wants(MeasureChoice::Latency) {
            for size in args.sizes() {
                measurands.extend(latencies(size, depth, medium));
            }
        }
    }
    if args.wants(MeasureChoice::Connect) && depth == Depth::Full {
        let connect = |&transport: &Transport| Measurand::Connect { transport };
        measurands.extend(media.iter().map(connect));
    }
    measurands
}

fn bandwidths(
    args: &MeasureArgs,
    depth: Depth,
    transport: Transport,
    rails: &[u8],
) -> Vec<Measurand> {
    let of = |carrier, traffic, streams, size| Measurand::Bandwidth {
        carrier,
        transport,
        traffic,
        streams,
        rails: None,
        size,
    };
    let stream = |traffic, streams| of(Carrier::Stream, traffic, streams, None);
    let mut measurands = Vec::new();
    for (index, streams) in args.streams().into_iter().enumerate() {
        measurands.push(stream(Traffic::Forward, streams));
        // The other directions are measured with one number of streams only.
        if index == 0 {
            measurands.push(stream(Traffic::Backward, streams));
            if depth == Depth::Full {
                measurands.push(stream(Traffic::Both, streams));
            }
        }
        if (streams, depth, transport) == (1, Depth::Full, Transport::Tcp) {
            let of_rails = |&rails: &u8| Measurand::Bandwidth {
                carrier: Carrier::Stream,
                transport,
                traffic: Traffic::Forward,
                streams,
                rails: Some(rails),
                size: None,
            };
            measurands.extend(rails.iter().map(of_rails));
        }
        if depth == Depth::Matrix {
            break;
        }
    }
    if depth == Depth::Full {
        measurands.push(match transport {
            Transport::Tcp => of(Carrier::Socket, Traffic::Forward, 1, None),
            Transport::Rdma => {
                let size = Some(OPERATION_BYTES);
                of(Carrier::Write, Traffic::Forward, 1, size)
            }
        });
    }
    measurands
}

fn latencies(size: u32, depth: Depth, transport: Transport) -> Vec<Measurand> {
    let of = |carrier, wait| Measurand::Latency {
        carrier,
        transport,
        wait,
        size,
    };
    let all = match transport {
        // The settings of polling have no effect on a stream over TCP.
        Transport::Tcp => vec![
            of(Carrier::Stream, WaitMode::Adaptive),
            of(Carrier::Socket, WaitMode::Event),
            of(Carrier::Socket, WaitMode::Busy),
        ],
        Transport::Rdma => vec![
            of(Carrier::Stream, WaitMode::Adaptive),
            of(Carrier::Stream, WaitMode::Event),
            of(Carrier::Stream, WaitMode::Busy),
            of(Carrier::Send, WaitMode::Event),
            of(Carrier::Send, WaitMode::Busy),
            of(Carrier::Write, WaitMode::Busy),
        ],
    };
    match depth {
        Depth::Full => all,
        Depth::Matrix => all[..1].to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::args::tests::parse, *};

    fn names(words: &[&str], depth: Depth, media: &[Transport]) -> Vec<String> {
        let args = parse(words).unwrap().measure;
        let name = |what: &Measurand| {
            let medium = what.transport().map(|medium| medium.to_string());
            format!("{} {what}", medium.unwrap_or_default())
        };
        let measurands = measurands(&args, depth, media, &[2, 4]);
        measurands.iter().map(name).collect()
    }

    #[test]
    fn a_pair_is_measured_in_full() {
        let names = names(
            &["h", "--streams=1,4"],
            Depth::Full,
            &[Transport::Tcp, Transport::Rdma],
        );
        let expected = [
            "TCP stream, one way",
            "TCP stream, the other way",
            "TCP stream, both ways",
            "TCP stream of 2 rails, one way",
            "TCP stream of 4 rails, one way",
            "TCP 4 streams, one way",
            "TCP socket, one way",
            "RDMA stream, one way",
            "RDMA stream, the other way",
            "RDMA stream, both ways",
            "RDMA 4 streams, one way",
            "RDMA verbs WRITE of 1 MiB, one way",
            "TCP 64 B, stream",
            "TCP 64 B, socket, events",
            "TCP 64 B, socket, busy",
            "RDMA 64 B, stream",
            "RDMA 64 B, stream, events",
            "RDMA 64 B, stream, busy",
            "RDMA 64 B, verbs SEND, events",
            "RDMA 64 B, verbs SEND, busy",
            "RDMA 64 B, verbs WRITE, busy",
            "TCP connect",
            "RDMA connect",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_matrix_needs_one_figure_for_each_direction() {
        let names = names(&["h"], Depth::Matrix, &[Transport::Tcp]);
        assert_eq!(
            names,
            [
                "TCP stream, one way",
                "TCP stream, the other way",
                "TCP 64 B, stream"
            ]
        );
    }

    #[test]
    fn only_what_was_asked_for_is_measured() {
        let line = ["h", "--measure=latency", "--size=1,4K"];
        assert_eq!(
            names(&line, Depth::Matrix, &[Transport::Tcp]),
            ["TCP 1 B, stream", "TCP 4 KiB, stream"]
        );
        let line = ["h", "--measure=connect"];
        assert_eq!(
            names(&line, Depth::Full, &[Transport::Rdma]),
            ["RDMA connect"]
        );
    }
}
