//! The append buffer: grouping, order, and correct counts.

use super::*;
use fastchangelog_format::byte_set::{SetBytes, Wanted, decode_byte_blocks, decode_columns};
use fastchangelog_format::model::Lane;
use fastchangelog_format::set::decode_set_index;
use proptest::prelude::*;

fn read(set: &EncodedSet) -> Vec<(i32, Vec<u8>)> {
    let bytes = set.to_bytes();
    let index = decode_set_index("log/x", 0, &bytes).unwrap();
    let from = SetBytes { object: "log/x", offset_in_object: 0, start: 0, bytes: &bytes };
    let columns = decode_columns(&index, from).unwrap();
    let records = decode_byte_blocks(&index, &columns, from, 0..index.blocks.len(), &Wanted::ALL).unwrap();
    records.iter().map(|(lane, value)| (lane.key_group(), value.to_vec())).collect()
}

/// What a reader must see: metadata, then key groups in order, each in the order of appends.
fn sorted(appends: &[(i32, Vec<u8>)]) -> Vec<(i32, Vec<u8>)> {
    let mut sorted = appends.to_vec();
    sorted.sort_by_key(|(group, _)| *group);
    sorted
}

fn fill(buffer: &mut AppendBuffer, appends: &[(i32, Vec<u8>)]) {
    for (group, value) in appends {
        match u16::try_from(*group) {
            Ok(group) => buffer.append(group, value),
            Err(_) => buffer.append_meta(value),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn f02_what_was_appended_is_read_grouped_and_in_order(
        start in 0u16..30_000,
        width in 1u16..2_000,
        picks in prop::collection::vec((any::<u16>(), prop_oneof![4 => Just(20usize), 1 => 0usize..300, 1 => Just(40_000)]), 0..120),
        seed: u8,
    ) {
        let groups = KeyGroupRange { start, end: start + width };
        let mut buffer = AppendBuffer::new(groups, BlockPool::new(1 << 20));
        for round in 0..2 {
            let appends: Vec<(i32, Vec<u8>)> = picks.iter().enumerate().map(|(i, (pick, length))| {
                let group = if pick % 17 == 0 { -1 } else { i32::from(start + pick % width) };
                let fill = seed.wrapping_add(u8::try_from(i % 251).unwrap()).wrapping_add(round);
                (group, vec![fill; *length])
            }).collect();
            fill(&mut buffer, &appends);
            prop_assert_eq!(buffer.payload(), appends.iter().map(|(_, v)| v.len() as u64).sum::<u64>());
            prop_assert!(buffer.memory() >= buffer.payload());
            for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
                if compression != Compression::None {
                    fill(&mut buffer, &appends);
                }
                prop_assert_eq!(buffer.records, appends.len() as u64);
                let raw = buffer.seal();
                prop_assert!(buffer.is_empty() && buffer.memory() == 0);
                let set = raw.encode(compression).unwrap();
                prop_assert_eq!(read(&set), sorted(&appends));
            }
        }
    }
}

#[test]
fn a11_memory_is_counted_as_it_is() {
    let mut buffer = AppendBuffer::new(KeyGroupRange { start: 0, end: 128 }, BlockPool::new(1 << 20));
    for i in 0..200_000u32 {
        buffer.append((i % 128) as u16, &[1]);
    }
    // One byte each, all of one length: nothing else is held but what growth leaves.
    assert!(buffer.memory() < 600_000, "{}", buffer.memory());
    let mut mixed = AppendBuffer::new(KeyGroupRange { start: 0, end: 128 }, BlockPool::new(1 << 20));
    for i in 0..200_000u32 {
        mixed.append((i % 128) as u16, &[1, 2][..=(i as usize / 128) % 2]);
    }
    assert!(mixed.memory() >= 200_000 * 5, "a length per record counts: {}", mixed.memory());
    let mut large = AppendBuffer::new(KeyGroupRange { start: 0, end: 1 }, BlockPool::new(1 << 20));
    large.append(0, &vec![7; 100 << 20]);
    assert!((100 << 20..101 << 20).contains(&large.memory()), "{}", large.memory());
    let raw = large.seal();
    assert_eq!(read(&raw.encode(Compression::None).unwrap())[0].1.len(), 100 << 20);
}

#[test]
fn the_second_set_needs_no_growth() {
    let mut buffer = AppendBuffer::new(KeyGroupRange { start: 0, end: 4 }, BlockPool::new(1 << 20));
    let fill = |buffer: &mut AppendBuffer| (0..400u32).for_each(|i| buffer.append((i % 4) as u16, &[0; 100]));
    fill(&mut buffer);
    let first = buffer.seal();
    fill(&mut buffer);
    let second = buffer.seal();
    assert_eq!(first.payload, second.payload);
    assert!(second.memory <= second.payload + second.payload / 8, "{} for {}", second.memory, second.payload);
}

#[test]
fn small_blocks_are_joined_and_large_ones_taken_over() {
    let mut buffer = AppendBuffer::new(KeyGroupRange { start: 0, end: 100 }, BlockPool::new(1 << 20));
    for group in 0..100 {
        buffer.append(group, &[0; 10]);
    }
    let set = buffer.seal().encode(Compression::None).unwrap();
    assert_eq!(decode_set_index("x", 0, &set.to_bytes()).unwrap().blocks.len(), 1);
    let large = vec![0; 100_000];
    for group in 0..4 {
        for _ in 0..8 {
            buffer.append(group, &large);
        }
    }
    let set = buffer.seal().encode(Compression::None).unwrap();
    let index = decode_set_index("x", 0, &set.to_bytes()).unwrap();
    assert_eq!(index.blocks.len(), 4 * 4, "two values a block");
    assert_eq!(set.parts.len(), 1 + 16);
    assert_eq!(index.blocks_of(Lane::of(1).0..Lane::of(2).0), 4..8);
}
