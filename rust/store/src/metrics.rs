//! Counters and timings for users.
//!
//! metrics: the table; instruments: the numbers; text: the Prometheus text; process: the engines of this process
//!
//! Owns: the one table of names, kinds and meanings that docs, Python, the state server and the text endpoint read.
//! Does not own: their export (server and Python do that); they are never used for correctness.

mod instruments;
mod process;
mod text;

pub use instruments::{Counter, Distribution, Histogram};
pub use process::{Process, Registration};
pub use text::{CONTENT_TYPE, LabelledShard, render};

use instruments::Instrument;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The kind of a metric's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Grows from the start of the process.
    Counter,
    /// The value of now.
    Gauge,
    /// The distribution of the newest values.
    Histogram,
}

impl Kind {
    /// Its name in docs and in Python.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// The operators whose batches report a metric: each one that is reported costs a batch of them time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operators {
    /// No batch reports it.
    None,
    /// Aggregations and stateful processors.
    All,
    /// Aggregations.
    Aggregation,
    /// Stateful processors.
    Processor,
}

impl Operators {
    /// Its name in Python.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::All => "all",
            Self::Aggregation => "aggregation",
            Self::Processor => "processor",
        }
    }
}

/// One row of a table of metrics.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The public name. Stable.
    pub name: &'static str,
    /// Counter, gauge or histogram.
    pub kind: Kind,
    /// The batches that report it. Spark adds up the reports of the sessions of a batch.
    pub operators: Operators,
    /// No single session owns it: each report has the growth since the report before, so that they add up to the whole.
    is_growth: bool,
    /// One sentence.
    pub meaning: &'static str,
}

macro_rules! metrics {
    (
        process { $($(#[doc = $doc:literal])* $name:ident: $kind:ident $($batch:ident $($of:ident)?)?),* $(,)? }
        batch { $($(#[doc = $batch_doc:literal])* $batch_name:ident $($batch_of:ident)?),* $(,)? }
        shard { $($(#[doc = $shard_doc:literal])* $shard_name:ident),* $(,)? }
    ) => {
        /// All metrics of one engine, or of one process. Names are stable: they are what users see.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $($(#[doc = $doc])* pub $name: metrics!(@type $kind),)*
        }

        /// Gauges of one shard.
        #[derive(Debug, Clone, Copy, Default)]
        pub struct ShardGauges {
            $($(#[doc = $shard_doc])* pub $shard_name: u64,)*
        }

        impl Metrics {
            /// The metrics of an engine, in order of declaration.
            pub const TABLE: &'static [Row] = &[$(Row {
                name: stringify!($name),
                kind: metrics!(@kind $kind),
                operators: metrics!(@operators $($batch $($of)?)?),
                is_growth: metrics!(@growth $($batch $($of)?)?),
                meaning: concat!($($doc),*),
            }),*];

            /// Metrics that appear only in the report of a batch.
            pub const OF_BATCH: &'static [Row] = &[$(Row {
                name: stringify!($batch_name),
                kind: Kind::Counter,
                operators: metrics!(@operators batch $($batch_of)?),
                is_growth: false,
                meaning: concat!($($batch_doc),*),
            }),*];

            /// Of [`Self::TABLE`], in its order.
            fn instruments(&self) -> Vec<Instrument<'_>> {
                vec![$(Instrument::from(&self.$name)),*]
            }
        }

        impl ShardGauges {
            /// Metrics per shard at the text endpoint, in order of declaration.
            pub const TABLE: &'static [Row] = &[$(Row {
                name: stringify!($shard_name),
                kind: Kind::Gauge,
                operators: Operators::None,
                is_growth: false,
                meaning: concat!($($shard_doc),*),
            }),*];

            /// Of [`Self::TABLE`], in its order.
            fn values(&self) -> Vec<u64> {
                vec![$(self.$shard_name),*]
            }
        }
    };
    (@type histogram) => { Histogram };
    (@type $number:ident) => { Counter };
    (@kind counter) => { Kind::Counter };
    (@kind gauge) => { Kind::Gauge };
    (@kind histogram) => { Kind::Histogram };
    (@operators) => { Operators::None };
    (@operators $how:ident) => { Operators::All };
    (@operators $how:ident aggregation) => { Operators::Aggregation };
    (@operators $how:ident processor) => { Operators::Processor };
    (@growth growth $($of:ident)?) => { true };
    (@growth $($how:ident)*) => { false };
}

impl Metrics {
    fn rows(&self) -> impl Iterator<Item = (&'static Row, Instrument<'_>)> {
        Self::TABLE.iter().zip(self.instruments())
    }

    /// Every counter and gauge by name.
    pub fn snapshot(&self) -> BTreeMap<&'static str, u64> {
        self.rows().filter_map(|(row, found)| Some((row.name, found.number()?.get()))).collect()
    }

    /// Every metric by name; of a histogram, its parts: `<name>_count`, `_min`, `_p50`, `_p99` and `_max`.
    pub fn all(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for (Row { name, .. }, found) in self.rows() {
            match found {
                Instrument::Number(number) => drop(all.insert((*name).to_owned(), number.get())),
                Instrument::Histogram(histogram) => {
                    let parts = histogram.get().parts();
                    all.extend(parts.map(|(part, value)| (format!("{name}_{part}"), value)));
                }
            }
        }
        all
    }

    /// Growth since the last call of the metrics that no single session owns.
    pub fn take_growth(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let growing = self.rows().filter(|(row, _)| row.is_growth);
        growing.filter_map(|(row, found)| Some((row.name, found.number()?.take_growth())))
    }

    /// Counts a background sweep that has ended; `waiting` is the sum over the states that this engine sweeps.
    pub fn count_sweep(&self, deleted: u64, deleted_bytes: u64, waiting: u64, requests: u64, in_doubt: bool) {
        self.sweeps.add(1);
        self.sweeps_in_doubt.add(in_doubt.into());
        self.sweep_deleted.add(deleted);
        self.sweep_deleted_bytes.add(deleted_bytes);
        self.sweep_waiting.set(waiting);
        self.sweep_requests.add(requests);
    }

    /// Adds the values of another engine; without its gauges if it has ended.
    fn absorb(&self, other: &Self, ended: bool) {
        for ((row, into), (_, from)) in self.rows().zip(other.rows()) {
            match (into, from) {
                (Instrument::Number(_), Instrument::Number(_)) if ended && row.kind == Kind::Gauge => {}
                (Instrument::Number(into), Instrument::Number(from)) => into.add(from.get()),
                (Instrument::Histogram(into), Instrument::Histogram(from)) => into.absorb(from, ended),
                _ => {}
            }
        }
    }
}

/// The metrics of one engine, shared by all its parts.
pub type SharedMetrics = Arc<Metrics>;

metrics! {
process {
/// Partial rows merged by sessions.
    rows_merged: counter batch aggregation,
    /// Distinct keys changed by sessions.
    keys_updated: counter batch,
    /// Changes of states by stateful processors.
    changes: counter batch processor,
    /// Microseconds spent taking over changes of states by stateful processors.
    write_micros: counter batch processor,
    /// Timers that were found due, of stateful processors and embedded states.
    due_timers: counter batch processor,
    /// Groups, values, list elements and map entries that were removed because their time to live was over.
    entries_ended: counter batch,
    /// Keys that exist in live shards.
    state_keys: gauge batch,
    /// Bytes of keys and values in live shards.
    state_bytes: gauge batch,
    /// Folders of states that are open, each with one store and one log.
    open_folders: gauge,
    /// Lookups answered by the hot tier.
    hot_hits: counter batch,
    /// Lookups that the hot tier could not answer.
    hot_misses: counter batch,
    /// Entries the hot tier pushed out.
    hot_evictions: counter,
    /// Bytes held by the hot tiers.
    hot_bytes: gauge,
    /// Keys looked up in RocksDB.
    rocksdb_reads: counter,
    /// Keys written to RocksDB.
    rocksdb_writes: counter,
    /// Change sets persisted.
    change_sets: counter,
    /// Log objects uploaded.
    log_objects: counter,
    /// Bytes of log objects uploaded.
    log_bytes: counter batch,
    /// Bytes of change sets waiting for upload or uploading.
    in_flight_bytes: gauge,
    /// Bytes of Arrow buffers that change sets of a plain changelog refer to.
    referenced_bytes: gauge,
    /// Log objects that could not be written, after the last attempt.
    upload_failures: counter,
    /// Second attempts started beside slow uploads of log objects.
    hedges_started: counter,
    /// Second attempts that arrived first.
    hedges_won: counter,
    /// Bytes of second attempts, arrived or not.
    hedge_bytes: counter,
    /// Change sets that had to wait because `max_in_flight` was reached.
    persist_waits: counter,
    /// Log objects uploaded when the time was over in which other sessions of their wave could have joined.
    wave_timeouts: counter,
    /// Change sets that wait for their batch.
    upload_queue_size: gauge,
    /// Batches that wait for a thread or are being uploaded.
    uploads_active: gauge,
    /// Appends that had to wait because `max_in_flight` was reached.
    throttled_appends: counter,
    /// Microseconds that appends waited because of `max_in_flight`.
    throttled_micros: counter,
    /// Log objects deleted because they are not needed any more.
    discards: counter,
    /// Log objects that are being deleted, or will be when their upload has ended.
    discards_pending: gauge,
    /// Log objects that could not be deleted.
    discard_failures: counter,
    /// Change sets read.
    sets_read: counter,
    /// Changes read.
    changes_read: counter,
    /// Microseconds spent reading changes.
    read_micros: counter,
    /// Requests sent to the object store, retries included.
    store_requests: counter growth,
    /// Requests that had to be repeated.
    store_retries: counter,
    /// Requests that failed for good.
    store_failures: counter,
    /// Bytes sent to the object store.
    store_bytes_written: counter,
    /// Bytes received from the object store.
    store_bytes_read: counter,
    /// Microseconds spent waiting for the object store, summed over requests.
    store_micros: counter,
    /// Sessions opened.
    sessions: counter,
    /// Sessions that ended without commit.
    sessions_aborted: counter,
    /// Times that a session wrote its groups to the local disk because they were more than its memory holds.
    spills: counter,
    /// Bytes of groups that sessions wrote to the local disk.
    spilled_bytes: counter batch,
    /// Prepared versions that were promoted.
    promotions: counter,
    /// Microseconds spent promoting.
    promote_micros: counter,
    /// Shards restored from handles.
    restores: counter batch,
    /// Microseconds spent restoring.
    restore_micros: counter batch,
    /// Bytes of snapshots and segments read by restores, counted as they come.
    restore_bytes: counter,
    /// Restores that are in progress.
    restores_running: gauge,
    /// Bytes that restores in progress have still to read.
    restore_pending_bytes: gauge,
    /// Bytes of change sets replayed.
    replay_bytes: counter,
    /// Microseconds spent replaying change sets, fetching them included.
    replay_micros: counter,
    /// Microseconds from commit to the durable acknowledgement.
    persist_micros: counter,
    /// Microseconds spent merging partial rows into overlays.
    merge_micros: counter,
    /// Microseconds spent reading the stored state and combining.
    combine_micros: counter,
    /// Microseconds spent encoding change sets.
    encode_micros: counter,
    /// Microseconds spent producing result batches.
    result_micros: counter,
    /// Checkpoints of embedded states that became durable.
    checkpoints: counter,
    /// Microseconds from the request of such a checkpoint until it was durable, summed.
    checkpoint_micros: counter,
    /// Bytes of changes of embedded states that no checkpoint holds yet.
    uncheckpointed_bytes: gauge,
    /// Materializations started.
    materializations_started: counter,
    /// Materializations completed.
    materializations_completed: counter growth,
    /// Materializations failed.
    materializations_failed: counter,
    /// Checkpoints of local states that were copied because hard links are refused.
    checkpoints_copied: counter,
    /// Microseconds that materializations kept a shard's sessions waiting: the synchronous part and the steps of the flush, summed.
    materialize_sync_micros: counter,
    /// Microseconds spent materializing.
    materialize_micros: counter,
    /// Bytes uploaded by materializations.
    materialize_bytes: counter,
    /// Bytes of materialized snapshots that earlier snapshots had uploaded already.
    materialize_reused_bytes: counter,
    /// Small files of snapshots that were uploaded packed into shared objects.
    materialize_packed_files: counter,
    /// Microseconds that bytes of snapshots were held back by `background_bandwidth`, summed over transfers.
    background_waits_micros: counter,
    /// Microseconds that materializations rested because batches run, summed.
    background_rests_micros: counter,
    /// Background sweeps that ended.
    sweeps: counter,
    /// Background sweeps that kept everything of a state because they were in doubt.
    sweeps_in_doubt: counter,
    /// Objects that background sweeps deleted.
    sweep_deleted: counter,
    /// Bytes of the objects that background sweeps deleted.
    sweep_deleted_bytes: counter,
    /// Objects that the newest background sweeps found unreachable, and that wait for their grace period.
    sweep_waiting: gauge,
    /// Requests of background sweeps to the stores of states.
    sweep_requests: counter,
    /// Downloads that the local cache answered.
    cache_hits: counter,
    /// Downloads that went to the store.
    cache_misses: counter,
    /// Bytes held by the local cache.
    cache_bytes: gauge,
    /// Objects the local cache pushed out.
    cache_evictions: counter,
    /// Damaged or vanished files found in the local cache.
    cache_damaged: counter,
    /// Bytes of the option `memory_budget`, as it is in force.
    memory_budget: gauge,
    /// Bytes of the budget that all parts together have taken.
    memory_counted: gauge,
    /// Bytes of blocks, indexes and filters in RocksDB's cache.
    memory_block_cache: gauge,
    /// Bytes of RocksDB's write buffers, which are charged to its cache.
    memory_write_buffers: gauge,
    /// Bytes of open tables of RocksDB outside its cache.
    memory_table_readers: gauge,
    /// Bytes of the hot tiers.
    memory_hot: gauge,
    /// Bytes of open sessions: groups, results and change sets in progress.
    memory_sessions: gauge,
    /// Bytes of versions that wait for their promotion.
    memory_prepared: gauge,
    /// Bytes of change sets waiting for upload or uploading.
    memory_log: gauge,
    /// Bytes of buffers of uploads of snapshots.
    memory_uploads: gauge,
    /// Bytes of buffers of downloads.
    memory_downloads: gauge,
    /// Change sets per log object.
    upload_sets: histogram,
    /// Bytes per log object.
    upload_bytes: histogram,
    /// Microseconds from the start of a log object's upload to its acknowledgement.
    upload_micros: histogram,
    /// Attempts that a request to the store took until it succeeded.
    request_attempts: histogram,
    /// Microseconds for which one step of a materialization blocked a shard's sessions.
    materialize_pause_micros: histogram,
    /// Sessions that the state server opened for clients.
    server_sessions: counter,
    /// Connections to the state server that are open.
    server_connections: gauge,
}
batch {
    /// Shards that had input in this batch.
    shards,
    /// Microseconds until the server had made the shard live: nothing to do, replay, or restore.
    open_micros,
    /// Microseconds until Spark received the last row.
    finish_micros,
    /// Microseconds until the change set was durable.
    commit_micros,
    /// Rows that reached stateful processors, late ones included.
    input_rows processor,
    /// Rows that stateful processors did not get because they were late: not after the watermark of the batch before.
    late_rows processor,
    /// Groups of key and window that were late: their rows are not in the state. Each counts once in a batch.
    late_groups aggregation,
    /// Groups that were read from the state because the watermark closed them, or to return all groups.
    base_groups aggregation,
    /// Bytes of rows that Spark's workers wrote to the local disk because they were more than `worker_memory`.
    worker_spilled_bytes processor,
}
shard {
    /// Keys of the shard.
    shard_keys,
    /// Bytes of keys and values of the shard.
    shard_bytes,
    /// Bytes of the shard in the hot tier.
    shard_hot_bytes,
    /// Bytes of log after the shard's newest snapshot.
    shard_log_bytes,
    /// Segments after the shard's newest snapshot.
    shard_segments,
    /// Open sessions of the shard.
    shard_sessions,
}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn background_sweeps_are_counted() {
        let metrics = Metrics::default();
        metrics.count_sweep(3, 300, 7, 40, false);
        metrics.count_sweep(0, 0, 5, 2, true);
        assert_eq!((metrics.sweeps.get(), metrics.sweeps_in_doubt.get()), (2, 1));
        assert_eq!((metrics.sweep_deleted.get(), metrics.sweep_deleted_bytes.get()), (3, 300));
        assert_eq!((metrics.sweep_waiting.get(), metrics.sweep_requests.get()), (5, 42));
    }
}
