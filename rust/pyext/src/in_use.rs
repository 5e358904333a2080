//! Whether code of ours, or of libraries under it, is in use.
//!
//! Owns: the count of uses in this process. Does not own: the start of a use (`detached`), the exit of a process that is
//! in use (`fork`, `ending`).

use fastchangelog_store::forked::PerProcess;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Calls from Python that work without the GIL, and objects that are alive.
static USES: PerProcess<AtomicUsize> = PerProcess::new(AtomicUsize::default);

/// Code of ours, or of libraries under it, runs or may run on other threads until this is dropped.
pub(crate) struct Use(&'static AtomicUsize);

impl Use {
    pub(crate) fn begin() -> Self {
        let uses = USES.get();
        uses.fetch_add(1, Ordering::SeqCst);
        Self(uses)
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// True while the destructors of libraries would pull the ground from under other threads.
pub(crate) fn is_in_use() -> bool {
    USES.get().load(Ordering::SeqCst) > 0
}
