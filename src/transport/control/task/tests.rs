//! Tests of the control task over a connection of its own.

use tokio::net::TcpListener;
use tokio_util::codec::Framed;

use super::*;
use crate::{
    Direction, Error, Key,
    transport::control::{
        codec::Codec,
        noise::{Initiator, Session, respond},
    },
};

const TIMING: Timing = Timing {
    silence: Duration::from_secs(3600),
    ping: Duration::from_secs(900),
};

fn sessions() -> (Session, Session) {
    let key = Key::generate().unwrap().key().clone();
    let (initiator, first) = Initiator::start(&key, b"");
    let (acceptor, reply) = respond(&key, b"", &first).unwrap().reply();
    (initiator.finish(&reply).unwrap(), acceptor)
}

/// Returns the two ends of a control connection.
async fn connection() -> (Control, Control) {
    let (ours, theirs) = sessions();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (dialed, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (accepted, _) = accepted.unwrap();
    (
        Framed::new(dialed.unwrap(), Codec(ours)),
        Framed::new(accepted, Codec(theirs)),
    )
}

fn state() -> Arc<State> {
    State::new("hostB".to_owned(), Direction::Both, 2)
}

/// Checks that both halves fail because the control task ended.
fn assert_both_fail(state: &State) {
    assert!(matches!(
        state.send_error(),
        Some(Error::Send {
            fault: Fault::ControlTask,
            ..
        })
    ));
    assert!(matches!(
        state.receive_error(),
        Some(Error::Receive {
            fault: Fault::ControlTask,
            ..
        })
    ));
    assert!(state.ended.is_cancelled());
}

#[tokio::test]
async fn a_panic_of_the_control_task_fails_the_stream() {
    let (state, (ours, _theirs)) = (state(), connection().await);
    let task = tokio::spawn(run(Arc::clone(&state), ours, TIMING, None));
    // No message is that long.
    let mut slots = vec![u32::MAX; 20_000];
    state.grant(&mut slots, usize::MAX).unwrap();
    assert!(task.await.unwrap_err().is_panic());
    assert_both_fail(&state);
}

#[tokio::test]
async fn a_control_task_that_is_never_polled_fails_the_stream() {
    let (state, (ours, _theirs)) = (state(), connection().await);
    drop(run(Arc::clone(&state), ours, TIMING, None));
    assert_both_fail(&state);
}

#[tokio::test]
async fn a_goodbye_is_no_failure() {
    let (state, (ours, theirs)) = (state(), connection().await);
    let peer = self::state();
    for sent in [&state, &peer] {
        sent.stop(0);
    }
    let tasks = [(Arc::clone(&state), ours), (Arc::clone(&peer), theirs)]
        .map(|(state, control)| tokio::spawn(run(state, control, TIMING, None)));
    for end in [&state, &peer] {
        end.interrupted().await;
        end.release_sender(true);
        end.release_receiver(0, false);
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert!(!state.failed() && !peer.failed());
}
