//! Amounts for the user. Pure, no I/O.

/// Formats a size of memory in whole KiB or in MiB, as `ulimit -l` counts.
pub(in crate::perf) fn memory(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    if bytes < MIB {
        format!("{} KiB", bytes.div_ceil(1024))
    } else if bytes % MIB == 0 {
        format!("{} MiB", bytes / MIB)
    } else {
        #[allow(clippy::cast_precision_loss, reason = "a digit after the point")]
        let mebibytes = bytes as f64 / MIB as f64;
        format!("{mebibytes:.1} MiB")
    }
}

/// Formats bytes per second: `1.1 GB/s`, `250 MB/s`.
pub(crate) fn rate(bytes_per_second: f64) -> String {
    const UNITS: &[(f64, &str)] = &[(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")];
    let unit = UNITS.iter().find(|(size, _)| bytes_per_second >= *size);
    match unit {
        Some((size, unit)) if bytes_per_second / size >= 100.0 => {
            format!("{:.0} {unit}", bytes_per_second / size)
        }
        Some((size, unit)) => format!("{:.1} {unit}", bytes_per_second / size),
        None => format!("{bytes_per_second:.0} B/s"),
    }
}

/// Formats a part of a whole: `97%`, `0.3%`.
pub(super) fn share(part: f64) -> String {
    let percent = part * 100.0;
    if percent >= 10.0 {
        format!("{percent:.0}%")
    } else {
        format!("{percent:.1}%")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_few_digits() {
        assert_eq!(memory(64 << 10), "64 KiB");
        assert_eq!(memory(150_000), "147 KiB");
        assert_eq!(memory(8 << 20), "8 MiB");
        assert_eq!(memory(13_000_000), "12.4 MiB");
        assert_eq!(rate(1.1e9), "1.1 GB/s");
        assert_eq!(rate(250.4e6), "250 MB/s");
        assert_eq!(rate(12.0), "12 B/s");
        assert_eq!(rate(0.0), "0 B/s");
        assert_eq!(share(0.97), "97%");
        assert_eq!(share(0.003), "0.3%");
    }
}
