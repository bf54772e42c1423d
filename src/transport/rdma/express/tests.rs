//! Many express paths on one thread, on a real device.

use std::{future::poll_fn, task::Poll, thread, time::Duration};

use futures::future::join_all;

use super::{
    path::{ExpressOffer, ExpressPath, ExpressSettings, UnconnectedExpress},
    queue::RingLayout,
};
use crate::{
    faults::Faults,
    transport::{
        control::{
            noise::Role,
            seal::{StreamSeal, Way},
        },
        data::{frame::Chain, slots::NO_SLOT},
        rdma::{tests::config, verbs::queue_pair::QueuePairConfig},
    },
};

const MESSAGE: [u8; 16] = [7; 16];

/// Answers that take so long do not come.
const HANGS: Duration = Duration::from_secs(300);

fn opened(config: &QueuePairConfig) -> UnconnectedExpress {
    UnconnectedExpress::open(config, RingLayout::new(4, true, true)).unwrap()
}

fn connected(express: UnconnectedExpress, theirs: ExpressOffer) -> ExpressPath {
    let settings = ExpressSettings {
        generation: 0,
        busy_poll: None,
        reports: [None, None],
        faults: Faults::default(),
    };
    express.connect(theirs, settings).unwrap()
}

fn send(express: &ExpressPath, chain: &mut Chain) {
    let header = chain.seal(NO_SLOT, &mut MESSAGE.clone());
    express.send(&header, &MESSAGE).unwrap();
}

/// Waits for the next frame as a reader does.
async fn receive(express: &ExpressPath, offset: u64) {
    let slot = poll_fn(|cx| {
        express.spin();
        match express.poll_frame(cx, offset).unwrap() {
            Poll::Ready((slot, _)) => Poll::Ready(slot),
            Poll::Pending => Poll::Pending,
        }
    });
    let slot = tokio::time::timeout(HANGS, slot).await;
    express.release(slot.expect("a frame")).unwrap();
}

/// One end of an express path: sends and receives in turns.
async fn talk(express: &ExpressPath, begins: bool, rounds: u64) {
    let mut chain = Chain::new(StreamSeal::of_seed(1, Role::Dialer, None).guard(Way::Out));
    for round in 0..rounds {
        let offset = round * MESSAGE.len() as u64;
        if begins {
            send(express, &mut chain);
        }
        receive(express, offset).await;
        if !begins {
            send(express, &mut chain);
        }
    }
}

/// Returns how many waits of a server polled that answers `rounds` messages on each of `count` express paths, all of
/// them on its one thread.
async fn polls_of_a_server(config: &QueuePairConfig, count: usize, rounds: u64) -> u64 {
    let ends = |_| (opened(config), opened(config));
    let (servers, clients): (Vec<_>, Vec<_>) = (0..count).map(ends).unzip();
    let offers: Vec<_> = servers.iter().map(UnconnectedExpress::offer).collect();
    let servers = servers.into_iter().zip(&clients);
    let servers: Vec<_> = servers
        .map(|(server, client)| connected(server, client.offer()))
        .collect();
    let asking = thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(async {
            let clients = clients.into_iter().zip(offers);
            let clients: Vec<_> = clients
                .map(|(client, server)| connected(client, server))
                .collect();
            join_all(clients.iter().map(|client| talk(client, true, rounds))).await;
        });
    });
    join_all(servers.iter().map(|server| talk(server, false, rounds))).await;
    // The express paths of this end live until those of the other have received the last answer.
    while !asking.is_finished() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    asking.join().unwrap();
    servers.iter().map(ExpressPath::polled_waits).sum()
}

/// A poll holds up the thread, so a server with many streams on one thread must answer all of them without polling.
#[tokio::test]
async fn a_thread_with_a_hundred_streams_does_not_poll() {
    let Some(config) = config() else { return };
    let (streams, rounds) = (100, 20);
    let polls = polls_of_a_server(&config, streams, rounds).await;
    let waits = rounds * streams as u64;
    assert!(polls < waits / 20, "{polls} of {waits} waits polled");
    assert!(
        polls_of_a_server(&config, 1, 2_000).await > 0,
        "a single express path polls, or the test measures nothing"
    );
}
