//! The costs of a stream: memory that does not grow with its length, and almost no processor time while it is idle.

use std::{fs::File, process::Stdio, thread, time::Duration};

use rustix::pipe::{PipeFlags, pipe_with};

use crate::support::programs::{
    cpu_ticks, eventually, peak_kib, program, rdrecv, rdsend, receiver, sender,
};

/// The most resident memory that a program may use, in KiB.
const LIMIT_KIB: u64 = 48 << 10;

#[test]
fn memory_stays_flat_however_long_the_stream_is() {
    let null = || File::options().write(true).open("/dev/null").unwrap();
    let gigabytes: u64 = 3;
    let bytes = gigabytes << 30;
    // A key of this form has to be stretched, which takes memory too.
    let receiver = rdrecv("0 a_key_of_a_person -v").stdout(null()).start();
    let mut zeros = program("/usr/bin/env", "head")
        .arg("head")
        .arg("-c")
        .arg(bytes.to_string());
    zeros = zeros.stdin(File::open("/dev/zero").unwrap());
    let mut zeros = zeros.start_raw();
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let sender = rdsend(format!(
        "127.0.0.1 {} a_key_of_a_person -v",
        receiver.port()
    ));
    let sender = sender.stdin(reader).start();
    let mut from_head = zeros.take_stdout();
    let mut writer = File::from(writer);
    std::io::copy(&mut from_head, &mut writer).unwrap();
    // Almost all bytes have passed through both programs by now, so both have reached their peaks.
    let peaks = [peak_kib(&sender), peak_kib(&receiver)];
    drop(writer);
    for end in [sender.end(), receiver.end()] {
        assert!(end.exits(0).contains(&format!("Bytes {bytes}")));
    }
    println!("peaks: {peaks:?} KiB");
    assert!(peaks.iter().all(|peak| *peak <= LIMIT_KIB), "{peaks:?} KiB");
}

#[test]
fn an_idle_pair_uses_no_processor_time() {
    let receiver = receiver("").start();
    let mut sender = sender(receiver.port(), "-v").stdin(Stdio::piped()).start();
    let input = sender.stdin();
    sender.said("that it is connected", |text| {
        text.contains("connected to").then_some(())
    });
    let ticks = || [cpu_ticks(&sender), cpu_ticks(&receiver)];
    // The receiver may still set its end up.
    let before = eventually("both ends to be idle", || {
        let before = ticks();
        thread::sleep(Duration::from_millis(300));
        (ticks() == before).then_some(before)
    });
    // This sleep is the time that is measured; it waits for no event.
    thread::sleep(Duration::from_secs(2));
    let after = ticks();
    let used = [after[0] - before[0], after[1] - before[1]];
    // One percent of a core is two ticks; the start and the end of the measurement can add one more.
    assert!(
        used.iter().all(|ticks| *ticks <= 3),
        "{used:?} ticks of 10 ms in two seconds"
    );
    drop(input);
    sender.end().exits(0);
    receiver.end().exits(0);
}
