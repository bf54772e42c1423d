//! Random faults of the network, and killed programs, at random moments: no fault makes a program hang, delivers a
//! wrong byte, or is taken for a success.
//!
//! A hundred faults run everywhere, and two thousand with `RDPIPE_FULL=1`. Each has a number, which is printed:
//! `RDPIPE_FAULT=17` repeats one alone, and `RDPIPE_TEST_SEED` chooses others.

use std::{
    collections::BTreeMap,
    env,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use crate::support::{
    is_full,
    programs::{
        Connection, End, OLD, Place, Random, Running, Towards, Victim, patience, random_bytes,
        receiver, sender, soon,
    },
    proxy::{Act, Plan, Proxy},
    random::seed,
};

/// The length of the file that is copied.
const FILE_BYTES: usize = 2 << 20;

/// The size of a chunk: small, so that there are many control messages.
const CHUNK_BYTES: usize = 4 << 10;

/// The first byte of the data connection at which a fault may happen: that of the first frame, after preamble, label
/// and proof.
const FIRST_BYTE: u64 = 8 + 16 + 32;

/// The bytes of the data connection for the whole file, with a header of 128 bytes for each frame.
const DATA_BYTES: u64 = FIRST_BYTE + (FILE_BYTES + FILE_BYTES / CHUNK_BYTES * 128) as u64;

/// One random fault, and what the test does itself.
#[derive(Debug)]
struct RandomFault {
    kind: &'static str,
    fault: Plan,
    /// The number of rails that each end asks for.
    rails: [u64; 2],
    /// The program that is killed at the moment of the fault.
    victim: Option<Victim>,
}

/// Returns the time after which a silent peer counts as dead.
fn timeout() -> Duration {
    patience(Duration::from_secs(2))
}

impl RandomFault {
    /// Returns the fault with this number. The kinds take turns, and of each kind the connections and directions.
    fn new(number: u64) -> Self {
        let mut random = Random::new(0xFA_0000 + number);
        let (connection, towards) = match number / 8 % 4 {
            0 => (Connection::Data, Towards::Acceptor),
            1 => (Connection::Control, Towards::Acceptor),
            2 => (Connection::Control, Towards::Dialer),
            _ => (Connection::Data, Towards::Dialer),
        };
        let (kind, act) = match number % 8 {
            0 => ("cut", Act::Cut),
            1 => ("reset", Act::Reset),
            2 => ("half-close", Act::HalfClose),
            3 => (
                "duplicate",
                Act::Duplicate(usize::try_from(random.within(1..300)).expect("it is small")),
            ),
            4 => (
                "flip",
                Act::Flip(u8::try_from(random.within(0..8)).expect("it is small")),
            ),
            5 => ("silence", Act::Block),
            6 => ("stall", Act::Stall(timeout() / 4)),
            _ => ("kill", Act::Nothing),
        };
        // Nothing travels on the data connection towards the sender that could be damaged or held back.
        let needs_bytes = !matches!(act, Act::Cut | Act::Reset | Act::HalfClose | Act::Nothing);
        let towards = match (connection, needs_bytes) {
            (Connection::Data, true) => Towards::Acceptor,
            _ => towards,
        };
        let rails = match number / 32 % 4 {
            0 | 2 => [1, 1],
            1 => [2, 3],
            _ => [8, 8],
        };
        let end = FIRST_BYTE + (DATA_BYTES - FIRST_BYTE) / rails[0];
        let at = match random.within(0..5) {
            // With the last byte, FIN and what follows it.
            0 if rails == [1, 1] => DATA_BYTES - 1,
            _ => random.within(FIRST_BYTE..end),
        };
        let victim = match towards {
            _ if act != Act::Nothing => None,
            Towards::Acceptor => Some(Victim::Sender),
            Towards::Dialer => Some(Victim::Receiver),
        };
        let fault = Plan {
            connection,
            towards,
            at,
            act,
        };
        Self {
            kind,
            fault,
            rails,
            victim,
        }
    }

    /// Where the fault happens, for the counts.
    fn place(&self) -> String {
        match self.victim {
            Some(victim) => format!("{} {victim:?}", self.kind),
            None => format!(
                "{} {:?} towards {:?}",
                self.kind, self.fault.connection, self.fault.towards
            ),
        }
    }

    /// Copies a file with this fault, and checks what both programs report. Returns true if the fault happened.
    fn play(&self, data: &[u8]) -> bool {
        let place = Place::new();
        place.file("in", data);
        let options = format!(
            "--transport tcp --timeout {} --chunk 4K",
            timeout().as_secs_f64()
        );
        let [sending, receiving] = self.rails;
        let receiver =
            receiver(format!("{options} --rails {receiving} -o {}", place.old())).start();
        let target = ([127, 0, 0, 1], receiver.port()).into();
        let proxy = Proxy::start_by_data(target, self.fault);
        let options = format!("{options} --rails {sending}");
        let sender = sender(proxy.port(), &options).arg(place.path("in")).start();
        if let Some(victim) = self.victim {
            assert!(proxy.acts_within(limit()), "the transfer does not begin");
            match victim {
                Victim::Sender => sender.kill(),
                Victim::Receiver => receiver.kill(),
            };
        }
        let ends = end_both(sender, receiver);
        self.check(&place, data, &ends);
        proxy.has_acted()
    }

    fn check(&self, place: &Place, data: &[u8], [sender, receiver]: &[End; 2]) {
        let said = format!("{sender:?}\n{receiver:?}");
        assert!(!said.contains("panicked"), "a panic:\n{said}");
        let target = place.read("old");
        let is_whole = target == data;
        assert!(is_whole || target == OLD, "a wrong byte:\n{said}");
        let has_received = receiver.code() == 0;
        let is_false = !is_whole && (sender.code() == 0 || has_received);
        assert!(!is_false, "a false success:\n{said}");
        // A receiver may be killed after it has confirmed.
        if self.victim.is_none() {
            let is_confirmed = sender.code() == 0;
            assert!(has_received || !is_confirmed, "a false success:\n{said}");
            assert_eq!(
                is_whole, has_received,
                "a whole file and a failure:\n{said}"
            );
        }
        if place.knows_nameless_files() {
            let mut names = place.names();
            if self.victim == Some(Victim::Receiver) {
                // Between its link and its rename a complete file has a temporary name, which SIGKILL leaves behind.
                names.retain(|name| !name.starts_with(".old.rdpipe-") || place.read(name) != data);
            }
            assert_eq!(names, ["in", "old"], "litter:\n{said}");
        }
        if matches!(self.fault.act, Act::Stall(_)) {
            let codes = (sender.code(), receiver.code());
            assert_eq!(codes, (0, 0), "a false alarm:\n{said}");
        }
    }
}

/// Returns the time within which both programs must have ended: they detect a silent peer, or a silent data connection.
fn limit() -> Duration {
    timeout().mul_f64(1.25) + Duration::from_secs(2) + soon()
}

/// Waits for both programs at the same time: the one that waits for the other must not wait for the test.
fn end_both(sender: Running, receiver: Running) -> [End; 2] {
    let ended = sender.ends_within(limit()) & receiver.ends_within(limit());
    if !ended {
        let (runs, still) = (sender.runs(), receiver.runs());
        sender.kill();
        receiver.kill();
        let ends = [sender.end(), receiver.end()];
        panic!("a hang (sender {runs}, receiver {still}):\n{ends:?}");
    }
    [sender.end(), receiver.end()]
}

#[test]
fn no_random_fault_hangs_or_delivers_a_wrong_byte_or_passes_for_a_success() {
    let count = if is_full() { 2000 } else { 100 };
    let only = env::var("RDPIPE_FAULT").ok();
    let only = only.map(|text| text.parse::<u64>().expect("RDPIPE_FAULT is a number"));
    let data = random_bytes(FILE_BYTES);
    let next = AtomicU64::new(only.unwrap_or(0));
    let end = only.map_or(count, |only| only + 1);
    let results = Mutex::new(Vec::new());
    println!("the seed is {}", seed());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= end {
                        return;
                    }
                    let fault = RandomFault::new(number);
                    let played = catch_unwind(AssertUnwindSafe(|| fault.play(&data)));
                    println!("fault {number}: {fault:?}: {played:?}");
                    results.lock().unwrap().push((number, fault, played.ok()));
                }
            });
        }
    });
    let results = results.into_inner().unwrap();
    let counts = report(&results);
    let is_failed =
        |(number, _, played): &(u64, _, Option<bool>)| played.is_none().then_some(*number);
    let mut failed: Vec<_> = results.iter().filter_map(is_failed).collect();
    failed.sort_unstable();
    assert!(
        failed.is_empty(),
        "{} of {} faults failed: RDPIPE_TEST_SEED={} RDPIPE_FAULT={failed:?}",
        failed.len(),
        results.len(),
        seed()
    );
    if only.is_none() {
        let least = u32::try_from(count / 20).expect("it is small");
        for (what, happened) in counts {
            assert!(happened >= least, "only {happened} of {what}");
        }
    }
}

/// Prints how many faults of each kind and place happened, came too late or failed. Returns how many of each kind, each
/// connection and each direction happened.
fn report(results: &[(u64, RandomFault, Option<bool>)]) -> BTreeMap<String, u32> {
    let mut places: BTreeMap<String, [u32; 3]> = BTreeMap::new();
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for (_, fault, played) in results {
        let column = match played {
            Some(true) => 0,
            Some(false) => 1,
            None => 2,
        };
        places.entry(fault.place()).or_default()[column] += 1;
        let (connection, towards) = (fault.fault.connection, fault.fault.towards);
        let whats = match fault.victim {
            Some(victim) => vec![fault.kind.to_owned(), format!("{victim:?}")],
            None => vec![
                fault.kind.to_owned(),
                format!("{connection:?}"),
                format!("towards {towards:?}"),
            ],
        };
        for what in whats {
            *counts.entry(what).or_default() += u32::from(column == 0);
        }
    }
    for (place, [happened, late, failed]) in places {
        println!("{place}: {happened} happened, {late} came too late, {failed} failed");
    }
    counts
}
