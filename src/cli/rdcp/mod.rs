//! The program rdcp: copies files and directories from one host to another. A command line asks for copies, for a
//! pipeline if one operand is a standard stream, or for a server.

pub(super) mod args;
mod copies;
mod listing;
mod report;
mod serve;

#[cfg(any(test, fuzzing))]
pub(crate) use serve::fuzzing::served_session as fuzz_served_session;

use std::{collections::HashSet, io, path::Path, process::ExitCode, time::Instant};

use anyhow::Context;
use clap::{CommandFactory, error::ErrorKind};

use self::args::RdcpArgs;
use super::{
    args::{Secret, scp_port, take_variable, words},
    server::key_file::load_client_key,
    shared::{
        message::{self, Console, sentence},
        progress::is_on_terminal,
        report::{amount, decimal, rate},
        run::Exit,
        supervision::{self, PipelineView, exit_of, run_alone, tell},
    },
};
use crate::{
    Key,
    copy::{
        order::{CopyOptions, RunPart},
        path::{CopiedSources, top_name},
        supervised::CopyPlan,
    },
    host, process,
    ssh::{
        operands::{HostPath, Operand, has_room},
        plan::{Plan, PlannedStage, StageHost},
        stage::StageWork,
        supervisor::pipeline::PipelineOptions,
    },
};

/// Parses the command line, runs rdcp, and returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    process::prepare();
    let args = RdcpArgs::of_process();
    if let Some(process) = args.agent {
        return supervision::main(process);
    }
    let (variable, hidden) = take_variable();
    let console = Console::of_program("rdcp", &args.messages());
    console.note_encryption(&args.stream);
    if let Err(error) = hidden {
        console.warn(&format!("cannot hide the key from ps: {error}"));
    }
    let exit = if args.serve.serve {
        serve::run(&args, &console)
    } else if let Some(name) = &args.serve.new_key {
        serve::new_key(name, args.key_file.as_deref(), &console)
    } else {
        copy(&args, variable.as_ref(), &console)
    };
    console.finish(exit).into()
}

/// Runs what the operands ask for.
fn copy(args: &RdcpArgs, variable: Option<&Secret>, console: &Console) -> Exit {
    let port = scp_port(&words(), |path| Path::new(path).exists());
    let transfer = port.map_or_else(|| Transfer::of(args), Err);
    let transfer = transfer.unwrap_or_else(|error| {
        RdcpArgs::command()
            .error(ErrorKind::ValueValidation, error)
            .exit()
    });
    match transfer {
        Transfer::Copies(plans) => {
            let key = load_key(args, variable, &plans, console);
            match key {
                Ok(key) => copies::run(args, key.as_ref(), &plans, console),
                Err(error) => {
                    console.error(&sentence(&error));
                    Exit::Usage
                }
            }
        }
        Transfer::Pipe(plan) => run_pipe(args, &plan, console),
    }
}

/// What a command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Transfer {
    /// Copies, one after the other: one for each group of consecutive sources of one host.
    Copies(Vec<CopyPlan>),
    /// A pipeline of one stage: from stdin to a file, or from a file to stdout.
    Pipe(Plan),
}

impl Transfer {
    /// Interprets the operands and options of a command line.
    /// Fails if the command line cannot be used.
    fn of(args: &RdcpArgs) -> Result<Self, String> {
        let operands = args.operands.iter().map(|operand| Operand::parse(operand));
        let mut operands: Vec<_> = operands
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string())?;
        let destination = standard_or(operands.pop().ok_or(EXPECTED)?, OUTPUT_NAMES);
        if !args.options().recursive {
            operands = operands
                .into_iter()
                .map(|operand| standard_or(operand, INPUT_NAMES))
                .collect();
        }
        if operands.is_empty() {
            return Err(match destination {
                Operand::Standard => EXPECTED.to_owned(),
                Operand::Path(_) => format!("there is no destination; {EXPECTED}"),
            });
        }
        let paths = operands.iter().map(|operand| match operand {
            Operand::Standard => None,
            Operand::Path(path) => Some(path.clone()),
        });
        match (paths.collect::<Option<Vec<_>>>(), destination) {
            (Some(sources), Operand::Path(destination)) => copies(args, sources, destination),
            (sources, destination) => pipe(args, operands.len(), sources, destination),
        }
    }
}

const EXPECTED: &str = "give SOURCE... and DESTINATION, each a PATH, [user@]HOST:PATH, HOST:PORT:PATH of a server, or - for stdin or stdout";

/// The names of stdin on this machine. The process that reads files is another one, with a stdin of its own.
const INPUT_NAMES: [&[u8]; 3] = [b"/dev/stdin", b"/dev/fd/0", b"/proc/self/fd/0"];

const OUTPUT_NAMES: [&[u8]; 3] = [b"/dev/stdout", b"/dev/fd/1", b"/proc/self/fd/1"];

/// Returns an operand, or `-` in place of one of these names of a file of this machine.
fn standard_or(operand: Operand, names: [&[u8]; 3]) -> Operand {
    match operand {
        Operand::Path(HostPath {
            place: StageHost::Here,
            path,
        }) if names.contains(&&path[..]) => Operand::Standard,
        operand => operand,
    }
}

fn is_server(place: &StageHost) -> bool {
    matches!(place, StageHost::Server { .. })
}

/// Returns the copies of all sources.
fn copies(
    args: &RdcpArgs,
    sources: Vec<HostPath>,
    destination: HostPath,
) -> Result<Transfer, String> {
    let options = args.options();
    let copied = CopiedSources::of(sources.iter().map(|source| &source.path[..]));
    if options.no_target_directory && copied == CopiedSources::Many {
        return Err(
            "-T gives the copy the name DESTINATION, so there can be only one source".to_owned(),
        );
    }
    if options.delete && !options.recursive {
        return Err("--delete compares directories; give -r or -a with it".to_owned());
    }
    let HostPath {
        place: to,
        path: into,
    } = destination;
    if args.privileged {
        check_privileged(sources.iter().any(|source| is_server(&source.place)), &to)?;
    }
    let merges = may_merge(sources.iter().map(|source| &source.path[..]));
    let mut plans: Vec<CopyPlan> = Vec::new();
    for HostPath { place, path } in sources {
        if is_server(&place) && is_server(&to) {
            return Err(
                "servers do not connect to each other; copy to a host that has rdcp first"
                    .to_owned(),
            );
        }
        let is_here = place.host().is_none() || to.host().is_none();
        let lanes = args.lanes(is_here.then(host::streams));
        match plans.last_mut() {
            Some(last) if last.from == place && has_room(&last.paths, &path) => {
                last.paths.push(path);
            }
            _ => plans.push(CopyPlan {
                options: CopyOptions {
                    drops_lent_rights: is_server(&place) && !args.privileged,
                    ..options.clone()
                },
                from: place,
                paths: vec![path],
                to: to.clone(),
                path: into.clone(),
                sources: copied,
                part: RunPart::default(),
                lanes: lanes.into(),
            }),
        }
    }
    if options.delete && plans.len() > 1 {
        // The second copy would remove what the first has put into the same directory.
        return Err(
            "--delete makes DESTINATION equal to one host; give sources of one host only"
                .to_owned(),
        );
    }
    let last = plans.len() - 1;
    for (index, plan) in plans.iter_mut().enumerate() {
        plan.part = RunPart {
            merges,
            has_earlier: merges && index > 0,
            has_later: merges && index < last,
        };
    }
    Ok(Transfer::Copies(plans))
}

/// Checks that `--privileged` means something: files come from a server.
fn check_privileged(comes_from_server: bool, to: &StageHost) -> Result<(), String> {
    if comes_from_server {
        return Ok(());
    }
    let why = if is_server(to) {
        "a server decides itself what it keeps, with --privileged on its own command line"
    } else {
        "--privileged is for files from HOST:PORT:PATH; over ssh, -a keeps all that it may set"
    };
    Err(why.to_owned())
}

/// Returns true if two sources may have entries that get one name: their own names are equal but for the case, or the
/// contents of a directory arrive beside others. A file system may also take names for the same that have letters
/// beyond ASCII.
fn may_merge<'a>(sources: impl ExactSizeIterator<Item = &'a [u8]>) -> bool {
    let is_only = sources.len() < 2;
    let mut names = HashSet::new();
    let is_taken = |path: &[u8]| {
        top_name(path).is_none_or(|name| {
            let name = name.as_bytes();
            !name.is_ascii() || !names.insert(name.to_ascii_lowercase())
        })
    };
    !is_only && sources.into_iter().any(is_taken)
}

/// Returns the pipeline of a command line with `-`. `sources` is none if `-` is one of the `count` sources.
fn pipe(
    args: &RdcpArgs,
    count: usize,
    sources: Option<Vec<HostPath>>,
    destination: Operand,
) -> Result<Transfer, String> {
    if count > 1 {
        return Err(
            "- stands for one stream of bytes, so there can be only one source; rdcat joins several files"
                .to_owned(),
        );
    }
    if let Some(option) = of_trees(args) {
        return Err(format!(
            "- stands for one stream of bytes, to which {option} does not apply"
        ));
    }
    let (HostPath { place, path }, has_input) = match (sources, destination) {
        (None, Operand::Path(path)) => (path, true),
        (Some(mut sources), Operand::Standard) => (sources.remove(0), false),
        _ => {
            return Err("source and destination cannot both be -; use rdpipe or cat".to_owned());
        }
    };
    if is_server(&place) {
        return Err("- does not work with a server; give a file".to_owned());
    }
    let text = String::from_utf8_lossy(&path).into_owned();
    let work = if has_input {
        StageWork::Write {
            path,
            append: false,
        }
    } else {
        StageWork::Read(path)
    };
    let stages = vec![PlannedStage { place, work, text }];
    Ok(Transfer::Pipe(Plan { stages, has_input }))
}

/// Returns an option of the command line that is about files and directories, and not about a stream of bytes.
fn of_trees(args: &RdcpArgs) -> Option<&'static str> {
    let copy = &args.copy;
    let given = [
        (copy.recursive, "-r"),
        (copy.archive, "-a"),
        (copy.no_target_directory, "-T"),
        (copy.parents, "--parents"),
        (copy.dry_run, "--dry-run"),
        (copy.no_clobber, "--no-clobber"),
        (copy.update, "--update"),
        (copy.skip_same, "--skip-same"),
        (copy.delete, "--delete"),
        (copy.max_delete.is_some(), "--max-delete"),
        (!copy.filters.is_empty(), "--exclude or --include"),
        (copy.resume, "--resume"),
        (copy.checksum.is_some(), "--checksum"),
        (copy.remove_source_files, "--remove-source-files"),
        (args.bwlimit.is_some(), "--bwlimit"),
        (args.lanes.is_some(), "--lanes"),
        (args.privileged, "--privileged"),
        (args.messages.json.is_given(), "--json"),
    ];
    given
        .iter()
        .find(|(is_given, _)| *is_given)
        .map(|row| row.1)
}

/// Reads the key for servers from `--key-file` or, without it, from the environment. Returns none if no copy has a
/// server.
/// Fails if there is no key, or if it cannot be used.
fn load_key(
    args: &RdcpArgs,
    variable: Option<&Secret>,
    plans: &[CopyPlan],
    console: &Console,
) -> anyhow::Result<Option<Key>> {
    let is_server = |place: &StageHost| matches!(place, StageHost::Server { .. });
    let places = plans.iter().flat_map(|plan| [&plan.from, &plan.to]);
    let Some(server) = places.into_iter().find(|place| is_server(place)) else {
        return Ok(None);
    };
    let key = load_client_key(args.key_file.as_deref(), variable, console)?;
    let key = key.with_context(|| format!(
        "the server on {server} needs a key; give --key-file FILE with the line of this client in the server's key file, or set RDPIPE_KEY"
    ))?;
    Ok(Some(key))
}

/// Runs the pipeline, and prints how it went. Returns how it ended.
fn run_pipe(args: &RdcpArgs, plan: &Plan, console: &Console) -> Exit {
    if !plan.has_input {
        if let Err(exit) = message::require_stdout(console) {
            return exit;
        }
    }
    run_plan(args, plan, console).unwrap_or_else(|error| {
        console.error(&sentence(&error));
        Exit::from(&error)
    })
}

fn run_plan(args: &RdcpArgs, plan: &Plan, console: &Console) -> anyhow::Result<Exit> {
    let started = Instant::now();
    let options = (&args.hosts, &args.stream);
    let on_terminal = if plan.has_input {
        is_on_terminal(&io::stdin(), false)
    } else {
        is_on_terminal(&io::stdout(), false)
    };
    let view = PipelineView::Bytes { on_terminal };
    let pipeline = PipelineOptions {
        fsync: args.fsync,
        ..PipelineOptions::default()
    };
    let (summary, bytes) = run_alone(plan, options, pipeline, view, console)?;
    tell(plan, &summary.outcome, bytes, console);
    let exit = exit_of(&summary.outcome);
    if exit == Exit::Ok {
        let seconds = started.elapsed().as_secs_f64();
        console.note(&format!(
            "{} in {seconds:.1} s ({}/s)",
            amount(bytes),
            decimal(rate(bytes, seconds))
        ));
    }
    Ok(exit)
}

#[cfg(test)]
mod tests {
    use super::{args::tests::parse, *};

    fn of(words: &[&str]) -> Result<Transfer, String> {
        Transfer::of(&parse(words).map_err(|error| error.to_string())?)
    }

    fn shown(words: &[&str]) -> Vec<String> {
        let Ok(Transfer::Copies(plans)) = of(words) else {
            panic!("{words:?}: {:?}", of(words));
        };
        let plan = |plan: &CopyPlan| {
            let paths = plan.paths.iter().map(|path| String::from_utf8_lossy(path));
            let paths: Vec<_> = paths.collect();
            let to = String::from_utf8_lossy(&plan.path);
            let many = if plan.sources == CopiedSources::Many {
                " many"
            } else {
                ""
            };
            format!("{}:{} {}:{to}{many}", plan.from, paths.join(","), plan.to)
        };
        plans.iter().map(plan).collect()
    }

    #[test]
    fn consecutive_sources_of_one_host_are_one_copy() {
        assert_eq!(shown(&["a", "h:b"]), ["here:a h:b"]);
        assert_eq!(shown(&["a", "h:7:/b"]), ["here:a h:/b"]);
        let line = ["a:1", "a:2", ":3", "./4", "u@a:5", "a:6", "to"];
        let copies = [
            "a:1,2 here:to many",
            "here:3,./4 here:to many",
            "a:5 here:to many",
            "a:6 here:to many",
        ];
        assert_eq!(shown(&line), copies);
    }

    #[test]
    fn long_lists_of_sources_are_split() {
        let long = format!("h:{}", "x".repeat(4000));
        let mut line = vec![long.as_str(); 100];
        line.push("to");
        assert_eq!(shown(&line).len(), 4);
    }

    #[test]
    fn a_dash_is_a_pipeline_of_one_stage() {
        let stage = |words: &[&str]| match of(words) {
            Ok(Transfer::Pipe(mut plan)) => (plan.stages.remove(0), plan.has_input),
            other => panic!("{other:?}"),
        };
        let (write, has_input) = stage(&["-", "h:a b"]);
        assert!(has_input && write.place.to_string() == "h");
        let path = b"a b".to_vec();
        let append = false;
        assert_eq!(write.work, StageWork::Write { path, append });
        let (read, has_input) = stage(&["-v", "--fsync", "file", "-"]);
        assert!(!has_input && read.place.to_string() == "here");
        assert_eq!(read.work, StageWork::Read(b"file".to_vec()));
    }

    #[test]
    fn wrong_use_gets_a_sentence() {
        for (words, sentence) in [
            (&["a"][..], "no destination"),
            (&["-"], "give SOURCE... and DESTINATION"),
            (&["-", "-"], "cannot both be -"),
            (&["-", "a", "h:b"], "only one source"),
            (&["a", "b", "-"], "only one source; rdcat"),
            (&["-r", "-", "h:b"], "-r does not apply"),
            (&["--json", "h:b", "-"], "--json does not apply"),
            (
                &["--exclude", "x", "h:b", "-"],
                "--exclude or --include does not apply",
            ),
            (&["-T", "a", "b", "c"], "-T gives the copy the name"),
            (&["--delete", "a", "b"], "give -r or -a"),
            (
                &["-r", "--delete", "a:x", "b:y", "z"],
                "sources of one host only",
            ),
            (&["a", "-h:x"], "an option of ssh"),
            (&["", "x"], "an operand is empty"),
            (&["h:1:a", "g:2:b"], "do not connect to each other"),
            (&["-", "g:2:b"], "give a file"),
            (&["g:2:b", "-"], "give a file"),
        ] {
            let words = if words.contains(&"-h:x") {
                vec!["--", "a", "-h:x"]
            } else {
                words.to_vec()
            };
            let error = of(&words).unwrap_err();
            assert!(error.contains(sentence), "{words:?}: {error}");
        }
    }
}
