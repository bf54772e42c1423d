//! Runs the copies of a command line, one after the other, passes on what their agents report, and prints how they
//! went.

use std::{
    io::{self, IsTerminal},
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use anyhow::Context;

use super::{
    args::RdcpArgs,
    listing::{Listing, ListingWriter},
    report::{CopyDocument, CopyLog, CopyTotals},
};
use crate::{
    Key,
    cli::shared::{
        message::{self, Console, sentence},
        progress::{FilesProgress, RunProgress, is_on_terminal},
        run::{self, Exit},
        signals::{self, EndingCaught},
        supervision::{OwnEdges, Supervision, host_of, keys},
    },
    copy::{
        order::{CopyNews, CopyOptions},
        supervised::{
            CopyOutcome, CopyPlan, CopyState, CopyVerdict, CopyWork, DESTINATION, SOURCE,
        },
        written::WrittenEntries,
    },
    printable::escaped,
    process::Stdout,
    ssh::{
        explain,
        outcome::{RunFault, Site, ranked},
        protocol::FaultKind,
        session::ServerKind,
        supervisor::{LocalEdges, Summary, SupervisedWork, event_queue},
    },
};

/// Runs the copies, and prints how they went. Returns how the run ended.
/// `key` is the key for servers.
pub(super) fn run(
    args: &RdcpArgs,
    key: Option<&Key>,
    plans: &[CopyPlan],
    console: &Console,
) -> Exit {
    if console.prints_json() || has_listing(args) {
        if let Err(exit) = message::require_stdout(console) {
            return exit;
        }
    }
    args.messages.json.note_stdout(console);
    let started = Instant::now();
    let shared = SharedProgress::default();
    let mut totals = CopyTotals::default();
    let ended = run_all((args, key), plans, console, &shared, &mut totals);
    let exit = ended.unwrap_or_else(|error| {
        fail(console, &shared, &sentence(&error));
        Exit::from(&error)
    });
    let seconds = started.elapsed().as_secs_f64();
    // A summary of nothing explains nothing.
    if exit == Exit::Ok || totals != CopyTotals::default() {
        console.note(&totals.summary(seconds, args.copy.dry_run));
    }
    let is_cut = matches!(exit, Exit::Connection | Exit::Signal(_));
    if is_cut && totals.has_bytes() && !args.copy.dry_run {
        let again = if args.copy.resume {
            "the same command"
        } else {
            "the same command with --resume"
        };
        console.note(&format!(
            "whole files, and the parts of large ones, are kept; {again} continues"
        ));
    }
    let log = shared.lock();
    let document = CopyDocument::new(exit, seconds, &totals, &log.log);
    console.end(&document);
    exit
}

fn run_all(
    (args, client_key): (&RdcpArgs, Option<&Key>),
    plans: &[CopyPlan],
    console: &Console,
    shared: &SharedProgress,
    totals: &mut CopyTotals,
) -> anyhow::Result<Exit> {
    let control = run::control_runtime()?;
    let signal = signals::watch(&control, console).context("cannot catch signals")?;
    let signal = signals::shared(signal);
    let (listing, writer) = listing(args)?.unzip();
    let terminal = is_on_terminal(&io::stdout(), listing.is_none());
    let looked_at = shared.clone();
    let progress = RunProgress::start_files(console, terminal, move || looked_at.look());
    let run = CopyRun {
        supervision: Supervision {
            hosts: &args.hosts,
            stream: &args.stream,
            console,
            client_key: client_key.map(|key| (key, ServerKind::Copies)),
            control: &control,
        },
        shared,
        listing,
        signal,
    };
    let mut exit = Exit::Ok;
    let mut written = WrittenEntries::default();
    for plan in plans {
        let mut summary = run.copy(plan, mem::take(&mut written))?;
        written = mem::take(&mut summary.outcome.written);
        let state = shared.end_copy();
        if args.copy.dry_run {
            totals.add_dry(&summary.outcome);
        } else {
            totals.add(&summary.outcome, &state);
        }
        shared.lock().log.ended(plan, &summary);
        run.tell(plan, &summary.outcome);
        exit = worse(exit, exit_of(&summary.outcome));
        if is_last(&summary.outcome) {
            break;
        }
    }
    drop((progress, run));
    if let Some(Err(error)) = writer.map(ListingWriter::finish) {
        exit = worse(exit, message::unwritten_stdout(&error, console));
    }
    Ok(exit)
}

/// Starts the list on stdout, if the options ask for one.
fn listing(args: &RdcpArgs) -> anyhow::Result<Option<(Listing, ListingWriter)>> {
    let is_terminal = io::stdout().is_terminal();
    let start = || Listing::start(Stdout, is_terminal).context("cannot start a thread");
    has_listing(args).then(start).transpose()
}

/// Returns true if the options ask for a list on stdout.
fn has_listing(args: &RdcpArgs) -> bool {
    args.copy.checksum.is_some() || (args.copy.dry_run && !args.messages.json.is_given())
}

/// What all copies of a run share.
struct CopyRun<'a> {
    supervision: Supervision<'a>,
    shared: &'a SharedProgress,
    listing: Option<Listing>,
    signal: EndingCaught,
}

impl CopyRun<'_> {
    /// Runs a copy after others, which have written some entries.
    fn copy(
        &self,
        plan: &CopyPlan,
        written: WrittenEntries,
    ) -> anyhow::Result<Summary<CopyOutcome>> {
        let console = self.supervision.console;
        let work = CopyWork::new(plan.clone(), written);
        let keys = keys(plan.edges())?;
        let (events, queue) = event_queue();
        let own = OwnEdges {
            edges: LocalEdges::new(),
            events,
            queue,
        };
        let names = vec![plan.from.to_string(), plan.to.to_string()];
        let observer = CopyObserver {
            console: console.clone(),
            shared: self.shared.clone(),
            listing: self.listing.clone(),
            hosts: [&plan.from, &plan.to].map(|place| host_of(place, console)),
            sites: [SOURCE, DESTINATION].map(|agent| work.site(agent)),
            options: plan.options.clone(),
        };
        let observe = Box::new(move |work: &mut CopyWork| observer.observe(work));
        self.supervision
            .run(work, names, &keys, own, observe, self.signal.clone())
    }

    /// Prints why a copy ended early, if it did. Entries that failed were printed before.
    fn tell(&self, plan: &CopyPlan, outcome: &CopyOutcome) {
        let console = self.supervision.console;
        if let Some(number) = outcome.signal {
            let text = format!("interrupted by {}", explain::signal(number));
            return fail(console, self.shared, &text);
        }
        let mut causes = ranked(&outcome.causes).into_iter();
        let Some(first) = causes.next() else {
            if outcome.verdict() == CopyVerdict::Broken {
                fail(
                    console,
                    self.shared,
                    "an agent ended before its work was done",
                );
            }
            return;
        };
        match first.site {
            Site::Agent(agent) if is_of_files(first) => {
                let place = if agent == SOURCE {
                    &plan.from
                } else {
                    &plan.to
                };
                console.error_on(&host_of(place, console), &first.fault.text);
                self.shared.lock().log.error(&first.fault.text);
            }
            _ => fail(console, self.shared, &text(plan, first)),
        }
        for cause in causes {
            console.detail(&text(plan, cause));
        }
    }
}

/// Prints an error, and adds it to the report.
fn fail(console: &Console, shared: &SharedProgress, text: &str) {
    console.error(text);
    shared.lock().log.error(text);
}

/// Returns true if the files are the cause, and neither ssh nor the network.
fn is_of_files(cause: &RunFault) -> bool {
    cause.fault.kind == FaultKind::Local && !cause.is_infrastructure
}

fn text(plan: &CopyPlan, cause: &RunFault) -> String {
    let text = &cause.fault.text;
    match cause.site {
        Site::Agent(agent) => format!(
            "{}: {text}",
            CopyWork::new(plan.clone(), WrittenEntries::default()).site(agent)
        ),
        Site::Input | Site::Output | Site::Edge(_) => text.clone(),
    }
}

fn exit_of(outcome: &CopyOutcome) -> Exit {
    match outcome.verdict() {
        CopyVerdict::Complete => Exit::Ok,
        CopyVerdict::Failed => Exit::Local,
        CopyVerdict::Broken => Exit::Connection,
        CopyVerdict::Interrupted(number) => Exit::Signal(number),
    }
}

/// Returns true if the copies that follow would fail as well: after a signal, or because of the destination, which all
/// copies share.
fn is_last(outcome: &CopyOutcome) -> bool {
    let of_destination = |cause: &&RunFault| {
        cause.site == Site::Agent(DESTINATION) && cause.fault.kind == FaultKind::Local
    };
    let first = ranked(&outcome.causes).into_iter().next();
    outcome.signal.is_some() || first.as_ref().is_some_and(of_destination)
}

/// Returns the exit code of two parts of a run: a signal comes first, then a failure of the network, then one of files.
fn worse(one: Exit, other: Exit) -> Exit {
    let rank = |exit: Exit| match exit {
        Exit::Ok => 0,
        Exit::ReaderClosed => 1,
        Exit::Connection => 3,
        Exit::Signal(_) => 4,
        _ => 2,
    };
    if rank(other) > rank(one) { other } else { one }
}

/// Passes what the agents of one copy report on to the user.
pub(super) struct CopyObserver {
    pub(super) console: Console,
    pub(super) shared: SharedProgress,
    /// Where digests and the paths of a dry run go.
    pub(super) listing: Option<Listing>,
    /// The names of the two hosts in messages.
    pub(super) hosts: [String; 2],
    /// The names of the two agents' work in messages.
    pub(super) sites: [String; 2],
    pub(super) options: CopyOptions,
}

#[derive(Clone, Default)]
pub(super) struct SharedProgress(Arc<Mutex<ReportedProgress>>);

#[derive(Default)]
pub(super) struct ReportedProgress {
    /// What the report of `--json` contains beside the totals.
    pub(super) log: CopyLog,
    /// How far the current copy is.
    pub(super) state: CopyState,
    /// What the copies before it have done.
    done: CopyState,
}

impl SharedProgress {
    /// Returns what was reported so far, and keeps other threads out.
    pub(super) fn lock(&self) -> MutexGuard<'_, ReportedProgress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the current copy, which has ended, to what is done. Returns how far it came.
    pub(super) fn end_copy(&self) -> CopyState {
        let mut shared = self.lock();
        let state = std::mem::take(&mut shared.state);
        shared.done.files += state.files;
        shared.done.bytes += state.bytes;
        shared.done.found_files += state.found_files;
        shared.done.sized_files += state.sized_files;
        shared.done.found_bytes += state.found_bytes;
        state
    }

    /// Returns what the progress line shows.
    pub(super) fn look(&self) -> FilesProgress {
        let ReportedProgress { state, done, .. } = &*self.lock();
        FilesProgress {
            files: done.files + state.files,
            found_files: done.found_files + state.found_files,
            sized_files: done.sized_files + state.sized_files,
            is_walked: state.is_walked,
            bytes: done.bytes + state.bytes,
            found_bytes: done.found_bytes + state.found_bytes,
            current: escaped(&state.current),
        }
    }
}

impl CopyObserver {
    /// Handles the work after an event of the supervisor. Does not wait.
    pub(super) fn observe(&self, work: &mut CopyWork) {
        for (agent, news) in work.take_news() {
            self.tell(agent, news);
        }
        self.shared.lock().state.clone_from(work.state());
    }

    fn tell(&self, agent: usize, news: CopyNews) {
        match news {
            CopyNews::Failed { path, why } => {
                let host = &self.hosts[agent];
                self.shared.lock().log.failed(host, &path, &why);
                let text = told(&path, &why);
                self.console.notice(|console| console.error_on(host, &text));
            }
            CopyNews::Note(text) => {
                let text = format!("{}: {text}", self.sites[agent]);
                self.console.notice(|console| console.note(&text));
                self.shared.lock().log.note(text);
            }
            CopyNews::Sent(paths) => self.list("copy ", "", &paths),
            CopyNews::Removed(paths) => self.list("remove ", "removed ", &paths),
            CopyNews::Changed(paths) => self.list("change ", "changed ", &paths),
            CopyNews::Digests(digests) => {
                if let Some(listing) = &self.listing {
                    listing.push_digests(&digests);
                }
            }
        }
    }

    /// Prints paths: those of a dry run to stdout, after `would`, and those of `-v` to stderr, after `did`.
    fn list(&self, would: &str, did: &str, paths: &[Vec<u8>]) {
        let line = |verb: &str, path: &Vec<u8>| format!("{verb}{}", escaped(path));
        if self.options.dry_run {
            let lines = paths.iter().map(|path| line(would, path) + "\n");
            self.print(lines.collect::<String>().into_bytes());
        } else if self.options.list && !paths.is_empty() {
            let lines: Vec<_> = paths.iter().map(|path| line(did, path)).collect();
            self.console.notice(|console| console.lines(&lines));
        }
    }

    fn print(&self, lines: Vec<u8>) {
        if let Some(listing) = &self.listing {
            listing.push(lines);
        }
    }
}

/// Returns the sentence about a path, which is the subject of some reasons.
fn told(path: &[u8], why: &str) -> String {
    let colon = if why.starts_with("is a ") { "" } else { ":" };
    format!("{}{colon} {why}", escaped(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{copy::order::CopyReport, ssh::protocol::WorkFault};

    fn outcome(causes: &[(usize, FaultKind, bool)], failed: u64) -> CopyOutcome {
        let report = CopyReport {
            complete: true,
            ..CopyReport::default()
        };
        let cause = |&(agent, kind, is_infrastructure): &(usize, FaultKind, bool)| RunFault {
            site: Site::Agent(agent),
            fault: WorkFault {
                kind,
                text: "x".to_owned(),
            },
            is_infrastructure,
        };
        CopyOutcome {
            source: Some(report.clone()),
            destination: Some(report),
            failed,
            causes: causes.iter().map(cause).collect(),
            signal: None,
            written: WrittenEntries::default(),
        }
    }

    #[test]
    fn exit_codes_follow_from_how_a_copy_ended() {
        use FaultKind::{Edge, Local};
        for (outcome, exit) in [
            (outcome(&[], 0), Exit::Ok),
            (outcome(&[], 2), Exit::Local),
            (outcome(&[(DESTINATION, Local, false)], 0), Exit::Local),
            (outcome(&[(SOURCE, Local, true)], 0), Exit::Connection),
            (outcome(&[(SOURCE, Edge, false)], 5), Exit::Connection),
            (
                outcome(&[(SOURCE, Edge, false), (DESTINATION, Local, false)], 0),
                Exit::Local,
            ),
        ] {
            assert_eq!(exit_of(&outcome), exit, "{outcome:?}");
        }
        let interrupted = CopyOutcome {
            signal: Some(2),
            ..outcome(&[], 1)
        };
        assert_eq!(exit_of(&interrupted).code(), 130);
        assert_eq!(exit_of(&CopyOutcome::default()), Exit::Connection);
    }

    #[test]
    fn the_exit_code_of_a_run_is_that_of_its_worst_copy() {
        let (ok, files, network) = (Exit::Ok, Exit::Local, Exit::Connection);
        assert_eq!(worse(ok, files), files);
        assert_eq!(worse(files, ok), files);
        assert_eq!(worse(network, files), network);
        assert_eq!(worse(files, Exit::ReaderClosed), files);
        assert_eq!(worse(network, Exit::Signal(2)), Exit::Signal(2));
    }

    #[test]
    fn copies_of_other_hosts_go_on_after_a_source_was_lost() {
        use FaultKind::{Edge, Local};
        assert!(!is_last(&outcome(&[(SOURCE, Local, true)], 0)));
        assert!(!is_last(&outcome(&[], 3)));
        assert!(is_last(&outcome(
            &[(SOURCE, Edge, false), (DESTINATION, Local, true)],
            0
        )));
    }

    #[test]
    fn the_progress_line_counts_all_copies_of_a_run() {
        let shared = SharedProgress::default();
        let state = |files, found_files, is_walked| CopyState {
            files,
            found_files,
            bytes: files * 10,
            sized_files: found_files,
            found_bytes: found_files * 10,
            is_walked,
            current: b"d/\x1bx".to_vec(),
        };
        shared.lock().state = state(3, 4, true);
        assert_eq!(shared.end_copy().files, 3);
        shared.lock().state = state(1, 5, false);
        let look = shared.look();
        assert_eq!(
            (look.files, look.found_files, look.is_walked),
            (4, 9, false)
        );
        assert_eq!((look.bytes, look.found_bytes), (40, 90));
        assert_eq!(look.current, "d/\\u{1b}x");
    }
}
