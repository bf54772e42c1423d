//! The inputs and outputs: files are replaced as a whole where that is safe, written in place elsewhere; where one
//! fails, both ends fail and report the cause, and an old file stays unchanged.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Seek, SeekFrom, Write},
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::Path,
    process::{Command, Stdio},
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
fn a_buffer_at_either_end_takes_what_the_output_does_not() {
    let data = random_bytes(40_000_000);
    for (receiving, sending) in [("--buffer 64M", ""), ("", "--buffer 64M")] {
        let mut receiver = receiver(format!("--rails 1 {receiving}")).start_raw();
        let mut sender = sender(receiver.port(), format!("--rails 1 {sending}"))
            .stdin(Stdio::piped())
            .start();
        // The whole input is read while the output takes no more than a pipe holds.
        sender.stdin().write_all(&data).unwrap();
        let mut output = Vec::new();
        receiver.take_stdout().read_to_end(&mut output).unwrap();
        sender.end().exits(0);
        receiver.end().exits(0);
        assert!(output == data);
    }
}

#[test]
fn either_end_keeps_to_its_limit() {
    let place = Place::new();
    let input = place.file("in", &random_bytes(1 << 20));
    for (receiving, sending) in [("--bwlimit 1M", ""), ("", "--bwlimit 1M")] {
        let receiver = receiver(format!("{receiving} -o {}", place.old())).start();
        let started = Instant::now();
        let sender = sender(receiver.port(), sending).arg(&input).start();
        sender.end().exits(0);
        receiver.end().exits(0);
        // A second, less the burst at the beginning and the piece at the end.
        assert!(started.elapsed().as_secs_f64() > 0.85);
    }
    assert!(place.read("old") == fs::read(input).unwrap());
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
    let stranger = rdsend(format!(
        "127.0.0.1 {port} another_key_of_some_length -i /dev/zero"
    ))
    .start();
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

const NO_SPACE: &str = "No space left on device";

#[test]
fn a_full_output_device_fails_both_ends() {
    let place = Place::new();
    place.file("in", &random_bytes(3_000_000));
    for named in [true, false] {
        let receiver = if named {
            receiver("-o /dev/full").start()
        } else {
            receiver("")
                .stdout(OpenOptions::new().write(true).open("/dev/full").unwrap())
                .start()
        };
        let sender = sender(receiver.port(), "").arg(place.path("in")).start();
        let what = if named { "/dev/full" } else { "stdout" };
        let cause = format!("cannot write {what} at byte 0: {NO_SPACE}");
        sender
            .end()
            .fails(3, &["127.0.0.1 gave up at byte ", &cause]);
        receiver.end().fails(1, &[&cause]);
    }
}

#[test]
fn a_disk_that_fills_up_leaves_the_old_file() {
    let Some(disk) = Disk::mount("size=8m") else {
        return;
    };
    let place = Place::new();
    place.file("in", &random_bytes(20 << 20));
    let old = disk.0.path().join("old");
    fs::write(&old, b"what was there before").unwrap();
    let receiver = receiver("-o").arg(&old).start();
    let sender = sender(receiver.port(), "").arg(place.path("in")).start();
    let cause = format!("cannot write {} at byte ", old.display());
    sender.end().fails(3, &[&cause, NO_SPACE]);
    receiver.end().fails(1, &[&cause, NO_SPACE]);
    assert_eq!(fs::read(&old).unwrap(), b"what was there before");
    assert_eq!(fs::read_dir(disk.0.path()).unwrap().count(), 1, "litter");
}

/// A small file system in memory.
struct Disk(tempfile::TempDir);

impl Disk {
    fn mount(options: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(directory.path());
        if mount
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
        {
            return Some(Self(directory));
        }
        crate::support::programs::skip("this user cannot mount a small file system");
        None
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_directory_as_input_fails_both_ends() {
    let place = Place::new();
    for named in [true, false] {
        let receiver = receiver(format!("-o {}", place.old())).start();
        let port = receiver.port();
        let (sender, cause) = if named {
            let path = place.directory().display().to_string();
            (
                sender(port, format!("-i {path}")),
                format!("cannot read {path}: Is a directory"),
            )
        } else {
            let directory = File::open(place.directory()).unwrap();
            let cause = "cannot read standard input at byte 0: Is a directory";
            (sender(port, "").stdin(directory), cause.to_owned())
        };
        sender.start().end().fails(1, &[&cause]);
        receiver.end().fails(3, &[" gave up at byte 0: ", &cause]);
        place.assert_untouched(&[]);
    }
}

#[test]
fn a_missing_input_fails_both_ends() {
    let place = Place::new();
    let receiver = receiver(format!("-o {}", place.old())).start();
    let missing = place.path("missing");
    let sender = sender(receiver.port(), "-i").arg(&missing).start();
    let cause = format!("cannot read {}: No such file", missing.display());
    sender.end().fails(1, &[&cause]);
    receiver.end().fails(3, &[&cause]);
    place.assert_untouched(&[]);
}

#[test]
fn an_input_that_fails_half_way_fails_both_ends() {
    let place = Place::new();
    let receiver = receiver(format!("-o {}", place.old())).start();
    let (memory, bytes) = readable_to_a_hole();
    let sender = sender(receiver.port(), "").stdin(memory).start();
    let cause = format!("cannot read standard input at byte {bytes}: Input/output error");
    sender.end().fails(1, &[&cause]);
    receiver.end().fails(3, &[" gave up at byte ", &cause]);
    place.assert_untouched(&[]);
}

/// Returns the memory of this process as a file, positioned shortly before a hole in its mappings, and the number of
/// bytes before the hole. These bytes can be read, the next one cannot.
fn readable_to_a_hole() -> (File, u64) {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let bounds = |line: &str| {
        let (start, rest) = line.split_once('-')?;
        let (end, rest) = rest.split_once(' ')?;
        let number = |hex| u64::from_str_radix(hex, 16).ok();
        // The mapping of a file stays in its place while other tests allocate memory.
        Some((
            number(start)?,
            number(end)?,
            rest.starts_with('r') && rest.contains('/'),
        ))
    };
    let maps: Vec<_> = maps.lines().filter_map(bounds).collect();
    let before_hole = maps
        .windows(2)
        .find(|pair| pair[0].2 && pair[0].1 < pair[1].0);
    let (start, end, _) = before_hole.expect("the program itself is followed by a hole")[0];
    let bytes = (end - start).min(5000);
    let mut memory = File::open("/proc/self/mem").unwrap();
    memory.seek(SeekFrom::Start(end - bytes)).unwrap();
    (memory, bytes)
}

#[test]
fn an_output_that_cannot_be_opened_fails_both_ends() {
    let place = Place::new();
    fs::create_dir(place.path("directory")).unwrap();
    for (path, why) in [
        (place.path("missing/file"), "No such file or directory"),
        (place.path("directory"), "Is a directory"),
        (place.path("old/file"), "Not a directory"),
    ] {
        let receiver = receiver("-o").arg(&path).start();
        let sender = sender(receiver.port(), "-i /dev/zero").start();
        let cause = format!("cannot open {} for writing: {why}", path.display());
        receiver.end().fails(1, &[&cause]);
        sender.end().fails(3, &[&cause]);
    }
    place.assert_untouched(&["directory"]);
}

#[test]
fn an_output_directory_without_permission_fails_both_ends() {
    let place = Place::new();
    if !rustix::process::geteuid().is_root() {
        crate::support::programs::skip(
            "only root can run the programs as a user who may not write here",
        );
        return;
    }
    let binaries = Path::new(env!("CARGO_BIN_EXE_rdrecv")).parent().unwrap();
    let other_user = 65534;
    let test = Command::new("setpriv")
        .args(["--reuid=65534", "--clear-groups", "test", "-x"])
        .arg(binaries.join("rdrecv"))
        .status();
    if !test.is_ok_and(|status| status.success()) {
        crate::support::programs::skip("other users cannot run the programs where they are");
        return;
    }
    // Other users may find the file and may not write beside it.
    fs::set_permissions(place.directory(), PermissionsExt::from_mode(0o755)).unwrap();
    for name in ["old", "new"] {
        let receiver = receiver("-o")
            .arg(place.path(name))
            .user(other_user)
            .start();
        let sender = sender(receiver.port(), "-i /dev/zero").start();
        let cause = format!(
            "cannot open {} for writing: Permission",
            place.path(name).display()
        );
        receiver.end().fails(1, &[&cause]);
        sender.end().fails(3, &[&cause]);
    }
    place.assert_untouched(&[]);
}
