//! The gauges of shards and of the memory that they share.
//!
//! Owns: the source of each gauge in the process. Does not own: the gauges (`metrics`), the budget (`budget`).

use super::{Shard, ShardStatus};
use fastchangelog_state::rocks::SharedResources;
use fastchangelog_store::budget::{MemoryBudget, MemoryUser};
use fastchangelog_store::metrics::{LabelledShard, Metrics, ShardGauges};
use std::sync::Arc;

/// Sets the gauges of state and memory. Waits for no shard.
pub fn measure(metrics: &Metrics, budget: &MemoryBudget, resources: &SharedResources, shards: &[Arc<Shard>]) {
    let statuses: Vec<ShardStatus> = shards.iter().map(|shard| shard.status()).collect();
    metrics.state_keys.set(statuses.iter().map(|s| s.state_keys).sum());
    metrics.state_bytes.set(statuses.iter().map(|s| s.state_bytes).sum());
    let write_buffers = resources.write_buffer_bytes();
    metrics.memory_budget.set(budget.limit());
    metrics.memory_counted.set(budget.used());
    metrics.memory_block_cache.set(resources.cache_bytes().saturating_sub(write_buffers));
    metrics.memory_write_buffers.set(write_buffers);
    metrics.memory_table_readers.set(shards.iter().map(|s| s.table_reader_bytes()).sum());
    metrics.memory_hot.set(budget.used_by(MemoryUser::Hot));
    metrics.memory_sessions.set(budget.used_by(MemoryUser::Sessions));
    metrics.memory_prepared.set(budget.used_by(MemoryUser::Prepared));
    metrics.memory_log.set(budget.used_by(MemoryUser::Log));
    metrics.memory_uploads.set(budget.used_by(MemoryUser::Uploads));
    metrics.memory_downloads.set(budget.used_by(MemoryUser::Downloads));
}

impl ShardStatus {
    /// Its gauges, with the labels that name the shard.
    pub fn labelled(&self) -> LabelledShard {
        let gauges = ShardGauges {
            shard_keys: self.state_keys,
            shard_bytes: self.state_bytes,
            shard_hot_bytes: self.hot_bytes,
            shard_log_bytes: self.log_bytes_since_snapshot,
            shard_segments: self.segments_since_snapshot as u64,
            shard_sessions: self.sessions,
        };
        LabelledShard { query: self.query_id.clone(), operator: self.name.clone(), shard: self.shard, gauges }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastchangelog_store::metrics::SharedMetrics;

    #[test]
    fn every_part_of_the_budget_has_its_gauge() {
        use MemoryUser::{Downloads, Hot, Log, Prepared, Sessions, Uploads};
        let (metrics, budget) = (SharedMetrics::default(), MemoryBudget::new(64 << 20));
        let resources = SharedResources::new(&budget, Arc::clone(&metrics)).unwrap();
        let parts = [Hot, Sessions, Prepared, Log, Uploads, Downloads];
        let _held: Vec<_> = (1..).zip(parts).map(|(bytes, part)| budget.reserve(part, bytes)).collect();
        measure(&metrics, &budget, &resources, &[]);
        assert_eq!((metrics.memory_hot.get(), metrics.memory_sessions.get()), (1, 2));
        assert_eq!((metrics.memory_prepared.get(), metrics.memory_log.get()), (3, 4));
        assert_eq!((metrics.memory_uploads.get(), metrics.memory_downloads.get()), (5, 6));
        assert_eq!((metrics.memory_budget.get(), metrics.memory_counted.get()), (64 << 20, budget.used()));
    }
}
