//! The end of the interpreter, and of the process, while other threads are in our calls.
//!
//! Owns: holding back calls into Python once the interpreter ends, and leaving the process without the exit handlers of
//! libraries whose code other threads still run.
//! Does not own: calls from Python (`detached`), whether code is in use (`in_use`), the exit of forked children (`fork`).
//!
//! Before 3.14 CPython takes down a thread that asks for the GIL while the interpreter ends, in the middle of its stack.
//! PyO3 holds such a thread for ever where a call of ours returns. It cannot do so where Python code that we call asks
//! for the GIL, such as pyarrow's import of an array: there the process aborts.
//!
//! Invariants:
//! 1. when Python has called its exit handlers, no thread but the one that ends it is in a call of ours into Python,
//!    unless that call takes longer than [`PATIENCE`], or other exit handlers longer than [`PAUSE`];
//! 2. no thread waits for ever while Python code still runs: an exit handler may wait for it.

use crate::fork;
use fastchangelog_store::forked::PerProcess;
use pyo3::prelude::*;
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// How long the end of the interpreter waits for calls into Python.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a call into Python is held back while exit handlers run.
const PAUSE: Duration = Duration::from_millis(100);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(1);

#[derive(Default)]
struct InProgress {
    /// Calls into Python.
    calls: AtomicUsize,
    /// The thread that ends the interpreter.
    ending: OnceLock<ThreadId>,
}

static IN_PROGRESS: PerProcess<InProgress> = PerProcess::new(InProgress::default);

thread_local! {
    static CALLS: Cell<bool> = const { Cell::new(false) };
}

/// Calls Python code: whatever may run bytecode or let go of the GIL.
pub(crate) fn calling<T>(py: Python<'_>, call: impl FnOnce() -> T) -> T {
    if CALLS.get() {
        return call();
    }
    let progress = IN_PROGRESS.get();
    if progress.ending.get().is_some_and(|ending| *ending != std::thread::current().id()) {
        hold(py);
    }
    let _call = Call::begin(progress);
    call()
}

struct Call(&'static InProgress);

impl Call {
    fn begin(progress: &'static InProgress) -> Self {
        CALLS.set(true);
        progress.calls.fetch_add(1, Ordering::SeqCst);
        Self(progress)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::SeqCst);
        CALLS.set(false);
    }
}

/// Without the GIL, so that exit handlers go on; for ever once the interpreter ends.
fn hold(py: Python<'_>) {
    py.detach(|| {
        let since = Instant::now();
        while since.elapsed() < PAUSE {
            // SAFETY: it may be called at any time, with and without the GIL.
            while unsafe { pyo3::ffi::Py_IsInitialized() } == 0 {
                std::thread::park();
            }
            std::thread::sleep(LOOK);
        }
    });
}

/// Prepares for the end of the interpreter.
pub(crate) fn notice_end(py: Python<'_>) -> PyResult<()> {
    py.import("atexit")?.call_method1("register", (wrap_pyfunction!(interpreter_ends, py)?,)).map(drop)
}

#[pyfunction]
fn interpreter_ends(py: Python<'_>) {
    let progress = IN_PROGRESS.get();
    if progress.ending.set(std::thread::current().id()).is_err() {
        return;
    }
    py.detach(|| {
        let since = Instant::now();
        while progress.calls.load(Ordering::SeqCst) > 0 && since.elapsed() < PATIENCE {
            std::thread::sleep(LOOK);
        }
    });
    fork::leave_if_in_use();
}
