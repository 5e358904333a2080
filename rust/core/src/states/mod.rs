//! States by name: their changes in memory over a live version, and how each kind lies in entries.
//!
//! layers: changes in memory; entries: those of one state and key group; spilled: changes on the local disk; under: what lies
//! under the changes in memory; look_up: values of some keys; scan: keys in order; net, net_spilled: the change set of a version;
//! catalog: the declared states; list, timer, ttl: how these lie in entries; sweep: what goes of ended entries; first_timer: what is
//! known of the first timer; distinct: distinct keys
//!
//! Owns: reading changes and live version as one, the difference between them, the layouts.
//! Does not own: which version is live, when changes become a version (`shard`, `embedded`), types of keys and values
//! (`columns::typed`, at the caller of either).
//!
//! Imports neither `shard` nor what is above it. A state has a part for each key group, its [`Place`]; an embedded state has
//! one key group. All entries of one key are in the key group of that key.

pub(crate) mod catalog;
pub(crate) mod distinct;
pub(crate) mod entries;
pub(crate) mod first_timer;
pub(crate) mod layer;
pub(crate) mod layers;
pub(crate) mod list;
pub(crate) mod look_up;
pub(crate) mod net;
pub(crate) mod net_spilled;
pub(crate) mod scan;
pub(crate) mod spilled;
pub(crate) mod sweep;
pub(crate) mod timer;
pub(crate) mod ttl;
pub(crate) mod under;

use fastchangelog_format::model::{KeyGroup, StateId};

/// A clear of at most this many keys is a delete of each of them; of more, one of their prefix.
pub(crate) const FEW_KEYS: usize = 256;

/// The part of one state in one key group: where keys have an order.
pub(crate) type Place = (StateId, KeyGroup);
