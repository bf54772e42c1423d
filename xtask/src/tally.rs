//! The tests in a log of `cargo test`: how many, and which failed.

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

/// Returns the names of the failed tests.
///
/// # Errors
///
/// A sentence, if failed tests are not all that is wrong: a test binary did not end, or did not name its failures.
pub(crate) fn failed(log: &str) -> Result<Vec<&str>, String> {
    let lines: Vec<&str> = log.lines().map(str::trim_end).collect();
    let is_result = |line: &&str| line.starts_with("test result: ");
    let is_start = |line: &&str| {
        let number = line
            .strip_prefix("running ")
            .and_then(|rest| rest.split_once(" test"));
        number.is_some_and(|(number, _)| number.parse::<usize>().is_ok())
    };
    let count = |is: &dyn Fn(&&str) -> bool| lines.iter().filter(|line| is(line)).count();
    if count(&is_start) != count(&is_result) {
        return Err("a test binary did not end".to_owned());
    }
    let mut names = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        if !is_result(line) {
            continue;
        }
        let list = lines[..index]
            .iter()
            .rev()
            .skip_while(|line| line.is_empty());
        let failed: Vec<&str> = list.map_while(|line| line.strip_prefix("    ")).collect();
        let listed = format!(" {} failed;", failed.len());
        if line.contains("FAILED") && !line.contains(&listed) {
            return Err("a test binary did not name its failures".to_owned());
        }
        if line.contains("FAILED") {
            names.extend(failed.into_iter().rev());
        }
    }
    if names.is_empty() {
        return Err("no test failed".to_owned());
    }
    Ok(names)
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

    const FAILED: &str = "\
running 3 tests
test slow::a ... ok
test slow::b ... FAILED
test c ... FAILED

failures:

---- slow::b stdout ----
    the disk

failures:
    slow::b
    c

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s

running 1 test
test d ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn failed_tests_are_named() {
        assert_eq!(failed(FAILED), Ok(vec!["slow::b", "c"]));
        let two = format!("{FAILED}{FAILED}");
        assert_eq!(failed(&two).map(|names| names.len()), Ok(4));
    }

    #[test]
    fn a_log_in_which_more_than_tests_failed_names_none() {
        let crashed = format!("{FAILED}running 7 tests\ntest e ... ok\n");
        assert_eq!(failed(&crashed), Err("a test binary did not end".into()));
        let unnamed = FAILED.replace("    c\n", "");
        assert!(failed(&unnamed).is_err());
        assert_eq!(
            failed("error: could not compile"),
            Err("no test failed".into())
        );
    }
}
