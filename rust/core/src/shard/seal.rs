//! From a change set on its way to the handle of a durable version.
//!
//! Owns: waiting for the acknowledgement, the lineage of the new version, its handle, and keeping it prepared.
//! Does not own: what the change set holds (`session`, and the owner of a state in process), promotion (`transition`).
//!
//! Invariant: a handle is returned only after the store acknowledged everything that it names (P2).

use super::lineage::Lineage;
use super::{Prepared, Shard};
use crate::budget::Part;
use crate::error::Result;
use crate::format::handle::encode_segment_index;
use crate::model::handle::HASH_ID;
use crate::model::{BatchId, ChangeSet, InstanceId, SegmentRef, ShardHandle, VersionId};
use crate::store::index_name;
use crate::write::{PersistFuture, Placed};
use std::sync::Arc;

/// What a handle says beside where the bytes are.
#[derive(Clone)]
pub(crate) struct Title {
    pub(crate) instance: InstanceId,
    pub(crate) parent: Option<VersionId>,
    pub(crate) batch: BatchId,
    pub(crate) schema_id: u64,
    pub(crate) schema: String,
    pub(crate) state_keys: u64,
    pub(crate) state_bytes: u64,
}

/// A change set that was handed to the log.
pub(super) struct Draft {
    pub(super) version: VersionId,
    pub(super) set: Arc<ChangeSet>,
    pub(super) future: PersistFuture,
    /// Of the parent.
    pub(super) lineage: Lineage,
}

/// A durable version, prepared.
pub(super) struct Sealed {
    pub(super) handle: ShardHandle,
    /// True if it is the first to start from a new base.
    pub(super) rebased: bool,
}

impl Shard {
    /// Waits until the change set is durable, and keeps the version prepared.
    pub(super) fn seal(&self, title: &Title, draft: Draft) -> Result<Sealed> {
        let context = self.context();
        let Draft { version, set, future, mut lineage } = draft;
        let waiting = self.control.lock().waiting.as_ref().map(|w| w.base.clone());
        let rebased = waiting.is_some_and(|base| lineage.rebase(&base));
        // Older segments are durable already: their index is written while the new one is under way.
        if let Some(older) = lineage.overflow(context.options.max_handle_segments) {
            let (bytes, n) = (encode_segment_index(older), older.len());
            let object = context.runtime.block_on(context.store.put_new(&index_name(), vec![bytes]))?;
            lineage.set_index(object, n);
        }
        let Placed { object, offset, length, records, .. } = future.wait()?;
        context.failpoints.hit("session.durable")?;
        lineage.segments.push(SegmentRef { version, batch: title.batch, object, offset, length, records });
        let handle = self.handle(title, version, &lineage);
        let memory = context.budget.reserve(Part::Prepared, set.memory_bytes());
        let prepared = Prepared {
            instance: title.instance,
            parent: title.parent,
            batch: title.batch,
            set,
            lineage,
            state_keys: title.state_keys,
            state_bytes: title.state_bytes,
            order: 0,
            _memory: memory,
        };
        self.remember(version, prepared);
        Ok(Sealed { handle, rebased })
    }

    /// The handle of a version.
    pub(super) fn handle(&self, title: &Title, version: VersionId, lineage: &Lineage) -> ShardHandle {
        let place = self.placement();
        let (indexed, segments) = lineage.handle_parts();
        ShardHandle {
            instance: title.instance,
            version,
            parent: title.parent,
            batch: title.batch,
            shard: place.shard,
            shards: place.shards,
            max_parallelism: place.max_parallelism,
            key_groups: place.key_groups(),
            hash_id: HASH_ID,
            schema_id: title.schema_id,
            schema: title.schema.clone(),
            watermark: None,
            state_keys: title.state_keys,
            state_bytes: title.state_bytes,
            base: lineage.base.clone(),
            indexed,
            segments,
        }
    }

    /// Keeps a prepared version in memory, within the bound; the oldest ones go (they can be replayed).
    fn remember(&self, version: VersionId, mut prepared: Prepared) {
        let mut control = self.control.lock();
        control.next_order += 1;
        prepared.order = control.next_order;
        control.prepared.insert(version, prepared);
        while control.prepared.len() > self.context().options.max_prepared_versions.max(1) {
            let Some(oldest) = control.prepared.iter().min_by_key(|(_, p)| p.order).map(|(v, _)| *v) else { break };
            control.prepared.remove(&oldest);
        }
    }
}
