//! Somebody on the path between two ends: one who changes the frames of the data connection, and computes the checks of
//! their headers again; and one who records everything that crosses.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use rdpipe_digest::xxh3_64;

use crate::support::{
    random::Random,
    relay::{BUFFER_BYTES, Connection, Relay, Sockets, Towards, pass_end},
};

/// The length of the header before the payload of each frame.
pub(crate) const HEADER_BYTES: usize = 128;

pub(crate) const CHECKED_BYTES: usize = HEADER_BYTES - 8;

/// Changes a frame: its header and its payload. The first argument is the way that the frame goes.
pub(crate) type Tamper = Arc<dyn Fn(Towards, &mut Vec<u8>) + Send + Sync>;

/// Starts a relay to `target` that has each frame changed.
pub(crate) fn tampering(target: SocketAddr, tamper: Tamper) -> Relay {
    Relay::start(target, move |connection, sockets| match connection {
        Connection::Control => pass_both(&sockets, copy),
        Connection::Data => {
            let tamper = Arc::clone(&tamper);
            pass_both(&sockets, move |towards, from, to| {
                copy_frames(towards, from, to, &tamper)
            });
        }
    })
}

/// Everything that has crossed a relay.
#[derive(Clone, Default)]
pub(crate) struct Tape(Arc<Mutex<Vec<u8>>>);

impl Tape {
    /// Returns the number of `markers` that the tape holds, byte for byte.
    pub(crate) fn count(&self, markers: &[String]) -> usize {
        let tape = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Without this, a thousand searches of some megabytes take longer than the transfer.
        let mut found = std::collections::HashSet::new();
        let length = markers.first().map_or(1, String::len);
        for window in tape.windows(length) {
            if window.starts_with(MARK) {
                found.insert(window);
            }
        }
        let held = |marker: &&String| found.contains(marker.as_bytes());
        markers.iter().filter(held).count()
    }

    pub(crate) fn record(&self, bytes: &[u8]) {
        let mut tape = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tape.extend_from_slice(bytes);
    }
}

const MARK: &[u8] = b"marker-";

/// Returns this many markers, all of one length, none of which any other data holds.
pub(crate) fn markers(count: u64) -> Vec<String> {
    let mut random = Random::new(count);
    let marker = |_| format!("marker-{:016x}", random.number());
    (0..count).map(marker).collect()
}

/// Starts a relay to `target` that records all bytes of all connections, in both directions. It listens on a port of its
/// own, or at `address`.
pub(crate) fn recording(target: SocketAddr, address: Option<SocketAddr>) -> (Relay, Tape) {
    let tape = Tape::default();
    let recorded = tape.clone();
    let address = address.unwrap_or(([127, 0, 0, 1], 0).into());
    let relay = Relay::start_at(address, target, move |_, sockets| {
        let tape = recorded.clone();
        pass_both(&sockets, move |_, mut from, mut to| {
            let mut buffer = vec![0; BUFFER_BYTES];
            loop {
                let count = from.read(&mut buffer)?;
                if count == 0 {
                    return Ok(());
                }
                tape.record(&buffer[..count]);
                to.write_all(&buffer[..count])?;
            }
        });
    });
    (relay, tape)
}

/// Has `pass` carry both directions of a connection.
fn pass_both(
    sockets: &Sockets,
    pass: impl Fn(Towards, &TcpStream, &TcpStream) -> io::Result<()> + Send + Clone + 'static,
) {
    let (there, copies) = (pass.clone(), sockets.copies());
    let one_way = |pass: &dyn Fn(Towards, &TcpStream, &TcpStream) -> io::Result<()>,
                   sockets: &Sockets,
                   towards| {
        let (from, to) = sockets.ends(towards);
        pass_end(&pass(towards, from, to), from, to);
    };
    thread::spawn(move || one_way(&there, &copies, Towards::Acceptor));
    one_way(&pass, sockets, Towards::Dialer);
}

fn copy(_towards: Towards, mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    io::copy(&mut from, &mut to).map(drop)
}

/// Passes what comes before the frames, and then frame after frame.
fn copy_frames(
    towards: Towards,
    mut from: &TcpStream,
    mut to: &TcpStream,
    tamper: &Tamper,
) -> io::Result<()> {
    // Preamble, label and proof of the dialer; the proof of the acceptor. The two ends answer each other.
    let prologue = match towards {
        Towards::Acceptor => 8 + 16 + 32,
        Towards::Dialer => 32,
    };
    io::copy(&mut from.take(prologue), &mut to)?;
    loop {
        let mut frame = vec![0; HEADER_BYTES];
        match from.read_exact(&mut frame) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let length = u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]);
        frame.resize(HEADER_BYTES + length as usize, 0);
        from.read_exact(&mut frame[HEADER_BYTES..])?;
        tamper(towards, &mut frame);
        let check = xxh3_64(&frame[..CHECKED_BYTES]).to_le_bytes();
        frame[CHECKED_BYTES..HEADER_BYTES].copy_from_slice(&check);
        to.write_all(&frame)?;
    }
}

/// Flips one bit of each frame.
pub(crate) fn flip(bit: usize) -> Tamper {
    Arc::new(move |_, frame| {
        let at = bit / 8 % frame.len();
        frame[at] ^= 1 << (bit % 8);
    })
}
