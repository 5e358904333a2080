//! One batch of change sets becomes one log object.
//!
//! Owns: the object's layout around its sets, the order "store's acknowledgement, then answers", and the local copy.
//! Does not own: when a batch is uploaded (`batch`), attempts, also those beside a slow one (`store`), the encoding of a set (`format`).

use super::entry::{Entry, SetLocation};
use super::{Shared, closed_error};
use crate::store::ChecksummedBytes;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::ObjectRef;
use fastchangelog_format::{EncodedSet, crc32c, crc32c_joined, file_footer, file_header};
use std::sync::Arc;
use tokio::sync::watch;

/// A log object before it is written.
struct Layout {
    object: ChecksummedBytes,
    /// Offset of each set.
    offsets: Vec<u64>,
}

fn lay_out(batch: &[Entry]) -> Layout {
    let header = file_header();
    // Each set knows its checksum: nothing is read again.
    let (mut crc, mut at) = (crc32c(&header), header.len() as u64);
    let mut parts = vec![header];
    let mut offsets = Vec::with_capacity(batch.len());
    let mut sets = Vec::with_capacity(batch.len());
    for entry in batch {
        let set = &entry.set;
        crc = crc32c_joined(crc, set.crc, set.length);
        parts.extend(set.parts.iter().cloned());
        offsets.push(at);
        sets.push((at, set.length));
        at += set.length;
    }
    let footer = file_footer(&sets, crc);
    crc = crc32c_joined(crc, crc32c(&footer), footer.len() as u64);
    let size = at + footer.len() as u64;
    parts.push(footer);
    Layout { object: ChecksummedBytes { parts, size, crc }, offsets }
}

/// Uploads a batch and answers each of its sets.
pub(super) async fn run(shared: &Arc<Shared>, batch: Vec<Entry>) {
    let mut closed = shared.closed.subscribe();
    let losers_end = closed.clone();
    let slot = tokio::select! {
        biased;
        _ = closed.wait_for(|closed| *closed) => Err(closed_error()),
        slot = shared.slots.acquire() => slot.map_err(|_| closed_error()),
    };
    let tasks = batch.iter().filter(|entry| entry.of_task).count();
    // Sets without a receiver need no upload.
    let batch: Vec<Entry> = batch.into_iter().filter(|entry| !entry.answer.is_gone()).collect();
    if batch.is_empty() {
        shared.answered(tasks, None);
        return;
    }
    let (start, began) = (std::time::Instant::now(), shared.clock.monotonic());
    let layout = lay_out(&batch);
    let result = match &slot {
        Err(error) => Err(error.clone()),
        Ok(_) => tokio::select! {
            biased;
            result = put(shared, layout.object.clone(), &losers_end) => result,
            _ = closed.wait_for(|closed| *closed) => Err(closed_error()),
        },
    };
    drop(slot);
    let object = match result {
        Ok(object) => object,
        Err(error) => {
            tracing::warn!(sets = batch.len(), error = %error, "cannot make a batch of change sets durable");
            shared.metrics.upload_failures.add(1);
            shared.answered(tasks, None);
            for entry in batch {
                entry.fail(error.clone());
            }
            return;
        }
    };
    shared.metrics.upload_sets.record(batch.len() as u64);
    shared.metrics.upload_bytes.record(object.size);
    shared.metrics.upload_micros.record(u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX).max(1));
    let now = shared.clock.monotonic();
    shared.metrics.log_objects.add(1);
    shared.metrics.log_bytes.add(object.size);
    shared.metrics.change_sets.add(batch.len() as u64);
    if let Some(observer) = &shared.observer {
        observer(&object, batch.len() as u64);
    }
    // Before the answers, after which their slots' next tasks can come.
    shared.answered(tasks, Some(now.saturating_sub(began)));
    let mut in_flight = Vec::with_capacity(batch.len());
    for (entry, offset) in batch.into_iter().zip(layout.offsets) {
        let waited = now.saturating_sub(entry.since).as_micros();
        shared.metrics.persist_micros.add(u64::try_from(waited).unwrap_or(u64::MAX));
        let EncodedSet { length, head, mark, records, .. } = entry.set;
        in_flight.push(entry.succeed(SetLocation { object: object.clone(), offset, length, head, mark, records }));
    }
    // After the answers: a slow or full disk delays no receiver. The bytes count as in flight until they are freed.
    if let Some(local_copies) = shared.local_copies.clone() {
        let keep = tokio::task::spawn_blocking(move || local_copies.keep(&object, &layout.object.parts));
        let _ = keep.await;
    }
    drop(in_flight);
}

async fn put(shared: &Shared, object: ChecksummedBytes, losers_end: &watch::Receiver<bool>) -> Result<ObjectRef> {
    shared.failpoints.hit("write.before-upload")?;
    let object = shared.store.put_log(object, losers_end).await?;
    shared.failpoints.hit("write.after-upload")?;
    Ok(object)
}
