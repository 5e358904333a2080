//! Tests of which credentials are used, and how many are kept.

use super::*;
use crate::clock::ManualClock;
use std::time::Duration;

fn granted(key: &str, expires_at_millis: Option<u64>) -> Granted {
    Granted { options: [("access_key_id".to_owned(), key.to_owned())].into(), expires_at_millis }
}

fn used(handed: &HandedIn) -> Option<String> {
    handed.set().map(|set| set.granted.options["access_key_id"].clone())
}

#[expect(clippy::unnecessary_wraps, reason = "as the name of a set in use is given")]
fn some(key: &str) -> Option<String> {
    Some(key.to_owned())
}

#[test]
fn the_newest_set_is_used_until_it_ends_and_then_the_one_that_lasts() {
    let clock = ManualClock::at(0);
    let handed = HandedIn::new(granted("first", Some(1_000)), Arc::clone(&clock) as _);
    assert_eq!(used(&handed), some("first"));
    handed.hand_in(granted("long", Some(5_000)));
    handed.hand_in(granted("short", Some(2_000)));
    assert_eq!(used(&handed), some("short"), "the newest one is used first");
    handed.hand_in(granted("long", Some(5_000)));
    handed.hand_in(granted("short", Some(2_000)));
    clock.advance(Duration::from_secs(2));
    assert_eq!(used(&handed), some("long"), "a caller with an older set does no harm");
    assert!(!handed.have_ended());
    clock.advance(Duration::from_secs(3));
    assert!(handed.have_ended() && used(&handed).is_none());
    handed.hand_in(granted("long", Some(9_000)));
    assert_eq!(used(&handed), some("long"), "the same keys may be prolonged");
}

#[test]
fn a_refused_set_gives_way_to_another_one_if_there_is_one() {
    let clock = ManualClock::at(0);
    let handed = HandedIn::new(granted("first", None), Arc::clone(&clock) as _);
    let first = handed.number();
    assert!(!handed.refuse(first), "there is no other");
    assert_eq!(used(&handed), some("first"));
    handed.hand_in(granted("second", None));
    assert!(handed.refuse(first), "a newer one has come since");
    assert_eq!(used(&handed), some("second"));
    assert!(handed.refuse(handed.number()), "the older one is still good");
    assert_eq!(used(&handed), some("first"));
    assert!(!handed.refuse(first));
}

#[test]
fn ten_thousand_sets_leave_two() {
    let handed = HandedIn::new(granted("0", Some(1)), ManualClock::at(0) as _);
    let mut weak = Vec::new();
    for n in 1..=10_000_u64 {
        handed.hand_in(granted(&n.to_string(), Some(1 + n * 7 % 1_000)));
        weak.push(Arc::downgrade(&handed.set().unwrap().granted));
    }
    assert_eq!(weak.iter().filter(|set| set.strong_count() > 0).count(), 2);
    assert_eq!(used(&handed), some("10000"));
}

#[test]
fn no_form_of_it_shows_a_credential() {
    let handed = HandedIn::new(granted("open-sesame", None), ManualClock::at(0) as _);
    assert!(!format!("{handed:?} {:?}", handed.set()).contains("sesame"));
}
