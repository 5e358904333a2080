//! Calls from Python into the core, detached from the interpreter.
//!
//! Owns: releasing the GIL, checking for signals during waits, and mapping errors to Python's classes.
//! Does not own: any behaviour; that belongs to the core or to the server crate; the end of the interpreter (`ending`).
//!
//! Rules: every call that may block goes through [`detached`]; `Python::detach` appears here and in `ending` only. Every
//! call of Python code goes through [`calling`].

use crate::attached::attached;
pub(crate) use crate::ending::calling;
use crate::in_use::Use;
use fastchangelog_format::clock::Tick;
use fastchangelog_format::{Error, Result};
use fastchangelog_store::forked::generation;
use fastchangelog_store::printable;
use pyo3::prelude::*;
use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Runs `work` without the GIL. Its tick runs the handlers of signals that came: waits must call it at intervals, and
/// hold no lock that a call of ours takes, nor be on a runtime, because a handler may make such calls.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce(Tick<'_>) -> Result<T> + Send) -> PyResult<T> {
    let outcome = py.detach(|| {
        let _use = Use::begin();
        work(&check_signals)
    });
    match INTERRUPT.take() {
        Some(interrupt) => Err(interrupt),
        None => outcome.map_err(|error| raise(py, &error)),
    }
}

thread_local! {
    /// The exception of a signal's handler, until the [`detached`] call of this thread returns.
    static INTERRUPT: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Runs the handlers of signals that came: the tick of [`detached`], for calls that take none. Only within [`detached`].
pub(crate) fn check_signals() -> Result<()> {
    #[expect(clippy::redundant_closure_for_method_calls, reason = "the bare method fits one lifetime only")]
    match attached(|py| py.check_signals()) {
        Some(Ok(())) => Ok(()),
        Some(Err(error)) => {
            INTERRUPT.set(Some(error));
            Err(Error::closed("interrupted"))
        }
        None => Err(Error::closed("the Python interpreter is ending")),
    }
}

/// An error as the Python exception of its kind, on one line, with its parts and its chain of causes.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    // Names of others may hold anything.
    let one_line = |text: &str| printable(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    let remedy = error.remedy().map(one_line);
    let subject = error.subject().map(|subject| (subject.type_name(), printable(&subject.to_string())));
    let causes: Vec<_> = error.causes().into_iter().map(|cause| (printable(&cause.text), cause.os_error)).collect();
    let parts = (error.kind().name(), one_line(error.message()), remedy, subject, causes);
    let made = calling(py, || {
        py.import("fastchangelog.errors").and_then(|errors| errors.call_method1("error_of_kind", parts))
    });
    made.map_or_else(|error| error, PyErr::from_value)
}

/// Locks a mutex whose holders never wait.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes an object that only one thread may use at a time.
pub(crate) fn exclusive<'a, T>(mutex: &'a Mutex<T>, what: &str) -> Result<MutexGuard<'a, T>> {
    match mutex.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(guard)) => Ok(guard.into_inner()),
        Err(TryLockError::WouldBlock) => {
            Err(Error::invalid(format!("this {what} is in use by another thread"))
                .with_remedy("give each thread its own"))
        }
    }
}

/// A value that must not be dropped in a forked child: that would remove files that the parent uses.
pub(crate) struct ProcessBound<T: Send> {
    /// Some until the drop.
    value: Option<T>,
    owner: Owner,
    _use: Use,
}

impl<T: Send> ProcessBound<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Some(value), owner: Owner::here(), _use: Use::begin() }
    }

    /// The value, in the process that made it.
    #[inline]
    pub(crate) fn get(&self, what: &str) -> Result<&T> {
        self.owner.check(what)?;
        self.value.as_ref().ok_or_else(|| Error::closed(format!("this {what} has ended")))
    }
}

impl<T: Send> Drop for ProcessBound<T> {
    fn drop(&mut self) {
        let Some(value) = self.value.take() else { return };
        if self.owner.check("").is_err() {
            #[expect(clippy::mem_forget, reason = "the owner's process ends it")]
            std::mem::forget(value);
            return;
        }
        // An end may wait for threads and files.
        let mut value = Some(value);
        let _ = attached(|py| {
            detached(py, |_| {
                drop(value.take());
                Ok(())
            })
        });
    }
}

/// Refuses to use an object in a process other than the one that made it: its threads do not exist there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner {
    generation: u64,
    pid: u32,
}

impl Owner {
    pub(crate) fn here() -> Self {
        Self { generation: generation(), pid: std::process::id() }
    }

    #[inline]
    pub(crate) fn check(self, what: &str) -> Result<()> {
        if self.generation == generation() { Ok(()) } else { Err(self.refusal(what)) }
    }

    #[cold]
    fn refusal(self, what: &str) -> Error {
        let (owner, pid) = (self.pid, std::process::id());
        Error::closed(format!("this {what} belongs to process {owner} and cannot be used in its forked child {pid}"))
            .with_remedy("make one in the child, or start processes with the \"spawn\" method")
    }
}
