//! The number of tests in a log of `cargo test`.

use std::fmt;

/// The number of tests that passed, failed and were skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tally {
    passed: usize,
    failed: usize,
    skipped: usize,
}

/// Counts the tests of all `test result:` lines. A test that cannot run here prints `SKIPPED: why` (past libtest's
/// capture, straight to stderr) and returns. libtest counts such a test as passed; this function counts it as skipped.
pub(crate) fn count(log: &str) -> Tally {
    let mut tally = Tally::default();
    for line in log.lines() {
        let Some((_, numbers)) = line.split_once("test result: ") else {
            continue;
        };
        let number = |what: &str| -> usize {
            let before = numbers.split_once(what).map_or("", |(before, _)| before);
            let word = before.rsplit([' ', ';']).next();
            word.and_then(|word| word.parse().ok()).unwrap_or(0)
        };
        tally.passed += number(" passed;");
        tally.failed += number(" failed;");
        tally.skipped += number(" ignored;");
    }
    let skipped = log.matches("SKIPPED: ").count();
    tally.passed = tally.passed.saturating_sub(skipped);
    tally.skipped += skipped;
    tally
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {} {}", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_all_binaries_are_added() {
        let log = "\
running 3 tests
test a ... ok
SKIPPED: no RDMA device
test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.00s
test result: FAILED. 10 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s
";
        assert_eq!(count(log).to_string(), "11 3 2\n");
    }

    #[test]
    fn a_log_without_results_has_no_tests() {
        assert_eq!(count("error: could not compile").to_string(), "0 0 0\n");
    }
}
