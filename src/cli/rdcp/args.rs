//! The command line of rdcp.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, ValueEnum, error::ErrorKind};

use crate::{
    cli::args::{Agent, HostOptions, MessageOptions, StreamOptions, help, or_exit, version},
    copy::{
        order::{CopyOptions, DigestKind, ExistingFiles, FilterRule, NameFilter},
        supervised::{MOST_LANES, suitable_lanes},
    },
    options,
};

/// The most lanes of `-j`: one copy then uses as many processors as a host of a fast network has to spare.
const MAX_LANES: u16 = 16;

/// The command line of rdcp.
#[derive(Debug, Parser)]
#[command(
    name = "rdcp",
    version,
    long_version = version::long(),
    about = "Copies files and directories from one host to another, at link speed",
    override_usage = "rdcp [OPTIONS] SOURCE... DESTINATION\n       rdcp --serve --root DIR --key-file FILE [OPTIONS]",
    after_help = help::rdcp(),
    mut_arg("verbose", |arg| {
        arg.help("Print how the run went: each path, and the connections; -vv how ssh is called, too")
    }),
    mut_arg("quiet", |arg| arg.help("Print errors only: no summary and no progress"))
)]
pub(crate) struct RdcpArgs {
    /// The sources, and the destination as the last operand.
    #[arg(value_name = "PATH", required_unless_present_any = ["agent", "serve", "new_key"], help = help::OPERAND)]
    pub(crate) operands: Vec<OsString>,

    #[command(flatten)]
    pub(crate) copy: CopyArgs,

    /// Send at most this many bytes per second, all lanes together, with K, M or G for powers of 1024
    #[arg(long, value_name = "RATE", value_parser = options::rate)]
    pub(crate) bwlimit: Option<u64>,

    /// Use this many lanes: streams, each with a thread at both ends, which also share very large files; with --serve,
    /// the most for one copy [default: half of the processors of the host that has fewer, 2 to 8]
    #[arg(short = 'j', long, value_name = "N", value_parser = lanes)]
    pub(crate) lanes: Option<u16>,

    /// Keep what gives rights on the host that writes: set-user-ID and set-group-ID bits, devices and system attributes
    /// from HOST:PORT; with --serve those of clients, with their owners and ACLs
    #[arg(long)]
    pub(crate) privileged: bool,

    /// fsync output files before reporting success: each before it gets its final name
    #[arg(long)]
    pub(crate) fsync: bool,

    /// Read the key from the first line of FILE, for HOST:PORT:PATH; with --serve, those of all clients, a line for
    /// each: NAME KEY, and after them ro, wo or append, and a directory, to limit it. Only its owner may read FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) serve: ServeArgs,

    #[command(flatten)]
    pub(crate) hosts: HostOptions,

    #[command(flatten)]
    pub(crate) stream: StreamOptions,

    #[command(flatten)]
    pub(crate) messages: MessageOptions,

    /// Run as an agent (used by rdcp itself)
    #[arg(long, hide = true, value_enum, num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "guard")]
    pub(crate) agent: Option<Agent>,
}

/// The options that say what is copied, and how.
#[derive(Debug, Clone, Args)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is an option of the command line, independent of the others"
)]
pub(crate) struct CopyArgs {
    /// Copy directories with all that is in them
    #[arg(short, short_alias = 'R', long)]
    pub(crate) recursive: bool,

    /// Copy directories, and keep all metadata: modes, times, owners, links, attributes, ACLs
    #[arg(short, long)]
    pub(crate) archive: bool,

    /// Treat DESTINATION as the name of the copy, even if it is a directory
    #[arg(short = 'T', long)]
    pub(crate) no_target_directory: bool,

    /// Make the missing parent directories of DESTINATION, and itself if it ends in / or receives several sources
    #[arg(short = 'P', long)]
    pub(crate) parents: bool,

    /// Print what would be done, and do nothing: the paths to copy, to change and to remove
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,

    /// Keep every file that DESTINATION has already
    #[arg(long, conflicts_with_all = ["update", "skip_same"])]
    pub(crate) no_clobber: bool,

    /// Replace a file only if the source's file was modified later
    #[arg(long, conflicts_with = "skip_same")]
    pub(crate) update: bool,

    /// Skip a file whose size and time of modification are the same at DESTINATION
    #[arg(long)]
    pub(crate) skip_same: bool,

    /// Remove what the copied directories have at DESTINATION and not at the source
    #[arg(long)]
    pub(crate) delete: bool,

    /// Remove at most N entries with --delete, and name how many more there are; also removes for a source directory
    /// that is empty
    #[arg(long, value_name = "N", requires = "delete")]
    pub(crate) max_delete: Option<u64>,

    /// Leave out what matches this pattern, by the rules of gitignore; may be given several times
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    pub(crate) exclude: Vec<String>,

    /// Copy what matches this pattern although an earlier --exclude does; may be given several times
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    pub(crate) include: Vec<String>,

    /// Continue large files that an earlier run left unfinished
    #[arg(long)]
    pub(crate) resume: bool,

    /// Write a digest of each copied file to stdout, as xxhsum or sha256sum does [default kind: xxh64]
    #[arg(
        long,
        value_enum,
        value_name = "xxh64|sha256",
        hide_possible_values = true
    )]
    #[arg(conflicts_with = "json", num_args = 0..=1, require_equals = true, default_missing_value = "xxh64")]
    pub(crate) checksum: Option<DigestChoice>,

    /// Remove each file of the source after the destination has confirmed it
    #[arg(long)]
    pub(crate) remove_source_files: bool,

    /// `--exclude` and `--include` in the order of the command line.
    #[arg(skip)]
    pub(crate) filters: Vec<FilterRule>,
}

/// The value of `--checksum`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DigestChoice {
    /// XXH64, which `xxhsum -c` checks.
    Xxh64,
    /// SHA-256, which `sha256sum -c` checks.
    Sha256,
}

impl RdcpArgs {
    /// Parses the command line of this process. Prints a wrong use and exits.
    pub(crate) fn of_process() -> Self {
        let matches = Self::command().try_get_matches();
        or_exit(
            "rdcp",
            matches.and_then(|matches| Self::of_matches(&matches)),
        )
    }

    fn of_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = Self::from_arg_matches(matches)?;
        args.copy.filters = filters(matches);
        // The hosts compile the patterns again; a wrong one is wrong use, and known here.
        NameFilter::new(&args.copy.filters)
            .map_err(|why| Self::command().error(ErrorKind::ValueValidation, why))?;
        Ok(args)
    }

    pub(crate) fn messages(&self) -> MessageOptions {
        MessageOptions {
            json: self.messages.json.or_stdout(),
            ..self.messages.clone()
        }
    }

    /// Returns the most lanes that a copy may use. `own_streams` is the number of streams that suit this host, if this
    /// host is an end of the copy.
    pub(crate) fn lanes(&self, own_streams: Option<u16>) -> u16 {
        let suitable = || own_streams.map_or(MOST_LANES, suitable_lanes);
        self.lanes.unwrap_or_else(suitable)
    }

    pub(crate) fn options(&self) -> CopyOptions {
        let copy = &self.copy;
        CopyOptions {
            recursive: copy.recursive || copy.archive,
            archive: copy.archive,
            no_target_directory: copy.no_target_directory,
            parents: copy.parents,
            chosen_lanes: self.lanes.is_some(),
            existing: match (copy.no_clobber, copy.update, copy.skip_same) {
                (true, _, _) => ExistingFiles::Keep,
                (_, true, _) => ExistingFiles::ReplaceOlder,
                (_, _, true) => ExistingFiles::ReplaceDifferent,
                _ => ExistingFiles::Replace,
            },
            delete: copy.delete,
            max_delete: copy.max_delete,
            resume: copy.resume,
            remove_source_files: copy.remove_source_files,
            dry_run: copy.dry_run,
            fsync: self.fsync,
            list: self.messages.verbose > 0,
            digest: copy.checksum.map(|choice| match choice {
                DigestChoice::Xxh64 => DigestKind::Xxh64,
                DigestChoice::Sha256 => DigestKind::Sha256,
            }),
            bytes_per_second: self.bwlimit,
            drops_lent_rights: false,
            filters: copy.filters.clone(),
        }
    }
}

/// Returns the patterns of `--exclude` and `--include`, in the order of the command line.
fn filters(matches: &ArgMatches) -> Vec<FilterRule> {
    let of = |name: &'static str, include: bool| {
        let patterns = matches.get_many::<String>(name).into_iter().flatten();
        let places = matches.indices_of(name).into_iter().flatten();
        let rule = move |pattern: &String| FilterRule {
            include,
            pattern: pattern.clone(),
        };
        places.zip(patterns.map(rule))
    };
    let mut rules: Vec<_> = of("exclude", false).chain(of("include", true)).collect();
    rules.sort_by_key(|(place, _)| *place);
    rules.into_iter().map(|(_, rule)| rule).collect()
}

/// Parses `-j`: a number of lanes from 1 to [`MAX_LANES`].
fn lanes(text: &str) -> Result<u16, String> {
    let lanes = text.parse().ok();
    lanes
        .filter(|lanes| (1..=MAX_LANES).contains(lanes))
        .ok_or_else(|| format!("give a number from 1 to {MAX_LANES}"))
}

/// The port of hdrdmacp, whose clients' command lines it may be in.
pub(crate) const DEFAULT_PORT: u16 = 10470;

/// The most clients at a time without `--max-clients`.
pub(crate) const DEFAULT_CLIENTS: u16 = 64;

/// The memory for all clients without `-m`: 32 MiB for each of [`DEFAULT_CLIENTS`].
pub(crate) const DEFAULT_MEMORY: u64 = 2 << 30;

/// The time that copies have to end after SIGTERM without `--grace`.
pub(crate) const DEFAULT_GRACE: Duration = Duration::from_secs(60);

/// The options of a server.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServeArgs {
    /// Serve the files of a directory to clients that have a key, until SIGTERM
    #[arg(short, long, requires_all = ["root", "key_file"], conflicts_with_all = ["operands", "agent", "new_key"])]
    #[arg(conflicts_with_all = OF_CLIENTS)]
    pub(crate) serve: bool,

    /// Serve this directory: clients see nothing else
    #[arg(long, value_name = "DIR", requires = "serve")]
    pub(crate) root: Option<PathBuf>,

    /// Listen on this port, the only one that clients need; 0 takes a free one [default: 10470]
    #[arg(long, value_name = "PORT", requires = "serve")]
    pub(crate) listen_port: Option<u16>,

    /// Let clients read files and not change them, whatever their lines in the key file say
    #[arg(long, requires = "serve", conflicts_with = "write_only")]
    pub(crate) read_only: bool,

    /// Let clients write files and not read them, whatever their lines say; tell them no names and no sizes
    #[arg(long, requires = "serve")]
    pub(crate) write_only: bool,

    /// Serve at most this many copies at a time, and a quarter of them for one of several keys; further ones wait for
    /// their turn [default: 64]
    #[arg(long, value_name = "N", requires = "serve", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) max_clients: Option<u16>,

    /// Use at most this much memory for all copies, with K, M or G for powers of 1024 [default: 2G]
    #[arg(short, long, value_name = "SIZE", requires = "serve", value_parser = options::size)]
    pub(crate) memory: Option<u64>,

    /// Write counts to FILE every 10 seconds, for the textfile collector of Prometheus' node exporter
    #[arg(long, value_name = "FILE", requires = "serve")]
    pub(crate) metrics: Option<PathBuf>,

    /// Give running copies this much time after SIGTERM, for example 30 or 10m [default: 60s]
    #[arg(long, value_name = "SECS", requires = "serve", value_parser = options::duration)]
    pub(crate) grace: Option<Duration>,

    /// Make a key for the client NAME, add its line to the file of --key-file, and print the line for the
    /// client; NAME may be followed by what the client may do: 'NAME append run042'
    #[arg(long, value_name = "NAME")]
    pub(crate) new_key: Option<String>,
}

/// The options of a copy, which a server takes from its clients.
const OF_CLIENTS: [&str; 24] = [
    "recursive",
    "archive",
    "no_target_directory",
    "parents",
    "dry_run",
    "no_clobber",
    "update",
    "skip_same",
    "delete",
    "exclude",
    "include",
    "resume",
    "checksum",
    "remove_source_files",
    "bwlimit",
    "fsync",
    "json",
    "ports",
    "here",
    "addresses",
    "rsh",
    "ssh_options",
    "remote_rdpipe",
    "deploy",
];

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::copy::supervised::LEAST_LANES;

    pub(crate) fn parse(words: &[&str]) -> Result<RdcpArgs, clap::Error> {
        let words = [&["rdcp"], words].concat();
        RdcpArgs::of_matches(&RdcpArgs::command().try_get_matches_from(words)?)
    }

    #[test]
    fn the_letters_of_cp_work() {
        let options = parse(&["-RTPnv", "a", "b"]).unwrap().options();
        assert!(options.recursive && options.no_target_directory && options.parents);
        assert!(options.dry_run && options.list && !options.archive);
        let options = parse(&["-a", "--", "-x", "b"]).unwrap().options();
        assert!(options.archive && options.recursive);
        assert_eq!(parse(&["-", "b"]).unwrap().operands, ["-", "b"]);
    }

    #[test]
    fn options_reach_the_order_to_the_agents() {
        assert_eq!(
            parse(&["a", "b"]).unwrap().options(),
            CopyOptions::default()
        );
        for (word, existing) in [
            ("--no-clobber", ExistingFiles::Keep),
            ("--update", ExistingFiles::ReplaceOlder),
            ("--skip-same", ExistingFiles::ReplaceDifferent),
        ] {
            assert_eq!(
                parse(&[word, "a", "b"]).unwrap().options().existing,
                existing
            );
        }
        let line = [
            "-r",
            "--delete",
            "--max-delete=7",
            "--resume",
            "--remove-source-files",
            "--fsync",
            "--bwlimit=2M",
            "a",
            "b",
        ];
        let options = parse(&line).unwrap().options();
        assert!(options.delete && options.resume && options.remove_source_files && options.fsync);
        assert_eq!(options.bytes_per_second, Some(2 << 20));
        assert_eq!(options.max_delete, Some(7));
        for (word, kind) in [
            ("--checksum", DigestKind::Xxh64),
            ("--checksum=sha256", DigestKind::Sha256),
        ] {
            assert_eq!(
                parse(&[word, "a", "b"]).unwrap().options().digest,
                Some(kind)
            );
        }
    }

    #[test]
    fn filters_keep_the_order_of_the_command_line() {
        let line = ["--exclude=a", "--include", "b", "x", "--exclude", "c", "y"];
        let rules = parse(&line).unwrap().options().filters;
        let shown: Vec<_> = rules.iter().map(|r| (r.include, &*r.pattern)).collect();
        assert_eq!(shown, [(false, "a"), (true, "b"), (false, "c")]);
    }

    #[test]
    fn lanes_have_a_default_and_a_limit() {
        let lanes = |words: &[&str], own| parse(words).unwrap().lanes(own);
        let default = [None, Some(1), Some(4), Some(64)].map(|own| lanes(&["a", "b"], own));
        assert_eq!(default, [MOST_LANES, LEAST_LANES, 4, MOST_LANES]);
        assert_eq!(lanes(&["-j4", "a", "b"], Some(1)), 4);
        let help = RdcpArgs::command().render_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            help.contains(&format!("has fewer, {LEAST_LANES} to {MOST_LANES}]")),
            "{help}"
        );
        for lanes in ["0", "17", "x", "-1"] {
            let error = parse(&["--lanes", lanes, "a", "b"]).unwrap_err();
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn contradictions_are_usage_errors() {
        for words in [
            &[][..],
            &["-v", "-q", "a", "b"],
            &["--no-clobber", "--update", "a", "b"],
            &["--update", "--skip-same", "a", "b"],
            &["--no-clobber", "--skip-same", "a", "b"],
            &["--json", "--checksum", "a", "b"],
            &["--checksum=md5", "a", "b"],
            &["--bwlimit", "0", "a", "b"],
            &["-r", "--max-delete=7", "a", "b"],
            &["-r", "--delete", "--max-delete=-1", "a", "b"],
            &["--bwlimit", "1KB", "a", "b"],
        ] {
            assert_eq!(parse(words).unwrap_err().exit_code(), 2, "{words:?}");
        }
    }

    #[test]
    fn an_agent_needs_no_operands() {
        assert_eq!(parse(&["--agent"]).unwrap().agent, Some(Agent::Guard));
        assert_eq!(
            parse(&["--agent=worker"]).unwrap().agent,
            Some(Agent::Worker)
        );
    }
}
