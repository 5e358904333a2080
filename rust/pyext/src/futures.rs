//! Python's futures, and calls from the core's threads.
//!
//! Owns: the thread that resolves them. Does not own: the awaited work.

use crate::detached::{lock, raise};
use fastchangelog_format::Result;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};

/// Makes a result's Python object, while the interpreter runs.
pub(crate) type Make = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

type Callback = Box<dyn FnOnce(Python<'_>) -> PyResult<()> + Send>;

/// Calls `settle(object, None)` or `settle(None, error)` on a thread of its own: the core's threads never wait for the
/// GIL.
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

fn call_later(call: Callback) {
    static QUEUE: OnceLock<Mutex<mpsc::Sender<Callback>>> = OnceLock::new();
    let queue = QUEUE.get_or_init(|| {
        let (sender, receiver) = mpsc::channel::<Callback>();
        let work = move || {
            for call in receiver {
                // None: the interpreter is ending, and no caller waits any more.
                Python::try_attach(|py| {
                    if let Err(error) = call(py) {
                        error.write_unraisable(py, None);
                    }
                });
            }
        };
        let _ = std::thread::Builder::new().name("fcl-futures".to_owned()).spawn(work);
        Mutex::new(sender)
    });
    let _ = lock(queue).send(call);
}
