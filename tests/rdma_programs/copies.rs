//! Copies over RDMA that succeed, by rdsend and rdrecv, and by rdcat with a ticket: every byte arrives, and `-v` names
//! the device and the port.

use std::{
    io::{Read, Write},
    process::Stdio,
    thread,
};

use crate::support::programs::{
    Place, lacks_rdma, random_bytes,
    rdcat::{exchange, pair},
    receiver, sender,
};

#[test]
fn files_of_every_size_arrive_over_rdma() {
    if lacks_rdma() {
        return;
    }
    // No byte, one byte, one default chunk, one byte less and one more, and more than a pool.
    for bytes in [0, 1, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, (17 << 20) + 7] {
        let place = Place::new();
        let data = random_bytes(bytes);
        let input = place.file("in", &data);
        let receiver = receiver(format!("--transport rdma -o {}", place.old())).start();
        let sender = sender(receiver.port(), "--transport rdma").arg(input);
        assert_eq!(sender.start().end().exits(0), "");
        receiver.end().exits(0);
        assert!(place.read("old") == data, "{bytes} bytes");
    }
}

#[test]
fn verbose_names_device_port_and_gid() {
    if lacks_rdma() {
        return;
    }
    let place = Place::new();
    let input = place.file("in", &random_bytes(1_000_000));
    let options = "--transport rdma --chunk 64K --depth 5 -v";
    let receiver = receiver(options).start();
    let sender = sender(receiver.port(), options).arg(input).start();
    for end in [sender.end(), receiver.end()] {
        let text = end.exits(0);
        let way = text.lines().find(|line| line.contains(" over RDMA ("));
        let way = way.unwrap_or_else(|| panic!("no word on the way:\n{text}"));
        for said in [" port ", "GID ", ", MTU "] {
            assert!(way.contains(said), "{said:?}: {way}");
        }
        let kinds = ["RoCE v2", "RoCE v1", "InfiniBand"];
        assert!(kinds.iter().any(|kind| way.contains(kind)), "{way}");
        assert!(text.contains("Chunks of 64K bytes, 5 at once"), "{text}");
    }
}

/// Each rail reads and writes its part of a file on its thread.
#[test]
fn rails_carry_a_file_over_rdma() {
    if lacks_rdma() {
        return;
    }
    let place = Place::new();
    let data = random_bytes((21 << 20) + 77);
    let input = place.file("in", &data);
    let options = "--transport rdma --rails 4 --chunk 128K --encrypt always -v";
    let receiver = receiver(format!("{options} -o {}", place.old())).start();
    let sender = sender(receiver.port(), options).arg(input).start();
    for end in [sender.end(), receiver.end()] {
        let text = end.exits(0);
        assert!(text.contains(", 4 rails, "), "{text}");
    }
    assert!(place.read("old") == data);
}

/// The rails take turns to read the input of a pipe, and to write to one.
#[test]
fn rails_carry_pipes_over_rdma() {
    if lacks_rdma() {
        return;
    }
    let data = random_bytes((9 << 20) + 5);
    let options = "--transport rdma --rails 3 --chunk 64K";
    let mut receiver = receiver(options).stdout(Stdio::piped()).start_raw();
    let mut sender = sender(receiver.port(), options)
        .stdin(Stdio::piped())
        .start();
    let (mut stdin, mut stdout) = (sender.stdin(), receiver.take_stdout());
    let sent = data.clone();
    let writing = thread::spawn(move || stdin.write_all(&sent).unwrap());
    let mut arrived = Vec::new();
    stdout.read_to_end(&mut arrived).unwrap();
    writing.join().unwrap();
    assert!(arrived == data);
    sender.end().exits(0);
    receiver.end().exits(0);
}

#[test]
fn auto_uses_rdma_where_it_works() {
    if lacks_rdma() {
        return;
    }
    let receiver = receiver("-v").start();
    let sender = sender(receiver.port(), "-v").start();
    for end in [sender.end(), receiver.end()] {
        assert!(end.exits(0).contains(" over RDMA ("), "{}", end.stderr);
    }
}

#[test]
fn both_directions_work_at_once_over_rdma() {
    if lacks_rdma() {
        return;
    }
    let bytes = [(6 << 20) + 7, (9 << 20) + 1];
    for said in exchange(pair("-v --transport rdma", "-v"), bytes) {
        assert!(said.contains(" over RDMA ("), "{said}");
        assert!(
            said.contains(&format!("Bytes {}\n", bytes[0] + bytes[1])),
            "{said}"
        );
    }
}

#[test]
fn one_direction_works_over_rdma() {
    if lacks_rdma() {
        return;
    }
    exchange(pair("--transport rdma --recv", ""), [0, 5_000_001]);
}
