//! How fast a transfer was.

/// Returns the seconds and the speed of a transfer.
#[allow(clippy::cast_precision_loss)] // far from 2^53
pub(crate) fn text(bytes: u64, microseconds: u64) -> String {
    let seconds = microseconds.max(1) as f64 / 1e6;
    format!("{seconds:.2} s ({:.2} GB/s)", bytes as f64 / 1e9 / seconds)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_gibibyte_in_half_a_second() {
        assert_eq!(super::text(1 << 30, 500_000), "0.50 s (2.15 GB/s)");
    }
}
