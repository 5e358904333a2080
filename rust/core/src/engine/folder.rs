//! The folders of states that this process works in: each with its store, its log and its credentials.
//!
//! Owns: one folder per root, query and name; its replacement when a query returns with other settings; when a folder
//! is dropped; what a sweep of a folder needs.
//! Does not own: shards (`engine`), the content of a folder's note (`start`), the use of credentials (`store`).
//!
//! Invariants:
//! 1. credentials of a request, however often they change, are supplied to the existing folder: no store, client or log
//!    is created for them;
//! 2. other options than those a folder was made with make another folder, which takes its place: they hold for every
//!    session that is opened from then on. Sessions that are open go on with the folder they have;
//! 3. a folder that no shard and no request holds is dropped by [`Folders::prune`].

use super::request::{Access, OpenRequest, Renewal};
use crate::shard::InitialState;
use fastchangelog_format::clock::SharedClock;
use fastchangelog_format::config::Options;
use fastchangelog_format::error::Result;
use fastchangelog_log::read::ObjectCache;
use fastchangelog_log::write::LogWriter;
use fastchangelog_store::budget::MemoryBudget;
use fastchangelog_store::credentials::{Provider, SuppliedCredentials};
use fastchangelog_store::failpoint::SharedFailpoints;
use fastchangelog_store::metrics::SharedMetrics;
use fastchangelog_store::{Store, state_folder};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Resources of the process that folders need.
pub(super) struct ProcessContext {
    pub(super) options: Options,
    pub(super) clock: SharedClock,
    pub(super) metrics: SharedMetrics,
    pub(super) failpoints: SharedFailpoints,
    pub(super) runtime: tokio::runtime::Handle,
    pub(super) budget: Arc<MemoryBudget>,
    pub(super) cache: Arc<ObjectCache>,
}

/// How a state starts in a folder, see `start`.
#[derive(Clone)]
pub(super) struct Start {
    /// Key groups of the state.
    pub(super) groups: u16,
    /// The initial state of shards without a handle; none = empty.
    pub(super) initial_state: Option<Arc<InitialState>>,
}

/// One folder, with the settings that it was made with.
pub(super) struct Folder {
    pub(super) store: Store,
    pub(super) log: LogWriter,
    pub(super) options: Options,
    /// How a state starts here, once that is known.
    pub(super) start: OnceLock<Start>,
    /// Set once the note has at least the grace period of these options.
    pub(super) grace_noted: OnceLock<()>,
    /// The checkpoints of this process's queries that notes of the folder register.
    pub(super) registered: Mutex<BTreeSet<String>>,
    key: Key,
    /// Held while the note is read and written: sessions that open at the same time need one request for it.
    pub(super) noting: Mutex<()>,
    given: BTreeMap<String, String>,
    storage: BTreeMap<String, String>,
    credentials: Option<Arc<SuppliedCredentials>>,
}

impl Folder {
    fn make(process: &ProcessContext, request: &OpenRequest, access: &Access) -> Result<Self> {
        let options = Options::from_map(&request.options)?;
        for option in process.options.overruled(&request.options)? {
            let asked = &request.options[option];
            tracing::warn!(
                query = request.query_id,
                option,
                asked,
                "another query started this server with another value, which stays in force until the server ends"
            );
        }
        let credentials = access.supplied(&process.clock);
        let store = open(process, &request.root, &access.storage, credentials.as_ref(), &options)?
            .within(&process.budget)
            .child(&state_folder(&request.query_id, &request.name));
        let keep_local_copies = options.local_recovery && !store.is_local_file();
        let log = LogWriter::new(
            store.clone(),
            &options,
            process.runtime.clone(),
            Arc::clone(&process.clock),
            Arc::clone(&process.metrics),
            Arc::clone(&process.failpoints),
            keep_local_copies.then(|| process.cache.local_copies(&store)),
        )
        .within(&process.budget);
        let (given, storage) = (request.options.clone(), access.storage.clone());
        Ok(Self {
            store,
            log,
            options,
            start: OnceLock::new(),
            grace_noted: OnceLock::new(),
            registered: Mutex::default(),
            key: key_of(request),
            noting: Mutex::default(),
            given,
            storage,
            credentials,
        })
    }

    /// True if a request with these settings is for this very folder.
    fn matches(&self, request: &OpenRequest, access: &Access) -> bool {
        let same_source = self.credentials.is_some() == access.granted.is_some();
        self.given == request.options && self.storage == access.storage && same_source
    }

    fn renew(&self, access: Access) {
        if let (Some(credentials), Some(granted)) = (&self.credentials, access.granted) {
            credentials.supply(granted);
        }
    }

    /// Another store with the storage options and the credentials of this folder.
    pub(super) fn sibling(&self, process: &ProcessContext, uri: &str) -> Result<Store> {
        open(process, uri, &self.storage, self.credentials.as_ref(), &self.options)
    }

    /// What a sweep of this folder needs.
    pub(super) fn swept(&self) -> SweptState {
        let (root, query_id, name) = self.key.clone();
        let mut storage_options = self.storage.clone();
        storage_options.extend(self.credentials.iter().flat_map(|credentials| credentials.newest()));
        SweptState { root, query_id, name, options: self.given.clone(), storage_options }
    }

    /// True when all supplied credentials have expired: until a session brings newer ones, no request succeeds.
    pub(super) fn is_locked_out(&self) -> bool {
        self.credentials.as_ref().is_some_and(|credentials| credentials.have_expired())
    }
}

fn open(
    process: &ProcessContext,
    uri: &str,
    storage: &BTreeMap<String, String>,
    credentials: Option<&Arc<SuppliedCredentials>>,
    options: &Options,
) -> Result<Store> {
    let provider = credentials.map(|credentials| Provider::supplied(Arc::clone(credentials)));
    let (metrics, failpoints) = (Arc::clone(&process.metrics), Arc::clone(&process.failpoints));
    Store::open_with(uri, storage, provider, options, metrics, failpoints)
}

/// Root, query and name.
type Key = (String, String, String);

fn key_of(request: &OpenRequest) -> Key {
    (request.root.clone(), request.query_id.clone(), request.name.clone())
}

/// A state whose shard 0 is here, as its query asked for it.
#[derive(Clone)]
pub struct SweptState {
    /// As in the open request.
    pub root: String,
    /// As in the open request.
    pub query_id: String,
    /// As in the open request.
    pub name: String,
    /// As in the open request.
    pub options: BTreeMap<String, String>,
    /// As in the newest open request or renewal, credentials included.
    pub storage_options: BTreeMap<String, String>,
}

impl fmt::Debug for SweptState {
    /// Without storage options: they hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SweptState({}, {}/{})", self.root, self.query_id, self.name)
    }
}

/// All folders of a process.
#[derive(Default)]
pub(super) struct Folders {
    by_key: Mutex<HashMap<Key, Arc<Folder>>>,
    /// Held while a folder is created, which may take long; existing ones are found meanwhile.
    making: Mutex<()>,
}

impl Folders {
    /// The folder of a request, which takes over the credentials that the request brings.
    pub(super) fn folder(&self, process: &ProcessContext, request: &OpenRequest) -> Result<Arc<Folder>> {
        let access = Access::of(&request.storage_options, request.credentials_expire_at);
        let key = key_of(request);
        if let Some(folder) = self.find(&key).filter(|folder| folder.matches(request, &access)) {
            folder.renew(access);
            return Ok(folder);
        }
        let _making = self.making.lock();
        let old = self.find(&key);
        if let Some(folder) = old.as_ref().filter(|folder| folder.matches(request, &access)) {
            folder.renew(access);
            return Ok(Arc::clone(folder));
        }
        let folder = Arc::new(Folder::make(process, request, &access)?);
        if old.is_some() {
            // Names only: the values may be secrets.
            tracing::info!(
                query = request.query_id,
                name = request.name,
                "the query returned with other options or storage options, which apply from now on"
            );
        }
        self.by_key.lock().insert(key, Arc::clone(&folder));
        Ok(folder)
    }

    fn find(&self, key: &Key) -> Option<Arc<Folder>> {
        self.by_key.lock().get(key).cloned()
    }

    /// Supplies newer credentials to a folder that sessions use; a dropped one needs none.
    pub(super) fn renew(&self, renewal: Renewal) {
        let access = Access::of(&renewal.storage_options, renewal.credentials_expire_at);
        if let Some(folder) = self.find(&(renewal.root, renewal.query_id, renewal.name))
            && folder.storage == access.storage
        {
            folder.renew(access);
        }
    }

    /// Drops the folders that only this list holds.
    pub(super) fn prune(&self) {
        // A holder gets its folder from this list, under the list's lock: one holder is this list.
        let gone: Vec<Arc<Folder>> = self
            .by_key
            .lock()
            .extract_if(|_, folder| Arc::strong_count(folder) == 1)
            .map(|(_, folder)| folder)
            .collect();
        drop(gone);
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.by_key.lock().len()
    }

    /// Ends all logs: pending commits end with an error.
    pub(super) fn close(&self) {
        let folders: Vec<Arc<Folder>> = self.by_key.lock().values().cloned().collect();
        folders.iter().for_each(|folder| folder.log.close());
    }
}
