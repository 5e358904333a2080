//! One batch of change sets becomes one log object.
//!
//! Owns: the object's layout around its sets, the order "store's acknowledgement, then answers", and the local copy.
//! Does not own: when a batch goes (`batch`), attempts (`store`).

use super::batch::Entry;
use super::{Shared, closed_error};
use crate::error::Result;
use crate::format::{Crc, file_footer, file_header};
use crate::model::{ObjectRef, SegmentRef};
use crate::store::log_name;
use bytes::Bytes;
use std::sync::Arc;

/// A log object before it is written.
struct Layout {
    parts: Vec<Bytes>,
    /// Offset of each set.
    offsets: Vec<u64>,
}

fn lay_out(batch: &[Entry]) -> Layout {
    let mut parts = Vec::with_capacity(batch.len() + 2);
    parts.push(file_header());
    parts.extend(batch.iter().map(|entry| entry.set.clone()));
    let mut crc = Crc::new();
    let mut at = 0;
    let mut offsets = Vec::with_capacity(parts.len());
    for part in &parts {
        crc.update(part);
        offsets.push(at);
        at += part.len() as u64;
    }
    offsets.remove(0);
    let sets: Vec<(u64, u64)> = offsets.iter().zip(batch).map(|(at, entry)| (*at, entry.set.len() as u64)).collect();
    parts.push(file_footer(&sets, crc.value()));
    Layout { parts, offsets }
}

/// Uploads a batch and answers each of its sets.
pub(super) async fn run(shared: &Arc<Shared>, batch: Vec<Entry>) {
    let mut closed = shared.closed.subscribe();
    let slot = tokio::select! {
        biased;
        _ = closed.wait_for(|closed| *closed) => Err(closed_error()),
        slot = shared.slots.acquire() => slot.map_err(|_| closed_error()),
    };
    // Sessions that have gone meanwhile need no upload.
    let batch: Vec<Entry> = batch.into_iter().filter(|entry| !entry.answer.is_closed()).collect();
    if batch.is_empty() {
        return;
    }
    let layout = lay_out(&batch);
    let result = match &slot {
        Err(error) => Err(error.clone()),
        Ok(_) => tokio::select! {
            biased;
            result = put(shared, layout.parts.clone()) => result,
            _ = closed.wait_for(|closed| *closed) => Err(closed_error()),
        },
    };
    drop(slot);
    let object = match result {
        Ok(object) => object,
        Err(error) => {
            tracing::warn!(sets = batch.len(), error = %error, "a batch of change sets could not be made durable");
            for entry in batch {
                entry.fail(error.clone());
            }
            return;
        }
    };
    let now = shared.clock.monotonic();
    shared.metrics.log_objects.add(1);
    shared.metrics.log_bytes.add(object.size);
    shared.metrics.change_sets.add(batch.len() as u64);
    let mut in_flight = Vec::with_capacity(batch.len());
    for (entry, offset) in batch.into_iter().zip(layout.offsets) {
        let waited = now.saturating_sub(entry.since).as_micros();
        shared.metrics.persist_micros.add(u64::try_from(waited).unwrap_or(u64::MAX));
        in_flight.push(entry.in_flight);
        let segment = SegmentRef {
            version: entry.version,
            batch: entry.batch,
            object: object.clone(),
            offset,
            length: entry.set.len() as u64,
            records: entry.records,
        };
        let _ = entry.answer.send(Ok(segment));
    }
    // After the answers: a slow or full disk delays nobody. The bytes count as in flight until they are gone.
    if let Some(twin) = shared.twin.clone() {
        let keep = tokio::task::spawn_blocking(move || twin.keep(&object, &layout.parts));
        let _ = keep.await;
    }
    drop(in_flight);
}

async fn put(shared: &Shared, parts: Vec<Bytes>) -> Result<ObjectRef> {
    shared.failpoints.hit("write.before-upload")?;
    let object = shared.store.put_new(&log_name(), parts).await?;
    shared.failpoints.hit("write.after-upload")?;
    Ok(object)
}
