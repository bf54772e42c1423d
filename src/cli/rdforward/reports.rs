//! What rdforward prints about its connections.

use std::sync::{Arc, atomic::Ordering};

use serde_json::{Value, json};

use super::background::Readiness;

use crate::{
    cli::{
        server::ClientLog,
        shared::{
            message::{Console, Level},
            progress::RunProgress,
            report::{amount, counted},
        },
    },
    forward::{
        specs::{ForwardSpec, ListenAt},
        tunnel::flows::{FlowLabel, TunnelCounts, TunnelEvent, TunnelObserver},
    },
};

/// Returns the function that prints what happens to connections: with `-v`, or as JSON. Connections that cannot be made
/// are always printed. `remote` are the values of `-R`, whose listeners `ready` counts.
pub(super) fn observer(
    console: &Console,
    remote: &[ForwardSpec],
    ready: Option<Readiness>,
) -> TunnelObserver {
    let (console, remote) = (console.clone(), remote.to_vec());
    Arc::new(move |event| {
        let is_listening = matches!(event, TunnelEvent::Listening { .. });
        // The other end may cause any number of events while stderr is not read.
        console.notice(|console| print(console, &event, &remote));
        if let (true, Some(ready)) = (is_listening, &ready) {
            ready.reached();
        }
    })
}

/// Returns the function that prints what happens to the connections of a client of a server: as [`observer`] does, with
/// the name of the client.
pub(super) fn client_observer(log: ClientLog) -> TunnelObserver {
    Arc::new(move |event| {
        log.event(|| as_json(&event));
        if log.is_text()
            && let Some((level, text)) = as_text(&event)
        {
            log.print(level, &text);
        }
    })
}

fn print(console: &Console, event: &TunnelEvent, remote: &[ForwardSpec]) {
    if console.has_json() {
        console.event(&as_json(event));
    }
    if console.is_json() {
        return;
    }
    if let TunnelEvent::Listening { id, port } = event {
        let index = usize::try_from(*id).unwrap_or(usize::MAX);
        if let Some(spec) = remote.get(index) {
            listening(console, &spec.listen, *port, "on the other host");
        }
    }
    if let Some((level, text)) = as_text(event) {
        console.say(level, &text);
    }
}

/// Returns what happened to a connection, in words.
fn as_text(event: &TunnelEvent) -> Option<(Level, String)> {
    Some(match event {
        TunnelEvent::Connected(label) => (Level::Detail, format!("{}: connected", ends(label))),
        TunnelEvent::Refused(label, refusal) => {
            (Level::Warning, format!("{}: {refusal}", ends(label)))
        }
        TunnelEvent::NoRequest { from, reason } => {
            let text = format!("{from}: no request of SOCKS5: {reason}");
            (Level::Detail, text)
        }
        TunnelEvent::Closed {
            label,
            sent,
            received,
            is_reset,
        } => {
            let how = if *is_reset { "reset" } else { "closed" };
            let (sent, received) = (amount(*sent), amount(*received));
            let ends = ends(label);
            let text = format!("{ends}: {how}, sent {sent}, received {received}");
            (Level::Detail, text)
        }
        TunnelEvent::Streams { count, missing } => {
            let streams = counted(*count as u64, "stream", "streams");
            match missing {
                None => (Level::Detail, format!("the tunnel has {streams}")),
                Some(why) => {
                    let text = format!("the tunnel has {streams} and no more: {why}");
                    (Level::Note, text)
                }
            }
        }
        TunnelEvent::Listening { .. } => return None,
    })
}

fn ends(label: &FlowLabel) -> String {
    format!("{} to {}", label.from, label.to)
}

fn as_json(event: &TunnelEvent) -> Value {
    match event {
        TunnelEvent::Connected(FlowLabel { from, to }) => {
            json!({ "event": "connected", "from": from, "to": to })
        }
        TunnelEvent::Refused(FlowLabel { from, to }, refusal) => {
            json!({ "event": "refused", "from": from, "to": to, "reason": refusal.to_string() })
        }
        TunnelEvent::NoRequest { from, reason } => {
            json!({ "event": "no_request", "from": from, "reason": reason })
        }
        TunnelEvent::Closed {
            label: FlowLabel { from, to },
            sent,
            received,
            is_reset,
        } => json!({
            "event": if *is_reset { "reset" } else { "closed" },
            "from": from,
            "to": to,
            "bytes_sent": sent,
            "bytes_received": received,
        }),
        TunnelEvent::Streams { count, missing } => {
            json!({ "event": "streams", "streams": count, "missing": missing })
        }
        TunnelEvent::Listening { id, port } => {
            json!({ "event": "listening", "remote": id, "port": port })
        }
    }
}

/// Prints where a listener listens. A port that the user did not choose is always printed.
pub(super) fn listening(console: &Console, at: &ListenAt, port: Option<u16>, place: &str) {
    match (at, port) {
        (ListenAt::Tcp { bind, port: 0 }, Some(port)) => {
            let bind = bind.clone();
            let at = ListenAt::Tcp { bind, port };
            console.note(&format!("listening at {at} {place}"));
        }
        _ => console.detail(&format!("listening at {at} {place}")),
    }
}

/// Shows a live line about a tunnel on a terminal.
pub(super) fn live(console: &Console, counts: Arc<TunnelCounts>) -> Option<RunProgress> {
    RunProgress::start_connections(console, move || {
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let open = counted(count(&counts.open), "connection", "connections");
        let made = count(&counts.made);
        let bytes = count(&counts.sent) + count(&counts.received);
        (format!("{open} open, {made} so far"), bytes)
    })
}
