//! A folder of objects as Python's sweep sees it. Owns: signatures, and what a sweep must know of a manifest or an index
//! as JSON; requests are the core's.

use crate::detached::{ProcessBound, detached, raise};
use fastchangelog_core::shard::savepoint::attended;
use fastchangelog_format::config::Options;
use fastchangelog_format::{
    Error, Result, StartNote, decode_head, decode_manifest, decode_note, decode_segment_index, decode_start,
    encode_start,
};
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::metrics::SharedMetrics;
use fastchangelog_store::{Listed, ObjectType, Store, head_number, is_creation_note, start_io_threads};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::runtime::Runtime;

const WHAT: &str = "object folder";

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct ObjectFolder(ProcessBound<(Store, Arc<Runtime>)>);

impl ObjectFolder {
    fn run<T: Send, F>(&self, py: Python<'_>, work: impl FnOnce(Store) -> F + Send) -> PyResult<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        detached(py, |tick| {
            let (store, runtime) = self.0.get(WHAT)?;
            attended(runtime.handle(), work(store.clone()), tick)
        })
    }
}

#[pymethods]
impl ObjectFolder {
    #[new]
    fn new(
        py: Python<'_>,
        uri: &str,
        options: BTreeMap<String, String>,
        storage_options: BTreeMap<String, String>,
    ) -> PyResult<Self> {
        detached(py, |_| {
            let points = Failpoints::parse(&std::env::var("FASTCHANGELOG_FAILPOINTS").unwrap_or_default())?;
            let options = Options::from_map(&options)?;
            let store = Store::open(uri, &storage_options, &options, SharedMetrics::default(), points)?;
            Ok(Self(ProcessBound::new((store, Arc::new(start_io_threads()?)))))
        })
    }

    fn child(&self, py: Python<'_>, folder: &str) -> PyResult<Self> {
        let (store, runtime) = self.0.get(WHAT).map_err(|e| raise(py, &e))?;
        let child = detached(py, |_| store.folder(folder))?;
        Ok(Self(ProcessBound::new((child, Arc::clone(runtime)))))
    }

    #[getter]
    fn uri(&self, py: Python<'_>) -> PyResult<&str> {
        Ok(self.0.get(WHAT).map_err(|e| raise(py, &e))?.0.uri())
    }

    fn list(&self, py: Python<'_>, prefix: &str) -> PyResult<Vec<(String, u64, f64)>> {
        Ok(rows(self.run(py, |store| async move { store.list(prefix).await })?))
    }

    #[pyo3(signature = (prefix, most = None))]
    fn survey(
        &self,
        py: Python<'_>,
        prefix: &str,
        most: Option<usize>,
    ) -> PyResult<(Vec<(String, u64, f64)>, BTreeMap<String, String>)> {
        let found = self.run(py, |store| async move {
            let found = store.survey(prefix).await?;
            match most.filter(|most| found.objects.len() > *most) {
                Some(most) => Err(Error::store(format!("{} holds more than {most} objects", store.uri()))),
                None => Ok(found),
            }
        })?;
        Ok((rows(found.objects), found.foreign))
    }

    fn read<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let bytes = self.run(py, |store| async move { store.get_named(name).await })?;
        Ok(bytes.map(|bytes| PyBytes::new(py, &bytes)))
    }

    fn write(&self, py: Python<'_>, name: &str, data: Vec<u8>) -> PyResult<()> {
        self.run(py, |store| async move { store.put_overwrite(name, data.into()).await })
    }

    fn delete(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.run(py, |store| async move { store.delete(name).await })
    }

    /// Writes, reads and removes a small object; fails if the store creates it twice.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, |store| async move { store.check().await })
    }
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds of this age are exact")]
fn rows(listed: Vec<Listed>) -> Vec<(String, u64, f64)> {
    listed.into_iter().map(|l| (l.name, l.size, l.modified_millis as f64 / 1000.0)).collect()
}

/// The schemes of URIs.
#[pyfunction]
pub(crate) fn uri_schemes() -> Vec<&'static str> {
    fastchangelog_store::schemes().collect()
}

/// An address as a message may show it.
#[pyfunction]
pub(crate) fn clean_uri(uri: &str) -> String {
    fastchangelog_store::clean_uri(uri)
}

/// What an object is, by its name in a state's folder.
#[pyfunction]
pub(crate) fn object_type(name: &str) -> Option<&'static str> {
    if head_number(name).is_some() {
        return Some("head");
    }
    if is_creation_note(name) {
        return Some("creates");
    }
    fastchangelog_store::object_type(name).map(|kind| match kind {
        ObjectType::Log => "log",
        ObjectType::Sst => "sst",
        ObjectType::Manifest => "base",
        ObjectType::Index => "index",
        ObjectType::Probe => "probe",
        ObjectType::Note => "note",
    })
}

/// A snapshot's manifest as JSON: its ids, and the objects that it names.
#[pyfunction]
pub(crate) fn manifest_json(py: Python<'_>, name: &str, data: &[u8]) -> PyResult<String> {
    detached(py, |_| {
        let manifest = decode_manifest(name, data)?;
        // Small files share an object.
        let objects: BTreeSet<&str> = manifest.files.iter().map(|file| file.object.name.as_str()).collect();
        Ok(serde_json::json!({
            "instance": manifest.instance.to_string(),
            "version": manifest.version.to_string(),
            "replay_after": manifest.replay_after.to_string(),
            "objects": objects,
        })
        .to_string())
    })
}

/// The segments that an index object lists, as JSON.
#[pyfunction]
pub(crate) fn segment_index_json(py: Python<'_>, name: &str, data: &[u8]) -> PyResult<String> {
    detached(py, |_| {
        let segments = decode_segment_index(name, data)?;
        let rows: Vec<_> = segments.iter().map(|s| (s.version.to_string(), &s.object.name)).collect();
        serde_json::to_string(&rows).map_err(Error::internal)
    })
}

/// A folder's note as JSON, without its format and its checksum.
#[pyfunction]
pub(crate) fn folder_note_json(py: Python<'_>, name: &str, data: &[u8]) -> PyResult<String> {
    detached(py, |_| serde_json::to_string(&decode_note(name, data)?).map_err(Error::internal))
}

/// The bytes of the note of a start.
#[pyfunction]
pub(crate) fn start_note<'py>(
    py: Python<'py>,
    checkpoint: Option<String>,
    gone: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = detached(py, |_| encode_start(&StartNote { checkpoint, gone }))?;
    Ok(PyBytes::new(py, &bytes))
}

/// The note of a start as JSON: `checkpoint`, which may be null, and `gone`.
#[pyfunction]
pub(crate) fn start_note_json(py: Python<'_>, name: &str, data: &[u8]) -> PyResult<String> {
    detached(py, |_| serde_json::to_string(&decode_start(name, data)?).map_err(Error::internal))
}

/// A head of an embedded state as JSON.
#[pyfunction]
pub(crate) fn head_json(py: Python<'_>, name: &str, data: &[u8]) -> PyResult<String> {
    detached(py, |_| {
        let head = decode_head(name, data)?;
        let handle = serde_json::to_string(&head.handle).map_err(Error::internal)?;
        Ok(format!(r#"{{"number":{},"epoch":{},"handle":{handle}}}"#, head.number, head.epoch))
    })
}
