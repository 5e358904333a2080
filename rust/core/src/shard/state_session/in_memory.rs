//! Sessions without a shard that follow each other: the host of a processor under test.
//!
//! Owns: their environment, and the start of a session from the entries of the one before.
//! Does not own: the calls; they are the same with a shard and without.

use super::StateSession;
use super::overlay::Overlay;
use crate::shard::session_environment::SessionEnvironment;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_store::budget::MemoryBudget;
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::metrics::SharedMetrics;
use std::path::PathBuf;

impl StateSession {
    /// A session that starts from nothing. It never spills: its memory has no limit.
    pub fn in_memory() -> Self {
        let environment = SessionEnvironment {
            budget: MemoryBudget::new(u64::MAX),
            dir: PathBuf::new(),
            metrics: SharedMetrics::default(),
            failpoints: Failpoints::none(),
            session_memory: u64::MAX,
            result_batch_rows: 1,
        };
        Self::without_shard(Overlay::new(environment, None))
    }

    /// A session that starts from a copy of the entries of this one, which has committed. It declares its own states and
    /// time.
    pub fn next_in_memory(&self) -> Result<Self> {
        let declared = self.declared.as_ref().filter(|_| self.attached.is_none() && self.ended.is_some());
        let declared = declared.ok_or_else(|| {
            Error::invalid("the session has not committed in memory").with_remedy("commit it, then begin the next one")
        })?;
        Ok(Self {
            stored_text: declared.text.clone(),
            stored: declared.catalog.clone(),
            hints: self.hints.clone(),
            ..Self::without_shard(self.overlay.copy()?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::state_session::testing::*;
    use arrow_array::Array;
    use fastchangelog_format::ErrorKind;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    #[test]
    fn a_session_reads_the_entries_of_the_one_before() {
        let (mut rng, names) = (StdRng::seed_from_u64(7), names(0..5));
        let (mut model, mut session) = (Model::default(), StateSession::in_memory());
        for now in 0..20 {
            session.declare(CATALOG, now).unwrap();
            for _ in 0..20 {
                let made = random_write(&mut rng, &names, now, 200);
                write(&mut session, &made).unwrap();
                model.apply(&made);
            }
            assert_is(&mut session, &model, now, &names, &mut rng, "in memory");
            assert!(session.commit(None).unwrap().handle.is_none());
            session = session.next_in_memory().unwrap();
            assert_eq!(session.catalog(), CATALOG);
        }
    }

    #[test]
    fn a_later_session_leaves_an_earlier_one_as_it_is() {
        let (a, put) = (key("a"), |value: &[u8]| Write {
            state: VALUE,
            rows: vec![(PUT, key("a"), None, Some(value.to_vec()))],
            ends: None,
        });
        let mut first = StateSession::in_memory();
        assert_eq!(first.next_in_memory().map(drop).unwrap_err().kind(), ErrorKind::InvalidArgument);
        first.declare(CATALOG, 0).unwrap();
        write(&mut first, &put(b"1")).unwrap();
        assert_eq!(first.next_in_memory().map(drop).unwrap_err().kind(), ErrorKind::InvalidArgument);
        first.commit(None).unwrap();
        for _ in 0..2 {
            let mut second = first.next_in_memory().unwrap();
            second.declare(CATALOG, 0).unwrap();
            assert_eq!(second.get(VALUE, &binary([&a])).unwrap().value(0), b"1");
            write(&mut second, &put(b"2")).unwrap();
            let found = second.get(VALUE, &binary([&a])).unwrap();
            assert_eq!((found.len(), found.value(0)), (1, &b"2"[..]));
        }
    }
}
