use super::*;
use crate::row_gather::key_column;
use crate::row_test_data::rng;
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

fn blocks(keys: &[Vec<Vec<u8>>]) -> Vec<RowBlock> {
    let block =
        |keys: &Vec<Vec<u8>>| RowBlock { columns: vec![], keys: key_column(keys.iter().map(Vec::as_slice)).unwrap() };
    keys.iter().map(block).collect()
}

/// Places, keys and marks against a stable sort of all keys.
fn check(keys: &[Vec<Vec<u8>>]) {
    let mut expected: Vec<(&[u8], u32, u32)> = vec![];
    for (keys, block) in keys.iter().zip(0..) {
        expected.extend(keys.iter().zip(0..).map(|(key, row)| (key.as_slice(), block, row)));
    }
    expected.sort_by_key(|(key, ..)| *key);
    let mut sorted = SortedBlocks::new(blocks(keys));
    for i in 0..expected.len() {
        let (key, block, row) = expected[i];
        let (place, starts) = sorted.advance().unwrap().unwrap();
        assert_eq!((place.block, place.row), (block, row), "row {i}");
        assert_eq!(sorted.block(block).keys.value(row as usize), key);
        assert_eq!(starts, i == 0 || expected[i - 1].0 != key, "row {i}");
    }
    assert!(sorted.advance().unwrap().is_none());
}

fn split(rng: &mut StdRng, keys: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<Vec<u8>>> {
    let mut blocks = vec![vec![]; rng.random_range(1..5)];
    for key in keys {
        let last = rng.random_range(0..blocks.len());
        blocks[last].push(key);
    }
    blocks
}

#[test]
fn invariants_1_and_2_keys_of_any_shape_are_sorted_stably() {
    let mut rng = rng();
    for _ in 0..300 {
        let rows = rng.random_range(0..300);
        let (alphabet, longest) = (rng.random_range(1..4u8), [0, 1, 3, 9, 40][rng.random_range(0..5)]);
        let shared = vec![7; [0, 1, 8, 100][rng.random_range(0..4)]];
        let keys: Vec<Vec<u8>> = (0..rows)
            .map(|_| {
                // Zeros are what short keys are filled up with.
                let own = (0..rng.random_range(0..=longest)).map(|_| rng.random_range(0..alphabet));
                shared.iter().copied().chain(own).collect()
            })
            .collect();
        check(&split(&mut rng, keys));
    }
}

#[test]
fn keys_of_one_length_are_sorted() {
    let mut rng = rng();
    let few: Vec<[u8; 9]> = (0..40).map(|_| rng.random()).collect();
    for distinct in [1, 3, 40] {
        let keys: Vec<Vec<u8>> = (0..2_000).map(|_| few[..distinct].choose(&mut rng).unwrap().to_vec()).collect();
        check(&split(&mut rng, keys));
    }
    let ascending = |i: u64| [&[1][..], &i.to_be_bytes()].concat();
    check(&split(&mut rng, (0..3_000).map(ascending)));
    check(&split(&mut rng, (0..3_000).rev().map(|i| ascending(i << 40))));
}

#[test]
fn keys_that_part_at_every_eighth_byte_are_sorted() {
    let mut rng = rng();
    // Key `i` leaves the others at byte `9 * i`: deeper than the levels.
    let keys: Vec<Vec<u8>> = (0..3 * LEVELS)
        .flat_map(|i| {
            let mut key = vec![5; 9 * 3 * LEVELS + 1];
            key[9 * i] = [1, 9][i % 2];
            [key.clone(), key]
        })
        .collect();
    check(&split(&mut rng, keys));
}

#[test]
fn no_rows_have_an_order_too() {
    check(&[]);
    check(&[vec![], vec![]]);
    check(&[vec![vec![]; 3], vec![], vec![vec![]; 2]]);
}
