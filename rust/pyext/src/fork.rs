//! How a process exits without the exit handlers of libraries: a forked child, and one whose threads still use them.
//!
//! Owns: skipping those handlers. In a child RocksDB's would wait for threads that do not exist there: the child crashed,
//! or hung. In a process whose daemon threads are in our calls they would take away what those threads use.
//! Does not own: which objects a child may use (`detached`), when threads still use libraries (`in_use`).
//!
//! Python's own exit handlers have run by then, and what C had buffered is written.
//!
//! Only glibc has an exit handler that is given the exit status (`on_exit`). With another C library, as on macOS, a child
//! must leave with `os._exit`, as those of `multiprocessing` do.

use pyo3::prelude::*;

/// Arranges it for all children that are forked from now on.
pub(crate) fn let_children_exit(py: Python<'_>) -> PyResult<()> {
    static ONCE: pyo3::sync::PyOnceLock<()> = pyo3::sync::PyOnceLock::new();
    ONCE.get_or_try_init(py, || {
        let how = pyo3::types::PyDict::new(py);
        how.set_item("after_in_child", wrap_pyfunction!(exit_early, py)?)?;
        py.import("os")?.call_method("register_at_fork", (), Some(&how)).map(drop)
    })
    .copied()
}

/// Handlers run in reverse order of registration: this one before all that were inherited.
#[pyfunction]
fn exit_early() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::exit_early();
}

/// At the exit of this process, if something is in use then. Called when the interpreter ends: before the handlers that
/// were registered until now.
pub(crate) fn leave_if_in_use() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::exit_early_if_in_use();
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use std::ffi::{c_int, c_void};
    use std::ptr::null_mut;

    unsafe extern "C" {
        fn on_exit(handler: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
        fn fflush(stream: *mut c_void) -> c_int;
        fn _exit(status: c_int) -> !;
    }

    extern "C" fn leave(status: c_int, _: *mut c_void) {
        // SAFETY: null means all streams; both functions may be called in an exit handler.
        unsafe {
            fflush(null_mut());
            _exit(status)
        }
    }

    extern "C" fn leave_if_in_use(status: c_int, argument: *mut c_void) {
        if crate::in_use::is_in_use() {
            leave(status, argument);
        }
    }

    pub(super) fn exit_early_if_in_use() {
        // SAFETY: as in `exit_early`.
        unsafe {
            on_exit(leave_if_in_use, null_mut());
        }
    }

    pub(super) fn exit_early() {
        // SAFETY: the handler is a function of this library, which is never unloaded, and uses no argument.
        unsafe {
            on_exit(leave, null_mut());
        }
    }
}
