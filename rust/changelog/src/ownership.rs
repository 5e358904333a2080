//! Reference counts of log objects: how many change sets of each object may still be needed.
//!
//! Owns: the counts, and background deletion when a count reaches zero, with a bound on concurrency.
//! Does not own: why a set is not needed any more (`ledger`), objects without a count: those are left to garbage
//! collection.
//!
//! Invariants of [`Registry`]:
//! 1. an object is deleted only when every set in it was released, whichever writer the set is of; never directly;
//! 2. an object that another component owns ([`Registry::stop_tracking`]) is never deleted here, whatever is released;
//! 3. a failed deletion is logged and counted, never an error: garbage collection finds the object.

use crate::store::Store;
use crate::sync::{Handle, Mutex};
use fastchangelog_format::model::ObjectRef;
use fastchangelog_store::metrics::SharedMetrics;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Log objects deleted at the same time. Deletions have no deadline, and one at a time leaves the request slots of the store
/// to uploads.
const DISCARDS: usize = 1;

/// The log objects of one storage whose sets are counted. Cheap to clone.
#[derive(Clone)]
pub struct Registry {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    runtime: Handle,
    metrics: SharedMetrics,
    /// One permit for each deletion in progress.
    slots: Semaphore,
    /// Sets of each object that are needed.
    counts: Mutex<HashMap<Arc<str>, u64>>,
}

impl Registry {
    /// A registry that deletes from `store`.
    pub fn new(store: Store, runtime: Handle, metrics: SharedMetrics) -> Self {
        let slots = Semaphore::new(DISCARDS);
        let inner = Inner { store, runtime, metrics, slots, counts: Mutex::default() };
        Self { inner: Arc::new(inner) }
    }

    /// `sets` sets of `object` may be needed. Must be called before any of them can be released.
    pub fn start_tracking(&self, object: &str, sets: u64) {
        self.inner.counts.lock().insert(object.into(), sets);
    }

    /// A set of `object` will never be needed again. The last one's object is deleted in the background.
    pub fn release(&self, object: &str) {
        {
            let mut counts = self.inner.counts.lock();
            let Some(count) = counts.get_mut(object) else {
                tracing::debug!(object, "a set of an object that is not tracked was released");
                return;
            };
            *count -= 1;
            if *count > 0 {
                return;
            }
            counts.remove(object);
        }
        self.delete(object.to_owned());
    }

    /// Another component owns `object` from now on.
    pub fn stop_tracking(&self, object: &str) {
        self.inner.counts.lock().remove(object);
    }

    /// True while sets of `object` are counted.
    pub fn is_tracked(&self, object: &str) -> bool {
        self.inner.counts.lock().contains_key(object)
    }

    /// Objects that are counted.
    pub fn tracked(&self) -> usize {
        self.inner.counts.lock().len()
    }

    fn delete(&self, object: String) {
        let inner = Arc::clone(&self.inner);
        inner.metrics.discards_pending.add(1);
        self.inner.runtime.spawn(async move {
            let Ok(_slot) = inner.slots.acquire().await else { return };
            match inner.store.delete(&object).await {
                Ok(()) => inner.metrics.discards.add(1),
                Err(error) => {
                    inner.metrics.discard_failures.add(1);
                    tracing::warn!(object, %error, "cannot delete a log object that nothing needs; a sweep will");
                }
            }
            inner.metrics.discards_pending.sub(1);
        });
    }
}

/// Which local copies a checkpoint that is not confirmed yet may still want: the newest checkpoint that used each object.
///
/// Copies are a convenience: without one there is the store. So nothing here is exact between writers that count their
/// checkpoints differently; the newest number wins.
#[derive(Debug, Default)]
pub struct LocalRegistry {
    last_used: Mutex<HashMap<ObjectRef, u64>>,
}

impl LocalRegistry {
    /// `checkpoint` names `object`.
    pub fn register(&self, object: &ObjectRef, checkpoint: u64) {
        let mut last_used = self.last_used.lock();
        match last_used.get_mut(object) {
            Some(last) => *last = checkpoint.max(*last),
            None => drop(last_used.insert(object.clone(), checkpoint)),
        }
    }

    /// Forgets the objects that only checkpoints older than `checkpoint` used, and gives them back.
    pub fn discard_up_to(&self, checkpoint: u64) -> Vec<ObjectRef> {
        self.last_used.lock().extract_if(|_, last| *last < checkpoint).map(|(object, _)| object).collect()
    }

    /// Forgets an object that is deleted.
    pub fn forget(&self, object: &ObjectRef) {
        self.last_used.lock().remove(object);
    }
}

#[cfg(test)]
#[path = "ownership_tests.rs"]
mod tests;
