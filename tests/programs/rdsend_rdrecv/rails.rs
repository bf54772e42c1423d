//! Streams of several rails between programs: files, pipes and open file descriptions that others use too are what they
//! are with one rail.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Seek, Write},
    process::Stdio,
    thread,
};

use crate::support::programs::{
    OLD, Place, Running, eventually, free_port, key, random_bytes, rdrecv, receiver, sender,
};

/// Options for four rails and small chunks, so that each rail has many.
const RAILS: &str = "--transport tcp --encrypt always --rails 4 --chunk 64K";

/// The length of the inputs, with a last chunk that is not full.
const BYTES: usize = (20 << 20) + 77;

/// Waits until both ends have ended with success.
fn both_succeed(sender: Running, receiver: Running) {
    sender.end().exits(0);
    receiver.end().exits(0);
}

/// The position of the open file description, which all its holders share.
fn position(mut file: &File) -> u64 {
    file.stream_position().unwrap()
}

#[test]
fn files_arrive_whole_whatever_number_each_end_asks_for() {
    let place = Place::new();
    let data = random_bytes(BYTES);
    let input = place.file("in", &data);
    for (sending, receiving, rails) in [(1, 8, 1), (2, 2, 2), (3, 8, 3), (8, 5, 5), (32, 32, 32)] {
        let options = |rails: u32| format!("-v --transport tcp --chunk 64K --rails {rails}");
        let receiver = receiver(format!("{} -o {}", options(receiving), place.old())).start();
        let sender = sender(receiver.port(), options(sending))
            .arg(&input)
            .start();
        let ends = [sender.end(), receiver.end()];
        assert!(place.read("old") == data, "{sending} and {receiving}");
        for end in ends {
            let said = end.exits(0);
            let tells = said.contains(&format!(", {rails} rails,"));
            assert_eq!(tells, rails > 1, "{said}");
        }
    }
}

/// `{ head -c 10 >/dev/null; rdsend ...; } <f`, and the same with the output.
#[test]
fn shared_descriptors_begin_where_they_stand_and_end_behind_the_bytes() {
    let place = Place::new();
    let data = random_bytes(BYTES);
    let mut input = File::open(place.file("in", &data)).unwrap();
    input.read_exact(&mut [0; 10]).unwrap();
    fs::write(place.path("out"), [7; 5]).unwrap();
    let mut output = OpenOptions::new()
        .write(true)
        .open(place.path("out"))
        .unwrap();
    output.write_all(b"abc").unwrap();
    let receiver = receiver(RAILS).stdout(output.try_clone().unwrap()).start();
    let sender = sender(receiver.port(), RAILS)
        .stdin(input.try_clone().unwrap())
        .start();
    both_succeed(sender, receiver);
    let end = BYTES as u64;
    assert_eq!((position(&input), position(&output)), (end, end - 10 + 3));
    output.write_all(b"the end").unwrap();
    let expected = [b"abc", &data[10..], b"the end"].concat();
    assert!(place.read("out") == expected);
}

/// A file that is open for appending, and one that holds the messages too.
#[test]
fn outputs_that_others_write_get_no_byte_at_a_wrong_place() {
    let place = Place::new();
    let data = random_bytes(BYTES);
    let input = place.file("in", &data);
    let append = OpenOptions::new().append(true).open(place.old()).unwrap();
    let appending = receiver(RAILS).stdout(append).start();
    let sending = sender(appending.port(), RAILS).arg(&input).start();
    both_succeed(sending, appending);
    assert!(place.read("old") == [OLD, &data].concat());

    let both = File::create(place.path("both")).unwrap();
    let port = free_port();
    let listening = rdrecv(format!("{port} {} -v {RAILS}", key()))
        .stdout(both.try_clone().unwrap())
        .stderr(both.try_clone().unwrap())
        .start();
    eventually("the port", || {
        let said = place.read("both");
        said.windows(9)
            .any(|part| part == b"listening")
            .then_some(())
    });
    let sending = sender(port, RAILS).arg(&input).start();
    both_succeed(sending, listening);
    // The messages stand between the bytes, and replace none.
    let both = place.read("both");
    let mut rest = data.iter().peekable();
    for byte in &both {
        rest.next_if_eq(&byte);
    }
    assert_eq!(rest.count(), 0, "of {} bytes", both.len());
}

#[test]
fn pipes_are_carried_in_order() {
    let place = Place::new();
    let data = random_bytes(BYTES);
    let receiver = receiver(RAILS).stdout(Stdio::piped()).start_raw();
    let mut receiver = receiver;
    let mut sender = sender(receiver.port(), RAILS).stdin(Stdio::piped()).start();
    let (mut stdin, mut stdout) = (sender.stdin(), receiver.take_stdout());
    let written = data.clone();
    let writer = thread::spawn(move || {
        let (small, bulk) = written.split_at(3000);
        for piece in small.chunks(7) {
            stdin.write_all(piece).unwrap();
        }
        stdin.write_all(bulk).unwrap();
    });
    let mut arrived = Vec::new();
    stdout.read_to_end(&mut arrived).unwrap();
    writer.join().unwrap();
    assert!(arrived == data);
    both_succeed(sender, receiver);
    drop(place);
}

/// What the file holds when it is read to its end is what arrives, whatever happens to it meanwhile.
#[test]
fn a_file_that_changes_while_it_is_read_ends_where_it_ends() {
    let place = Place::new();
    let data = random_bytes(BYTES);
    for to in [0, 5 << 20, BYTES as u64 + (4 << 20)] {
        let input = place.file("in", &data);
        let receiver = receiver(RAILS).stdout(Stdio::piped()).start_raw();
        let mut receiver = receiver;
        let sender = sender(receiver.port(), RAILS).arg(&input).start();
        // The output is not read yet: the pools and the pipe are full, and most of the input is unread.
        let mut stdout = receiver.take_stdout();
        let mut arrived = vec![0];
        stdout.read_exact(&mut arrived).unwrap();
        OpenOptions::new()
            .write(true)
            .open(&input)
            .unwrap()
            .set_len(to)
            .unwrap();
        stdout.read_to_end(&mut arrived).unwrap();
        both_succeed(sender, receiver);
        let common = arrived.len().min(data.len());
        assert!(arrived[..common] == data[..common], "up to {to}");
        assert!(arrived[common..].iter().all(|byte| *byte == 0));
        if to > BYTES as u64 {
            assert_eq!(arrived.len() as u64, to);
        }
    }
}

/// A shell's `rdrecv >out` that fails leaves the first bytes, and no gap in front of others.
#[test]
fn a_file_of_a_failed_run_has_no_gap() {
    let place = Place::new();
    let data = random_bytes(BYTES);
    let output = File::create(place.path("out")).unwrap();
    let receiver = receiver(RAILS).stdout(output.try_clone().unwrap()).start();
    let mut sender = sender(receiver.port(), RAILS).stdin(Stdio::piped()).start();
    let mut stdin = sender.stdin();
    stdin.write_all(&data[..BYTES / 2]).unwrap();
    eventually("some bytes", || {
        (output.metadata().unwrap().len() > 1 << 20).then_some(())
    });
    sender.kill();
    sender.end();
    receiver.end().fails(255, &[]);
    let left = place.read("out");
    assert!(
        left.len() < BYTES && data.starts_with(&left),
        "{} bytes",
        left.len()
    );
    assert_eq!(position(&output), left.len() as u64);
}
