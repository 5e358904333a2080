//! Compiles the one C++ class of this crate, against the headers of the RocksDB crate.

use std::env;
use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=src/rocks_env.cc");
    println!("cargo::rerun-if-env-changed=ROCKSDB_INCLUDE_DIR");
    let headers = env::var_os("ROCKSDB_INCLUDE_DIR").map_or_else(
        || {
            let sources = env::var_os("DEP_ROCKSDB_CARGO_MANIFEST_DIR");
            PathBuf::from(sources.expect("the RocksDB crate says where its sources are")).join("rocksdb/include")
        },
        PathBuf::from,
    );
    cc::Build::new()
        .cpp(true)
        .std("c++20")
        .include(headers)
        // Published libraries have no type information, and the class needs none.
        .flag_if_supported("-fno-rtti")
        .warnings(false)
        .file("src/rocks_env.cc")
        .compile("fastchangelog_rocks_env");
}
