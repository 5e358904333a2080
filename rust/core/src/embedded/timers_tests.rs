use super::*;
use crate::embedded::tests::{Opened, World, keys, world};
use crate::kinds::first_timer::FirstTimer;
use crate::kinds::timer_layout::{push_by_key, push_by_time};
use arrow_array::TimestampMicrosecondArray;
use fastchangelog_format::ErrorKind;
use fastchangelog_format::model::{KeyGroup, Op, ShardHandle};

fn timers(s: &Opened) -> TimerState {
    s.state.timers("reminders", &DataType::Utf8).unwrap()
}

fn times(times: &[i64]) -> ArrayRef {
    Arc::new(TimestampMicrosecondArray::from(times.to_vec()).with_timezone(ZONE))
}

fn register(t: &TimerState, all: &[(i64, &str)]) {
    let (when, whose): (Vec<i64>, Vec<&str>) = all.iter().copied().unzip();
    t.register(&keys(&whose), &times(&when)).unwrap();
}

fn delete(t: &TimerState, time: i64, key: &str) {
    t.delete(&keys(&[key]), &times(&[time])).unwrap();
}

fn back(batch: &RecordBatch) -> Vec<(i64, String)> {
    let (times, keys) = (batch.column(0).as_primitive::<TimestampMicrosecondType>(), batch.column(1));
    let keys = keys.as_string::<i32>().iter().map(|key| key.unwrap().to_owned());
    times.values().iter().copied().zip(keys).collect()
}

fn all(t: &TimerState) -> Vec<(i64, String)> {
    t.scan(None, None, 2).flat_map(|batch| back(&batch.unwrap())).collect()
}

fn owned(all: &[(i64, &str)]) -> Vec<(i64, String)> {
    all.iter().map(|(time, key)| (*time, (*key).to_owned())).collect()
}

fn of(t: &TimerState, key: &str) -> Vec<i64> {
    let lists = t.of(&keys(&[key])).unwrap();
    lists.value(0).as_primitive::<TimestampMicrosecondType>().values().to_vec()
}

fn due(t: &TimerState, until: i64, rows: usize) -> Vec<(i64, String)> {
    t.due(until, rows).unwrap().flat_map(|batch| back(&batch.unwrap())).collect()
}

/// The operations of the last change set.
fn last(world: &World, handle: &ShardHandle) -> Vec<Op> {
    world.sets(handle).pop().unwrap().into_iter().map(|(op, _)| op).collect()
}

#[test]
fn invariant_1_what_is_due_comes_in_order_a_batch_at_a_time() {
    let world = world(&[]);
    let s = world.open();
    let t = timers(&s);
    assert_eq!((t.next_time().unwrap(), due(&t, i64::MAX, 9).len()), (None, 0));
    register(&t, &[(5, "b"), (-7, "a"), (5, "a"), (i64::MAX, ""), (i64::MIN, "z"), (6, "a"), (5, "b")]);
    for is_saved in [false, true] {
        if is_saved {
            s.state.checkpoint().unwrap();
        }
        let expected = owned(&[(i64::MIN, "z"), (-7, "a"), (5, "a"), (5, "b"), (6, "a"), (i64::MAX, "")]);
        assert_eq!(all(&t), expected, "registered twice, it is there once");
        assert_eq!((of(&t, "a"), of(&t, "none")), (vec![-7, 5, 6], vec![]));
        assert_eq!(t.next_time().unwrap(), Some(i64::MIN));
    }
    let within: Vec<_> = t.scan(Some(-7), Some(6), 9).flat_map(|batch| back(&batch.unwrap())).collect();
    assert_eq!(within, owned(&[(-7, "a"), (5, "a"), (5, "b")]));
    let mut batches = t.due(5, 2).unwrap();
    assert_eq!(back(&batches.next().unwrap().unwrap()), owned(&[(i64::MIN, "z"), (-7, "a")]));
    // Before the end of the batch before; after it; and one that is gone before its batch.
    register(&t, &[(-8, "late"), (4, "new")]);
    delete(&t, 5, "a");
    assert_eq!(back(&batches.next().unwrap().unwrap()), owned(&[(4, "new"), (5, "b")]));
    assert!(batches.next().is_none() && batches.next().is_none());
    assert_eq!(all(&t), owned(&[(-8, "late"), (6, "a"), (i64::MAX, "")]));
    assert_eq!(t.next_time().unwrap(), Some(-8));
    assert_eq!(due(&t, i64::MAX, 1).len(), 3);
    assert_eq!((t.next_time().unwrap(), all(&t).len()), (None, 0));
    assert_eq!(s.state.checkpoint().unwrap().state_keys, 0, "neither of the two entries of a timer is left");
    assert_eq!(s.state.metrics().due_timers.get(), 7);
}

#[test]
fn invariant_2_a_checkpoint_decides_which_timers_return() {
    let world = world(&[]);
    let s = world.open();
    let t = timers(&s);
    register(&t, &[(1, "a"), (2, "b"), (3, "c"), (4, "d")]);
    s.state.checkpoint().unwrap();
    let mut batches = t.due(9, 2).unwrap();
    batches.next().unwrap().unwrap();
    // While the first batch is handled: it is due again after a crash.
    s.state.checkpoint().unwrap();
    assert_eq!(all(&timers(&world.open_with(|request| request.read_only = true))).len(), 4);
    batches.next().unwrap().unwrap();
    s.state.checkpoint().unwrap();
    let reader = world.open_with(|request| request.read_only = true);
    assert_eq!(all(&timers(&reader)), owned(&[(3, "c"), (4, "d")]));
    let error = timers(&reader).due(9, 2).err().unwrap();
    assert!(error.message().contains("read-only"), "{error}");
    // An iterator that is abandoned has removed the batches before its last one.
    drop(batches);
    assert_eq!(due(&t, 9, 9), owned(&[(3, "c"), (4, "d")]));
    s.state.close();
    let s = world.open();
    assert_eq!(due(&timers(&s), 9, 9), owned(&[(3, "c"), (4, "d")]), "no checkpoint holds their removal");
    s.state.checkpoint().unwrap();
    assert_eq!(all(&timers(&world.open())), []);
}

#[test]
fn invariant_3_a_batch_of_long_keys_has_fewer_timers() {
    const LONG: usize = 1 << 20;
    let world = world(&[]);
    let s = world.open();
    let t = timers(&s);
    let names: Vec<String> = (0..10).map(|i| format!("{}{i}", "x".repeat(LONG))).collect();
    for (name, time) in names.iter().zip(0..) {
        register(&t, &[(time, name.as_str())]);
    }
    let batches: Vec<_> = t.due(99, 6).unwrap().map(|batch| back(&batch.unwrap())).collect();
    assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2], "of four MiB");
    assert!(batches.iter().flatten().map(|(_, key)| key).eq(&names));
    assert_eq!(s.state.checkpoint().unwrap().state_keys, 0);
}

#[test]
fn t08_what_is_due_is_removed_on_the_way_and_that_is_logged() {
    let world = world(&[]);
    let s = world.open();
    let t = timers(&s);
    register(&t, &[(1, "a"), (2, "b"), (3, "c")]);
    assert_eq!(s.state.checkpoint().unwrap().state_keys, 6);
    assert_eq!(due(&t, 2, 1), owned(&[(1, "a"), (2, "b")]));
    let handle = s.state.checkpoint().unwrap();
    assert_eq!((last(&world, &handle), handle.state_keys), (vec![Op::Delete; 4], 2));
    assert_eq!(all(&timers(&world.open())), owned(&[(3, "c")]));
}

#[test]
fn t09_registrations_and_removals_are_logged_once() {
    let world = world(&[]);
    let s = world.open();
    let t = timers(&s);
    register(&t, &[(1, "a")]);
    register(&t, &[(2, "b"), (3, "c"), (2, "b")]);
    register(&t, &[(9, "gone")]);
    delete(&t, 9, "gone");
    let first = s.state.checkpoint().unwrap();
    assert_eq!(last(&world, &first), [Op::Put; 6]);
    register(&t, &[(1, "a")]);
    delete(&t, 7, "none");
    assert_eq!(s.state.checkpoint().unwrap(), first, "what is there already, or is not, is no change");
    delete(&t, 2, "b");
    assert_eq!(due(&t, 1, 9), owned(&[(1, "a")]));
    let second = s.state.checkpoint().unwrap();
    assert_eq!(last(&world, &second), [Op::Delete; 4]);
    let then = world.open_with(|request| (request.handle, request.read_only) = (Some(first), true));
    assert_eq!(all(&timers(&then)).len(), 3);
}

#[test]
fn t10_reads_of_timers_are_not_logged() {
    let world = world(&[]);
    let s = world.open();
    let t = timers(&s);
    register(&t, &[(1, "a"), (2, "a")]);
    let handle = s.state.checkpoint().unwrap();
    assert_eq!((t.next_time().unwrap(), of(&t, "a"), all(&t).len()), (Some(1), vec![1, 2], 2));
    assert_eq!(due(&t, 0, 9), []);
    // The first batch is looked at, and left.
    assert_eq!(back(&t.due(9, 9).unwrap().next().unwrap().unwrap()).len(), 2);
    assert_eq!(s.state.checkpoint().unwrap(), handle);
}

#[test]
fn j02_the_log_has_each_timer_by_state_and_key_group() {
    let world = world(&[]);
    let s = world.open();
    let t = timers(&s);
    register(&t, &[(1, "a"), (2, "b"), (3, "c")]);
    delete(&t, 2, "b");
    let first = s.state.checkpoint().unwrap();
    delete(&t, 1, "a");
    due(&t, 3, 1);
    register(&t, &[(4, "d")]);
    let second = s.state.checkpoint().unwrap();
    let entries = |time: i64, key: &str| {
        let key = t.types.encode_keys(&keys(&[key])).unwrap();
        let (mut by_key, mut by_time) = (Vec::new(), Vec::new());
        push_by_key(&mut by_key, key.key(0), time);
        push_by_time(&mut by_time, time, key.key(0));
        [by_key, by_time]
    };
    let expected = |ops: &[(Op, i64, &str)]| {
        let mut all: Vec<_> = ops
            .iter()
            .flat_map(|(op, time, key)| entries(*time, key).map(|entry| (*op, t.member.place(), entry)))
            .collect();
        all.sort();
        all
    };
    let logged = |handle: &ShardHandle| {
        let mut set = world.changes(handle).pop().unwrap();
        set.sort();
        set
    };
    assert_eq!(t.member.place().1, KeyGroup(0));
    assert_eq!(logged(&first), expected(&[(Op::Put, 1, "a"), (Op::Put, 3, "c")]));
    assert_eq!(logged(&second), expected(&[(Op::Delete, 1, "a"), (Op::Delete, 3, "c"), (Op::Put, 4, "d")]));
}

#[test]
fn t11_each_kind_of_state_is_itself_and_no_other() {
    let world = world(&[]);
    let s = world.open();
    let (text, long) = (DataType::Utf8, DataType::Int64);
    let second = Some(std::time::Duration::from_secs(1));
    let calls = [fastchangelog_columns::aggregate::NamedCall {
        function: "count".to_owned(),
        args: vec![],
        filter: None,
        ignore_nulls: false,
        name: None,
        identity: "count()".to_owned(),
    }];
    let kinds = ["value", "list", "map", "aggregating", "timers"];
    let declare = |kind: &str, name: &str| match kind {
        "value" => s.state.value_state(name, &text, &long, second).map(drop),
        "list" => s.state.list_state(name, &text, &long, second).map(drop),
        "map" => s.state.map_state(name, (&text, &text), &long, second).map(drop),
        "aggregating" => s.state.aggregating_state(name, (&text, &long), &calls, true, second).map(drop),
        _ => s.state.timers(name, &text).map(drop),
    };
    for kind in kinds {
        declare(kind, kind).unwrap();
        declare(kind, kind).unwrap();
    }
    for (name, kind) in
        kinds.iter().flat_map(|name| kinds.map(|kind| (*name, kind))).filter(|(name, kind)| name != kind)
    {
        let error = declare(kind, name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SchemaMismatch);
        assert!(error.message().contains(&format!("kind `{name}`, now with `{kind}`")), "{error}");
    }
    // Two calls of one name are one state; two names are two.
    register(&timers(&s), &[(1, "a")]);
    assert_eq!(all(&timers(&s)).len(), 1);
    assert_eq!(all(&s.state.timers("others", &text).unwrap()), []);
    assert_eq!(s.state.timers("reminders", &long).err().unwrap().kind(), ErrorKind::SchemaMismatch);
}

#[test]
fn what_does_not_fit_changes_nothing() {
    let world = world(&[]);
    let s = world.open();
    let t = timers(&s);
    let null: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![None]).with_timezone(ZONE));
    let numbers: ArrayRef = Arc::new(arrow_array::Int64Array::from(vec![1]));
    for (times, said) in [(null, "null"), (numbers, "Timestamp"), (times(&[1, 2]), "one time for each key")] {
        let error = t.register(&keys(&["a"]), &times).unwrap_err();
        assert!(error.message().contains(said), "{error}");
    }
    assert_eq!(all(&t), []);
}

#[test]
fn a_search_for_the_first_timer_begins_where_the_last_one_ended() {
    let world = world(&[]);
    let s = world.open();
    let t = timers(&s);
    let bound = || s.state.core.hints().first_timer(t.member.place());
    assert_eq!(bound(), FirstTimer::Nothing, "a new state has none");
    register(&t, &[(5, "a"), (9, "b")]);
    assert!(matches!(bound(), FirstTimer::Is(_)));
    due(&t, 5, 9);
    assert_eq!(due(&t, 7, 9), []);
    let FirstTimer::NotBefore(at) = bound() else { panic!("{:?}", bound()) };
    assert_eq!(at, ordered(8), "what was not due is not looked for again");
    register(&t, &[(1, "c")]);
    assert_eq!((t.next_time().unwrap(), due(&t, 7, 9)), (Some(1), owned(&[(1, "c")])));
    s.state.checkpoint().unwrap();
    // A state that is opened again knows nothing, and finds all.
    let s = world.open();
    let t = timers(&s);
    assert_eq!((t.next_time().unwrap(), due(&t, 9, 9)), (Some(9), owned(&[(9, "b")])));
}
