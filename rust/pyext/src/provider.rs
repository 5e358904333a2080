//! Credentials of a Python function.
//!
//! Owns: asking the function, its exceptions as errors, and opening stores with it.
//! Does not own: when it is asked and on which thread (`fastchangelog_store::credentials`: never one that others
//! wait for), nor the check of what it returns (`fastchangelog.options.request_credentials`).

use crate::attached::attached;
use crate::detached::calling;
use fastchangelog_changelog::ChangelogStorage;
use fastchangelog_format::clock::SharedClock;
use fastchangelog_format::config::Options;
use fastchangelog_format::{Error, ErrorKind, Result};
use fastchangelog_store::Store;
use fastchangelog_store::credentials::{Granted, Provider};
use fastchangelog_store::environment::Environment;
use pyo3::exceptions::PyPermissionError;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Opens a changelog whose store asks the function `ask` for credentials, if there is one.
pub(crate) fn open(
    uri: &str,
    options: &BTreeMap<String, String>,
    storage_options: &BTreeMap<String, String>,
    ask: Option<Py<PyAny>>,
    cache_dir: Option<&Path>,
    environment: &Environment,
) -> Result<ChangelogStorage> {
    let options = Options::for_changelog(options)?;
    let provider = ask.map(|ask| provider(ask, &environment.clock));
    let (metrics, failpoints) = (Arc::clone(&environment.metrics), Arc::clone(&environment.failpoints));
    let store = Store::open_with(uri, storage_options, provider, &options, metrics, failpoints)?;
    ChangelogStorage::over(store, options, cache_dir, environment)
}

/// The function `ask` in the form that the core calls.
pub(crate) fn provider(ask: Py<PyAny>, clock: &SharedClock) -> Provider {
    Provider::new(Arc::new(move || asked(&ask)), Arc::clone(clock))
}

fn asked(ask: &Py<PyAny>) -> Result<Granted> {
    let answer = attached(|py| {
        let answer = calling(py, || ask.call0(py))
            .and_then(|answer| answer.extract::<(BTreeMap<String, String>, Option<f64>)>(py));
        let (options, end) = answer.map_err(|error| refusal(py, &error))?;
        Ok(Granted { options, expires_at_millis: end.map(|seconds| (seconds * 1000.0) as u64) })
    });
    answer.unwrap_or_else(|| Err(Error::closed("the Python interpreter is ending")))
}

/// An exception of the function: ours keep their kind, missing rights are missing rights, all else may pass.
fn refusal(py: Python<'_>, error: &PyErr) -> Error {
    let kind = if error.is_instance_of::<PyPermissionError>(py) {
        ErrorKind::PermissionDenied
    } else {
        let name = calling(py, || {
            py.import("fastchangelog.errors")?.call_method1("kind_of", (error.value(py),))?.extract::<String>()
        });
        match name.map_or(ErrorKind::Internal, |name| ErrorKind::from_name(&name)) {
            ErrorKind::Internal => ErrorKind::Retryable,
            kind => kind,
        }
    };
    Error::new(kind, error.to_string())
}
