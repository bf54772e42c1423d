//! Reports of `rdperf --json` and `rdperf --csv` as the tests read them; `--plot`, `--report` and `draw`: pictures of a
//! run, and of a saved report; `rdperf diff`: two reports, and what has changed between them.

use std::{fs, path::Path};

use rustix::process::Signal;
use serde_json::Value;

use super::{
    checks::{delay, lacks_shaping},
    quick, rdperf,
};
use crate::support::programs::{
    End, Place,
    hosts::{Network, Outcome},
};

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
        "rails",
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

/// Returns the numbers of rails that are measured beside one, on hosts that are this machine.
pub(crate) fn rails() -> Vec<usize> {
    let processors = std::thread::available_parallelism().unwrap().get();
    let rails = [2, 4, 8].into_iter();
    rails.filter(|rails| *rails <= processors).collect()
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

/// Returns the texts of a picture, which is XML.
#[track_caller]
fn texts(svg: &str) -> Vec<String> {
    let tree = roxmltree::Document::parse(svg).expect("it is XML");
    assert!(tree.root_element().has_tag_name("svg"));
    let texts = tree.descendants().filter(|node| node.has_tag_name("text"));
    texts
        .filter_map(|node| node.text().map(str::to_owned))
        .collect()
}

/// Checks that these words are texts of a picture.
#[track_caller]
fn has_texts(svg: &str, words: &[&str]) {
    let texts = texts(svg);
    for word in words {
        assert!(texts.iter().any(|text| text == word), "{word}: {texts:?}");
    }
}

#[test]
fn a_run_is_drawn_and_a_saved_report_is_drawn_alike() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let at = |name: &str| network.own(name).display().to_string();
    let (plot, page, again) = (at("plot.svg"), at("page.html"), at("again.svg"));
    let options = [
        "--json=-", "--size", "64,4K", "--plot", &plot, "--report", &page,
    ];
    let run = network
        .rdperf(quick(&options))
        .args(["h1", "h2"])
        .start()
        .end();
    run.exits(0);
    let svg = fs::read_to_string(&plot).unwrap();
    let words = [
        "rdperf: h1 to h2",
        "TCP stream, one way",
        "TCP socket, one way",
        "TCP: time there and back, µs",
        "4 KiB",
        "stream, p50",
        "socket, busy, p99",
    ];
    has_texts(&svg, &words);
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.contains("<h1>rdperf: h1 to h2</h1>"), "{html}");
    assert!(html.contains("<td>stream, one way</td>"), "{html}");
    assert!(html.contains("<svg "), "{html}");
    assert!(html.contains("h1 to h2, TCP: network "), "{html}");
    assert!(html.contains("<pre>rdperf --ssh-opt "), "{html}");
    assert!(html.contains(" h1 h2</pre>"), "{html}");
    assert!(html.contains("prefers-color-scheme: dark"), "{html}");
    assert!(!html.contains('`'), "{html}");
    // The report for programs is whole, too.
    let report = network.write("ctl", "report.json", &run.stdout);
    let report = report.display().to_string();
    let end = rdperf(&["draw", &report, "--plot", &again]).start().end();
    end.exits(0);
    has_texts(&fs::read_to_string(&again).unwrap(), &words);
    // The page of a saved report has the findings, too.
    let page_again = at("again.html");
    let end = rdperf(&["draw", &report, "--report", &page_again])
        .start()
        .end();
    end.exits(0);
    let html = fs::read_to_string(&page_again).unwrap();
    let reason = if cfg!(feature = "rdma") {
        "no RDMA device"
    } else {
        "built without RDMA"
    };
    assert!(html.contains(reason), "{html}");
    // Nothing but the files themselves is left.
    let folder = network.own("plot.svg").parent().unwrap().to_owned();
    let names = fs::read_dir(folder).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    let leftovers: Vec<_> = names.filter(|name| name.contains(".rd")).collect();
    assert_eq!(leftovers, [""; 0]);
}

#[test]
fn an_interrupted_run_draws_what_it_has() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let plot = network.own("cut.svg").display().to_string();
    let running = network
        .rdperf(["-v", "--time", "0.1", "--runs", "1000"])
        .args(["--measure", "bandwidth", "--transport", "tcp"])
        .args(["--plot", &plot, "h1", "h2"])
        .start();
    running.said("a measurement", |text| {
        (text.matches(" GB/s").count() >= 3).then_some(())
    });
    assert!(!fs::exists(&plot).unwrap(), "there is no half of a picture");
    running.signal(Signal::INT);
    running.end().exits(130);
    // Which of the measurements come first does not matter.
    let texts = texts(&fs::read_to_string(&plot).unwrap());
    assert!(
        texts.iter().any(|text| text.ends_with(", one way")),
        "{texts:?}"
    );
}

#[test]
fn a_file_that_cannot_be_written_is_named_before_anything_is_measured() {
    let Some(network) = Network::new(1) else {
        return;
    };
    for option in ["--plot", "--report"] {
        let end = network
            .rdperf(quick(&[option, "/no/such/folder/file", "h1"]))
            .start()
            .end();
        end.tells(1, &["cannot create /no/such/folder/file"]);
        assert!(end.stdout.is_empty());
        // A full disk is found when the file is written. The report is printed all the same.
        let end = network
            .rdperf(quick(&["--measure=connect", option, "/dev/full", "h1"]))
            .start()
            .end();
        end.tells(1, &["cannot write /dev/full", "No space left"]);
        let text = String::from_utf8_lossy(&end.stdout);
        assert!(text.contains("TCP connect"), "{text}");
        // That for programs knows of it.
        let end = network
            .rdperf(quick(&[
                "--measure=connect",
                "--json=-",
                option,
                "/dev/full",
                "h1",
            ]))
            .start()
            .end();
        end.exits(1);
        let report = Report::of(&end);
        assert_eq!(report.0["exit"], 1);
        let errors = report.list("errors");
        assert!(
            errors[0].as_str().unwrap().contains("/dev/full"),
            "{errors:?}"
        );
    }
}

#[test]
fn without_a_measurement_there_is_no_picture() {
    let Some(network) = Network::new(1) else {
        return;
    };
    let plot = network.own("none.svg").display().to_string();
    fs::write(&plot, "as before").unwrap();
    let end = network
        .rdperf(["--transport", "rdma", "--plot", &plot, "h1"])
        .start()
        .end();
    end.tells(255, &["nothing was measured"]);
    assert_eq!(fs::read_to_string(&plot).unwrap(), "as before");
}

#[test]
fn a_report_that_cannot_be_drawn_is_named() {
    for (arguments, code, words) in [
        (
            &["draw", "/none.json", "--plot", "x"][..],
            2,
            &["cannot read /none.json"][..],
        ),
        (&["draw", "/dev/null", "--plot", "x"], 2, &["is no report"]),
        (&["draw", "x"], 2, &["what to draw"]),
        (&["draw", "x", "--plot", "y", "--csv"], 2, &["--csv"]),
        (&["--plot", "x", "a", "b", "c"], 2, &["--plot", "one pair"]),
        (&["--plot", "x", "--check", "a"], 2, &["--plot", "--check"]),
        (
            &["--report", "x", "--pingpong", "a"],
            2,
            &["--report", "--pingpong"],
        ),
        (&["diff", "a", "b", "--report", "x"], 2, &["rdperf draw"]),
    ] {
        let end = rdperf(arguments).start().end();
        end.tells(code, words);
        assert!(!fs::exists("x").unwrap());
    }
}

/// Compares two reports.
#[track_caller]
fn diff(old: impl AsRef<Path>, new: impl AsRef<Path>, options: &[&str]) -> End {
    let rdperf = rdperf(&["diff"]);
    let rdperf = rdperf.arg(old.as_ref()).arg(new.as_ref());
    rdperf.args(options).start().end()
}

/// Measures h1, and writes the report to a file of ctl.
#[track_caller]
fn measured(network: &Network, name: &str, options: &[&str]) -> (std::path::PathBuf, Value) {
    let common = ["--json=-", "--time", "0.1", "--transport", "tcp", "h1"];
    let end = network.rdperf(common.iter().chain(options)).start().end();
    end.exits(0);
    (network.write("ctl", name, &end.stdout), Report::of(&end).0)
}

#[test]
fn a_repetition_has_not_changed() {
    let Some(network) = Network::new(1) else {
        return;
    };
    let options = ["--measure", "bandwidth", "--streams", "1", "--runs", "3"];
    let (old, _) = measured(&network, "old", &options);
    let (new, _) = measured(&network, "new", &options);
    // Beside other tests the rates vary a lot.
    let end = diff(&old, &new, &["--threshold", "1000"]);
    end.exits(0);
    let lines = lines(&end);
    assert_eq!(
        lines.last().map(String::as_str),
        Some("Nothing has changed beyond noise.")
    );
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("here to h1, TCP, stream, one way ")),
        "{lines:#?}"
    );
    // A report and itself are equal, whatever the threshold is.
    diff(&old, &old, &["--threshold", "0"]).exits(0);
}

#[test]
fn a_delay_of_twenty_milliseconds_is_a_change_for_the_worse() {
    let Some(network) = Network::new(1) else {
        return;
    };
    if lacks_shaping(&network) {
        return;
    }
    let options = ["--measure", "latency", "--runs", "1"];
    let (old, _) = measured(&network, "old", &options);
    delay(&network, "h1");
    let (new, _) = measured(&network, "new", &options);
    let end = diff(&old, &new, &[]);
    end.exits(1);
    let lines = lines(&end);
    let events = lines
        .iter()
        .find(|line| line.contains("TCP, 64 B, socket, events"));
    assert!(
        events.is_some_and(|line| line.ends_with("WORSE")),
        "{lines:#?}"
    );
    assert!(
        lines.last().is_some_and(|line| line.contains(" worse, ")),
        "{lines:#?}"
    );
}

#[test]
fn a_change_counts_beyond_the_threshold_and_the_spreads() {
    let place = Place::new();
    let old = place.file(
        "old.json",
        made_report(&[[1e9, 1.01e9, 0.99e9], [20.0, 20.2, 19.8]]).as_bytes(),
    );
    // The spreads are 1% each.
    for (name, rates, times, options, code) in [
        ("same", 1e9, 20.0, &[][..], 0),
        ("noise", 0.96e9, 20.6, &[], 0),
        ("slower", 0.9e9, 20.0, &[], 1),
        ("later", 1e9, 22.0, &[], 1),
        ("better", 1.2e9, 15.0, &[], 0),
        ("slower, allowed", 0.9e9, 20.0, &["--threshold", "20"], 0),
        (
            "less than the spreads",
            0.985e9,
            20.0,
            &["--threshold=0"],
            0,
        ),
        (
            "more than the spreads",
            0.95e9,
            20.0,
            &["--threshold=1%"],
            1,
        ),
    ] {
        let of = |value: f64| [value, value * 1.01, value * 0.99];
        let new = place.file(name, made_report(&[of(rates), of(times)]).as_bytes());
        let end = diff(&old, &new, options);
        assert_eq!(end.exits(code), "", "{name}");
        let is_worse = lines(&end).iter().any(|line| line.ends_with("WORSE"));
        assert_eq!(is_worse, code == 1, "{name}: {:#?}", lines(&end));
    }
    // What is missing is a change for the worse, and what is new is not.
    let half = place.file("half", made_report(&[[1e9; 3]]).as_bytes());
    let whole = place.file("whole", made_report(&[[1e9; 3], [20.0; 3]]).as_bytes());
    let end = diff(&whole, &half, &[]);
    end.exits(1);
    assert!(lines(&end).iter().any(|line| line.ends_with("missing")));
    diff(&half, &whole, &[]).exits(0);
}

/// Returns a report with a rate and, if there are two series, a time.
fn made_report(series: &[[f64; 3]]) -> String {
    let whats = [
        serde_json::json!({ "measure": "bandwidth", "carrier": "stream", "transport": "tcp", "traffic": "forward", "streams": 1, "size": null }),
        serde_json::json!({ "measure": "latency", "carrier": "stream", "transport": "tcp", "wait": "adaptive", "size": 64 }),
    ];
    let series = series.iter().zip(whats).map(|(values, what)| {
        let runs = values.map(
            |value| serde_json::json!({ "value": value, "cpu_dialer": 0.5, "cpu_listener": 0.5 }),
        );
        serde_json::json!({ "from": "here", "to": "h1", "what": what, "runs": runs })
    });
    let report = serde_json::json!({
        "version": 1, "rdperf": "0.1.0", "exit": 0, "started": 0, "hosts": [], "findings": [], "choices": [],
        "series": series.collect::<Vec<_>>(), "errors": [], "verdict": ""
    });
    report.to_string()
}

#[test]
fn a_file_that_is_no_report_is_named() {
    let place = Place::new();
    let good = place.file("good", made_report(&[[1e9; 3]]).as_bytes());
    let other_form = made_report(&[[1e9; 3]]).replace("\"version\":1", "\"version\":99");
    for (name, content) in [
        ("empty", ""),
        ("text", "no JSON\n"),
        ("other", "{\"a\": 1}\n"),
        ("half", &made_report(&[[1e9; 3]])[..100]),
        ("other form", &other_form),
    ] {
        let bad = place.file(name, content.as_bytes());
        for (old, new) in [(&good, &bad), (&bad, &good)] {
            let end = diff(old, new, &[]);
            end.fails(2, &[&bad]);
            assert!(end.stdout.is_empty());
        }
    }
    let missing = place.path("missing");
    diff(&good, &missing, &[]).fails(2, &["missing", "No such file"]);
    diff(place.directory(), &good, &[]).tells(2, &["directory"]);
}
