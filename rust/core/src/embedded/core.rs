//! The shared core of one open state.
//!
//! Owns: the steps of a checkpoint, reading through layers and live version, closed or not; `changes`: how changes enter.
//! Does not own: the thread that runs checkpoints and its start (`embedded`), the change set of a checkpoint (`states::net`),
//! types of keys and values (`value`).

mod changes;

use super::catalog::{Catalog, Declaration, Entry};
use super::chain::Chain;
use super::waiting::TICK;
use super::{Attend, CheckpointCallback, EventCallback, GROUP, LAYERS_SHARE, StateClock};
use crate::kinds::Kind;
use crate::kinds::hints::StateHints;
use crate::kinds::sweep::Ends;
use crate::kinds::view::View;
use crate::shard::Shard;
use crate::states::layers::Layers;
use crate::states::net::net;
use crate::states::net_spilled::part_bytes;
use fastchangelog_format::clock::Tick;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{BatchId, ShardHandle, StateId};
use fastchangelog_state::keyed::KeyedState;
use fastchangelog_store::Store;
use fastchangelog_store::address_space::{Pieces, check_memory};
use fastchangelog_store::budget::{MemoryUser, Reservation};
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Checkpoints in progress at the same time; more wait.
const MAX_PENDING: usize = 8;
/// Checkpoints that follow each other faster count as one piece of foreground work.
const BETWEEN_CHECKPOINTS: Duration = Duration::from_millis(100);

/// A requested checkpoint; its changes are the oldest frozen layer when it runs.
pub(super) struct Job {
    schema: (u64, String),
    since: Instant,
    done: CheckpointCallback,
}

/// Memory of changes, and its value in the metrics.
struct ChangeMemory {
    memory: Reservation,
    unsaved: u64,
}

/// Functions of the program.
pub(super) struct Callbacks {
    pub(super) clock: StateClock,
    pub(super) attend: Attend,
}

/// One open state.
pub(super) struct Core {
    shard: Arc<Shard>,
    store: Store,
    runtime: Handle,
    layers: RwLock<Layers>,
    exclusive: Mutex<()>,
    held: Mutex<ChangeMemory>,
    catalog: Mutex<Catalog>,
    /// Of layers and live version as one; changed under the lock of the layers.
    hints: Mutex<StateHints>,
    clock: StateClock,
    /// Memory of changes that was not looked for yet.
    pieces: Pieces,
    attend: Attend,
    /// The newest checkpoint that counts.
    newest: Mutex<Option<ShardHandle>>,
    /// Serialises changes to the live version. A checkpoint holds it until its result is installed. Never acquired under a
    /// layer lock.
    live: Mutex<()>,
    /// None = read-only. Only the thread of checkpoints uses it.
    chain: Option<tokio::sync::Mutex<Chain>>,
    pending: Mutex<usize>,
    pending_reduced: Condvar,
    closed: watch::Sender<bool>,
    /// The reason to refuse changes until there is a new snapshot.
    refusal: Mutex<Option<Error>>,
    event: OnceLock<EventCallback>,
}

impl Core {
    pub(super) fn new(
        shard: Arc<Shard>,
        store: Store,
        runtime: Handle,
        catalog: Catalog,
        chain: Option<Chain>,
        newest: Option<ShardHandle>,
        Callbacks { clock, attend }: Callbacks,
    ) -> Self {
        let limit = shard.context().budget.limit() / LAYERS_SHARE;
        Self {
            held: Mutex::new(ChangeMemory {
                memory: shard.context().budget.reserve(MemoryUser::Prepared, 0),
                unsaved: 0,
            }),
            shard,
            store,
            runtime,
            layers: RwLock::new(Layers::new(limit)),
            exclusive: Mutex::default(),
            catalog: Mutex::new(catalog),
            hints: Mutex::default(),
            clock,
            pieces: Pieces::default(),
            attend,
            newest: Mutex::new(newest),
            live: Mutex::default(),
            chain: chain.map(tokio::sync::Mutex::new),
            pending: Mutex::new(0),
            pending_reduced: Condvar::new(),
            closed: watch::channel(false).0,
            refusal: Mutex::new(None),
            event: OnceLock::new(),
        }
    }

    pub(super) fn uri(&self) -> &str {
        self.store.uri()
    }

    pub(super) fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.chain.is_none()
    }

    pub(super) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    pub(super) fn newest(&self) -> Option<ShardHandle> {
        self.newest.lock().clone()
    }

    /// Waits until the newest checkpoint is applied to the live version. Not for the checkpoint thread.
    pub(super) fn wait_applied(&self) {
        drop(self.live.lock());
    }

    pub(super) fn close(&self) {
        self.closed.send_replace(true);
        self.shard.context().log.close();
        self.pending_reduced.notify_all();
    }

    /// Drops the changes that no checkpoint holds, with their files, once the state is closed.
    pub(super) fn discard_changes(&self) {
        self.with_layers(Layers::discard);
    }

    /// The catalog's text and fingerprint.
    #[cfg(test)]
    pub(super) fn catalog_text(&self) -> Result<(u64, String)> {
        self.catalog.lock().text()
    }

    /// Replaces the catalog, of a state that has none yet.
    #[cfg(test)]
    pub(super) fn set_catalog(&self, catalog: Catalog) {
        *self.catalog.lock() = catalog;
    }

    /// Lets changes take so many bytes of memory.
    #[cfg(test)]
    pub(super) fn limit_changes(&self, bytes: u64) {
        self.layers.write().set_limit(bytes);
    }

    // Upkeep

    /// See [`super::EmbeddedState::on_event`].
    pub(super) fn on_event(&self, event: EventCallback) {
        let _ = self.event.set(event);
    }

    pub(super) fn refuse_changes(&self, why: Option<Error>) {
        *self.refusal.lock() = why;
    }

    fn notify(&self) {
        if let Some(event) = self.event.get() {
            event();
        }
    }

    fn check_open(&self) -> Result<()> {
        if self.is_closed() { Err(closed()) } else { Ok(()) }
    }

    pub(super) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        if self.is_read_only() {
            return Err(Error::invalid(format!("the state in {} was opened read-only", self.uri()))
                .with_remedy("open it without read_only to change it"));
        }
        Ok(())
    }

    // States

    pub(super) fn declare<T>(
        &self,
        declared: Declaration<'_>,
        make: impl FnOnce(&Entry) -> Result<T>,
    ) -> Result<(Entry, T)> {
        self.check_open()?;
        let (entry, made) = self.catalog.lock().declare(declared, !self.is_read_only(), make)?;
        if entry.is_new {
            self.hints.lock().begin_empty((entry.id, GROUP));
        }
        Ok((entry, made))
    }

    /// The time by the state's clock, in milliseconds since the epoch.
    pub(super) fn now(&self) -> Result<i64> {
        (self.clock)()
    }

    /// The states of which the entries end.
    pub(super) fn states_that_end(&self) -> Vec<(StateId, Kind)> {
        self.catalog.lock().ending()
    }

    /// The hints. Held for moments: no other lock is acquired under it.
    pub(super) fn hints(&self) -> MutexGuard<'_, StateHints> {
        self.hints.lock()
    }

    /// What is known of the expiry of a state's entries.
    pub(super) fn with_ends<T>(&self, state: StateId, use_it: impl FnOnce(&mut Ends) -> T) -> T {
        use_it(self.hints.lock().ends(state))
    }

    pub(super) fn account(&self, layers: &Layers) {
        let mut held = self.held.lock();
        let gauge = &self.shard.context().metrics.uncheckpointed_bytes;
        let unsaved = layers.unsaved_bytes();
        gauge.add(unsaved);
        gauge.sub(std::mem::replace(&mut held.unsaved, unsaved));
        held.memory.resize(layers.bytes());
    }

    // Reads

    /// Reads layers and live version as one.
    fn read<T>(&self, mut read: impl FnMut(RwLockReadGuard<'_, Layers>, &Shard) -> Result<T>) -> Result<T> {
        self.check_open()?;
        self.layers.read().check()?;
        match read(self.layers.read(), &self.shard) {
            // The local disk failed: the local state is restored, once.
            Err(error) if error.is_retryable() => {
                tracing::warn!(state = self.uri(), %error, "a read of the local state failed; restoring it");
                self.restore_live()?;
                read(self.layers.read(), &self.shard)
            }
            other => other,
        }
    }

    /// Reads changes over the live version, as one moment. A walk needs RocksDB to hold all of it.
    pub(super) fn view<T>(&self, walks: bool, mut read: impl FnMut(View<'_>) -> Result<T>) -> Result<T> {
        self.read(|layers, shard| {
            let read = |keyed: &KeyedState| read(View::new(&layers, Some(keyed)));
            if walks { shard.read_settled(read) } else { shard.read(read) }
        })
    }

    fn restore_live(&self) -> Result<()> {
        let _live = self.live.lock();
        self.make_live(self.newest().as_ref())
    }

    fn make_live(&self, handle: Option<&ShardHandle>) -> Result<()> {
        let made = match handle {
            Some(h) => self.shard.make_live(Some(h), BatchId(h.batch.0 + 1), (h.schema_id, &h.schema)),
            None => self.shard.make_live(None, BatchId(0), (0, "")),
        };
        made.map(drop)
    }

    // Checkpoints

    /// Waits until one more checkpoint may be in progress.
    pub(super) fn admit(&self, tick: Tick<'_>) -> Result<()> {
        self.check_writable()?;
        // The change set, and what is uploaded of it; spilled changes are uploaded in parts.
        check_memory(self.layers.read().unsaved_memory().saturating_mul(2), "a checkpoint")?;
        loop {
            let mut pending = self.pending.lock();
            if *pending < MAX_PENDING {
                *pending += 1;
                return Ok(());
            }
            self.pending_reduced.wait_for(&mut pending, TICK);
            drop(pending);
            // Without the lock: the handler of a signal may take a checkpoint.
            tick()?;
            self.check_open()?;
        }
    }

    /// Releases an admission.
    pub(super) fn dismiss(&self) {
        *self.pending.lock() -= 1;
        self.pending_reduced.notify_one();
    }

    /// What is done before a checkpoint is begun, without a lock.
    pub(super) fn prepare_checkpoint(&self) {
        self.sweep();
    }

    /// Freezes the active layer: later changes belong to the next checkpoint.
    pub(super) fn freeze(&self, done: CheckpointCallback) -> Result<Job> {
        let schema = self.catalog.lock().text()?;
        self.layers.write().freeze();
        Ok(Job { schema, since: Instant::now(), done })
    }

    /// Makes the oldest frozen layer durable, and live. Called once per job, in the order of freezing.
    pub(super) fn run(&self, job: Job) {
        let Job { schema, since, done } = job;
        let foreground = self.shard.context().background.foreground(BETWEEN_CHECKPOINTS);
        let over = match self.check_open().and_then(|()| self.checkpoint((schema.0, &schema.1))) {
            Ok(handle) => {
                let live = self.live.lock();
                let metrics = &self.shard.context().metrics;
                metrics.checkpoints.add(1);
                metrics.checkpoint_micros.add_elapsed(since);
                let before = self.newest.lock().replace(handle.clone());
                self.with_layers(Layers::mark_durable);
                // It is durable: no caller waits for the rest.
                done(Ok(handle.clone()));
                if before.as_ref() != Some(&handle) {
                    self.apply_checkpoint(&handle);
                }
                let over = self.with_layers(Layers::mark_applied);
                drop(live);
                self.dismiss();
                over
            }
            Err(error) => {
                let over = self.with_layers(Layers::failed);
                self.dismiss();
                done(Err(error));
                over
            }
        };
        drop(foreground);
        self.notify();
        // After all answers: freeing the memory takes long.
        drop(over);
        if let Some(chain) = self.chain.as_ref().filter(|_| !self.is_closed()) {
            let _ = self.wait(async {
                chain.lock().await.prune().await;
                Ok(())
            });
        }
    }

    fn with_layers<T>(&self, change: impl FnOnce(&mut Layers) -> T) -> T {
        let mut layers = self.layers.write();
        let value = change(&mut layers);
        self.account(&layers);
        value
    }

    /// Applies a durable checkpoint to the live version; a failure of the local disk is only logged.
    fn apply_checkpoint(&self, handle: &ShardHandle) {
        if let Err(error) = self.make_live(Some(handle)) {
            tracing::warn!(state = self.uri(), %error, "cannot apply a checkpoint; the next read restores the local \
                state");
            // What is live may be the version before, which must not be taken for this one.
            self.shard.evict();
        }
    }

    fn checkpoint(&self, schema: (u64, &str)) -> Result<ShardHandle> {
        let chain = self.chain.as_ref().ok_or_else(|| Error::internal("a read-only state has no checkpoints"))?;
        let context = self.shard.context();
        let limit = self.layers.read().limit();
        let frozen = self.with_layers(|layers| layers.oldest(&context.spill_dir(), &context.resources))?;
        context.failpoints.hit("local.before-seal")?;
        let newest = self.newest();
        let batch = BatchId(newest.as_ref().map_or(0, |h| h.batch.0 + 1));
        let extend = || match &frozen.spilled {
            Some(spilled) => self.shard.extend_in_parts(batch, schema, spilled, part_bytes(limit)),
            None => self.shard.extend(batch, schema, frozen.layer.has_clears(), |keyed| net(&frozen.layer, keyed)),
        };
        let next = match extend() {
            Err(error) if error.is_retryable() && self.shard.read(|keyed| Ok(keyed.is_broken())).unwrap_or(true) => {
                self.restore_live()?;
                extend()?
            }
            other => other?,
        };
        let handle = match (next, newest) {
            (Some(next), _) => next,
            (None, Some(newest)) => {
                let rebased = self.shard.rebased(&newest)?;
                if rebased.is_none() && newest.schema_id == schema.0 {
                    let unchanged = self.wait(async {
                        let mut chain = chain.lock().await;
                        // What an earlier attempt left in doubt is decided by publishing what counts.
                        if chain.is_uncertain() { Ok(false) } else { chain.check().await.map(|()| true) }
                    })?;
                    if unchanged {
                        return Ok(newest);
                    }
                }
                let newest = rebased.unwrap_or(newest);
                ShardHandle { batch, schema_id: schema.0, schema: schema.1.to_owned(), ..newest }
            }
            (None, None) => self.shard.first_handle(batch, schema)?,
        };
        self.wait(async { chain.lock().await.publish(Some(handle.clone())).await })?;
        Ok(handle)
    }

    /// Waits for the store, unless the state is closed meanwhile.
    fn wait<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let mut gone = self.closed.subscribe();
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                _ = gone.wait_for(|closed| *closed) => Err(closed()),
                result = work => result,
            }
        })
    }
}

pub(super) fn closed() -> Error {
    Error::closed("the state is closed").with_remedy("open it again")
}
