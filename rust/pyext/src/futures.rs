//! Python's futures.
//!
//! Owns: the thread that ends them. Does not own: what they are waiting for.

use crate::gate::{lock, raise};
use fastchangelog_core::Result;
use pyo3::prelude::*;
use std::sync::{Mutex, OnceLock, mpsc};

/// Makes a result's Python object, when there is somebody to make it for.
pub(crate) type Make = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

type Settled = (Py<PyAny>, Result<Make>);

/// Calls `settle(object, None)` or `settle(None, error)` on a thread of its own: the core's threads never wait for the
/// GIL.
pub(crate) fn settle_later(settle: Py<PyAny>, result: Result<Make>) {
    static QUEUE: OnceLock<Mutex<mpsc::Sender<Settled>>> = OnceLock::new();
    let queue = QUEUE.get_or_init(|| {
        let (sender, receiver) = mpsc::channel::<Settled>();
        let work = move || {
            for (settle, result) in receiver {
                // None: the interpreter is ending, and nobody waits any more.
                Python::try_attach(|py| {
                    let outcome = match result {
                        Ok(make) => make(py).and_then(|object| settle.call1(py, (object, py.None()))),
                        Err(error) => settle.call1(py, (py.None(), raise(py, &error))),
                    };
                    if let Err(error) = outcome {
                        error.write_unraisable(py, None);
                    }
                });
            }
        };
        let _ = std::thread::Builder::new().name("fcl-futures".to_owned()).spawn(work);
        Mutex::new(sender)
    });
    let _ = lock(queue).send((settle, result));
}
