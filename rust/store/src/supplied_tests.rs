//! Tests of the choice of credentials, and of the number kept.

use super::*;
use fastchangelog_format::clock::ManualClock;
use std::time::Duration;

fn granted(key: &str, expires_at_millis: Option<u64>) -> Granted {
    Granted { options: [("access_key_id".to_owned(), key.to_owned())].into(), expires_at_millis }
}

fn used(supplied: &SuppliedCredentials) -> Option<String> {
    supplied.set().map(|set| set.granted.options["access_key_id"].clone())
}

#[expect(clippy::unnecessary_wraps, reason = "as the name of a set in use is given")]
fn some(key: &str) -> Option<String> {
    Some(key.to_owned())
}

#[test]
fn the_newest_set_is_used_until_it_expires() {
    let clock = ManualClock::at(0);
    let supplied = SuppliedCredentials::new(granted("first", Some(1_000)), Arc::clone(&clock) as _);
    assert_eq!(used(&supplied), some("first"));
    supplied.supply(granted("long", Some(5_000)));
    supplied.supply(granted("short", Some(2_000)));
    assert_eq!(used(&supplied), some("short"), "the newest one is used first");
    supplied.supply(granted("long", Some(5_000)));
    supplied.supply(granted("short", Some(2_000)));
    clock.advance(Duration::from_secs(2));
    assert_eq!(used(&supplied), some("long"), "a caller with an older set does no harm");
    assert!(!supplied.have_expired());
    clock.advance(Duration::from_secs(3));
    assert!(supplied.have_expired() && used(&supplied).is_none());
    supplied.supply(granted("long", Some(9_000)));
    assert_eq!(used(&supplied), some("long"), "the same keys may be prolonged");
}

#[test]
fn a_refused_set_gives_way_to_another_one_if_there_is_one() {
    let clock = ManualClock::at(0);
    let supplied = SuppliedCredentials::new(granted("first", None), Arc::clone(&clock) as _);
    let first = supplied.number();
    assert!(!supplied.refuse(first), "there is no other");
    assert_eq!(used(&supplied), some("first"));
    supplied.supply(granted("second", None));
    assert!(supplied.refuse(first), "a newer one has come since");
    assert_eq!(used(&supplied), some("second"));
    assert!(supplied.refuse(supplied.number()), "the older one is still good");
    assert_eq!(used(&supplied), some("first"));
    assert!(!supplied.refuse(first));
}

#[test]
fn ten_thousand_sets_leave_two() {
    let supplied = SuppliedCredentials::new(granted("0", Some(1)), ManualClock::at(0) as _);
    let mut weak = Vec::new();
    for n in 1..=10_000_u64 {
        supplied.supply(granted(&n.to_string(), Some(1 + n * 7 % 1_000)));
        weak.push(Arc::downgrade(&supplied.set().unwrap().granted));
    }
    assert_eq!(weak.iter().filter(|set| set.strong_count() > 0).count(), 2);
    assert_eq!(used(&supplied), some("10000"));
}

#[test]
fn no_form_of_it_shows_a_credential() {
    let supplied = SuppliedCredentials::new(granted("open-sesame", None), ManualClock::at(0) as _);
    assert!(!format!("{supplied:?} {:?}", supplied.set()).contains("sesame"));
}
