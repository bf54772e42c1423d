//! The report of `scripts/bench copy`.
//!
//! Each input line is one record, of fields separated by tabs:
//!
//! | first field | the others |
//! |---|---|
//! | `set` | the letter of a set, and what it is |
//! | `run` | the set, the contender, and the seconds of one run |
//! | `disk` | the set, the contender or `source`, and the KiB that the files take on the disk |
//! | `lane` | the bytes that one lane of `rdcp -j 2` carried |
//! | `calls` | the contender, and the system calls for each file at the source and at the destination |
//! | `left-out` | what was not measured, and why |
//!
//! The n-th runs of two contenders belong to one round.

use std::fmt::Write as _;

use crate::figures::{median, verdict};

/// The contender that the others are compared with.
const OURS: &str = "rdcp";

/// The largest wall time of one contender as a share of another's that is wanted: the set, the two contenders, the
/// share.
const WANTED: [(&str, &str, &str, f64); 14] = [
    ("A", OURS, "tar by rdpipe", 0.9),
    ("A", OURS, "rsync daemon", 0.55),
    ("B", OURS, "tar by rdpipe", 0.9),
    ("B", OURS, "rsync daemon", 0.85),
    ("C", OURS, "rdpipe < >", 1.05),
    ("C", "rdcp -j 2", "rdcp -j 1", 1.0),
    ("D", OURS, "tar -S by rdpipe", 1.0),
    ("same", OURS, "rsync daemon", 1.0),
    ("same", "rdcp logged in", "rsync daemon", 1.0),
    ("same", "rdcp to a server", "rsync daemon", 1.0),
    ("A", OURS, "rdcp over TCP", 1.0),
    ("B", OURS, "rdcp over TCP", 1.0),
    ("C", OURS, "rdcp over TCP", 1.0),
    ("D", OURS, "rdcp over TCP", 1.0),
];

/// The share that the lane with fewer bytes is to have of the other's.
const LEAST_LANE: f64 = 0.8;

/// The most system calls for each small file, at either end.
const MOST_CALLS: f64 = 8.0;

/// The share of the source's blocks that the copy of a sparse file may take.
const MOST_DISK: f64 = 1.01;

/// A contender, and what was measured of it, in the order of the runs.
type Measured = Vec<(String, Vec<f64>)>;

/// What was measured of one set.
struct Set {
    name: String,
    title: String,
    /// The seconds of all runs.
    runs: Measured,
    /// The KiB on the disk.
    disk: Measured,
}

/// Returns the report: a table for each set, then the verdicts.
pub(crate) fn report(records: &str) -> String {
    let mut sets: Vec<Set> = Vec::new();
    let (mut lanes, mut calls, mut left_out) = (Vec::new(), Vec::new(), String::new());
    for line in records.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        match fields[..] {
            ["set", name, title] => sets.push(Set {
                name: name.to_owned(),
                title: title.to_owned(),
                runs: Vec::new(),
                disk: Vec::new(),
            }),
            ["run", set, who, value] => add(&mut sets, set, |set| &mut set.runs, who, value),
            ["disk", set, who, value] => add(&mut sets, set, |set| &mut set.disk, who, value),
            ["lane", bytes] => lanes.push(number(bytes)),
            ["calls", who, source, destination] => {
                calls.push((who.to_owned(), number(source), number(destination)));
            }
            ["left-out", what, why] => {
                let _ = writeln!(left_out, "{what}: {why}");
            }
            _ => {
                let _ = writeln!(left_out, "not a record: {line}");
            }
        }
    }
    let mut report = String::new();
    for set in &sets {
        report += &table(set);
    }
    report += &table_of_calls(&calls);
    report += &lines_of_lanes(&lanes);
    report += &verdicts(&sets, &lanes, &calls);
    report + &left_out
}

fn add(
    sets: &mut [Set],
    name: &str,
    column: impl Fn(&mut Set) -> &mut Measured,
    who: &str,
    value: &str,
) {
    if let Some(set) = sets.iter_mut().find(|set| set.name == name) {
        let column = column(set);
        let value = number(value);
        match column.iter_mut().find(|(known, _)| known == who) {
            Some((_, values)) => values.push(value),
            None => column.push((who.to_owned(), vec![value])),
        }
    }
}

fn number(text: &str) -> f64 {
    text.trim().parse().unwrap_or(0.0)
}

/// Returns the table of a set. A ratio is our time as a share of the contender's.
fn table(set: &Set) -> String {
    if set.runs.is_empty() {
        return String::new();
    }
    let mut table = format!("{}: {}\n", set.name, set.title);
    let _ = writeln!(
        table,
        "{:<20} {:>8} {:>15} {:>10} {:>12}",
        "", "wall s", "fastest-slowest", "rdcp/this", "each round"
    );
    let ours = values(&set.runs, OURS);
    for (who, runs) in &set.runs {
        let (least, most) = extremes(runs);
        let _ = write!(table, "{who:<20} {:>8.3} ", median(runs));
        let _ = write!(table, "{:>15}", format!("{least:.3}-{most:.3}"));
        if let Some(ours) = ours.filter(|_| who != OURS) {
            let (least, most) = extremes(&pairs(ours, runs));
            let _ = write!(table, " {:>10.2}", median(ours) / median(runs));
            let _ = write!(table, " {:>12}", format!("{least:.2}-{most:.2}"));
        }
        table.push('\n');
    }
    for (who, kib) in &set.disk {
        let _ = writeln!(
            table,
            "on the disk, {who}: {:.1} MB",
            median(kib) * 1.024e-3
        );
    }
    table.push('\n');
    table
}

fn table_of_calls(calls: &[(String, f64, f64)]) -> String {
    if calls.is_empty() {
        return String::new();
    }
    let mut table = format!("{:<20} {:>8} {:>12}\n", "", "source", "destination");
    for (who, source, destination) in calls {
        let _ = writeln!(table, "{who:<20} {source:>8.2} {destination:>12.2}");
    }
    format!("system calls for each file of 4 KiB\n{table}\n")
}

fn lines_of_lanes(lanes: &[f64]) -> String {
    let text = lanes.chunks(2).map(|lanes| {
        let bytes: Vec<String> = lanes.iter().map(|bytes| format!("{bytes:.0}")).collect();
        format!("C, bytes of the lanes of -j 2: {}\n", bytes.join(", "))
    });
    text.collect()
}

/// Returns a line for each wanted figure that was measured.
fn verdicts(sets: &[Set], lanes: &[f64], calls: &[(String, f64, f64)]) -> String {
    let mut text = String::new();
    for (name, ours, theirs, wanted) in WANTED {
        let set = sets.iter().find(|set| set.name == name);
        let runs = set.and_then(|set| Some((values(&set.runs, ours)?, values(&set.runs, theirs)?)));
        if let Some((ours_s, theirs_s)) = runs {
            let what = format!("{name}, {ours}/{theirs}");
            text += &verdict(&what, median(ours_s) / median(theirs_s), "≤", wanted);
        }
    }
    for set in sets {
        let kib = |who| values(&set.disk, who).map(median);
        if let (Some(ours), Some(source)) = (kib(OURS), kib("source")) {
            let what = format!("{}, disk, rdcp/source", set.name);
            text += &verdict(&what, ours / source, "≤", MOST_DISK);
        }
    }
    for lanes in lanes.chunks_exact(2) {
        let (least, most) = extremes(lanes);
        let share = if most > 0.0 { least / most } else { 0.0 };
        text += &verdict("C, bytes, lesser lane/other", share, "≥", LEAST_LANE);
    }
    if let Some((_, source, destination)) = calls.iter().find(|(who, ..)| who == OURS) {
        text += &verdict("calls for a file, source", *source, "≤", MOST_CALLS);
        text += &verdict(
            "calls for a file, destination",
            *destination,
            "≤",
            MOST_CALLS,
        );
    }
    text
}

fn values<'a>(measured: &'a Measured, who: &str) -> Option<&'a [f64]> {
    let mut known = measured.iter();
    let (_, values) = known.find(|(name, _)| name == who)?;
    Some(values)
}

/// Returns our share of the time of each round.
fn pairs(ours: &[f64], theirs: &[f64]) -> Vec<f64> {
    let pairs = ours.iter().zip(theirs);
    pairs.map(|(ours, theirs)| ours / theirs).collect()
}

fn extremes(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    (least, values.iter().copied().fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDS: &str = "\
set\tA\tmany small files
run\tA\trdcp\t0.8
run\tA\ttar by rdpipe\t1.0
run\tA\ttar by rdpipe\t1.2
run\tA\trdcp\t0.9
run\tA\trdcp\t1.0
run\tA\ttar by rdpipe\t0.9
set\tD\tsparse
run\tD\trdcp\t0.4
disk\tD\trdcp\t99500
disk\tD\tsource\t99000
lane\t1000
lane\t700
calls\trdcp\t5\t9.5
left-out\tscp\tSCP=yes measures it
";

    #[test]
    fn a_row_has_the_median_the_extremes_and_our_share() {
        let report = report(RECORDS);
        let rows: Vec<&str> = report.lines().collect();
        assert_eq!(rows[0], "A: many small files");
        assert_eq!(rows[2], "rdcp                    0.900     0.800-1.000");
        let tar = "tar by rdpipe           1.000     0.900-1.200       0.90    0.75-1.11";
        assert_eq!(rows[3], tar);
    }

    #[test]
    fn what_is_wanted_is_judged() {
        let report = report(RECORDS);
        let verdict_of = |what: &str| {
            let mut rows = report.lines().filter(|row| row.starts_with(what));
            let row = rows
                .next_back()
                .unwrap_or_else(|| panic!("{what}: {report}"));
            row.rsplit(' ').next().unwrap().to_owned()
        };
        assert_eq!(verdict_of("A, rdcp/tar by rdpipe"), "ok");
        assert_eq!(verdict_of("D, disk, rdcp/source"), "ok");
        assert_eq!(verdict_of("C, bytes, lesser lane/other"), "MISSED");
        assert_eq!(verdict_of("calls for a file, source"), "ok");
        assert_eq!(verdict_of("calls for a file, destination"), "MISSED");
        assert!(!report.contains("rsync daemon"), "{report}");
        assert!(report.ends_with("scp: SCP=yes measures it\n"), "{report}");
    }

    #[test]
    fn without_rdcp_the_others_have_rows_without_a_share() {
        let report = report("set\tB\tmixed\nrun\tB\tcp -a\t0.5\n");
        assert!(report.contains("cp -a                   0.500"), "{report}");
        assert!(!report.contains("want"), "{report}");
        assert!(report.ends_with("0.500-0.500\n\n"), "{report}");
    }
}
