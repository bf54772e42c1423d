//! The table of round trips per second: over TCP and RDMA, on this machine and over the network.

use super::{
    args::NamedPlace,
    hosts::{Coordinator, PairTask, RunContext, TaskError},
};
use crate::{
    Transport, TransportPolicy,
    cli::shared::table::TextTable,
    perf::{
        messages::{PortPairProof, TaskKind, TaskResult, WaitMode},
        report::{
            measurand::{Carrier, Measurand},
            series::{Sample, median},
        },
    },
};

/// The name of the second agent on the first host.
const SECOND: &str = "localhost";

/// The index of the host that dials.
const FIRST: usize = 0;

/// A row of the table.
#[derive(Debug, Clone)]
pub(super) struct PingPongRow {
    place: &'static str,
    medium: Transport,
    /// Round trips per second and the mean in microseconds; none if it could not be measured.
    figures: Option<(f64, f64)>,
}

/// Returns the first two hosts, and a second agent on the first one, for the rows of localhost.
pub(super) fn places(places: Vec<NamedPlace>) -> Vec<NamedPlace> {
    let mut places = places;
    places.truncate(2);
    let first = places.first().map(|(place, _)| place.clone());
    places.extend(first.map(|place| (place, SECOND.to_owned())));
    places
}

/// Measures the rows of the table, TCP and RDMA in alternating runs. Adds what failed to `failures`.
pub(super) async fn measure(
    coordinator: &mut Coordinator,
    context: &RunContext<'_>,
    failures: &mut Vec<(bool, String)>,
) -> Vec<PingPongRow> {
    let mut rows = Vec::new();
    for (place, listener) in [("localhost", 2), ("network", 1)] {
        let ports = ports(coordinator, FIRST, listener).await;
        if coordinator.is_interrupted() {
            return rows;
        }
        if let Err((is_failure, why)) = &ports {
            let text = format!("{place}, {}: {why}", Transport::Rdma);
            if *is_failure {
                context.console.error(&text);
                failures.push((false, text));
            } else {
                context.console.note(&text);
            }
        }
        let ports = ports.ok();
        let mut samples: [Vec<Sample>; 2] = Default::default();
        for run in 0..context.args.measure.runs() {
            context.steps.begin(&format!("{place}, run {}", run + 1));
            for (index, medium) in [Transport::Tcp, Transport::Rdma].into_iter().enumerate() {
                if medium == Transport::Rdma && ports.is_none() {
                    continue;
                }
                let size = context.args.measure.sizes()[0];
                let hosts = (FIRST, listener);
                let result = one(coordinator, context, hosts, medium, size, ports.as_ref()).await;
                // What a signal has cut short is no result, and no error either.
                if coordinator.is_interrupted() {
                    return rows;
                }
                match result {
                    Ok(sample) => samples[index].push(sample),
                    // The error of a lost host is printed at the end of the run.
                    Err(None) => {}
                    Err(Some(text)) => {
                        let text = format!("{place}, {medium}: {text}");
                        if !failures.iter().any(|(_, other)| *other == text) {
                            context.console.error(&text);
                            failures.push((false, text));
                        }
                    }
                }
            }
        }
        for (medium, samples) in [Transport::Tcp, Transport::Rdma].into_iter().zip(samples) {
            let trips = median(samples.iter().filter_map(|sample| sample.trips_per_second));
            let average = median(samples.iter().filter_map(|sample| sample.average_us));
            rows.push(PingPongRow {
                place,
                medium,
                figures: trips.zip(average),
            });
        }
    }
    rows
}

/// Returns the best pair of RDMA ports of two hosts that reach each other.
/// The error is the reason why there is none, and true if that is a failure: hosts without RDMA are none.
async fn ports(
    coordinator: &mut Coordinator,
    dialer: usize,
    listener: usize,
) -> Result<PortPairProof, (bool, String)> {
    for host in [dialer, listener] {
        let facts = coordinator.hosts.facts(host);
        if let Some(why) = facts.and_then(|facts| facts.no_rdma.as_ref()) {
            return Err((false, format!("{}: {why}", coordinator.hosts.name(host))));
        }
    }
    let task = PairTask {
        dialer,
        listener,
        transport: TransportPolicy::Tcp,
        kind: TaskKind::Ports,
    };
    let result = coordinator.run(&task).await;
    let result = result.map_err(|failure| (true, coordinator.text(&failure)))?;
    let found = match result.dialer {
        TaskResult::Ports(proofs) => proofs.into_iter().find(PortPairProof::works),
        _ => None,
    };
    found.ok_or_else(|| {
        let text = "no message crosses the hosts' RDMA ports; see what rdperf --check finds";
        (true, text.to_owned())
    })
}

/// Measures once. Fails with a sentence, or with none if a host is lost.
async fn one(
    coordinator: &mut Coordinator,
    context: &RunContext<'_>,
    (dialer, listener): (usize, usize),
    transport: Transport,
    size: u32,
    ports: Option<&PortPairProof>,
) -> Result<Sample, Option<String>> {
    // As in the table's original: a plain socket, and RDMA WRITE into memory that the other end polls.
    let what = match transport {
        Transport::Tcp => (Carrier::Socket, WaitMode::Event),
        Transport::Rdma => (Carrier::Write, WaitMode::Busy),
    };
    let what = Measurand::Latency {
        carrier: what.0,
        transport,
        wait: what.1,
        size,
    };
    let kind = what.task(context.args.measure.millis(), ports);
    let task = PairTask {
        dialer,
        listener,
        transport: TransportPolicy::Tcp,
        kind: kind.ok_or_else(|| Some("there is no such measurement".to_owned()))?,
    };
    let result = match coordinator.run(&task).await {
        Ok(result) => result,
        Err(TaskError::Lost(_)) => return Err(None),
        Err(failure) => return Err(Some(coordinator.text(&failure))),
    };
    Sample::of(&result.dialer, &result.listener).map_err(Some)
}

/// Returns the table as text.
pub(super) fn lines(rows: &[PingPongRow]) -> Vec<String> {
    let heading = ["Where", "What", "RoundTrips / second", "avg. latency in µs"];
    let mut table = TextTable::new(&[0, 1], heading);
    for row in rows {
        let figures = match row.figures {
            Some((trips, average)) => [grouped(trips), format!("{average:.2}")],
            None => ["-", "-"].map(str::to_owned),
        };
        let mut cells = vec![row.place.to_owned(), row.medium.to_string()];
        cells.extend(figures);
        table.rows.push(cells);
    }
    table.markdown()
}

/// Returns a whole number with commas between groups of three digits.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_form_of_its_original() {
        let row = |place, medium, figures| PingPongRow {
            place,
            medium,
            figures,
        };
        let rows = [
            row("localhost", Transport::Tcp, Some((81_781.2, 12.228))),
            row("localhost", Transport::Rdma, Some((472_415.0, 2.12))),
            row("network", Transport::Tcp, Some((999.0, 1001.0))),
            row("network", Transport::Rdma, None),
        ];
        let expected = [
            "| Where     | What | RoundTrips / second | avg. latency in µs |",
            "| --------- | ---- | ------------------: | -----------------: |",
            "| localhost | TCP  |              81,781 |              12.23 |",
            "| localhost | RDMA |             472,415 |               2.12 |",
            "| network   | TCP  |                 999 |            1001.00 |",
            "| network   | RDMA |                   - |                  - |",
        ];
        assert_eq!(lines(&rows), expected);
    }
}
