//! The folder that a savepoint is written to.
//!
//! Owns: the claim of the folder for one savepoint, the writes to it, and their removal.
//! Does not own: the content and the order of the writes (`take`).
//!
//! Invariants:
//! 1. the folder was empty, and is this savepoint's from [`Target::claim`] on: another one is refused;
//! 2. what is taken back is what this savepoint wrote; no write of it is in progress then, unless it did not end in
//!    time;
//! 3. after a failure, or when the savepoint is abandoned, no write begins.

use super::progress::SavepointProgress;
use bytes::Bytes;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{InstanceId, ObjectRef};
use fastchangelog_store::{SAVEPOINT, SAVEPOINT_CLAIM, Store};
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// How long writes in progress may go on when the savepoint is abandoned, and how long taking it back may last.
const ENDING: Duration = Duration::from_secs(10);
/// Objects removed at the same time.
const PARALLEL: usize = 8;

const CLAIMED: &str = "a savepoint is being written to it, or was not finished and may be removed";

/// The folder of a savepoint that is not finished.
pub(super) struct Target<'a> {
    store: &'a Store,
    progress: &'a SavepointProgress,
    written: Mutex<Vec<String>>,
    failed: AtomicBool,
    under_way: watch::Sender<usize>,
}

/// A write in progress.
struct Writing<'a>(&'a watch::Sender<usize>);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|n| *n -= 1);
    }
}

impl<'a> Target<'a> {
    /// [`Target::claim`], unless the savepoint is abandoned and this does not end soon.
    pub(super) async fn claim_in_time(store: &'a Store, progress: &'a SavepointProgress) -> Result<Self> {
        let given_up = async {
            progress.given_up().await;
            tokio::time::sleep(ENDING).await;
        };
        tokio::select! {
            biased;
            target = Self::claim(store, progress) => target,
            () = given_up => Err(self::given_up()),
        }
    }

    /// Takes the empty folder `store` for one savepoint.
    async fn claim(store: &'a Store, progress: &'a SavepointProgress) -> Result<Self> {
        // Checked first, so that nothing is written to a folder of another owner.
        empty(store, false).await?;
        // A file system without hard links takes savepoints all the same: the claim is then a plain write.
        if store.is_remote() {
            store.check().await?;
        }
        let random = Bytes::from(InstanceId::random().to_string());
        if let Err(error) = store.put_new(SAVEPOINT_CLAIM, vec![random]).await {
            let taken = store.exists(SAVEPOINT_CLAIM).await.unwrap_or(false);
            return Err(if taken { occupied(store, CLAIMED) } else { error });
        }
        let target = Self {
            store,
            progress,
            written: Mutex::default(),
            failed: AtomicBool::new(false),
            under_way: watch::Sender::new(0),
        };
        // Another savepoint may have begun and ended in between.
        if let Err(error) = empty(store, true).await {
            target.release().await;
            return Err(error);
        }
        Ok(target)
    }

    /// The folder, for messages.
    pub(super) fn uri(&self) -> &str {
        self.store.uri()
    }

    /// Writes one object: `write` is not begun after a failure or when the savepoint is abandoned.
    pub(super) async fn write<T>(&self, name: &str, write: impl AsyncFnOnce(&Store) -> Result<T>) -> Result<T> {
        if self.failed.load(Ordering::Relaxed) || self.progress.is_given_up() {
            return Err(given_up());
        }
        self.under_way.send_modify(|n| *n += 1);
        let _writing = Writing(&self.under_way);
        self.written.lock().push(name.to_owned());
        let written = write(self.store).await;
        self.failed.fetch_or(written.is_err(), Ordering::Relaxed);
        written
    }

    /// Writes `name` with the bytes of `parts`.
    pub(super) async fn put(&self, name: &str, parts: Vec<Bytes>) -> Result<ObjectRef> {
        self.write(name, async |store: &Store| store.put_new(name, parts).await).await
    }

    /// Runs `fill`. When the savepoint is abandoned, writes in progress are completed, and nothing else: a cancelled
    /// write may arrive after the removal.
    pub(super) async fn until_given_up<T>(&self, fill: impl Future<Output = Result<T>>) -> Result<T> {
        let given_up = async {
            self.progress.given_up().await;
            let mut under_way = self.under_way.subscribe();
            let _ = tokio::time::timeout(ENDING, under_way.wait_for(|n| *n == 0)).await;
        };
        tokio::select! {
            biased;
            filled = fill => filled,
            () = given_up => Err(self::given_up()),
        }
    }

    /// Removes the claim of the folder and keeps the written objects.
    pub(super) async fn release(self) {
        if let Err(error) = self.store.delete(SAVEPOINT_CLAIM).await {
            tracing::warn!(%error, savepoint = self.store.uri(), "cannot remove {SAVEPOINT_CLAIM}, which has no \
                meaning any more");
        }
    }

    /// Removes the written objects. Best effort: leftovers have no manifest, so they are no savepoint.
    pub(super) async fn take_back(self) {
        let names = std::mem::take(&mut *self.written.lock());
        let removals = names.iter().rev().map(|name| self.store.delete(name)).collect::<Vec<_>>();
        let all = async {
            let mut removals = stream::iter(removals).buffer_unordered(PARALLEL);
            let mut left = Ok(());
            while let Some(removed) = removals.next().await {
                left = left.and(removed);
            }
            left
        };
        let left = tokio::time::timeout(ENDING, all).await;
        match left.unwrap_or_else(|_| Err(Error::retryable(format!("not done within {ENDING:?}")))) {
            Ok(()) => self.release().await,
            Err(error) => {
                tracing::warn!(%error, savepoint = self.store.uri(), "cannot remove an unfinished savepoint");
            }
        }
    }
}

fn given_up() -> Error {
    Error::closed("the savepoint was cancelled")
}

/// Fails if the folder has anything but a claim that is `ours`.
async fn empty(store: &Store, ours: bool) -> Result<()> {
    let mut found: Vec<String> = store.list("").await?.into_iter().map(|object| object.name).collect();
    found.retain(|name| !ours || name != SAVEPOINT_CLAIM);
    let Some(first) = found.first() else { return Ok(()) };
    let has = |wanted: &str| found.iter().any(|name| name == wanted);
    Err(if has(SAVEPOINT) {
        occupied(store, "it has a savepoint")
    } else if has(SAVEPOINT_CLAIM) {
        occupied(store, CLAIMED)
    } else {
        occupied(store, &format!("it has `{first}`"))
    })
}

fn occupied(store: &Store, what: &str) -> Error {
    let uri = store.uri();
    Error::invalid(format!("{uri} is not empty: {what}")).with_remedy("give each savepoint a new folder")
}
