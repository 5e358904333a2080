use super::*;
use crate::kinds::list_layout::{CHUNKS, HEAD};

/// Entries of so many bytes each, of which every `nth` one has ended.
fn found(entries: usize, bytes: usize, nth: usize) -> (Step, Outcome) {
    let mut step = Step::default();
    for i in 0..entries {
        let ends = if i % nth == nth - 1 { 0 } else { 9 };
        step.found.push(&u32::try_from(i).unwrap().to_be_bytes(), &ttl::prefix(ends));
        step.bytes += bytes;
    }
    let outcome = Outcome::of(Kind::Value, &step, 1, |_| Ok(None)).unwrap();
    (step, outcome)
}

fn after(written: u64, bytes: u64) -> Ends {
    let mut ends = Ends::of_nothing();
    ends.added(Written { ends: 0, entries: written, bytes, one: (KeyGroup(0), b"k") });
    ends
}

/// What a version passes of so many entries like these, in steps, and removes of them.
fn passed(allowance: &mut Allowance, entries: usize, bytes: usize, nth: usize) -> (u64, u64) {
    let (mut passed, mut removed, mut left) = (0, 0, entries);
    while allowance.rows() > 0 && left > 0 {
        let (step, outcome) = found(allowance.rows().min(left).min(1 + STEP_BYTES / bytes), bytes, nth);
        left -= step.found.len();
        (passed, removed) = (passed + step.found.len() as u64, removed + outcome.removed);
        allowance.count(&step, &outcome);
    }
    (passed, removed)
}

const ALL: usize = 1;
const HARDLY: usize = 1 << 20;
const ENDLESS: usize = 1 << 18;
const LARGE: usize = 16 << 10;

#[test]
fn invariant_1_live_entries_use_an_allowance_by_changes() {
    for (written, most) in [(0, LEAST_PASSED), (10, LEAST_PASSED), (5000, 20_000), (30_000, 120_000)] {
        let (entries, removed) = passed(&mut after(written, 0).begin(1), ENDLESS, 20, HARDLY);
        assert!((most..=most + STEP as u64).contains(&entries), "{written} written: {entries}");
        assert_eq!(removed, 0);
    }
    // Large ones count as often as they have KiB: as those that pay for them.
    let (entries, _) = passed(&mut after(100, 100 * LARGE as u64).begin(1), ENDLESS, LARGE, HARDLY);
    assert!((400..=400 + STEP_BYTES / LARGE).contains(&usize::try_from(entries).unwrap()), "{entries}");
    // States share what is the least.
    let all: u64 = (0..64).map(|_| passed(&mut after(0, 0).begin(64), ENDLESS, 20, HARDLY).0).sum();
    assert!(all <= LEAST_PASSED + 64 * LEAST_STEP as u64, "{all}");
}

#[test]
fn invariant_1_of_an_allowance_it_ends_where_nothing_is() {
    let (mut allowance, mut steps) = (after(0, 0).begin(1), 0);
    while allowance.rows() > 0 {
        allowance.count(&Step::default(), &Outcome::new());
        steps += 1;
    }
    assert_eq!(steps, LEAST_PASSED);
}

#[test]
fn invariant_1_an_unused_allowance_is_saved_in_bounded_parts() {
    let mut ends = after(1 << 20, 0);
    // Nothing has ended: no walk.
    ends.begin(1);
    let most = 4 * PER_CHANGE * (1 << 20) / MOST_SAVED;
    let (mut all, mut versions) = (0, 0);
    loop {
        let mut allowance = ends.begin(1);
        let (entries, _) = passed(&mut allowance, ENDLESS, 20, HARDLY);
        assert!(entries <= MOST_SAVED + STEP as u64);
        ends.end(allowance, Sweep::from((KeyGroup(0), None)), false);
        (all, versions) = (all + entries, versions + 1);
        if entries <= LEAST_PASSED + STEP as u64 {
            break;
        }
        assert!(versions <= most, "{versions}");
    }
    assert!((PER_CHANGE << 20..PER_CHANGE << 21).contains(&all), "{all}");
    let mut ends = after(1 << 20, 0);
    let allowance = ends.begin(1);
    ends.end(allowance, Sweep::from((KeyGroup(0), None)), true);
    let (entries, _) = passed(&mut ends.begin(1), ENDLESS, 20, HARDLY);
    assert!(entries <= LEAST_PASSED + STEP as u64, "of a walk that is over nothing is saved: {entries}");
}

#[test]
fn invariant_2_expired_entries_add_to_an_allowance() {
    for bytes in [20, LARGE] {
        let (entries, removed) = passed(&mut after(0, 0).begin(1), 1 << 16, bytes, ALL);
        assert_eq!((entries, removed), (1 << 16, 1 << 16));
        // One of five pays for the other four.
        let (entries, _) = passed(&mut after(0, 0).begin(1), 1 << 16, bytes, 5);
        assert_eq!(entries, 1 << 16);
        let (entries, _) = passed(&mut after(0, 0).begin(1), 1 << 16, bytes, 12);
        assert!(entries < 1 << 13, "{entries}: too few go");
    }
}

fn keys_of(keys: &[u8]) -> Step {
    let mut step = Step::default();
    keys.iter().for_each(|key| step.found.push(&[*key], &[]));
    step
}

/// The keys that a walk passes in steps of two, over three key groups with these keys each.
fn walked(mut walk: Sweep, keys: &[u8]) -> Vec<(u16, u8)> {
    let mut all = Vec::new();
    for _ in 0..100 {
        let (group, to) = (walk.group(), walk.to_key());
        let after = match walk.lower_bound() {
            Bound::Excluded(key) => Some(key.to_vec()),
            _ => None,
        };
        let within = |key: &&u8| {
            after.as_ref().is_none_or(|after| [**key][..] > after[..])
                && to.as_ref().is_none_or(|to| [**key][..] < to[..])
        };
        let step: Vec<u8> = keys.iter().filter(within).take(2).copied().collect();
        all.extend(step.iter().map(|key| (group.0, *key)));
        if walk.pass(&keys_of(&step), KeyGroup((group.0 + 1) % 3)) {
            return all;
        }
    }
    panic!("it does not end: {all:?}");
}

#[test]
fn a_walk_passes_each_entry_once_from_wherever_it_begins() {
    let keys = [1, 2, 3, 4, 5];
    let mut every: Vec<(u16, u8)> = (0..3).flat_map(|group| keys.map(|key| (group, key))).collect();
    every.sort_unstable();
    for begun in [None, Some(vec![]), Some(vec![0]), Some(vec![2]), Some(vec![2, 7]), Some(vec![5]), Some(vec![9])] {
        for group in 0..3 {
            let mut all = walked(Sweep::from((KeyGroup(group), begun.clone())), &keys);
            let is_at_end = begun.as_ref().is_some_and(|key| key[..] >= [5][..]);
            assert_eq!(all[0].0, if is_at_end { (group + 1) % 3 } else { group });
            all.sort_unstable();
            assert_eq!(all, every, "from {begun:?}");
            assert!(walked(Sweep::from((KeyGroup(group), begun.clone())), &[]).is_empty());
        }
    }
}

#[test]
fn a_walk_begins_with_a_key_that_was_written_lately() {
    let mut ends = Ends::default();
    assert_eq!(ends.walk(Kind::Value, KeyGroup(7)), Sweep::from((KeyGroup(7), None)));
    let mut parts = std::collections::BTreeSet::new();
    for key in 0..20_u8 {
        let mut ends = Ends::default();
        ends.added(Written { ends: 5, entries: 1, bytes: 1, one: (KeyGroup(2), &[key]) });
        assert_eq!(ends.walk(Kind::Map, KeyGroup(7)), Sweep::from((KeyGroup(2), Some(vec![key]))));
        let walk = ends.walk(Kind::List, KeyGroup(7));
        parts.insert(walk.begun.1.unwrap()[0]);
    }
    assert!(parts.contains(&HEAD) && parts.contains(&CHUNKS), "of a list both parts");
    let keys: Vec<[u8; 2]> = (0..40).map(|i| [i, 3]).collect();
    let chosen: std::collections::BTreeSet<usize> = (1..40).map(|n| 10 * any_of(n, |i| &keys[i]) / n).collect();
    assert!(chosen.len() > 5, "any place of a batch: {chosen:?}");
}
