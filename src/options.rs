//! The options of a program that set up its streams, and the parsers of sizes and times.
//!
//! A program parses them from its command line, and sends them as they are to its agents. Each host fills what the user
//! left out with its own defaults: [`StreamOptions::config`] is the only place where options become settings.

use std::time::Duration;

use clap::{
    Args,
    builder::{NonEmptyStringValueParser, RangedU64ValueParser},
};
use serde::{Deserialize, Serialize};

use crate::{
    Direction, Encryption, MAX_CHUNK_BYTES, MAX_DEPTH, MIN_CHUNK_BYTES, MIN_DEPTH, Rails,
    RdmaConfig, StreamConfig, TransportPolicy, config::MOST_RAILS,
};

/// The options that set up a stream. An absent option leaves the default of [`StreamConfig`], on each host its own.
///
/// The order of the fields here and in [`RdmaOptions`] is the wire format of the agents' orders.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
pub(crate) struct StreamOptions {
    /// Choose what carries the data: auto uses RDMA if both hosts have it and a message has crossed it, otherwise TCP
    #[arg(
        long,
        value_enum,
        value_name = "auto|rdma|tcp",
        hide_possible_values = true
    )]
    #[arg(default_value = "auto")]
    pub(crate) transport: TransportPolicy,

    /// Choose whether the data is encrypted: auto encrypts what leaves the machine; never is for networks that are
    /// trusted, and both ends must choose it
    #[arg(
        long,
        value_enum,
        value_name = "auto|always|never",
        hide_possible_values = true
    )]
    #[arg(default_value = "auto")]
    pub(crate) encrypt: Encryption,

    /// Set the size of a chunk in bytes, with K, M or G for powers of 1024 [default: 512K over TCP, 2M over RDMA, 3M
    /// there with one processor]
    #[arg(long, value_name = "SIZE", value_parser = chunk)]
    pub(crate) chunk: Option<usize>,

    /// Set the number of chunks in flight [default: 16 over TCP, 4 over RDMA, 2 there with one processor]
    #[arg(long, value_name = "N", value_parser = depth)]
    pub(crate) depth: Option<usize>,

    /// Carry each stream over so many connections or queue pairs, each with threads at both ends, 1 to 32 [default: half
    /// of the processors of the host with fewer, at most 8; 1 for copies, tunnels and measurements]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u8>::new().range(1..=MOST_RAILS.into()))]
    pub(crate) rails: Option<u8>,

    /// True if the streams carry bulk data, and have as many rails as suit the processors.
    #[arg(skip)]
    pub(crate) is_bulk: bool,

    /// Treat the peer as dead after this much silence, for example 30, 0.5, 500ms or 2m [default: 30s]
    #[arg(long, value_name = "SECS", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,

    #[command(flatten)]
    pub(crate) rdma: RdmaOptions,
}

impl StreamOptions {
    /// Returns the silence after which a peer is treated as dead.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout.unwrap_or(StreamConfig::default().timeout)
    }

    pub(crate) fn config(&self, direction: Direction) -> StreamConfig {
        let default = StreamConfig::default();
        StreamConfig {
            chunk_bytes: self.chunk.unwrap_or(default.chunk_bytes),
            depth: self.depth.unwrap_or(default.depth),
            rdma: RdmaConfig {
                chunk_bytes: self.chunk.unwrap_or(default.rdma.chunk_bytes),
                depth: self.depth.unwrap_or(default.rdma.depth),
                ..self.rdma.config()
            },
            timeout: self.timeout(),
            transport: self.transport,
            encryption: self.encrypt,
            rails: match self.rails {
                Some(rails) => Rails::Exactly(rails),
                None if self.is_bulk => Rails::Auto,
                None => Rails::One,
            },
            direction,
            ..default
        }
    }
}

/// The options for the flow of bytes over a stream, beside those that set it up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
pub(crate) struct FlowOptions {
    /// Keep up to so many bytes in memory, so that stalls of one side do not stop the other; K, M and G are powers of
    /// 1024
    #[arg(long, value_name = "SIZE", value_parser = buffer)]
    pub(crate) buffer: Option<u64>,

    /// Send at most this many bytes per second, on each connection; K, M and G are powers of 1024
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) bwlimit: Option<u64>,
}

impl FlowOptions {
    /// Returns the options for the end that sends. The buffer is at the other end.
    pub(crate) fn of_sender(self) -> Self {
        Self {
            buffer: None,
            ..self
        }
    }

    /// Returns the options for the end that receives. The other end keeps to the limit.
    pub(crate) fn of_receiver(self) -> Self {
        Self {
            bwlimit: None,
            ..self
        }
    }
}

/// The smallest buffer: less than a chunk holds nothing back.
const LEAST_BUFFER: u64 = 1 << 20;

/// The largest buffer: more is a typing error.
const MOST_BUFFER: u64 = 1 << 40;

/// Parses `--buffer`: a size from [`LEAST_BUFFER`] to [`MOST_BUFFER`].
pub(crate) fn buffer(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    let buffer = Some(bytes).filter(|bytes| (LEAST_BUFFER..=MOST_BUFFER).contains(bytes));
    buffer.ok_or_else(|| "a buffer has 1M to 1024G bytes".to_owned())
}

// Each option names this heading itself: `next_help_heading` would also apply to the options after the RDMA options.
const HEADING: &str = "RDMA (each end has its own settings; no effect over TCP)";

/// The options for RDMA. Each end has its own settings, and they have no effect over TCP.
///
/// A build without RDMA accepts these options too, so the same command line works with every build.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
pub(crate) struct RdmaOptions {
    /// Use only this device, as `ibv_devices` names it [default: the fastest that reaches the peer]
    #[arg(long, help_heading = HEADING, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) device: Option<String>,

    /// Use only this port of the device, from 1 [default: any active port]
    #[arg(long, help_heading = HEADING, value_name = "N", value_parser = RangedU64ValueParser::<u8>::new().range(1..))]
    pub(crate) ib_port: Option<u8>,

    /// Use only this row of the port's GID table [default: RoCE v2 before v1, IPv4 before IPv6]
    #[arg(long, help_heading = HEADING, value_name = "N")]
    pub(crate) gid_index: Option<u8>,

    /// Set the traffic class of the packets: on RoCE v2 four times the DSCP, so 104 for DSCP 26 [default: 0]
    #[arg(long, help_heading = HEADING, value_name = "N")]
    pub(crate) traffic_class: Option<u8>,

    /// Set the service level of the packets, 0 to 15: on RoCE the VLAN priority, 0 to 7 [default: 0]
    #[arg(long, help_heading = HEADING, value_name = "N", value_parser = RangedU64ValueParser::<u8>::new().range(..=15))]
    pub(crate) service_level: Option<u8>,

    /// Use this row of the port's partition key table; on InfiniBand both ends must be in the partition [default: 0]
    #[arg(long, help_heading = HEADING, value_name = "N")]
    pub(crate) pkey_index: Option<u16>,

    /// Microseconds to poll before sleeping, 0 to 10000 [default: adapts, at most 50, or 1000 on slow machines]
    #[arg(long, help_heading = HEADING, value_name = "US", value_parser = RangedU64ValueParser::<u32>::new().range(..=10_000))]
    pub(crate) busy_poll: Option<u32>,
}

impl RdmaOptions {
    /// Returns the configuration that these options describe.
    fn config(&self) -> RdmaConfig {
        let default = RdmaConfig::default();
        RdmaConfig {
            device: self.device.clone(),
            port: self.ib_port,
            gid_index: self.gid_index,
            traffic_class: self.traffic_class.unwrap_or(default.traffic_class),
            service_level: self.service_level.unwrap_or(default.service_level),
            pkey_index: self.pkey_index.unwrap_or(default.pkey_index),
            busy_poll: self
                .busy_poll
                .map(|time| Duration::from_micros(time.into())),
            ..default
        }
    }
}

/// Parses `--chunk`: a size from [`MIN_CHUNK_BYTES`] to [`MAX_CHUNK_BYTES`].
pub(crate) fn chunk(text: &str) -> Result<usize, String> {
    let bytes = size(text)?;
    let chunk = usize::try_from(bytes).ok();
    chunk
        .filter(|bytes| (MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(bytes))
        .ok_or_else(|| {
            format!(
                "a chunk has {}K to {}M bytes",
                MIN_CHUNK_BYTES >> 10,
                MAX_CHUNK_BYTES >> 20
            )
        })
}

/// Parses `--depth`: a number of slots from [`MIN_DEPTH`] to [`MAX_DEPTH`].
pub(crate) fn depth(text: &str) -> Result<usize, String> {
    let depth = text.parse().ok();
    depth
        .filter(|depth| (MIN_DEPTH..=MAX_DEPTH).contains(depth))
        .ok_or_else(|| format!("give a number from {MIN_DEPTH} to {MAX_DEPTH}"))
}

/// Parses a whole number of bytes, or a number with K, M or G, where K is 1024 bytes. `KiB`, `MiB` and `GiB` mean the
/// same. `KB` is an error, because some users mean 1000 bytes by it.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits_end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err(SIZE_FORM.to_owned()),
    };
    if digits.is_empty() {
        return Err(SIZE_FORM.to_owned());
    }
    let number: Option<u64> = digits.parse().ok();
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| "the size is too large: it does not fit into 64 bits".to_owned())
}

/// Parses `--bwlimit`: a number of bytes per second, at least one.
pub(crate) fn rate(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err("a rate of 0 would never end; leave the option out for no limit".to_owned()),
        bytes => Ok(bytes),
    }
}

/// A number of bytes per second, in the unit that the user typed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TypedRate {
    pub(crate) bytes_per_second: f64,
    /// The bytes per second of one unit.
    unit: f64,
    /// The unit: `Gbit/s`.
    name: String,
}

impl TypedRate {
    /// Returns a number of bytes per second in this unit: `7.52 Gbit/s`.
    pub(crate) fn show(&self, bytes_per_second: f64) -> String {
        let value = bytes_per_second / self.unit;
        let decimals = match value {
            value if value >= 100.0 => 0,
            value if value >= 10.0 => 1,
            _ => 2,
        };
        let text = format!("{value:.decimals$}");
        let text = if text.contains('.') {
            text.trim_end_matches('0').trim_end_matches('.')
        } else {
            &text
        };
        format!("{text} {}", self.name)
    }
}

/// Parses a rate as networks and disks have it: `10Gbit`, `940Mb/s`, `1.2GB/s`, `110MiB/s`. A small b is a bit, and K, M,
/// G and T are powers of 1000 unless an i follows.
pub(crate) fn network_rate(text: &str) -> Result<TypedRate, String> {
    let form = || {
        format!(
            "{text:?} is no rate: give bits or bytes per second, like 10Gbit, 940Mb/s or 1.2GB/s"
        )
    };
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(number_end.unwrap_or(text.len()));
    let number: f64 = number.parse().map_err(|_| form())?;
    let unit = unit.trim_start();
    let unit = unit
        .strip_suffix("/s")
        .or_else(|| unit.strip_suffix("ps"))
        .unwrap_or(unit);
    let mut rest = unit.chars();
    let power = match rest.next().map(|c| c.to_ascii_uppercase()) {
        Some('K') => 1,
        Some('M') => 2,
        Some('G') => 3,
        Some('T') => 4,
        _ => {
            rest = unit.chars();
            0
        }
    };
    let is_binary = power > 0 && rest.as_str().starts_with('i');
    let rest = if is_binary {
        &rest.as_str()[1..]
    } else {
        rest.as_str()
    };
    let bytes = match rest {
        "b" | "bit" | "bits" => 0.125,
        "B" => 1.0,
        "" => {
            return Err(format!(
                "{text:?} may be bits or bytes: write {text}bit or {text}B/s"
            ));
        }
        _ => return Err(form()),
    };
    let unit = bytes * if is_binary { 1024_f64 } else { 1000.0 }.powi(power);
    let bytes_per_second = number * unit;
    if !(bytes_per_second > 0.0 && bytes_per_second.is_finite()) {
        return Err(form());
    }
    let prefix = ["", if is_binary { "Ki" } else { "k" }, "M", "G", "T"];
    let prefix = prefix[usize::try_from(power).unwrap_or(0)];
    let binary = if is_binary && power > 1 { "i" } else { "" };
    let what = if bytes < 1.0 { "bit" } else { "B" };
    Ok(TypedRate {
        bytes_per_second,
        unit,
        name: format!("{prefix}{binary}{what}/s"),
    })
}

const SIZE_FORM: &str =
    "give bytes, or a number with K, M or G for powers of 1024, like 256K or 4MiB";

/// Parses a time from [`MIN_DURATION`] to [`MAX_DURATION`]: seconds, or a number with `ms`, `s`, `m` or `h`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let number_end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(number_end);
    let form = || "give seconds, or a number with ms, s, m or h, like 0.5, 500ms or 2m".to_owned();
    let unit_seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(form()),
    };
    let number: f64 = number.parse().map_err(|_| form())?;
    let duration = Duration::try_from_secs_f64(number * unit_seconds).ok();
    duration
        .filter(|duration| (MIN_DURATION..=MAX_DURATION).contains(duration))
        .ok_or_else(|| "give a time from 100ms to 168h".to_owned())
}

/// The shortest time limit. Keepalives are sent four times as often as `--timeout`; with a shorter limit a stream would
/// carry more keepalives than data.
const MIN_DURATION: Duration = Duration::from_millis(100);

/// The longest time limit: a week. A longer one is a typing error, and no clock overflows within a week.
const MAX_DURATION: Duration = Duration::from_secs(168 * 3600);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_k_is_1024_bytes() {
        for (text, bytes) in [
            ("0", 0),
            ("65536", 65536),
            ("256K", 256 << 10),
            ("256k", 256 << 10),
            ("1M", 1 << 20),
            ("4MiB", 4 << 20),
            ("4mib", 4 << 20),
            ("2G", 2 << 30),
            ("7B", 7),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "K",
            "1KB",
            "1 K",
            "-1",
            "+1",
            "1.5M",
            "0x10",
            "18446744073709551616",
            "99999999999G",
        ] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_rate_is_a_size_of_at_least_one_byte() {
        assert_eq!(rate("200M"), Ok(200 << 20));
        assert!(rate("0").unwrap_err().contains("leave the option out"));
        assert!(rate("1KB").is_err());
    }

    #[test]
    fn a_buffer_has_room_for_a_chunk() {
        assert_eq!(buffer("1M"), Ok(1 << 20));
        assert_eq!(buffer("2G"), Ok(2 << 30));
        for text in ["0", "1000K", "1025G", "1KB"] {
            assert!(buffer(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_rate_of_a_network_has_bits_or_bytes() {
        for (text, bytes, shown) in [
            ("10Gbit", 1.25e9, "10 Gbit/s"),
            ("10gbit/s", 1.25e9, "10 Gbit/s"),
            ("10Gbps", 1.25e9, "10 Gbit/s"),
            ("940Mb/s", 117.5e6, "940 Mbit/s"),
            ("1.2GB/s", 1.2e9, "1.2 GB/s"),
            ("110 MiB/s", 115_343_360.0, "110 MiB/s"),
            ("512KiB", 524_288.0, "512 KiB/s"),
            ("500kB/s", 5e5, "500 kB/s"),
            ("100bit", 12.5, "100 bit/s"),
        ] {
            let rate = network_rate(text).unwrap();
            assert!(
                (rate.bytes_per_second - bytes).abs() < 1e-3,
                "{text}: {rate:?}"
            );
            assert_eq!(rate.show(rate.bytes_per_second), shown, "{text}");
        }
        assert_eq!(network_rate("10Gbit").unwrap().show(0.94e9), "7.52 Gbit/s");
        for (text, words) in [
            ("10G", "write 10Gbit or 10GB/s"),
            ("10", "write 10bit or 10B/s"),
            ("", "is no rate"),
            ("Gbit", "is no rate"),
            ("0Gbit", "is no rate"),
            ("-1Gbit", "is no rate"),
            ("1e9bit", "is no rate"),
            ("10Gbyte", "is no rate"),
        ] {
            let error = network_rate(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn an_error_names_the_limits() {
        assert_eq!(chunk("4K"), Ok(4096));
        assert_eq!(chunk("64M"), Ok(64 << 20));
        for text in ["4095", "64M1", "65M", "0"] {
            assert!(chunk(text).is_err(), "{text}");
        }
        assert_eq!(chunk("1G").unwrap_err(), "a chunk has 4K to 64M bytes");
        assert_eq!(depth("2"), Ok(2));
        assert_eq!(depth("4096"), Ok(4096));
        for text in ["1", "4097", "-3", "x"] {
            assert_eq!(
                depth(text).unwrap_err(),
                "give a number from 2 to 4096",
                "{text}"
            );
        }
    }

    #[test]
    fn durations_have_units() {
        for (text, milliseconds) in [
            ("30", 30_000),
            ("0.5", 500),
            (".5", 500),
            ("30s", 30_000),
            ("2m", 120_000),
            ("500ms", 500),
            ("1h", 3_600_000),
        ] {
            assert_eq!(
                duration(text),
                Ok(Duration::from_millis(milliseconds)),
                "{text}"
            );
        }
        for text in [
            "", "s", "0", "99ms", "-1", "1e3", "inf", "nan", "1.2.3", "1d", "169h", "2 m",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_unit_multiplies_by_its_power_of_1024(number in 0..1_u64 << 34, unit in 0..4_usize, spelling in 0..4_usize) {
            let spellings = [["", "B", "b", ""], ["K", "KiB", "k", "kib"], ["M", "MiB", "m", "mib"], ["G", "GiB", "g", "gib"]];
            let text = format!("{number}{}", spellings[unit][spelling]);
            prop_assert_eq!(size(&text), Ok(number << (10 * unit)));
        }

        #[test]
        fn whole_durations_are_exact(milliseconds in 100..604_800_000_u64) {
            let expected = Duration::from_millis(milliseconds);
            let parsed = duration(&format!("{milliseconds}ms")).unwrap();
            prop_assert!(parsed.abs_diff(expected) < Duration::from_micros(1));
            let seconds = format!("{}.{:03}", milliseconds / 1000, milliseconds % 1000);
            prop_assert!(duration(&seconds).unwrap().abs_diff(expected) < Duration::from_micros(1));
        }

        #[test]
        fn no_text_makes_a_parser_panic(text: String) {
            let _ = size(&text);
            if let Ok(duration) = duration(&text) {
                prop_assert!((MIN_DURATION..=MAX_DURATION).contains(&duration));
            }
            if let Ok(chunk) = chunk(&text) {
                prop_assert!((MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(&chunk));
            }
        }
    }
}
