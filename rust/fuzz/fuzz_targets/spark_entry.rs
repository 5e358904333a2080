//! Fuzzes `spark_rows::spark_entry`, which says what its input is and what must hold.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fastchangelog_oracles::spark_rows::spark_entry(bytes);
});
