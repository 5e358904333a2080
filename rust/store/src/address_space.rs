//! The limit of address space (`ulimit -v`). A process that exceeds it aborts.
//!
//! Owns: the check before an allocation that the limit allows it. Does not own: the memory budget (`budget`).
//!
//! Neither Rust nor C++ code under a C interface survives a failed allocation, so code with a large allocation asks
//! first. A process without this limit pays for one system call.

use fastchangelog_format::error::{Error, Result, Subject};
use rustix::process::{Resource, getrlimit};
use std::sync::atomic::{AtomicU64, Ordering};

/// Reserved for allocations that do not ask: thread stacks, and small ones.
const RESERVE: u64 = 64 << 20;
/// Smaller requests are checked once they add up to this size.
const STEP: u64 = 1 << 20;

/// An error unless `bytes` of memory can be had now; `what` needs them, as in `a checkpoint`.
pub fn check_memory(bytes: u64, what: &str) -> Result<()> {
    let Some(limit) = getrlimit(Resource::As).current else { return Ok(()) };
    let Some(used) = used() else { return Ok(()) };
    let left = limit.saturating_sub(used).saturating_sub(RESERVE);
    if bytes <= left { Ok(()) } else { Err(refusal(what, bytes, limit, left)) }
}

fn refusal(what: &str, bytes: u64, limit: u64, left: u64) -> Error {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    Error::retryable(format!(
        "{what} needs {} MiB of memory, and the limit of address space (ulimit -v), which is {} MiB, leaves {} MiB",
        mib(bytes),
        mib(limit),
        left >> 20
    ))
    .with_subject(Subject::Option("memory_budget".to_owned()))
    .with_remedy("raise that limit, or lower the option `memory_budget`")
}

/// Bytes of address space in use by the process; none where the system does not report it.
fn used() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let size = text.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    let kib: u64 = size.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Asks for pieces of memory, and looks whether they can be had now and then.
#[derive(Debug, Default)]
pub struct Pieces(AtomicU64);

impl Pieces {
    /// [`check_memory`] of `bytes`, if there is reason to look.
    pub fn check(&self, bytes: u64, what: &str) -> Result<()> {
        if self.0.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) < STEP {
            return Ok(());
        }
        self.0.store(0, Ordering::Relaxed);
        check_memory(bytes, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_names_the_limit_and_the_option() {
        let error = refusal("a checkpoint", 5 << 20, 100 << 20, 3 << 20);
        assert!(error.is_retryable());
        let text = "a checkpoint needs 5 MiB of memory, and the limit of address space (ulimit -v), which is 100 MiB, \
                    leaves 3 MiB; raise that limit, or lower the option `memory_budget`";
        assert_eq!(error.message(), text);
    }

    #[test]
    fn without_a_limit_all_can_be_had() {
        if getrlimit(Resource::As).current.is_none() {
            check_memory(u64::MAX, "it").unwrap();
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_is_in_use_is_known() {
        assert!(used().unwrap() > 1 << 20);
    }
}
