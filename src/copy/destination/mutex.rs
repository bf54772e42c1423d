//! Locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. What a thread that panicked has left behind is used as it is.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
