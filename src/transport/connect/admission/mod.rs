//! Which connections a listener keeps before they are streams. Each class has a bound of its own, so that no class can
//! take the places of another.
//!
//! | class | has shown | at most | leaves it |
//! |---|---|---|---|
//! | new | nothing yet: its first bytes have not been looked at | [`MAX_NEW`] | at once: a look never waits |
//! | [stranger](strangers) | too little, or a wrong key | [`Limits::strangers`] | when it has shown more, or pushed out by another stranger |
//! | [proving] | a first message that verifies | [`Limits::proving`] | with a message under the session keys |
//! | negotiating | the key | [`MAX_WAITING`], with the next class | with a stream or a failure |
//! | waiting | the stream is made | | when the program accepts it |
//! | [data connection](data) | the label of a negotiating stream | four for each stream | with its proof |
//!
//! Only strangers are pushed out. A peer with the key is a stranger only for as long as its first bytes arrive later than
//! the connection itself, and not at all if they arrive together, as they do across a network. `connect` dials again if
//! it was pushed out all the same.
//!
//! No class waits for a connection of a class before it: connections are always accepted, so the data connection of a
//! negotiating stream arrives also while thousands wait.
//!
//! - *A peer is hardly ever a stranger.* A dialer makes its first message before it connects, so the message and the
//!   end of TCP's handshake arrive together, however far away the peer is. The acceptor asks the socket for it at once
//!   (`Opening::read_arrived`), before the runtime reports that it is readable.
//! - *Who was pushed out tries again*: `connect` for `retry_for`, with a new control connection, or only a new data
//!   connection if the control connection stands.
//! - *What it costs.* To verify a first message is hashing. The answer costs two multiplications on the curve, and only
//!   a peer with the key or a recording gets it; a recording takes one place, because each place needs another first
//!   message. Argon2id runs once for each key, not for each connection.
//! - *A stream that waits for `accept` is running*: its control task sends and receives keepalives, so that its dialer,
//!   whose `connect` has returned, does not take it for dead. Its slots are granted when it is accepted, so no data
//!   arrives before. Over RDMA its pools are registered already.
//! - If the system has no descriptor left, half of the strangers are closed.

pub(super) mod data;
pub(super) mod opening;
pub(super) mod proving;
pub(super) mod strangers;

use rustix::process::{Resource, getrlimit};

/// The most connections that were accepted and whose first bytes have not been looked at. A look costs some 20 µs, so
/// this many keep every processor busy. The next ones wait in the kernel's queue: what has arrived of them in the
/// meantime is there at the first look, and spares them from being strangers.
pub(super) const MAX_NEW: usize = 32;

/// The most streams that are being negotiated, or wait for the program to accept them. Over TCP a negotiation takes less
/// than three round trips, so this many at once are 200 streams a second with peers 100 ms away. A dialer beyond it
/// waits for its answer, until its own time limit.
pub(super) const MAX_WAITING: usize = 64;

/// The most connections of the classes that peers fill without showing the whole key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// The most strangers. With 256, strangers that arrive at 1,260 a second stay for 0.2 s each: twice as long as a
    /// first message needs to follow its connection across a bad network.
    pub(super) strangers: usize,
    /// The most connections that are proving the key. Each costs some ten KiB, for one round trip. Only a peer with the
    /// key gets here, or one that has recorded as many different handshakes as it fills places.
    pub(super) proving: usize,
}

impl Limits {
    const MOST: Self = Self {
        strangers: 256,
        proving: 1024,
    };

    /// Returns the limits for this process: less than half of the descriptors that it may open. So connections without
    /// the key never take the last descriptor from the program.
    pub(super) fn of_process() -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self::within(usize::try_from(descriptors).unwrap_or(usize::MAX))
    }

    fn within(descriptors: usize) -> Self {
        Self {
            strangers: (descriptors / 8).clamp(1, Self::MOST.strangers),
            proving: (descriptors / 4).clamp(1, Self::MOST.proving),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_without_the_key_leave_descriptors_to_the_program() {
        for descriptors in [64, 256, 1024, 4096, 1 << 20] {
            let Limits { strangers, proving } = Limits::within(descriptors);
            assert!(strangers + proving < descriptors / 2, "{descriptors}");
        }
        assert_eq!(Limits::within(usize::MAX), Limits::MOST);
    }
}
