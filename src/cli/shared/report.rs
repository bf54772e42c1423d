//! The messages at the start of a run, when a program listens, and the report at its end.

use serde::{Serialize, Serializer};
use serde_json::json;

use super::{
    message::{Console, without_numbers},
    run::Exit,
};
use crate::{key::GeneratedKey, printable::size};

/// The report at the end of a run. A field is `None` if the run failed before its value was known.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(tag = "event", rename = "end")]
pub(crate) struct Report {
    /// The number of payload bytes sent and received.
    pub(crate) bytes: u64,
    /// The time from the connection to the confirmation, in seconds.
    pub(crate) seconds: f64,
    /// The transport that carried the data: `TCP` or `RDMA`.
    pub(crate) transport: Option<String>,
    /// Over RDMA the device, port, GID and MTU; over TCP the reason why RDMA was not used.
    pub(crate) transport_reason: Option<String>,
    /// The cipher of the data, for example `AES-256-GCM`; none if the data was not encrypted.
    pub(crate) cipher: Option<String>,
    /// The name or address of the other end.
    pub(crate) peer: Option<String>,
    /// The largest payload of a chunk, in bytes.
    pub(crate) chunk_bytes: Option<usize>,
    /// The number of slots of the pool.
    pub(crate) depth: Option<usize>,
    pub(crate) rails: Option<usize>,
    /// The reason why chunk size or depth are smaller than configured, if they are.
    pub(crate) smaller_pool_reason: Option<String>,
    /// The failure, in one sentence.
    #[serde(serialize_with = "without_number")]
    pub(crate) error: Option<String>,
    /// The exit code of the program.
    pub(crate) exit: Exit,
}

/// Returns what is said of several rails, for messages that name the transport.
pub(crate) fn rails_text(rails: usize) -> String {
    if rails > 1 {
        format!(", {rails} rails")
    } else {
        String::new()
    }
}

impl Report {
    /// Returns the report of a run that failed before it had a stream.
    pub(crate) fn failed(error: &anyhow::Error) -> Self {
        Self {
            error: Some(super::message::sentence(error)),
            exit: Exit::from(error),
            ..Self::default()
        }
    }

    /// Prints the error, then with `-v` how the run went. With `--json` it writes one object.
    pub(crate) fn print(&self, console: &Console) {
        console.event(self);
        if console.is_json() {
            return;
        }
        if let Some(error) = &self.error {
            console.error(error);
        }
        // A run without a stream has nothing to report but its error.
        if self.transport.is_some() {
            self.print_lines(console);
        }
    }

    /// Prints the report without its error, for a run that has already printed its errors and transports.
    pub(crate) fn print_ending(&self, console: &Console) {
        console.event(self);
        if !console.is_json() {
            self.print_lines(console);
        }
    }

    fn print_lines(&self, console: &Console) {
        for line in self.lines() {
            console.detail(&line);
        }
    }

    /// Returns the bandwidth in decimal gigabytes per second; 0 if the time is 0.
    pub(crate) fn gigabytes_per_second(&self) -> f64 {
        // The conversion is exact up to 9 petabytes, and the report shows three decimals.
        #[allow(clippy::cast_precision_loss)]
        let bytes = self.bytes as f64;
        if self.seconds > 0.0 {
            bytes / self.seconds / 1e9
        } else {
            0.0
        }
    }

    /// Returns the lines that `-v` prints. The last line has the form that the original programs' manual shows.
    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let (Some(peer), Some(transport)) = (&self.peer, &self.transport) {
            let reason = self.transport_reason.as_ref();
            let reason = reason.map_or(String::new(), |reason| format!(" ({reason})"));
            let cipher = self.cipher.as_deref().unwrap_or("not encrypted");
            let rails = rails_text(self.rails.unwrap_or(1));
            lines.push(format!(
                "Peer {peer} over {transport}{reason}{rails}, {cipher}"
            ));
        }
        if let (Some(chunk_bytes), Some(depth)) = (self.chunk_bytes, self.depth) {
            lines.push(format!(
                "Chunks of {} bytes, {depth} at once",
                size(chunk_bytes as u64)
            ));
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

/// The message of rdrecv that it listens, and the command for the sender.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Listening<'a> {
    /// The name or address at which the sender reaches this host.
    pub(crate) reach: &'a str,
    /// The port, never 0.
    pub(crate) port: u16,
    /// The key that rdrecv made for this run; `None` if the user gave one.
    pub(crate) key: Option<&'a GeneratedKey>,
}

impl Listening<'_> {
    /// Prints what the user has to type for the sender: a key that rdrecv made, or a port that the system chose
    /// (`chosen_port`). If the user already has both, prints only with `-v` or `--json`.
    pub(crate) fn print(&self, console: &Console, chosen_port: bool) {
        if self.key.is_some() || chosen_port || console.has_json() {
            console.tell(&self.text(), &self.json());
        } else {
            console.detail(&self.text());
        }
    }

    /// Returns the message, which includes the key if rdrecv made one.
    pub(crate) fn text(&self) -> String {
        let Self { reach, port, key } = self;
        match key {
            // The key is passed in the environment, because `ps` would show an argument until rdsend overwrites it.
            Some(key) => format!(
                "to send, type on the other host:\n  RDPIPE_KEY={} rdsend {reach} {port} < FILE",
                key.text()
            ),
            None => format!("listening on port {port}"),
        }
    }

    /// Returns the message as a JSON object.
    pub(crate) fn json(&self) -> serde_json::Value {
        let mut event = json!({ "event": "listening", "reach": self.reach, "port": self.port });
        if let Some(key) = self.key {
            event["key"] = json!(&*key.text());
        }
        event
    }
}

/// Returns the rate in bytes per second; 0 if the time is 0.
pub(crate) fn rate(bytes: u64, seconds: f64) -> f64 {
    // The conversion is exact up to 9 petabytes, and the table shows three digits.
    #[allow(clippy::cast_precision_loss)]
    let bytes = bytes as f64;
    if seconds > 0.0 { bytes / seconds } else { 0.0 }
}

pub(crate) fn amount(bytes: u64) -> String {
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    decimal(rate(bytes, 1.0))
}

/// Formats an amount in decimal units, as in the bandwidth at the end of `-v`.
pub(crate) fn decimal(bytes: f64) -> String {
    let mut value = bytes;
    for unit in ["B", "kB", "MB", "GB"] {
        if value < 1000.0 {
            return format!("{value:.1} {unit}");
        }
        value /= 1000.0;
    }
    format!("{value:.1} TB")
}

/// Formats a number of things: `one` is the noun for one of them, `many` for any other number.
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Serializes an error without the number that the system has for it.
#[expect(clippy::ref_option, reason = "serde passes the field")]
fn without_number<S: Serializer>(error: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    let plain = error.as_deref().map(without_numbers);
    plain.serialize(serializer)
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
            cipher: Some("AES-256-GCM".to_owned()),
            peer: Some("hostA:5000".to_owned()),
            chunk_bytes: Some(262_144),
            depth: Some(16),
            rails: Some(1),
            smaller_pool_reason: None,
            error: None,
            exit: Exit::Ok,
        }
    }

    #[test]
    fn bandwidth_is_decimal_with_three_decimals() {
        let lines = report().lines();
        assert_eq!(lines.last().unwrap(), "Bandwidth 2.872 GB/s");
        assert_eq!(
            lines[0],
            "Peer hostA:5000 over TCP (no RDMA device here), AES-256-GCM"
        );
        assert_eq!(
            lines[1..4],
            [
                "Chunks of 256K bytes, 16 at once",
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
    fn a_report_over_rdma_names_the_port_and_why_the_pool_is_small() {
        let report = Report {
            transport: Some("RDMA".to_owned()),
            transport_reason: Some(
                "mlx5_0 port 1, GID 3 (RoCE v2, 10.1.0.5 on eth0), MTU 4096".to_owned(),
            ),
            cipher: None,
            peer: Some("hostB".to_owned()),
            smaller_pool_reason: Some("less than wanted: a limit".to_owned()),
            ..report()
        };
        assert_eq!(
            report.lines()[..3],
            [
                "Peer hostB over RDMA (mlx5_0 port 1, GID 3 (RoCE v2, 10.1.0.5 on eth0), MTU 4096), not encrypted",
                "Chunks of 256K bytes, 16 at once",
                "That is less than wanted: a limit",
            ]
        );
    }

    #[test]
    fn json_has_every_field_of_the_report() {
        let value = serde_json::to_value(report()).unwrap();
        let expected = json!({
            "event": "end", "bytes": 2_000_000_000_u64, "seconds": 0.6964,
            "transport": "TCP", "transport_reason": "no RDMA device here",
            "cipher": "AES-256-GCM", "peer": "hostA:5000", "chunk_bytes": 262_144, "depth": 16, "rails": 1,
            "smaller_pool_reason": null, "error": null, "exit": 0,
        });
        assert_eq!(value, expected);
    }

    #[test]
    fn the_json_of_a_failure_has_the_exit_code() {
        let report = Report::failed(&crate::KeyError::Mistyped.into());
        let value = serde_json::to_value(report).unwrap();
        assert_eq!(value["exit"], 2);
        assert!(value["error"].as_str().unwrap().contains("mistyped"));
        assert_eq!(value["transport"], Value::Null);
    }

    #[test]
    fn a_key_that_rdrecv_made_is_printed_as_a_command_for_the_sender() {
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
    fn a_key_that_the_user_gave_is_not_printed() {
        let listening = Listening {
            reach: "hostB",
            port: 40000,
            key: None,
        };
        assert_eq!(listening.text(), "listening on port 40000");
        assert!(listening.json().get("key").is_none());
    }

    #[test]
    fn amounts_are_decimal() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (2_500_000, "2.5 MB"),
        ] {
            assert_eq!(amount(bytes), text);
        }
    }
}
