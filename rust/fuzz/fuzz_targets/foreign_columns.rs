//! Fuzzes `columns::foreign_columns`, which says what its input is and what must hold.
#![no_main]

libfuzzer_sys::fuzz_target!(
    // An import catches the panics of Arrow's own checks, so a panic alone is no finding: libFuzzer's hook would end the
    // process at each. One that nothing catches still ends it.
    init: std::panic::set_hook(Box::new(|_| ())),
    |bytes: &[u8]| {
        fastchangelog_oracles::columns::foreign_columns(bytes);
    }
);
