//! The fuzzers' inputs, read by every build: those they start from, and those that once failed.
//!
//! Owns: going through `rust/fuzz/seeds` and `rust/fuzz/regressions`. Does not own: what must hold
//! (`oracles`), finding new inputs (`make fuzz`).

#![allow(clippy::unwrap_used, reason = "a test")]

use fastchangelog_oracles::oracles;
use std::path::{Path, PathBuf};

/// The files of a folder; none if it does not exist.
fn files(folder: &str, target: &str) -> Vec<PathBuf> {
    // Asked for when the test runs: clones that share a target folder share its binaries.
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the package's folder");
    let dir = Path::new(&package).join("../fuzz").join(folder).join(target);
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir).into_iter().flatten().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}

fn replay(file: &Path, oracle: fn(&[u8]) -> bool) -> bool {
    let bytes = std::fs::read(file).unwrap();
    std::panic::catch_unwind(|| oracle(&bytes)).unwrap_or_else(|_| panic!("{}", file.display()))
}

#[test]
fn p9_every_seed_is_accepted() {
    for (target, oracle) in oracles::ALL {
        let seeds = files("seeds", target);
        assert!(!seeds.is_empty(), "{target} starts from nothing");
        for file in seeds {
            assert!(replay(&file, *oracle), "{} is refused: it starts nowhere", file.display());
        }
    }
}

#[test]
fn p9_what_once_failed_does_not_fail_again() {
    let known = |name: &str| oracles::ALL.iter().any(|(target, _)| *target == name);
    for dir in files("regressions", "") {
        assert!(known(dir.file_name().unwrap().to_str().unwrap()), "{} is no decoder's", dir.display());
    }
    for (target, oracle) in oracles::ALL {
        for file in files("regressions", target) {
            replay(&file, *oracle);
        }
    }
}

/// Every prefix of every seed, and every seed with each byte changed: cheap, and the same everywhere.
#[test]
fn p9_seeds_with_a_fault_break_nothing() {
    for (target, oracle) in oracles::ALL {
        for file in files("seeds", target) {
            let seed = std::fs::read(&file).unwrap();
            for at in 0..seed.len() {
                let mut changed = seed.clone();
                changed[at] ^= [0x01, 0x80, 0xff][at % 3];
                for bytes in [&seed[..at], &changed] {
                    let held = std::panic::catch_unwind(|| oracle(bytes)).is_ok();
                    assert!(held, "{} at {at}: {bytes:02x?}", file.display());
                }
            }
        }
    }
}
