//! Identities and counts.
//!
//! Owns: newtypes for random ids, batch ids, key groups and their ranges.
//! Does not own: the hash (`columns::codec`).

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(pub u128);

        impl $name {
            /// A new random id.
            pub fn random() -> Self {
                Self(rand::random())
            }

            /// The id of a text of 32 hex digits.
            pub fn parse(text: &str) -> Option<Self> {
                (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok().map(Self)).flatten()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:032x})", stringify!($name), self.0)
            }
        }
    };
}

random_id! {
    /// One execution's result for one shard. Numbers alone collide; random ids do not.
    VersionId
}
random_id! {
    /// Minted when a shard starts from nothing; tells apart states that share a path.
    InstanceId
}

/// Spark's batch id (the micro-batch that produced a version).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BatchId(pub i64);

/// Number of the operator's declared state that a change belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StateId(pub u16);

/// The unit of keys that moves when a job is rescaled: `hash(key) mod max_parallelism`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeyGroup(pub u16);

/// Key groups `[start, end)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyGroupRange {
    /// First key group.
    pub start: u16,
    /// One past the last key group; up to 32,768.
    pub end: u16,
}

impl KeyGroupRange {
    /// True when `group` is in the range.
    pub fn contains(self, group: KeyGroup) -> bool {
        self.start <= group.0 && group.0 < self.end
    }

    /// Number of key groups.
    pub fn len(self) -> usize {
        usize::from(self.end.saturating_sub(self.start))
    }

    /// True when there is no key group in it.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// Highest number of key groups.
pub const MAX_KEY_GROUPS: usize = 32_768;

/// Key group of a key's hash.
#[inline]
pub fn key_group_of(hash: u64, max_parallelism: u16) -> KeyGroup {
    #[expect(clippy::cast_possible_truncation, reason = "a remainder of a u16")]
    KeyGroup((hash % u64::from(max_parallelism)) as u16)
}

/// The key groups of shard `index` of `shards`: contiguous, disjoint, covering all `max_parallelism` groups.
pub fn shard_range(index: u32, shards: u32, max_parallelism: u16) -> KeyGroupRange {
    let (index, shards, groups) = (u64::from(index), u64::from(shards), u64::from(max_parallelism));
    #[expect(clippy::cast_possible_truncation, reason = "at most max_parallelism")]
    let bound = |i: u64| (i * groups).div_ceil(shards) as u16;
    KeyGroupRange { start: bound(index), end: bound(index + 1) }
}

/// The shard that owns `group`; the inverse of [`shard_range`].
#[inline]
pub fn shard_of(group: KeyGroup, shards: u32, max_parallelism: u16) -> u32 {
    u32::from(group.0) * shards / u32::from(max_parallelism)
}

/// Default number of key groups for `shards` shards: the next power of two above 1.5 × shards, within [128, 32768].
/// The rule is Flink's default maximum parallelism.
pub fn default_max_parallelism(shards: u32) -> u16 {
    let want = (u64::from(shards) * 3 / 2).max(1).next_power_of_two();
    #[expect(clippy::cast_possible_truncation, reason = "clamped")]
    let groups = want.clamp(128, MAX_KEY_GROUPS as u64) as u16;
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shards_partition_the_key_groups(shards in 1u32..300, groups in 300u16..32_768) {
            let mut next = 0;
            for i in 0..shards {
                let range = shard_range(i, shards, groups);
                prop_assert_eq!(range.start, next);
                next = range.end;
                for g in range.start..range.end {
                    prop_assert_eq!(shard_of(KeyGroup(g), shards, groups), i);
                }
            }
            prop_assert_eq!(next, groups);
        }
    }

    #[test]
    fn ids_print_and_parse() {
        let id = VersionId::random();
        assert_eq!(VersionId::parse(&id.to_string()), Some(id));
        assert_eq!(VersionId::parse("x"), None);
    }
}
