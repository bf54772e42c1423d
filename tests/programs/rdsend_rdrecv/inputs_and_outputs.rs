//! Failures of inputs and outputs: both ends fail and report the cause, and an old file stays unchanged.

use std::{
    fs::{self, File, OpenOptions},
    io::{Seek, SeekFrom},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use crate::support::programs::{Place, random_bytes, receiver, sender};

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
