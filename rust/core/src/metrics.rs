//! Counters and timings for users.
//!
//! Owns: the registry of named counters and gauges, cheap enough for hot paths (one atomic add).
//! Does not own: their export (server and Python do that); they are never used for correctness.

use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* ; $($(#[$histogram_doc:meta])* $histogram:ident),* $(,)?) => {
        /// All counters of one process. Names are stable: they are what users see.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $($(#[$doc])* pub $name: Counter,)*
            $($(#[$histogram_doc])* pub $histogram: Histogram,)*
            deltas: Deltas,
        }

        impl Metrics {
            /// Every counter by name.
            pub fn snapshot(&self) -> BTreeMap<&'static str, u64> {
                BTreeMap::from([$((stringify!($name), self.$name.get()),)*])
            }

            /// Every histogram by name.
            pub fn distributions(&self) -> BTreeMap<&'static str, Distribution> {
                BTreeMap::from([$((stringify!($histogram), self.$histogram.get()),)*])
            }
        }
    };
}

/// The newest values of something, as many as Flink's histograms keep.
#[derive(Debug, Default)]
pub struct Histogram(Mutex<VecDeque<u64>>);

/// What a histogram holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Distribution {
    /// Values seen lately.
    pub count: u64,
    /// The least.
    pub min: u64,
    /// Half of them are no larger.
    pub p50: u64,
    /// Ninety-nine of a hundred are no larger.
    pub p99: u64,
    /// The greatest.
    pub max: u64,
}

impl Histogram {
    const WINDOW: usize = 1000;

    /// Adds a value.
    pub fn record(&self, value: u64) {
        let mut values = self.0.lock();
        if values.len() == Self::WINDOW {
            values.pop_front();
        }
        values.push_back(value);
    }

    /// The distribution of the newest values.
    pub fn get(&self) -> Distribution {
        let mut values: Vec<u64> = self.0.lock().iter().copied().collect();
        values.sort_unstable();
        let at = |percent: usize| values.get((values.len() * percent).div_ceil(100).max(1) - 1).copied().unwrap_or(0);
        Distribution { count: values.len() as u64, min: at(0), p50: at(50), p99: at(99), max: at(100) }
    }
}

/// One number, shared by threads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Takes `n` away (for gauges); never goes below zero.
    pub fn sub(&self, n: u64) {
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |v| Some(v.saturating_sub(n)));
    }

    /// Sets the value (for gauges).
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// Adds the microseconds since `start`.
    pub fn add_elapsed(&self, start: Instant) {
        self.add(u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX));
    }

    /// The current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counter deltas since the previous call; summed over sessions they equal the process totals.
#[derive(Debug, Default)]
pub struct Deltas {
    store_requests: AtomicU64,
    store_bytes_written: AtomicU64,
    materializations_completed: AtomicU64,
}

impl Metrics {
    /// Counters of the process that no single session owns, since the last call: name and growth.
    pub fn take_deltas(&self) -> [(&'static str, u64); 3] {
        let grown = |now: &Counter, last: &AtomicU64| {
            let now = now.get();
            now.saturating_sub(last.swap(now, Ordering::Relaxed))
        };
        [
            ("store_requests", grown(&self.store_requests, &self.deltas.store_requests)),
            ("store_bytes_written", grown(&self.store_bytes_written, &self.deltas.store_bytes_written)),
            (
                "materializations_completed",
                grown(&self.materializations_completed, &self.deltas.materializations_completed),
            ),
        ]
    }
}

/// The metrics of one engine, shared by all its parts.
pub type SharedMetrics = Arc<Metrics>;

counters! {
    /// Partial rows merged by sessions.
    rows_merged,
    /// Distinct keys changed by sessions.
    keys_updated,
    /// Keys that exist in live shards (gauge).
    state_keys,
    /// Bytes of keys and values in live shards (gauge).
    state_bytes,
    /// Folders of states that are open, each with one store and one log (gauge).
    open_folders,
    /// Lookups answered by the hot tier.
    hot_hits,
    /// Lookups that the hot tier could not answer.
    hot_misses,
    /// Entries the hot tier pushed out.
    hot_evictions,
    /// Bytes held by the hot tiers (gauge).
    hot_bytes,
    /// Keys looked up in RocksDB.
    rocksdb_reads,
    /// Keys written to RocksDB.
    rocksdb_writes,
    /// Change sets persisted.
    change_sets,
    /// Log objects uploaded.
    log_objects,
    /// Bytes of log objects uploaded.
    log_bytes,
    /// Bytes of change sets waiting for upload or uploading (gauge).
    in_flight_bytes,
    /// Log objects that could not be written, after the last attempt.
    upload_failures,
    /// Second attempts that were started beside slow uploads of log objects.
    hedges_started,
    /// Second attempts that arrived first.
    hedges_won,
    /// Bytes of second attempts, arrived or not.
    hedge_bytes,
    /// Change sets that had to wait because `max_in_flight` was reached.
    persist_waits,
    /// Change sets that wait for their batch (gauge).
    upload_queue_size,
    /// Batches that wait for a thread or are being uploaded (gauge).
    uploads_active,
    /// Appends that had to wait because `max_in_flight` was reached.
    throttled_appends,
    /// Microseconds that appends waited because of `max_in_flight`.
    throttled_micros,
    /// Log objects deleted because they are not needed any more.
    discards,
    /// Log objects that are being deleted, or will be when their upload has ended (gauge).
    discards_pending,
    /// Log objects that could not be deleted.
    discard_failures,
    /// Change sets read.
    sets_read,
    /// Changes read.
    changes_read,
    /// Microseconds spent reading changes.
    read_micros,
    /// Requests sent to the object store, retries included.
    store_requests,
    /// Requests that had to be repeated.
    store_retries,
    /// Requests that failed for good.
    store_failures,
    /// Bytes sent to the object store.
    store_bytes_written,
    /// Bytes received from the object store.
    store_bytes_read,
    /// Microseconds spent waiting for the object store, summed over requests.
    store_micros,
    /// Sessions opened.
    sessions,
    /// Sessions that ended without commit.
    sessions_aborted,
    /// Times that a session wrote its groups to the local disk because they were more than its memory holds.
    spills,
    /// Bytes of groups that sessions wrote to the local disk.
    spilled_bytes,
    /// Prepared versions that were promoted.
    promotions,
    /// Microseconds spent promoting.
    promote_micros,
    /// Shards restored from handles.
    restores,
    /// Microseconds spent restoring.
    restore_micros,
    /// Bytes of bases and segments read by restores, counted as they come.
    restore_bytes,
    /// Restores that are in progress (gauge).
    restores_running,
    /// Bytes that restores in progress have still to read (gauge).
    restore_pending_bytes,
    /// Bytes of change sets replayed.
    replay_bytes,
    /// Microseconds spent replaying change sets, fetching them included.
    replay_micros,
    /// Microseconds from commit to the durable acknowledgement.
    persist_micros,
    /// Microseconds spent merging partial rows into overlays.
    merge_micros,
    /// Microseconds spent reading base state and combining.
    combine_micros,
    /// Microseconds spent encoding change sets.
    encode_micros,
    /// Microseconds spent producing result batches.
    result_micros,
    /// Checkpoints of embedded states that became durable.
    checkpoints,
    /// Microseconds from the request of such a checkpoint until it was durable, summed.
    checkpoint_micros,
    /// Bytes of changes of embedded states that no checkpoint holds yet (gauge).
    uncheckpointed_bytes,
    /// Materializations started.
    materializations_started,
    /// Materializations completed.
    materializations_completed,
    /// Materializations failed.
    materializations_failed,
    /// Checkpoints of local states that were copied because hard links are refused.
    checkpoints_copied,
    /// Microseconds that materializations kept a shard's sessions waiting: the synchronous part and the steps of the flush, summed.
    materialize_sync_micros,
    /// Microseconds spent materializing.
    materialize_micros,
    /// Bytes uploaded by materializations.
    materialize_bytes,
    /// Bytes of materialized bases that earlier bases had uploaded already.
    materialize_reused_bytes,
    /// Small files of bases that were uploaded packed into shared objects.
    materialize_packed_files,
    /// Microseconds that bytes of bases were held back by `background_bandwidth`, summed over transfers.
    background_waits_micros,
    /// Microseconds that materializations rested because batches run, summed.
    background_rests_micros,
    /// Downloads that the local cache answered.
    cache_hits,
    /// Downloads that went to the store.
    cache_misses,
    /// Bytes held by the local cache (gauge).
    cache_bytes,
    /// Objects the local cache pushed out.
    cache_evictions,
    /// Damaged or vanished files found in the local cache.
    cache_damaged,
    /// Bytes of the option `memory_budget`, as it is in force (gauge).
    memory_budget,
    /// Bytes of the budget that all parts together have taken (gauge).
    memory_counted,
    /// Bytes of blocks, indexes and filters in RocksDB's cache (gauge).
    memory_block_cache,
    /// Bytes of RocksDB's write buffers, which are charged to its cache (gauge).
    memory_write_buffers,
    /// Bytes of open tables of RocksDB outside its cache (gauge).
    memory_table_readers,
    /// Bytes of the hot tiers (gauge).
    memory_hot,
    /// Bytes of open sessions: groups, results and change sets in progress (gauge).
    memory_sessions,
    /// Bytes of versions that wait for their promotion (gauge).
    memory_prepared,
    /// Bytes of change sets waiting for upload or uploading (gauge).
    memory_log,
    /// Bytes of buffers of uploads of bases (gauge).
    memory_uploads,
    /// Bytes of buffers of downloads (gauge).
    memory_downloads;
    /// Change sets per log object.
    upload_sets,
    /// Bytes per log object.
    upload_bytes,
    /// Microseconds from the start of a log object's upload to its acknowledgement.
    upload_micros,
    /// Attempts that a request to the store took until it succeeded.
    request_attempts,
    /// Microseconds that one step of a materialization kept a shard's sessions waiting.
    materialize_pause_micros,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_forgets_old_values() {
        let histogram = Histogram::default();
        assert_eq!(histogram.get(), Distribution::default());
        histogram.record(7);
        assert_eq!(histogram.get(), Distribution { count: 1, min: 7, p50: 7, p99: 7, max: 7 });
        (1..=1000).for_each(|value| histogram.record(value));
        assert_eq!(histogram.get(), Distribution { count: 1000, min: 1, p50: 500, p99: 990, max: 1000 });
    }
}
