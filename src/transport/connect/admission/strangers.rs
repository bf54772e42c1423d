//! The connections that have proved nothing. Their number is bounded: one more pushes another one out.
//!
//! The one that is pushed out is one of the network address that has the most strangers, so that a flood from one
//! address pushes out itself. Of those it is a random one among the older half. So a stranger stays at least until half
//! of all places have been taken again; after that, waiting longer gets less likely, and no rate of strangers makes it
//! impossible.

use std::{
    collections::{HashMap, VecDeque},
    convert::Infallible,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

/// The end of a connection for which there was no place among the strangers.
pub(crate) const PUSHED_OUT: &str = "newer connections have pushed it out";

/// The strangers of one listener.
pub(crate) struct Strangers {
    most: usize,
    queue: Mutex<StrangerQueue>,
}

impl Strangers {
    /// Keeps at most `most` strangers.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        let queue = Mutex::default();
        Arc::new(Self { most, queue })
    }

    /// Adds a connection from `address`, and pushes one out if there are too many.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> StrangerPlace {
        let mut queue = self.lock();
        let (number, pushed_out) = queue.enter(network(address));
        if queue.strangers.len() > self.most {
            queue.push_out(random());
        }
        drop(queue);
        StrangerPlace {
            strangers: Arc::clone(self),
            number,
            pushed_out,
        }
    }

    /// Pushes out half of the strangers, to free their descriptors.
    pub(crate) fn push_out_half(&self) {
        let mut queue = self.lock();
        for _ in 0..queue.strangers.len().div_ceil(2) {
            queue.push_out(random());
        }
    }

    fn lock(&self) -> MutexGuard<'_, StrangerQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one connection among the strangers, which ends when it is dropped.
pub(crate) struct StrangerPlace {
    strangers: Arc<Strangers>,
    number: u64,
    /// Completes when the stranger is pushed out.
    pushed_out: oneshot::Receiver<Infallible>,
}

impl StrangerPlace {
    /// Runs `work` to its end, or until this stranger is pushed out, and then returns `None`.
    pub(crate) async fn unless_pushed_out<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::select! {
            biased;
            outcome = work => Some(outcome),
            _ = &mut self.pushed_out => None,
        }
    }
}

impl Drop for StrangerPlace {
    fn drop(&mut self) {
        let mut queue = self.strangers.lock();
        queue.strangers.retain(|one| one.number != self.number);
    }
}

/// The strangers, the oldest first.
#[derive(Default)]
struct StrangerQueue {
    entered: u64,
    strangers: VecDeque<Stranger>,
}

struct Stranger {
    number: u64,
    network: IpAddr,
    /// Dropped when the stranger is pushed out, which its place notices.
    _stay: oneshot::Sender<Infallible>,
}

impl StrangerQueue {
    fn enter(&mut self, network: IpAddr) -> (u64, oneshot::Receiver<Infallible>) {
        let (stay, pushed_out) = oneshot::channel();
        self.entered += 1;
        self.strangers.push_back(Stranger {
            number: self.entered,
            network,
            _stay: stay,
        });
        (self.entered, pushed_out)
    }

    /// Pushes one out. `random` picks it from those that may be.
    fn push_out(&mut self, random: usize) {
        let mut counts = HashMap::new();
        for stranger in &self.strangers {
            *counts.entry(stranger.network).or_insert(0_usize) += 1;
        }
        let most = counts.values().copied().max().unwrap_or(0);
        let crowded = (0..self.strangers.len())
            .filter(|at| counts[&self.strangers[*at].network] == most)
            .collect::<Vec<_>>();
        let older = &crowded[..crowded.len().div_ceil(2)];
        if !older.is_empty() {
            self.strangers.remove(older[random % older.len()]);
        }
    }
}

/// Returns the part of an address that stands for one owner: an IPv4 address, or an IPv6 network of 64 bits, in which a
/// host can use any address.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}

fn random() -> usize {
    // Without random numbers the oldest is pushed out.
    getrandom::u32().map_or(0, |number| number as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn stays(place: &mut StrangerPlace) -> bool {
        let waiting = place.unless_pushed_out(std::future::pending::<()>());
        futures::FutureExt::now_or_never(waiting).is_none()
    }

    #[test]
    fn one_too_many_pushes_out_one() {
        let strangers = Strangers::new(8);
        let mut places: Vec<_> = (0..20).map(|_| strangers.enter(address(1))).collect();
        let left = places.iter_mut().map(stays).filter(|stays| *stays);
        assert_eq!(left.count(), 8);
        assert!(places[16..].iter_mut().all(stays), "the newer half stays");
        drop(places);
        assert!(strangers.lock().strangers.is_empty());
    }

    #[test]
    fn a_place_that_was_left_pushes_out_no_other() {
        let strangers = Strangers::new(2);
        let mut first = strangers.enter(address(1));
        for _ in 0..9 {
            drop(strangers.enter(address(1)));
        }
        assert!(stays(&mut first));
    }

    #[test]
    fn a_flood_from_one_address_pushes_out_itself() {
        let strangers = Strangers::new(8);
        let mut others: Vec<_> = (2..5).map(|last| strangers.enter(address(last))).collect();
        let _flood: Vec<_> = (0..1000).map(|_| strangers.enter(address(1))).collect();
        assert!(others.iter_mut().all(stays));
    }

    #[test]
    fn one_host_with_many_ipv6_addresses_is_one_network() {
        let strangers = Strangers::new(8);
        let mut other = strangers.enter("2001:db8:0:2::1".parse().unwrap());
        let flood = (0..1000_u128).map(|low| Ipv6Addr::from_bits((0x2001_0db8 << 96) + low));
        let _flood: Vec<_> = flood.map(|one| strangers.enter(one.into())).collect();
        assert!(stays(&mut other));
        assert_eq!(network("::ffff:10.0.0.1".parse().unwrap()), address(1));
    }

    #[test]
    fn no_rate_of_strangers_pushes_out_every_old_one() {
        let survivors = (0..100).filter(|_| {
            let strangers = Strangers::new(16);
            let mut patient = strangers.enter(address(1));
            // Twice as many as there are places: the oldest would be gone if the oldest were always pushed out.
            let _flood: Vec<_> = (0..32).map(|_| strangers.enter(address(1))).collect();
            stays(&mut patient)
        });
        assert!(survivors.count() > 0);
    }

    #[test]
    fn half_of_them_make_room_for_descriptors() {
        let strangers = Strangers::new(8);
        let mut places: Vec<_> = (0..7).map(|_| strangers.enter(address(1))).collect();
        strangers.push_out_half();
        assert_eq!(
            places.iter_mut().map(stays).filter(|stays| *stays).count(),
            3
        );
    }
}
