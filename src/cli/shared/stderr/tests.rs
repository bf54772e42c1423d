//! The queue of messages, with an output that is read only when the test permits it.

use std::sync::mpsc::{Receiver, Sender, channel};

use futures::FutureExt;

use super::*;

/// An output whose reader takes one write for each permission. Without permissions it blocks, as a full pipe does.
struct Blocked {
    permissions: Receiver<()>,
    written: Sender<String>,
}

impl Write for Blocked {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.permissions.recv().map_err(io::Error::other)?;
        let text = String::from_utf8_lossy(bytes).into_owned();
        self.written.send(text).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn blocked() -> (StderrQueue, Sender<()>, Receiver<String>) {
    let (permit, permissions) = channel();
    let (written, texts) = channel();
    let queue = StderrQueue::to(Blocked {
        permissions,
        written,
    });
    (queue, permit, texts)
}

#[test]
fn a_terminal_that_is_not_read_delays_the_lines_of_commands_and_loses_no_message() {
    let (queue, permit, texts) = blocked();
    assert!(queue.room().now_or_never().is_some());
    let count = ROOM_BYTES / 1000 + 2;
    for number in 0..count {
        queue.push(format!("{number:>999}\n"));
    }
    assert!(queue.room().now_or_never().is_none(), "no line waits");
    // A message of the program itself does not wait.
    queue.push("the end\n".to_owned());
    let waiting = thread::spawn({
        let queue = queue.clone();
        move || futures::executor::block_on(queue.room())
    });
    for _ in 0..=count {
        permit.send(()).unwrap();
    }
    queue.flush();
    waiting.join().unwrap();
    let texts: Vec<_> = texts.try_iter().collect();
    assert_eq!(texts.len(), count + 1);
    assert_eq!(texts[count], "the end\n");
    assert!((0..count).all(|number| texts[number].trim() == number.to_string()));
}

#[test]
fn a_signal_ends_the_wait_for_a_terminal_that_is_not_read() {
    let (queue, _permit, texts) = blocked();
    queue.push("never read\n".to_owned());
    let flushing = thread::spawn({
        let queue = queue.clone();
        move || queue.flush()
    });
    assert!(!flushing.is_finished());
    queue.hurry();
    flushing.join().unwrap();
    assert!(texts.try_recv().is_err());
}

#[test]
fn a_hostile_host_fills_no_memory_with_notices() {
    let (queue, permit, _texts) = blocked();
    assert!(!queue.leaves_out());
    queue.push("x".repeat(FLOOD_BYTES));
    assert!(queue.leaves_out() && queue.leaves_out());
    assert_eq!((queue.take_left_out(), queue.take_left_out()), (2, 0));
    permit.send(()).unwrap();
    queue.flush();
    assert!(!queue.leaves_out());
}

#[test]
fn a_closed_stderr_drops_all_messages() {
    let (queue, permit, texts) = blocked();
    drop(texts);
    permit.send(()).unwrap();
    for _ in 0..3 {
        queue.push("x".repeat(ROOM_BYTES));
    }
    queue.flush();
    assert!(queue.room().now_or_never().is_some());
}

#[test]
fn a_writer_that_panics_does_not_hang_the_end_of_the_program() {
    let (queue, _permit, _texts) = blocked();
    let refresh = Arc::new(|_: &ProgressBar| panic!("on purpose"));
    let bar = ProgressBar::hidden();
    queue.set_bar(Some(ShownBar { bar, refresh }));
    while queue.0.lock().writer != WriterState::Dead {
        thread::yield_now();
    }
    queue.push("dropped\n".to_owned());
    queue.flush();
}

#[test]
fn a_bar_is_cleared_before_the_end_of_a_flush() {
    let (queue, permit, texts) = blocked();
    let refresh = Arc::new(|bar: &ProgressBar| bar.set_position(7));
    let bar = ProgressBar::hidden();
    let shown = ShownBar {
        bar: bar.clone(),
        refresh: refresh.clone(),
    };
    queue.set_bar(Some(shown));
    while bar.position() != 7 {
        thread::yield_now();
    }
    permit.send(()).unwrap();
    queue.push("a message meanwhile\n".to_owned());
    assert_eq!(texts.recv().unwrap(), "a message meanwhile\n");
    queue.set_bar(None);
    queue.flush();
    assert!(bar.is_finished());
    assert_eq!(Arc::strong_count(&refresh), 1);
}
