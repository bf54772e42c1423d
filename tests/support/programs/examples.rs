//! Runs the examples as processes over a given transport, those of verbs as docs/verbs.md shows them. `cargo test`
//! builds them beside the tests; before `cargo test --test NAME` run `cargo build --examples`.

use std::{
    fs::{self, File},
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    process::Stdio,
    thread,
};

use rustix::process::Signal;

use super::{Place, Running, Setup, built, generous, key, peak_kib, program, random_bytes};

/// A transport, by its name in `RDPIPE_TRANSPORT`.
#[derive(Clone, Copy)]
pub struct Over(pub &'static str);

impl Over {
    pub fn example(self, name: &'static str, arguments: &str) -> Setup {
        program(&built(&format!("examples/{name}")), name)
            .args(arguments.split_whitespace())
            .env("RDPIPE_KEY", key())
            .env("RDPIPE_TRANSPORT", self.0)
    }

    /// Returns the words that an example prints if it really uses this transport.
    fn words(self) -> String {
        format!("over {}: ", self.0.to_uppercase())
    }

    /// The amount of data or messages of a test: over RDMA a tenth, because the processor is emulated there.
    fn amount(self, over_tcp: usize) -> usize {
        if self.0 == "rdma" {
            over_tcp / 10
        } else {
            over_tcp
        }
    }

    /// Copies a file between two examples. `receiver` and `sender` each hold the name of an example and its arguments
    /// before host and port.
    pub fn a_file_is_copied(self, receiver: [&'static str; 2], sender: [&'static str; 2]) {
        let place = Place::new();
        let data = random_bytes(self.amount(15_000_010));
        let input = File::open(place.file("in", &data)).expect("a file");
        let receiver = self.example(receiver[0], receiver[1]).start();
        let to_receiver = format!("{} 127.0.0.1 {}", sender[1], receiver.port());
        let sender = self.example(sender[0], &to_receiver).stdin(input);
        assert!(sender.start().end().exits(0).contains(&self.words()));
        let receiver = receiver.end();
        receiver.exits(0);
        assert!(receiver.stdout == data);
    }

    pub fn a_killed_sender_is_no_end(self) {
        let receiver = self.example("receive_stdout", "0").start();
        let sender = self.example("send_stdin", &format!("127.0.0.1 {}", receiver.port()));
        let mut sender = sender.stdin(Stdio::piped()).start();
        // Open until it is dead: at its end, the sender would finish before it is killed.
        let mut input = sender.stdin();
        input.write_all(b"half of it").expect("it reads");
        sender.said("how it is connected", |text| {
            text.contains("over ").then_some(())
        });
        sender.kill();
        let receiver = receiver.end();
        drop(input);
        assert!(
            receiver.exits(1).contains("the other end died"),
            "{}",
            receiver.stderr
        );
    }

    pub fn many_clients_are_echoed(self, clients: usize, messages: usize) {
        let server = self.example("echo_server", "listen 0").start();
        let to_server = format!("connect 127.0.0.1 {} {clients} {messages}", server.port());
        let client = self.example("echo_server", &to_server).start().end();
        let ways = client.exits(0).matches(&self.words()).count();
        assert_eq!(ways, clients, "{}", client.stderr);
        let said = String::from_utf8_lossy(&client.stdout);
        let right = format!("{clients} clients, {messages} messages each: all came back\n");
        assert_eq!(said, right);
        served(server, clients);
    }

    pub fn a_body_is_streamed(self, bytes: u64) {
        let server = self.example("http", "serve 0").start();
        let to_server = format!("fetch 127.0.0.1 {} {bytes}", server.port());
        let client = self.example("http", &to_server).start().end();
        assert!(client.exits(0).contains(&self.words()), "{}", client.stderr);
        let said = String::from_utf8_lossy(&client.stdout);
        assert_eq!(said, format!("{bytes} bytes, and the right ones\n"));
        let peak = peak_kib(&server);
        assert!(peak < 100 << 10, "the server held {peak} KiB at once");
        served(server, 1);
    }

    /// A server takes the socket that systemd has opened for it, as `LISTEN_FDS` says.
    pub fn a_socket_of_systemd_is_taken(self) {
        let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = socket.local_addr().expect("it is bound").port();
        let path = built("examples/echo_server");
        let start = "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" listen 0";
        let server = program("bash", "echo_server").args(["-c", start, &path]);
        let server = server
            .env("RDPIPE_KEY", key())
            .env("RDPIPE_TRANSPORT", self.0);
        let server = server.stdin(std::os::fd::OwnedFd::from(socket)).start();
        let to_server = format!("connect 127.0.0.1 {port} 2 3");
        let client = self.example("echo_server", &to_server).start().end();
        assert!(client.exits(0).contains(&self.words()), "{}", client.stderr);
        served(server, 2);
    }

    /// A server of axum answers the client of hyper, and ends without an error.
    pub fn a_body_of_axum_is_streamed(self, bytes: u64) {
        let server = self.example("axum_server", "0").start();
        let to_server = format!("fetch 127.0.0.1 {} {bytes}", server.port());
        let client = self.example("http", &to_server).start().end();
        assert!(client.exits(0).contains(&self.words()), "{}", client.stderr);
        server.signal(Signal::INT);
        server.end().exits(0);
    }

    pub fn messages_of_grpc_are_echoed(self, messages: usize) {
        let server = self.example("grpc", "serve 0").start();
        let to_server = format!("ask 127.0.0.1 {} {messages}", server.port());
        let client = self.example("grpc", &to_server).start().end();
        assert!(client.exits(0).contains(&self.words()), "{}", client.stderr);
        let said = String::from_utf8_lossy(&client.stdout);
        assert_eq!(said, format!("{messages} messages, and all came back\n"));
        server.kill();
    }

    pub fn frames_are_answered(self) {
        let server = self.example("framed", "serve 0").start();
        for _ in 0..2 {
            let to_server = format!("ask 127.0.0.1 {} one two threee", server.port());
            let client = self.example("framed", &to_server).start().end();
            assert!(client.exits(0).contains(&self.words()));
            assert_eq!(
                String::from_utf8_lossy(&client.stdout),
                "ONE\nTWO\nTHREEE\n"
            );
        }
        served(server, 2);
    }

    pub fn messages_go_there_and_back(self, small_frames: &'static str) {
        let ping_pong = |line: &str| {
            let example = self.example("ping_pong", line);
            example.env("RDPIPE_SMALL_FRAMES", small_frames)
        };
        let server = ping_pong("serve 0").start();
        let rounds = self.amount(500);
        let to_server = format!("ask 127.0.0.1 {} 64 {rounds}", server.port());
        let client = ping_pong(&to_server).start().end();
        assert!(client.exits(0).contains(&self.words()), "{}", client.stderr);
        let said = String::from_utf8_lossy(&client.stdout);
        let counted = format!("64 bytes, {rounds} times: median ");
        assert!(said.starts_with(&counted), "{said}");
        server.end().exits(0);

        let server = ping_pong("drain 0").start();
        let messages = self.amount(5000);
        let to_server = format!("flood 127.0.0.1 {} 100 {messages} 7", server.port());
        let client = ping_pong(&to_server).start().end();
        client.exits(0);
        let said = String::from_utf8_lossy(&client.stdout);
        let counted = format!("{messages} messages of 100 bytes, flushed each 7: ");
        assert!(said.starts_with(&counted), "{said}");
        server.end().exits(0);
    }

    pub fn connections_go_through_a_tunnel(self) {
        let target = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let [far, near] = self.tunnel(&target);
        // The target answers after the end of file, so both half-closes must pass through the tunnel.
        let reversing = thread::spawn(move || {
            for connection in target.incoming().take(3) {
                let mut connection = connection.expect("a connection");
                let mut request = all_of(&mut connection).expect("an end of file");
                request.reverse();
                connection.write_all(&request).expect("it is read");
            }
        });
        for length in [0, 1, self.amount(10_000_000)] {
            let mut data = random_bytes(length);
            let mut connection = connection_to(near.port());
            connection.write_all(&data).expect("it is read");
            connection.shutdown(Shutdown::Write).expect("it is open");
            data.reverse();
            assert!(all_of(&mut connection).expect("an end of file") == data);
        }
        reversing.join().expect("every connection was answered");
        assert_eq!(served(near, 3).matches(&self.words()).count(), 3);
        served(far, 3);
    }

    pub fn a_broken_tunnel_is_no_end(self) {
        let target = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let [far, near] = self.tunnel(&target);
        let mut connection = connection_to(near.port());
        connection.write_all(b"half of it").expect("it is read");
        let (mut accepted, _) = target.accept().expect("the tunnel connects");
        let mut arrived = [0; 10];
        accepted.read_exact(&mut arrived).expect("it arrives");
        far.kill();
        let error = all_of(&mut connection).expect_err("no end of file");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }

    /// Returns `[far, near]`: a connection to the port of `near` reaches `target`.
    fn tunnel(self, target: &TcpListener) -> [Running; 2] {
        let target = target.local_addr().expect("it is bound");
        let far = self
            .example("forward", &format!("connect 0 {target}"))
            .start();
        let to_far = format!("listen 0 127.0.0.1 {}", far.port());
        let near = self.example("forward", &to_far).start();
        [far, near]
    }

    pub fn a_file_goes_through_tls(self) {
        let place = Place::new();
        let data = random_bytes(3_000_001);
        let input = File::open(place.file("in", &data)).expect("a file");
        let receiver = self.tls_receiver(&place, "certificate");
        let sender = self.tls_sender(&receiver, &place, "certificate");
        assert!(
            sender
                .stdin(input)
                .start()
                .end()
                .exits(0)
                .contains(&self.words())
        );
        let receiver = receiver.end();
        receiver.exits(0);
        assert!(receiver.stdout == data);
    }

    pub fn another_certificate_is_not_trusted(self) {
        let place = Place::new();
        let receiver = self.tls_receiver(&place, "certificate");
        let another = self.tls_receiver(&place, "another");
        // Both listen, so both have written their certificates.
        assert!(receiver.port() != another.port());
        let one = fs::read(place.path("certificate")).expect("it was written");
        assert!(one != fs::read(place.path("another")).expect("it was written"));
        let sender = self.tls_sender(&receiver, &place, "another").start().end();
        assert!(
            sender.exits(1).contains("invalid peer certificate"),
            "{}",
            sender.stderr
        );
        let receiver = receiver.end();
        receiver.exits(1);
        assert_eq!(receiver.stdout, b"");
        drop(another);
    }

    fn tls_receiver(self, place: &Place, certificate: &str) -> Running {
        let certificate = place.path(certificate);
        self.example("tls", "receive 0").arg(certificate).start()
    }

    fn tls_sender(self, receiver: &Running, place: &Place, certificate: &str) -> Setup {
        let arguments = format!("send 127.0.0.1 {}", receiver.port());
        self.example("tls", &arguments).arg(place.path(certificate))
    }
}

/// Waits until a server has reported the ends of the streams of `peers` peers, kills it, and checks that all ended
/// well. Returns the stderr of the server.
#[track_caller]
fn served(server: Running, peers: usize) -> String {
    server.said("how all its peers ended", |text| {
        let lines = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        let ends = lines.filter(|line| line.starts_with("127.0.0.1:"));
        (ends.count() >= peers).then_some(())
    });
    server.kill();
    let said = server.end().stderr;
    assert_eq!(said.matches(": done\n").count(), peers, "{said}");
    said
}

/// Connects to a port of this machine, with a limit on the time of each read.
fn connection_to(port: u16) -> TcpStream {
    let connection = TcpStream::connect(("127.0.0.1", port)).expect("a listening port");
    connection
        .set_read_timeout(Some(generous()))
        .expect("a time above zero");
    connection
}

fn all_of(connection: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut all = Vec::new();
    connection.read_to_end(&mut all)?;
    Ok(all)
}

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
