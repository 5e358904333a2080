//! The threads on which RocksDB flushes and compacts.
//!
//! Owns: these threads, one set for all databases of the process, and the queues of their jobs.
//! Does not own: the jobs (RocksDB's), when a database is flushed (`keyed`).
//!
//! A process can never stop RocksDB's own threads. A forked child inherits their queues without the threads: the queues
//! may hold the parent's jobs, and a flush in the child never returns. RocksDB aborts the process if a thread cannot be
//! started.
//!
//! Invariants:
//! 1. a process uses threads that it started itself;
//! 2. a job runs once, or its `cancelled` is called once;
//! 3. a thread that cannot be started is an error that names the limit;
//! 4. the threads stop with the last user.

use fastchangelog_format::error::Result;
use fastchangelog_store::forked::PerProcess;
use fastchangelog_store::threads::{lower_priority, spawn};
use rocksdb::Env;
use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

/// Compaction threads, and the one flush thread, for all shards together.
pub(super) const COMPACTION_THREADS: i32 = 2;
pub(super) const FLUSH_THREADS: i32 = 1;

type Function = extern "C" fn(*mut c_void);

unsafe extern "C" {
    fn fastchangelog_env_with(threads: *const c_void) -> *mut librocksdb_sys::rocksdb_env_t;
}

/// RocksDB's environment with the threads of this process.
pub(super) struct OwnThreads(Env);

impl OwnThreads {
    /// Those that run, or new ones.
    pub(super) fn of_process() -> Result<Arc<Self>> {
        static RUNNING: PerProcess<Mutex<Weak<OwnThreads>>> = PerProcess::new(Mutex::default);
        let mut running = lock(RUNNING.get());
        if let Some(own) = running.upgrade() {
            return Ok(own);
        }
        let queues = Arc::into_raw(Queues::start()?);
        // SAFETY: the environment gives the reference back when it is destroyed, and the new `Env` destroys it.
        let own = Arc::new(Self(unsafe { Env::from_raw(fastchangelog_env_with(queues.cast())) }));
        *running = Arc::downgrade(&own);
        Ok(own)
    }

    pub(super) fn env(&self) -> &Env {
        &self.0
    }
}

/// A job of RocksDB.
struct Job {
    run: Function,
    argument: *mut c_void,
    tag: *mut c_void,
    cancelled: Option<Function>,
}

// SAFETY: RocksDB schedules jobs for other threads.
unsafe impl Send for Job {}

#[derive(Default)]
struct Queue {
    state: Mutex<(VecDeque<Job>, bool)>,
    changed: Condvar,
}

impl Queue {
    /// Runs jobs until the end, those that wait then included.
    fn work(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.0.pop_front() {
                drop(state);
                (job.run)(job.argument);
                state = lock(&self.state);
            } else if state.1 {
                return;
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn push(&self, job: Job) {
        lock(&self.state).0.push_back(job);
        self.changed.notify_one();
    }

    /// Removes the jobs with this tag; their number.
    fn cancel(&self, tag: *mut c_void) -> usize {
        let cancelled: VecDeque<Job> = {
            let mut state = lock(&self.state);
            let (cancelled, kept): (VecDeque<Job>, VecDeque<Job>) =
                std::mem::take(&mut state.0).into_iter().partition(|job| job.tag == tag);
            state.0 = kept;
            cancelled
        };
        // Without the lock: RocksDB's function may schedule others.
        for job in &cancelled {
            if let Some(tell) = job.cancelled {
                tell(job.argument);
            }
        }
        cancelled.len()
    }

    fn end(&self) {
        lock(&self.state).1 = true;
        self.changed.notify_all();
    }
}

/// A queue of flushes, and one of compactions: a flush never waits for a compaction.
#[derive(Default)]
struct Queues {
    flushes: Queue,
    compactions: Queue,
}

impl Queues {
    fn start() -> Result<Arc<Self>> {
        let queues = Arc::new(Self::default());
        queues.start_threads().inspect_err(|_| queues.end())?;
        Ok(queues)
    }

    fn start_threads(self: &Arc<Self>) -> Result<()> {
        for _ in 0..FLUSH_THREADS {
            let own = Arc::clone(self);
            spawn("rocksdb:high", "a thread that flushes the local cache", move || own.flushes.work())?;
        }
        for _ in 0..COMPACTION_THREADS {
            let own = Arc::clone(self);
            let work = move || {
                lower_priority();
                own.compactions.work();
            };
            spawn("rocksdb:low", "a thread that compacts the local cache", work)?;
        }
        Ok(())
    }

    fn of(&self, high: bool) -> &Queue {
        if high { &self.flushes } else { &self.compactions }
    }

    fn end(&self) {
        self.flushes.end();
        self.compactions.end();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The queues behind the pointer that the environment holds.
///
/// # Safety
///
/// The environment must not have been destroyed.
unsafe fn queues<'a>(threads: *const c_void) -> &'a Queues {
    // SAFETY: it was made of an `Arc` in `of_process`, and its environment holds it.
    unsafe { &*threads.cast() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fastchangelog_threads_schedule(
    threads: *const c_void,
    high: bool,
    run: Function,
    argument: *mut c_void,
    tag: *mut c_void,
    cancelled: Option<Function>,
) {
    // SAFETY: called by the environment.
    unsafe { queues(threads) }.of(high).push(Job { run, argument, tag, cancelled });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fastchangelog_threads_unschedule(threads: *const c_void, high: bool, tag: *mut c_void) -> c_int {
    // SAFETY: called by the environment.
    let cancelled = unsafe { queues(threads) }.of(high).cancel(tag);
    c_int::try_from(cancelled).unwrap_or(c_int::MAX)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fastchangelog_threads_waiting(threads: *const c_void, high: bool) -> c_uint {
    // SAFETY: called by the environment.
    let waiting = lock(&unsafe { queues(threads) }.of(high).state).0.len();
    c_uint::try_from(waiting).unwrap_or(c_uint::MAX)
}

#[unsafe(no_mangle)]
extern "C" fn fastchangelog_threads_count(high: bool) -> c_int {
    if high { FLUSH_THREADS } else { COMPACTION_THREADS }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fastchangelog_threads_end(threads: *const c_void) {
    // SAFETY: the reference of the environment, given back once.
    unsafe { Arc::<Queues>::from_raw(threads.cast()) }.end();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;

    extern "C" fn count(counter: *mut c_void) {
        // SAFETY: the tests pass a counter.
        unsafe { &*counter.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
    }

    #[test]
    fn invariants_2_and_4_a_waiting_job_runs_before_the_end() {
        let (ran, cancelled) = (AtomicU32::new(0), AtomicU32::new(0));
        let queue = Arc::new(Queue::default());
        let job = |tag: usize, argument: &AtomicU32| Job {
            run: count,
            argument: std::ptr::from_ref(argument).cast_mut().cast(),
            tag: std::ptr::without_provenance_mut(tag),
            cancelled: Some(count),
        };
        queue.push(job(1, &ran));
        queue.push(job(2, &cancelled));
        queue.push(job(1, &ran));
        assert_eq!(queue.cancel(std::ptr::without_provenance_mut(2)), 1);
        assert_eq!((ran.load(Ordering::SeqCst), cancelled.load(Ordering::SeqCst)), (0, 1));
        queue.end();
        queue.work();
        assert_eq!((ran.load(Ordering::SeqCst), cancelled.load(Ordering::SeqCst)), (2, 1));
    }

    #[test]
    fn invariant_1_all_databases_of_a_process_share_its_threads() {
        let one = OwnThreads::of_process().unwrap();
        assert!(Arc::ptr_eq(&one, &OwnThreads::of_process().unwrap()));
    }

    #[test]
    fn a_flush_does_not_wait_for_a_compaction() {
        extern "C" fn wait(receiver: *mut c_void) {
            // SAFETY: the test passes a receiver.
            let receiver = unsafe { &*receiver.cast::<Mutex<mpsc::Receiver<()>>>() };
            let _ = lock(receiver).recv();
        }
        let queues = Queues::start().unwrap();
        let (release, held) = mpsc::channel::<()>();
        let held = Mutex::new(held);
        let flushed = AtomicU32::new(0);
        let argument = std::ptr::from_ref(&held).cast_mut().cast();
        for _ in 0..COMPACTION_THREADS {
            queues.compactions.push(Job { run: wait, argument, tag: std::ptr::null_mut(), cancelled: None });
        }
        let argument = std::ptr::from_ref(&flushed).cast_mut().cast();
        queues.flushes.push(Job { run: count, argument, tag: std::ptr::null_mut(), cancelled: None });
        while flushed.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        drop(release);
        queues.end();
        // The threads hold references until they end: `held` lives longer.
        while Arc::strong_count(&queues) > 1 {
            std::thread::yield_now();
        }
    }
}
