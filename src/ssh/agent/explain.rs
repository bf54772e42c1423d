//! Words for what went wrong, as the user knows the parts: by stage, not by address.

use crate::{Error, advice::Advised};

/// Why an edge to `peer` does not stand.
pub(super) fn unconnected(error: Error, peer: &str) -> String {
    format!("cannot connect to {peer}: {}", named(error, peer))
}

/// The error about the peer called `name` instead of an address, with what the user can do about it.
pub(crate) fn named(error: Error, name: &str) -> Advised {
    let mut error = error;
    match &mut error {
        Error::Handshake { peer, .. }
        | Error::Send { peer, .. }
        | Error::Receive { peer, .. }
        | Error::Unconfirmed { peer, .. }
        | Error::PeerAborted { peer, .. }
        | Error::Stopped { peer, .. } => name.clone_into(peer),
        _ => {}
    }
    Advised(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_stages() {
        let error = Error::PeerAborted {
            peer: "10.0.0.1".into(),
            offset: 7,
            reason: "stage 1 (a): killed".into(),
        };
        let text = named(error, "stage 2 (b)").to_string();
        assert_eq!(text, "stage 2 (b) gave up at byte 7: stage 1 (a): killed");
    }
}
