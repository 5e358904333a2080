//! Shuttle's primitives under the names of `fastchangelog_store::sync`.
//!
//! Owns: the same interfaces, with a scheduling point at each step. Does not own: what is built with them.

use std::cell::Cell;
use std::future::Future;
use std::time::Duration;

pub use shuttle::future::AbortHandle;

/// Pauses that last longer never end: they are for faults that do not happen here.
const SOON: Duration = Duration::from_secs(10);

/// A mutex with the interface of parking_lot's.
#[derive(Debug, Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A mutex around `value`.
    pub fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> shuttle::sync::MutexGuard<'_, T> {
        self.0.lock().expect("a panic with the lock held ends the schedule")
    }
}

/// The runtime.
#[derive(Debug, Clone, Default)]
pub struct Handle;

impl Handle {
    /// Starts a task.
    pub fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> shuttle::future::JoinHandle<T> {
        let running = Running::new();
        shuttle::future::spawn(async move {
            let result = task.await;
            drop(running);
            result
        })
    }

    /// Runs a task to its end on the calling thread.
    pub fn block_on<T>(&self, task: impl Future<Output = T>) -> T {
        shuttle::future::block_on(task)
    }
}

thread_local! {
    /// Tasks without a join handle. A schedule runs on one thread.
    static RUNNING: Cell<usize> = const { Cell::new(0) };
}

struct Running;

impl Running {
    fn new() -> Self {
        RUNNING.set(RUNNING.get() + 1);
        Self
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.set(RUNNING.get() - 1);
    }
}

/// Starts a task.
pub fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    let running = Running::new();
    drop(shuttle::future::spawn(async move {
        task.await;
        drop(running);
    }));
}

/// Waits until every task of [`spawn`] and [`Handle`] has ended.
pub async fn quiet() {
    while RUNNING.get() > 0 {
        shuttle::future::yield_now().await;
    }
}

/// A pause as long as the scheduler likes.
pub async fn sleep(pause: Duration) {
    if pause > SOON {
        std::future::pending::<()>().await;
    }
    shuttle::future::yield_now().await;
}
