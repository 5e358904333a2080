//! States by name: their changes in memory over a live version.
//!
//! layers: changes in memory; entries: those of one state and key group; spilled: changes on the local disk; under: what lies
//! under the changes in memory; look_up: values of some keys; scan: keys in order; net, net_spilled: the change set of a version;
//! ttl, times: the expiry of an entry
//!
//! Owns: reading changes and live version as one, the difference between them.
//! Does not own: what entries mean (`kinds`), which version is live and when changes become a version (`shard`, `embedded`).
//!
//! A state has a part for each key group, its [`Place`]; an embedded state has one key group. All entries of one key are in
//! the key group of that key.

pub(crate) mod entries;
pub(crate) mod layer;
pub(crate) mod layers;
pub(crate) mod look_up;
pub(crate) mod net;
pub(crate) mod net_spilled;
pub(crate) mod scan;
pub(crate) mod spilled;
pub(crate) mod times;
pub(crate) mod ttl;
pub(crate) mod under;

use fastchangelog_format::model::{KeyGroup, StateId};

/// The state that aggregates live in.
pub(crate) const AGGREGATE: StateId = StateId(0);

/// The index of the ends of session windows.
pub(crate) const WINDOW_ENDS: StateId = StateId(1);

/// A clear of at most this many keys is a delete of each of them; of more, one of their prefix.
pub(crate) const FEW_KEYS: usize = 256;

/// The part of one state in one key group: where keys have an order.
pub(crate) type Place = (StateId, KeyGroup);
