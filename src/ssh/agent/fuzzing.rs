//! The entry points of the fuzz targets of the agent: what it reads from the controller, and from `/proc`. They are
//! compiled only for fuzzing, and no other module uses them.

use std::time::Duration;

use tokio::time::timeout;

use super::{control, process::descendants};
use crate::{ssh::protocol::AgentHello, transport::fuzzing::run};

/// Reads `data` as everything that a controller writes, up to the first error: its end is one. Panics if reading waits
/// for more.
pub fn controller(data: &[u8]) {
    let hello = AgentHello {
        host: "h".to_owned(),
        machine: "m".to_owned(),
        addresses: Vec::new(),
    };
    let limit = Duration::from_secs(30);
    let reading = async {
        let opened = control::open(data, tokio::io::sink(), hello, limit).await;
        let Ok((_, mut inbox, outbox, writer)) = opened else {
            return;
        };
        while inbox.next().await.is_ok() {}
        drop((inbox, outbox));
        writer.finish().await;
    };
    let in_time = run(async { timeout(limit / 3, reading).await });
    in_time.expect("reading waits for more");
}

/// Parses `data` as lines of `/proc/PID/stat`, and searches all processes in them for descendants. Panics if more are
/// found than there are.
pub fn proc_stat(data: &[u8]) {
    descendants::fuzz(data);
}
