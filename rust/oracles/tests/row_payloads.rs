//! Payloads of rows with faults and right checksums: refused or read, without a panic and without huge allocations.
//!
//! Owns: random faults in the fuzzer's seeds. Does not own: what must hold (`fastchangelog_oracles::rows`).

#![allow(clippy::unwrap_used, reason = "a test")]

use fastchangelog_oracles::forge::fix_row_payload;
use fastchangelog_oracles::rows::row_payload;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const SEED: &[u8] = include_bytes!("../../fuzz/seeds/row_payload/five");

/// Where the batch begins: behind the schema, which is not decoded.
fn batch_at() -> usize {
    let length = u32::from_le_bytes(SEED[4..8].try_into().unwrap());
    8 + length as usize
}

#[test]
fn p9_forged_payloads_break_nothing() {
    let given = std::env::var("FASTCHANGELOG_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = given.unwrap_or_else(rand::random);
    println!("FASTCHANGELOG_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut taken = 0;
    for _ in 0..20_000 {
        let mut bytes = SEED.to_vec();
        for _ in 0..rng.random_range(1..4) {
            let at = rng.random_range(batch_at()..bytes.len() - 8);
            let run = rng.random_range(1..9).min(bytes.len() - 8 - at);
            let extreme = [0x00, 0x01, 0x7f, 0x80, 0xff, rng.random()][rng.random_range(0..6)];
            bytes[at..at + run].fill(extreme);
        }
        fix_row_payload(&mut bytes);
        taken += u32::from(row_payload(&bytes));
    }
    assert!((1_000..19_000).contains(&taken), "{taken} are taken: faults are all refused, or not seen");
}
