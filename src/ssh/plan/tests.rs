use proptest::prelude::*;

use super::{launch::Remote, *};
use crate::ssh::quote;

fn plan(segments: &[&str]) -> Result<Plan, PlanError> {
    let segments: Vec<OsString> = segments.iter().map(OsString::from).collect();
    Plan::parse(&segments, PlanInput::Standard)
}

fn one(segment: &str) -> PlannedStage {
    plan(&[segment]).unwrap().stages.remove(0)
}

fn fault(segment: &str) -> SegmentFault {
    plan(&[segment]).unwrap_err().fault
}

fn host(destination: &str, host: &str) -> StageHost {
    StageHost::Host {
        destination: destination.to_owned(),
        host: host.to_owned(),
    }
}

fn command(text: &str) -> StageWork {
    StageWork::Command(text.as_bytes().to_vec())
}

#[test]
fn segments_come_in_every_form() {
    for (segment, place, text) in [
        ("fs1:wc -c", host("fs1", "fs1"), "wc -c"),
        ("me@fs1:wc", host("me@fs1", "fs1"), "wc"),
        ("me@corp@fs1:wc", host("me@corp@fs1", "fs1"), "wc"),
        ("[::1]:wc", host("::1", "::1"), "wc"),
        (
            "me@[fe80::1%eth0]:wc",
            host("me@fe80::1%eth0", "fe80::1%eth0"),
            "wc",
        ),
        (
            "10.0.0.1:tr a:b c@d",
            host("10.0.0.1", "10.0.0.1"),
            "tr a:b c@d",
        ),
        (":echo hello", StageHost::Here, "echo hello"),
        (":: is a command", StageHost::Here, ": is a command"),
        ("a: echo 'ä\n$x!'", host("a", "a"), " echo 'ä\n$x!'"),
    ] {
        let stage = one(segment);
        assert_eq!(
            (stage.place, stage.work),
            (place, command(text)),
            "{segment}"
        );
        assert_eq!(stage.text, text);
    }
}

#[test]
fn a_segment_that_begins_with_an_operator_names_a_file() {
    let write = |path: &str, append| StageWork::Write {
        path: path.into(),
        append,
    };
    for (text, work) in [
        ("<f", StageWork::Read(b"f".to_vec())),
        ("<  a b ", StageWork::Read(b"a b ".to_vec())),
        ("> mycopy", write("mycopy", false)),
        (">>\t~/log", write("~/log", true)),
        ("  > f", write("f", false)),
        (">$HOME/x", write("$HOME/x", false)),
    ] {
        let stage = one(&format!("h:{text}"));
        assert!(stage.is_file());
        assert_eq!(stage.work, work, "{text}");
    }
}

#[test]
fn a_pipeline_that_begins_with_a_file_reads_no_input() {
    assert!(!plan(&["a:< f", "b:cat"]).unwrap().has_input);
    assert!(plan(&["a:cat", "b:< f"]).unwrap().has_input);
    assert!(plan(&["a:> f"]).unwrap().has_input);
    let with = |segment: &str, input| Plan::parse(&[segment.into()], input).unwrap();
    assert!(!with("a:cat", PlanInput::Nothing).has_input);
    let closed = with("a:cat", PlanInput::Closed);
    assert!(!closed.has_input);
    let work = StageWork::CommandWithoutStdin(b"cat".to_vec());
    assert_eq!(closed.stages[0].work, work);
    assert!(with("a:> f", PlanInput::Closed).has_input, "its edge fails");
}

#[test]
fn an_invalid_segment_is_refused_with_a_reason() {
    for (segment, expected) in [
        ("fs1", SegmentFault::NoColon),
        ("", SegmentFault::NoColon),
        ("[::1]", SegmentFault::Brackets),
        ("[::1:wc", SegmentFault::Brackets),
        ("[fs1]:wc", SegmentFault::Brackets),
        ("[::1]wc", SegmentFault::Brackets),
        ("[fe80::1%]:wc", SegmentFault::Brackets),
        ("-oProxyCommand=x:wc", SegmentFault::Dash),
        ("me@-x:wc", SegmentFault::Dash),
        ("-x@fs1:wc", SegmentFault::Dash),
        ("@fs1:wc", SegmentFault::Host),
        ("me@:wc", SegmentFault::Host),
        ("two words:wc", SegmentFault::Host),
        ("fs1:", SegmentFault::NoCommand),
        ("fs1:  \n", SegmentFault::NoCommand),
        (":", SegmentFault::NoCommand),
        ("fs1:<", SegmentFault::NoFile),
        ("fs1:>> ", SegmentFault::NoFile),
    ] {
        assert_eq!(fault(segment), expected, "{segment}");
    }
    let text = plan(&["a:b", "c"]).unwrap_err().to_string();
    assert!(
        text.starts_with("\"c\": a segment is HOST:COMMAND"),
        "{text}"
    );
}

#[test]
fn stages_and_the_ends_of_edges_have_names() {
    let plan = plan(&["fs1:a", ":b"]).unwrap();
    assert_eq!(plan.name(1), "2 (here)");
    let ends = |edge| plan.ends(edge);
    let text = |from: &str, to: &str| (from.to_owned(), to.to_owned());
    assert_eq!(ends(0), text("rdpipe", "stage 1 (fs1)"));
    assert_eq!(ends(1), text("stage 1 (fs1)", "stage 2 (here)"));
    assert_eq!(ends(2), text("stage 2 (here)", "rdpipe"));
}

#[test]
fn addresses_are_given_by_host() {
    let given = Addresses::parse("fs1=10.0.0.1,[::1],fs1.fast").unwrap();
    assert_eq!(given.host, "fs1");
    assert_eq!(given.addresses, ["10.0.0.1", "::1", "fs1.fast"]);
    for text in ["", "fs1", "fs1=", "=10.0.0.1", "fs1=a,,b", "fs1=-x"] {
        assert!(Addresses::parse(text).is_err(), "{text}");
    }
}

fn words(remote: &Remote, segment: &str) -> Vec<String> {
    let launch = remote.launch(&one(segment).place, "/own/rdpipe".as_ref());
    let launch = launch.unwrap();
    let word = |word: OsString| word.into_string().unwrap();
    launch.argv.into_iter().map(word).collect()
}

#[test]
fn the_users_ssh_options_come_first() {
    let remote = Remote {
        ssh_options: vec!["-F".to_owned(), "cfg".to_owned()],
        program: Some("/opt/r d".to_owned()),
        ..Remote::default()
    };
    let words = words(&remote, "me@fs1:wc");
    assert_eq!(words[..4], ["ssh", "-F", "cfg", "-T"]);
    assert_eq!(
        words[words.len() - 3..],
        ["me@fs1", "'/opt/r d'", "--agent"]
    );
    assert!(words.contains(&"-oBatchMode=yes".to_owned()));
}

#[test]
fn the_words_of_rsh_are_passed_unchanged() {
    let rsh = |text: &str| Remote {
        rsh: quote::split_words(text),
        program: Some("/opt/r d".to_owned()),
        ..Remote::default()
    };
    assert_eq!(
        words(&rsh("kubectl exec -i pod-{host} --"), "fs1:wc"),
        [
            "kubectl", "exec", "-i", "pod-fs1", "--", "/opt/r d", "--agent"
        ]
    );
    assert_eq!(
        words(&rsh("myrsh -q"), "me@fs1:wc"),
        ["myrsh", "-q", "me@fs1", "/opt/r d", "--agent"]
    );
    assert_eq!(words(&rsh("myrsh"), ":wc"), ["/own/rdpipe", "--agent"]);
}

proptest! {
    #[test]
    fn every_command_arrives_as_it_was_typed(command in "[^\0<> \t\n\r\x0c][^\0]*") {
        let stage = one(&format!("fs1:{command}"));
        prop_assert_eq!(stage.work, StageWork::Command(command.into_bytes()));
    }

    #[test]
    fn no_segment_makes_the_plan_panic(bytes: Vec<u8>) {
        let _ = PlannedStage::parse(&bytes);
    }

    #[test]
    fn no_host_or_user_that_ssh_would_read_as_an_option_is_accepted(segment in "[-@:a\\[\\] ]{0,9}") {
        if let Ok(stage) = PlannedStage::parse(segment.as_bytes()) {
            if let StageHost::Host { destination, host } = stage.place {
                prop_assert!(!destination.starts_with('-') && !host.starts_with('-'));
            }
        }
    }
}
