//! A capture of the packets between hosts holds nothing of contents, names, forwarded bytes and the output of commands.
//! Without encryption it holds nearly all of it, so each test can fail.

use std::{
    fs,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    thread,
};

use rustix::process::Signal;

use super::{
    capture::Capture,
    on_path::{Tape, markers},
};
use crate::{
    forwarding::{self, exchange},
    support::programs::{
        End, Running, built,
        hosts::{Network, Outcome},
    },
};

/// The options of the programs: between hosts the default encrypts.
const CHOICES: [&[&str]; 2] = [&[], &["-q", "--encrypt", "never"]];

/// Returns the choice of a program that says where it listens.
fn loud<'a>(choice: &[&'a str]) -> Vec<&'a str> {
    let words = choice.iter().filter(|word| **word != "-q");
    words.copied().collect()
}

/// Checks that a capture holds none of the markers, or nearly all of them without encryption: a packet may end within a
/// marker.
#[track_caller]
fn assert_hidden(tape: &Tape, choice: &[&str], sets: &[(&str, &[String])]) {
    for (what, markers) in sets {
        let found = tape.count(markers);
        let is_right = if choice.is_empty() {
            found == 0
        } else {
            found * 10 > markers.len() * 9
        };
        assert!(is_right, "{what}, {choice:?}: {found} of {}", markers.len());
    }
}

/// Two sets of a thousand markers, of which `run` makes a program carry both, for each choice.
#[track_caller]
fn captured(names: [&str; 2], run: impl Fn(&Network, &[&str], &[String], &[String])) {
    let Some(network) = Network::new(2) else {
        return;
    };
    let markers = markers(2000);
    let (one, other) = markers.split_at(1000);
    for choice in CHOICES {
        let capture = Capture::start(&network);
        run(&network, choice, one, other);
        let tape = capture.end();
        assert_hidden(&tape, choice, &[(names[0], one), (names[1], other)]);
    }
}

/// Writes a file for each marker of `names`, with that of `contents` in it. Returns the path of their directory.
fn tree(network: &Network, host: &str, names: &[String], contents: &[String]) -> String {
    let tree = network.file(host, "tree");
    fs::create_dir_all(&tree).unwrap();
    for (name, content) in names.iter().zip(contents) {
        fs::write(tree.join(name), content).unwrap();
    }
    tree.display().to_string()
}

/// Checks that a copy of such a tree is whole, and removes it.
#[track_caller]
fn assert_copied(network: &Network, host: &str, names: &[String], contents: &[String]) {
    let copy = network.file(host, "copy");
    for (name, content) in names.iter().zip(contents) {
        assert_eq!(fs::read_to_string(copy.join(name)).unwrap(), *content);
    }
    fs::remove_dir_all(copy).unwrap();
}

#[test]
fn what_commands_of_a_pipeline_write_is_in_no_packet() {
    captured(["input", "output"], |network, choice, input, output| {
        let (input, output) = (input.join(" "), output.join(" "));
        network.write("ctl", "input", input.as_bytes());
        network.write("h1", "output", output.as_bytes());
        let stages = [":< input", "h1:cat - output", "h2:cat"];
        let end = network.rdpipe([choice, &stages].concat()).start().end();
        end.is(input + &output);
    });
}

#[test]
fn what_a_copy_over_ssh_carries_is_in_no_packet() {
    captured(["names", "contents"], |network, choice, names, contents| {
        tree(network, "h1", names, contents);
        let operands = ["-a", "-T", "h1:tree", "h2:copy"];
        let end = network.rdcp([choice, &operands].concat()).start().end();
        end.exits(0);
        assert_copied(network, "h2", names, contents);
    });
}

#[test]
fn what_a_client_and_a_server_copy_is_in_no_packet() {
    captured(["names", "contents"], |network, choice, names, contents| {
        let served = Server::start(network, choice);
        tree(network, "ctl", names, contents);
        let there = "10.77.0.1:7701:copy";
        client(network, choice, &["-a", "-T", "tree", there]).exits(0);
        assert_copied(network, "h1", names, contents);
        // The other way, with a list of names.
        tree(network, "h1", names, contents);
        let back = "10.77.0.1:7701:tree";
        client(network, choice, &["-a", "-T", back, "copy"]).exits(0);
        assert_copied(network, "ctl", names, contents);
        served.end(network);
    });
}

/// Runs a client of the server with these options and operands.
fn client(network: &Network, choice: &[&str], operands: &[&str]) -> End {
    let client = network
        .program(&built("rdcp"), "rdcp")
        .args(["--key-file", "keys"]);
    client.args(choice).args(operands).start().end()
}

/// `rdcp --serve` on h1, with the directory where its commands start.
struct Server(Running);

impl Server {
    fn start(network: &Network, choice: &[&str]) -> Self {
        let line = "alice secret-of-alice-3847\n";
        for host in ["h1", "ctl"] {
            let keys = network.write(host, "keys", line.as_bytes());
            fs::set_permissions(keys, PermissionsExt::from_mode(0o600)).unwrap();
        }
        let command = format!(
            "{} --serve --listen-port 7701 --root . --key-file keys {}",
            built("rdcp"),
            loud(choice).join(" ")
        );
        let server = network.ssh("h1", &command).start();
        server.said("the port", |text| {
            text.contains("listening on port").then_some(())
        });
        Self(server)
    }

    fn end(self, network: &Network) {
        network.process("h1", "rdcp --serve").signal(Signal::TERM);
        self.0.end().exits(0);
    }
}

#[test]
fn what_a_tunnel_between_hosts_forwards_is_in_no_packet() {
    captured(["there", "back"], |network, choice, there, back| {
        let (there, back) = (there.join(" "), back.join(" "));
        let listening = || TcpListener::bind("127.0.0.1:0").unwrap();
        let target = network.within("h2", listening);
        let port = target.local_addr().unwrap().port();
        let (question, answer) = (there.clone(), back.clone());
        let answering = thread::spawn(move || {
            use std::io::{Read, Write};
            let (mut socket, _) = target.accept().unwrap();
            let mut asked = String::new();
            socket.read_to_string(&mut asked).unwrap();
            assert_eq!(asked, question);
            socket.write_all(answer.as_bytes()).unwrap();
            socket.shutdown(Shutdown::Write).unwrap();
        });
        let forward = format!("0:localhost:{port}");
        let near = network.rdforward(["-L", &forward]).args(loud(choice));
        let near = near.arg("h2").start();
        let address = SocketAddr::from(([127, 0, 0, 1], forwarding::port(&near, "here")));
        let socket = network.within("ctl", || TcpStream::connect(address).unwrap());
        assert!(exchange(socket, there.as_bytes()) == back.as_bytes());
        answering.join().unwrap();
        near.signal(Signal::TERM);
        near.end().exits(143);
    });
}

#[test]
fn what_rdcat_reads_of_other_hosts_is_in_no_packet() {
    captured(["h1", "h2"], |network, choice, one, other| {
        let (one, other) = (one.join(" "), other.join(" "));
        network.write("h1", "one", one.as_bytes());
        network.write("h2", "other", other.as_bytes());
        let operands = ["h1:one", "h2:other"];
        let end = network.rdcat([choice, &operands].concat()).start().end();
        end.is(one + &other);
    });
}
