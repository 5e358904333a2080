//! The map side: input rows to payloads per shard.
