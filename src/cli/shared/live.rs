//! The live view of a pipeline: a line for each stage. Pure, no I/O and no clock.

use std::time::{Duration, Instant};

use super::{
    progress::{RecentPace, SHOWN_RATE, clock, cut, percent, width},
    report::{amount, decimal, rate},
};
use crate::{
    printable::with_spaces,
    ssh::{
        plan::Plan,
        stage::{StageProgress, Status},
        supervisor::pipeline::StageState,
    },
};

/// The stages of a pipeline as a user watches them.
pub(crate) struct LiveStages {
    rows: Vec<LiveStage>,
    /// The bytes of the file that is the input of the first stage, if they are known.
    input_bytes: Option<u64>,
    /// The bytes per second of `--bwlimit`.
    limit: Option<u64>,
}

/// A stage, and how it got on in the last seconds.
struct LiveStage {
    host: String,
    command: String,
    progress: StageProgress,
    reports: u64,
    /// When the last one came.
    reported: Option<Instant>,
    ended: Option<Status>,
    waits_for_stages: bool,
    bytes: RecentPace,
    /// The microseconds in which the stage has waited for its input, and for the stage that reads its output.
    waits: [RecentPace; 2],
}

/// A stage whose agent has reported nothing for this time is shown as silent: four reports are missing.
const SILENCE: Duration = Duration::from_secs(2);

/// A stage that waits for less than this part of its time waits for nothing.
const LEAST_WAIT: f64 = 0.05;

/// A stage that waits for nothing, and moves this part of the bytes that `--bwlimit` allows, is held up by it.
const LIMITED: f64 = 0.9;

impl LiveStages {
    /// Returns the stages of a plan before their first report. `limit` is that of `--bwlimit`.
    pub(crate) fn new(plan: &Plan, input_bytes: Option<u64>, limit: Option<u64>) -> Self {
        let rows = plan.stages.iter().map(|stage| LiveStage {
            host: with_spaces(stage.place.host().unwrap_or("here")),
            command: with_spaces(stage.text.trim()),
            progress: StageProgress::default(),
            reports: 0,
            reported: None,
            ended: None,
            waits_for_stages: false,
            bytes: RecentPace::default(),
            waits: Default::default(),
        });
        Self {
            rows: rows.collect(),
            input_bytes,
            limit,
        }
    }

    /// Takes what the stages have reported up to `now`.
    pub(crate) fn update(&mut self, now: Instant, stages: &[StageState]) {
        for (row, stage) in self.rows.iter_mut().zip(stages) {
            row.ended = stage.ended;
            row.waits_for_stages = stage.waits_for_stages();
            row.progress = stage.progress;
            if row.reports != stage.reports {
                row.reports = stage.reports;
                row.reported = Some(now);
                row.bytes.add(now, stage.progress.bytes());
                row.waits[0].add(now, stage.progress.blocked_on_input_us);
                row.waits[1].add(now, stage.progress.blocked_on_output_us);
            }
        }
    }

    /// Returns the bytes of the busiest stage, and of the file that is the source of the pipeline, if that is known.
    pub(crate) fn bytes(&self) -> (u64, Option<u64>) {
        let bytes = self.rows.iter().map(|row| row.progress.bytes()).max();
        let file = self.rows.first().and_then(|row| row.progress.file_bytes);
        (bytes.unwrap_or(0), self.input_bytes.or(file))
    }

    /// Returns a heading and a line for each stage, in so many columns. A narrow terminal shows no commands.
    pub(crate) fn lines(&self, now: Instant, columns: usize) -> Vec<String> {
        let host = self.rows.iter().map(|row| width(&row.host)).max();
        let host = host.unwrap_or(0).clamp("host".len(), MOST_HOST);
        let rest = columns.saturating_sub(FIXED + host + 2 * GAP);
        let longest = self.rows.iter().map(|row| width(&row.command)).max();
        let longest = longest.unwrap_or(0).clamp("command".len(), MOST_COMMAND);
        let command = (rest >= LEAST_COMMAND).then(|| rest.min(longest));
        let line = |number: &str, cells: [&str; 6]| {
            let [on, runs, bytes, rate, waits, left] = cells;
            let runs = command.map(|room| filled(runs, room) + "  ");
            let (on, runs) = (filled(on, host), runs.unwrap_or_default());
            let line =
                format!("{number:>5}  {on}  {runs}{bytes:>8}  {rate:>10}  {waits:<13}  {left}");
            line.trim_end().to_owned()
        };
        let heading = ["host", "command", "bytes", "rate", "waits for", "done"];
        let mut lines = vec![line("stage", heading)];
        for (number, row) in self.rows.iter().enumerate() {
            let input = (number == 0).then_some(self.input_bytes).flatten();
            let cells = [
                &row.host,
                &row.command,
                &amount(row.progress.bytes()),
                &row.rate(),
                &row.state(now, self.limit),
                &row.left(input),
            ];
            lines.push(line(&(number + 1).to_string(), cells.map(String::as_str)));
        }
        lines
    }
}

/// The columns of a line without host and command, and without the gaps behind these.
const FIXED: usize = 5 + GAP + 8 + GAP + 10 + GAP + 13 + GAP + 13;

const GAP: usize = 2;

const MOST_HOST: usize = 16;

const LEAST_COMMAND: usize = 8;

const MOST_COMMAND: usize = 32;

fn filled(text: &str, columns: usize) -> String {
    let shown = if width(text) > columns {
        cut(text, columns.saturating_sub(3)) + "..."
    } else {
        text.to_owned()
    };
    let rest = columns.saturating_sub(width(&shown));
    shown + &" ".repeat(rest)
}

impl LiveStage {
    /// Returns the bytes per second of the last seconds; nothing before the first report, and at the end.
    fn rate(&self) -> String {
        match (self.reported, self.ended) {
            (Some(_), None) => format!("{}/s", decimal(self.bytes.per_second(SHOWN_RATE))),
            _ => String::new(),
        }
    }

    /// Returns what the stage waits for, or how it has ended.
    fn state(&self, now: Instant, limit: Option<u64>) -> String {
        match self.ended {
            Some(Status::Exited(0)) => return "done".to_owned(),
            Some(Status::Exited(code)) => return format!("exited: {code}"),
            Some(Status::Signaled(number)) => return format!("signal {number}"),
            None => {}
        }
        let Some(reported) = self.reported else {
            return "connection".to_owned();
        };
        let silence = now.saturating_duration_since(reported);
        if silence >= SILENCE {
            return format!("silent {}", clock(silence));
        }
        if self.waits_for_stages {
            return "other stages".to_owned();
        }
        let [input, output] = self
            .waits
            .each_ref()
            .map(|wait| wait.per_second(SHOWN_RATE) / 1e6);
        let (what, part) = if input > output {
            ("input", input)
        } else {
            ("output", output)
        };
        if part < LEAST_WAIT {
            let is_limited = limit.is_some_and(|limit| {
                rate(limit, 1.0) * LIMITED <= self.bytes.per_second(SHOWN_RATE)
            });
            return if is_limited { "--bwlimit" } else { "nothing" }.to_owned();
        }
        format!("{what} {:.0}%", (part * 100.0).min(100.0))
    }

    /// Returns how much of the file that the stage reads is done, and the time left. `input_bytes` are those of the
    /// file that is its input.
    fn left(&self, input_bytes: Option<u64>) -> String {
        let StageProgress {
            bytes_in,
            bytes_out,
            file_bytes,
            ..
        } = self.progress;
        let (done, total) = match (input_bytes, file_bytes) {
            (Some(total), _) => (bytes_in, total),
            (None, Some(total)) => (bytes_out, total),
            (None, None) => return String::new(),
        };
        let mut text = format!("{}%", percent(done, total));
        let left = self.bytes.time_left(total.saturating_sub(done));
        if let (Some(left), None) = (left, self.ended) {
            text.extend([", ", &clock(left)]);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::ssh::plan::PlanInput;

    fn stages(segments: &[&str], input: Option<u64>) -> LiveStages {
        let segments: Vec<_> = segments.iter().map(OsString::from).collect();
        let plan = Plan::parse(&segments, PlanInput::Standard).unwrap();
        LiveStages::new(&plan, input, None)
    }

    /// Returns what a stage reports after so many half seconds: 1 MB in each, and half of the time waits.
    fn report(halves: u64, input: u64, output: u64) -> StageState {
        let mut stage = StageState::default();
        stage.reports = halves + 1;
        stage.progress = StageProgress {
            bytes_out: halves * 1_000_000,
            blocked_on_input_us: halves * input,
            blocked_on_output_us: halves * output,
            file_bytes: Some(40_000_000),
            ..StageProgress::default()
        };
        stage
    }

    #[test]
    fn a_line_for_each_stage_says_what_it_waits_for_and_how_long_the_file_takes() {
        let mut live = stages(&["fs1:< big", ":gzip -1", "fs2:> big.gz"], None);
        let start = Instant::now();
        let columns = 79;
        assert_eq!(
            live.lines(start, columns),
            [
                "stage  host  command      bytes        rate  waits for      done",
                "    1  fs1   < big          0 B              connection",
                "    2  here  gzip -1        0 B              connection",
                "    3  fs2   > big.gz       0 B              connection",
            ]
        );
        let mut now = start;
        for halves in 0..=20 {
            now = start + Duration::from_millis(500) * u32::try_from(halves).unwrap();
            let no_file = |mut stage: StageState| {
                stage.progress.file_bytes = None;
                stage
            };
            let stages = [
                report(halves, 0, 460_000),
                no_file(report(halves, 10_000, 0)),
                no_file(report(halves, 499_000, 0)),
            ];
            live.update(now, &stages);
        }
        assert_eq!(
            live.lines(now, columns)[1..],
            [
                "    1  fs1   < big      20.0 MB    2.0 MB/s  output 92%     50%, 10s",
                "    2  here  gzip -1    20.0 MB    2.0 MB/s  nothing",
                "    3  fs2   > big.gz   20.0 MB    2.0 MB/s  input 100%",
            ]
        );
        assert_eq!(live.bytes(), (20_000_000, Some(40_000_000)));
        live.limit = Some(2_100_000);
        let limited = &live.lines(now, columns)[2];
        assert!(limited.ends_with("--bwlimit"), "{limited}");
        let silent = &live.lines(now + Duration::from_secs(5), columns)[1];
        assert!(silent.contains("silent 5s"), "{silent}");
        let mut ended = report(40, 0, 0);
        ended.ended = Some(Status::Exited(3));
        live.update(now, &[ended]);
        let row = &live.lines(now, columns)[1];
        assert_eq!(
            row,
            "    1  fs1   < big      40.0 MB              exited: 3      100%"
        );
    }

    #[test]
    fn a_file_at_the_input_has_a_percentage() {
        let mut live = stages(&["fs1:wc"], Some(4_000_000));
        let mut stage = report(3, 0, 0);
        stage.progress.bytes_in = 1_000_000;
        live.update(Instant::now(), &[stage]);
        let row = &live.lines(Instant::now(), 200)[1];
        assert!(row.ends_with("nothing        25%"), "{row}");
    }

    #[test]
    fn no_line_is_longer_than_the_terminal_and_a_narrow_one_shows_no_commands() {
        let long = "a_host_with_a_long_name:a very long command that has no room\nand two lines";
        let live = stages(&[long, ":漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字"], None);
        for columns in 76..200 {
            let lines = live.lines(Instant::now(), columns);
            assert!(lines.iter().all(|line| width(line) <= columns), "{lines:?}");
            assert!(lines[1].contains("a_host_with_a..."), "{lines:?}");
            assert_eq!(lines[0].contains("command"), columns >= 85, "{columns}");
        }
        let wide = &live.lines(Instant::now(), 200)[1];
        assert!(wide.contains("a very long command that has ..."), "{wide}");
    }
}
