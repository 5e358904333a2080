//! The end of a state session: its version.
//!
//! Owns: the change set of a session, whole or in parts, and the handle of what it makes.
//! Does not own: the comparison with the version below (`states::net`), waiting for the store and the handle's lineage (`seal`).
//!
//! Changes that fit into memory, with what they remove, are one change set. Others are on the local disk, and each part of them
//! is a segment of the version; parts have no key in common, so together they are one change set (P5).

use super::{Attached, Declared, StateSession};
use crate::shard::lineage::Lineage;
use crate::shard::seal::{Committed, HandleMeta, PendingVersion, SetParts, encode};
use crate::shard::{Live, Shard};
use crate::states::net::{Net, net_within};
use crate::states::net_spilled::{SpilledNet, part_bytes};
use crate::states::spilled::SpilledChanges;
use fastchangelog_columns::codec::hash_key;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{ShardHandle, VersionId};
use fastchangelog_state::keyed::StatePart;
use std::sync::Arc;
use std::time::Instant;

/// What the handle of the next version inherits from the base.
struct Parent {
    lineage: Lineage,
    state_keys: u64,
    state_bytes: u64,
}

impl Parent {
    fn of(live: &Live) -> Self {
        Self { lineage: live.lineage.clone(), state_keys: live.state_keys, state_bytes: live.state_bytes }
    }
}

/// A change set that was submitted.
struct Submitted {
    pending: PendingVersion,
    since: Instant,
    state_keys: u64,
    state_bytes: u64,
}

impl StateSession {
    /// Waits until the changes are durable and returns the handle of the new version, with this watermark. Once.
    pub fn commit(&mut self, watermark: Option<i64>) -> Result<Committed> {
        self.declared()?;
        let made = self.make_version(watermark);
        self.ended = Some(match &made {
            Ok(_) => Error::closed("commit was already called; open a new session"),
            Err(error) => error.clone(),
        });
        if let Some(attached) = &mut self.attached {
            attached.hold.is_done = true;
        }
        let handle = made?;
        if let Some(handle) = &handle {
            self.counters.set("state_keys", handle.state_keys);
            self.counters.set("state_bytes", handle.state_bytes);
        }
        if let Some(Attached { base, .. }) = &self.attached {
            let metrics = &base.shard.context().metrics;
            metrics.changes.add(self.counters.get("changes"));
            metrics.write_micros.add(self.counters.get("write_micros"));
            metrics.due_timers.add(self.counters.get("due_timers"));
            metrics.entries_ended.add(self.counters.get("entries_ended"));
            for (name, n) in metrics.take_growth() {
                self.counters.set(name, n);
            }
        }
        self.counters.count_since("session_micros", self.opened);
        Ok(Committed { handle, metrics: self.counters.all(), next_close: None })
    }

    /// The handle of the version; none without a shard.
    fn make_version(&mut self, watermark: Option<i64>) -> Result<Option<ShardHandle>> {
        self.overlay.environment().failpoints.hit("session.finish")?;
        let Some(Attached { base, .. }) = &self.attached else { return Ok(None) };
        let shard = Arc::clone(&base.shard);
        self.sweep()?;
        let start = Instant::now();
        let submitted = if let Some(net) = self.net_in_memory()? {
            self.submit_whole(&shard, net, start)?
        } else {
            self.overlay.spill(&mut self.counters)?;
            let spilled = self.overlay.layers.take_spilled();
            let spilled = spilled.ok_or_else(|| Error::internal("changes were not spilled"))?;
            self.submit_parts(&shard, &spilled)?
        };
        let meta = self.meta(watermark)?;
        let Some(Submitted { pending, since, state_keys, state_bytes }) = submitted else {
            return self.unchanged(&shard, meta).map(Some);
        };
        let meta = HandleMeta { state_keys, state_bytes, ..meta };
        let sealed = shard.seal(&meta, pending)?;
        // The set is kept prepared now, and counted there.
        self.overlay.account();
        let handle = sealed.into_handle(&mut self.counters);
        self.counters.count_since("persist_micros", since);
        let context = shard.context();
        context.metrics.keys_updated.add(self.counters.get("keys_updated"));
        context.failpoints.hit("session.committed")?;
        Ok(Some(handle))
    }

    /// What the changes are to the version below, and that version; none if there is no memory for either.
    fn net_in_memory(&self) -> Result<Option<(Net, Parent)>> {
        let (layer, most) = (self.overlay.layers.active(), self.overlay.limit());
        if self.overlay.layers.has_spilled() || self.overlay.layers.bytes() > most {
            return Ok(None);
        }
        let attached = self.attached.as_ref().ok_or_else(|| Error::internal("a version without a shard"))?;
        let cleared = layer.cleared_states();
        let parts: Vec<StatePart> = cleared.iter().map(|state| StatePart::of_prefix(*state, &[])).collect();
        attached
            .base
            .read_settled(&parts, |live| Ok(net_within(layer, &live.keyed, most)?.map(|net| (net, Parent::of(live)))))
    }

    /// Submits the changes that are in memory; none if they change nothing.
    fn submit_whole(
        &mut self,
        shard: &Arc<Shard>,
        (net, parent): (Net, Parent),
        start: Instant,
    ) -> Result<Option<Submitted>> {
        let context = shard.context();
        let attached = self.attached.as_mut().ok_or_else(|| Error::internal("a version without a shard"))?;
        let (guard, batch) = (attached.guard.take(), attached.batch);
        drop(self.overlay.layers.freeze());
        let over = self.overlay.layers.mark_applied();
        self.overlay.hold(net.set.memory_bytes());
        drop(over);
        self.count_net(&net, start);
        context.metrics.combine_micros.add_elapsed(start);
        if net.set.is_empty() {
            return Ok(None);
        }
        let encoded = encode(context, &net.set, &mut self.counters)?;
        context.failpoints.hit("session.before-persist")?;
        let since = Instant::now();
        let guard = guard.unwrap_or_else(|| context.log.join_task(batch));
        let parts = SetParts::of(context.log.submit(guard, encoded));
        let hints = Some(self.hints.clone());
        let Net { set, keys, bytes, .. } = net;
        let Parent { lineage, state_keys, state_bytes } = parent;
        Ok(Some(Submitted {
            pending: PendingVersion { version: VersionId::random(), set: Some(Arc::new(set)), parts, lineage, hints },
            since,
            state_keys: state_keys.saturating_add_signed(keys),
            state_bytes: state_bytes.saturating_add_signed(bytes),
        }))
    }

    /// Submits the changes that are on the local disk, part after part; none if they change nothing.
    fn submit_parts(&mut self, shard: &Arc<Shard>, spilled: &SpilledChanges) -> Result<Option<Submitted>> {
        let context = shard.context();
        let base = self.attached.as_ref().map(|attached| attached.base.clone());
        let base = base.ok_or_else(|| Error::internal("a version without a shard"))?;
        let limit = part_bytes(self.overlay.limit());
        let cleared = spilled.cleared_states();
        let settled: Vec<StatePart> = cleared.iter().map(|state| StatePart::of_prefix(*state, &[])).collect();
        let mut rest = SpilledNet::new(spilled);
        let (mut parts, mut parent, mut keys, mut bytes) = (SetParts::default(), None, 0_i64, 0_i64);
        let mut since = Instant::now();
        loop {
            context.failpoints.hit("session.range")?;
            let start = Instant::now();
            let next =
                base.read_settled(&settled, |live| Ok((rest.next(spilled, &live.keyed, limit)?, Parent::of(live))))?;
            let (Some(net), own_parent) = next else { break };
            self.count_net(&net, start);
            context.metrics.combine_micros.add_elapsed(start);
            self.counters.count("ranges", 1);
            parent.get_or_insert(own_parent);
            self.overlay.hold(net.set.memory_bytes());
            let encoded = encode(context, &net.set, &mut self.counters)?;
            (keys, bytes) = (keys.saturating_add(net.keys), bytes.saturating_add(net.bytes));
            drop(net);
            context.failpoints.hit("session.before-persist")?;
            parts.collect_ready()?;
            since = Instant::now();
            parts.push(context.log.submit_part(encoded)?);
        }
        self.overlay.account();
        let Some(Parent { lineage, state_keys, state_bytes }) = parent else { return Ok(None) };
        Ok(Some(Submitted {
            // Its segments are replayed.
            pending: PendingVersion {
                version: VersionId::random(),
                set: None,
                parts,
                lineage,
                hints: Some(self.hints.clone()),
            },
            since,
            state_keys: state_keys.saturating_add_signed(keys),
            state_bytes: state_bytes.saturating_add_signed(bytes),
        }))
    }

    fn count_net(&mut self, net: &Net, start: Instant) {
        self.counters.count_since("combine_micros", start);
        self.counters.count("hot_misses", net.misses);
        self.counters.count("hot_hits", net.compared - net.misses);
        self.counters.count("keys_updated", net.set.len() as u64);
    }

    /// The batch changed no entries.
    fn unchanged(&mut self, shard: &Arc<Shard>, meta: HandleMeta) -> Result<ShardHandle> {
        let base = self.attached.as_ref().and_then(|attached| attached.handle.as_ref());
        if base.is_some() {
            self.leave_hints();
        }
        Ok(shard.seal_unchanged(base, meta)?.into_handle(&mut self.counters))
    }

    /// What was learned is true of the version itself. Waits for no lock: hints are not needed.
    fn leave_hints(&self) {
        if let Some(Attached { base, .. }) = &self.attached
            && let Some(mut live) = base.shard.live.try_write()
            && let Some(live) = live.as_mut().filter(|live| base.is(live))
        {
            live.hints = Some(self.hints.clone());
        }
    }

    fn meta(&self, watermark: Option<i64>) -> Result<HandleMeta> {
        let Declared { text, .. } = self.declared()?;
        let attached = self.attached.as_ref().ok_or_else(|| Error::internal("a version without a shard"))?;
        Ok(HandleMeta {
            instance: attached.base.instance,
            parent: attached.base.version,
            batch: attached.batch,
            schema_id: hash_key(text.as_bytes()),
            schema: text.clone(),
            watermark,
            state_keys: 0,
            state_bytes: 0,
        })
    }
}

#[cfg(test)]
#[path = "clear_tests.rs"]
mod tests;
