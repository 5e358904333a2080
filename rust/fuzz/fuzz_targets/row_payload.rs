//! Fuzzes `rows::row_payload`, which says what its input is and what must hold.
#![no_main]

libfuzzer_sys::fuzz_target!(
    // The decoder catches the panics of Arrow's, so a panic alone is no finding: libFuzzer's hook would end the process at
    // each. One that nothing catches still ends it.
    init: std::panic::set_hook(Box::new(|_| ())),
    |bytes: &[u8]| {
        fastchangelog_oracles::rows::row_payload(bytes);
    }
);
