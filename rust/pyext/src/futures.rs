//! Python's futures, and calls from the core's threads.
//!
//! Owns: the thread that resolves them. Does not own: the awaited work, the callbacks of a program (`futures.py`: each
//! state has a thread of its own for those, so that this one is never held up).

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
                Python::try_attach(|py| {
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
