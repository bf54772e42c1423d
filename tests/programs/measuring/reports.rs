//! Reports of `rdperf --json` and `rdperf --csv` as the tests read them.

use serde_json::Value;

use crate::support::programs::End;

/// The report of a run with `--json`.
#[derive(Debug)]
pub(crate) struct Report(pub(crate) Value);

impl Report {
    /// Returns the report that a program has written to stdout: one object, and nothing else.
    #[track_caller]
    pub(crate) fn of(end: &End) -> Self {
        let report = serde_json::from_slice(&end.stdout);
        let text = String::from_utf8_lossy(&end.stdout);
        Self(report.unwrap_or_else(|error| panic!("{error} in {text}\n{}", end.stderr)))
    }

    /// Returns a field that holds a list.
    #[track_caller]
    pub(crate) fn list(&self, field: &str) -> &[Value] {
        let list = self.0[field].as_array();
        list.unwrap_or_else(|| panic!("no {field} in {:#}", self.0))
    }

    /// Returns the field of the report that holds a text.
    #[track_caller]
    pub(crate) fn text(&self, field: &str) -> &str {
        text(&self.0, field)
    }

    /// Returns the subjects of the findings with this code, in order.
    pub(crate) fn subjects(&self, code: &str) -> Vec<&str> {
        let all = self.list("findings").iter();
        all.filter(|finding| finding["code"] == code)
            .map(|finding| text(finding, "subject"))
            .collect()
    }

    /// Returns the codes of the findings that ask for a repair, in order.
    pub(crate) fn repairs(&self) -> Vec<&str> {
        let all = self.list("findings").iter();
        all.filter(|finding| finding["severity"] == "repair")
            .map(|finding| text(finding, "code"))
            .collect()
    }

    /// Returns the remedy of the finding with this code and this subject.
    #[track_caller]
    pub(crate) fn remedy(&self, code: &str, subject: &str) -> &str {
        let is_it = |finding: &&Value| finding["code"] == code && finding["subject"] == subject;
        let found = self.list("findings").iter().find(is_it);
        let found = found.unwrap_or_else(|| panic!("no {code} of {subject} in {:#}", self.0));
        text(found, "remedy")
    }
}

/// Returns a field that holds a text.
#[track_caller]
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    let text = value[field].as_str();
    text.unwrap_or_else(|| panic!("no text {field} in {value:#}"))
}

/// Returns a field that holds a number.
#[track_caller]
pub(crate) fn number(value: &Value, field: &str) -> f64 {
    let number = value[field].as_f64();
    number.unwrap_or_else(|| panic!("no number {field} in {value:#}"))
}

/// Returns what a measurement is, in a few words: `bandwidth stream tcp forward 1`.
pub(crate) fn what(series: &Value) -> String {
    let fields = [
        "measure",
        "carrier",
        "transport",
        "traffic",
        "streams",
        "wait",
        "size",
    ];
    let values = fields.iter().map(|field| match &series["what"][field] {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => String::new(),
    });
    let values: Vec<_> = values.filter(|value| !value.is_empty()).collect();
    values.join(" ")
}

/// Returns the lines that a program has written to stdout.
pub(crate) fn lines(end: &End) -> Vec<String> {
    let text = String::from_utf8_lossy(&end.stdout);
    text.lines().map(str::to_owned).collect()
}

/// Returns the cells of a line of CSV.
pub(crate) fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut is_quoted = false;
    for character in line.chars() {
        match character {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => cells.push(String::new()),
            other => cells.last_mut().expect("a cell").push(other),
        }
    }
    cells
}
