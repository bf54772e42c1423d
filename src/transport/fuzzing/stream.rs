//! A stream over TCP whose peer has the key and sends any messages and frames: the real state, halves and data
//! path, without the tasks, whose work the fuzzer does in any order.

use std::{
    collections::HashMap,
    io::{ErrorKind, IoSlice},
    net::TcpListener,
    sync::{Arc, OnceLock},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use socket2::SockRef;
use tokio::{net::TcpStream, task::yield_now};

use super::{FuzzScript, run};
use crate::{
    MIN_CHUNK_BYTES, StreamConfig,
    transport::{
        connect::share_without_tasks,
        control::{
            message::{MAX_MESSAGE_BYTES, Message, agree, local_terms},
            noise::Role,
            seal::{Cipher, StreamSeal, Way},
        },
        data::{
            frame::{Chain, HEADER_BYTES, Header},
            receive::RecvHalf,
            send::SendHalf,
            slots::LentSlot,
            steward::Shared,
            tcp::Tcp,
        },
    },
};

/// The payload of a chunk: enough that chunks are lent and not copied.
const CHUNK: usize = 2 * MIN_CHUNK_BYTES;

/// The number of slots of either end's pool.
const DEPTH: usize = 4;

/// The most messages that one end has to send at once: each kind once, with credits between them.
const MOST_MESSAGES: usize = 16;

/// What protects the data, as the end with this role has it.
fn seal(role: Role, is_encrypted: bool) -> StreamSeal {
    StreamSeal::of_seed(1, role, is_encrypted.then_some(Cipher::Aes256Gcm))
}

/// Runs the actions of a peer that sends any messages and frames, of a user that reads and writes, and of the tasks of
/// the stream, in any order. Panics if a queue is longer than the pool, a message is too long for Noise, a frame is
/// written into a slot that was not granted, a byte is delivered that was not sent, an end comes that was not
/// announced, or a confirmation that was not sent is reported.
pub fn stream(data: &[u8]) {
    static LISTENER: OnceLock<TcpListener> = OnceLock::new();
    let listener = LISTENER.get_or_init(|| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let mut script = FuzzScript::new(data);
    run(async {
        let is_encrypted = script.flag();
        let mut play = StreamPlay::start(listener, is_encrypted);
        while let Some(kind) = script.byte() {
            play.step(kind, &mut script).await;
            play.check_queues();
        }
        play.finish();
    });
}

/// One end of a stream with its user, and the peer.
struct StreamPlay {
    shared: Arc<Shared<Tcp>>,
    send: Option<SendHalf<Tcp>>,
    recv: Option<RecvHalf<Tcp>>,
    filling: Vec<LentSlot<Tcp>>,
    /// Chunks that the user keeps.
    kept: Vec<Bytes>,
    /// The number of bytes that the user has read.
    read: usize,
    has_stopped: bool,
    has_ended: bool,
    peer: PeerPlay,
}

/// What the peer has sent and received.
struct PeerPlay {
    socket: TcpStream,
    is_encrypted: bool,
    chain: Chain,
    /// The payload of all valid frames.
    sent: Vec<u8>,
    /// All bytes so far were valid frames.
    is_honest: bool,
    fin: Option<(u64, u64)>,
    is_confirmed: bool,
    /// By slot: how often it was granted, less the frames that came for it.
    granted: HashMap<u32, usize>,
    arrived: BytesMut,
    verified: Chain,
}

impl StreamPlay {
    fn start(listener: &TcpListener, is_encrypted: bool) -> Self {
        let address = listener.local_addr().expect("it is bound");
        let ours = std::net::TcpStream::connect(address).expect("it listens");
        let (theirs, _) = listener.accept().expect("it was connected");
        for socket in [&ours, &theirs] {
            socket.set_nonblocking(true).expect("a socket");
            // Closed with a reset, the connection leaves no port in TIME_WAIT.
            let lingers = SockRef::from(socket).set_linger(Some(Duration::ZERO));
            lingers.expect("a socket");
        }
        let config = StreamConfig {
            chunk_bytes: CHUNK,
            depth: DEPTH,
            ..StreamConfig::default()
        };
        let terms = local_terms(&config, true);
        let agreement = agree(&terms, &terms).expect("they are the same");
        let ours = TcpStream::from_std(ours).expect("a socket");
        let [seal, theirs_seal] =
            [Role::Dialer, Role::Acceptor].map(|role| seal(role, is_encrypted));
        let shared = share_without_tasks(vec![ours], &agreement, &seal, &config).expect("a socket");
        Self {
            send: Some(SendHalf::new(Arc::clone(&shared))),
            recv: Some(RecvHalf::new(Arc::clone(&shared))),
            shared,
            filling: Vec::new(),
            kept: Vec::new(),
            read: 0,
            has_stopped: false,
            has_ended: false,
            peer: PeerPlay {
                socket: TcpStream::from_std(theirs).expect("a socket"),
                is_encrypted,
                chain: Chain::new(theirs_seal.guard(Way::Out)),
                sent: Vec::new(),
                is_honest: true,
                fin: None,
                is_confirmed: false,
                granted: HashMap::new(),
                arrived: BytesMut::new(),
                verified: Chain::new(theirs_seal.guard(Way::In)),
            },
        }
    }

    async fn step(&mut self, kind: u8, script: &mut FuzzScript<'_>) {
        match kind % 16 {
            0..=2 => {
                if let Some(message) = self.peer.message(kind % 16, script) {
                    self.peer.note(&message);
                    self.shared.state.receive(message);
                }
            }
            3 | 4 => self.peer.send_frame(script),
            5 => self.peer.send_any(script),
            6 => self.peer.receive(),
            // The tasks of this end.
            7 => self.send_messages(),
            8 => self.drive(),
            _ => {
                yield_now().await;
                let mut cx = Context::from_waker(Waker::noop());
                match kind % 16 {
                    9 | 10 => self.read(script, &mut cx),
                    11 => self.keep(script, &mut cx),
                    12 | 13 => self.write(script, &mut cx),
                    14 => self.fill(script, &mut cx),
                    _ => self.end(script, &mut cx),
                }
            }
        }
    }

    /// Does the work of the steward.
    fn drive(&self) {
        let mut cx = Context::from_waker(Waker::noop());
        let state = &self.shared.state;
        if let Some(receiver) = &self.shared.receiver {
            receiver.lock().take_returned(state);
            receiver.drive_unattended(state, &mut cx);
        }
        if let Some(sender) = &self.shared.sender {
            sender.drive_unattended(state, &mut cx);
        }
    }

    /// Does the work of the control task: sends what waits in the outbox.
    fn send_messages(&self) {
        let messages = self.shared.state.outgoing().messages;
        assert!(
            messages.len() <= MOST_MESSAGES,
            "{} messages",
            messages.len()
        );
        for message in messages {
            if let Message::Credit(slots) = &message {
                assert!(slots.len() <= DEPTH, "{} credits", slots.len());
            }
            assert!(message.encode().len() <= MAX_MESSAGE_BYTES);
        }
    }

    fn read(&mut self, script: &mut FuzzScript<'_>, cx: &mut Context<'_>) {
        let Some(recv) = &mut self.recv else { return };
        let Poll::Ready(Ok(rest)) = recv.poll_fill(cx) else {
            return;
        };
        let count = usize::from(script.number()).min(rest.len());
        let is_end = rest.is_empty();
        self.peer.check_delivered(self.read, &rest[..count]);
        recv.take(count);
        self.read += count;
        self.check_end(is_end);
    }

    fn keep(&mut self, script: &mut FuzzScript<'_>, cx: &mut Context<'_>) {
        if script.flag() && !self.kept.is_empty() {
            self.kept.swap_remove(script.below(self.kept.len()));
            return;
        }
        let Some(recv) = &mut self.recv else { return };
        match recv.poll_chunk(cx) {
            Poll::Ready(Ok(Some(chunk))) => {
                self.peer.check_delivered(self.read, &chunk);
                self.read += chunk.len();
                self.kept.push(chunk);
            }
            Poll::Ready(Ok(None)) => self.check_end(true),
            _ => {}
        }
    }

    /// Checks an end of the stream against the FIN.
    fn check_end(&mut self, is_end: bool) {
        if !is_end || self.has_stopped {
            return;
        }
        self.has_ended = true;
        let (bytes, _) = self.peer.fin.expect("an end without a FIN");
        assert_eq!(bytes, self.read as u64, "an end at another byte");
    }

    fn write(&mut self, script: &mut FuzzScript<'_>, cx: &mut Context<'_>) {
        let Some(send) = &mut self.send else { return };
        let bytes = vec![script.byte().unwrap_or(0); usize::from(script.number()) % (2 * CHUNK)];
        let parts = bytes.split_at(bytes.len() / 3);
        let _ = send.poll_write(cx, &[IoSlice::new(parts.0), IoSlice::new(parts.1)]);
        if script.flag() {
            let _ = send.poll_flush(cx);
        }
    }

    fn fill(&mut self, script: &mut FuzzScript<'_>, cx: &mut Context<'_>) {
        let Some(send) = &mut self.send else { return };
        if let Poll::Ready(Ok(mut slot)) = send.poll_lent(cx) {
            let room = slot.filling_mut().room().len();
            slot.filling_mut()
                .fill(usize::from(script.number()) % (room + 1));
            self.filling.push(slot);
        }
        if script.flag() && !self.filling.is_empty() {
            let slot = self.filling.swap_remove(script.below(self.filling.len()));
            let _ = send.send(slot);
        } else if script.flag() {
            self.filling.pop();
        }
    }

    /// Ends a direction in one of the ways in which a user can.
    fn end(&mut self, script: &mut FuzzScript<'_>, cx: &mut Context<'_>) {
        match (script.below(8), &mut self.send, &mut self.recv) {
            (0 | 1, Some(send), _) => {
                let _ = send.poll_shutdown(cx);
            }
            (2 | 3, Some(send), _) => {
                if let Poll::Ready(Ok(())) = send.poll_finish(cx) {
                    assert!(self.peer.is_confirmed, "a confirmation that was not sent");
                }
            }
            (4, _, Some(recv)) => {
                let confirmed = recv.confirm().is_ok();
                assert!(!confirmed || self.has_ended, "confirmed before the end");
            }
            (5, _, Some(recv)) => {
                self.has_stopped = true;
                recv.stop();
            }
            (6, send, _) => *send = None,
            (_, _, recv) => *recv = None,
        }
    }

    fn check_queues(&self) {
        if let Some(receiver) = &self.shared.receiver {
            let longest = receiver.lock().longest_queue();
            assert!(longest <= DEPTH, "{longest} slots of {DEPTH}");
        }
        if let Some(sender) = &self.shared.sender {
            let longest = sender.lock().longest_queue();
            assert!(longest <= DEPTH + 1, "{longest} chunks of {DEPTH}");
        }
    }

    /// Counts what a peer can make this end keep until the end of the stream.
    fn finish(&self) {
        self.send_messages();
        let state = &self.shared.state;
        let credits = std::iter::from_fn(|| state.take_credit()).take(DEPTH + 1);
        assert!(credits.count() <= DEPTH, "more credits than slots");
        #[cfg(feature = "rdma")]
        assert!(
            std::iter::from_fn(|| state.take_step()).count() <= 8,
            "steps"
        );
    }
}

impl PeerPlay {
    fn message(&mut self, kind: u8, script: &mut FuzzScript<'_>) -> Option<Message> {
        if kind == 0 {
            return Message::decode(script.piece()).ok();
        }
        Some(match script.below(11) {
            0..=3 => {
                let first = u32::from(script.byte().unwrap_or(0)) % 5;
                let slots = u32::try_from(script.below(6)).unwrap_or(0);
                Message::Credit((first..first + slots).collect())
            }
            4 | 5 => Message::Fin {
                bytes: self.chain.offset() + u64::from(script.flag()),
                digest: self.chain.digest() ^ u64::from(script.flag()),
            },
            6 => Message::FinAck,
            7 => Message::Confirm,
            8 => Message::Stop {
                offset: script.number().into(),
            },
            9 => Message::Moved {
                rail: script.byte().unwrap_or(0) % 2,
                connection: script.byte().unwrap_or(0) % 2,
                verified: script.number().into(),
            },
            _ => Message::Bye,
        })
    }

    /// Records what a message promises.
    fn note(&mut self, message: &Message) {
        match message {
            Message::Credit(slots) => {
                for slot in slots {
                    *self.granted.entry(*slot).or_default() += 1;
                }
            }
            Message::Fin { bytes, digest } => {
                self.fin.get_or_insert((*bytes, *digest));
            }
            Message::Confirm => self.is_confirmed = true,
            _ => {}
        }
    }

    /// Sends a valid frame into any slot.
    fn send_frame(&mut self, script: &mut FuzzScript<'_>) {
        let slot = u32::try_from(script.below(DEPTH + 1)).unwrap_or(0);
        let length = 1 + usize::from(script.number()) % CHUNK;
        let mut payload = vec![script.byte().unwrap_or(0); length];
        self.sent.extend_from_slice(&payload);
        let header = self.chain.seal(slot, &mut payload).encode();
        self.put(&[&header[..], &payload].concat());
    }

    /// Sends any bytes, or a frame in which some are others.
    fn send_any(&mut self, script: &mut FuzzScript<'_>) {
        self.is_honest = false;
        if script.flag() {
            self.put(script.piece());
            return;
        }
        let guard = seal(Role::Acceptor, self.is_encrypted).guard(Way::Out);
        let mut chain = Chain::at(guard, self.chain.offset());
        let header = Header {
            length: script.number().into(),
            ..chain.seal(u32::from(script.byte().unwrap_or(0)), &mut [b'x'])
        };
        let mut bytes = header.encode();
        bytes[script.below(HEADER_BYTES)] ^= script.byte().unwrap_or(0);
        self.put(&bytes);
        self.put(script.piece());
    }

    fn put(&mut self, bytes: &[u8]) {
        match rustix::io::write(&self.socket, bytes) {
            Ok(count) if count == bytes.len() => {}
            // A connection that takes only a part has lost the rest.
            _ => self.is_honest = false,
        }
    }

    /// Receives frames, each of which must be valid and for a slot that was granted.
    fn receive(&mut self) {
        let mut buffer = [0; 4 << 10];
        loop {
            match rustix::io::read(&self.socket, &mut buffer) {
                Ok(0) => break,
                Ok(count) => self.arrived.extend_from_slice(&buffer[..count]),
                Err(error) => {
                    let kind = std::io::Error::from(error).kind();
                    assert!(kind == ErrorKind::WouldBlock, "{error}");
                    break;
                }
            }
        }
        while let Some(header) = self.arrived.first_chunk::<HEADER_BYTES>() {
            let header = Header::decode(header).expect("a valid header");
            if self.arrived.len() < header.frame_bytes() {
                break;
            }
            self.arrived.advance(HEADER_BYTES);
            let mut payload = self.arrived.split_to(header.length as usize);
            let verified = self.verified.open(&header, &mut payload);
            assert_eq!(verified, Ok(()));
            let granted = self.granted.entry(header.slot).or_default();
            *granted = granted.checked_sub(1).expect("a slot that was not granted");
        }
    }

    /// Checks bytes that the user has read from byte `before` on.
    fn check_delivered(&self, before: usize, bytes: &[u8]) {
        if self.is_honest {
            assert_eq!(&self.sent[before..before + bytes.len()], bytes);
        }
    }
}
