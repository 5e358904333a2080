//! The engines of this process, and their sum.
//!
//! Owns: the engines that a process has or had, and the sum of their metrics.
//! Does not own: the values; the process's endpoint.
//!
//! Counters of a closed engine stay in the sum, so that no counter of the process ever falls.

use super::{LabelledShard, Metrics, SharedMetrics};
use crate::forked::PerProcess;
use parking_lot::Mutex;
use std::sync::Arc;

/// An engine of the process. It must not keep the engine open.
pub trait Registration: Send + Sync {
    /// False once the engine has ended.
    fn is_open(&self) -> bool;
    /// Brings the gauges up to date; the engine's shard, if it has one.
    fn measure(&self) -> Option<LabelledShard>;
}

struct Entry {
    metrics: SharedMetrics,
    engine: Box<dyn Registration>,
}

/// The engines of this process.
#[derive(Default)]
pub struct Process {
    engines: Mutex<Vec<Arc<Entry>>>,
    ended: Mutex<Metrics>,
}

impl Process {
    /// The one of this process: a forked child has none of its parent's engines.
    pub fn global() -> &'static Self {
        static PROCESS: PerProcess<Process> = PerProcess::new(Process::default);
        PROCESS.get()
    }

    /// Adds an engine, until it has ended.
    pub fn register(&self, metrics: SharedMetrics, engine: Box<dyn Registration>) {
        drop(self.open_engines());
        self.engines.lock().push(Arc::new(Entry { metrics, engine }));
    }

    /// The sum over all engines, and the shards of those that have one.
    pub fn read(&self) -> (Metrics, Vec<LabelledShard>) {
        let sum = Metrics::default();
        let open = self.open_engines();
        let shards = open.iter().filter_map(|entry| {
            let shard = entry.engine.measure();
            sum.absorb(&entry.metrics, false);
            shard
        });
        let shards = shards.collect();
        sum.absorb(&self.ended.lock(), true);
        (sum, shards)
    }

    /// The open engines. The counters of those that have ended since are kept, and the rest of them is forgotten.
    fn open_engines(&self) -> Vec<Arc<Entry>> {
        let all = self.engines.lock().clone();
        // Without the lock: this may be the last user of an engine, which then ends.
        let (open, closed): (Vec<_>, Vec<_>) = all.into_iter().partition(|entry| entry.engine.is_open());
        let (mut engines, ended) = (self.engines.lock(), self.ended.lock());
        // Another thread may have removed it meanwhile.
        for entry in engines.extract_if(.., |entry| closed.iter().any(|closed| Arc::ptr_eq(closed, entry))) {
            ended.absorb(&entry.metrics, true);
        }
        drop((engines, ended));
        open
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    struct Fake(Arc<AtomicBool>, SharedMetrics);

    impl Registration for Fake {
        fn is_open(&self) -> bool {
            self.0.load(Ordering::SeqCst)
        }

        fn measure(&self) -> Option<LabelledShard> {
            self.1.state_keys.set(4);
            None
        }
    }

    #[test]
    fn an_ended_engine_leaves_its_counters_and_no_gauge() {
        let process = Process::default();
        let open = [Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(true))];
        for open in &open {
            let metrics = SharedMetrics::default();
            metrics.checkpoints.add(2);
            metrics.upload_bytes.record(9);
            process.register(Arc::clone(&metrics), Box::new(Fake(Arc::clone(open), metrics)));
        }
        let seen = |process: &Process| {
            let (sum, _) = process.read();
            (sum.checkpoints.get(), sum.state_keys.get(), sum.upload_bytes.get().total_count)
        };
        assert_eq!(seen(&process), (4, 8, 2));
        open[0].store(false, Ordering::SeqCst);
        assert_eq!(seen(&process), (4, 4, 2));
        open[1].store(false, Ordering::SeqCst);
        assert_eq!(seen(&process), (4, 0, 2));
        assert_eq!(seen(&process), (4, 0, 2));
    }
}
