//! Rescaling: the state of a range of key groups, made from the handles of all shards of another number of shards.
//!
//! Owns: the sources that a range needs, their lineage, and the counts of the result.
//! Does not own: which handles (`sources`), the way to the state (`rebuild`), the version and the handle of the result,
//! its use.
//!
//! Counting the keys would require to read all linked files. Without counts in the handles, they are estimates from the
//! share of key groups; a caller that needs exact numbers counts (`state::group_range::count`) when it reads everything
//! anyway.

use super::lineage::Lineage;
use super::rebuild::{Rebuilder, SourceVersion};
use super::sources::{SourceRange, Sources};
use fastchangelog_format::error::Result;
use fastchangelog_format::handle::decode_segment_index;
use fastchangelog_format::model::KeyGroupRange;
use fastchangelog_log::read::RestoreProgress;
use fastchangelog_state::keyed::KeyedState;
use futures::{StreamExt, TryStreamExt, stream};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Indexes of segments read at the same time.
const PARALLEL_LINEAGES: usize = 4;

/// The state of a range of key groups.
#[derive(Debug)]
pub struct RangeState {
    /// Its entries.
    pub keyed: KeyedState,
    /// Number of keys.
    pub keys: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// False if keys and bytes are estimates.
    pub counted: bool,
    /// Bytes of tables and changes that were fetched for it.
    pub fetched: u64,
}

impl Rebuilder {
    /// The state of `target` from the shards of `sources`, in the new folder `dir`. See the module documentation.
    pub async fn restore_range(&self, target: KeyGroupRange, sources: &Sources, dir: &Path) -> Result<RangeState> {
        let start = Instant::now();
        let wanted = sources.wanted(target)?;
        self.failpoints.hit("rescale.before")?;
        let lineages: Vec<_> = wanted.iter().map(|wanted| self.lineage(*wanted)).collect();
        let sources: Vec<SourceVersion<'_>> = stream::iter(lineages).buffered(PARALLEL_LINEAGES).try_collect().await?;
        self.failpoints.hit("rescale.lineages")?;
        let what = format!("key groups {} to {}", target.start, target.end);
        let progress = Arc::new(RestoreProgress::start(&what, &self.clock, &self.metrics));
        let rebuilt = self.rebuild(&sources, dir, None, &progress).await?;
        self.failpoints.hit("rescale.done")?;
        let (keys, bytes) = share(&sources);
        let counted = sources.iter().all(|source| source.wanted.is_whole());
        let fetched = rebuilt.fetched;
        self.metrics.restores.add(1);
        self.metrics.restore_micros.add_elapsed(start);
        tracing::info!(
            from = target.start,
            to = target.end,
            sources = sources.len(),
            keys,
            fetched,
            millis = start.elapsed().as_millis(),
            "restored a range of key groups"
        );
        Ok(RangeState { keyed: rebuilt.keep(), keys, bytes, counted, fetched })
    }

    async fn lineage<'a>(&self, wanted: SourceRange<'a>) -> Result<SourceVersion<'a>> {
        let index = match &wanted.handle.indexed {
            None => Vec::new(),
            Some(object) => decode_segment_index(&object.name, &self.store.get(object).await?)?,
        };
        Ok(SourceVersion { wanted, lineage: Lineage::of(wanted.handle, index)? })
    }
}

/// Keys and bytes: of each source, the share of its key groups that is wanted.
fn share(sources: &[SourceVersion<'_>]) -> (u64, u64) {
    let part = |source: &SourceVersion<'_>, all: u64| {
        let (wanted, groups) = (source.wanted.groups.len(), source.wanted.handle.key_groups.len());
        let share = u128::from(all) * wanted as u128 / groups.max(1) as u128;
        u64::try_from(share).unwrap_or(u64::MAX)
    };
    let keys = sources.iter().map(|s| part(s, s.wanted.handle.state_keys)).sum();
    (keys, sources.iter().map(|s| part(s, s.wanted.handle.state_bytes)).sum())
}

#[cfg(test)]
#[path = "rescale_tests.rs"]
pub(super) mod tests;
