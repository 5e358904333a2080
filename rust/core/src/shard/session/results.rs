//! The results of a session.
//!
//! Owns: cutting them into batches, by rows and by bytes.
//! Does not own: converting groups to columns (`columns::table`), the source of the groups (`ranges`).

use super::ranges::Ranges;
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use fastchangelog_columns::aggregate::AggPlan;
use fastchangelog_columns::table::GroupTable;
use fastchangelog_format::error::Result;
use fastchangelog_store::budget::Reservation;
use fastchangelog_store::metrics::SharedMetrics;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Bytes of keys and rows at which a batch is cut: worker and JVM hold it whole, and an Arrow vector holds 2 GiB.
const BATCH_BYTES: usize = 32 << 20;

/// The source of finished groups.
enum ResultSource {
    /// The table has all of them.
    Table { _memory: Reservation },
    /// The table has those of one range.
    Ranges(Arc<Mutex<Ranges>>),
    /// There are no more.
    End,
}

/// The results of a session, made batch by batch.
pub struct ResultBatches {
    table: GroupTable,
    next: usize,
    rows: usize,
    bytes: usize,
    source: ResultSource,
    metrics: SharedMetrics,
}

impl ResultBatches {
    /// The results of all groups of `table`, in batches of `rows` rows.
    pub(super) fn of_table(table: GroupTable, rows: usize, memory: Reservation, metrics: SharedMetrics) -> Self {
        Self::new(table, rows, ResultSource::Table { _memory: memory }, metrics)
    }

    /// The results of all ranges.
    pub(super) fn of_ranges(
        plan: Arc<AggPlan>,
        rows: usize,
        ranges: Arc<Mutex<Ranges>>,
        metrics: SharedMetrics,
    ) -> Self {
        Self::new(GroupTable::new(plan), rows, ResultSource::Ranges(ranges), metrics)
    }

    fn new(table: GroupTable, rows: usize, source: ResultSource, metrics: SharedMetrics) -> Self {
        Self { table, next: 0, rows: rows.max(1), bytes: BATCH_BYTES, source, metrics }
    }

    /// Schema of every batch: keys, then one column per aggregate; strings in their binary form.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(self.table.plan().binary_output())
    }

    #[cfg(test)]
    pub(super) fn set_batch_bytes(&mut self, bytes: usize) {
        self.bytes = bytes;
    }

    fn next_rows(&mut self) -> Result<Range<usize>> {
        while self.next == self.table.len()
            && let ResultSource::Ranges(ranges) = &self.source
        {
            self.next = 0;
            let more = ranges.lock().next(&mut self.table);
            if !matches!(more, Ok(true)) {
                self.table.release();
                self.end();
                more?;
            }
        }
        let start = self.next;
        let most = self.table.len().min(start + self.rows);
        let mut bytes = 0;
        while self.next < most {
            bytes += self.table.key(self.next).len() + self.table.row_len(self.next);
            if bytes > self.bytes && self.next > start {
                break;
            }
            self.next += 1;
        }
        Ok(start..self.next)
    }

    fn end(&mut self) {
        if let ResultSource::Ranges(ranges) = std::mem::replace(&mut self.source, ResultSource::End) {
            ranges.lock().discard_results();
        }
    }
}

impl Iterator for ResultBatches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.next_rows() {
            Ok(rows) if rows.is_empty() => None,
            Ok(rows) => {
                let start = Instant::now();
                let batch = self.table.finish_binary(rows);
                self.metrics.result_micros.add_elapsed(start);
                Some(batch)
            }
            Err(error) => Some(Err(error)),
        }
    }
}

impl Drop for ResultBatches {
    fn drop(&mut self) {
        self.end();
    }
}
