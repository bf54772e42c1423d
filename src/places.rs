//! Places that the holders of many keys share. A key has a share of them, and those that wait get places in turn by key:
//! a key that fills its share and its queue delays no other key.
//!
//! A place that is taken is never taken back, so a share is a hard limit: a key does not get more of it while no other
//! key wants any. [`Share`] says how many places there are, and how many of them one key has.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

#[cfg(feature = "cli")]
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::KeyId;
#[cfg(feature = "cli")]
use crate::Watch;

/// The part of all places that one key has, if there are several keys: a quarter.
const PART_OF_ONE_KEY: usize = 4;

/// A number of places, and how many of them one key may have at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    /// The most of all keys together.
    pub(crate) all: usize,
    /// The most of one key.
    pub(crate) of_one_key: usize,
}

impl Share {
    /// Returns places of which each key has all: those of a listener with one key.
    pub(crate) fn whole(all: usize) -> Self {
        let of_one_key = all;
        Self { all, of_one_key }
    }

    /// Returns places of which each key has a quarter, and at least one.
    pub(crate) fn quarter(all: usize) -> Self {
        let of_one_key = all.div_ceil(PART_OF_ONE_KEY);
        Self { all, of_one_key }
    }
}

/// The places of all keys. Clones are the same places.
#[derive(Debug, Clone)]
pub(crate) struct SharedPlaces(Arc<Mutex<PlacesState>>);

#[derive(Debug)]
struct PlacesState {
    share: Share,
    taken: usize,
    /// The number of places that each key has; no key without one.
    held: HashMap<KeyId, usize>,
    /// The waiting. If a place is free, none of these may have it.
    waiting: TurnQueue<Waiter>,
    waited: u64,
    is_closed: bool,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    place: oneshot::Sender<Place>,
}

impl SharedPlaces {
    /// Returns places that are all free.
    pub(crate) fn new(share: Share) -> Self {
        Self(Arc::new(Mutex::new(PlacesState {
            share,
            taken: 0,
            held: HashMap::new(),
            waiting: TurnQueue::default(),
            waited: 0,
            is_closed: false,
        })))
    }

    pub(crate) fn of(&self, key: KeyId) -> Places {
        let all = self.clone();
        Places { all, key }
    }

    /// Changes how many places there are and how many of them one key may have. Places that are taken stay taken.
    #[cfg(feature = "cli")]
    pub(crate) fn set_share(&self, share: Share) {
        self.lock().share = share;
        self.hand_out();
    }

    /// Returns how many places there are, and how many of them one key may have.
    #[cfg(feature = "cli")]
    pub(crate) fn share(&self) -> Share {
        self.lock().share
    }

    /// Ends every wait for a place, also those that begin later.
    #[cfg(feature = "cli")]
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        drop(waiting);
    }

    /// Gives the free places to those that wait.
    fn hand_out(&self) {
        let next = || self.lock().next_turn();
        while let Some((key, waiter)) = next() {
            let all = self.clone();
            // A waiter that has just given up drops the place, which then goes to the next one.
            let _ = waiter.place.send(Place(Places { all, key }));
        }
    }

    fn lock(&self) -> MutexGuard<'_, PlacesState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PlacesState {
    fn may_take(&self, key: KeyId) -> bool {
        self.taken < self.share.all && self.held_by(key) < self.share.of_one_key
    }

    fn held_by(&self, key: KeyId) -> usize {
        self.held.get(&key).copied().unwrap_or(0)
    }

    fn take(&mut self, key: KeyId) {
        self.taken += 1;
        *self.held.entry(key).or_default() += 1;
    }

    fn release(&mut self, key: KeyId) {
        self.taken -= 1;
        let held = self.held.entry(key).or_default();
        *held = held.saturating_sub(1);
        if *held == 0 {
            self.held.remove(&key);
        }
    }

    /// Takes a place for the next that waits: of the keys that may have one, one of those with the fewest.
    fn next_turn(&mut self) -> Option<(KeyId, Waiter)> {
        if self.taken >= self.share.all {
            return None;
        }
        let (held, most) = (&self.held, self.share.of_one_key);
        let held_by = |key: KeyId| held.get(&key).copied().unwrap_or(0);
        let few = |key| Some(held_by(key)).filter(|held| *held < most);
        let (key, waiter) = self.waiting.pop_by(few)?;
        self.take(key);
        Some((key, waiter))
    }
}

/// The places of one key among those of all keys. Clones are of the same key.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    all: SharedPlaces,
    key: KeyId,
}

impl Places {
    /// Takes a place. Returns none if all are taken, or the key has its share.
    pub(crate) fn take(&self) -> Option<Place> {
        let mut state = self.all.lock();
        let may_take = !state.is_closed && state.may_take(self.key);
        may_take.then(|| {
            state.take(self.key);
            Place(self.clone())
        })
    }

    /// Waits for a place: after those of the same key that wait already, in turn with other keys. Returns none once the
    /// places are closed.
    /// Dropping the future gives up the turn.
    pub(crate) async fn wait(&self) -> Option<Place> {
        if let Some(place) = self.take() {
            return Some(place);
        }
        let (_turn, place) = self.queue()?;
        place.await.ok()
    }

    /// Joins the queue. Returns none if the places are closed.
    fn queue(&self) -> Option<(Turn<'_>, oneshot::Receiver<Place>)> {
        let (place, granted) = oneshot::channel();
        let mut state = self.all.lock();
        if state.is_closed {
            return None;
        }
        state.waited += 1;
        let number = state.waited;
        state.waiting.push(self.key, Waiter { number, place });
        drop(state);
        // A place may have become free in between.
        self.all.hand_out();
        let places = self;
        Some((Turn { places, number }, granted))
    }

    /// Returns true if the key has as many places as one key may have.
    #[cfg(feature = "cli")]
    pub(crate) fn have_share(&self) -> bool {
        let state = self.all.lock();
        state.held_by(self.key) >= state.share.of_one_key
    }

    /// Returns true if a holder of this key waits for a place.
    pub(crate) fn are_wanted(&self) -> bool {
        self.all.lock().waiting.has(self.key)
    }
}

/// The turn of one that waits, which is given up when this value is dropped.
struct Turn<'a> {
    places: &'a Places,
    number: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Places { all, key } = self.places;
        let number = self.number;
        let given_up = all
            .lock()
            .waiting
            .remove(*key, |waiter| waiter.number == number);
        drop(given_up);
    }
}

/// A place that is taken. It is free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Place(Places);

impl Place {
    /// Returns the places of the key that has this one.
    pub(crate) fn places(&self) -> &Places {
        &self.0
    }
}

#[cfg(feature = "cli")]
impl Place {
    /// Keeps the place until the connections of these streams are closed.
    pub(crate) fn keep_until_closed(self, streams: impl IntoIterator<Item = Watch>) {
        let streams: Vec<_> = streams.into_iter().collect();
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            for stream in streams {
                stream.closed().await;
            }
            drop(self);
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Places { all, key } = &self.0;
        all.lock().release(*key);
        all.hand_out();
    }
}

/// Items of many keys, which are taken in turn by key, and in order for one key.
#[derive(Debug)]
pub(crate) struct TurnQueue<T> {
    /// The items of each key that has any.
    items: HashMap<KeyId, VecDeque<T>>,
    /// The keys that have items. The next turn is that of the first.
    turns: VecDeque<KeyId>,
}

impl<T> Default for TurnQueue<T> {
    fn default() -> Self {
        Self {
            items: HashMap::new(),
            turns: VecDeque::new(),
        }
    }
}

impl<T> TurnQueue<T> {
    pub(crate) fn push(&mut self, key: KeyId, item: T) {
        let items = self.items.entry(key).or_default();
        if items.is_empty() {
            self.turns.push_back(key);
        }
        items.push_back(item);
    }

    /// Takes the first item of the key whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.pop_by(|_| Some(0)).map(|(_, item)| item)
    }

    /// Takes the first item of the key with the lowest rank; of several, of the one whose turn is next. A key without a
    /// rank has no turn.
    fn pop_by(&mut self, rank: impl Fn(KeyId) -> Option<usize>) -> Option<(KeyId, T)> {
        let ranked = self.turns.iter().enumerate();
        let ranked = ranked.filter_map(|(at, key)| Some((rank(*key)?, at)));
        let (_, at) = ranked.min()?;
        let key = self.turns.remove(at)?;
        let items = self.items.get_mut(&key)?;
        let item = items.pop_front()?;
        if items.is_empty() {
            self.items.remove(&key);
        } else {
            self.turns.push_back(key);
        }
        Some((key, item))
    }

    /// Returns true if the key has items.
    fn has(&self, key: KeyId) -> bool {
        self.items.contains_key(&key)
    }

    /// Removes the first item of a key that `is_meant` selects.
    fn remove(&mut self, key: KeyId, is_meant: impl Fn(&T) -> bool) -> Option<T> {
        let items = self.items.get_mut(&key)?;
        let at = items.iter().position(is_meant)?;
        let item = items.remove(at);
        if items.is_empty() {
            self.items.remove(&key);
            self.turns.retain(|turn| *turn != key);
        }
        item
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use futures::FutureExt;

    use super::*;
    use crate::Key;

    fn key(byte: u8) -> KeyId {
        Key::from_secret(&[byte; 32]).id()
    }

    fn shared(all: usize, of_one_key: usize) -> SharedPlaces {
        SharedPlaces::new(Share { all, of_one_key })
    }

    /// A wait that has been polled once, so that it has its turn.
    struct Waiting(Pin<Box<dyn Future<Output = Option<Place>>>>);

    impl Waiting {
        fn of(places: &Places) -> Self {
            let places = places.clone();
            let mut waiting: Pin<Box<dyn Future<Output = _>>> =
                Box::pin(async move { places.wait().await });
            assert!(waiting.as_mut().now_or_never().is_none(), "a place is free");
            Self(waiting)
        }

        fn has_place(&mut self) -> Option<Place> {
            self.0.as_mut().now_or_never().flatten()
        }
    }

    #[test]
    fn a_key_has_its_share_and_no_more() {
        let shared = shared(5, 2);
        let (busy, quiet) = (shared.of(key(1)), shared.of(key(2)));
        let taken = [busy.take().unwrap(), busy.take().unwrap()];
        assert!(busy.take().is_none());
        let others = [quiet.take().unwrap(), quiet.take().unwrap()];
        let third = shared.of(key(3)).take();
        assert!(third.is_some());
        drop(taken);
        let again = (busy.take(), busy.take(), busy.take());
        assert!(again.0.is_some() && again.1.is_some() && again.2.is_none());
        drop((again, others, third));
        let state = shared.lock();
        assert!(state.taken == 0 && state.held.is_empty());
    }

    #[test]
    fn a_quarter_is_at_least_one() {
        let of_one_key = [1, 2, 4, 5, 64].map(|all| Share::quarter(all).of_one_key);
        assert_eq!(of_one_key, [1, 1, 1, 2, 16]);
        assert_eq!(Share::whole(7).of_one_key, 7);
    }

    /// A busy key holds all places and has ten more waiting; a key that comes then gets the next place.
    #[test]
    fn a_quiet_key_gets_the_next_place() {
        let shared = shared(3, 3);
        let (busy, quiet) = (shared.of(key(1)), shared.of(key(2)));
        let mut taken: Vec<_> = (0..3).map(|_| busy.take().unwrap()).collect();
        let mut crowd: Vec<_> = (0..10).map(|_| Waiting::of(&busy)).collect();
        let mut late = Waiting::of(&quiet);
        taken.pop();
        let place = late.has_place().expect("its turn");
        assert!(crowd.iter_mut().all(|one| one.has_place().is_none()));
        taken.pop();
        assert!(
            crowd[0].has_place().is_some(),
            "then the first of the busy one"
        );
        drop(place);
    }

    #[test]
    fn keys_that_have_as_many_places_take_turns() {
        let shared = shared(1, 1);
        let first = shared.of(key(9)).take().unwrap();
        let mut waiting = Vec::new();
        for _ in 0..3 {
            for number in 1..4 {
                waiting.push((number, Waiting::of(&shared.of(key(number)))));
            }
        }
        drop(first);
        let mut order = Vec::new();
        while !waiting.is_empty() {
            let at = waiting.iter_mut().position(|(number, one)| {
                let place = one.has_place();
                place.is_some() && {
                    order.push(*number);
                    true
                }
            });
            waiting.remove(at.expect("one of them has a place"));
        }
        assert_eq!(order, [1, 2, 3, 1, 2, 3, 1, 2, 3]);
    }

    #[test]
    fn a_wait_that_is_given_up_leaves_its_turn_and_its_place_to_the_next() {
        let shared = shared(1, 1);
        let places = shared.of(key(1));
        let taken = places.take().unwrap();
        let [first, second, mut third] = [(); 3].map(|()| Waiting::of(&places));
        drop(first);
        drop(taken);
        // The second has got a place, and has not looked.
        drop(second);
        assert!(third.has_place().is_some());
        assert!(!places.are_wanted());
        assert_eq!(shared.lock().taken, 0);
    }

    #[cfg(feature = "cli")]
    #[test]
    fn a_larger_share_is_handed_out_at_once() {
        let shared = shared(4, 1);
        let places = shared.of(key(1));
        let _taken = places.take().unwrap();
        let mut waiting = Waiting::of(&places);
        assert!(places.are_wanted());
        shared.set_share(Share::whole(4));
        assert!(waiting.has_place().is_some());
        shared.set_share(Share::quarter(4));
        assert!(places.take().is_none());
    }

    #[cfg(feature = "cli")]
    #[test]
    fn every_wait_ends_when_the_places_are_closed() {
        let shared = shared(1, 1);
        let places = shared.of(key(1));
        let taken = places.take();
        let waiting = Waiting::of(&places);
        shared.close();
        assert!(waiting.0.now_or_never().unwrap().is_none());
        drop(taken);
        assert!(places.wait().now_or_never().unwrap().is_none());
    }

    #[test]
    fn items_are_taken_in_turn_by_key() {
        let mut queue = TurnQueue::default();
        for item in ["a1", "a2", "a3", "b1", "b2", "c1"] {
            queue.push(key(item.as_bytes()[0]), item);
        }
        let taken: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(taken, ["a1", "b1", "c1", "a2", "b2", "a3"]);
    }
}
