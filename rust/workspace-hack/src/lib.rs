//! Nothing: the features in this package's `Cargo.toml` are what it is for.
