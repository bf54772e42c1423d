//! `--plot`, `--report` and `draw`: pictures of a run, and of a saved report.

use std::fs;

use rustix::process::Signal;

use super::{quick, reports::Report};
use crate::support::programs::{
    Setup,
    hosts::{Network, Outcome},
    program,
};

fn rdperf(arguments: &[&str]) -> Setup {
    program(env!("CARGO_BIN_EXE_rdperf"), "rdperf").args(arguments)
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
        "--json", "--size", "64,4K", "--plot", &plot, "--report", &page,
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
    assert!(html.contains("no RDMA device"), "{html}");
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
                "--json",
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
