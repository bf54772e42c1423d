//! Kills one end of a pair that copies a file, at random moments or at named points of the protocol, and checks
//! the other end and the file.

use super::{
    End, OLD, Place, Random, Running, Setup, eventually, key, random_bytes, rdsend, receiver, soon,
    write_position,
};

/// The program that is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    Sender,
    Receiver,
}

impl Victim {
    /// Returns the points of the protocol at which the program can stop itself, in the order in which it reaches them.
    pub fn points(self) -> &'static [&'static str] {
        match self {
            Self::Sender => &[
                "after-hello",
                "first-chunk-sent",
                "before-fin",
                "after-fin",
                "before-confirmation-received",
            ],
            Self::Receiver => &[
                "after-hello",
                "first-chunk-received",
                "before-commit",
                "before-confirmation-sent",
            ],
        }
    }
}

/// A copy of a file during which one program is killed.
#[derive(Debug, Clone, Copy)]
pub struct Doomed {
    /// The options of both programs.
    pub options: &'static str,
    /// The length of the file.
    pub bytes: usize,
}

impl Doomed {
    fn programs(self, place: &Place) -> [Setup; 2] {
        let options = self.options;
        let receiver = receiver(format!("{options} -o {}", place.old()));
        [receiver, rdsend(format!("{options} 127.0.0.1"))]
    }

    /// Kills the victim in each round after a random number of bytes below `before` has been written.
    /// Returns the number of rounds in which the copy was not complete.
    pub fn die_at_random_moments(
        self,
        victim: Victim,
        seed: u64,
        rounds: usize,
        before: usize,
    ) -> usize {
        let data = random_bytes(self.bytes);
        let mut random = Random::new(seed);
        let mut caught = 0;
        for round in 0..rounds {
            let place = Place::new();
            place.file("in", &data);
            let moment = random.within(0..before as u64);
            let ends = kill_at(&place, victim, self.programs(&place), |_, receiver| {
                written(&place, receiver, moment);
            });
            println!("round {round}, byte {moment}: {:?}", ends[1].stderr);
            caught += usize::from(ends[1].code() != 0);
            assert_no_loss(&place, victim, &ends, &data);
        }
        caught
    }

    /// Kills the victim at each of its points, with a new copy for each.
    pub fn die_at_every_point(self, victim: Victim) {
        for point in victim.points() {
            self.die_at(victim, point);
        }
    }

    fn die_at(self, victim: Victim, point: &str) {
        let data = random_bytes(self.bytes);
        let place = Place::new();
        place.file("in", &data);
        let [to, from] = self.programs(&place);
        let programs = match victim {
            Victim::Sender => [to, from.stop_at(point)],
            Victim::Receiver => [to.stop_at(point), from],
        };
        let ends = kill_at(&place, victim, programs, |sender, receiver| match victim {
            Victim::Sender => sender.stopped(),
            Victim::Receiver => receiver.stopped(),
        });
        let survivor = ends[1].code();
        println!("{victim:?} at {point}: {survivor} {}", ends[1].stderr);
        if (victim, point) == (Victim::Receiver, "after-hello")
            && ends[1].stderr.contains("cannot connect to ")
        {
            // The receiver was stopped before its last message of the handshake had arrived. So the sender connected
            // again, and found no receiver.
            assert_eq!((survivor, place.read("old") == OLD), (255, true));
            assert_whole_or_old(&place, victim, &ends, &data);
            return;
        }
        assert_no_loss(&place, victim, &ends, &data);
        // At some points the outcome is certain.
        match (victim, point) {
            (Victim::Sender, "after-hello" | "first-chunk-sent" | "before-fin") => {
                assert_eq!((survivor, place.read("old") == OLD), (255, true));
            }
            (Victim::Receiver, "before-commit") => {
                assert_eq!((survivor, place.read("old") == OLD), (4, true));
            }
            (Victim::Receiver, "before-confirmation-sent") => {
                assert!(survivor == 4 && place.read("old") == data);
            }
            (Victim::Receiver, _) => assert_eq!(survivor, 255),
            _ => {}
        }
    }
}

/// Waits until the target has been written up to byte `moment`, or is complete, or the receiver has ended.
pub fn written(place: &Place, receiver: &Running, moment: u64) {
    eventually("so many bytes", || {
        let at = write_position(receiver, place.directory());
        let over = !receiver.runs() || place.read("old") != OLD;
        (over || at >= Some(moment)).then_some(())
    });
}

/// Runs a pair that copies `in` over `old`, and kills the victim when `wait` returns. Returns the ends of the victim
/// and of the survivor.
fn kill_at(
    place: &Place,
    victim: Victim,
    [receiver, sender]: [Setup; 2],
    wait: impl FnOnce(&Running, &Running),
) -> [End; 2] {
    let receiver = receiver.start();
    let sender = sender.arg(receiver.port().to_string()).arg(key());
    let sender = sender.arg(place.path("in")).start();
    wait(&sender, &receiver);
    let (victim, survivor) = match victim {
        Victim::Sender => (sender, receiver),
        Victim::Receiver => (receiver, sender),
    };
    let killed = victim.kill();
    let survivor = survivor.end();
    let late = survivor.at.saturating_duration_since(killed);
    assert!(
        late < soon(),
        "it took {late:?} and said:\n{}",
        survivor.stderr
    );
    [victim.end(), survivor]
}

/// Checks what must be true after every end of both programs, and that the survivor names the death as the cause.
#[track_caller]
fn assert_no_loss(place: &Place, victim: Victim, ends: &[End; 2], data: &[u8]) {
    assert_whole_or_old(place, victim, ends, data);
    let survivor = &ends[1];
    if survivor.code() != 0 {
        let (code, words) = match (victim, survivor.stderr.contains("unconfirmed")) {
            (Victim::Sender, _) => (255, "receiving from "),
            (Victim::Receiver, true) => (4, "delivery to 127.0.0.1 is unconfirmed: all "),
            (Victim::Receiver, false) => (255, "sending to 127.0.0.1 failed at byte "),
        };
        survivor.fails(code, &[words, "the other end died"]);
    }
}

/// Checks that there is no false success, no partial file and no litter.
#[track_caller]
fn assert_whole_or_old(place: &Place, victim: Victim, [dead, survivor]: &[End; 2], data: &[u8]) {
    let [sender, receiver] = match victim {
        Victim::Sender => [dead, survivor],
        Victim::Receiver => [survivor, dead],
    };
    let said = format!("{sender:?}\n{receiver:?}");
    let target = place.read("old");
    let whole = target == data;
    assert!(
        whole || target == OLD,
        "neither the old file nor the new one:\n{said}"
    );
    assert!(
        whole || (sender.code() != 0 && receiver.code() != 0),
        "a false success:\n{said}"
    );
    if place.knows_nameless_files() {
        let mut names = place.names();
        if victim == Victim::Receiver && !whole {
            // Between the two system calls that replace a file, the complete one has a temporary name.
            let is_new = |name: &str| name.starts_with(".old.rdpipe-") && place.read(name) == data;
            names.retain(|name| !is_new(name));
        }
        assert_eq!(names, ["in", "old"], "litter:\n{said}");
    }
}
