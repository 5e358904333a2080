//! Fuzzes `columns::foreign_columns`, which says what its input is and what must hold.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fastchangelog_oracles::columns::foreign_columns(bytes);
});
