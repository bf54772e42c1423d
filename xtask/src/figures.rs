//! The arithmetic of the benchmarks: medians, extremes, expressions and verdicts.

/// Returns the values of a column, counted from 1, of the lines of `text`. Lines without that column are left out.
pub(crate) fn column(text: &str, number: usize) -> Vec<f64> {
    let field = |line: &str| line.split_whitespace().nth(number - 1)?.parse().ok();
    text.lines().filter_map(field).collect()
}

/// Returns the median, or 0 if there are no values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n => f64::midpoint(sorted[(n - 1) / 2], sorted[n / 2]),
    }
}

/// Returns the value of an expression: numbers and `+ - * /` with spaces between them, in the usual order of
/// operations.
///
/// # Errors
///
/// Fails if a number or an operator is missing or unknown.
pub(crate) fn calculate(expression: &str) -> Result<f64, String> {
    let wrong = || format!("not an expression: {expression}");
    let mut words = expression.split_whitespace();
    let number = |words: &mut std::str::SplitWhitespace<'_>| {
        let word = words.next().ok_or_else(wrong)?;
        word.parse::<f64>().map_err(|_| wrong())
    };
    let (mut sum, mut product) = (0.0, number(&mut words)?);
    while let Some(operator) = words.next() {
        let value = number(&mut words)?;
        match operator {
            "*" => product *= value,
            "/" => product /= value,
            "+" | "-" => {
                sum += product;
                product = if operator == "+" { value } else { -value };
            }
            _ => return Err(wrong()),
        }
    }
    Ok(sum + product)
}

/// Returns a line for each value of a column, for [`ratios`](crate::ratios): `expression` is calculated with `v` as the
/// value.
///
/// # Errors
///
/// Fails if `expression` is not an expression.
pub(crate) fn lines(
    [what, better, contender]: [&str; 3],
    values: &[f64],
    expression: &str,
) -> Result<String, String> {
    let line = |value: &f64| {
        let words = expression.split_whitespace();
        let filled: Vec<String> = words
            .map(|word| match word {
                "v" => value.to_string(),
                word => word.to_owned(),
            })
            .collect();
        let result = calculate(&filled.join(" "))?;
        Ok(format!("{what}\t{better}\t{contender}\t{result}\n"))
    };
    values.iter().map(line).collect()
}

/// Returns the number of system calls that the summaries of `perf stat -x,` or of `strace -c` count in all. Reading the
/// clock is left out: it is a system call only on a machine without a vDSO, such as a kernel in user mode.
pub(crate) fn calls(summary: &str) -> Option<f64> {
    let perf = |line: &str| {
        let count = line.split(',').next()?.parse().ok()?;
        line.contains("raw_syscalls").then_some(count)
    };
    let strace = |name: &str| {
        let is_named = |line: &&str| line.split_whitespace().next_back() == Some(name);
        let line = summary.lines().find(is_named)?;
        line.split_whitespace().nth(3)?.parse::<f64>().ok()
    };
    let of_clock = ["clock_gettime", "gettimeofday"].map(|name| strace(name).unwrap_or(0.0));
    let by_strace = || Some(strace("total")? - of_clock.iter().sum::<f64>());
    summary.lines().find_map(perf).or_else(by_strace)
}

/// Returns a line that compares a value with the wanted one. `relation` is `≥`, `≤` or `<`.
pub(crate) fn verdict(what: &str, value: f64, relation: &str, wanted: f64) -> String {
    let met = match relation {
        "≥" => value >= wanted,
        "≤" => value <= wanted,
        _ => value < wanted,
    };
    let word = if met { "ok" } else { "MISSED" };
    format!("{what:<32} {value:6.2} (want {relation} {wanted}) {word}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_of_an_even_number_is_between_the_middle_two() {
        let values = column("3 x\n1 y\nno\n2 z\n10 w\n", 1);
        assert_eq!(values, [3.0, 1.0, 2.0, 10.0]);
        assert!((median(&values) - 2.5).abs() < 1e-9);
        assert!((median(&values[..3]) - 2.0).abs() < 1e-9);
        assert!(median(&[]).abs() < 1e-9);
    }

    #[test]
    fn products_come_before_sums() {
        let value = calculate("1 + 2 * 3 / 4 - 0.5").unwrap();
        assert!((value - 2.0).abs() < 1e-9, "{value}");
        for wrong in ["", "1 +", "1 2", "x", "1 % 2"] {
            assert!(calculate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_line_names_the_contender_and_its_value() {
        let text = lines(["speed", "more", "new"], &[2.0, 4.0], "8 / v").unwrap();
        assert_eq!(text, "speed\tmore\tnew\t4\nspeed\tmore\tnew\t2\n");
    }

    #[test]
    fn calls_are_read_from_perf_and_from_strace() {
        let perf = "# started\n\n1234,,raw_syscalls:sys_enter,99,100.00,,\n";
        let strace = "% time seconds usecs/call calls errors syscall
90.00 0.01 1 400 8 write
9.00 0.01 1 167 clock_gettime
1.00 0.01 1 50 gettimeofday
100.00 0.01 1 617 8 total
";
        assert_eq!(calls(perf), Some(1234.0));
        assert_eq!(calls(strace), Some(400.0));
        assert_eq!(calls("nothing"), None);
    }

    #[test]
    fn a_verdict_says_whether_the_value_is_as_wanted() {
        assert!(verdict("speed", 1.0, "≥", 1.0).ends_with("ok\n"));
        assert!(verdict("idle", 1.0, "<", 1.0).ends_with("MISSED\n"));
        assert!(verdict("start", 1.5, "≤", 2.0).contains("  1.50 (want ≤ 2) ok"));
    }
}
