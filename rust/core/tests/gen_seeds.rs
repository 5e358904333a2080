//! Throwaway: seeds of the fuzzer.
#![allow(clippy::unwrap_used, reason = "a test")]
#[path = "../../fuzz/src/columns.rs"]
mod columns;
use rand::{RngExt, SeedableRng};

#[test]
fn gen_seeds() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/foreign_columns");
    std::fs::create_dir_all(&dir).unwrap();
    let mut rng = rand::rngs::StdRng::seed_from_u64(7);
    let mut found = 0;
    for kind in 0..28u8 {
        for _ in 0..20_000 {
            let mut bytes = vec![kind];
            let len = rng.random_range(40..160);
            bytes.extend((0..len).map(|_| rng.random_range(0..60u8)));
            if bytes[1] < 5 && kind > 19 {
                continue;
            }
            if columns::foreign_columns(&bytes) && bytes.iter().filter(|b| **b > 0).count() > 20 {
                std::fs::write(dir.join(format!("type_{kind:02}")), &bytes).unwrap();
                found += 1;
                break;
            }
        }
    }
    println!("{found} seeds");
    assert!(found > 20);
}
