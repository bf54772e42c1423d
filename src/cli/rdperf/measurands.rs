//! What is measured between two hosts. Pure, no I/O.

use super::args::{MeasureArgs, MeasureChoice};
use crate::perf::report::{
    host_summary::WaitName,
    measurand::{Carrier, Measurand, Medium, TrafficName},
};

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
/// them.
pub(super) fn measurands(args: &MeasureArgs, depth: Depth, media: &[Medium]) -> Vec<Measurand> {
    let mut measurands = Vec::new();
    for &medium in media {
        if args.wants(MeasureChoice::Bandwidth) {
            measurands.extend(bandwidths(args, depth, medium));
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
        let connect = |&transport: &Medium| Measurand::Connect { transport };
        measurands.extend(media.iter().map(connect));
    }
    measurands
}

fn bandwidths(args: &MeasureArgs, depth: Depth, transport: Medium) -> Vec<Measurand> {
    let of = |carrier, traffic, streams, size| Measurand::Bandwidth {
        carrier,
        transport,
        traffic,
        streams,
        size,
    };
    let stream = |traffic, streams| of(Carrier::Stream, traffic, streams, None);
    let mut measurands = Vec::new();
    for (index, streams) in args.streams().into_iter().enumerate() {
        measurands.push(stream(TrafficName::Forward, streams));
        // The other directions are measured with one number of streams only.
        if index == 0 {
            measurands.push(stream(TrafficName::Backward, streams));
            if depth == Depth::Full {
                measurands.push(stream(TrafficName::Both, streams));
            }
        }
        if depth == Depth::Matrix {
            break;
        }
    }
    if depth == Depth::Full {
        measurands.push(match transport {
            Medium::Tcp => of(Carrier::Socket, TrafficName::Forward, 1, None),
            Medium::Rdma => {
                let size = Some(OPERATION_BYTES);
                of(Carrier::Write, TrafficName::Forward, 1, size)
            }
        });
    }
    measurands
}

fn latencies(size: u32, depth: Depth, transport: Medium) -> Vec<Measurand> {
    let of = |carrier, wait| Measurand::Latency {
        carrier,
        transport,
        wait,
        size,
    };
    let all = match transport {
        // The settings of polling have no effect on a stream over TCP.
        Medium::Tcp => vec![
            of(Carrier::Stream, WaitName::Adaptive),
            of(Carrier::Socket, WaitName::Event),
            of(Carrier::Socket, WaitName::Busy),
        ],
        Medium::Rdma => vec![
            of(Carrier::Stream, WaitName::Adaptive),
            of(Carrier::Stream, WaitName::Event),
            of(Carrier::Stream, WaitName::Busy),
            of(Carrier::Send, WaitName::Event),
            of(Carrier::Send, WaitName::Busy),
            of(Carrier::Write, WaitName::Busy),
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

    fn names(words: &[&str], depth: Depth, media: &[Medium]) -> Vec<String> {
        let args = parse(words).unwrap().measure;
        let name = |what: &Measurand| {
            let medium = what.medium().map(|medium| medium.to_string());
            format!("{} {what}", medium.unwrap_or_default())
        };
        measurands(&args, depth, media).iter().map(name).collect()
    }

    #[test]
    fn a_pair_is_measured_in_full() {
        let names = names(
            &["h", "--streams=1,4"],
            Depth::Full,
            &[Medium::Tcp, Medium::Rdma],
        );
        let expected = [
            "TCP stream, one way",
            "TCP stream, the other way",
            "TCP stream, both ways",
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
        let names = names(&["h"], Depth::Matrix, &[Medium::Tcp]);
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
            names(&line, Depth::Matrix, &[Medium::Tcp]),
            ["TCP 1 B, stream", "TCP 4 KiB, stream"]
        );
        let line = ["h", "--measure=connect"];
        assert_eq!(names(&line, Depth::Full, &[Medium::Rdma]), ["RDMA connect"]);
    }
}
