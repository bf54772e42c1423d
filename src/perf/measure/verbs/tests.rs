//! Both ends of a measurement in this process.

mod rdma;

use std::time::Duration;

use tokio::io::duplex;

use super::measure_verbs;
use crate::perf::messages::{TaskEnd, TaskResult, Verb, VerbsPort, VerbsTask, WaitMode};

/// The longest time of a test: the processor may be emulated and shared.
const HANGS: Duration = Duration::from_secs(300);

/// Measures at both ends. Returns the results of the end that dials and of the end that listens.
async fn measure(task: &VerbsTask) -> [Result<TaskResult, String>; 2] {
    let (mut one, mut two) = duplex(1 << 16);
    let dialer = async {
        let result = measure_verbs(TaskEnd::Dialer, task, &mut one).await;
        drop(one);
        result
    };
    let listener = async {
        let result = measure_verbs(TaskEnd::Listener, task, &mut two).await;
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
    is_send(&measure_verbs(TaskEnd::Dialer, &task, &mut one));
    let config = crate::RdmaConfig::default();
    is_send(&super::prove_ports(TaskEnd::Dialer, &config, &mut one));
}
