//! Fuzzes `oracles::savepoint`, which says what its input is and what must hold.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fastchangelog_oracles::oracles::savepoint(bytes);
});
