//! Pipelines over real hosts: the examples of the manual, with every byte compared, and many hosts, to which rdpipe
//! connects in parallel.

use std::{
    fs::File,
    io::{Read, Write},
    os::unix::fs::FileExt,
    process::Stdio,
};

use crate::support::programs::{
    End, eventually,
    hosts::{GONE, Network, Outcome, Terminal, text},
};

/// Runs a pipeline with this input to its end.
#[track_caller]
fn fed(network: &Network, input: &[u8], arguments: &[&str]) -> End {
    let mut running = network.rdpipe(arguments).stdin(Stdio::piped()).start();
    let mut stdin = running.stdin();
    // This write fails if rdpipe closes its stdin early; the exit status then shows whether that was a failure.
    let _ = stdin.write_all(input);
    drop(stdin);
    running.end()
}

#[test]
fn two_commands_run_on_two_hosts() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let segments = ["h1:tr [:lower:] [:upper:]", "h2:rev"];
    fed(&network, b"hello\n", &segments).is("OLLEH\n");
}

#[test]
fn a_file_goes_through_a_command_to_a_file() {
    let Some(network) = Network::new(3) else {
        return;
    };
    let data = text(4_000_000);
    network.write("h1", "textfile", &data);
    let segments = [
        "h1:< textfile",
        "h2:tr [:lower:] [:upper:]",
        "h3:> TEXTFILE",
    ];
    network.rdpipe(segments).start().end().is("");
    assert!(network.read("h3", "TEXTFILE") == data.to_ascii_uppercase());
    assert_eq!(
        [network.names("h1"), network.names("h2")],
        [vec!["textfile".to_owned()], vec![]]
    );
}

#[test]
fn four_hosts_each_keep_a_copy() {
    let Some(network) = Network::new(4) else {
        return;
    };
    let data = text(6_000_000);
    network.write("h1", "snap", &data);
    let segments = [
        "h1:cat snap",
        "h2:tee >(cat > copy)",
        "h3:tee >(cat > copy)",
        "h4:tee >(cksum >> snap_sum) | wc -c >> snap_sizes; echo done",
    ];
    network.rdpipe(segments).start().end().is("done\n");
    for host in ["h2", "h3"] {
        // The copies are complete although `tee` and the shell may end before them: the stage waits for all processes.
        assert!(network.read(host, "copy") == data, "{host}");
    }
    assert_eq!(network.read("h4", "snap_sizes"), b"6000000\n");
    let sum = network.on(
        "h4",
        &format!("cksum < {}", network.file("h1", "snap").display()),
    );
    assert_eq!(network.read("h4", "snap_sum"), sum.as_bytes());
}

#[test]
fn dev_null_works_as_input_and_output() {
    let Some(network) = Network::new(2) else {
        return;
    };
    network.write("h1", "zeroes", &vec![0; 20 << 20]);
    let segments = ["-v", "h1:</dev/null", "h2:>/dev/null"];
    network.rdpipe(segments).start().end().exits(0);
    let end = network
        .rdpipe(["-v", "h1:<zeroes", "h2:>/dev/null"])
        .start()
        .end();
    assert!(end.exits(0).contains("20971520"), "{}", end.stderr);
    let kind = network.on("h2", "stat -c %F /dev/null");
    assert_eq!(kind, "character special file\n");
}

#[test]
fn a_terminal_is_not_read_as_input() {
    let Some(network) = Network::new(1) else {
        return;
    };
    // The terminal never delivers an end of file, so a program that reads it hangs.
    let terminal = Terminal::new();
    let rdpipe = network.rdpipe(["h1:wc -c; echo and on"]);
    rdpipe
        .stdin(terminal.inside())
        .start()
        .end()
        .is("0\nand on\n");
}

#[test]
fn a_host_can_appear_more_than_once() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let data = text(3_000_000);
    let segments = ["h1:cat", "h2:rev", "h1:rev"];
    fed(&network, &data, &segments).is(&data);
    let segments = ["h1:cat", "h1:rev", "h1:cat", "h1:rev", "h1:cat"];
    fed(&network, &data, &segments).is(&data);
}

#[test]
fn special_characters_reach_the_command_unchanged() {
    let Some(network) = Network::new(1) else {
        return;
    };
    let words = "a  'b' \"c\" $HOME `d` \\e !f *:?\n-n äöü € ~ #g; h | i > j & k";
    let segment = format!("h1:cat <<'END'\n{words}\nEND");
    fed(&network, b"", &[&segment]).is(format!("{words}\n"));
    // The command runs in the login shell and the home directory of its host.
    let end = fed(&network, b"", &["h1:echo $0 $BASH \"$HOME\"; pwd"]);
    let home = network.file("h1", "");
    let home = home.to_string_lossy();
    let home = home.trim_end_matches('/');
    let said = String::from_utf8_lossy(&end.stdout).into_owned();
    assert!(
        said.contains("bash") && said.matches(home).count() == 2,
        "{said}"
    );
}

#[test]
fn this_machine_takes_part_without_ssh() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let data = text(2_000_000);
    network.write("ctl", "mine", &data);
    let segments = [":< mine", "h1:rev", ":rev", "h2:cat", ":> copy"];
    network.rdpipe(segments).start().end().is("");
    assert!(network.read("ctl", "copy") == data);
}

/// The distance between two marks of 8 bytes in a file of zeros. Few marks make the file cheap to write and to compare,
/// and no two marks are alike, so bytes at a wrong offset are wrong bytes.
const MARK_EVERY: u64 = (1 << 20) - 7;

#[test]
fn a_gibibyte_arrives_unchanged() {
    let Some(network) = Network::new(3) else {
        return;
    };
    let bytes = 1_u64 << 30;
    let big = File::create(network.file("h1", "big")).unwrap();
    big.set_len(bytes).unwrap();
    for (number, at) in marks(0..bytes) {
        big.write_at(&number.to_be_bytes(), at).unwrap();
    }
    let mut running = network.rdpipe(["h1:< big", "h2:cat", "h3:cat"]).start_raw();
    let mut stdout = running.take_stdout();
    let (mut found, mut expected, mut at) = (vec![0; 1 << 20], vec![0; 1 << 20], 0);
    loop {
        let mut filled = 0;
        while filled < found.len() {
            match stdout.read(&mut found[filled..]).unwrap() {
                0 => break,
                count => filled += count,
            }
        }
        expected.fill(0);
        let end = at + filled as u64;
        for (number, start) in marks(at.saturating_sub(8)..end) {
            for (place, byte) in (start..).zip(number.to_be_bytes()) {
                if place >= at && place < end {
                    expected[usize::try_from(place - at).unwrap()] = byte;
                }
            }
        }
        assert!(found[..filled] == expected[..filled], "in the MiB at {at}");
        at = end;
        if filled < found.len() {
            break;
        }
    }
    assert_eq!(at, bytes);
    running.end().exits(0);
}

/// Returns the marks that begin in `range`, each with its number and its offset.
fn marks(range: std::ops::Range<u64>) -> impl Iterator<Item = (u64, u64)> {
    let first = range.start.div_ceil(MARK_EVERY).max(1);
    (first..)
        .map(|number| (number, number * MARK_EVERY))
        .take_while(move |(_, at)| *at < range.end.min((1 << 30) - 8))
}

#[test]
fn a_successful_pipeline_leaves_no_process() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let end = fed(&network, b"x", &["h1:sleep 0.5 & cat", "h2:cat"]);
    end.is("x");
    network.assert_empty(end.at, GONE);
    // The sessions of sshd end a moment after their clients.
    eventually("empty hosts", || {
        network
            .hosts()
            .all(|host| network.processes(&host).is_empty())
            .then_some(())
    });
}

const HOSTS: usize = 8;

#[test]
fn all_hosts_are_dialled_before_the_first_one_answers() {
    let Some(network) = Network::new(HOSTS) else {
        return;
    };
    let config = network.own("ssh_config");
    // Each ssh waits until all others have started: if they started one after another, the first would wait forever.
    // `scripts/bench` measures how long the start takes on an idle machine.
    let script = format!(
        "touch $0.$$; until [ $(ls $0.* | wc -l) -ge {HOSTS} ]; do sleep 0.02; done; exec ssh -F {} \"$@\"",
        config.display()
    );
    network.install("ctl", "slow", &script);
    let slow = network.own("ctl/bin/slow").display().to_string();
    let mut arguments = vec!["--rsh".to_owned(), slow];
    arguments.push("h1:echo through".to_owned());
    arguments.extend((2..=HOSTS).map(|number| format!("h{number}:cat")));
    network.rdpipe(&arguments).start().end().is("through\n");
}
