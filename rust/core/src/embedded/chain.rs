//! The chain of heads: the newest checkpoint of an embedded state, and the fencing of writers.
//!
//! Owns: the numbered head objects, fencing, and removing old ones.
//! Does not own: what a handle names, or when a checkpoint is made.
//!
//! ```text
//! head/…41   epoch 6, writer a, handle x        each is created once, under the next number
//! head/…42   epoch 7, writer b, handle x        b opened the state: a's next number is taken
//! head/…43   epoch 7, writer b, handle y        b's first checkpoint
//! ```
//!
//! Invariants:
//! 1. heads exist without a gap from the lowest to the highest number: they are created upwards, each after the one
//!    before it, and removed upwards;
//! 2. a writer that was acknowledged number n is the only one ever to have been; so no acknowledged checkpoint is left
//!    out of the history of a later one;
//! 3. a writer that finds its next number taken by another, or its last one removed, is fenced for good.

use fastchangelog_format::error::{Error, ErrorKind, Result};
use fastchangelog_format::model::ShardHandle;
use fastchangelog_format::{Head, decode_head, encode_head};
use fastchangelog_store::failpoint::SharedFailpoints;
use fastchangelog_store::paths::HEADS;
use fastchangelog_store::{Claim, Store, head_name, head_number};

/// Heads kept: each is a checkpoint that can be reopened; garbage collection keeps its objects.
const KEPT: u64 = 8;
/// Heads removed after one checkpoint, at most.
const REMOVED_AT_ONCE: u64 = 4;
/// Retries when other writers change the newest head while it is read or taken over.
const MAX_RETRIES: usize = 64;

/// What is found of a state.
#[derive(Debug)]
pub(crate) struct Found {
    /// The newest head; none for a state that does not exist.
    pub(crate) newest: Option<Head>,
    /// Number of the oldest head.
    lowest: u64,
}

/// The newest head of the state in `store`.
pub(crate) async fn find(store: &Store) -> Result<Found> {
    for _ in 0..MAX_RETRIES {
        let listed = store.list(HEADS).await?;
        let numbers = || listed.iter().filter_map(|l| head_number(&l.name));
        let (Some(highest), Some(lowest)) = (numbers().max(), numbers().min()) else {
            return Ok(Found { newest: None, lowest: 1 });
        };
        // None: it was removed since, so there are newer ones.
        if let Some(head) = read(store, highest).await? {
            return Ok(Found { newest: Some(head), lowest });
        }
    }
    Err(Error::retryable(format!("the state in {} changes faster than it can be read", store.uri()))
        .with_remedy("try again"))
}

async fn read(store: &Store, number: u64) -> Result<Option<Head>> {
    let name = head_name(number);
    let bytes = store.get_named(&name).await?;
    bytes.map(|bytes| decode(store, number, &bytes)).transpose()
}

fn decode(store: &Store, number: u64, bytes: &[u8]) -> Result<Head> {
    let object = format!("{}/{}", store.uri(), head_name(number));
    let head = decode_head(&object, bytes)?;
    if head.number != number {
        return Err(Error::corrupt(object, 0, format_args!("it is head {}", head.number)));
    }
    Ok(head)
}

/// The writer's end of the chain.
#[derive(Debug)]
pub(crate) struct Chain {
    store: Store,
    failpoints: SharedFailpoints,
    writer: u128,
    epoch: u64,
    /// Of our newest head.
    number: u64,
    lowest: u64,
    /// A head was sent, and its outcome is unknown.
    uncertain: bool,
    fenced: Option<Error>,
}

impl Chain {
    /// Becomes the writer after `found`, with `handle` as the newest checkpoint. None if another was faster: look again.
    pub(crate) async fn take_over(
        store: Store,
        failpoints: SharedFailpoints,
        found: &Found,
        handle: Option<ShardHandle>,
    ) -> Result<Option<Self>> {
        let (number, epoch) = found.newest.as_ref().map_or((0, 0), |head| (head.number, head.epoch));
        let writer = rand::random();
        let (epoch, lowest) = (epoch + 1, found.lowest);
        let mut chain = Self { store, failpoints, writer, epoch, number, lowest, uncertain: false, fenced: None };
        match chain.publish(handle).await {
            Ok(()) => Ok(Some(chain)),
            Err(error) if error.kind() == ErrorKind::Fenced => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The writer's number in the order of writers.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// True after a [`Self::publish`] that failed half way: its head may count, now or later, until another is published.
    pub(crate) fn is_uncertain(&self) -> bool {
        self.uncertain
    }

    /// Makes `handle` the newest checkpoint. When it fails for another reason than a fence, the checkpoint may count or
    /// not; the next one decides.
    pub(crate) async fn publish(&mut self, handle: Option<ShardHandle>) -> Result<()> {
        self.check_known()?;
        self.failpoints.hit("local.before-head")?;
        self.uncertain = true;
        let mut head = Head { number: self.number + 1, epoch: self.epoch, writer: self.writer, handle };
        loop {
            let name = head_name(head.number);
            match self.store.claim(&name, encode_head(&head)).await? {
                Claim::Ours => break,
                Claim::Taken(bytes) => {
                    let other = decode(&self.store, head.number, &bytes)?;
                    if other.writer != self.writer {
                        return Err(self.fence(Some(&other)));
                    }
                    // Of a failed checkpoint: its answer was lost, and the head arrived late.
                    self.number = head.number;
                    head.number += 1;
                }
            }
        }
        // The number may have been free because it was removed (invariant 1).
        if self.number > 0 && !self.store.exists(&head_name(self.number)).await? {
            let _ = self.store.delete(&head_name(head.number)).await;
            return Err(self.fence(None));
        }
        self.number = head.number;
        self.failpoints.hit("local.after-head")?;
        self.uncertain = false;
        Ok(())
    }

    /// Fails if another has taken over, though nothing is to be published.
    pub(crate) async fn check(&mut self) -> Result<()> {
        self.check_known()?;
        while let Some(next) = read(&self.store, self.number + 1).await? {
            if next.writer != self.writer {
                return Err(self.fence(Some(&next)));
            }
            self.number = next.number;
        }
        if self.store.exists(&head_name(self.number)).await? { Ok(()) } else { Err(self.fence(None)) }
    }

    /// Removes heads that are not kept any more. What fails is left for the next time.
    pub(crate) async fn prune(&mut self) {
        for _ in 0..REMOVED_AT_ONCE {
            if self.lowest + KEPT > self.number || self.fenced.is_some() {
                return;
            }
            if let Err(error) = self.store.delete(&head_name(self.lowest)).await {
                tracing::warn!(%error, "cannot remove an old head of a state; the next checkpoint tries again");
                return;
            }
            self.lowest += 1;
        }
    }

    fn check_known(&self) -> Result<()> {
        self.fenced.clone().map_or(Ok(()), Err)
    }

    fn fence(&mut self, by: Option<&Head>) -> Error {
        let by = by.map_or_else(|| "a newer writer".to_owned(), |head| format!("writer {}", head.epoch));
        let error = Error::new(
            ErrorKind::Fenced,
            format!(
                "{by} has opened the state in {} and fenced this one, writer {}, whose changes since its last \
                 checkpoint are lost; close it, and let one writer at a time open the state",
                self.store.uri(),
                self.epoch
            ),
        );
        self.fenced = Some(error.clone());
        error
    }
}

#[cfg(test)]
#[path = "chain_tests.rs"]
mod tests;
