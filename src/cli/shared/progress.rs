//! The progress bar of a run.

use std::{
    io::{self, IsTerminal},
    sync::Arc,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{
    message::Console,
    stderr::{INTERVAL, ShownBar},
};

/// A progress bar on stderr, which disappears when this value is dropped.
///
/// The thread of the messages draws it, and reads a counter that the stream keeps anyway. So the bar costs the byte
/// path nothing, and a terminal that is not read delays only the bar.
#[derive(Debug)]
pub(crate) struct RunProgress {
    console: Console,
}

impl RunProgress {
    /// Shows a bar of the bytes that `done` counts, out of `total` if that is known.
    ///
    /// Returns `None` where a bar would disturb: stderr is no terminal, the data itself goes to or comes from a
    /// terminal (`data_on_terminal`), or the user gave `-q` or `--json`.
    pub(crate) fn start(
        console: &Console,
        total: Option<u64>,
        data_on_terminal: bool,
        done: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Option<Self> {
        Self::target(console, data_on_terminal).map(|target| Self::on(target, console, total, done))
    }

    /// Shows a line about files and bytes, which `look` describes.
    ///
    /// Returns `None` where [`start`](Self::start) does.
    pub(crate) fn start_files(
        console: &Console,
        data_on_terminal: bool,
        look: impl Fn() -> FilesProgress + Send + Sync + 'static,
    ) -> Option<Self> {
        let target = Self::target(console, data_on_terminal)?;
        let bar = ProgressBar::with_draw_target(Some(0), target).with_style(template(FILES));
        let refresh = Arc::new(move |bar: &ProgressBar| {
            let FilesProgress {
                counts,
                bytes,
                total_bytes,
                current,
            } = look();
            bar.set_length(total_bytes.max(bytes));
            bar.set_position(bytes);
            bar.set_prefix(counts);
            bar.set_message(current);
        });
        console.set_bar(Some(ShownBar { bar, refresh }));
        Some(Self {
            console: console.clone(),
        })
    }

    /// Shows a line about steps, one after the other, which `look` describes.
    ///
    /// Returns `None` where [`start`](Self::start) does.
    pub(crate) fn start_steps(
        console: &Console,
        look: impl Fn() -> StepsProgress + Send + Sync + 'static,
    ) -> Option<Self> {
        let target = Self::target(console, false)?;
        let bar = ProgressBar::with_draw_target(Some(0), target).with_style(template(STEPS));
        let refresh = Arc::new(move |bar: &ProgressBar| {
            let StepsProgress {
                done,
                total,
                current,
            } = look();
            bar.set_length(total.max(done));
            bar.set_position(done);
            bar.set_message(current);
        });
        console.set_bar(Some(ShownBar { bar, refresh }));
        Some(Self {
            console: console.clone(),
        })
    }

    /// Shows a line about connections and their bytes, which `look` describes: what stands in front of the bytes, and
    /// their number.
    ///
    /// Returns `None` where [`start`](Self::start) does.
    pub(crate) fn start_connections(
        console: &Console,
        look: impl Fn() -> (String, u64) + Send + Sync + 'static,
    ) -> Option<Self> {
        let target = Self::target(console, false)?;
        let bar = ProgressBar::with_draw_target(None, target).with_style(template(CONNECTIONS));
        let refresh = Arc::new(move |bar: &ProgressBar| {
            let (connections, bytes) = look();
            bar.set_prefix(connections);
            bar.set_position(bytes);
        });
        console.set_bar(Some(ShownBar { bar, refresh }));
        Some(Self {
            console: console.clone(),
        })
    }

    fn target(console: &Console, data_on_terminal: bool) -> Option<ProgressDrawTarget> {
        let welcome = console.wants_progress() && !data_on_terminal && io::stderr().is_terminal();
        welcome.then(|| ProgressDrawTarget::stderr_with_hz(HERTZ))
    }

    fn on(
        target: ProgressDrawTarget,
        console: &Console,
        total: Option<u64>,
        done: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        let bar = ProgressBar::with_draw_target(total, target).with_style(style(total.is_some()));
        let refresh = Arc::new(move |bar: &ProgressBar| bar.set_position(done()));
        console.set_bar(Some(ShownBar { bar, refresh }));
        Self {
            console: console.clone(),
        }
    }
}

impl Drop for RunProgress {
    fn drop(&mut self) {
        self.console.set_bar(None);
    }
}

/// The number of updates of the bar per second.
#[allow(
    clippy::cast_possible_truncation,
    reason = "the interval is a part of a second"
)]
const HERTZ: u8 = (1000 / INTERVAL.as_millis()) as u8;

fn style(total_known: bool) -> ProgressStyle {
    template(if total_known { SIZED } else { UNSIZED })
}

fn template(text: &str) -> ProgressStyle {
    ProgressStyle::with_template(text).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// The templates of the bar, in decimal units like the bandwidth at the end of `-v`.
const SIZED: &str = "{wide_bar} {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {elapsed}, {eta} to go";
const UNSIZED: &str = "{spinner} {decimal_bytes}, {decimal_bytes_per_sec}, {elapsed}";
const FILES: &str = "{prefix}, {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} to go  {wide_msg}";

const CONNECTIONS: &str = "{spinner} {prefix}, {decimal_bytes}, {decimal_bytes_per_sec}, {elapsed}";
const STEPS: &str = "{bar:20} {pos} of {len}, {eta} to go  {wide_msg}";

/// What the progress line of a run of steps shows.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepsProgress {
    /// The steps that are done.
    pub(crate) done: u64,
    /// All steps.
    pub(crate) total: u64,
    /// The step that is being done.
    pub(crate) current: String,
}

/// What the progress line of a copy shows.
#[derive(Debug, Clone, Default)]
pub(crate) struct FilesProgress {
    /// How many files of how many.
    pub(crate) counts: String,
    /// The bytes that are done.
    pub(crate) bytes: u64,
    /// The bytes that are known so far, done or not.
    pub(crate) total_bytes: u64,
    /// What is being written, without control characters.
    pub(crate) current: String,
}

/// Returns true if the data of a run goes to or comes from a terminal, where a bar would write over it. `file` is true
/// if the user named a file instead of the standard stream.
#[must_use]
pub(crate) fn is_on_terminal(standard: &impl IsTerminal, file: bool) -> bool {
    !file && standard.is_terminal()
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicU64, Ordering},
        mpsc,
    };

    use super::*;
    use crate::cli::args::MessageOptions;

    #[test]
    fn the_templates_are_valid() {
        for template in [SIZED, UNSIZED, FILES] {
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
        let progress = RunProgress::on(target, &console, Some(10), done);
        for _ in 0..2 {
            looks.recv().unwrap();
        }
        console.note("a message meanwhile");
        drop(progress);
        console.flush();
        // The thread of the messages has dropped its clone of the counter.
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
