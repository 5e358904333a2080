//! The memory budget of the process.
//!
//! Owns: the account of bytes in use against one limit, part by part; the bound on buffers of transfers; and the fair
//! allocation of memory among shards.
//! Does not own: eviction near the limit; each owner asks [`MemoryBudget::available`] and shrinks itself.
//! A part that grows calls [`MemoryBudget::reclaim`], which runs the hook that the engine has registered.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Share of the budget for the transfer buffers of one order; further transfers wait.
const TRANSFER_SHARE: u64 = 16;
/// Least memory for transfers, whatever the budget: two parts of a usual size.
const MIN_TRANSFERS: u64 = 16 << 20;
/// Memory of transfers is counted in units of this size.
const UNIT: u64 = 4 << 10;

/// The users of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryUser {
    /// The block cache, to which write buffers are charged, and the memory of background threads.
    RocksDb,
    /// Hot tiers.
    Hot,
    /// Overlays of open sessions: groups, results and change sets in progress.
    Sessions,
    /// Overlays of versions that wait for their promotion; layers of an embedded state.
    Prepared,
    /// Change sets that wait for upload or are being uploaded.
    Log,
    /// Buffers of uploads of files.
    Uploads,
    /// Buffers of downloads.
    Downloads,
}

impl MemoryUser {
    const COUNT: usize = 7;
}

/// The resource that a transfer already holds when it asks for memory. Lock order: request permit before memory, or
/// memory before the request permit with a budget of its own. One budget for both orders can deadlock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Nothing: memory first, then a request.
    MemoryFirst,
    /// A request permit: no further one is needed after this memory.
    RequestFirst,
}

/// Makes the owners of caches free memory.
struct ReclaimHook(Box<dyn Fn() + Send + Sync>);

impl fmt::Debug for ReclaimHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReclaimHook")
    }
}

/// Bytes in use against a limit. Cheap to share and to ask.
#[derive(Debug)]
pub struct MemoryBudget {
    limit: u64,
    used: [AtomicU64; MemoryUser::COUNT],
    /// Members of each part, see [`MemoryBudget::join`].
    members: [AtomicU64; MemoryUser::COUNT],
    reclaim: OnceLock<ReclaimHook>,
    /// By [`Order`].
    transfers: [Arc<Semaphore>; 2],
    transfer_units: u32,
}

impl MemoryBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Arc<Self> {
        let units = (limit / TRANSFER_SHARE).max(MIN_TRANSFERS) / UNIT;
        let transfer_units = u32::try_from(units).unwrap_or(u32::MAX).min(u32::MAX >> 4);
        let transfers = [(); 2].map(|()| Arc::new(Semaphore::new(transfer_units as usize)));
        let (used, members, reclaim) = Default::default();
        Arc::new(Self { limit, used, members, reclaim, transfers, transfer_units })
    }

    /// A budget that only counts.
    pub fn unlimited() -> Arc<Self> {
        Self::new(u64::MAX)
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes reserved now.
    pub fn used(&self) -> u64 {
        self.used.iter().map(|part| part.load(Ordering::Relaxed)).sum()
    }

    /// Bytes reserved now by `part`.
    pub fn used_by(&self, part: MemoryUser) -> u64 {
        self.part(part).load(Ordering::Relaxed)
    }

    fn part(&self, part: MemoryUser) -> &AtomicU64 {
        &self.used[part as usize]
    }

    /// Bytes that can still be reserved.
    pub fn available(&self) -> u64 {
        self.limit.saturating_sub(self.used())
    }

    /// Takes `bytes`, if need be beyond the limit: the caller has already allocated them.
    pub fn reserve(self: &Arc<Self>, part: MemoryUser, bytes: u64) -> Reservation {
        self.part(part).fetch_add(bytes, Ordering::Relaxed);
        Reservation { budget: Arc::clone(self), part, bytes }
    }

    /// Counts the caller among the members that share the memory of `part`, until the result is dropped.
    pub fn join(self: &Arc<Self>, part: MemoryUser) -> Member {
        self.members[part as usize].fetch_add(1, Ordering::Relaxed);
        Member { budget: Arc::clone(self), part }
    }

    /// Registers what [`MemoryBudget::reclaim`] runs. Only the first call counts.
    pub fn set_reclaim(&self, reclaim: impl Fn() + Send + Sync + 'static) {
        let _ = self.reclaim.set(ReclaimHook(Box::new(reclaim)));
    }

    /// Makes caches free the memory that other parts have taken.
    pub fn reclaim(&self) {
        if let Some(ReclaimHook(reclaim)) = self.reclaim.get() {
            reclaim();
        }
    }

    /// Takes `bytes` for a buffer of a transfer, before it is allocated: waits while other transfers hold a sixteenth
    /// of the budget. Waits are served in order. A waiting caller must hold no other buffer.
    pub async fn transfer(self: &Arc<Self>, part: MemoryUser, bytes: u64, order: Order) -> Buffer {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).clamp(1, self.transfer_units);
        let permit = Arc::clone(&self.transfers[order as usize]).acquire_many_owned(units).await.ok();
        Buffer { _permit: permit, _reservation: self.reserve(part, bytes) }
    }
}

/// The memory of one buffer of a transfer; given back on drop.
#[derive(Debug)]
pub struct Buffer {
    /// None only if the semaphore were closed, which never happens.
    _permit: Option<OwnedSemaphorePermit>,
    _reservation: Reservation,
}

/// One of the members that share the memory of a part.
#[derive(Debug)]
pub struct Member {
    budget: Arc<MemoryBudget>,
    part: MemoryUser,
}

impl Member {
    /// Bytes of `all` that this member may hold while it holds `held`: the rest that the others leave, and at least an
    /// even share.
    pub fn allowance(&self, all: u64, held: u64) -> u64 {
        let members = self.budget.members[self.part as usize].load(Ordering::Relaxed).max(1);
        let others = self.budget.used_by(self.part).saturating_sub(held);
        (all / members).max(all.saturating_sub(others))
    }

    /// The budget.
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.budget.members[self.part as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// Bytes taken from a budget; given back on drop.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<MemoryBudget>,
    part: MemoryUser,
    bytes: u64,
}

impl Reservation {
    /// Changes the size of this reservation.
    pub fn resize(&mut self, bytes: u64) {
        let used = self.budget.part(self.part);
        if bytes >= self.bytes {
            used.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else {
            used.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }

    /// Divides this reservation: up to `bytes` of it become another.
    pub fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { budget: Arc::clone(&self.budget), part: self.part, bytes }
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.part(self.part).fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The demand of one shard.
#[derive(Debug, Clone, Copy)]
pub struct Demand {
    /// Bytes it needs to keep all it has.
    pub bytes: u64,
    /// In use now; other shards get the rest.
    pub active: bool,
}

/// Allocates `total` bytes: an eighth of an even share for each, then up to each demand, active before inactive and
/// small before large; the remainder goes to the active in equal parts, for growth.
pub fn allocate(total: u64, demands: &[Demand]) -> Vec<u64> {
    let Some(n) = u64::try_from(demands.len()).ok().filter(|n| *n > 0) else { return Vec::new() };
    let least = total / n / 8;
    let mut given = vec![least; demands.len()];
    let mut left = total - least * n;
    for active in [true, false] {
        let mut group: Vec<usize> = (0..demands.len()).filter(|i| demands[*i].active == active).collect();
        group.sort_by_key(|i| demands[*i].bytes);
        for (taken, i) in group.iter().enumerate() {
            let fair = left / (group.len() - taken) as u64;
            let more = demands[*i].bytes.saturating_sub(given[*i]).min(fair);
            given[*i] += more;
            left -= more;
        }
    }
    let any = demands.iter().any(|want| want.active);
    let successors: Vec<usize> = (0..demands.len()).filter(|i| demands[*i].active || !any).collect();
    for i in &successors {
        given[*i] += left / successors.len() as u64;
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    fn division(total: u64, demands: &[(u64, bool)]) -> Vec<u64> {
        let demands: Vec<Demand> = demands.iter().map(|&(bytes, active)| Demand { bytes, active }).collect();
        let given = allocate(total, &demands);
        assert!(given.iter().sum::<u64>() <= total);
        given
    }

    #[test]
    fn memory_goes_to_the_active_then_to_the_modest() {
        assert_eq!(division(800, &[]), [0; 0]);
        assert_eq!(division(800, &[(5, true)]), [800]);
        assert_eq!(division(800, &[(100, true), (100, true)]), [400, 400]);
        assert_eq!(division(800, &[(100, true), (5_000, true)]), [100, 700]);
        assert_eq!(division(800, &[(300, true), (5_000, false)]), [300, 500]);
        assert_eq!(division(800, &[(5_000, true), (5_000, false)]), [750, 50]);
        assert_eq!(division(800, &[(10, false), (50, false)]), [400, 400]);
    }

    #[test]
    fn reservations_are_given_back() {
        let budget = MemoryBudget::new(100);
        let mut a = budget.reserve(MemoryUser::Hot, 60);
        assert_eq!(budget.available(), 40);
        a.resize(10);
        assert_eq!(budget.available(), 90);
        let (half, none) = (a.split(5), a.split(0));
        assert_eq!((a.bytes(), half.bytes(), none.bytes(), budget.used()), (5, 5, 0, 10));
        drop((half, none));
        a.resize(10);
        let b = budget.reserve(MemoryUser::Downloads, 200);
        assert_eq!(budget.available(), 0);
        assert_eq!((budget.used_by(MemoryUser::Hot), budget.used_by(MemoryUser::Downloads)), (10, 200));
        drop((a, b));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_member_may_hold_an_even_share_and_the_rest() {
        let budget = MemoryBudget::new(100);
        let first = budget.join(MemoryUser::Sessions);
        assert_eq!(first.allowance(40, 0), 40);
        let held = budget.reserve(MemoryUser::Sessions, 30);
        assert_eq!((first.allowance(40, 30), first.allowance(40, 0)), (40, 40), "alone, all is an even share");
        let second = budget.join(MemoryUser::Sessions);
        assert_eq!((first.allowance(40, 30), second.allowance(40, 0)), (40, 20));
        drop((held, first));
        assert_eq!(second.allowance(40, 0), 40);
    }

    #[test]
    fn relief_runs_what_was_registered_first() {
        let budget = MemoryBudget::new(100);
        budget.reclaim();
        let calls = Arc::new(AtomicU64::new(0));
        for step in [1, 100] {
            let calls = Arc::clone(&calls);
            budget.set_reclaim(move || {
                calls.fetch_add(step, Ordering::Relaxed);
            });
        }
        budget.reclaim();
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn transfers_wait_for_one_another_but_never_for_ever() {
        let budget = MemoryBudget::new(64 << 20);
        // Larger than the limit: transferred alone.
        let huge = budget.transfer(MemoryUser::Uploads, 1 << 30, Order::MemoryFirst).await;
        assert_eq!(budget.used_by(MemoryUser::Uploads), 1 << 30);
        let mut next = std::pin::pin!(budget.transfer(MemoryUser::Downloads, 8 << 20, Order::MemoryFirst));
        assert!(futures::poll!(next.as_mut()).is_pending());
        drop(huge);
        let first = next.await;
        drop(budget.transfer(MemoryUser::Uploads, 1 << 30, Order::RequestFirst).await);
        let second = budget.transfer(MemoryUser::Downloads, 8 << 20, Order::MemoryFirst).await;
        let mut third = std::pin::pin!(budget.transfer(MemoryUser::Downloads, 1, Order::MemoryFirst));
        assert!(futures::poll!(third.as_mut()).is_pending());
        drop(first);
        drop((third.await, second));
        assert_eq!(budget.used(), 0);
    }
}
