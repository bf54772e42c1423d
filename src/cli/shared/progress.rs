//! The progress bar of a run.

use std::{
    io::{self, IsTerminal},
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::message::Console;

/// A bar on stderr, which goes away when this is dropped.
///
/// It looks at a counter that the stream keeps anyway, on a thread of its own: the byte path does
/// nothing for it.
#[derive(Debug)]
pub(crate) struct RunProgress {
    console: Console,
    bar: ProgressBar,
    /// Dropped to end the thread.
    stop: Option<Sender<()>>,
    ticker: Option<JoinHandle<()>>,
}

impl RunProgress {
    /// Shows the bytes that `done` counts, of `total` where it is known; `None` where a bar would be
    /// in the way: stderr is no terminal, the data itself goes to or comes from a terminal
    /// (`data_on_terminal`), or the user asked for silence or JSON.
    pub(crate) fn start(
        console: &Console,
        total: Option<u64>,
        data_on_terminal: bool,
        done: impl Fn() -> u64 + Send + 'static,
    ) -> Option<Self> {
        let welcome = console.wants_progress() && !data_on_terminal && io::stderr().is_terminal();
        let target = ProgressDrawTarget::stderr_with_hz(HERTZ);
        welcome
            .then(|| Self::on(target, console, total, done))
            .flatten()
    }

    fn on(
        target: ProgressDrawTarget,
        console: &Console,
        total: Option<u64>,
        done: impl Fn() -> u64 + Send + 'static,
    ) -> Option<Self> {
        let bar = ProgressBar::with_draw_target(total, target).with_style(style(total.is_some()));
        let (stop, stopped) = mpsc::channel();
        let ticking = bar.clone();
        let tick = move || {
            // The first look comes after a moment, so that a short run does not flicker.
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                ticking.set_position(done());
            }
        };
        // Without a thread there is no bar; the data can do without.
        let ticker = thread::Builder::new()
            .name("progress".to_owned())
            .spawn(tick)
            .ok()?;
        console.set_bar(Some(bar.clone()));
        Some(Self {
            console: console.clone(),
            bar,
            stop: Some(stop),
            ticker: Some(ticker),
        })
    }
}

impl Drop for RunProgress {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(ticker) = self.ticker.take() {
            // It only ends otherwise when the counter panicked, which was reported then.
            let _ = ticker.join();
        }
        // In this order: a message in between still finds the bar, and makes no mess.
        self.bar.finish_and_clear();
        self.console.set_bar(None);
    }
}

/// Often enough to look alive, and next to nothing in time.
const HERTZ: u8 = 5;
const INTERVAL: Duration = Duration::from_millis(1000 / HERTZ as u64);

fn style(total_known: bool) -> ProgressStyle {
    let template = if total_known { SIZED } else { UNSIZED };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Decimal units, as in the bandwidth that `-v` ends with.
const SIZED: &str = "{wide_bar} {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {elapsed}, {eta} to go";
const UNSIZED: &str = "{spinner} {decimal_bytes}, {decimal_bytes_per_sec}, {elapsed}";

/// Whether the data of a run is on a terminal, where a bar would write over it: `file` says whether
/// a file was named instead of the standard stream.
#[must_use]
pub(crate) fn is_on_terminal(standard: &impl IsTerminal, file: bool) -> bool {
    !file && standard.is_terminal()
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    };

    use super::*;
    use crate::cli::args::MessageOptions;

    #[test]
    fn the_templates_are_understood() {
        for template in [SIZED, UNSIZED] {
            ProgressStyle::with_template(template).unwrap();
        }
    }

    #[test]
    fn the_counter_is_looked_at_until_the_bar_is_dropped() {
        let console = Console::new("rdsend", MessageOptions::default());
        let (looked, looks) = mpsc::channel();
        let count = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&count);
        let done = move || {
            let _ = looked.send(());
            counter.fetch_add(1, Ordering::Relaxed)
        };
        let target = ProgressDrawTarget::hidden();
        let progress = RunProgress::on(target, &console, Some(10), done).unwrap();
        for _ in 0..2 {
            looks.recv().unwrap();
        }
        console.note("a message meanwhile");
        drop(progress);
        // The thread is gone, and with it what it had of ours.
        assert_eq!(Arc::strong_count(&count), 1);
    }

    #[test]
    fn no_bar_where_it_would_be_in_the_way() {
        let options = [
            MessageOptions {
                quiet: true,
                ..MessageOptions::default()
            },
            MessageOptions {
                json: true,
                ..MessageOptions::default()
            },
        ];
        for options in options {
            let console = Console::new("rdsend", options);
            assert!(RunProgress::start(&console, None, false, || 0).is_none());
        }
        let console = Console::new("rdsend", MessageOptions::default());
        assert!(RunProgress::start(&console, None, true, || 0).is_none());
    }
}
