//! Windows of event time.
//!
//! Owns: which windows and which pane a time belongs to.
//! Does not own: the rows of panes (`panes`), when a window is closed (`shard::session`), how users write windows
//! (Python).
//!
//! Windows begin at `start + k * slide` and last for `size`, for every integer k: arithmetic of microseconds since the
//! epoch, without time zones, as Spark's `window` has it. Panes cut time at each begin and end of a window: a window is
//! a whole number of panes (Li et al., "No Pane, No Gain", 2005).

use fastchangelog_format::{Error, Result};
use serde::{Deserialize, Serialize};

/// The windows of an aggregation, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Windows {
    /// Length of a window.
    pub size: i64,
    /// From one begin to the next.
    pub slide: i64,
    /// A begin.
    pub start: i64,
}

impl Windows {
    /// Fails for windows that Spark does not have.
    pub(super) fn check(&self) -> Result<()> {
        let Self { size, slide, start } = *self;
        if size > 0 && 0 < slide && slide <= size && start.checked_abs().is_some_and(|start| start < slide) {
            return Ok(());
        }
        Err(Error::invalid(format!("windows of {size} µs, each {slide} µs, from {start} µs, do not exist"))
            .with_remedy("a window is longer than nothing, slides by at most its length, and starts within its slide"))
    }

    /// True if a time may belong to several windows.
    pub(crate) fn overlap(&self) -> bool {
        self.slide < self.size
    }

    /// The ends of the windows with the time `at`, the last window first. Windows beyond the range of times are left
    /// out.
    pub(crate) fn ends(&self, at: i64) -> impl Iterator<Item = i64> + use<> {
        let Self { size, slide, .. } = *self;
        let begins = std::iter::successors(begin(at, slide, self.start), move |begin| begin.checked_sub(slide));
        let ends = begins.map(move |begin| i128::from(begin) + i128::from(size));
        ends.take_while(move |end| *end > i128::from(at)).filter_map(|end| i64::try_from(end).ok())
    }

    /// The end of the only window with this time, if windows do not overlap.
    #[inline]
    pub(crate) fn end(&self, at: i64) -> Option<i64> {
        begin(at, self.slide, self.start)?.checked_add(self.size).filter(|end| *end > at)
    }

    /// The begin of the pane with this time.
    #[inline]
    pub(crate) fn pane(&self, at: i64) -> Option<i64> {
        begin(at, gcd(self.size, self.slide), self.start)
    }
}

/// The last of the times `start + k * step` that is not after `at`.
#[inline]
fn begin(at: i64, step: i64, start: i64) -> Option<i64> {
    let begin = i128::from(at) - (i128::from(at) - i128::from(start)).rem_euclid(i128::from(step));
    i64::try_from(begin).ok()
}

fn gcd(mut a: i64, mut b: i64) -> i64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn windows() -> impl Strategy<Value = Windows> {
        (1..50_i64, 1..50_i64).prop_flat_map(|(a, b)| {
            let (size, slide) = (a.max(b), a.min(b));
            (1 - slide..slide).prop_map(move |start| Windows { size, slide, start })
        })
    }

    proptest! {
        #[test]
        fn a_time_is_in_the_windows_around_it(windows in windows(), at in -500..500_i64) {
            windows.check().unwrap();
            let Windows { size, slide, start } = windows;
            let expected: Vec<i64> = (at + 1..=at + size).filter(|end| (end - size - start).rem_euclid(slide) == 0).collect();
            let mut found: Vec<i64> = windows.ends(at).collect();
            prop_assert!(found.is_sorted_by(|a, b| a > b), "the last window first");
            found.reverse();
            prop_assert_eq!(found, expected.clone());
            prop_assert_eq!(windows.overlap() || windows.end(at) == expected.first().copied(), true);
        }

        #[test]
        fn all_times_of_a_pane_have_the_same_windows(windows in windows(), at in -500..500_i64) {
            let pane = windows.pane(at).unwrap();
            prop_assert!(pane <= at);
            for time in pane..=at {
                prop_assert_eq!(windows.ends(time).collect::<Vec<_>>(), windows.ends(at).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn times_at_the_ends_of_all_time_have_fewer_windows() {
        let windows = Windows { size: 10, slide: 2, start: 0 };
        assert!(windows.ends(i64::MIN).count() < 5);
        assert_eq!(
            (windows.ends(i64::MAX).count(), windows.pane(i64::MIN), windows.end(i64::MAX)),
            (0, Some(i64::MIN), None)
        );
        assert_eq!(windows.ends(i64::MAX - 2).collect::<Vec<_>>(), [i64::MAX - 1], "later ones are beyond the range");
        assert_eq!(Windows { size: 7, slide: 7, start: 3 }.pane(i64::MIN), None);
    }

    #[test]
    fn windows_that_do_not_exist_are_refused() {
        for (size, slide, start) in
            [(0, 1, 0), (5, 0, 0), (5, 6, 0), (5, 5, 5), (5, 5, -5), (-1, -1, 0), (5, 5, i64::MIN)]
        {
            assert!(Windows { size, slide, start }.check().is_err(), "{size} {slide} {start}");
        }
    }
}
