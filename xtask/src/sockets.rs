//! The bytes of TCP connections, from the output of `ss`.

use std::collections::BTreeMap;

/// Returns the most bytes that each connection had sent in any sample, largest first. `samples` is the output of
/// `ss -tinOH`, any number of times.
pub(crate) fn sent(samples: &str) -> Vec<u64> {
    let mut most: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for line in samples.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let sent: Option<u64> = fields.iter().find_map(|field| {
            let bytes = field.strip_prefix("bytes_sent:")?;
            bytes.parse().ok()
        });
        if let (Some(sent), [_, _, _, local, peer, ..]) = (sent, &fields[..]) {
            let bytes = most.entry((local, peer)).or_default();
            *bytes = sent.max(*bytes);
        }
    }
    let mut bytes: Vec<u64> = most.into_values().collect();
    bytes.sort_unstable_by(|a, b| b.cmp(a));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_connection_has_its_largest_count() {
        let samples = "\
ESTAB 0 0 10.77.0.1:22 10.77.0.100:40000 cubic wscale:7,7 bytes_sent:3000 bytes_acked:3000
ESTAB 0 65536 10.77.0.1:41000 10.77.0.2:42000 cubic bytes_sent:1000000 bytes_acked:900000
ESTAB 0 0 [::ffff:10.77.0.1]:41001 [::ffff:10.77.0.2]:42001 cubic bytes_sent:2000000
ESTAB 0 0 10.77.0.1:41000 10.77.0.2:42000 cubic bytes_sent:5000000
LISTEN 0 128 10.77.0.1:22 0.0.0.0:* cubic cwnd:10
FIN-WAIT-1 0 0 10.77.0.1:41000
";
        assert_eq!(sent(samples), [5_000_000, 2_000_000, 3000]);
    }
}
