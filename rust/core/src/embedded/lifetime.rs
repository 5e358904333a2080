//! How long entries are there after they were written.
//!
//! Owns: the time to live of a declared state, what of it is stored, and which entries are there at one moment.
//! Does not own: the eight bytes of an entry (`states::ttl`), the removal of what has ended (`sweep`), the clock.
//!
//! Each call asks the clock once, a scan with each batch. When the clock goes back, what has ended and was not removed yet is
//! there again until its end.

use super::core::Core;
use crate::states::list::ListLayout;
use crate::states::look_up::Values;
use crate::states::ttl;
use fastchangelog_format::error::{Error, Result};
use std::time::Duration;

/// How long the entries of a state are there, in milliseconds; none = until they are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lifetime(Option<i64>);

impl Lifetime {
    /// Until they are removed.
    pub(super) const UNBOUNDED: Self = Self(None);

    pub(super) fn of(ttl: Option<Duration>) -> Result<Self> {
        let Some(ttl) = ttl else { return Ok(Self(None)) };
        match i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX) {
            0 => Err(Error::invalid(format!("a ttl of {ttl:?} is too short; give a millisecond or more"))),
            millis => Ok(Self(Some(millis))),
        }
    }

    /// True if entries end.
    pub(super) fn is_bounded(self) -> bool {
        self.0.is_some()
    }

    /// The layout of lists.
    pub(super) fn layout(self) -> ListLayout {
        if self.is_bounded() { ListLayout::Ending } else { ListLayout::Lasting }
    }

    /// The entries of a state as they are now.
    pub(super) fn now(self, core: &Core) -> Result<Moment> {
        let Some(millis) = self.0 else { return Ok(Moment::Lasting) };
        let now = core.now()?;
        let ends = now.saturating_add(millis);
        Ok(Moment::Ending { now, ends, prefix: ttl::prefix(ends) })
    }
}

/// The entries of a state at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) enum Moment {
    /// They are there until they are removed.
    Lasting,
    /// They are there until their end; what is written now has this one.
    Ending { now: i64, ends: i64, prefix: [u8; ttl::PREFIX] },
}

impl Moment {
    /// The bytes of a stored value; none if it has ended.
    pub(super) fn alive(self, stored: &[u8]) -> Result<Option<&[u8]>> {
        match self {
            Self::Lasting => Ok(Some(stored)),
            Self::Ending { now, .. } => ttl::alive(stored, now),
        }
    }

    /// Those of some stored values that are there.
    pub(super) fn values(self, mut values: Values) -> Result<Values> {
        if let Self::Ending { now, .. } = self {
            values.leave_alive(now)?;
        }
        Ok(values)
    }

    /// The bytes before what is written.
    pub(super) fn prefix(&self) -> &[u8] {
        match self {
            Self::Lasting => &[],
            Self::Ending { prefix, .. } => prefix,
        }
    }

    /// What is stored for a value, perhaps in `out`.
    pub(super) fn stored<'a>(&self, value: Option<&'a [u8]>, out: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        let value = value?;
        if matches!(self, Self::Lasting) {
            return Some(value);
        }
        out.clear();
        out.extend_from_slice(self.prefix());
        out.extend_from_slice(value);
        Some(out)
    }

    /// When what is written ends; none = it does not.
    pub(super) fn ends(self) -> Option<i64> {
        match self {
            Self::Lasting => None,
            Self::Ending { ends, .. } => Some(ends),
        }
    }
}
