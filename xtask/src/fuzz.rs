//! The log of libFuzzer.

/// Returns one line about a run: inputs, coverage at the start and at the end, memory. Without instrumentation
/// libFuzzer runs and finds nothing: no coverage is an error.
pub(crate) fn report(target: &str, log: &str) -> Result<String, String> {
    let coverage = |event: &str| {
        let mut lines = log.lines().filter(|line| line.starts_with('#'));
        let line = lines.rfind(|line| line.split_whitespace().nth(1) == Some(event))?;
        let after = line.split_once(" cov: ")?.1;
        after.split(' ').next()?.parse::<u64>().ok()
    };
    let statistic = |name: &str| {
        let found = log.lines().rev().find_map(|line| line.strip_prefix(name));
        found.map_or("?", |text| text.trim_start_matches(':').trim())
    };
    let executed = statistic("stat::number_of_executed_units");
    let memory = statistic("stat::peak_rss_mb");
    let (first, last) = (coverage("INITED"), coverage("DONE"));
    let line = format!(
        "fuzz {target}: {executed} executions, coverage {} -> {}, peak {memory} MB\n",
        first.unwrap_or(0),
        last.unwrap_or(0),
    );
    if last.unwrap_or(0) == 0 {
        return Err(format!(
            "{line}fuzz {target}: FAILED, no coverage was counted"
        ));
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
#7\tINITED cov: 56 ft: 78 corp: 3/12b exec/s: 0 rss: 30Mb
#1234\tDONE   cov: 60 ft: 90 corp: 5/34b lim: 4096 exec/s: 246 rss: 33Mb
stat::number_of_executed_units: 1234
stat::peak_rss_mb:              33
";

    #[test]
    fn a_run_is_one_line() {
        let expected = "fuzz header: 1234 executions, coverage 56 -> 60, peak 33 MB\n";
        assert_eq!(report("header", LOG).as_deref(), Ok(expected));
    }

    #[test]
    fn a_run_without_coverage_has_failed() {
        for log in ["", &LOG.replace("cov: 60", "cov: 0")] {
            assert!(report("header", log).is_err());
        }
    }
}
