//! Threads that call Python.
//!
//! Owns: attaching such a thread to the interpreter. Does not own: work without the GIL (`detached`), calls of Python
//! code while the interpreter ends (`ending`).
//!
//! A thread that Python did not start has no thread state. CPython makes one before it asks for the GIL, under a lock of
//! the process. If the thread that has the GIL forks in that moment, the child waits for the lock for ever, inside
//! `os.fork()` ([a fault of CPython before 3.12][fault]). Later versions reset the lock in the child first. From 3.13 on
//! they hold it during the fork: a gate that delays the fork would wait for ever.
//!
//! With `tracemalloc` memory for a thread state needs the GIL, which the thread that waits to fork holds. There CPython
//! makes the states, with its fault.
//!
//! Invariants:
//! 1. before CPython 3.12, no fork begins while a thread state is made, unless `tracemalloc` traces;
//! 2. a thread state that was made here ends with the call that needed it.
//!
//! [fault]: https://github.com/python/cpython/issues/112275

use fastchangelog_store::forked::no_fork;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The interpreter that imported this module, if it has the fault; otherwise null. A forked child has it at the same
/// address.
static INTERPRETER: AtomicPtr<ffi::PyInterpreterState> = AtomicPtr::new(null_mut());

/// Notes the interpreter of all later calls.
pub(crate) fn notice_interpreter(py: Python<'_>) {
    if py.version_info() < (3, 12) {
        // SAFETY: this thread is attached.
        INTERPRETER.store(unsafe { ffi::PyInterpreterState_Get() }, Ordering::Release);
    }
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

unsafe extern "C" {
    fn PyTraceMalloc_Untrack(domain: c_uint, pointer: usize) -> c_int;
}

/// True while `tracemalloc` traces.
fn is_traced() -> bool {
    const NOT_TRACING: c_int = -2;
    // SAFETY: it may be called without the GIL, and forgets an address that is not tracked.
    unsafe { PyTraceMalloc_Untrack(c_uint::MAX, 0) != NOT_TRACING }
}

/// Makes a thread state for this thread, unless it has one or CPython may make it.
fn make_thread_state() -> bool {
    let interpreter = INTERPRETER.load(Ordering::Acquire);
    // SAFETY: it may be called at any time.
    if interpreter.is_null() || unsafe { ffi::Py_IsInitialized() } == 0 {
        return false;
    }
    // SAFETY: the interpreter is initialized.
    if !unsafe { ffi::PyGILState_GetThisThreadState() }.is_null() || is_traced() {
        return false;
    }
    let _making = no_fork();
    // SAFETY: the interpreter lives. The call takes no GIL: the thread that waits to fork may hold it.
    !unsafe { ffi::PyThreadState_New(interpreter) }.is_null()
}
