//! Sealing: from a change set to the handle of a durable version.
//!
//! Owns: encoding a change set for the log, waiting for the acknowledgement of all parts, the lineage of the new
//! version, its handle, and keeping it prepared; the handle of a batch that changed nothing.
//! Does not own: the content of the change set (`session`, and the owner of an embedded state), promotion
//! (`transition`).
//!
//! Invariant: a handle is returned only after the store acknowledged everything that it names (P2).

use super::lineage::Lineage;
use super::session_counters::SessionCounters;
use super::{Live, Prepared, Shard, ShardContext};
use crate::kinds::hints::StateHints;
use fastchangelog_format::EncodedSet;
use fastchangelog_format::error::Result;
use fastchangelog_format::handle::encode_segment_index;
use fastchangelog_format::model::handle::HASH_ID;
use fastchangelog_format::model::{BatchId, ChangeSet, InstanceId, SegmentRef, ShardHandle, VersionId};
use fastchangelog_format::segment::encode_set;
use fastchangelog_log::write::{PersistFuture, SetLocation};
use fastchangelog_store::budget::MemoryUser;
use fastchangelog_store::index_name;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// Share of the budget (1/n) for prepared versions; beyond it the older ones of a shard are dropped.
const PREPARED_SHARE: u64 = 4;

/// The fields of a handle other than the locations of its bytes.
#[derive(Clone)]
pub(crate) struct HandleMeta {
    pub(crate) instance: InstanceId,
    pub(crate) parent: Option<VersionId>,
    pub(crate) batch: BatchId,
    pub(crate) schema_id: u64,
    pub(crate) schema: String,
    pub(crate) watermark: Option<i64>,
    pub(crate) state_keys: u64,
    pub(crate) state_bytes: u64,
}

/// Encodes a change set for the log.
pub(super) fn encode(context: &ShardContext, set: &ChangeSet, counters: &mut SessionCounters) -> Result<EncodedSet> {
    let start = Instant::now();
    let encoded = encode_set(set, context.compression())?;
    counters.count("changeset_bytes", set.payload_bytes());
    counters.count("log_bytes", encoded.length);
    counters.count_since("encode_micros", start);
    context.metrics.encode_micros.add_elapsed(start);
    Ok(encoded)
}

/// The parts of a change set, each a segment of its own, while the log uploads them.
#[derive(Default)]
pub(super) struct SetParts {
    locations: Vec<SetLocation>,
    waiting: VecDeque<PersistFuture>,
}

impl SetParts {
    /// A change set in one part.
    pub(super) fn of(future: PersistFuture) -> Self {
        Self { locations: Vec::new(), waiting: VecDeque::from([future]) }
    }

    /// Adds a part. Parts have no key in common.
    pub(super) fn push(&mut self, future: PersistFuture) {
        self.waiting.push_back(future);
    }

    /// True without parts.
    pub(super) fn is_empty(&self) -> bool {
        self.locations.is_empty() && self.waiting.is_empty()
    }

    /// Collects the answers that are ready; an error of any part is an error of the whole.
    pub(super) fn collect_ready(&mut self) -> Result<()> {
        while let Some(answer) = self.waiting.front_mut().and_then(PersistFuture::try_take) {
            self.waiting.pop_front();
            self.locations.push(answer?);
        }
        Ok(())
    }

    /// Waits until all parts are durable.
    fn wait(mut self) -> Result<Vec<SetLocation>> {
        for future in self.waiting {
            self.locations.push(future.wait()?);
        }
        Ok(self.locations)
    }
}

/// A change set that was submitted to the log.
pub(super) struct PendingVersion {
    pub(super) version: VersionId,
    /// None if it is not in memory: the version is not kept prepared then, its segments are replayed.
    pub(super) set: Option<Arc<ChangeSet>>,
    pub(super) parts: SetParts,
    /// Of the parent.
    pub(super) lineage: Lineage,
    /// The hints of its session.
    pub(super) hints: Option<StateHints>,
}

/// A durable version, prepared.
pub(super) struct SealedVersion {
    pub(super) handle: ShardHandle,
    /// True if it is the first to start from a new snapshot.
    pub(super) rebased: bool,
}

impl SealedVersion {
    /// Its handle; the session counts a new snapshot.
    pub(super) fn into_handle(self, counters: &mut SessionCounters) -> ShardHandle {
        if self.rebased {
            counters.count("rebased", 1);
        }
        self.handle
    }
}

/// The result of a commit.
#[derive(Debug, Clone)]
pub struct Committed {
    /// The handle of the new version; none for ephemeral sessions.
    pub handle: Option<ShardHandle>,
    /// This session's own numbers, by name.
    pub metrics: BTreeMap<String, u64>,
    /// Of an aggregation by event time: no group of the new version has a time before this one, in microseconds.
    pub next_close: Option<i64>,
}

impl Shard {
    /// Waits until the change set is durable, and keeps the version prepared.
    pub(super) fn seal(&self, meta: &HandleMeta, pending: PendingVersion) -> Result<SealedVersion> {
        let context = self.context();
        let PendingVersion { version, set, parts, mut lineage, hints } = pending;
        let waiting = self.control.lock().waiting.as_ref().map(|w| w.snapshot.clone());
        let rebased = waiting.is_some_and(|snapshot| lineage.rebase(&snapshot));
        // Older segments are durable already: their index is written while the new one is in progress.
        self.index_older(&mut lineage)?;
        for SetLocation { object, offset, length, records, .. } in parts.wait()? {
            lineage.segments.push(SegmentRef { version, batch: meta.batch, object, offset, length, records });
        }
        context.failpoints.hit("session.durable")?;
        // One more than the cap waits for the next version, many at once do not.
        if lineage.segments_outside() > context.options.max_handle_segments + 1 {
            self.index_older(&mut lineage)?;
        }
        let handle = self.handle(meta, version, &lineage);
        let Some(set) = set else {
            if let Some(hints) = hints {
                let mut control = self.control.lock();
                control.spilled_hints.push_back((version, hints));
                if control.spilled_hints.len() > context.options.max_prepared_versions.max(1) {
                    control.spilled_hints.pop_front();
                }
            }
            return Ok(SealedVersion { handle, rebased });
        };
        let memory = context.budget.reserve(MemoryUser::Prepared, set.memory_bytes());
        let prepared = Prepared {
            instance: meta.instance,
            parent: meta.parent,
            batch: meta.batch,
            set,
            lineage,
            hints,
            state_keys: meta.state_keys,
            state_bytes: meta.state_bytes,
            order: 0,
            memory,
        };
        self.remember(version, prepared);
        Ok(SealedVersion { handle, rebased })
    }

    /// The handle of a batch that changed nothing: the version of `base`, seen by a later batch. It takes a finished
    /// snapshot over: otherwise a state that no longer changes would be restored from its log for ever.
    pub(super) fn seal_unchanged(&self, base: Option<&ShardHandle>, meta: HandleMeta) -> Result<SealedVersion> {
        let Some(base) = base else {
            return Ok(SealedVersion { handle: self.initial_handle(&meta)?, rebased: false });
        };
        let rebased = self.rebased(base)?;
        let is_rebased = rebased.is_some();
        let same = rebased.unwrap_or_else(|| base.clone());
        let HandleMeta { batch, schema_id, schema, watermark, .. } = meta;
        Ok(SealedVersion { handle: ShardHandle { batch, schema_id, schema, watermark, ..same }, rebased: is_rebased })
    }

    /// `handle` from the finished snapshot that waits; none if there is no such snapshot, or the live version is not
    /// that of `handle`. The live state takes the snapshot over when it is opened with the result.
    pub(crate) fn rebased(&self, handle: &ShardHandle) -> Result<Option<ShardHandle>> {
        let lineage = {
            let live = self.live.read();
            let live = live.as_ref().filter(|live| live.version == Some(handle.version));
            live.and_then(|live| self.rebased_lineage(live))
        };
        let Some(mut lineage) = lineage else { return Ok(None) };
        self.index_older(&mut lineage)?;
        let (indexed, segments) = lineage.handle_parts();
        Ok(Some(ShardHandle { snapshot: lineage.snapshot, indexed, segments, ..handle.clone() }))
    }

    /// The lineage of the live version from the finished snapshot that waits, if it may have it.
    pub(super) fn rebased_lineage(&self, live: &Live) -> Option<Lineage> {
        let control = self.control.lock();
        let waiting = control.waiting.as_ref().filter(|waiting| waiting.is_snapshot_for(&live.lineage))?;
        let mut lineage = live.lineage.clone();
        lineage.rebase(&waiting.snapshot).then_some(lineage)
    }

    /// Moves older segments to an index object, if there are too many for a handle.
    fn index_older(&self, lineage: &mut Lineage) -> Result<()> {
        let context = self.context();
        if let Some(older) = lineage.overflow(context.options.max_handle_segments) {
            let (bytes, n) = (encode_segment_index(older), older.len());
            let object = context.runtime.block_on(context.store.put_new(&index_name(), vec![bytes]))?;
            lineage.set_index(object, n);
        }
        Ok(())
    }

    /// The handle of a version.
    pub(super) fn handle(&self, meta: &HandleMeta, version: VersionId, lineage: &Lineage) -> ShardHandle {
        let place = self.placement();
        let (indexed, segments) = lineage.handle_parts();
        ShardHandle {
            instance: meta.instance,
            version,
            parent: meta.parent,
            batch: meta.batch,
            shard: place.shard,
            shards: place.shards,
            max_parallelism: place.max_parallelism,
            key_groups: place.key_groups(),
            hash_id: HASH_ID,
            schema_id: meta.schema_id,
            schema: meta.schema.clone(),
            watermark: meta.watermark,
            state_keys: meta.state_keys,
            state_bytes: meta.state_bytes,
            snapshot: lineage.snapshot.clone(),
            indexed,
            segments,
        }
    }

    /// Keeps a prepared version in memory, within the bounds of number and bytes; the oldest ones go, and one that is
    /// too large by itself: they can be replayed.
    fn remember(&self, version: VersionId, mut prepared: Prepared) {
        let context = self.context();
        let (budget, most) = (&context.budget, context.options.max_prepared_versions.max(1));
        let mut control = self.control.lock();
        control.next_order += 1;
        prepared.order = control.next_order;
        let own = prepared.memory.bytes();
        control.prepared.insert(version, prepared);
        let limit = budget.limit() / PREPARED_SHARE;
        while control.prepared.len() > most
            || (budget.used_by(MemoryUser::Prepared) > limit && control.prepared.len() > 1)
            || own > limit
        {
            let Some(oldest) = control.prepared.iter().min_by_key(|(_, p)| p.order).map(|(v, _)| *v) else { break };
            control.prepared.remove(&oldest);
        }
    }
}
