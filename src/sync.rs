//! State that threads share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, whatever happened to another thread that had it: the state behind the mutexes of this crate is replaced whole.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
