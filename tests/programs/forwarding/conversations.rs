//! Random conversations through tunnels: both ends of each see what they see over a direct connection.
//!
//! Some hundred conversations run everywhere, and ten minutes of them with `RDPIPE_FULL=1`. Each has a number, which a
//! failure names: `RDPIPE_CONVERSATION=17` repeats one alone, and `RDPIPE_TEST_SEED` chooses others.

use std::{
    collections::HashMap,
    env,
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener},
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use socket2::{Domain, SockAddr, Socket, Type};

use super::{port, tunnel};
use crate::support::{
    is_full,
    programs::{Random, Running, eventually, generous, local_hosts::Hosts},
    random::seed,
};

/// The number of conversations at a time: several share each tunnel.
const AT_A_TIME: usize = 8;

/// The most bytes that one end sends in a conversation: more than the window of a connection and the sockets' buffers.
const MOST_BYTES: u64 = 6 << 20;

/// What happens in a conversation. `first` and `second` are its ends, in either order of client and server.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Both ends send, close their writing side and read to the end.
    Exchange,
    /// The first end sends and closes its writing side. The second answers after it has read everything.
    Request,
    /// The second end reads a part, answers and closes, while the first still sends; then the first reads the answer.
    EarlyAnswer,
    /// The first end closes without a byte; the second reads.
    Empty,
    /// The first end resets after both have read everything.
    Reset,
    /// The first end closes while the second sends, and reads nothing.
    Abandoned,
}

const KINDS: [Kind; 6] = [
    Kind::Exchange,
    Kind::Request,
    Kind::EarlyAnswer,
    Kind::Empty,
    Kind::Reset,
    Kind::Abandoned,
];

#[derive(Debug)]
struct Conversation {
    number: u64,
    kind: Kind,
    client_is_first: bool,
    /// The bytes that each end sends, the first end's first.
    sent: [Vec<u8>; 2],
    /// The largest piece that is read or written at once.
    piece: usize,
    /// A pause of the readers between pieces, up to some number of pieces.
    pause: Duration,
}

impl Conversation {
    fn new(number: u64) -> Self {
        let mut random = Random::new(0x0C_0000_0000 + number);
        let kind = KINDS[usize::try_from(number % 6).expect("it is small")];
        let mut bytes = || {
            let most = pick(&mut random, [1, 2000, 200_000, MOST_BYTES]);
            let count = random.within(0..most + 1);
            random.bytes(usize::try_from(count).expect("it is small"))
        };
        let mut sent = [bytes(), bytes()];
        if matches!(kind, Kind::EarlyAnswer) {
            // The first end reads nothing while it sends, so the answer must fit into the buffers on the way.
            sent[1].truncate(10_000);
        }
        Self {
            number,
            kind,
            client_is_first: random.within(0..2) == 0,
            sent,
            piece: pick(&mut random, [1 << 10, 16 << 10, 200 << 10]),
            pause: Duration::from_micros(pick(&mut random, [0, 0, 2000])),
        }
    }

    /// Holds the conversation, and returns what the first and the second end saw.
    fn hold(&self, way: &Way) -> [String; 2] {
        let (client, server) = way.pair(self.number);
        let (first, second) = if self.client_is_first {
            (client, server)
        } else {
            (server, client)
        };
        let both = Barrier::new(2);
        thread::scope(|scope| {
            let first = scope.spawn(|| self.first(first, &both));
            let second = scope.spawn(|| self.second(second, &both));
            [first.join().unwrap(), second.join().unwrap()]
        })
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "the socket is closed at the end"
    )]
    fn first(&self, socket: Socket, both: &Barrier) -> String {
        let [ours, theirs] = &self.sent;
        match self.kind {
            Kind::Exchange | Kind::Request => self.exchange(&socket, ours, theirs),
            Kind::EarlyAnswer => {
                // More than all buffers on the way hold, so that a part stays unread.
                let upload = vec![7; 32 << 20];
                let _ = self.write(&socket, &upload);
                let answer = self.read(&socket, usize::MAX).0;
                format!("the answer {}", seen(&answer, theirs))
            }
            Kind::Empty => String::new(),
            Kind::Reset => {
                let text = self.without_end(&socket, ours, theirs);
                both.wait();
                socket.set_linger(Some(Duration::ZERO)).unwrap();
                text
            }
            Kind::Abandoned => {
                both.wait();
                String::new()
            }
        }
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "the socket is closed at the end"
    )]
    fn second(&self, socket: Socket, both: &Barrier) -> String {
        let [theirs, ours] = &self.sent;
        match self.kind {
            Kind::Exchange => self.exchange(&socket, ours, theirs),
            Kind::Request => {
                let (read, end) = self.read(&socket, usize::MAX);
                self.write(&socket, ours).expect("it is read");
                format!("{}, then {end}", seen(&read, theirs))
            }
            Kind::EarlyAnswer => {
                let (read, end) = self.read(&socket, 1000);
                // In one piece: what waits to be sent when a socket is closed with unread bytes is lost.
                (&socket).write_all(ours).expect("there is room for it");
                format!("{} bytes, then {end}", read.len())
            }
            Kind::Empty => self.read(&socket, usize::MAX).1,
            Kind::Reset => {
                let text = self.without_end(&socket, ours, theirs);
                both.wait();
                let (rest, end) = self.read(&socket, usize::MAX);
                format!("{text}, then {} bytes and {end}", rest.len())
            }
            Kind::Abandoned => {
                both.wait();
                // On a busy machine buffers take many megabytes before the reset arrives.
                let piece = vec![7; 1 << 20];
                let fails = (0..1 << 10).any(|_| self.write(&socket, &piece).is_err());
                format!("an error in writing: {fails}")
            }
        }
    }

    /// Sends everything and an end, beside reading to the end.
    fn exchange(&self, socket: &Socket, ours: &[u8], theirs: &[u8]) -> String {
        let (read, end) = thread::scope(|scope| {
            scope.spawn(|| {
                self.write(socket, ours).expect("it is read");
                socket.shutdown(Shutdown::Write).unwrap();
            });
            self.read(socket, usize::MAX)
        });
        format!("{}, then {end}", seen(&read, theirs))
    }

    /// Sends everything without an end, beside reading what the other end sends.
    fn without_end(&self, socket: &Socket, ours: &[u8], theirs: &[u8]) -> String {
        let (read, end) = thread::scope(|scope| {
            scope.spawn(|| self.write(socket, ours).expect("it is read"));
            self.read(socket, theirs.len())
        });
        format!("{}, {end}", seen(&read, theirs))
    }

    fn write(&self, mut socket: &Socket, bytes: &[u8]) -> io::Result<()> {
        bytes
            .chunks(self.piece)
            .try_for_each(|piece| socket.write_all(piece))
    }

    /// Reads at most `most` bytes, and says what ended them.
    fn read(&self, mut socket: &Socket, most: usize) -> (Vec<u8>, String) {
        let (mut all, mut piece) = (Vec::new(), vec![0; self.piece]);
        let mut pauses = 50;
        while all.len() < most {
            let room = piece.len().min(most - all.len());
            match socket.read(&mut piece[..room]) {
                Ok(0) => return (all, "the end".to_owned()),
                Ok(count) => all.extend_from_slice(&piece[..count]),
                Err(error) => return (all, format!("{:?}", error.kind())),
            }
            if pauses > 0 {
                pauses -= 1;
                thread::sleep(self.pause);
            }
        }
        (all, "all".to_owned())
    }
}

/// Returns one of several choices.
fn pick<T: Copy, const N: usize>(random: &mut Random, choices: [T; N]) -> T {
    let index = random.within(0..N as u64);
    choices[usize::try_from(index).expect("it is small")]
}

/// Describes bytes that arrived by those that were sent.
fn seen(read: &[u8], sent: &[u8]) -> String {
    if read == sent {
        return format!("all {} bytes", sent.len());
    }
    let kind = if sent.starts_with(read) {
        "only"
    } else {
        "WRONG"
    };
    format!("{kind} {} of {} bytes", read.len(), sent.len())
}

/// Passes each connection that is accepted to the conversation whose number it begins with.
#[derive(Default)]
struct Server {
    waiting: Mutex<HashMap<u64, Sender<Socket>>>,
}

impl Server {
    fn expect(&self, number: u64) -> Receiver<Socket> {
        let (sender, receiver) = channel();
        self.waiting.lock().unwrap().insert(number, sender);
        receiver
    }

    fn accept_all(self: &Arc<Self>, listener: Socket) {
        let server = Arc::clone(self);
        thread::spawn(move || {
            while let Ok((socket, _)) = listener.accept() {
                let mut number = [0; 8];
                if (&socket).read_exact(&mut number).is_ok() {
                    let number = u64::from_le_bytes(number);
                    let waiting = server.waiting.lock().unwrap().remove(&number);
                    let _ = waiting.expect("it is expected").send(socket);
                }
            }
        });
    }
}

/// Where a client of a way connects.
#[derive(Clone)]
enum Door {
    Port(u16),
    Path(PathBuf),
    /// A SOCKS server, and the port of this machine to ask it for.
    Socks(u16, u16),
}

impl Door {
    fn connect(&self) -> Socket {
        let port = match self {
            Self::Path(path) => {
                let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
                socket.connect(&SockAddr::unix(path).unwrap()).unwrap();
                return socket;
            }
            Self::Port(port) | Self::Socks(port, _) => *port,
        };
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        socket.connect(&address.into()).unwrap();
        if let Self::Socks(_, target) = self {
            (&socket).write_all(&[5, 1, 0]).unwrap();
            (&socket).read_exact(&mut [0; 2]).unwrap();
            let [high, low] = target.to_be_bytes();
            (&socket)
                .write_all(&[5, 1, 0, 1, 127, 0, 0, 1, high, low])
                .unwrap();
            let mut answer = [0; 10];
            (&socket).read_exact(&mut answer).unwrap();
            assert_eq!(answer[1], 0, "a SOCKS server connects");
        }
        socket
    }
}

/// A way from a client to a server, and the direct way between sockets of the same kinds.
struct Way {
    name: String,
    door: Door,
    server: Arc<Server>,
}

impl Way {
    /// Connects a client to the server. No read or write of either socket waits forever.
    fn pair(&self, number: u64) -> (Socket, Socket) {
        let accepted = self.server.expect(number);
        let client = self.door.connect();
        (&client).write_all(&number.to_le_bytes()).unwrap();
        let server = accepted
            .recv_timeout(generous())
            .expect("the server accepts");
        for socket in [&client, &server] {
            socket.set_read_timeout(Some(generous())).unwrap();
            socket.set_write_timeout(Some(generous())).unwrap();
        }
        (client, server)
    }
}

/// The servers of all ways, the ways through tunnels, and the programs that keep these open.
struct Ways {
    direct: Way,
    tunnels: Vec<Way>,
    running: Vec<Running>,
    /// The directory of the UNIX sockets.
    _hosts: Hosts,
}

impl Ways {
    fn open() -> Self {
        let (hosts, server) = (Hosts::new(""), Arc::new(Server::default()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = listener.local_addr().unwrap().port();
        server.accept_all(listener.into());
        let unix_target = hosts.directory().join("target");
        server.accept_all(UnixListener::bind(&unix_target).unwrap().into());
        let mut running = Vec::new();
        let mut tunnels = Vec::new();
        for streams in ["1", "2", "4"] {
            let mut open = |option: &str, spec: &str, place: Option<&str>| {
                let started = tunnel(&hosts, &["--streams", streams, option, spec]).start();
                let port = place.map(|place| port(&started, place));
                running.push(started);
                port
            };
            let tcp = format!("0:127.0.0.1:{target}");
            let local = open("-L", &tcp, Some("here")).unwrap();
            let remote = open("-R", &tcp, Some("on the other host")).unwrap();
            let socks = open("-D", "0", Some("here")).unwrap();
            let to_unix = format!("0:{}", unix_target.display());
            let to_unix = open("-L", &to_unix, Some("here")).unwrap();
            let unix = hosts.directory().join(format!("listener{streams}"));
            let from_unix = format!("{}:127.0.0.1:{target}", unix.display());
            open("-L", &from_unix, None);
            eventually("the UNIX socket", || {
                Path::new(&unix).exists().then_some(())
            });
            let doors = [
                ("-L", Door::Port(local)),
                ("-R", Door::Port(remote)),
                ("-D", Door::Socks(socks, target)),
                ("-L to a UNIX socket", Door::Port(to_unix)),
                ("-L from a UNIX socket", Door::Path(unix)),
            ];
            tunnels.extend(doors.map(|(name, door)| Way {
                name: format!("{name}, streams: {streams}"),
                door,
                server: Arc::clone(&server),
            }));
        }
        let direct = Way {
            name: "direct".to_owned(),
            door: Door::Port(target),
            server,
        };
        Self {
            direct,
            tunnels,
            running,
            _hosts: hosts,
        }
    }

    /// Holds one conversation directly and through one tunnel. Returns what differs.
    fn compare(&self, number: u64) -> Result<(), String> {
        let at = usize::try_from(number / 6).expect("it is small");
        let way = &self.tunnels[at % self.tunnels.len()];
        let conversation = Conversation::new(number);
        let mut both = [conversation.hold(&self.direct), conversation.hold(way)];
        if way.name.contains("UNIX") {
            // A UNIX socket cannot be reset.
            both = both.map(|ends| ends.map(|text| text.replace("ConnectionReset", "the end")));
        }
        let [direct, through] = both;
        if direct == through {
            return Ok(());
        }
        let Conversation {
            kind,
            client_is_first,
            piece,
            pause,
            sent: [a, b],
            ..
        } = &conversation;
        let sizes = (a.len(), b.len());
        Err(format!(
            "conversation {number}, {}, {kind:?}, client first: {client_is_first}, sizes {sizes:?}, pieces of {piece}, \
             pauses of {pause:?}\n  direct:  {direct:?}\n  through: {through:?}",
            way.name
        ))
    }
}

#[test]
fn random_conversations_are_as_over_direct_connections() {
    let only = env::var("RDPIPE_CONVERSATION").ok();
    let only = only.map(|text| {
        text.parse::<u64>()
            .expect("RDPIPE_CONVERSATION is a number")
    });
    let ways = Ways::open();
    let next = AtomicU64::new(only.unwrap_or(0));
    let end = only.map_or(if is_full() { u64::MAX } else { 120 }, |only| only + 1);
    let begin = Instant::now();
    let differences = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while begin.elapsed() < Duration::from_secs(600) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= end {
                        return;
                    }
                    if let Err(difference) = ways.compare(number) {
                        differences.lock().unwrap().push(difference);
                    }
                }
            });
        }
    });
    let differences = differences.into_inner().unwrap();
    for running in ways.running {
        running.signal(Signal::TERM);
        running.end().exits(143);
    }
    println!("{} conversations", next.into_inner());
    assert!(
        differences.is_empty(),
        "RDPIPE_TEST_SEED={}\n{}",
        seed(),
        differences.join("\n")
    );
}
