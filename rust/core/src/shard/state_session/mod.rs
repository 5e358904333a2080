//! State sessions: one execution of one shard's micro-batch by a stateful processor.
//!
//! call: the door; overlay: changes in memory or on the local disk over the version below; reads, timers: the calls that read;
//! writes: those that change; sweep: the removal of expired entries; commit: the new version; in_memory: sessions for tests of
//! processors
//!
//! Owns: the life of a session, from its opening to the commit that makes a version durable; its declared states.
//! Does not own: which version is live (`transition`), how a version gets its handle (`seal`), what a kind of state does
//! (`kinds`), types of keys and values (the worker).
//!
//! Life: `declare` → reads and `write`s in any order → `commit` (waits for the store's acknowledgement, returns the handle).
//! Dropping a session before `commit` aborts it: nothing of it is kept.
//!
//! Invariants of a [`StateSession`]:
//! 1. what it reads is its version with its own changes on top, at one moment for each call; of an entry that ends, nothing
//!    from its end on, by the time that was declared;
//! 2. a change set is the net effect of its changes: one record per state and key, none without effect, and at
//!    most a bounded number for a clear (P5);
//! 3. once another version is live, each call that reads fails, retryable (P8);
//! 4. after an error that may have left a change half made, every call returns it.

mod call;
mod commit;
mod in_memory;
mod overlay;
mod reads;
mod sweep;
mod timers;
mod writes;

pub use call::{Column, Reply, StateCall};

use self::overlay::Overlay;
use super::Shard;
use super::base::Base;
use super::hold::ShardHold;
use super::session_counters::SessionCounters;
use super::session_environment::SessionEnvironment;
use crate::kinds::catalog::{DeclaredState, ProcessorCatalog};
use crate::kinds::hints::StateHints;
use crate::kinds::view::View;
use crate::kinds::{Held, StateRef};
use fastchangelog_columns::codec::hash_key;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{BatchId, KeyGroup, KeyGroupRange, ShardHandle, StateId, key_group_of};
use fastchangelog_log::write::JoinGuard;
use fastchangelog_state::keyed::StatePart;
use fastchangelog_state::rocks::SharedResources;
use std::sync::Arc;
use std::time::Instant;

/// The catalog of a state without versions.
const NO_STATES: &str = "[]";

/// The keys of a state that begin with some bytes.
type Prefix<'a> = (StateId, &'a [u8]);

/// What a session declares.
struct Declared {
    text: String,
    catalog: ProcessorCatalog,
    /// The time by which entries have ended, in milliseconds since the epoch.
    now: i64,
}

/// A session with a shard.
struct Attached {
    base: Base,
    handle: Option<ShardHandle>,
    batch: BatchId,
    hold: ShardHold,
    /// The announcement of its change set, until that is submitted.
    guard: Option<JoinGuard>,
}

/// One execution of one shard's micro-batch by a stateful processor. See the module documentation for its invariants.
pub struct StateSession {
    // Before what its folder is in.
    overlay: Overlay,
    /// None: it starts from nothing and keeps nothing.
    attached: Option<Attached>,
    /// Number of key groups of the state, and those of this shard.
    groups: u16,
    own_groups: KeyGroupRange,
    stored_text: String,
    stored: ProcessorCatalog,
    declared: Option<Declared>,
    hints: StateHints,
    counters: SessionCounters,
    opened: Instant,
    /// Why nothing can be done any more.
    ended: Option<Error>,
}

impl StateSession {
    /// A session of `shard` on top of `base` (none = the empty state, or that of the savepoint that the shard starts from).
    pub fn open(shard: &Arc<Shard>, base: Option<ShardHandle>, batch: BatchId) -> Result<Self> {
        let opened = Instant::now();
        let context = shard.context();
        // As it is: the session declares what it needs of it.
        let (schema_id, stored_text) = match &base {
            Some(handle) => (handle.schema_id, handle.schema.clone()),
            None => shard.initial_schema().unwrap_or_else(|| (0, NO_STATES.to_owned())),
        };
        let stored = ProcessorCatalog::parse(&stored_text)?;
        let mut counters = SessionCounters::default();
        let schema = (schema_id, &*stored_text);
        let (hold, own_base, guard) = ShardHold::open(shard, base.as_ref(), batch, schema, &mut counters)?;
        let of_nothing = base.is_none() && shard.initial_schema().is_none();
        let hints = own_base.read(|live| Ok(live.hints.clone()))?;
        Ok(Self {
            groups: shard.placement().max_parallelism,
            own_groups: shard.placement().key_groups(),
            attached: Some(Attached { base: own_base, handle: base, batch, hold, guard: Some(guard) }),
            stored_text,
            stored,
            declared: None,
            overlay: Overlay::new(context.session_environment(), Some(context.resources.clone())),
            hints: hints.unwrap_or_else(|| if of_nothing { StateHints::of_nothing() } else { StateHints::default() }),
            counters,
            opened,
            ended: None,
        })
    }

    /// A session that starts from nothing and keeps nothing: what a batch DataFrame needs.
    pub fn ephemeral(environment: SessionEnvironment, resources: SharedResources) -> Self {
        Self::without_shard(Overlay::new(environment, Some(resources)))
    }

    fn without_shard(overlay: Overlay) -> Self {
        Self {
            attached: None,
            groups: 1,
            own_groups: KeyGroupRange { start: 0, end: 1 },
            stored_text: NO_STATES.to_owned(),
            stored: ProcessorCatalog::default(),
            declared: None,
            overlay,
            hints: StateHints::of_nothing(),
            counters: SessionCounters::default(),
            opened: Instant::now(),
            ended: None,
        }
    }

    /// The stored catalog, as JSON: the states that the version has. A state without versions has an empty list.
    pub fn catalog(&self) -> &str {
        &self.stored_text
    }

    /// The watermark of the version's handle; none without a handle, or without event time.
    pub fn watermark(&self) -> Option<i64> {
        self.attached.as_ref().and_then(|attached| attached.handle.as_ref()).and_then(|handle| handle.watermark)
    }

    /// Declares the states of this session, and the time by which entries have ended, in milliseconds since the epoch. Once,
    /// before anything else. The text becomes the schema of the handle, as it is; what is stored must be in it with the
    /// same number, name, kind and layout.
    pub(super) fn declare(&mut self, catalog: &str, now_millis: i64) -> Result<()> {
        self.check()?;
        if self.declared.is_some() {
            return Err(Error::invalid("the session has already declared its states; declare them once"));
        }
        let text = catalog.to_owned();
        let catalog = ProcessorCatalog::declare(catalog, &self.stored)?;
        self.declared = Some(Declared { text, catalog, now: now_millis });
        Ok(())
    }

    fn check(&self) -> Result<()> {
        self.ended.clone().map_or(Ok(()), Err)
    }

    fn declared(&self) -> Result<&Declared> {
        self.check()?;
        self.declared.as_ref().ok_or_else(|| Error::invalid("the session has no declared states; call declare first"))
    }

    /// A declared state.
    fn used(&self, id: StateId) -> Result<StateRef> {
        let Declared { catalog, now, .. } = self.declared()?;
        let DeclaredState { kind, ttl, .. } = catalog.state(id)?;
        Ok(StateRef { id, kind: *kind, ttl: *ttl, now: *now })
    }

    /// A declared state whose keys have one of these; other states do not `what`.
    fn used_as(&self, id: StateId, held: &[Held], what: &str) -> Result<StateRef> {
        let state = self.used(id)?;
        if held.contains(&state.kind.rules().held()) {
            return Ok(state);
        }
        let DeclaredState { name, kind, .. } = self.declared()?.catalog.state(id)?;
        Err(Error::invalid(format!("the state `{name}` has the kind {}, which does not {what}", kind.name())))
    }

    /// The key group of a key.
    fn group(&self, key: &[u8]) -> Result<KeyGroup> {
        let group = key_group_of(hash_key(key), self.groups);
        if self.own_groups.contains(group) {
            return Ok(group);
        }
        Err(Error::internal(format!(
            "a key has the key group {}, but the shard has those from {} to {}",
            group.0, self.own_groups.start, self.own_groups.end
        )))
    }

    /// The key groups of this shard.
    fn key_groups(&self) -> impl Iterator<Item = KeyGroup> + use<> {
        (self.own_groups.start..self.own_groups.end).map(KeyGroup)
    }

    /// Reads the session's state at one moment. A walk in order needs its keys settled.
    fn read<T>(&self, settled: Option<Prefix<'_>>, read: impl FnOnce(View<'_>) -> Result<T>) -> Result<T> {
        match &self.attached {
            None => read(self.overlay.over(None)),
            Some(Attached { base, .. }) => {
                let settled = settled.map(|(state, prefix)| StatePart::of_prefix(state, prefix));
                base.read_settled(settled.as_slice(), |live| read(self.overlay.over(Some(&live.keyed))))
            }
        }
    }

    /// Counts what one call that reads took.
    fn count_read(&mut self, start: Instant) {
        self.counters.count_since("read_micros", start);
        self.overlay.count_look_ups(&mut self.counters);
    }
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
