//! Synchronization primitives: those that a test's scheduler can replace, and a fair read-write lock.
//!
//! Owns: the list of replaceable primitives. `rust/shuttle-tests` compiles the files that import from here a second
//! time, with shuttle's primitives of the same names, and explores their interleavings.
//! Does not own: the users of these primitives. Primitives that never block a thread (tokio's channels and semaphores)
//! need no replacement and are not listed.

mod fair_rwlock;

pub use fair_rwlock::FairRwLock;
pub use parking_lot::Mutex;
pub use tokio::runtime::Handle;
pub use tokio::task::AbortHandle;
pub use tokio::time::sleep;

/// Starts a task on the runtime that the caller is on.
pub fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(task);
}
