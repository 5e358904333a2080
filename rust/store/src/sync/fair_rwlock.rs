//! A fair read-write lock: waiters get it in the order of their requests.
//!
//! Owns: the choice of the underlying lock, and blocking the calling thread.
//! Does not own: the guarded value.
//!
//! A background loop takes a shard's lock thousands of times, briefly each time; a concurrent checkpoint takes it four
//! times. So a waiter must get the lock as soon as it is free, and must sleep until then. Unfair locks starve the waiter.
//! Locks that spin before they sleep yield the processor while they spin: on a busy machine each yield lasts until the
//! scheduler's next tick (4 ms on many systems), several times in a row. Tokio's lock is a queue and never spins.

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Guards a value for many readers or one writer, in order of request. Must not be used on threads of an asynchronous
/// runtime. Not reentrant: a second read by the same thread can deadlock with a writer that waits between the two.
#[derive(Debug, Default)]
pub struct FairRwLock<T> {
    lock: RwLock<T>,
}

impl<T> FairRwLock<T> {
    /// A lock around `value`.
    pub fn new(value: T) -> Self {
        Self { lock: RwLock::new(value) }
    }

    /// Waits until no earlier writer holds the lock or waits for it.
    ///
    /// # Panics
    /// In a task of an asynchronous runtime.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.try_read().unwrap_or_else(|| self.lock.blocking_read())
    }

    /// Waits until no earlier reader or writer holds the lock or waits for it.
    ///
    /// # Panics
    /// In a task of an asynchronous runtime.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.try_write().unwrap_or_else(|| self.lock.blocking_write())
    }

    /// Exclusive access through `&mut self`; no locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }

    /// Acquires the lock for reading if it is free now.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.lock.try_read().ok()
    }

    /// Acquires the lock for writing if it is free now.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.lock.try_write().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::FairRwLock;
    use std::sync::mpsc::channel;
    use std::thread;

    /// Waits until a writer is queued on a lock that is held for reading: from then on `try_read` fails.
    fn queued(lock: &FairRwLock<Vec<u32>>) {
        while lock.try_read().is_some() {
            thread::yield_now();
        }
    }

    #[test]
    fn waiters_get_it_before_newcomers() {
        let lock = FairRwLock::new(Vec::new());
        let reading = lock.read();
        thread::scope(|scope| {
            scope.spawn(|| lock.write().push(1));
            queued(&lock);
            let (began, begun) = channel();
            let later = scope.spawn({
                let lock = &lock;
                move || {
                    began.send(()).unwrap();
                    lock.read().clone()
                }
            });
            begun.recv().unwrap();
            assert!(lock.try_read().is_none() && lock.try_write().is_none(), "a newcomer does not pass the writer");
            drop(reading);
            assert_eq!(later.join().unwrap(), [1], "a later reader sees what the writer wrote");
        });
    }

    #[test]
    fn a_loop_that_takes_it_repeatedly_lets_others_in() {
        let lock = FairRwLock::new(Vec::new());
        let first = lock.write();
        thread::scope(|scope| {
            let looping = scope.spawn(|| while !lock.write().contains(&7) {});
            scope.spawn(|| lock.write().push(7));
            drop(first);
            looping.join().unwrap();
        });
    }
}
