//! Tests of the command lines of rdrecv and rdsend, and of the names of all options.

use std::{collections::BTreeMap, path::Path, time::Duration};

use clap::{Arg, Command, CommandFactory, Parser, error::ErrorKind};

use super::*;
use crate::{
    Direction, RdmaConfig, StreamConfig, TransportPolicy,
    config::{ONE_PROCESSOR_POOL, POOL},
};

fn rdrecv(line: &str) -> Result<RdrecvArgs, clap::Error> {
    RdrecvArgs::try_parse_from(format!("rdrecv {line}").split_whitespace())
}

fn rdsend(line: &str) -> Result<RdsendArgs, clap::Error> {
    RdsendArgs::try_parse_from(format!("rdsend {line}").split_whitespace())
}

/// The only options whose value differs: rdperf measures with several numbers of streams, and a server of tunnels limits
/// the number.
const DEPARTURES: [(&str, &str); 2] = [("rdperf", "streams"), ("serve", "streams")];

/// The words at the beginning of a help that are the same in every program. A program may go on in its own way.
const COMMON_WORDS: usize = 3;

/// What an option is in one program: its letter, the names of its value, and the first words of its help.
fn meaning(option: &Arg) -> (Option<char>, Option<String>, Vec<String>) {
    let takes_one = option.get_action().takes_values();
    let names = option.get_value_names().unwrap_or_default();
    let help = option.get_help().map(ToString::to_string);
    let words = help.iter().flat_map(|help| help.split_whitespace());
    (
        option.get_short(),
        takes_one.then(|| names.iter().map(ToString::to_string).collect()),
        words
            .take(COMMON_WORDS)
            .map(|word| word.trim_end_matches([':', ';', ',']).to_owned())
            .collect(),
    )
}

#[test]
fn an_option_has_the_same_name_and_meaning_in_every_program() {
    let mut programs = crate::cli::commands();
    // The letters of rdsh are those of ssh, so its options have none.
    programs.retain(|program| program.get_name() != "rdsh");
    let forms = programs.iter().flat_map(Command::get_subcommands);
    programs.extend(forms.cloned().collect::<Vec<_>>());
    let (mut options, mut letters) = (BTreeMap::new(), BTreeMap::new());
    for program in &programs {
        let arguments = program.get_arguments();
        for option in arguments.filter(|arg| !arg.is_positional() && !arg.is_hide_set()) {
            let long = option.get_long().expect("every option has a long name");
            if DEPARTURES.contains(&(program.get_name(), long)) {
                continue;
            }
            let first = options.entry(long).or_insert_with(|| meaning(option));
            assert_eq!(*first, meaning(option), "{} --{long}", program.get_name());
            if let Some(letter) = option.get_short() {
                assert_eq!(*letters.entry(letter).or_insert(long), long, "-{letter}");
            }
        }
    }
    assert!(options.len() > 50, "{options:?}");
}

#[test]
fn shells_complete_the_names_of_hosts() {
    for program in crate::cli::commands() {
        let wanted = ["rdsend", "rdperf", "rdforward"].contains(&program.get_name());
        let mut hints = program.get_positionals().map(clap::Arg::get_value_hint);
        let has_hint = hints.any(|hint| hint == clap::ValueHint::Hostname);
        assert!(has_hint || !wanted, "{}", program.get_name());
    }
}

#[test]
fn clap_accepts_the_definitions() {
    for command in crate::cli::commands() {
        command.debug_assert();
    }
}

#[test]
fn the_command_lines_of_the_original_manual_work() {
    let args = rdrecv("12345 secret_key").unwrap();
    assert_eq!((args.port, args.output()), (12345, None));
    let args = rdsend("hostB 12345 secret_key").unwrap();
    assert_eq!(
        (args.host.as_str(), args.port, args.input()),
        ("hostB", 12345, None)
    );
}

#[test]
fn a_file_is_named_with_or_without_a_key() {
    let copy = Some(Path::new("copy"));
    assert_eq!(rdrecv("1 key copy").unwrap().output(), copy);
    assert_eq!(rdrecv("1 -o copy").unwrap().output(), copy);
    assert_eq!(rdrecv("1 key --output copy").unwrap().output(), copy);
    assert_eq!(rdrecv("1 -o -").unwrap().output(), None);
    assert_eq!(rdsend("h 1 key copy").unwrap().input(), copy);
    assert_eq!(rdsend("h 1 -i copy").unwrap().input(), copy);
    assert_eq!(rdsend("-i copy h 1 --key-file k").unwrap().input(), copy);
}

#[test]
fn contradictions_are_usage_errors() {
    for line in ["1 key copy -o other", "1 -v -q"] {
        let error = rdrecv(line).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ArgumentConflict, "{line}");
        assert_eq!(error.exit_code(), 2);
    }
    assert_eq!(
        rdsend("h 1 key f -i g").unwrap_err().kind(),
        ErrorKind::ArgumentConflict
    );
    for line in [
        "",
        "port",
        "65536",
        "1 key file more",
        "1 --chunk 1K",
        "1 --depth 1",
    ] {
        assert_eq!(rdrecv(line).unwrap_err().exit_code(), 2, "{line}");
    }
    for line in [
        "h",
        "h 0 key",
        "h 1 key --bind ::",
        "h:1 2 key",
        "h 1 --transport ib",
    ] {
        assert_eq!(rdsend(line).unwrap_err().exit_code(), 2, "{line}");
    }
    assert_eq!(rdrecv("0").unwrap().port, 0);
}

#[test]
fn options_reach_the_configuration_of_the_stream() {
    let line = "h 1 key --chunk 1MiB --depth 8 --timeout 2m --connect-timeout 0.5 --transport tcp";
    let config = rdsend(line).unwrap().stream_config();
    assert_eq!((config.chunk_bytes, config.depth), (1 << 20, 8));
    let rdma = config.rdma;
    assert_eq!((rdma.chunk_bytes, rdma.depth), (1 << 20, 8));
    assert_eq!(config.timeout, Duration::from_secs(120));
    assert_eq!(config.retry_for, Duration::from_millis(500));
    let whole = config.retry_for + config.handshake_timeout;
    assert_eq!(config.connect_timeout, whole);
    assert_eq!(config.transport, TransportPolicy::Tcp);
    assert_eq!(config.direction, Direction::Send);
}

#[test]
fn absent_options_leave_the_defaults_that_the_help_names() {
    let default = StreamConfig::default();
    let config = rdrecv("1").unwrap().stream_config();
    assert_eq!(
        (config.chunk_bytes, config.depth),
        (default.chunk_bytes, default.depth)
    );
    assert_eq!(
        (config.rdma.chunk_bytes, config.rdma.depth),
        (default.rdma.chunk_bytes, default.rdma.depth)
    );
    assert_eq!(config.transport, default.transport);
    assert_eq!(config.direction, Direction::Receive);
    assert_eq!(
        rdrecv("1 --bind [::1]").unwrap().bind,
        Some("::1".parse().unwrap())
    );

    let help = RdsendArgs::command().render_help().to_string();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let ((chunk, depth), (lone_chunk, lone_depth)) = (POOL, ONE_PROCESSOR_POOL);
    assert!(help.contains(&format!(
        "[default: {}K over TCP, {}M over RDMA, {}M there with one processor]",
        default.chunk_bytes >> 10,
        chunk >> 20,
        lone_chunk >> 20
    )));
    assert!(help.contains(&format!(
        "[default: {} over TCP, {depth} over RDMA, {lone_depth} there with one processor]",
        default.depth
    )));
    assert!(help.contains(&format!("[default: {}s]", default.timeout.as_secs())));
    assert!(help.contains(&format!("[default: {}s]", default.retry_for.as_secs())));
}

#[test]
fn debug_shows_no_key() {
    let args = rdrecv("1 keep_this_secret").unwrap();
    assert!(!format!("{args:?}").contains("keep_this_secret"));
}

/// Parses the command line of rdsend with these options, and returns its settings for RDMA.
fn rdma(options: &str) -> Result<RdmaConfig, clap::Error> {
    rdsend(&format!("h 1 key {options}")).map(|args| args.stream_config().rdma)
}

#[test]
fn every_rdma_option_reaches_the_configuration() {
    let options = "--device mlx5_1 --ib-port 2 --gid-index 3 --traffic-class 104 --service-level 15 --pkey-index 300 --busy-poll 20";
    let line = format!("rdrecv 1 key {options}");
    let args = RdrecvArgs::try_parse_from(line.split_whitespace()).unwrap();
    for rdma in [rdma(options).unwrap(), args.stream_config().rdma] {
        assert_eq!(rdma.device.as_deref(), Some("mlx5_1"));
        assert_eq!((rdma.port, rdma.gid_index), (Some(2), Some(3)));
        assert_eq!((rdma.traffic_class, rdma.service_level), (104, 15));
        assert_eq!(rdma.pkey_index, 300);
        assert_eq!(rdma.busy_poll, Some(Duration::from_micros(20)));
    }
}

#[test]
fn without_options_every_port_is_a_candidate() {
    let rdma = rdma("").unwrap();
    assert_eq!((rdma.device, rdma.port, rdma.gid_index), (None, None, None));
    assert_eq!((rdma.traffic_class, rdma.service_level), (0, 0));
    assert_eq!(rdma.pkey_index, 0);
    assert_eq!(rdma.busy_poll, None);
}

#[test]
fn a_value_that_no_device_has_is_a_usage_error() {
    for line in [
        "--device=",
        "--ib-port 0",
        "--ib-port 256",
        "--gid-index 256",
        "--gid-index -1",
        "--traffic-class 256",
        "--service-level 16",
        "--pkey-index 65536",
        "--busy-poll 10001",
    ] {
        assert_eq!(rdma(line).unwrap_err().exit_code(), 2, "{line}");
    }
}

#[test]
fn the_help_lists_the_rdma_options_under_their_own_heading() {
    for mut command in [RdrecvArgs::command(), RdsendArgs::command()] {
        let help = command.render_help().to_string();
        let (general, rdma) = help.split_once("\nRDMA (").expect(&help);
        assert!(rdma.contains("--device <NAME>") && rdma.contains("--pkey-index <N>"));
        for other in ["--verbose", "--json", "--version", "--timeout"] {
            assert!(general.contains(other) && !rdma.contains(other), "{other}");
        }
    }
}
