//! Both ends of a measurement in this process: tasks that no device can measure, and measurements on a real device.

use std::time::{Duration, Instant};

use tokio::io::duplex;

use super::{measure_verbs, prove_ports};
use crate::{
    RdmaConfig,
    perf::messages::{
        BandwidthResult, LatencyResult, PortPairProof, TaskEnd, TaskResult, Verb, VerbsPort,
        VerbsTask, WaitMode,
    },
    transport::raw::{DeviceChoice, inventory},
};

/// The longest time of a test: the processor may be emulated and shared.
const HANGS: Duration = Duration::from_secs(300);

/// How long a wait may be without a result.
const SILENCE: Duration = Duration::from_secs(10);

/// Measures at both ends. Returns the results of the end that dials and of the end that listens.
async fn measure(task: &VerbsTask) -> [Result<TaskResult, String>; 2] {
    let (mut one, mut two) = duplex(1 << 16);
    let dialer = async {
        let result = measure_verbs(TaskEnd::Dialer, task, SILENCE, &mut one).await;
        drop(one);
        result
    };
    let listener = async {
        let result = measure_verbs(TaskEnd::Listener, task, SILENCE, &mut two).await;
        drop(two);
        result
    };
    let both = async { tokio::join!(dialer, listener) };
    let (dialer, listener) = tokio::time::timeout(HANGS, both).await.expect("no hang");
    [dialer, listener]
}

/// A task on a device that does not exist.
fn impossible() -> VerbsTask {
    let port = VerbsPort {
        device: "no_such".to_owned(),
        port: 1,
        gid_index: 0,
    };
    VerbsTask {
        verb: Verb::Write,
        wait: WaitMode::Busy,
        is_pingpong: false,
        size: 4096,
        depth: 16,
        inline_bytes: 64,
        signal_every: 4,
        millis: 200,
        dialer: port.clone(),
        listener: port,
        mtu: 1024,
    }
}

#[tokio::test]
async fn a_task_that_no_device_can_measure_is_refused() {
    type Change = fn(&mut VerbsTask);
    let change: [(&str, Change); 8] = [
        ("at least 1 byte", |task| task.size = 0),
        ("at most 1073741824 bytes", |task| task.size = u32::MAX),
        ("the depth is 0", |task| task.depth = 0),
        ("0 is not possible", |task| task.signal_every = 0),
        ("17 is not possible", |task| task.signal_every = 17),
        ("adaptive", |task| task.wait = WaitMode::Adaptive),
        ("has to poll", |task| {
            (task.is_pingpong, task.wait) = (true, WaitMode::Event);
        }),
        ("no MTU of 1500 bytes", |task| task.mtu = 1500),
    ];
    for (text, change) in change {
        let mut task = impossible();
        change(&mut task);
        for result in measure(&task).await {
            let error = result.unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }
}

#[tokio::test]
async fn a_device_that_does_not_exist_is_named() {
    for result in measure(&impossible()).await {
        let error = result.unwrap_err();
        assert!(error.starts_with("cannot open no_such"), "{error}");
    }
}

#[test]
fn measurements_can_be_moved_to_another_thread() {
    fn is_send<T: Send>(_: &T) {}
    let (mut one, _two) = duplex(1);
    let task = impossible();
    is_send(&measure_verbs(TaskEnd::Dialer, &task, SILENCE, &mut one));
    let config = crate::RdmaConfig::default();
    is_send(&super::prove_ports(TaskEnd::Dialer, &config, &mut one));
}

/// Measurements on a real device.
mod rdma {
    use super::*;

    /// Returns a task on the first usable port of this machine, or `None`, and prints why, if there is none.
    fn task(verb: Verb, wait: WaitMode, is_pingpong: bool) -> Option<VerbsTask> {
        let candidate = match DeviceChoice::default().candidates(&inventory()) {
            Ok(mut candidates) => candidates.remove(0),
            Err(reason) => {
                let required = std::env::var_os("RDPIPE_REQUIRE_RDMA").is_some();
                assert!(!required, "{reason}");
                eprintln!("SKIPPED: {reason}");
                return None;
            }
        };
        let port = VerbsPort {
            device: candidate.device.clone(),
            port: candidate.port,
            gid_index: candidate.gid_index,
        };
        Some(VerbsTask {
            verb,
            wait,
            is_pingpong,
            dialer: port.clone(),
            listener: port,
            ..impossible()
        })
    }

    fn bandwidth(result: &Result<TaskResult, String>) -> &BandwidthResult {
        match result {
            Ok(TaskResult::Bandwidth(result)) => result,
            other => panic!("{other:?}"),
        }
    }

    fn latency(result: &Result<TaskResult, String>) -> &LatencyResult {
        match result {
            Ok(TaskResult::Latency(result)) => result,
            other => panic!("{other:?}"),
        }
    }

    fn with(task: &VerbsTask, size: u32, depth: u32, signal_every: u32) -> VerbsTask {
        VerbsTask {
            size,
            depth,
            signal_every,
            ..task.clone()
        }
    }

    /// Sizes within a packet, with and without inline bytes, and beyond it; each depth with the extremes of its
    /// completions.
    const OPERATIONS: [(u32, u32, u32); 6] = [
        (1, 1, 1),
        (64, 16, 16),
        (65, 16, 5),
        (1024, 128, 1),
        (4097, 3, 2),
        (100_000, 4, 4),
    ];

    async fn measures_bandwidth(verb: Verb) {
        for wait in [WaitMode::Busy, WaitMode::Event] {
            let Some(task) = task(verb, wait, false) else {
                return;
            };
            for (size, depth, signal_every) in OPERATIONS {
                let task = with(&task, size, depth, signal_every);
                let results = measure(&task).await;
                let dialer = bandwidth(&results[0]);
                let bytes = dialer.operations * u64::from(size);
                let expected = if verb == Verb::Read {
                    (0, bytes)
                } else {
                    (bytes, 0)
                };
                assert_eq!((dialer.bytes_sent, dialer.bytes_received), expected);
                assert!(dialer.operations >= u64::from(depth), "{dialer:?}");
                assert!(dialer.nanos >= 200_000_000, "{dialer:?}");
                assert!(dialer.cpu_nanos > 0, "{dialer:?}");
                if verb == Verb::Send {
                    let listener = bandwidth(&results[1]);
                    assert_eq!(listener.operations, dialer.operations);
                    assert_eq!((listener.bytes_sent, listener.bytes_received), (0, bytes));
                } else {
                    assert_eq!(results[1], Ok(TaskResult::Served));
                }
            }
        }
    }

    #[tokio::test]
    async fn writes_are_counted() {
        measures_bandwidth(Verb::Write).await;
    }

    #[tokio::test]
    async fn reads_are_counted() {
        measures_bandwidth(Verb::Read).await;
    }

    #[tokio::test]
    async fn sends_are_counted_at_both_ends() {
        measures_bandwidth(Verb::Send).await;
    }

    async fn measures_latency(verb: Verb, wait: WaitMode) {
        let Some(task) = task(verb, wait, true) else {
            return;
        };
        for (size, depth, signal_every) in OPERATIONS {
            let task = with(&task, size, depth, signal_every);
            let results = measure(&task).await;
            let dialer = latency(&results[0]);
            let (count, max) = (dialer.histogram.count(), dialer.histogram.max());
            // The last message begins after the time.
            assert!(count > 1, "{dialer:?}");
            assert!(dialer.nanos >= 200_000_000, "{dialer:?}");
            assert!(max <= dialer.nanos + dialer.nanos / 100, "{dialer:?}");
            #[allow(clippy::cast_precision_loss, reason = "a percent of it counts")]
            let covered = dialer.histogram.mean() * count as f64 / dialer.nanos as f64;
            assert!((0.9..1.1).contains(&covered), "{covered}: {dialer:?}");
            assert_eq!(results[1], Ok(TaskResult::Served));
        }
    }

    #[tokio::test]
    async fn a_pingpong_of_writes_polls_memory() {
        measures_latency(Verb::Write, WaitMode::Busy).await;
    }

    #[tokio::test]
    async fn a_pingpong_of_sends_polls() {
        measures_latency(Verb::Send, WaitMode::Busy).await;
    }

    #[tokio::test]
    async fn a_pingpong_of_sends_sleeps() {
        measures_latency(Verb::Send, WaitMode::Event).await;
    }

    #[tokio::test]
    async fn reads_are_timed_with_polling_and_with_events() {
        measures_latency(Verb::Read, WaitMode::Busy).await;
        measures_latency(Verb::Read, WaitMode::Event).await;
    }

    /// An end whose peer is gone ends soon, whatever it waits for.
    #[tokio::test]
    async fn an_end_that_vanishes_ends_the_other_one() {
        let kinds = [
            (Verb::Write, WaitMode::Busy, false),
            (Verb::Send, WaitMode::Event, false),
            (Verb::Write, WaitMode::Busy, true),
            (Verb::Send, WaitMode::Busy, true),
            (Verb::Send, WaitMode::Event, true),
            (Verb::Read, WaitMode::Event, true),
        ];
        for (verb, wait, is_pingpong) in kinds {
            for gone in [TaskEnd::Dialer, TaskEnd::Listener] {
                let Some(mut task) = task(verb, wait, is_pingpong) else {
                    return;
                };
                task.millis = 3_600_000;
                let (one, two) = duplex(1 << 16);
                let (mut stays_control, mut goes_control) = (one, two);
                let stays = match gone {
                    TaskEnd::Dialer => TaskEnd::Listener,
                    TaskEnd::Listener => TaskEnd::Dialer,
                };
                let goes = async {
                    let measuring = measure_verbs(gone, &task, SILENCE, &mut goes_control);
                    let _ = tokio::time::timeout(Duration::from_secs(2), measuring).await;
                    drop(goes_control);
                    Instant::now()
                };
                let left = measure_verbs(stays, &task, SILENCE, &mut stays_control);
                let (left, gone_at) = tokio::join!(left, goes);
                let error = left.unwrap_err();
                assert!(gone_at.elapsed() < HANGS, "{verb:?} {wait:?}");
                let is_known = [
                    "closed the connection",
                    "has failed",
                    "has arrived",
                    "is lost",
                ];
                assert!(
                    is_known.iter().any(|text| error.contains(text)),
                    "{verb:?} {wait:?} {gone:?}: {error}"
                );
            }
        }
    }

    #[tokio::test]
    async fn more_inline_bytes_than_the_device_takes_are_refused_with_its_limit() {
        let Some(mut task) = task(Verb::Send, WaitMode::Busy, true) else {
            return;
        };
        (task.size, task.inline_bytes) = (64, 1 << 20);
        let [dialer, _] = measure(&task).await;
        let error = dialer.unwrap_err();
        let (_, rest) = error.split_once("carries at most ").expect(&error);
        let most: u32 = rest.split(' ').next().unwrap().parse().unwrap();
        assert!(error.contains(&task.dialer.device), "{error}");
        task.inline_bytes = most;
        latency(&measure(&task).await[0]);
    }

    #[tokio::test]
    async fn both_ends_know_that_one_has_no_such_address() {
        let Some(mut task) = task(Verb::Send, WaitMode::Busy, true) else {
            return;
        };
        task.listener.port = 77;
        let [dialer, listener] = measure(&task).await;
        let (dialer, listener) = (dialer.unwrap_err(), listener.unwrap_err());
        assert!(dialer.starts_with("the other end: cannot "), "{dialer}");
        assert!(listener.starts_with("cannot "), "{listener}");
        assert!(listener.contains("port 77"), "{listener}");
    }

    async fn proofs(dialer: &RdmaConfig, listener: &RdmaConfig) -> [Result<TaskResult, String>; 2] {
        let (mut one, mut two) = duplex(1 << 16);
        let dialer = prove_ports(TaskEnd::Dialer, dialer, &mut one);
        let listener = prove_ports(TaskEnd::Listener, listener, &mut two);
        let both = async { tokio::join!(dialer, listener) };
        let (dialer, listener) = tokio::time::timeout(HANGS, both).await.expect("no hang");
        [dialer, listener]
    }

    fn ports(result: &Result<TaskResult, String>) -> &[PortPairProof] {
        match result {
            Ok(TaskResult::Ports(proofs)) => proofs,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn messages_cross_a_port_and_itself() {
        let Some(task) = task(Verb::Send, WaitMode::Busy, true) else {
            return;
        };
        let config = RdmaConfig {
            device: Some(task.dialer.device.clone()),
            port: Some(task.dialer.port),
            ..RdmaConfig::default()
        };
        let results = proofs(&config, &config).await;
        let dialer = ports(&results[0]);
        assert_eq!(dialer.len(), 1, "{dialer:?}");
        assert_eq!(dialer, ports(&results[1]));
        let PortPairProof {
            short,
            long,
            dialer,
            dialer_text,
            shares_network,
            limits,
            ..
        } = &dialer[0];
        let limits = limits.expect("the device tells what it can do");
        assert!(limits.inline_bytes >= 64 && limits.reads > 0, "{limits:?}");
        assert!(short.is_ok() && long.is_ok(), "{short:?} {long:?}");
        assert!(*shares_network);
        assert!(dialer_text.starts_with(&dialer.device), "{dialer_text}");
    }

    /// All pairs are tried, whatever becomes of each.
    #[tokio::test]
    async fn every_pair_of_ports_has_a_result() {
        if task(Verb::Send, WaitMode::Busy, true).is_none() {
            return;
        }
        let config = RdmaConfig::default();
        let results = proofs(&config, &config).await;
        let (dialer, listener) = (ports(&results[0]), ports(&results[1]));
        eprintln!("{dialer:#?}");
        assert!(dialer[0].short.is_ok(), "{:?}", dialer[0]);
        let ends = |proofs: &[PortPairProof]| -> Vec<_> {
            let end = |proof: &PortPairProof| {
                let works = (proof.short.is_ok(), proof.long.is_ok());
                (proof.dialer.clone(), proof.listener.clone(), works)
            };
            proofs.iter().map(end).collect()
        };
        assert_eq!(ends(dialer), ends(listener));
    }

    #[tokio::test]
    async fn an_end_without_ports_is_an_error_at_both() {
        let Some(_) = task(Verb::Send, WaitMode::Busy, true) else {
            return;
        };
        let none = RdmaConfig {
            device: Some("no_such".to_owned()),
            ..RdmaConfig::default()
        };
        let [dialer, listener] = proofs(&none, &RdmaConfig::default()).await;
        let (dialer, listener) = (dialer.unwrap_err(), listener.unwrap_err());
        assert!(dialer.contains("no RDMA device no_such"), "{dialer}");
        assert!(listener.starts_with("the other end: "), "{listener}");
    }
}
