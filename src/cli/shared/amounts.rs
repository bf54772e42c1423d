//! Amounts and rates in words.

/// Returns the rate in bytes per second; 0 if the time is 0.
pub(crate) fn rate(bytes: u64, seconds: f64) -> f64 {
    // The conversion is exact up to 9 petabytes, and the table shows three digits.
    #[allow(clippy::cast_precision_loss)]
    let bytes = bytes as f64;
    if seconds > 0.0 { bytes / seconds } else { 0.0 }
}

/// Formats a number of bytes.
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

#[cfg(test)]
mod tests {
    use super::*;

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
