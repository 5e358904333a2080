//! A shard that one owner in this process reads and extends, without sessions.
//!
//! Owns: reading the live state, and the step from it to the next version.
//! Does not own: the choice of a handle (the owner passes it to `transition`), changes that are not yet in a version.

use super::seal::{HandleMeta, PendingVersion, SealedVersion, SetParts};
use super::{Live, Shard};
use crate::states::net::Net;
use crate::states::net_spilled::SpilledNet;
use crate::states::spilled::SpilledChanges;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{BatchId, ShardHandle, VersionId};
use fastchangelog_format::segment::encode_set;
use fastchangelog_state::keyed::{KeyedState, StatePart};
use std::sync::Arc;
use std::time::Instant;

/// Dirty entries written per turn of the shard's lock: a few milliseconds.
const FLUSH_CHUNK: usize = 8_192;

impl Shard {
    /// Reads the live version. Fails, retryable, while there is none.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&KeyedState) -> Result<T>) -> Result<T> {
        self.with_live(|live| read(&live.keyed))
    }

    /// Reads the live version when RocksDB holds all of it.
    pub(crate) fn read_settled<T>(&self, read: impl FnOnce(&KeyedState) -> Result<T>) -> Result<T> {
        self.with_settled(|live| read(&live.keyed))
    }

    fn with_settled<T>(&self, read: impl FnOnce(&Live) -> Result<T>) -> Result<T> {
        loop {
            {
                let live = self.live.read();
                let live = live.as_ref().ok_or_else(not_live)?;
                if live.keyed.dirty_entries() == 0 {
                    return read(live);
                }
            }
            let mut live = self.live.write();
            let live = live.as_mut().ok_or_else(not_live)?;
            live.keyed.begin_flush();
            while live.keyed.flush_dirty(FLUSH_CHUNK)? {}
        }
    }

    /// Brings parts of the live version to RocksDB.
    pub(super) fn settle_parts(&self, parts: &[StatePart]) -> Result<()> {
        let mut live = self.live.write();
        let live = live.as_mut().ok_or_else(not_live)?;
        for part in parts {
            if !live.keyed.is_flushed(part) {
                live.keyed.flush_part(part)?;
            }
        }
        Ok(())
    }

    /// Makes the difference that `net` finds durable, as a version after the live one; none if there is none. The
    /// version is prepared: to make its handle live promotes it. If `settled`, RocksDB holds all of the live version
    /// when `net` reads it.
    pub(crate) fn extend(
        &self,
        batch: BatchId,
        schema: (u64, &str),
        settled: bool,
        net: impl FnOnce(&KeyedState) -> Result<Net>,
    ) -> Result<Option<ShardHandle>> {
        let context = self.context();
        let next = |live: &Live| {
            let net = net(&live.keyed)?;
            let mut meta = meta_of(live, batch, schema);
            meta.count(&net);
            Ok((net, meta, live.lineage.clone()))
        };
        let (net, meta, lineage) = if settled { self.with_settled(next)? } else { self.with_live(next)? };
        if net.set.is_empty() {
            return Ok(None);
        }
        let start = Instant::now();
        let encoded = encode_set(&net.set, context.compression())?;
        context.metrics.encode_micros.add_elapsed(start);
        let version = VersionId::random();
        let parts = SetParts::of(context.log.submit_alone(encoded));
        let pending = PendingVersion { version, set: Some(Arc::new(net.set)), parts, lineage, hints: None };
        let SealedVersion { handle, .. } = self.seal(&meta, pending)?;
        Ok(Some(handle))
    }

    /// The same for changes on the local disk, in segments of about `part_bytes` bytes. The version is not prepared: to
    /// make its handle live replays them.
    pub(crate) fn extend_in_parts(
        &self,
        batch: BatchId,
        schema: (u64, &str),
        spilled: &SpilledChanges,
        part_bytes: u64,
    ) -> Result<Option<ShardHandle>> {
        let context = self.context();
        let has_clears = !spilled.cleared_states().is_empty();
        let (mut rest, mut parts, mut made) = (SpilledNet::new(spilled), SetParts::default(), None);
        loop {
            context.failpoints.hit("local.part")?;
            let next = |live: &Live| {
                let Some(net) = rest.next(spilled, &live.keyed, part_bytes)? else { return Ok(None) };
                let (meta, _) = made.get_or_insert_with(|| (meta_of(live, batch, schema), live.lineage.clone()));
                meta.count(&net);
                Ok(Some(net.set))
            };
            let Some(set) = (if has_clears { self.with_settled(next)? } else { self.with_live(next)? }) else { break };
            let start = Instant::now();
            let encoded = encode_set(&set, context.compression())?;
            context.metrics.encode_micros.add_elapsed(start);
            drop(set);
            parts.collect_ready()?;
            parts.push(context.log.submit_part(encoded)?);
        }
        let Some((meta, lineage)) = made else { return Ok(None) };
        let pending = PendingVersion { version: VersionId::random(), set: None, parts, lineage, hints: None };
        let SealedVersion { handle, .. } = self.seal(&meta, pending)?;
        Ok(Some(handle))
    }

    /// A handle of the live state before its first version.
    pub(crate) fn first_handle(&self, batch: BatchId, schema: (u64, &str)) -> Result<ShardHandle> {
        self.initial_handle(&self.with_live(|live| Ok(meta_of(live, batch, schema)))?)
    }

    /// Bytes and number of the log's change sets after the newest snapshot, also one that still waits.
    pub(crate) fn since_snapshot(&self) -> (u64, usize) {
        let live = self.live.read();
        let Some(live) = live.as_ref() else { return (0, 0) };
        let rebased = self.rebased_lineage(live);
        let lineage = rebased.as_ref().unwrap_or(&live.lineage);
        (lineage.log_bytes(), lineage.segments.len())
    }

    /// Cancels RocksDB's background work, such as a compaction with a waiting caller. It writes nothing any
    /// more: for the end of a state.
    pub(crate) fn stop_background(&self) {
        if let Some(live) = self.live.read().as_ref() {
            live.keyed.stop_background();
        }
    }

    fn with_live<T>(&self, read: impl FnOnce(&Live) -> Result<T>) -> Result<T> {
        read(self.live.read().as_ref().ok_or_else(not_live)?)
    }
}

/// The meta data of the version after the live one, before its changes are counted.
fn meta_of(live: &Live, batch: BatchId, (schema_id, schema): (u64, &str)) -> HandleMeta {
    HandleMeta {
        instance: live.instance,
        parent: live.version,
        batch,
        schema_id,
        schema: schema.to_owned(),
        watermark: None,
        state_keys: live.state_keys,
        state_bytes: live.state_bytes,
    }
}

impl HandleMeta {
    fn count(&mut self, net: &Net) {
        self.state_keys = self.state_keys.saturating_add_signed(net.keys);
        self.state_bytes = self.state_bytes.saturating_add_signed(net.bytes);
    }
}

fn not_live() -> Error {
    Error::retryable("the local state was dropped after a failed write to the local disk")
        .with_remedy("close it and open it again")
}
