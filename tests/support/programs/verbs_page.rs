//! The runs of the examples of verbs as docs/verbs.md shows them: what is typed on both hosts, and what both print.

use std::fs;

/// One command, and what it prints.
#[derive(Debug)]
pub struct ShownCommand {
    /// The name of the example.
    pub program: &'static str,
    pub arguments: Vec<String>,
    /// The lines of stdout, without what differs from host to host.
    pub steps: Vec<String>,
}

/// Returns the runs on the page, each with the command on the listener's host first.
pub fn shown_runs() -> Vec<[ShownCommand; 2]> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/verbs.md");
    let page = fs::read_to_string(path).expect("the page");
    let blocks = page.split("\n```console\n").skip(1);
    let blocks = blocks.map(|rest| rest.split("\n```").next().expect("the end of a block"));
    blocks
        .filter(|block| block.contains(" listen "))
        .map(|block| {
            let (listener, dialer) = block.split_once("\nhostA $ ").expect("two commands");
            let listener = listener.strip_prefix("hostB $ ").expect("a command");
            [shown(listener), shown(dialer)]
        })
        .collect()
}

fn shown(text: &str) -> ShownCommand {
    let (command, printed) = text.split_once('\n').expect("it prints something");
    let mut words = command.split(' ').map(str::to_owned);
    let program = match words.next().as_deref() {
        Some("./verbs_send_recv") => "verbs_send_recv",
        Some("./verbs_write_read") => "verbs_write_read",
        other => panic!("{other:?} is not an example of verbs"),
    };
    let (said, printed): (Vec<&str>, Vec<&str>) = printed
        .lines()
        .partition(|line| line.starts_with("listening on port "));
    let arguments: Vec<String> = words.collect();
    let is_listener = arguments.iter().any(|word| word == "listen");
    assert_eq!(said.len(), usize::from(is_listener), "{command}");
    ShownCommand {
        program,
        arguments,
        steps: steps(printed.join("\n").as_bytes()),
    }
}

/// Returns the lines that an example has printed, without devices, numbers and addresses.
pub fn steps(stdout: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(stdout);
    text.lines()
        .map(|line| match line.split_once(": ") {
            Some((step @ ("port" | "connected"), _)) => step.to_owned(),
            _ => line.to_owned(),
        })
        .collect()
}
