//! The progress bar of a run.

use std::{
    collections::VecDeque,
    io::{self, IsTerminal},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{
    message::Console,
    report::{amount, decimal},
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
        let pace = Mutex::<RecentPace>::default();
        let refresh = Arc::new(move |bar: &ProgressBar| {
            let look = look();
            let mut pace = pace.lock().unwrap_or_else(PoisonError::into_inner);
            pace.add(Instant::now(), look.bytes);
            bar.set_prefix(look.line(&pace));
            bar.set_message(look.current);
            bar.tick();
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
        let pace = Mutex::<RecentPace>::default();
        let refresh = Arc::new(move |bar: &ProgressBar| {
            let (connections, bytes) = look();
            let mut pace = pace.lock().unwrap_or_else(PoisonError::into_inner);
            pace.add(Instant::now(), bytes);
            bar.set_prefix(format!("{connections}, {}", pace.line(bytes, None)));
            bar.tick();
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
        let pace = Mutex::<RecentPace>::default();
        let refresh = Arc::new(move |bar: &ProgressBar| {
            let bytes = done();
            let mut pace = pace.lock().unwrap_or_else(PoisonError::into_inner);
            pace.add(Instant::now(), bytes);
            bar.set_prefix(pace.line(bytes, total));
            bar.set_position(bytes);
        });
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

/// The templates of the bar. The prefix has bytes, rates and times, in decimal units like the bandwidth at the end of `-v`.
const SIZED: &str = "{wide_bar} {prefix}, {elapsed}";
const UNSIZED: &str = "{spinner} {prefix}, {elapsed}";
const FILES: &str = "{prefix}  {wide_msg}";
const CONNECTIONS: &str = "{spinner} {prefix}, {elapsed}";
const STEPS: &str = "{bar:20} {pos} of {len}, {eta} to go  {wide_msg}";

/// The rate of the last seconds, from which the time left follows.
#[derive(Debug, Default)]
struct RecentPace {
    /// Times and the bytes that were done then, the oldest first.
    samples: VecDeque<(Instant, u64)>,
}

/// The rate that is shown is that of this time: a stall shows at once.
const SHOWN_RATE: Duration = Duration::from_secs(3);

/// The rate from which the time left follows is that of this time, so that the number is calm.
const CALM_RATE: Duration = Duration::from_secs(10);

impl RecentPace {
    /// Adds how many bytes are done now.
    fn add(&mut self, now: Instant, bytes: u64) {
        self.samples.push_back((now, bytes));
        let is_old = |second: Option<&(Instant, u64)>| {
            second.is_some_and(|(at, _)| now.duration_since(*at) >= CALM_RATE)
        };
        while is_old(self.samples.get(1)) {
            self.samples.pop_front();
        }
    }

    /// Returns the bytes per second of the last time of this length, or of all so far.
    fn per_second(&self, window: Duration) -> f64 {
        let Some(&(now, bytes)) = self.samples.back() else {
            return 0.0;
        };
        let is_within = |(at, _): &&(Instant, u64)| now.duration_since(*at) <= window;
        let Some(&(since, before)) = self.samples.iter().find(is_within) else {
            return 0.0;
        };
        super::report::rate(bytes.saturating_sub(before), (now - since).as_secs_f64())
    }

    /// Returns what a line shows of so many bytes, out of `total` if that is known.
    fn line(&self, bytes: u64, total: Option<u64>) -> String {
        let rate = decimal(self.per_second(SHOWN_RATE));
        let Some(total) = total.filter(|total| *total > 0) else {
            return format!("{}, {rate}/s", amount(bytes));
        };
        let percent = (u128::from(bytes) * 100 / u128::from(total)).min(100);
        let mut line = format!(
            "{} of {} ({percent}%), {rate}/s",
            amount(bytes),
            amount(total)
        );
        if let Some(left) = self.time_left(total.saturating_sub(bytes)) {
            line.extend([", ", &clock(left), " to go"]);
        }
        line
    }

    /// Returns the time that so many bytes take; none while nothing moves.
    fn time_left(&self, bytes: u64) -> Option<Duration> {
        let calm = self.per_second(CALM_RATE);
        (calm > 0.0)
            .then(|| Duration::try_from_secs_f64(super::report::rate(bytes, calm)).ok())
            .flatten()
    }
}

/// Formats a time as people say it: `40s`, `3m 20s`, `2h 5m`.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..360_000 => format!("{}h {}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} days", seconds / 86_400),
    }
}

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
    /// The files that are done.
    pub(crate) files: u64,
    /// The files that are known so far, done or not.
    pub(crate) found_files: u64,
    /// Those of them whose sizes are known.
    pub(crate) sized_files: u64,
    /// True if no more files will be found.
    pub(crate) is_walked: bool,
    /// The bytes that are done.
    pub(crate) bytes: u64,
    /// The bytes that are known so far, done or not.
    pub(crate) found_bytes: u64,
    /// What is being written, without control characters.
    pub(crate) current: String,
}

impl FilesProgress {
    /// Returns the files, bytes, rate and time left, as far as they are known.
    fn line(&self, pace: &RecentPace) -> String {
        // The plus says that the search goes on.
        let more = if self.is_walked { "" } else { "+" };
        let (files, found) = (self.files, self.found_files);
        let total = self.is_walked.then(|| self.total_bytes()).flatten();
        format!(
            "{files} of {found}{more} files, {}",
            pace.line(self.bytes, total)
        )
    }

    /// Returns the bytes of all files that were found. Those whose size is not known count as the others do on average.
    fn total_bytes(&self) -> Option<u64> {
        let known = self.sized_files.min(self.found_files);
        let all = u128::from(self.found_bytes) * u128::from(self.found_files);
        let total = all.checked_div(u128::from(known))?;
        Some(u64::try_from(total).unwrap_or(u64::MAX).max(self.bytes))
    }
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

    /// Checks the time left from half way on of a run that does `step` bytes at each step of 200 ms, and whose
    /// progress `look` describes after so many steps.
    fn check_time_left(steps: u64, look: impl Fn(u64) -> FilesProgress) {
        let (start, mut pace) = (Instant::now(), RecentPace::default());
        for step in 0..steps {
            let look = look(step);
            pace.add(start + INTERVAL * u32::try_from(step).unwrap(), look.bytes);
            let total = look.is_walked.then(|| look.total_bytes()).flatten();
            if step < steps / 2 {
                continue;
            }
            let left = pace.time_left(total.unwrap() - look.bytes).unwrap();
            let real = INTERVAL * u32::try_from(steps - step).unwrap();
            let ratio = left.as_secs_f64() / real.as_secs_f64();
            assert!(
                (0.7..1.3).contains(&ratio),
                "step {step}: {left:?}, really {real:?}"
            );
            assert!(look.line(&pace).contains(" to go"));
        }
    }

    #[test]
    fn the_time_left_is_true_from_half_way_on() {
        const RATE: u64 = 60_000;
        // 500 files of 12 kB: a lane has looked at those that it has sent, and at no others.
        check_time_left(100, |step| FilesProgress {
            files: step * 5,
            found_files: 500,
            sized_files: step * 5 + 1,
            is_walked: true,
            bytes: step * RATE,
            found_bytes: (step * 5 + 1) * 12_000,
            current: String::new(),
        });
        // One large file.
        check_time_left(100, |step| FilesProgress {
            found_files: 1,
            sized_files: 1,
            is_walked: true,
            bytes: step * RATE,
            found_bytes: 100 * RATE,
            ..FilesProgress::default()
        });
        // A tree that is walked to a third of its end, and nothing is promised before.
        let tree = |step: u64| FilesProgress {
            files: step,
            found_files: (step * 3).min(100),
            sized_files: (step * 3).min(100),
            is_walked: step * 3 >= 100,
            bytes: step * RATE,
            found_bytes: (step * 3).min(100) * RATE,
            current: String::new(),
        };
        check_time_left(100, tree);
        let line = tree(10).line(&RecentPace::default());
        assert_eq!(line, "10 of 30+ files, 600.0 kB, 0.0 B/s");
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let (start, mut pace) = (Instant::now(), RecentPace::default());
        // 10 s at 1 MB/s, then 4 s of nothing.
        for step in 0..70 {
            pace.add(start + INTERVAL * step, u64::from(step.min(50)) * 200_000);
        }
        assert_eq!(
            pace.line(10_000_000, Some(20_000_000)).split(", ").nth(1),
            Some("0.0 B/s")
        );
        assert!(pace.samples.len() < 60);
        let line = RecentPace::default().line(3_000_000, Some(12_000_000));
        assert_eq!(line, "3.0 MB of 12.0 MB (25%), 0.0 B/s");
        for (seconds, text) in [
            (40, "40s"),
            (200, "3m 20s"),
            (7500, "2h 5m"),
            (900_000, "10 days"),
        ] {
            assert_eq!(clock(Duration::from_secs(seconds)), text);
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
