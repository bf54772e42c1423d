//! The progress bar of a run.

use std::{
    io::{self, IsTerminal},
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::message::Console;

/// A progress bar on stderr, which disappears when this value is dropped.
///
/// A thread of its own reads a counter that the stream keeps anyway, so the bar costs the byte path nothing.
#[derive(Debug)]
pub(crate) struct RunProgress {
    console: Console,
    bar: ProgressBar,
    /// The channel whose closing ends the thread.
    stop: Option<Sender<()>>,
    ticker: Option<JoinHandle<()>>,
}

impl RunProgress {
    /// Shows a bar of the bytes that `done` counts, out of `total` if that is known.
    ///
    /// Returns `None` where a bar would disturb: stderr is no terminal, the data itself goes to or comes from a terminal
    /// (`data_on_terminal`), or the user gave `-q` or `--json`.
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
            // The first update comes after one interval, so that a short run shows no bar.
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                ticking.set_position(done());
            }
        };
        // If no thread can be started, the run continues without a bar.
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
            // An error means that the counter panicked, and the panic has been reported.
            let _ = ticker.join();
        }
        // The bar is cleared before it is removed from the console, so a message in between is not mixed with the bar.
        self.bar.finish_and_clear();
        self.console.set_bar(None);
    }
}

/// The number of updates of the bar per second: visibly alive, and almost free.
const HERTZ: u8 = 5;
const INTERVAL: Duration = Duration::from_millis(1000 / HERTZ as u64);

fn style(total_known: bool) -> ProgressStyle {
    let template = if total_known { SIZED } else { UNSIZED };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// The templates of the bar, in decimal units like the bandwidth at the end of `-v`.
const SIZED: &str = "{wide_bar} {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {elapsed}, {eta} to go";
const UNSIZED: &str = "{spinner} {decimal_bytes}, {decimal_bytes_per_sec}, {elapsed}";

/// Returns true if the data of a run goes to or comes from a terminal, where a bar would write over it. `file` is true if
/// the user named a file instead of the standard stream.
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
    fn the_templates_are_valid() {
        for template in [SIZED, UNSIZED] {
            ProgressStyle::with_template(template).unwrap();
        }
    }

    #[test]
    fn the_counter_is_read_until_the_bar_is_dropped() {
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
        // The thread has ended and dropped its clone of the counter.
        assert_eq!(Arc::strong_count(&count), 1);
    }

    #[test]
    fn quiet_json_and_data_on_a_terminal_show_no_bar() {
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
