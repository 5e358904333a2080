//! Python's futures, and calls from the core's threads.
//!
//! Owns: the thread that resolves them, which also frees objects of Python's. Does not own: the awaited work, the callbacks of a program (`futures.py`: each
//! state has a thread of its own for those, so that this one is never held up).

use crate::attached::attached;
use crate::detached::{calling, lock, raise};
use fastchangelog_format::Result;
use fastchangelog_store::forked::PerProcess;
use fastchangelog_store::threads::spawn;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};

/// Makes a result's Python object, while the interpreter runs.
pub(crate) type Make = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

type Callback = Box<dyn FnOnce(Python<'_>) -> PyResult<()> + Send>;

/// Calls `settle(object, None)` or `settle(None, error)` on a thread of its own, which [`start_resolving`] has started:
/// the core's threads never wait for the GIL.
pub(crate) fn resolve_later(settle: Py<PyAny>, result: Result<Make>) {
    call_later(Box::new(move |py| {
        match result {
            Ok(make) => make(py).and_then(|object| settle.call1(py, (object, py.None()))),
            Err(error) => settle.call1(py, (py.None(), raise(py, &error))),
        }
        .map(drop)
    }));
}

/// A function without arguments that is called on that thread, once for all requests since the last call.
pub(crate) struct CoalescedCallback {
    function: Arc<Py<PyAny>>,
    asked: Arc<AtomicBool>,
}

impl CoalescedCallback {
    pub(crate) fn new(function: Py<PyAny>) -> Self {
        Self { function: Arc::new(function), asked: Arc::default() }
    }

    pub(crate) fn ask(&self) {
        if self.asked.swap(true, Ordering::AcqRel) {
            return;
        }
        let (function, asked) = (Arc::clone(&self.function), Arc::clone(&self.asked));
        call_later(Box::new(move |py| {
            asked.store(false, Ordering::Release);
            function.call0(py).map(drop)
        }));
    }
}

/// Drops `object`, which may need the GIL, on that thread: not one of the core's then waits for it. Once the
/// interpreter ends, the object is left to the end of the process.
pub(crate) fn drop_later<T: Send + 'static>(object: T) {
    let mut object = Left(Some(object));
    call_later(Box::new(move |_| {
        drop(object.0.take());
        Ok(())
    }));
}

/// Not dropped unless it is taken out.
struct Left<T>(Option<T>);

impl<T> Drop for Left<T> {
    fn drop(&mut self) {
        #[expect(clippy::mem_forget, reason = "the interpreter that it needs has ended, or is the parent's")]
        std::mem::forget(self.0.take());
    }
}

/// None until the thread was started. A forked child starts its own.
static RESOLVER: PerProcess<Mutex<Option<mpsc::Sender<Callback>>>> = PerProcess::new(Mutex::default);

/// Starts the thread, unless it runs: before work begins of which the end is to be told.
pub(crate) fn start_resolving() -> Result<()> {
    let mut resolver = lock(RESOLVER.get());
    if resolver.is_none() {
        let (sender, receiver) = mpsc::channel::<Callback>();
        let work = move || {
            for call in receiver {
                // None: the interpreter is ending, and no caller waits any more.
                attached(|py| {
                    if let Err(error) = calling(py, || call(py)) {
                        error.write_unraisable(py, None);
                    }
                });
            }
        };
        spawn("fcl-futures", "the thread that resolves futures", work)?;
        *resolver = Some(sender);
    }
    Ok(())
}

fn call_later(call: Callback) {
    if let Some(sender) = lock(RESOLVER.get()).as_ref() {
        let _ = sender.send(call);
    }
}
