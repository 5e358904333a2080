//! Canonical key bytes and their hash.
