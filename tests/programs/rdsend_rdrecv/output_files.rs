//! The output file of rdrecv: replaced as a whole where that is safe, written in place elsewhere, and
//! unchanged if the sender has a wrong key.

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink},
    path::Path,
    process::Stdio,
    thread,
    time::Instant,
};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::support::programs::{
    Place, eventually, random_bytes, rdsend, receiver, sender, soon, write_position,
};

/// Sends `data` to an rdrecv that writes to `path`; both must succeed.
fn deliver(path: &Path, options: &str, data: &[u8]) {
    let place = Place::new();
    let input = place.file("in", data);
    let receiver = receiver(format!("{options} -o")).arg(path).start();
    sender(receiver.port(), "")
        .arg(input)
        .start()
        .end()
        .exits(0);
    receiver.end().exits(0);
}

#[test]
fn an_old_file_is_replaced_only_when_complete() {
    let place = Place::new();
    let data = random_bytes(3_000_000);
    let input = place.file("in", &data);
    let before = fs::metadata(place.path("old")).unwrap();
    let mut reader = File::open(place.path("old")).unwrap();
    let receiver = receiver(format!("-o {}", place.old())).start();
    let mut sender = sender(receiver.port(), "").stdin(Stdio::piped()).start();
    let mut stdin = sender.stdin();
    stdin.write_all(&data[..2_000_000]).unwrap();
    eventually("some bytes", || {
        write_position(&receiver, place.directory()).filter(|at| *at > 0)
    });
    place.assert_untouched(&["in"]);
    stdin.write_all(&data[2_000_000..]).unwrap();
    drop(stdin);
    sender.end().exits(0);
    receiver.end().exits(0);
    assert!(place.read("old") == data && fs::read(input).unwrap() == data);
    assert_ne!(fs::metadata(place.path("old")).unwrap().ino(), before.ino());
    // A program that had the old file open still reads the old content.
    let mut kept = Vec::new();
    reader.read_to_end(&mut kept).unwrap();
    assert_eq!(kept, crate::support::programs::OLD);
}

#[test]
fn a_replaced_file_keeps_mode_and_owner() {
    let place = Place::new();
    let old = place.path("old");
    fs::set_permissions(&old, PermissionsExt::from_mode(0o640)).unwrap();
    let owner = if rustix::process::geteuid().is_root() {
        chown(&old, Some(1234), Some(5678)).unwrap();
        (1234, 5678)
    } else {
        println!("SKIPPED in part: only root can give files away");
        let old = fs::metadata(&old).unwrap();
        (old.uid(), old.gid())
    };
    deliver(&old, "--fsync", b"new");
    let new = fs::metadata(&old).unwrap();
    assert_eq!(
        (new.mode() & 0o7777, (new.uid(), new.gid())),
        (0o640, owner)
    );
    assert_eq!(place.read("old"), b"new");
}

#[test]
fn a_new_file_gets_the_usual_mode() {
    let place = Place::new();
    deliver(&place.path("new"), "--fsync", b"data");
    File::create(place.path("like")).unwrap();
    let mode = |name| fs::metadata(place.path(name)).unwrap().mode();
    assert_eq!(mode("new"), mode("like"));
    assert_eq!(place.read("new"), b"data");
    assert_eq!(place.names(), ["like", "new", "old"]);
}

#[test]
fn symbolic_links_are_followed() {
    let place = Place::new();
    symlink("old", place.path("one")).unwrap();
    symlink(place.path("one"), place.path("two")).unwrap();
    symlink("not-yet", place.path("dangling")).unwrap();
    deliver(&place.path("two"), "", b"new");
    deliver(&place.path("dangling"), "", b"made");
    assert!(
        fs::symlink_metadata(place.path("two"))
            .unwrap()
            .is_symlink()
    );
    assert!(
        fs::symlink_metadata(place.path("dangling"))
            .unwrap()
            .is_symlink()
    );
    assert_eq!(
        (place.read("old"), place.read("not-yet")),
        (b"new".to_vec(), b"made".to_vec())
    );
}

#[test]
fn a_file_with_two_names_keeps_both() {
    let place = Place::new();
    fs::hard_link(place.path("old"), place.path("other")).unwrap();
    deliver(&place.path("old"), "", b"new");
    assert_eq!(
        (place.read("old"), place.read("other")),
        (b"new".to_vec(), b"new".to_vec())
    );
}

#[test]
fn a_device_stays_a_device() {
    deliver(Path::new("/dev/null"), "--fsync", &random_bytes(1_000_000));
    assert!(
        fs::metadata("/dev/null")
            .unwrap()
            .file_type()
            .is_char_device()
    );
}

#[test]
fn a_fifo_waits_for_its_reader() {
    let place = Place::new();
    let fifo = place.path("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let data = random_bytes(3_000_000);
    let input = place.file("in", &data);
    let receiver = receiver("-o").arg(&fifo).start();
    let sender = sender(receiver.port(), "-v").arg(input).start();
    sender.said("that it is connected", |text| {
        text.contains("connected to").then_some(())
    });
    let reader = thread::spawn(move || fs::read(fifo).unwrap());
    sender.end().exits(0);
    receiver.end().exits(0);
    assert!(reader.join().unwrap() == data);
}

#[test]
fn a_fifo_without_a_reader_does_not_hide_a_dead_sender() {
    let place = Place::new();
    let fifo = place.path("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let receiver = receiver("-o").arg(&fifo).start();
    let sender = sender(receiver.port(), "-v -i /dev/zero").start();
    sender.said("that it is connected", |text| {
        text.contains("connected to").then_some(())
    });
    let killed = sender.kill();
    let receiver = receiver.end();
    assert!(receiver.at.saturating_duration_since(killed) < soon());
    receiver.fails(255, &["the other end died"]);
}

#[test]
fn a_sender_with_a_wrong_key_changes_no_file() {
    let place = Place::new();
    let old = place.path("old");
    let facts = || {
        let found = fs::metadata(&old).unwrap();
        (
            found.ino(),
            found.mtime_nsec(),
            found.ctime_nsec(),
            found.mode(),
            found.len(),
        )
    };
    let before = facts();
    let receiver = receiver(format!("-o {}", place.old())).start();
    let port = receiver.port();
    let stranger = rdsend(format!("127.0.0.1 {port} another_key -i /dev/zero")).start();
    stranger.end().fails(
        255,
        &["127.0.0.1: the keys do not match; give both ends the same key"],
    );
    assert_eq!(facts(), before);
    place.assert_untouched(&[]);
    assert!(receiver.runs());
    sender(port, "").start().end().exits(0);
    receiver.end().exits(0);
    assert_eq!(place.read("old"), b"");
}

#[test]
fn a_closed_stdout_of_rdrecv_ends_both() {
    for options in ["-i /dev/zero", ""] {
        let mut receiver = receiver("").start_raw();
        let mut output = receiver.take_stdout();
        let mut sender = sender(receiver.port(), options)
            .stdin(Stdio::piped())
            .start();
        let mut input = sender.stdin();
        if options.is_empty() {
            input.write_all(&[0; 1000]).unwrap();
        }
        output.read_exact(&mut [0]).unwrap();
        drop(output);
        if options.is_empty() {
            // rdrecv detects the closed pipe only at its next write.
            input.write_all(b"more").unwrap();
        }
        assert_eq!(
            receiver.end().exits(141).lines().count(),
            1,
            "only where it listened"
        );
        let sender = sender.end();
        sender.fails(141, &["127.0.0.1 stopped reading after byte "]);
        drop(input);
    }
}

#[test]
fn a_partial_line_arrives_at_once() {
    let mut receiver = receiver("").start_raw();
    let mut sender = sender(receiver.port(), "").stdin(Stdio::piped()).start();
    let mut input = sender.stdin();
    let mut output = receiver.take_stdout();
    for word in ["Who", " goes", " there?"] {
        let since = Instant::now();
        input.write_all(word.as_bytes()).unwrap();
        let mut arrived = vec![0; word.len()];
        output.read_exact(&mut arrived).unwrap();
        assert_eq!(arrived, word.as_bytes());
        assert!(since.elapsed() < soon(), "{:?}", since.elapsed());
    }
    drop(input);
    sender.end().exits(0);
    receiver.end().exits(0);
    assert_eq!(output.read(&mut [0]).unwrap(), 0);
}
