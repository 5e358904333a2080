//! Threads that call Python.
//!
//! Owns: attaching such a thread to the interpreter. Does not own: work without the GIL (`detached`), calls of Python
//! code while the interpreter ends (`ending`).
//!
//! A thread that Python did not start has no thread state. CPython makes one before it asks for the GIL, under a lock of
//! the process that [`fork`] does not reset in time: if the thread that has the GIL forks in that moment, the child of
//! CPython 3.11 waits for that lock for ever, inside `os.fork()`.
//!
//! Invariants:
//! 1. no fork begins while a thread state is made;
//! 2. a thread state that was made here ends with the call that needed it.
//!
//! [`fork`]: https://docs.python.org/3/library/os.html#os.fork

use fastchangelog_store::forked::no_fork;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The interpreter that imported this module. A forked child has it at the same address.
static INTERPRETER: AtomicPtr<ffi::PyInterpreterState> = AtomicPtr::new(null_mut());

/// Notes the interpreter of all later calls.
pub(crate) fn notice_interpreter(_: Python<'_>) {
    // SAFETY: this thread is attached.
    INTERPRETER.store(unsafe { ffi::PyInterpreterState_Get() }, Ordering::Release);
}

/// Calls `work` with the GIL, on any thread. None once the interpreter ends.
#[expect(clippy::disallowed_methods, reason = "the one place that makes a thread state for it")]
pub(crate) fn attached<T>(work: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    let made = make_thread_state();
    Python::try_attach(|py| {
        // Dropped with the GIL, after the work. Where the interpreter ends meanwhile, the state is left to it.
        let _made = made.then(|| Made);
        work(py)
    })
}

/// A thread state that was made for one call. Dropped with the GIL.
struct Made;

impl Drop for Made {
    fn drop(&mut self) {
        // SAFETY: this thread is attached, to the state that was made. The use that the state began with ends; with the
        // last use, which PyO3 ends next, CPython deletes it.
        unsafe { ffi::PyGILState_Release(ffi::PyGILState_STATE::PyGILState_LOCKED) }
    }
}

/// Makes a thread state for this thread, unless it has one.
fn make_thread_state() -> bool {
    // SAFETY: it may be called at any time.
    if unsafe { ffi::Py_IsInitialized() } == 0 {
        return false;
    }
    // SAFETY: the interpreter is initialized.
    if !unsafe { ffi::PyGILState_GetThisThreadState() }.is_null() {
        return false;
    }
    let _making = no_fork();
    // SAFETY: the interpreter lives. The call takes no GIL: the thread that waits to fork may hold it.
    !unsafe { ffi::PyThreadState_New(INTERPRETER.load(Ordering::Acquire)) }.is_null()
}
