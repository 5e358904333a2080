//! Copies within a store: the requests, the refusals, the leftovers.

use super::super::fault::{Fault, FaultStore, Operation};
use super::super::{Store, log_name};
use crate::failpoint::Failpoints;
use crate::metrics::SharedMetrics;
use bytes::Bytes;
use fastchangelog_format::config::Options;
use fastchangelog_format::error::ErrorKind;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

fn folder(path: &Path) -> Store {
    let (metrics, failpoints) = (SharedMetrics::default(), Failpoints::none());
    Store::open(&path.display().to_string(), &BTreeMap::new(), &Options::default(), metrics, failpoints).unwrap()
}

/// Two connections to one store, as a state and a savepoint have them.
fn two(faults: &Arc<FaultStore>) -> (Store, Store) {
    let open = |prefix: &str| {
        let (metrics, failpoints) = (SharedMetrics::default(), Failpoints::none());
        let uri = format!("test://b/{prefix}");
        Store::from_object_store(Arc::clone(faults) as _, prefix, &uri, &Options::default(), metrics, failpoints)
    };
    (open("state"), open("savepoint"))
}

#[tokio::test]
async fn invariant_3_files_are_left_to_the_caller() {
    let disk = tempfile::tempdir().unwrap();
    let (from, to) = (folder(&disk.path().join("from")), folder(&disk.path().join("to")));
    let object = from.put_new(&log_name(), vec![Bytes::from_static(b"content")]).await.unwrap();
    assert!(!to.copy_within(&from, &object).await.unwrap());
    assert!(to.list("").await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_store_copies_and_leaves_refusals_to_the_caller() {
    let faults = FaultStore::in_memory();
    let (from, to) = two(&faults);
    let object = from.put_new(&log_name(), vec![Bytes::from_static(b"content")]).await.unwrap();
    assert!(to.copy_within(&from, &object).await.unwrap());
    assert_eq!(to.get(&object).await.unwrap(), "content");
    // Passing trouble is tried again; an answer that was lost as well.
    for fault in [Fault::FailBefore, Fault::FailAfter, Fault::Throttled, Fault::Hang, Fault::HangAfter] {
        to.delete(&object.name).await.unwrap();
        faults.next(fault);
        assert!(to.copy_within(&from, &object).await.unwrap(), "{fault:?}");
    }
    to.delete(&object.name).await.unwrap();
    // What is not there, or not as long as it should be.
    let missing = fastchangelog_format::model::ObjectRef { name: log_name(), ..object.clone() };
    assert!(!to.copy_within(&from, &missing).await.unwrap());
    let longer = fastchangelog_format::model::ObjectRef { size: 99, ..object.clone() };
    assert!(to.copy_within(&from, &longer).await.unwrap_err().is_retryable());
    assert!(to.list("").await.unwrap().is_empty());
    assert!(to.copy_within(&from, &object).await.unwrap());
    to.delete(&object.name).await.unwrap();
    // A store that may not be asked is not asked again.
    faults.always(Operation::Put, Fault::Denied);
    assert!(!to.copy_within(&from, &object).await.unwrap());
    faults.heal();
    assert!(!to.copy_within(&from, &object).await.unwrap());
    let elsewhere = two(&FaultStore::in_memory()).1;
    assert!(!elsewhere.copy_within(&from, &object).await.unwrap(), "another store");
    assert_eq!(elsewhere.get(&object).await.unwrap_err().kind(), ErrorKind::NotFound);
}
