//! The table of `scripts/bench --against` and of `scripts/bench encryption`.
//!
//! Each input line is one figure, of four fields separated by tabs: what is measured, which values are better (`more`
//! or `less`), which program (`old` or `new`), and the value. The n-th figures of `old` and `new` belong to one pair of
//! runs. A line of two fields is what was left out, and why.
//!
//! What a shared machine can do drifts within minutes. Two runs of one pair have most of that drift in common, so the
//! ratio of a row is the median of the ratios of its pairs, not the ratio of the two medians.

use std::fmt::Write as _;

use crate::figures::median;

/// The headings of both programs, and the ratio below which a row is marked.
pub(crate) struct Headings<'a> {
    pub(crate) old: &'a str,
    pub(crate) new: &'a str,
    pub(crate) wanted: f64,
}

impl Headings<'_> {
    /// Those of two revisions of rdpipe.
    pub(crate) const REVISIONS: Self = Headings {
        old: "old",
        new: "new",
        wanted: 0.97,
    };
}

/// What one row of the table shows.
enum Row {
    /// A measurement: true if larger values are better, then the values of `old` and of `new`.
    Measured(bool, Vec<f64>, Vec<f64>),
    /// Nothing was measured, for this reason.
    LeftOut(String),
}

/// Returns the table, with a row for each measurement in the order of their first figures.
pub(crate) fn table(figures: &str, headings: &Headings<'_>) -> String {
    let mut rows: Vec<(String, Row)> = Vec::new();
    for line in figures.lines().filter(|line| !line.is_empty()) {
        let fields: Vec<&str> = line.split('\t').collect();
        let what = fields[0];
        let known = rows.iter().position(|(name, _)| name == what);
        let at = known.unwrap_or_else(|| {
            let row = match fields[..] {
                [_, "more", ..] => Row::Measured(true, Vec::new(), Vec::new()),
                [_, "less", ..] => Row::Measured(false, Vec::new(), Vec::new()),
                _ => Row::LeftOut(fields.get(1).copied().unwrap_or_default().to_owned()),
            };
            rows.push((what.to_owned(), row));
            rows.len() - 1
        });
        if let ([_, _, which, value], Row::Measured(_, old, new)) = (&fields[..], &mut rows[at].1) {
            let values = if *which == "old" { old } else { new };
            values.push(value.parse().unwrap_or(0.0));
        }
    }
    let mut table = format!(
        "{:<46} {:>9} {:>9} {:>6}   95% interval\n",
        "", headings.old, headings.new, "ratio"
    );
    for (what, row) in &rows {
        let _ = match row {
            Row::LeftOut(why) => writeln!(table, "{what:<46} {why}"),
            Row::Measured(_, old, new) if new.is_empty() || old.len() != new.len() => {
                writeln!(table, "{what:<46} incomplete")
            }
            Row::Measured(more, old, new) => {
                let pairs = old.iter().zip(new);
                let mut pairs: Vec<f64> =
                    pairs.map(|(old, new)| ratio(*more, *old, *new)).collect();
                pairs.sort_by(f64::total_cmp);
                let (least, most) = median_interval(&pairs);
                let (old, new, ratio) = (median(old), median(new), median(&pairs));
                let wanted = headings.wanted;
                let mark = if ratio < wanted {
                    format!("   BELOW {wanted:.2}")
                } else {
                    String::new()
                };
                writeln!(
                    table,
                    "{what:<46} {old:>9.3} {new:>9.3} {ratio:>6.3}   {least:.2}-{most:.2}{mark}"
                )
            }
        };
    }
    table
}

/// Returns how good `new` is: above 1 is better.
fn ratio(more: bool, old: f64, new: f64) -> f64 {
    let (better, worse) = if more { (new, old) } else { (old, new) };
    if worse > 0.0 { better / worse } else { 1.0 }
}

/// Returns the 95% confidence interval of the median of which `sorted` are samples, or the least and the largest sample
/// if there are fewer than six. It holds for any distribution: a sample is below the true median with a probability of
/// one half, so the number of samples below it is binomial.
fn median_interval(sorted: &[f64]) -> (f64, f64) {
    /// The probability that the true median is below the interval, and that it is above.
    const TAIL: f64 = 0.025;
    let count = u32::try_from(sorted.len()).unwrap_or(u32::MAX);
    let mut inner = sorted;
    // The probabilities that exactly, and that at most, so many samples are below the true median.
    let mut exactly = 0.5_f64.powf(f64::from(count));
    let mut at_most = exactly;
    for below in 0..count.saturating_sub(1) / 2 {
        exactly *= f64::from(count - below) / f64::from(below + 1);
        at_most += exactly;
        if at_most > TAIL {
            break;
        }
        inner = &inner[1..inner.len() - 1];
    }
    (inner[0], inner[inner.len() - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_compared_and_bad_ratios_marked() {
        let figures = "\
speed\tmore\told\t1\nspeed\tmore\tnew\t2\nspeed\tmore\told\t3\nspeed\tmore\tnew\t2
calls\tless\told\t30\ncalls\tless\tnew\t40
half\tmore\told\t1
rig\tSKIPPED: RIG names no command
";
        let table = table(figures, &Headings::REVISIONS);
        let rows: Vec<&str> = table.lines().collect();
        let row = |what: &str, rest: &str| format!("{what:<46} {rest}");
        let expected = [
            row("speed", "    2.000     2.000  1.333   0.67-2.00"),
            row(
                "calls",
                "   30.000    40.000  0.750   0.75-0.75   BELOW 0.97",
            ),
            row("half", "incomplete"),
            row("rig", "SKIPPED: RIG names no command"),
        ];
        assert_eq!(rows[1..], expected);
    }

    #[test]
    fn the_interval_of_a_median_has_the_ends_of_the_binomial_table() {
        // The ranks of the sign test at 95%, counted from 1 in the tables.
        let ranks = [
            (1, 1),
            (5, 1),
            (6, 1),
            (8, 1),
            (9, 2),
            (15, 4),
            (21, 6),
            (41, 14),
        ];
        for (count, first) in ranks {
            let samples: Vec<f64> = (1..=count).map(f64::from).collect();
            let ends = (f64::from(first), f64::from(count + 1 - first));
            assert_eq!(median_interval(&samples), ends, "{count} samples");
        }
    }

    #[test]
    fn a_median_of_an_even_number_is_between_the_two_in_the_middle() {
        assert!((median(&[4.0, 1.0, 3.0, 2.0]) - 2.5).abs() < 1e-9);
        assert!((median(&[5.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
    }
}
