//! The watch over the networks of a stream that uses several: it detects that one of them is lost while another one
//! lives.
//!
//! A connection over each network carries nothing but *beats*: each end sends a byte on all of them at the same times.
//! A network is lost when [`BEATS`] beats arrived over another one since the last over it. So the watch compares
//! networks and no clocks: a peer that is stopped or blocked sends no beats at all, and one that is slow sends them late
//! on all networks. A network whose connection broke is lost at the next beat, if the stream has not ended until then.
//!
//! What a beat says needs no cipher: a person on the path who forges or drops beats can do the same to the data
//! connections.

use std::{io, sync::Arc, time::Duration};

use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};
use tokio::{net::TcpStream, time::sleep};

use super::state::State;

/// The number of beats by which a network may be behind another one.
const BEATS: u64 = 4;

/// The connection that watches one network.
struct Watched {
    socket: TcpStream,
    /// The number of beats that have arrived.
    arrived: u64,
    is_lost: bool,
    broken: Option<io::Error>,
}

/// Watches the networks until the stream has ended, with a connection over each. A network is lost when it was silent
/// for `silence`.
pub(crate) async fn run(state: Arc<State>, sockets: Vec<TcpStream>, silence: Duration) {
    let watched = |socket| Watched {
        socket,
        arrived: 0,
        is_lost: false,
        broken: None,
    };
    let mut networks: Vec<_> = sockets.into_iter().map(watched).collect();
    let pause = silence / u32::try_from(BEATS).expect("a small number");
    let watching = async {
        loop {
            sleep(pause).await;
            watch(&state, &mut networks);
        }
    };
    state.ended.run_until_cancelled(watching).await;
}

/// Sends and counts beats, and reports networks that are lost.
fn watch(state: &State, networks: &mut [Watched]) {
    let was_broken: Vec<bool> = networks.iter().map(|it| it.broken.is_some()).collect();
    for network in networks.iter_mut().filter(|network| !network.is_lost) {
        network.beat();
    }
    let arrived = networks.iter().map(|network| network.arrived);
    let most = arrived.max().unwrap_or(0);
    for (number, network) in networks.iter_mut().enumerate() {
        let is_behind = network.arrived + BEATS <= most;
        if network.is_lost || !(is_behind || was_broken[number]) {
            continue;
        }
        network.is_lost = true;
        let Some((lost, left)) = state.lose_network(number) else {
            continue;
        };
        let why = network.broken.take();
        let why = why.map_or_else(|| "it delivers nothing".to_owned(), |why| why.to_string());
        let left: Vec<_> = left.iter().map(ToString::to_string).collect();
        let left = left.join(" and ");
        tracing::debug!("the network of {lost} is lost, and the stream goes on over {left}: {why}");
    }
}

impl Watched {
    /// Sends a beat, and counts those that have arrived.
    fn beat(&mut self) {
        let mut beats = [0; 64];
        let sent = send(
            &self.socket,
            &[0],
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        );
        let mut result = sent.map(drop);
        while result.is_ok() {
            result = match recv(&self.socket, &mut beats, RecvFlags::DONTWAIT) {
                Ok((0, _)) => Err(Errno::CONNRESET),
                Ok((count, _)) => {
                    self.arrived += count as u64;
                    Ok(())
                }
                Err(error) => Err(error),
            };
        }
        if let Err(error) = result {
            if error != Errno::AGAIN && error != Errno::INTR {
                self.broken.get_or_insert(error.into());
            }
        }
    }
}
