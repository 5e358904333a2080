//! A lock whose waiters get it in the order in which they came.
//!
//! Owns: the choice of the lock below, and the waiting in threads.
//! Does not own: what it guards.
//!
//! A background loop takes the lock of a shard thousands of times, a moment each; who makes a checkpoint meanwhile takes
//! it four times. So a waiter must get it as soon as it is free, and must sleep until then. Locks that let a newcomer
//! pass starve the waiter. Locks that spin before they sleep yield their turn of the processor while they do: on a
//! busy machine each yield lasts until the scheduler's next tick, 4 ms on many, several times in a row.
//! Tokio's lock is a queue, in which no thread spins.

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Guards a value for many readers or one writer; first come, first served. Not for threads of an asynchronous runtime,
/// and not twice in one thread: a reader that reads again waits for a writer who waits for it.
#[derive(Debug, Default)]
pub struct FairLock<T> {
    lock: RwLock<T>,
}

impl<T> FairLock<T> {
    /// A lock around `value`.
    pub fn new(value: T) -> Self {
        Self { lock: RwLock::new(value) }
    }

    /// Waits until no writer is before it.
    ///
    /// # Panics
    /// In a task of an asynchronous runtime.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.try_read().unwrap_or_else(|| self.lock.blocking_read())
    }

    /// Waits until nobody is before it.
    ///
    /// # Panics
    /// In a task of an asynchronous runtime.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.try_write().unwrap_or_else(|| self.lock.blocking_write())
    }

    /// The value, of which nobody else knows.
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }

    /// Reads, if that is possible at once.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.lock.try_read().ok()
    }

    /// Writes, if that is possible at once.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.lock.try_write().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::FairLock;
    use std::sync::mpsc::channel;
    use std::thread;

    /// Waits until a writer is in the queue of a lock that is read: from then on nobody else can read at once.
    fn queued(lock: &FairLock<Vec<u32>>) {
        while lock.try_read().is_some() {
            thread::yield_now();
        }
    }

    #[test]
    fn who_waits_gets_it_before_who_comes_later() {
        let lock = FairLock::new(Vec::new());
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
            assert_eq!(later.join().unwrap(), [1], "who reads after the writer sees what it wrote");
        });
    }

    #[test]
    fn a_loop_that_takes_it_again_and_again_lets_others_in() {
        let lock = FairLock::new(Vec::new());
        let first = lock.write();
        thread::scope(|scope| {
            let looping = scope.spawn(|| while !lock.write().contains(&7) {});
            scope.spawn(|| lock.write().push(7));
            drop(first);
            looping.join().unwrap();
        });
    }
}
