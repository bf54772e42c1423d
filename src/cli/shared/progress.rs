//! The lines that show how far a run is.

use std::{
    collections::VecDeque,
    io::{self, IsTerminal},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::{
    message::Console,
    report::{amount, decimal, rate},
};

/// Lines about the progress of a run on stderr, which disappear when this value is dropped.
///
/// The thread of the messages draws them, and reads counters that the run keeps anyway. So they cost the byte path
/// nothing, and a terminal that is not read delays only them.
#[derive(Debug)]
pub(crate) struct RunProgress {
    console: Console,
}

impl RunProgress {
    /// Shows the lines that `lines` returns for a terminal of so many columns. Longer ones are cut.
    ///
    /// Returns `None` where they would disturb: stderr is no terminal, the data itself goes to or comes from a terminal
    /// (`data_on_terminal`), or the user gave `-q` or `--json`.
    pub(crate) fn show(
        console: &Console,
        data_on_terminal: bool,
        lines: impl Fn(usize) -> Vec<String> + Send + Sync + 'static,
    ) -> Option<Self> {
        let welcome =
            console.wants_progress() && !data_on_terminal && is_drawable(&io::stderr(), "TERM");
        welcome.then(|| Self::draw(console, lines))
    }

    fn draw(
        console: &Console,
        lines: impl Fn(usize) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        let lines = move |columns: usize| {
            let lines = lines(columns).into_iter();
            lines.map(|line| cut(&line, columns)).collect()
        };
        console.set_bar(Some(Arc::new(lines)));
        Self {
            console: console.clone(),
        }
    }

    /// Shows a bar of the bytes that `done` returns, out of the second number if that is known.
    ///
    /// Returns `None` where [`show`](Self::show) does.
    pub(crate) fn start(
        console: &Console,
        data_on_terminal: bool,
        done: impl Fn() -> (u64, Option<u64>) + Send + Sync + 'static,
    ) -> Option<Self> {
        let (pace, started) = (Mutex::<RecentPace>::default(), Instant::now());
        Self::show(console, data_on_terminal, move |columns| {
            let (bytes, total) = done();
            let mut pace = pace.lock().unwrap_or_else(PoisonError::into_inner);
            pace.add(Instant::now(), bytes);
            let line = format!("{}, {}", pace.line(bytes, total), clock(started.elapsed()));
            vec![with_bar(line, bytes, total, columns)]
        })
    }

    /// Shows a line about files and bytes, which `look` describes.
    ///
    /// Returns `None` where [`show`](Self::show) does.
    pub(crate) fn start_files(
        console: &Console,
        data_on_terminal: bool,
        look: impl Fn() -> FilesProgress + Send + Sync + 'static,
    ) -> Option<Self> {
        let pace = Mutex::<RecentPace>::default();
        Self::show(console, data_on_terminal, move |_| {
            let look = look();
            let mut pace = pace.lock().unwrap_or_else(PoisonError::into_inner);
            pace.add(Instant::now(), look.bytes);
            vec![format!("{}  {}", look.line(&pace), look.current)]
        })
    }

    /// Shows a line about steps, one after the other, which `look` describes.
    ///
    /// Returns `None` where [`show`](Self::show) does.
    pub(crate) fn start_steps(
        console: &Console,
        look: impl Fn() -> StepsProgress + Send + Sync + 'static,
    ) -> Option<Self> {
        let started = Instant::now();
        Self::show(console, false, move |_| {
            let StepsProgress {
                done,
                total,
                current,
            } = look();
            let a_second = rate(done, started.elapsed().as_secs_f64());
            let left = rate(total.saturating_sub(done), a_second);
            let left = Duration::try_from_secs_f64(left).unwrap_or_default();
            let left = match done {
                0 => String::new(),
                _ => format!(", {} to go", clock(left)),
            };
            let bar = bar(done, total, STEPS_BAR);
            vec![format!("{bar} {done} of {total}{left}  {current}")]
        })
    }

    /// Shows a line about connections and their bytes, which `look` describes: what stands in front of the bytes, and
    /// their number.
    ///
    /// Returns `None` where [`show`](Self::show) does.
    pub(crate) fn start_connections(
        console: &Console,
        look: impl Fn() -> (String, u64) + Send + Sync + 'static,
    ) -> Option<Self> {
        let (pace, started) = (Mutex::<RecentPace>::default(), Instant::now());
        Self::show(console, false, move |_| {
            let (connections, bytes) = look();
            let mut pace = pace.lock().unwrap_or_else(PoisonError::into_inner);
            pace.add(Instant::now(), bytes);
            let (bytes, elapsed) = (pace.line(bytes, None), clock(started.elapsed()));
            vec![format!("{connections}, {bytes}, {elapsed}")]
        })
    }
}

impl Drop for RunProgress {
    fn drop(&mut self) {
        self.console.set_bar(None);
    }
}

/// Returns true if lines can be redrawn on `output`: it is a terminal that obeys escape sequences, by the variable with
/// the name of its kind.
fn is_drawable(output: &impl IsTerminal, kind: &str) -> bool {
    output.is_terminal() && std::env::var_os(kind).is_none_or(|kind| kind != "dumb")
}

const STEPS_BAR: usize = 20;

/// The fewest characters of a bar: it is left out where there is less room.
const LEAST_BAR: usize = 8;

/// Returns the line behind a bar that fills the columns, if the total is known and there is room.
fn with_bar(line: String, done: u64, total: Option<u64>, columns: usize) -> String {
    let room = columns.saturating_sub(width(&line) + 1);
    match total {
        Some(total) if room >= LEAST_BAR => format!("{} {line}", bar(done, total, room)),
        _ => line,
    }
}

fn bar(done: u64, total: u64, length: usize) -> String {
    let full = u128::from(done.min(total)) * length as u128;
    let full = full.checked_div(u128::from(total)).unwrap_or(0);
    let full = usize::try_from(full).unwrap_or(0);
    "█".repeat(full) + &"░".repeat(length - full)
}

/// Returns the number of columns that a text takes at most: characters of East Asian scripts and pictures take two.
pub(in crate::cli) fn width(text: &str) -> usize {
    text.chars().map(columns_of).sum()
}

fn columns_of(character: char) -> usize {
    match character {
        // Box drawing, blocks and arrows among them.
        '\u{2000}'..='\u{25ff}' => 1,
        '\u{1100}'.. => 2,
        _ => 1,
    }
}

/// Returns as much of a line as has room in so many columns.
pub(super) fn cut(line: &str, columns: usize) -> String {
    let mut taken = 0;
    let fits = |character: &char| {
        taken += columns_of(*character);
        taken <= columns
    };
    line.chars().take_while(fits).collect()
}

/// The rate of the last seconds, from which the time left follows.
#[derive(Debug, Default)]
pub(super) struct RecentPace {
    /// Times and the bytes that were done then, the oldest first.
    samples: VecDeque<(Instant, u64)>,
}

/// The rate that is shown is that of this time: a stall shows at once.
pub(super) const SHOWN_RATE: Duration = Duration::from_secs(3);

/// The rate from which the time left follows is that of this time, so that the number is calm.
const CALM_RATE: Duration = Duration::from_secs(10);

impl RecentPace {
    pub(super) fn add(&mut self, now: Instant, bytes: u64) {
        self.samples.push_back((now, bytes));
        let is_old = |second: Option<&(Instant, u64)>| {
            second.is_some_and(|(at, _)| now.duration_since(*at) >= CALM_RATE)
        };
        while is_old(self.samples.get(1)) {
            self.samples.pop_front();
        }
    }

    /// Returns the bytes per second of the last time of this length, or of all so far.
    pub(super) fn per_second(&self, window: Duration) -> f64 {
        let Some(&(now, bytes)) = self.samples.back() else {
            return 0.0;
        };
        let is_within = |(at, _): &&(Instant, u64)| now.duration_since(*at) <= window;
        let Some(&(since, before)) = self.samples.iter().find(is_within) else {
            return 0.0;
        };
        rate(bytes.saturating_sub(before), (now - since).as_secs_f64())
    }

    /// Returns what a line shows of so many bytes, out of `total` if that is known.
    fn line(&self, bytes: u64, total: Option<u64>) -> String {
        let pace = decimal(self.per_second(SHOWN_RATE));
        let Some(total) = total.filter(|total| *total > 0) else {
            return format!("{}, {pace}/s", amount(bytes));
        };
        let mut line = format!(
            "{} of {} ({}%), {pace}/s",
            amount(bytes),
            amount(total),
            percent(bytes, total)
        );
        if let Some(left) = self.time_left(total.saturating_sub(bytes)) {
            line.extend([", ", &clock(left), " to go"]);
        }
        line
    }

    /// Returns the time that so many bytes take; none while nothing moves.
    pub(super) fn time_left(&self, bytes: u64) -> Option<Duration> {
        let calm = self.per_second(CALM_RATE);
        (calm > 0.0)
            .then(|| Duration::try_from_secs_f64(rate(bytes, calm)).ok())
            .flatten()
    }
}

/// Returns how much of `total`, which is not 0, is done.
pub(super) fn percent(done: u64, total: u64) -> u128 {
    (u128::from(done) * 100 / u128::from(total.max(1))).min(100)
}

/// Formats a time as people say it: `40s`, `3m 20s`, `2h 5m`.
pub(super) fn clock(time: Duration) -> String {
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
    pub(crate) files: u64,
    /// The files that are known so far, done or not.
    pub(crate) found_files: u64,
    pub(crate) sized_files: u64,
    /// True if no more files will be found.
    pub(crate) is_walked: bool,
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
pub(crate) fn is_on_terminal(standard: &impl IsTerminal, file: bool) -> bool {
    !file && standard.is_terminal()
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicU64, Ordering},
        mpsc,
    };

    use super::{super::stderr::INTERVAL, *};
    use crate::cli::args::{JsonOption, JsonTarget, MessageOptions};

    #[test]
    fn a_line_has_room_in_its_columns() {
        let line = || "5.0 MB of 10.0 MB (50%)".to_owned();
        assert_eq!(
            with_bar(line(), 5, Some(10), 34),
            "█████░░░░░ 5.0 MB of 10.0 MB (50%)"
        );
        assert_eq!(with_bar(line(), 5, Some(10), 30), line());
        assert_eq!(with_bar(line(), 5, None, 99), line());
        assert_eq!([bar(0, 0, 3), bar(9, 3, 3)], ["░░░", "███"]);
        assert_eq!(cut("grüße 漢字", 9), "grüße 漢");
        assert_eq!(cut("abc", 3), "abc");
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
        let console = Console::new("rdsend", &MessageOptions::default());
        let (looked, looks) = mpsc::channel();
        let count = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&count);
        let done = move |_| {
            let _ = looked.send(());
            counter.fetch_add(1, Ordering::Relaxed);
            Vec::new()
        };
        let progress = RunProgress::draw(&console, done);
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
                json: JsonOption {
                    target: Some(JsonTarget::Stderr),
                },
                ..MessageOptions::default()
            },
        ];
        for options in options {
            let console = Console::of_program("rdsend", &options);
            assert!(RunProgress::start(&console, false, || (0, None)).is_none());
        }
        let console = Console::new("rdsend", &MessageOptions::default());
        assert!(RunProgress::start(&console, true, || (0, None)).is_none());
    }
}
