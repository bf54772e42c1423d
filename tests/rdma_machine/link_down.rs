//! A network interface that goes down in the middle of a stream, for a second or for good.

use std::{
    fs::File,
    io::Write,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    support::programs::{
        Link, Place, Running, eventually, limit, random_bytes, receiver, sender, soon,
    },
    turn,
};

/// A slow stream that goes on until the test ends it.
struct Trickle {
    receiver: Running,
    sender: Running,
    sent: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    writing: thread::JoinHandle<()>,
    place: Place,
}

const PIECE_BYTES: usize = 100_003;

impl Trickle {
    fn start(options: &str) -> Self {
        let place = Place::new();
        let options = format!("--transport rdma {options}");
        let output = File::create(place.path("got")).unwrap();
        let receiver = receiver(&options).stdout(output).start();
        let mut sender = sender(receiver.port(), &options)
            .stdin(Stdio::piped())
            .start();
        let mut input = sender.stdin();
        let (sent, stop) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (counter, told) = (Arc::clone(&sent), Arc::clone(&stop));
        let writing = thread::spawn(move || {
            let piece = random_bytes(PIECE_BYTES);
            while !told.load(Ordering::SeqCst) && input.write_all(&piece).is_ok() {
                counter.fetch_add(PIECE_BYTES as u64, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(20));
            }
        });
        Self {
            receiver,
            sender,
            sent,
            stop,
            writing,
            place,
        }
    }

    fn received(&self) -> u64 {
        self.place.path("got").metadata().unwrap().len()
    }

    fn until_further(&self, bytes: u64) {
        let from = self.received();
        eventually("more bytes", || {
            let over = !self.sender.runs() || !self.receiver.runs();
            (over || self.received() > from + bytes).then_some(())
        });
    }

    /// Ends the input, and checks that both programs succeed and that every byte arrived.
    fn ends_well(self) {
        self.stop.store(true, Ordering::SeqCst);
        self.writing.join().unwrap();
        let (sender, receiver) = (self.sender.end(), self.receiver.end());
        assert_eq!(
            [sender.code(), receiver.code()],
            [0, 0],
            "{}{}",
            sender.stderr,
            receiver.stderr
        );
        let got = self.place.read("got");
        assert_eq!(got.len() as u64, self.sent.load(Ordering::SeqCst));
        let piece = random_bytes(PIECE_BYTES);
        assert!(got.chunks(PIECE_BYTES).all(|bytes| bytes == piece));
    }

    /// Checks that both programs end with an error, within `limit` after `since`.
    fn ends_badly(self, since: Instant, limit: Duration) {
        let (sender, receiver) = (self.sender.end(), self.receiver.end());
        let late = [sender.at - since, receiver.at - since];
        println!("after {late:?}:\n{}{}", sender.stderr, receiver.stderr);
        assert!(late.iter().all(|late| *late < limit), "{late:?}");
        for end in [sender, receiver] {
            assert!([3, 255].contains(&end.code()), "{end:?}");
            end.fails(end.code(), &[" at byte "]);
        }
        self.writing.join().unwrap();
    }
}

#[test]
fn a_stream_survives_an_interface_that_is_down_for_a_second() {
    let Some(_turn) = turn() else { return };
    let stream = Trickle::start("--timeout 6");
    stream.until_further(1_000_000);
    let down = Link::down("d0");
    let before = stream.received();
    thread::sleep(Duration::from_secs(1));
    println!("{} bytes while it was down", stream.received() - before);
    drop(down);
    stream.until_further(3_000_000);
    stream.ends_well();
}

#[test]
fn a_stream_fails_at_both_ends_if_all_interfaces_stay_down() {
    let Some(_turn) = turn() else { return };
    let stream = Trickle::start("--timeout 6");
    stream.until_further(1_000_000);
    let since = Instant::now();
    let down = [Link::down("d0"), Link::down("d1")];
    // The limit is the time of the timeout and of two rounds of retries, since a link that is lost late is replaced once
    // more, and the time to report the failure.
    let limit = limit(Duration::from_secs(6 + 2 * 4)) + soon();
    stream.ends_badly(since, limit);
    drop(down);
}
