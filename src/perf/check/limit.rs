//! What limits a transfer from one host to another. Pure, no I/O.

use super::amounts::{rate, share};

/// The part of a port's rate that headers leave for bytes, and that a transfer at the limit of the port reaches.
const PORT_SHARE: f64 = 0.85;

/// The part of a processor from which on a transfer is limited by it.
const BUSY_SHARE: f64 = 0.9;

/// The part of the rate of raw verbs that a stream at the limit of the link reaches.
const RAW_SHARE: f64 = 0.9;

/// The rates of a transfer and of its parts, in bytes per second. What was not measured is none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TransferRates<'a> {
    /// The name of the end that sends.
    pub(crate) source: &'a str,
    /// The name of the end that receives.
    pub(crate) sink: &'a str,
    /// What a stream carries from memory to memory.
    pub(crate) stream: f64,
    /// What raw verbs carry; over TCP, what a socket carries.
    pub(crate) raw: Option<f64>,
    /// The rate of the slower port or interface in Mbit/s, if it is to be believed: not of software devices.
    pub(crate) port_mbps: Option<u32>,
    /// What the source reads.
    pub(crate) source_read: Option<f64>,
    /// What the sink writes.
    pub(crate) sink_write: Option<f64>,
    /// The processors that the end that sends keeps busy: 1.0 is one processor.
    pub(crate) source_processors: Option<f64>,
    /// The processors that the end that receives keeps busy.
    pub(crate) sink_processors: Option<f64>,
}

/// Returns the verdict, one sentence: what of all parts is the slowest, and how it compares with the others.
pub(crate) fn limit(rates: &TransferRates<'_>) -> String {
    let source = rates
        .source_read
        .map(|rate| (format!("disk of {}", rates.source), rate));
    let sink = rates
        .sink_write
        .map(|rate| (format!("disk of {}", rates.sink), rate));
    let slowest = [source, sink]
        .into_iter()
        .flatten()
        .min_by(|a, b| a.1.total_cmp(&b.1));
    match slowest {
        Some((disk, read)) if read < rates.stream => format!(
            "{disk}: {}, network {}: the disk is the limit",
            rate(read),
            rate(rates.stream)
        ),
        Some((disk, read)) => format!(
            "network {}, {disk} {}: {}",
            rate(rates.stream),
            rate(read),
            network(rates)
        ),
        None => format!("network {}: {}", rate(rates.stream), network(rates)),
    }
}

/// Returns what limits the network.
fn network(rates: &TransferRates<'_>) -> String {
    if let Some(port) = rates.port_mbps.filter(|port| *port > 0) {
        let whole = f64::from(port) * 1e6 / 8.0;
        if rates.stream >= PORT_SHARE * whole {
            let part = share(rates.stream / whole);
            return format!("the port is the limit, {part} of its {}", rate(whole));
        }
    }
    let busy = [
        (rates.source, rates.source_processors),
        (rates.sink, rates.sink_processors),
    ];
    let busy = busy
        .into_iter()
        .filter_map(|(host, used)| Some((host, used?)))
        .filter(|(_, used)| *used >= BUSY_SHARE)
        .max_by(|a, b| a.1.total_cmp(&b.1));
    if let Some((host, used)) = busy {
        return format!(
            "the processor of {host} is the limit ({} of one)",
            share(used)
        );
    }
    match rates.raw.filter(|raw| *raw > 0.0) {
        Some(raw) if rates.stream < RAW_SHARE * raw => format!(
            "the stream is the limit, {} of the {} that the link carries",
            share(rates.stream / raw),
            rate(raw)
        ),
        // Two measurements of the same link differ.
        Some(raw) => format!(
            "the link is the limit, it carries {}",
            rate(raw.max(rates.stream))
        ),
        None => "the network is the limit".to_owned(),
    }
}
