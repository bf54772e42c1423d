//! The entry point of the fuzz target for the messages of a measurement, and for reports.

use std::fmt::Debug;

use serde::{Serialize, de::DeserializeOwned};

use super::{
    check,
    messages::{FromPerf, HostFacts, PerfOrder, ToPerf},
    report::{self, PerfDocument},
};

/// Decodes `data` as a message between rdperf and its agents, and as a report. Panics if a message that was decoded
/// cannot be encoded and decoded again, or if facts from a host cannot be judged.
pub fn perf_messages(data: &[u8]) {
    message::<PerfOrder>(data);
    message::<ToPerf>(data);
    if let Ok(message) = postcard::from_bytes::<FromPerf>(data) {
        // Not all numbers are equal to themselves, so the encodings are compared.
        let again = postcard::to_stdvec(&message).expect("what was decoded can be encoded");
        let decoded = postcard::from_bytes::<FromPerf>(&again).expect("it can be decoded");
        let third = postcard::to_stdvec(&decoded).expect("what was decoded can be encoded");
        assert_eq!(again, third);
        if let FromPerf::Host(facts) = message {
            judge(&facts);
        }
    }
    if let Ok(document) = serde_json::from_slice::<PerfDocument>(data) {
        let _ = report::changes(&document, &document, 0.05);
        let _ = (serde_json::to_string(&document), document.csv());
    }
}

fn judge(facts: &HostFacts) {
    for insists in [false, true] {
        let _ = check::check_host("fs1", facts, insists);
        let end = check::PairEnd { name: "fs1", facts };
        let pair = check::PairFacts {
            dialer: end,
            listener: end,
            reached: None,
            reached_back: None,
            path: None,
            path_back: None,
            proofs: None,
            ports: None,
            clock_difference_ms: None,
            may_go_through_ssh: true,
        };
        let _ = check::check_pair(&pair, insists);
        let _ = check::automatic_choice(&pair);
    }
}

fn message<T: Serialize + DeserializeOwned + PartialEq + Debug>(data: &[u8]) {
    if let Ok(message) = postcard::from_bytes::<T>(data) {
        let again = postcard::to_stdvec(&message).expect("what was decoded can be encoded");
        assert_eq!(postcard::from_bytes(&again), Ok(message));
    }
}
