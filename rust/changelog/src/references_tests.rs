//! References to the caller's memory: the same log as with copies, the bound, and when memory is let go of.

use crate::block_pool::BlockPool;
use crate::buffer::AppendBuffer;
use crate::testing::*;
use crate::{Hold, Writer};
use bytes::Bytes;
use fastchangelog_format::config::Compression;
use fastchangelog_format::model::KeyGroupRange;
use fastchangelog_store::fault::{Fault, Operation};
use proptest::prelude::*;
use std::sync::{Arc, Weak};

/// Memory of a caller.
struct Memory {
    bytes: Arc<Vec<u8>>,
    _hold: Hold,
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Appends values that lie in one piece of memory, by reference; the memory is only the log's afterwards.
fn append_held(writer: &Writer, groups: &[u16], values: &[Vec<u8>]) -> Weak<Vec<u8>> {
    let bytes = Arc::new(values.concat());
    let hold = writer.hold(groups, bytes.len() as u64, bytes.len() as u64).expect("a reference");
    let weak = Arc::downgrade(&bytes);
    let memory = Bytes::from_owner(Memory { bytes, _hold: hold });
    let mut at = 0;
    let slices: Vec<&[u8]> = values
        .iter()
        .map(|value| {
            at += value.len();
            &memory[at - value.len()..at]
        })
        .collect();
    writer.append_batch(groups, slices.into_iter(), Some(&memory), &|| Ok(())).unwrap();
    weak
}

fn freed(memory: &Weak<Vec<u8>>) {
    until("the release of the memory", || memory.strong_count() == 0);
}

fn values(count: usize, length: usize) -> Vec<Vec<u8>> {
    (0..count).map(|i| vec![u8::try_from(i % 251).unwrap(); length]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn a_set_has_the_same_bytes_whatever_is_copied(
        width in prop_oneof![1u16..8, 300u16..900],
        picks in prop::collection::vec(
            (any::<u16>(), prop_oneof![3 => 0usize..40, 3 => 1_000usize..6_000, 1 => Just(70_000), 1 => Just(300_000)], any::<bool>()),
            0..60,
        ),
        gap in 0usize..3,
    ) {
        let groups = KeyGroupRange { start: 5, end: 5 + width };
        let (mut memory, mut places) = (vec![1; gap], Vec::new());
        for (i, (_, length, _)) in picks.iter().enumerate() {
            places.push(memory.len()..memory.len() + length);
            memory.extend((0..*length).map(|n| (n * 7 + i) as u8));
            memory.extend(vec![2; gap]);
        }
        let memory = Bytes::from(memory);
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            let sets = [false, true].map(|refers| {
                let mut buffer = AppendBuffer::new(groups, BlockPool::new(1 << 20));
                for ((pick, _, copied), place) in picks.iter().zip(&places) {
                    let around = Some(&memory).filter(|_| refers && !copied);
                    buffer.append_within(5 + pick % width, &memory[place.clone()], around);
                }
                assert_eq!(buffer.payload(), picks.iter().map(|(_, length, _)| *length as u64).sum::<u64>());
                assert!(buffer.memory() >= buffer.payload());
                buffer.seal().encode(compression).unwrap()
            });
            let [copied, refers] = &sets;
            prop_assert_eq!(copied.to_bytes(), refers.to_bytes());
            prop_assert_eq!((copied.crc, copied.mark, copied.length), (refers.crc, refers.mark, refers.length));
        }
    }

    #[test]
    fn any_faults_give_the_log_that_copies_give(
        picks in prop::collection::vec((0u16..4, 4_096usize..20_000), 1..40),
        seed: u64,
    ) {
        let pairs = [("max_attempts", "2"), ("persist_delay", "1ms")];
        let (copies, refers) = (world(&pairs), world(&pairs));
        let (groups, values): (Vec<u16>, Vec<Vec<u8>>) =
            picks.iter().enumerate().map(|(i, (group, length))| (*group, vec![i as u8; *length])).unzip();
        let (one, other) = (copies.writer("a"), refers.writer("a"));
        refers.inner.seeded(seed, 200, &[Fault::FailBefore, Fault::FailAfter, Fault::Throttled]);
        let mut held = Vec::new();
        for _ in 0..3 {
            one.append_batch(&groups, values.iter().map(Vec::as_slice), None, &|| Ok(())).unwrap();
            held.push(append_held(&other, &groups, &values));
            one.rollover().unwrap();
            other.rollover().unwrap();
        }
        let expected = wait(&persist(&one, 0, 1)).unwrap();
        let found = (1..).find_map(|checkpoint| wait(&persist(&other, 0, checkpoint)).ok()).unwrap();
        let marks = |handle: &fastchangelog_format::model::ChangelogHandle| {
            handle.sets.iter().map(|set| (set.mark, set.length, set.head, set.records)).collect::<Vec<_>>()
        };
        prop_assert_eq!(marks(&expected), marks(&found));
        refers.inner.heal();
        prop_assert_eq!(copies.read(&expected).unwrap(), refers.read(&found).unwrap());
        held.iter().for_each(freed);
    }
}

#[test]
fn parts_are_the_callers_memory() {
    let memory = Bytes::from(vec![7; 100_000]);
    let mut buffer = AppendBuffer::new(groups(2), BlockPool::new(1 << 20));
    buffer.append(0, b"copied");
    for at in 0..10 {
        buffer.append_within(0, &memory[at * 10_000..(at + 1) * 10_000], Some(&memory));
    }
    buffer.append(0, b"too");
    buffer.append_within(0, &[8; 9], Some(&memory));
    let set = buffer.seal().encode(Compression::None).unwrap();
    let lengths: Vec<usize> = set.parts[1..].iter().map(Bytes::len).collect();
    assert_eq!(lengths, [6, 100_000, 12], "neighbours are one part, and what lies elsewhere is copied");
    assert!(memory.as_ptr_range().contains(&set.parts[2].as_ptr()));
}

#[test]
fn p7_what_is_held_is_bounded_and_counted() {
    let mib = ["max_in_flight", "preemptive_persist_threshold", "persist_size_threshold"].map(|name| (name, "1MiB"));
    let w = world(&mib);
    let writer = w.writer("a");
    let held = || w.storage.metrics().referenced_bytes.get();
    let hold = |bytes: u64, held: u64| writer.hold(&[1; 8], bytes, held);
    assert!(hold(1 << 20, 0).is_none(), "memory that may change");
    assert!(hold((4 << 10) - 1, 4 << 10).is_none(), "small values");
    assert!(
        writer.hold(&[1, 2, 1, 2, 1, 2, 1, 2, 1], 32 << 10, 32 << 10).is_none(),
        "few bytes of a key group in a row"
    );
    assert!(hold(1 << 20, (2 << 20) + 1).is_none(), "a small part of its buffer");
    let first = hold(1 << 20, 2 << 20).unwrap();
    assert_eq!(held(), 2 << 20);
    assert!(hold(1 << 20, 1 << 20).is_none(), "twice max_in_flight is held");
    drop(first);
    assert_eq!(held(), 0);
    drop(hold(32 << 10, 32 << 10).unwrap());
    let packed = world(&[("compression", "lz4")]);
    assert!(packed.writer("a").hold(&[1], 1 << 20, 1 << 20).is_none(), "compressed: a copy already");
}

#[test]
fn a_failed_set_refers_to_the_same_bytes_until_durable() {
    let w = world(&[("max_attempts", "1")]);
    let writer = w.writer("a");
    let changes = values(3, 5_000);
    let memory = append_held(&writer, &[2, 2, 1], &changes);
    w.inner.always(Operation::Put, Fault::FailBefore);
    for checkpoint in 1..3 {
        wait(&persist(&writer, 0, checkpoint)).unwrap_err();
        assert_eq!((memory.strong_count(), w.storage.metrics().referenced_bytes.get()), (1, 15_000));
    }
    w.inner.heal();
    let handle = wait(&persist(&writer, 0, 3)).unwrap();
    let [first, second, third] = <[Vec<u8>; 3]>::try_from(changes).unwrap();
    assert_eq!(w.read(&handle).unwrap(), [(1, third), (2, first), (2, second)]);
    freed(&memory);
    assert_eq!(w.storage.metrics().referenced_bytes.get(), 0);
}

#[test]
fn an_object_in_parts_refers_to_memory_too() {
    let threshold = [("preemptive_persist_threshold", "64MiB"), ("persist_size_threshold", "64MiB")];
    let w = world(&threshold);
    let writer = w.writer("a");
    let changes = values(7, 5 << 20);
    let memory = append_held(&writer, &[1; 7], &changes);
    let handle = wait(&persist(&writer, 0, 1)).unwrap();
    assert!(w.inner.calls_of(Operation::Multipart) > 1, "it went in parts");
    let found: Vec<Vec<u8>> = w.read(&handle).unwrap().into_iter().map(|(_, value)| value).collect();
    assert!(found == changes);
    freed(&memory);
}

#[test]
fn memory_is_let_go_of_with_sets_that_nobody_needs() {
    let w = world(&[]);
    let writer = w.writer("a");
    let truncated = append_held(&writer, &[1], &values(1, 8_000));
    let next = writer.rollover().unwrap();
    assert_eq!(truncated.strong_count(), 1);
    writer.truncate(next).unwrap();
    freed(&truncated);
    let active = append_held(&writer, &[1], &values(1, 8_000));
    assert_eq!(active.strong_count(), 1);
    writer.close();
    freed(&active);
    assert_eq!((w.puts(), w.storage.metrics().referenced_bytes.get()), (0, 0));
}
