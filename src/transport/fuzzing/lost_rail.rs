//! A rail over several networks, whose connections are lost at any time: the real state, halves and data path of both
//! ends, without the tasks and the network, whose work the test does in any order.

use std::{
    collections::{HashMap, VecDeque},
    io::{IoSlice, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, OnceLock},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use proptest::prelude::*;
use socket2::SockRef;
use tokio::task::yield_now;

use super::run;
use crate::{
    Direction, MIN_CHUNK_BYTES, StreamConfig,
    transport::{
        connect::share_without_tasks,
        control::{
            message::{Message, agree, local_terms},
            noise::Role,
            seal::{Cipher, StreamSeal},
            state::RailState,
        },
        data::{
            frame::{HEADER_BYTES, Header},
            receive::RecvHalf,
            send::SendHalf,
            steward::Shared,
            tcp::Tcp,
        },
    },
};

/// The payload of a chunk, and the number of slots of either end's pool.
const CHUNK: usize = MIN_CHUNK_BYTES;
const DEPTH: usize = 3;

/// The number of connections of the rail.
const CONNECTIONS: usize = 4;

/// Bytes that have not arrived after this time never will.
const HANG: Duration = Duration::from_secs(20);

/// One connection of the rail, between the ends of it that the sender and the receiver have.
struct Wire {
    from_sender: TcpStream,
    to_receiver: TcpStream,
    /// The bytes that left the sender and have not been passed on.
    under_way: VecDeque<u8>,
    /// The bytes of a frame that left the sender in part.
    frame: Vec<u8>,
    is_cut: bool,
}

/// Both ends of a rail, and what is between them.
struct RailPlay {
    sender: Arc<Shared<Tcp>>,
    receiver: Arc<Shared<Tcp>>,
    send: SendHalf<Tcp>,
    recv: RecvHalf<Tcp>,
    wires: Vec<Wire>,
    /// By offset: the header without slot and check, and the payload as it travels.
    sealed: HashMap<u64, Vec<u8>>,
    to_receiver: VecDeque<Message>,
    to_sender: VecDeque<Message>,
    written: Vec<u8>,
    read: usize,
    is_at_end: bool,
}

/// Returns the two ends of a connection.
fn pair() -> (TcpStream, TcpStream) {
    static LISTENER: OnceLock<TcpListener> = OnceLock::new();
    let listener = LISTENER.get_or_init(|| TcpListener::bind("127.0.0.1:0").unwrap());
    let dialed = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    for socket in [&dialed, &accepted] {
        socket.set_nonblocking(true).unwrap();
        // Otherwise the kernel may hold the last bytes back for 40 ms.
        socket.set_nodelay(true).unwrap();
        // Closed with a reset, the connection leaves no port in TIME_WAIT.
        let lingers = SockRef::from(socket).set_linger(Some(Duration::ZERO));
        lingers.unwrap();
    }
    (dialed, accepted)
}

fn end(
    sockets: Vec<TcpStream>,
    direction: Direction,
    role: Role,
    cipher: Option<Cipher>,
) -> Arc<Shared<Tcp>> {
    let config = |direction| StreamConfig {
        chunk_bytes: CHUNK,
        depth: DEPTH,
        direction,
        ..StreamConfig::default()
    };
    let (ours, theirs) = (config(direction), config(Direction::Both));
    let agreement = agree(&local_terms(&ours, true), &local_terms(&theirs, true)).unwrap();
    let moved = |socket| tokio::net::TcpStream::from_std(socket).unwrap();
    let seal = StreamSeal::of_seed(1, role, cipher);
    let sockets = sockets.into_iter().map(moved).collect();
    share_without_tasks(sockets, &agreement, &seal, &ours).unwrap()
}

impl RailPlay {
    fn start(cipher: Option<Cipher>) -> Self {
        let (mut ours, mut theirs, mut wires) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..CONNECTIONS {
            let ((one, from_sender), (other, to_receiver)) = (pair(), pair());
            ours.push(one);
            theirs.push(other);
            wires.push(Wire {
                from_sender,
                to_receiver,
                under_way: VecDeque::new(),
                frame: Vec::new(),
                is_cut: false,
            });
        }
        let sender = end(ours, Direction::Send, Role::Dialer, cipher);
        let receiver = end(theirs, Direction::Receive, Role::Acceptor, cipher);
        Self {
            send: SendHalf::new(Arc::clone(&sender)),
            recv: RecvHalf::new(Arc::clone(&receiver)),
            sender,
            receiver,
            wires,
            sealed: HashMap::new(),
            to_receiver: VecDeque::new(),
            to_sender: VecDeque::new(),
            written: Vec::new(),
            read: 0,
            is_at_end: false,
        }
    }

    /// Does one of the things that the users, the tasks and the network do. `count` says how much.
    fn act(&mut self, act: u8, count: usize) {
        match act {
            0 | 1 => self.write(count),
            2 => self.drive_sender(),
            3 => self.drive_receiver(),
            4 | 5 => self.take(count),
            6 | 7 => self.pass(count),
            8 => self.read(count),
            9 => self.exchange(count),
            _ => self.lose(count),
        }
    }

    fn write(&mut self, count: usize) {
        let mut cx = Context::from_waker(Waker::noop());
        let next = self.written.len()..self.written.len() + count + 1;
        let bytes: Vec<u8> = next.map(|at| at.to_le_bytes()[0]).collect();
        let written = self.send.poll_write(&mut cx, &[IoSlice::new(&bytes)]);
        if let Poll::Ready(written) = written {
            self.written.extend(&bytes[..written.unwrap()]);
        }
    }

    fn drive_sender(&self) {
        let mut cx = Context::from_waker(Waker::noop());
        let sender = self.sender.sender.as_ref().unwrap();
        sender.drive_unattended(&self.sender.state, &mut cx);
    }

    fn drive_receiver(&self) {
        let mut cx = Context::from_waker(Waker::noop());
        let receiver = self.receiver.receiver.as_ref().unwrap();
        receiver.drive_unattended(&self.receiver.state, &mut cx);
    }

    /// Takes up to `count` bytes that the sender has sent on each connection.
    fn take(&mut self, count: usize) {
        let mut buffer = vec![0; count + 1];
        for wire in self.wires.iter_mut().filter(|wire| !wire.is_cut) {
            let Ok(count) = wire.from_sender.read(&mut buffer) else {
                continue;
            };
            for byte in &buffer[..count] {
                wire.under_way.push_back(*byte);
                wire.frame.push(*byte);
                let header = wire.frame.first_chunk::<HEADER_BYTES>();
                let header = header.map(|header| Header::decode(header).unwrap());
                if header.is_some_and(|header| header.frame_bytes() == wire.frame.len()) {
                    Self::note(&mut self.sealed, &mut wire.frame);
                }
            }
        }
    }

    /// Compares a frame, or the first part of one, with what was seen under its offset before.
    fn note(sealed: &mut HashMap<u64, Vec<u8>>, frame: &mut Vec<u8>) {
        let mut frame = std::mem::take(frame);
        let Some(header) = frame.first_chunk::<HEADER_BYTES>() else {
            return;
        };
        let offset = Header::decode(header).unwrap().offset;
        frame[4..8].fill(0);
        frame[120..128].fill(0);
        let seen = sealed.entry(offset).or_default();
        let common = seen.len().min(frame.len());
        assert_eq!(seen[..common], frame[..common], "sealed twice");
        if frame.len() > seen.len() {
            *seen = frame;
        }
    }

    /// Passes up to `count` bytes on to the receiver, on each connection.
    fn pass(&mut self, count: usize) {
        for wire in self.wires.iter_mut().filter(|wire| !wire.is_cut) {
            let count = wire.under_way.len().min(count + 1);
            let bytes: Vec<u8> = wire.under_way.iter().take(count).copied().collect();
            if let Ok(count) = wire.to_receiver.write(&bytes) {
                wire.under_way.drain(..count);
            }
        }
    }

    fn read(&mut self, count: usize) {
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(rest) = self.recv.poll_fill(&mut cx) else {
            return;
        };
        let rest = rest.unwrap();
        self.is_at_end |= rest.is_empty();
        let count = rest.len().min(count + 1);
        assert_eq!(rest[..count], self.written[self.read..][..count]);
        self.recv.take(count);
        self.read += count;
    }

    /// Delivers up to `count` messages each way.
    fn exchange(&mut self, count: usize) {
        self.to_receiver
            .extend(self.sender.state.outgoing().messages);
        self.to_sender
            .extend(self.receiver.state.outgoing().messages);
        for (end, messages) in [
            (&self.receiver, &mut self.to_receiver),
            (&self.sender, &mut self.to_sender),
        ] {
            let count = messages.len().min(count + 1);
            messages
                .drain(..count)
                .for_each(|message| end.state.receive(message));
        }
    }

    /// Loses the connection that an end uses: it is closed, or delivers nothing and an end notices it. The last one
    /// stays.
    fn lose(&mut self, how: usize) {
        let states = [&self.sender.state, &self.receiver.state];
        let used = states.map(RailState::connection);
        let (end, number) = ([how % 2, 1 - how % 2], used[how % 2]);
        if number + 1 == CONNECTIONS {
            return;
        }
        let wire = &mut self.wires[number];
        wire.is_cut = true;
        Self::note(&mut self.sealed, &mut wire.frame);
        match how % 6 / 2 {
            0 => assert!(states[end[0]].lose_connection(number)),
            1 => {
                for state in end.map(|end| states[end]) {
                    assert!(state.lose_connection(number));
                }
            }
            _ => {
                for socket in [&wire.from_sender, &wire.to_receiver] {
                    let _ = socket.shutdown(Shutdown::Both);
                }
                assert!(states[end[0]].lose_connection(number));
            }
        }
    }

    /// Brings everything that was written to the reader.
    async fn finish(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        let began = Instant::now();
        while !self.is_at_end && began.elapsed() < HANG {
            let _ = self.send.poll_shutdown(&mut cx);
            for act in [2, 4, 6, 3, 8, 9] {
                self.act(act, 4 * CHUNK);
            }
            yield_now().await;
        }
        assert!(
            self.is_at_end,
            "{} of {} bytes",
            self.read,
            self.written.len()
        );
        assert_eq!(self.read, self.written.len());
        for end in [&self.sender, &self.receiver] {
            assert!(!end.state.failed());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the users, the tasks and the network do while connections are lost, every byte arrives once, and a frame
    /// that is sent again is the same.
    #[test]
    fn a_rail_that_loses_its_connections_loses_and_doubles_nothing(cipher in 0..3_u8, acts in prop::collection::vec((0..11_u8, 0..2 * CHUNK), 0..200)) {
        let cipher = [None, Some(Cipher::Aes256Gcm), Some(Cipher::ChaCha20Poly1305)][usize::from(cipher)];
        run(async {
            let mut play = RailPlay::start(cipher);
            for (act, count) in acts {
                play.act(act, count);
                yield_now().await;
            }
            play.finish().await;
        });
    }
}
