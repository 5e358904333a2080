//! The plain changelog: a log of bytes by key group, usable by itself.
//!
//! ```text
//! Writer: append ─► buffer ─► ledger ─► LogWriter ─► store          Reader: handle ─► ranges / local copy ─► changes
//!                               │ a set is not needed any more
//!                               └► Registry ─► deleted in the background; Storage::sweep finds uncounted objects
//! ```
//!
//! Layer 3: imports `fastchangelog-log` and the crates below it.
//!
//! ```text
//! buffer, block_pool  appends become a set             ledger     the location and the users of a writer's sets
//! attempt             a set on its way into the log    ownership  reference counts of log objects
//! writer              all of these, for one writer     changes    reading back
//! references          values in the caller's memory    cache_dirs folders of local copies
//! gc                  the sweep
//! ```
//!
//! Owns: wiring the stages, one object per process for all writers of a storage, and its close.
//! Does not own: keyed state (`fastchangelog-core`), log objects and local copies (`fastchangelog-log`).
//!
//! Semantics are those of Apache Flink's changelog storage (FLIP-158), with its faults fixed.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod attempt;
mod block_pool;
mod buffer;
mod cache_dirs;
pub mod changes;
pub mod gc;
mod ledger;
mod ownership;
mod references;
pub mod writer;

// `rust/shuttle-tests` compiles files of this crate a second time, with a store and primitives of its own under these
// names. So they say `crate::store` and `crate::sync`.
use fastchangelog_store as store;
use fastchangelog_store::sync;

use block_pool::BlockPool;
use changes::ChangeReader;
use fastchangelog_format::clock::SharedClock;
use fastchangelog_format::config::Options;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::ids::MAX_KEY_GROUPS;
use fastchangelog_format::model::{KeyGroupRange, SetRef};
use fastchangelog_log::read::ObjectCache;
use fastchangelog_log::write::LogWriter;
use fastchangelog_store::Store;
use fastchangelog_store::address_space::check_memory;
use fastchangelog_store::environment::Environment;
use fastchangelog_store::metrics::SharedMetrics;
use fastchangelog_store::threads::start_io_threads;
use ownership::{LocalRegistry, Registry};
use parking_lot::Mutex;
use references::References;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Handle, Runtime};

pub use references::Hold;
pub use writer::{HandleCallback, Writer};

/// Memory that is kept for further sets, in sets of full size.
const POOLED_SETS: u64 = 8;
/// Objects in flight to a folder that takes them at once: two are written while the next one fills. More would only wait
/// in memory that no cache of the processor holds.
const LOCAL_OBJECTS: u64 = 3;
/// How long close waits for running deletions.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// What all writers of a storage share.
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) options: Options,
    pub(crate) log: LogWriter,
    pub(crate) registry: Registry,
    /// Copies of uploaded objects on the local disk, if wanted.
    local: Option<Local>,
    pub(crate) pool: BlockPool,
    pub(crate) references: Option<References>,
    pub(crate) runtime: Handle,
    pub(crate) metrics: SharedMetrics,
    pub(crate) clock: SharedClock,
    /// Names of open writers.
    names: Mutex<HashSet<String>>,
}

struct Local {
    cache: Arc<ObjectCache>,
    registry: LocalRegistry,
}

impl Shared {
    /// A checkpoint names these objects: their local copies are wanted.
    fn use_copies(&self, sets: &[SetRef], checkpoint: u64) {
        if let Some(local) = &self.local {
            sets.iter().for_each(|set| local.registry.register(&set.object, checkpoint));
        }
    }

    /// A checkpoint is complete: copies that only older ones used are not wanted any more.
    fn drop_copies(&self, checkpoint: u64) {
        if let Some(local) = &self.local {
            let old = local.registry.discard_up_to(checkpoint);
            old.iter().for_each(|object| local.cache.discard(&self.store, object));
        }
    }

    /// A set is not needed any more. The local copy goes with the object (X-09).
    fn release(&self, set: &SetRef) {
        self.registry.release(&set.object.name);
        if let Some(local) = &self.local
            && !self.registry.is_tracked(&set.object.name)
        {
            local.registry.forget(&set.object);
            local.cache.discard(&self.store, &set.object);
        }
    }

    fn forget(&self, name: &str) {
        self.names.lock().remove(name);
    }
}

/// A folder in an object store that holds the logs of any number of writers.
pub struct ChangelogStorage {
    shared: Arc<Shared>,
    runtime: Mutex<Option<Runtime>>,
}

impl ChangelogStorage {
    /// A storage in the folder `store`. With a folder `local_dir`, copies of a remote store's objects are kept there: of
    /// what is uploaded (option `local_recovery`), and of what is read.
    pub fn over(store: Store, options: Options, local_dir: Option<&Path>, environment: &Environment) -> Result<Self> {
        check_memory(options.max_in_flight, "a changelog")?;
        let runtime = start_io_threads()?;
        let handle = runtime.handle().clone();
        let registry = Registry::new(store.clone(), handle.clone(), Arc::clone(&environment.metrics));
        let local = match local_dir.filter(|_| !store.is_local_file()) {
            Some(dir) => {
                let cache = cache_dirs::open(dir, &options, &environment.metrics, &environment.clock)?;
                Some(Local { cache, registry: LocalRegistry::default() })
            }
            None => None,
        };
        let local_copies =
            local.as_ref().filter(|_| options.local_recovery).map(|local| local.cache.local_copies(&store));
        let counts = registry.clone();
        let log = LogWriter::new(
            store.clone(),
            &Options { max_in_flight: in_flight_to(&store, &options), ..options.clone() },
            handle.clone(),
            Arc::clone(&environment.clock),
            Arc::clone(&environment.metrics),
            Arc::clone(&environment.failpoints),
            local_copies,
        )
        .observed_by(Box::new(move |object, sets| counts.start_tracking(&object.name, sets)));
        let compression = options.compression_in(store.is_remote());
        let shared = Shared {
            references: References::new(&options, compression, &environment.metrics),
            store,
            pool: BlockPool::new(options.preemptive_persist_threshold.saturating_mul(POOLED_SETS)),
            options,
            log,
            registry,
            local,
            runtime: handle,
            metrics: Arc::clone(&environment.metrics),
            clock: Arc::clone(&environment.clock),
            names: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared), runtime: Mutex::new(Some(runtime)) })
    }

    /// The folder, as handles name it: without credentials.
    pub fn uri(&self) -> &str {
        self.shared.store.uri()
    }

    /// The counters.
    pub fn metrics(&self) -> &SharedMetrics {
        &self.shared.metrics
    }

    /// The options in force.
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    /// Log objects whose sets are counted.
    pub fn tracked(&self) -> usize {
        self.shared.registry.tracked()
    }

    /// A new writer for the key groups `groups`. A name is used by one open writer at a time.
    pub fn create_writer(&self, name: &str, groups: KeyGroupRange) -> Result<Writer> {
        if self.runtime.lock().is_none() {
            return Err(Error::closed("this changelog storage is closed").with_remedy("open it again"));
        }
        if groups.is_empty() || usize::from(groups.end) > MAX_KEY_GROUPS {
            return Err(Error::invalid(format!(
                "key groups {} to {} are not a range within 0 to {}; give another range",
                groups.start,
                i64::from(groups.end) - 1,
                MAX_KEY_GROUPS - 1
            )));
        }
        if name.is_empty() || name.len() > 256 {
            return Err(Error::invalid("a writer's name must have 1 to 256 bytes"));
        }
        if !self.shared.names.lock().insert(name.to_owned()) {
            return Err(Error::invalid(format!(
                "a writer named `{name}` is open in this storage: close it, or give this one another name"
            )));
        }
        Ok(Writer::new(Arc::clone(&self.shared), name.to_owned(), groups))
    }

    /// A reader. With a folder (by default the storage's), objects of a remote store are kept there and downloaded once
    /// for all readers.
    pub fn reader(&self, cache_dir: Option<&Path>) -> Result<ChangeReader> {
        if self.runtime.lock().is_none() {
            return Err(Error::closed("this changelog storage is closed").with_remedy("open it again"));
        }
        let shared = &self.shared;
        let cache = match cache_dir {
            Some(dir) => Some(cache_dirs::open(dir, &shared.options, &shared.metrics, &shared.clock)?),
            None => shared.local.as_ref().map(|local| Arc::clone(&local.cache)),
        };
        Ok(ChangeReader::new(shared.store.clone(), cache, shared.runtime.clone(), Arc::clone(&shared.metrics)))
    }

    /// The runtime that readers wait on.
    pub fn runtime(&self) -> &Handle {
        &self.shared.runtime
    }

    /// Ends all writers: what was not persisted is lost, pending persists end with an error. What is in progress gets
    /// some seconds to end. Twice is fine.
    pub fn close(&self) {
        self.shared.log.close();
        let Some(runtime) = self.runtime.lock().take() else { return };
        let metrics = Arc::clone(&self.shared.metrics);
        let settled = async move {
            while metrics.discards_pending.get() + metrics.uploads_active.get() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = runtime.block_on(async { tokio::time::timeout(CLOSE_TIMEOUT, settled).await });
        runtime.shutdown_timeout(CLOSE_TIMEOUT);
    }
}

/// Bytes that may be in flight to `store`.
fn in_flight_to(store: &Store, options: &Options) -> u64 {
    let object = options.persist_size_threshold.max(options.preemptive_persist_threshold);
    let enough = object.saturating_mul(LOCAL_OBJECTS);
    let answers_at_once = store.is_local_file() && !options.file_sync;
    if answers_at_once { options.max_in_flight.min(enough) } else { options.max_in_flight }
}

impl Drop for ChangelogStorage {
    fn drop(&mut self) {
        self.shared.log.close();
        if let Some(runtime) = self.runtime.lock().take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod failure_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
