//! Tests of the estimates: which slots are awaited, and until when.

use super::*;

const MS: Duration = Duration::from_millis(1);

/// Batches of two slots, whose tasks come `pause` after the last one, each answered after an upload of 40 ms.
fn two_slots(waves: &mut Waves, batches: std::ops::Range<i64>, pause: u32, now: &mut Duration) {
    for batch in batches {
        for _ in 0..4 {
            waves.opened(BatchId(batch), *now);
            waves.opened(BatchId(batch), *now + MS);
            *now += MS * 40;
            waves.uploaded(MS * 40);
            waves.ended(*now);
            waves.ended(*now);
            *now += MS * pause;
        }
    }
}

#[test]
fn nothing_is_awaited_before_a_whole_batch_has_been_seen() {
    let mut waves = Waves::default();
    waves.uploaded(MS * 40);
    waves.opened(BatchId(0), Duration::ZERO);
    assert_eq!(waves.until(Duration::ZERO), None);
    waves.ended(MS * 40);
    waves.opened(BatchId(0), MS * 50);
    assert_eq!(waves.until(MS * 50), None);
}

#[test]
fn slots_that_are_about_to_open_are_awaited() {
    let (mut waves, mut now) = (Waves::default(), Duration::ZERO);
    two_slots(&mut waves, 0..3, 300, &mut now);
    // The first wave of the next batch: both tasks start now.
    waves.opened(BatchId(3), now);
    let until = waves.until(now).unwrap();
    assert!(until > now && until <= now + MS * 5, "{:?}", until.saturating_sub(now));
    waves.opened(BatchId(3), now + MS);
    assert_eq!(waves.until(now), None, "all slots have a session");
    now += MS * 40;
    waves.ended(now);
    waves.ended(now);
    // The second wave comes 300 ms later; long before, no slot is awaited.
    assert_eq!(waves.until(now), None, "300 ms are more than four uploads");
    waves.opened(BatchId(3), now + MS * 299);
    assert!(waves.until(now + MS * 299).is_some());
}

#[test]
fn the_last_session_of_a_batch_waits_for_no_other() {
    let (mut waves, mut now) = (Waves::default(), Duration::ZERO);
    two_slots(&mut waves, 0..3, 0, &mut now);
    for nth in 0..8 {
        waves.opened(BatchId(3), now);
        assert_eq!(waves.until(now).is_some(), nth < 7, "session {nth}");
        waves.ended(now);
    }
}

#[test]
fn one_slot_is_never_awaited() {
    let (mut waves, mut now) = (Waves::default(), Duration::ZERO);
    waves.uploaded(MS * 40);
    for batch in 0..5 {
        for _ in 0..4 {
            waves.opened(BatchId(batch), now);
            assert_eq!(waves.until(now), None);
            now += MS * 40;
            waves.ended(now);
        }
    }
}

#[test]
fn a_slot_that_was_awaited_in_vain_is_not_awaited_again() {
    let (mut waves, mut now) = (Waves::default(), Duration::ZERO);
    two_slots(&mut waves, 0..3, 10, &mut now);
    waves.opened(BatchId(3), now);
    let until = waves.until(now).unwrap();
    waves.gave_up(now);
    assert_eq!(waves.until(now), None);
    assert_eq!(waves.until(until), None);
    // Its session comes late. The next batch waits longer.
    waves.opened(BatchId(3), now + MS * 50);
    waves.opened(BatchId(4), now + MS * 500);
    assert!(waves.until(now + MS * 500).unwrap() > now + MS * 500 + until.saturating_sub(now));
}

#[test]
fn a_wait_is_worth_four_uploads() {
    let (mut waves, mut now) = (Waves::default(), Duration::ZERO);
    two_slots(&mut waves, 0..3, 10, &mut now);
    // Pauses that vary widely.
    for batch in 3..40 {
        waves.opened(BatchId(batch), now);
        now += MS * u32::try_from(batch % 2 * 90).unwrap();
        waves.opened(BatchId(batch), now);
        waves.ended(now);
        waves.ended(now);
    }
    waves.opened(BatchId(40), now);
    assert_eq!(waves.until(now), Some(now + MS * 160));
}

#[test]
fn the_free_slots_are_bounded() {
    let mut waves = Waves::default();
    waves.opened(BatchId(0), Duration::ZERO);
    for n in 0..1000 {
        waves.ended(MS * n);
    }
    assert_eq!(waves.free.len(), 1);
}
