//! Parsers of sizes, times, hosts and addresses on the command line.

use std::{net::IpAddr, time::Duration};

use crate::config::{MAX_CHUNK_BYTES, MAX_DEPTH, MIN_CHUNK_BYTES, MIN_DEPTH};

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

/// Parses HOST: a name or an address. An IPv6 address may stand in brackets, which are removed.
pub(crate) fn host(text: &str) -> Result<String, String> {
    let bracketed = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let host = bracketed.unwrap_or(text);
    // The resolver checks the zone of a link-local address, as in `fe80::1%eth0`.
    let (address, zone) = host.split_once('%').unwrap_or((host, "-"));
    let is_v6 = address
        .parse::<IpAddr>()
        .is_ok_and(|address| address.is_ipv6())
        && !zone.is_empty();
    if bracketed.is_some() && !is_v6 {
        return Err("only an IPv6 address may stand in brackets".to_owned());
    }
    if host.contains([':', '[', ']']) && !is_v6 {
        return Err("give host and port as two arguments".to_owned());
    }
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err("give a host name or an address".to_owned());
    }
    if host.contains('@') {
        return Err("give the host without a user: rdsend does not log in".to_owned());
    }
    Ok(host.to_owned())
}

/// Parses `--bind`: an IPv4 or IPv6 address; an IPv6 address may stand in brackets.
pub(crate) fn address(text: &str) -> Result<IpAddr, String> {
    let bracketed = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let address = bracketed.unwrap_or(text).parse();
    address.map_err(|_| "give an IPv4 or IPv6 address of this host".to_owned())
}

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

    #[test]
    fn hosts_are_names_or_addresses() {
        for (text, expected) in [
            ("hostB", "hostB"),
            ("a.example.org", "a.example.org"),
            ("10.0.0.1", "10.0.0.1"),
            ("::1", "::1"),
            ("[::1]", "::1"),
            ("[fe80::1%eth0]", "fe80::1%eth0"),
            ("fe80::1%eth0", "fe80::1%eth0"),
        ] {
            assert_eq!(host(text).as_deref(), Ok(expected));
        }
        for text in [
            "",
            "[]",
            "[hostB]",
            "[10.0.0.1]",
            "[::1",
            "::1]",
            "hostB:1",
            "10.0.0.1:1",
            "[::1]:1",
            "a b",
            "me@b",
            "fe80::1%",
        ] {
            assert!(host(text).is_err(), "{text}");
        }
        assert_eq!(address("[::]"), Ok("::".parse().unwrap()));
        assert_eq!(address("127.0.0.1"), Ok("127.0.0.1".parse().unwrap()));
        assert!(address("hostB").is_err());
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
            let _ = host(&text);
            if let Ok(duration) = duration(&text) {
                prop_assert!((MIN_DURATION..=MAX_DURATION).contains(&duration));
            }
            if let Ok(chunk) = chunk(&text) {
                prop_assert!((MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(&chunk));
            }
        }
    }
}
