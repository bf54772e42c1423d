//! What a program says at the start, when it listens, and at the end of a run.

use serde::Serialize;
use serde_json::json;

use super::{exit::Exit, message::Console};
use crate::key::GeneratedKey;

/// The end of a run. What never came to be known, because it failed before, is `None`.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(tag = "event", rename = "end")]
pub(crate) struct Report {
    /// Payload bytes that went through.
    pub(crate) bytes: u64,
    /// From the connection to the confirmation.
    pub(crate) seconds: f64,
    /// What carried the data: `TCP` or `RDMA`.
    pub(crate) transport: Option<String>,
    /// With RDMA which device, port, GID and MTU; with TCP why not RDMA.
    pub(crate) transport_reason: Option<String>,
    /// The other end.
    pub(crate) peer: Option<String>,
    /// Payload of one chunk, in bytes.
    pub(crate) chunk_bytes: Option<usize>,
    /// Slots in the pool.
    pub(crate) depth: Option<usize>,
    /// Why that is less than was wanted, if it is.
    pub(crate) smaller_pool_reason: Option<String>,
    /// What failed, in one sentence.
    pub(crate) error: Option<String>,
    /// How the program exits.
    pub(crate) exit: Exit,
}

impl Report {
    /// A run that ended before it was a stream.
    #[must_use]
    pub(crate) fn failed(error: &anyhow::Error) -> Self {
        Self {
            error: Some(super::message::sentence(error)),
            exit: Exit::from(error),
            ..Self::default()
        }
    }

    /// Tells the user: the error, then with `-v` how it went; with `--json` one object.
    pub(crate) fn print(&self, console: &Console) {
        if console.is_json() {
            return console.event(self);
        }
        if let Some(error) = &self.error {
            console.error(error);
        }
        // Without a stream there is no more to say than why.
        if self.transport.is_some() {
            self.print_lines(console);
        }
    }

    /// The same for a run whose errors have been told and whose streams have told what carried them.
    pub(crate) fn print_ending(&self, console: &Console) {
        if console.is_json() {
            console.event(self);
        } else {
            self.print_lines(console);
        }
    }

    fn print_lines(&self, console: &Console) {
        for line in self.lines() {
            console.detail(&line);
        }
    }

    /// Decimal gigabytes a second, 0 where no time went by.
    #[must_use]
    pub(crate) fn gigabytes_per_second(&self) -> f64 {
        // Exact up to 9 petabytes, and three decimals are shown.
        #[allow(clippy::cast_precision_loss)]
        let bytes = self.bytes as f64;
        if self.seconds > 0.0 {
            bytes / self.seconds / 1e9
        } else {
            0.0
        }
    }

    /// What `-v` shows; the last line ends as in the manual of the original programs.
    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let (Some(peer), Some(transport)) = (&self.peer, &self.transport) {
            let reason = self.transport_reason.as_ref();
            let reason = reason.map_or(String::new(), |reason| format!(" ({reason})"));
            lines.push(format!("Peer {peer} over {transport}{reason}"));
        }
        if let (Some(chunk_bytes), Some(depth)) = (self.chunk_bytes, self.depth) {
            lines.push(format!("Chunks of {chunk_bytes} bytes, {depth} at once"));
        }
        if let Some(reason) = &self.smaller_pool_reason {
            lines.push(format!("That is {reason}"));
        }
        lines.push(format!("Bytes {}", self.bytes));
        lines.push(format!("Seconds {:.3}", self.seconds));
        lines.push(format!("Bandwidth {:.3} GB/s", self.gigabytes_per_second()));
        lines
    }
}

/// rdrecv is ready, and the sender may come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Listening<'a> {
    /// By which name or address the sender finds this host.
    pub(crate) reach: &'a str,
    /// The port, never 0.
    pub(crate) port: u16,
    /// The key that was made for this run, if one was.
    pub(crate) key: Option<&'a GeneratedKey>,
}

impl Listening<'_> {
    /// Tells what the sender needs and cannot know: a key that was made, a port that the system
    /// chose (`chosen_port`). Otherwise it is news only to whoever asked with `-v` or `--json`.
    pub(crate) fn print(&self, console: &Console, chosen_port: bool) {
        if self.key.is_some() || chosen_port || console.is_json() {
            console.tell(&self.text(), &self.json());
        } else {
            console.detail(&self.text());
        }
    }

    /// The words for it, the key included.
    #[must_use]
    pub(crate) fn text(&self) -> String {
        let Self { reach, port, key } = self;
        match key {
            // In the environment and not as an argument, where ps would show it at once.
            Some(key) => format!(
                "to send, type on the other host:\n  RDPIPE_KEY={} rdsend {reach} {port} < FILE",
                key.text()
            ),
            None => format!("listening on port {port}"),
        }
    }

    /// The same for a machine.
    #[must_use]
    pub(crate) fn json(&self) -> serde_json::Value {
        let mut event = json!({ "event": "listening", "reach": self.reach, "port": self.port });
        if let Some(key) = self.key {
            event["key"] = json!(&*key.text());
        }
        event
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::Key;

    fn report() -> Report {
        Report {
            bytes: 2_000_000_000,
            seconds: 0.6964,
            transport: Some("TCP".to_owned()),
            transport_reason: Some("no RDMA device here".to_owned()),
            peer: Some("hostA:5000".to_owned()),
            chunk_bytes: Some(262_144),
            depth: Some(16),
            smaller_pool_reason: None,
            error: None,
            exit: Exit::Ok,
        }
    }

    #[test]
    fn bandwidth_is_decimal_with_three_places() {
        let lines = report().lines();
        assert_eq!(lines.last().unwrap(), "Bandwidth 2.872 GB/s");
        assert_eq!(lines[0], "Peer hostA:5000 over TCP (no RDMA device here)");
        assert_eq!(
            lines[1..4],
            [
                "Chunks of 262144 bytes, 16 at once",
                "Bytes 2000000000",
                "Seconds 0.696"
            ]
        );
        assert_eq!(
            Report::default().lines().last().unwrap(),
            "Bandwidth 0.000 GB/s"
        );
    }

    #[test]
    fn rdma_names_its_port_and_why_its_pool_is_small() {
        let report = Report {
            transport: Some("RDMA".to_owned()),
            transport_reason: Some(
                "mlx5_0 port 1, GID 3 (RoCE v2, 10.1.0.5 on eth0), MTU 4096".to_owned(),
            ),
            peer: Some("hostB".to_owned()),
            smaller_pool_reason: Some("less than wanted: a limit".to_owned()),
            ..report()
        };
        assert_eq!(
            report.lines()[..3],
            [
                "Peer hostB over RDMA (mlx5_0 port 1, GID 3 (RoCE v2, 10.1.0.5 on eth0), MTU 4096)",
                "Chunks of 262144 bytes, 16 at once",
                "That is less than wanted: a limit",
            ]
        );
    }

    #[test]
    fn json_has_everything() {
        let value = serde_json::to_value(report()).unwrap();
        let expected = json!({
            "event": "end", "bytes": 2_000_000_000_u64, "seconds": 0.6964,
            "transport": "TCP", "transport_reason": "no RDMA device here",
            "peer": "hostA:5000", "chunk_bytes": 262_144, "depth": 16,
            "smaller_pool_reason": null, "error": null, "exit": 0,
        });
        assert_eq!(value, expected);
    }

    #[test]
    fn a_failure_has_its_code_in_json() {
        let report = Report::failed(&crate::KeyError::Mistyped.into());
        let value = serde_json::to_value(report).unwrap();
        assert_eq!(value["exit"], 2);
        assert!(value["error"].as_str().unwrap().contains("mistyped"));
        assert_eq!(value["transport"], Value::Null);
    }

    #[test]
    fn a_made_key_is_told_ready_to_type() {
        let made = Key::generate().unwrap();
        let listening = Listening {
            reach: "hostB",
            port: 12345,
            key: Some(&made),
        };
        let text = made.text();
        assert_eq!(
            listening.text(),
            format!(
                "to send, type on the other host:\n  RDPIPE_KEY={text} rdsend hostB 12345 < FILE"
            )
        );
        let value = listening.json();
        let expected =
            json!({ "event": "listening", "reach": "hostB", "port": 12345, "key": *text });
        assert_eq!(value, expected);
        assert!(!format!("{listening:?}").contains(text.as_str()));
    }

    #[test]
    fn a_given_key_is_not_told() {
        let listening = Listening {
            reach: "hostB",
            port: 40000,
            key: None,
        };
        assert_eq!(listening.text(), "listening on port 40000");
        assert!(listening.json().get("key").is_none());
    }
}
