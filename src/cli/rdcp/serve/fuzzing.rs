//! The fuzz target of what a server does for a client before its edges are connected.

use std::{path::Path, sync::Arc, time::Duration};

use tokio::time::{sleep, timeout};

use super::served_copies::{OrderingClient, ServedCopies};
use crate::{
    Key, Stream, StreamConfig,
    cli::server::rights::{Access, ClientRights},
    copy::{destination::DestinationClaims, path::BaseDirectory},
    hostile::session_bytes,
    ssh::{
        agent::{
            edges::{EdgeAcceptance, SharedListener},
            served::{ClientSession, SessionKill},
        },
        sealed::SealedSession,
        session::session_config,
    },
    transport::fuzzing::run,
};

/// A directory that always exists, and in which nothing can be made or removed.
const ROOT: &str = "/proc/self/fdinfo";

/// The time in which a session ends whose client has gone: as long as a slow machine takes.
const LIMIT: Duration = Duration::from_secs(20);

/// Serves the session of a hostile client whose decisions are `data`: its greeting, any order, and any messages, all of
/// which are valid, and then its end. Panics if the session does not end then, or if a thread of it or one of its keys
/// is left.
pub(crate) fn served_session(data: &[u8]) {
    let bytes = session_bytes(data).expect("valid messages can be encoded");
    let base = BaseDirectory::root(Path::new(ROOT)).expect("a directory");
    let copies = ServedCopies {
        base,
        claims: DestinationClaims::default(),
        access: Access::ALL,
        most_lanes: 2,
        is_privileged: false,
        list_bytes: 4 << 20,
    };
    let session = SealedSession {
        input: Box::new(std::io::Cursor::new(bytes)),
        output: Box::new(tokio::io::sink()),
    };
    let served = run(async {
        let key = Key::generate().expect("the system has random bytes");
        let listener = Stream::builder(key.key()).bind("127.0.0.1:0").await;
        let shared = Arc::new(SharedListener {
            listener: Arc::new(listener.expect("a free port")),
            owner: key.key().id(),
            one_way: StreamConfig::default(),
            two_way: session_config(LIMIT),
            connected: Box::new(|_| ()),
        });
        let client = ClientSession {
            edges: EdgeAcceptance::SharedListener(Arc::clone(&shared)),
            end: SessionKill::default(),
            warn: Box::new(|_| ()),
            most_streams: Some(copies.most_lanes),
        };
        let admit = |order: &_| copies.admit(Access::ALL, order).map(|_| ());
        let prepare = |context: &_, order: &_, edges: &_| {
            let own = OrderingClient {
                name: "a",
                key: key.key(),
                line_number: 1,
                rights: &ClientRights::ALL,
            };
            copies.prepare(own, context, order, edges)
        };
        let place = std::future::ready(Ok(()));
        let ended = async {
            let _ = client.serve(session, place, admit, prepare).await;
            // Each edge that waits for its other end has the listener.
            while Arc::strong_count(&shared) > 1 {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LIMIT, ended).await.is_ok()
    });
    assert!(served, "a session goes on without its client");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_ends_with_its_client_whatever_it_has_asked_for() {
        for number in 0..40_u32 {
            let script: Vec<u8> = (0..20_u32)
                .flat_map(|at| {
                    (at + 1)
                        .wrapping_mul(number + 1)
                        .wrapping_mul(0x9E37_79B9)
                        .to_be_bytes()
                })
                .collect();
            served_session(&script);
        }
    }
}
