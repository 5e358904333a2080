//! Values that a forked child makes anew.
//!
//! Owns: the generation of this process, values per process, random numbers that differ from the parent's, and the gate
//! that delays forks.
//! Does not own: the values, and the use of inherited objects in a child (their owners check the generation).
//!
//! A child has a copy of its parent's memory but not of its threads: a lock that another thread held stays locked, and
//! a queue has no reader. So no value of the process is behind a lock that a child inherits. If a library has such a
//! lock, the process does not fork while a thread may hold it.
//!
//! Invariants:
//! 1. a child's generation differs from that of its parent, and of each child that the parent forks later;
//! 2. a [`PerProcess`] value is made by the process that reads it, and the check takes no lock;
//! 3. inherited values are never dropped: their threads and files are the parent's;
//! 4. no fork begins during the life of a [`NoFork`], and a child inherits none.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Generation of this process: the number of forks since the process that loaded the library.
#[inline]
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// Notices all forks from now on. Once is enough.
pub fn notice_forks() {
    use std::ffi::c_int;
    use std::sync::Once;

    type Handler = Option<extern "C" fn()>;
    unsafe extern "C" {
        fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> c_int;
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers are functions of this library, which is never unloaded.
        let failed = unsafe { pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
        if failed != 0 {
            tracing::error!(error = failed, "forks cannot be noticed");
        }
    });
}

/// While it lives, this process does not fork: a thread that forks waits. For short work with locks of a library, which
/// neither forks nor waits for the interpreter's lock: the thread that forks may hold that one.
#[must_use]
#[derive(Debug)]
pub struct NoFork(#[expect(dead_code, reason = "it is held")] RwLockReadGuard<'static, ()>);

/// Waits for a fork that has begun. Not while this thread has another one.
pub fn no_fork() -> NoFork {
    NoFork(FORKS.read().unwrap_or_else(PoisonError::into_inner))
}

static FORKS: RwLock<()> = RwLock::new(());
static FORKING: Forking = Forking(UnsafeCell::new(None));

/// The lock of the thread that forks.
struct Forking(UnsafeCell<Option<RwLockWriteGuard<'static, ()>>>);

// SAFETY: only the holder of its lock uses it; before and after a fork that is the same thread.
unsafe impl Sync for Forking {}

/// The thread that forks.
extern "C" fn before_fork() {
    let held = FORKS.write().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: see `Forking`.
    unsafe { *FORKING.0.get() = Some(held) };
}

/// The thread that has forked.
extern "C" fn in_parent() {
    // SAFETY: see `Forking`.
    drop(unsafe { (*FORKING.0.get()).take() });
}

/// Runs on the only thread of a child, before the fork returns.
extern "C" fn in_child() {
    in_parent();
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // The parent continues the same random sequence, and object names are random. If reseeding fails, the old sequence
    // continues.
    let _ = rand::rng().reseed();
}

/// A value that each process makes for itself at its first use.
#[derive(Debug)]
pub struct PerProcess<T: 'static> {
    current: AtomicPtr<Made<T>>,
    make: fn() -> T,
}

#[derive(Debug)]
struct Made<T> {
    generation: u64,
    value: T,
}

impl<T: Send + Sync> PerProcess<T> {
    /// A value that `make` makes, perhaps more than once: only one of them is kept.
    pub const fn new(make: fn() -> T) -> Self {
        Self { current: AtomicPtr::new(std::ptr::null_mut()), make }
    }

    /// The value of this process.
    pub fn get(&'static self) -> &'static T {
        self.of(generation())
    }

    fn of(&'static self, generation: u64) -> &'static T {
        let known = self.current.load(Ordering::Acquire);
        // SAFETY: null, or a box that was leaked below.
        if let Some(known) = unsafe { known.as_ref() }
            && known.generation == generation
        {
            return &known.value;
        }
        let made = Box::into_raw(Box::new(Made { generation, value: (self.make)() }));
        match self.current.compare_exchange(known, made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: it was leaked above, and is never freed.
            Ok(_) => unsafe { &(*made).value },
            Err(other) => {
                // SAFETY: `made` is this thread's alone. `other` was leaked by another thread of this process.
                unsafe {
                    drop(Box::from_raw(made));
                    &(*other).value
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn invariants_2_and_3_a_child_has_a_value_of_its_own() {
        static VALUE: PerProcess<Mutex<Vec<u64>>> = PerProcess::new(Mutex::default);
        let mut held = VALUE.of(0).lock().unwrap();
        held.push(1);
        VALUE.of(1).try_lock().unwrap().extend([2, 3]);
        assert_eq!(*held, [1], "the parent's is as it was");
        assert_eq!(VALUE.of(1).lock().unwrap().len(), 2, "it is made once");
    }

    #[test]
    fn invariant_4_no_fork_begins_meanwhile_and_others_may_go_on() {
        let (first, second) = (no_fork(), no_fork());
        drop(first);
        assert!(FORKS.try_write().is_err());
        drop(second);
        for after in [in_parent as extern "C" fn(), in_child] {
            before_fork();
            assert!(FORKS.try_read().is_err());
            after();
            drop(no_fork());
        }
    }

    #[test]
    fn all_threads_of_a_process_have_one_value() {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        static VALUE: PerProcess<AtomicUsize> = PerProcess::new(AtomicUsize::default);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    VALUE.get().fetch_add(1, Ordering::Relaxed);
                    MADE.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        assert!(VALUE.get().load(Ordering::Relaxed) <= MADE.load(Ordering::Relaxed));
    }
}
