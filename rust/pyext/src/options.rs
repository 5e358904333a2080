//! Options, failpoints and build facts. Owns: nothing; the tables are the core's.

use crate::detached::{detached, raise};
use fastchangelog_format::Result;
use fastchangelog_format::config::{self, Options};
use fastchangelog_format::model::ids;
use fastchangelog_store::failpoint::{Failpoints, SharedFailpoints};
use fastchangelog_store::forked::PerProcess;
use pyo3::prelude::*;
use std::collections::BTreeMap;

/// `(name, default, meaning, is_public)` of every option.
#[pyfunction]
pub(crate) fn options_table() -> Vec<(&'static str, &'static str, &'static str, bool)> {
    Options::TABLE.iter().map(|row| (row.name, row.default, row.meaning.trim(), row.is_public)).collect()
}

/// Checks names and values of options.
#[pyfunction]
pub(crate) fn parse_options(py: Python<'_>, options: BTreeMap<String, String>) -> PyResult<()> {
    Options::from_map(&options).map(drop).map_err(|e| raise(py, &e))
}

/// Seconds of a duration's text.
#[pyfunction]
pub(crate) fn parse_duration(py: Python<'_>, name: &str, value: &str) -> PyResult<f64> {
    config::parse_duration(name, value).map(|d| d.as_secs_f64()).map_err(|e| raise(py, &e))
}

/// Bytes of a size's text.
#[pyfunction]
pub(crate) fn parse_size(py: Python<'_>, name: &str, value: &str) -> PyResult<u64> {
    config::parse_size(name, value).map_err(|e| raise(py, &e))
}

/// Storage options from two places, of which `over` wins.
#[pyfunction]
pub(crate) fn overlay_storage_options(
    under: BTreeMap<String, String>,
    over: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    fastchangelog_store::overlaid(&under, &over)
}

/// True for the name of a storage option whose value must not be shown.
#[pyfunction]
pub(crate) fn is_secret_option(name: &str) -> bool {
    fastchangelog_store::is_secret(name)
}

/// Key groups of a state of `shards` shards.
#[pyfunction]
pub(crate) fn default_max_parallelism(shards: u32) -> u16 {
    ids::default_max_parallelism(shards)
}

/// How this binary was built.
#[pyfunction]
pub(crate) fn build_info() -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        ("version", fastchangelog_server::VERSION.to_owned()),
        ("profile", if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned()),
        ("protocol", fastchangelog_server::protocol::PROTOCOL_VERSION.to_string()),
        ("target", format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS)),
    ])
}

/// A worker's failpoint: does nothing unless the environment sets failpoints.
#[pyfunction]
pub(crate) fn failpoint(py: Python<'_>, name: &str) -> PyResult<()> {
    static POINTS: PerProcess<Result<SharedFailpoints>> =
        PerProcess::new(|| Failpoints::parse(&std::env::var("FASTCHANGELOG_FAILPOINTS").unwrap_or_default()));
    detached(py, |_| POINTS.get().as_ref().map_err(Clone::clone)?.hit(name))
}
