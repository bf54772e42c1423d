//! Programs that measure.

use std::time::Duration;

use serde_json::Value;

use super::{
    rig::{Rig, lacks},
    ways::Way,
};
use crate::support::programs::servers;

/// Runs iperf3 with eight connections at once: to the server, from it, and both ways.
pub(crate) fn iperf(rig: &Rig, way: Way) {
    if lacks(&["iperf3"]) {
        return;
    }
    let server = rig.serve(&servers::iperf(way.address()));
    let tunnel = rig.open(way, 5201);
    let seconds = rig.sizes.seconds.div_ceil(2);
    for (number, direction) in ["", "-R", "--bidir"].into_iter().enumerate() {
        // A client ends before its server has finished with it.
        server.said(&servers::ready_for_test(number + 1));
        let script = format!("iperf3 -c $HOST -p $PORT -P 8 -t {seconds} -J {direction}\n");
        let said = tunnel.client(Duration::from_secs(seconds), &script);
        let report = serde_json::from_str(&said);
        check(
            way,
            &report.unwrap_or_else(|error| panic!("{error}:\n{said}")),
        );
    }
    tunnel.close();
    server.stop();
}

/// Checks that all connections of a test have carried bytes.
fn check(way: Way, report: &Value) {
    assert_eq!(report.get("error"), None, "{report:#}");
    let end = &report["end"];
    let mut sums = vec!["sum_sent", "sum_received"];
    if end.get("sum_sent_bidir_reverse").is_some() {
        sums.extend(["sum_sent_bidir_reverse", "sum_received_bidir_reverse"]);
    }
    for sum in sums {
        let bytes = end[sum]["bytes"].as_f64().unwrap_or_default();
        assert!(bytes > 0.0, "{sum}: {end:#}");
        let rate = end[sum]["bits_per_second"].as_f64().unwrap_or_default();
        println!("{way:?}: {sum} {:.0} MB/s", rate / 8e6);
    }
    for stream in end["streams"].as_array().expect("streams") {
        let bytes = stream["sender"]["bytes"].as_u64().unwrap_or_default();
        assert!(bytes > 0, "a connection carried nothing: {stream:#}");
    }
}
