use super::*;
use crate::embedded::EmbeddedState;
use crate::embedded::tests::{World, keys, lists as array, world};
use crate::kinds::list_layout::CHUNK;
use crate::states::FEW_KEYS;
use fastchangelog_format::model::{Op, ShardHandle};
use std::sync::Barrier;

fn lists(state: &EmbeddedState) -> ListState {
    state.list_state("l", &DataType::Utf8, &DataType::Utf8, None).unwrap()
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn back(array: &ArrayRef) -> Vec<Option<Vec<String>>> {
    let texts = |row: ArrayRef| row.as_string::<i32>().iter().map(|text| text.unwrap().to_owned()).collect();
    array.as_list::<i32>().iter().map(|row| row.map(texts)).collect()
}

fn get(list: &ListState, key: &str) -> Option<Vec<String>> {
    back(&list.get(&keys(&[key])).unwrap()).remove(0)
}

fn last_set(world: &World, handle: &ShardHandle) -> Vec<(Op, usize)> {
    world.sets(handle).pop().unwrap().iter().map(|(op, key)| (*op, key.len())).collect()
}

#[test]
fn t02_appends_replacements_and_clears_are_logged() {
    let world = world(&[]);
    let s = world.open();
    let l = lists(&s.state);
    l.append(&keys(&["a", "b", "a"]), &keys(&["1", "2", "3"])).unwrap();
    l.extend(
        &keys(&["a", "c", "b", "a"]),
        &array(&[Some(words(&["4", "5"])), Some(vec![]), None, Some(words(&["6"]))]),
    )
    .unwrap();
    assert_eq!(
        back(&l.get(&keys(&["b", "a", "c"])).unwrap()),
        [Some(words(&["2"])), Some(words(&["1", "3", "4", "5", "6"])), None]
    );
    assert_eq!(l.lengths(&keys(&["a", "b", "c"])).unwrap().values(), &[5, 1, 0]);
    let first = s.state.checkpoint().unwrap();
    assert_eq!(first.state_keys, 2);
    let replaced = array(&[Some(words(&["7"])), Some(words(&["8"])), None]);
    l.put(&keys(&["a", "a", "b"]), &replaced).unwrap();
    let second = s.state.checkpoint().unwrap();
    assert_eq!(last_set(&world, &second).iter().map(|(op, _)| *op).collect::<Vec<_>>(), [Op::Put, Op::Delete]);
    l.clear(&keys(&["a", "none"])).unwrap();
    assert_eq!(s.state.checkpoint().unwrap().state_keys, 0);
    let then = world.open_with(|request| (request.handle, request.read_only) = (Some(second), true));
    assert_eq!((get(&lists(&then.state), "a"), get(&lists(&then.state), "b")), (Some(words(&["8"])), None));
}

#[test]
fn t03_reads_are_not_logged() {
    let world = world(&[]);
    let s = world.open();
    let l = lists(&s.state);
    l.append(&keys(&["a"]), &keys(&["x"])).unwrap();
    let handle = s.state.checkpoint().unwrap();
    assert_eq!(get(&l, "a"), Some(words(&["x"])));
    assert_eq!(l.scan(KeyRange::default(), 9).count(), 1);
    l.extend(&keys(&["a", "b"]), &array(&[None, Some(vec![])])).unwrap();
    assert_eq!(s.state.checkpoint().unwrap(), handle, "nor is what adds nothing");
}

#[test]
fn a13_an_append_writes_its_tail_only() {
    let world = world(&[]);
    let s = world.open();
    let l = lists(&s.state);
    for i in 0..1000 {
        l.append(&keys(&["a"]), &keys(&[&format!("{i:04}")])).unwrap();
    }
    let handle = s.state.checkpoint().unwrap();
    let records = last_set(&world, &handle);
    let distinct: std::collections::HashSet<_> = world.sets(&handle).pop().unwrap().into_iter().collect();
    assert_eq!(distinct.len(), records.len(), "one record for each sub-key");
    let chunks = records.iter().filter(|(_, length)| *length > 11).count();
    assert!(chunks + 1 == records.len() && (5..30).contains(&chunks), "{records:?}");
    l.append(&keys(&["a"]), &keys(&["more"])).unwrap();
    let handle = s.state.checkpoint().unwrap();
    assert_eq!(last_set(&world, &handle).len(), 1, "no chunk is written again");
    let all: Vec<String> = (0..1000).map(|i| format!("{i:04}")).chain(["more".to_owned()]).collect();
    let reader = world.open_with(|request| request.read_only = true);
    assert_eq!(get(&lists(&reader.state), "a"), Some(all));
    // A shorter list takes its chunks away.
    l.put(&keys(&["a"]), &array(&[Some(words(&["x"]))])).unwrap();
    assert_eq!(s.state.checkpoint().unwrap().state_keys, 1);
}

#[test]
fn the_removal_of_many_chunks_is_one_change() {
    let world = world(&[]);
    let s = world.open();
    let l = lists(&s.state);
    let long = "x".repeat(CHUNK / 2 + 1);
    let chunks = FEW_KEYS + 10;
    for key in ["a", "b", "c"] {
        l.put(&keys(&[key]), &array(&[Some(vec![long.clone(); if key == "c" { 3 } else { chunks }])])).unwrap();
    }
    let filled = s.state.checkpoint().unwrap();
    assert_eq!(filled.state_keys as usize, 2 * (chunks + 1) + 4, "each element is a chunk");
    l.clear(&keys(&["a"])).unwrap();
    let replaced = array(&[Some(vec![long.clone(), long, "y".to_owned()]), None]);
    l.put(&keys(&["b", "c"]), &replaced).unwrap();
    let check = |l: &ListState| {
        let lengths = |key: &str| get(l, key).map(|list| list.iter().map(String::len).collect::<Vec<_>>());
        assert_eq!(["a", "b", "c"].map(lengths), [None, Some(vec![CHUNK / 2 + 1, CHUNK / 2 + 1, 1]), None]);
    };
    check(&l);
    let handle = s.state.checkpoint().unwrap();
    let mut ops = last_set(&world, &handle).iter().map(|(op, _)| *op).collect::<Vec<_>>();
    ops.sort_unstable();
    let expected = [vec![Op::Put; 3], vec![Op::Delete; 5], vec![Op::DeletePrefix; 2]].concat();
    assert_eq!((handle.state_keys, ops), (3, expected));
    s.state.core.wait_applied();
    check(&l);
    check(&lists(&world.open().state));
}

#[test]
fn invariant_1_a_list_is_read_as_it_is_at_one_moment() {
    let world = world(&[]);
    let s = world.open();
    let l = lists(&s.state);
    let versions: Vec<Vec<String>> = (1..=3).map(|n| vec![n.to_string().repeat(400); 4 * n]).collect();
    l.put(&keys(&["a"]), &array(&[Some(versions[0].clone())])).unwrap();
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            start.wait();
            for i in 0..300 {
                l.put(&keys(&["a"]), &array(&[Some(versions[i % 3].clone())])).unwrap();
                if i % 50 == 0 {
                    s.state.checkpoint().unwrap();
                }
            }
        });
        start.wait();
        for _ in 0..300 {
            assert!(versions.contains(&get(&l, "a").unwrap()));
            for batch in l.scan(KeyRange::default(), 1) {
                assert!(versions.contains(&back(batch.unwrap().column(1)).remove(0).unwrap()));
            }
        }
    });
}

#[test]
fn appends_of_several_threads_are_all_kept() {
    let world = world(&[]);
    let s = world.open();
    let l = lists(&s.state);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let l = &l;
            scope.spawn(move || {
                for i in 0..100 {
                    l.append(&keys(&["a"]), &keys(&[&format!("{thread} {i}")])).unwrap();
                }
            });
        }
        for _ in 0..3 {
            s.state.checkpoint().unwrap();
        }
    });
    let found = get(&l, "a").unwrap();
    for thread in 0..4 {
        let own: Vec<_> = found.iter().filter(|e| e.starts_with(&thread.to_string())).cloned().collect();
        assert_eq!(own, (0..100).map(|i| format!("{thread} {i}")).collect::<Vec<_>>(), "in their order");
    }
}

#[test]
fn what_does_not_fit_changes_nothing() {
    let world = world(&[]);
    let s = world.open();
    let l = lists(&s.state);
    l.append(&keys(&["a"]), &keys(&["1"])).unwrap();
    let nulls: ArrayRef = Arc::new(arrow_array::StringArray::from(vec![Some("2"), None]));
    assert!(l.append(&keys(&["a", "b"]), &nulls).unwrap_err().message().contains("null"));
    assert!(l.append(&keys(&["a", "b"]), &keys(&["2"])).is_err());
    assert!(l.extend(&keys(&["a", "b"]), &array(&[None])).is_err());
    assert!(l.put(&keys(&["a"]), &keys(&["2"])).unwrap_err().message().contains("give a list for each key"));
    assert_eq!((get(&l, "a"), get(&l, "b")), (Some(words(&["1"])), None));
}

#[test]
fn p9_a_damaged_list_is_corrupt() {
    let world = world(&[]);
    let s = world.open();
    let l = lists(&s.state);
    l.append(&keys(&["a"]), &keys(&["1"])).unwrap();
    let key = l.types.encode_keys(&keys(&["a"])).unwrap();
    for damaged in [&[2, 0, 1, b'x'][..], &[1, 1, 1, b'x']] {
        let head = [&[HEAD], key.key(0)].concat();
        l.member.core.layers_to_change().put(l.member.place(), &head, Some(damaged));
        assert_eq!(l.get(&keys(&["a"])).unwrap_err().kind(), fastchangelog_format::ErrorKind::Corrupt);
    }
}
