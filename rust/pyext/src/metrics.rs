//! Metrics of this process's engines, for Python and for the process's text endpoint.
//!
//! Owns: the entry of each engine that Python opens, the one endpoint of the process.
//! Does not own: the sum and the text (the core), HTTP (the server crate).

use crate::detached::{detached, lock};
use fastchangelog_changelog::ChangelogStorage;
use fastchangelog_core::embedded::EmbeddedState;
use fastchangelog_format::config::Options;
use fastchangelog_format::{Error, Result};
use fastchangelog_server::MetricsEndpoint;
use fastchangelog_store::forked::PerProcess;
use fastchangelog_store::metrics::{LabelledShard, Metrics, Process, Registration, ShardGauges, render};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

struct StateEngine(Weak<EmbeddedState>);

impl Registration for StateEngine {
    fn is_open(&self) -> bool {
        self.0.upgrade().is_some_and(|state| !state.is_closed())
    }

    fn measure(&self) -> Option<LabelledShard> {
        let state = self.0.upgrade()?;
        state.metrics();
        Some(state.status().labelled())
    }
}

struct ChangelogEngine(Weak<ChangelogStorage>);

impl Registration for ChangelogEngine {
    fn is_open(&self) -> bool {
        self.0.strong_count() > 0
    }

    fn measure(&self) -> Option<LabelledShard> {
        None
    }
}

/// Adds an embedded state to the metrics of the process.
pub(crate) fn register_state(state: &Arc<EmbeddedState>) {
    Process::global().register(Arc::clone(state.metrics()), Box::new(StateEngine(Arc::downgrade(state))));
}

/// Adds a changelog storage to the metrics of the process.
pub(crate) fn register_changelog(storage: &Arc<ChangelogStorage>) {
    Process::global().register(Arc::clone(storage.metrics()), Box::new(ChangelogEngine(Arc::downgrade(storage))));
}

/// The endpoint of this process: a forked child begins with none.
static ENDPOINT: PerProcess<Mutex<Option<MetricsEndpoint>>> = PerProcess::new(Mutex::default);

/// Starts the endpoint of the process, if these options name a port. It lives as long as the process.
pub(crate) fn serve(options: &Options) -> Result<()> {
    let Some(port) = options.metrics_port() else { return Ok(()) };
    let mut endpoint = lock(ENDPOINT.get());
    match endpoint.as_ref().map(|open| open.address().port()) {
        Some(open) if open == port => Ok(()),
        Some(open) => Err(Error::invalid(format!("this process already has its metrics at port {open}"))
            .with_remedy("give the option `metrics_port` the same value everywhere")),
        None => {
            let text = || {
                let (metrics, shards) = Process::global().read();
                render(&metrics, &shards)
            };
            *endpoint = Some(MetricsEndpoint::start(port, Arc::new(text))?);
            Ok(())
        }
    }
}

/// The sum of the metrics of this process's engines, by name.
#[pyfunction]
pub(crate) fn process_metrics(py: Python<'_>) -> PyResult<BTreeMap<String, u64>> {
    detached(py, |_| Ok(Process::global().read().0.all()))
}

type Rows = Vec<(&'static str, &'static str, &'static str, &'static str)>;

/// `(name, kind, operators, meaning)` of every metric; `kind` is counter, gauge, histogram, batch or shard, `operators`
/// says whose batches report it: none, all, aggregation or processor.
#[pyfunction]
pub(crate) fn metrics_table() -> Rows {
    let of_batch = Metrics::OF_BATCH.iter().map(|row| (row, "batch"));
    let engine = Metrics::TABLE.iter().map(|row| (row, row.kind.name()));
    let of_shard = ShardGauges::TABLE.iter().map(|row| (row, "shard"));
    let rows = of_batch.chain(engine).chain(of_shard);
    rows.map(|(row, kind)| (row.name, kind, row.operators.name(), row.meaning.trim())).collect()
}
