//! The types of a declared state, and the way of its values to bytes.
//!
//! Owns: which encoding a state has. Does not own: the encodings (`columns`), the catalog's rules (`catalog`).

use super::catalog::{Declaration, Entry};
use super::core::Core;
use super::lifetime::Lifetime;
use super::member::Member;
use crate::kinds::Kind;
use arrow_array::ArrayRef;
use arrow_schema::DataType;
use fastchangelog_columns::codec::EncodedKeys;
use fastchangelog_columns::type_parser::declared_text;
use fastchangelog_columns::type_text;
use fastchangelog_columns::typed::{EncodedValues, TypedEntries};
use fastchangelog_columns::versioned::VersionedEntries;
use fastchangelog_format::error::Result;
use std::sync::Arc;
use std::time::Duration;

/// The types of a state as a program declares them.
#[derive(Debug, Clone, Copy)]
pub(super) struct ValueTypes<'a> {
    pub(super) key: &'a DataType,
    /// Of a value, a list's element or a map entry's value.
    pub(super) value: &'a DataType,
    pub(super) ttl: Option<Duration>,
}

impl ValueTypes<'_> {
    /// Declares a state of these types.
    pub(super) fn declare(
        self,
        core: &Arc<Core>,
        name: &str,
        kind: Kind,
        map_key: Option<&str>,
    ) -> Result<(Member, StateTypes)> {
        let lifetime = Lifetime::of(self.ttl)?;
        let (key, value, ttl) = (&*type_text(self.key), &*declared_text(self.value), lifetime.is_bounded());
        let declared = Declaration { name, kind, key, map_key, value, ttl };
        Member::declare(core, declared, lifetime, |entry| StateTypes::new(self.key, self.value, entry))
    }
}

/// Keys and values of a declared state, between Arrow and bytes.
#[derive(Debug)]
pub(super) struct StateTypes(VersionedEntries);

impl StateTypes {
    fn new(key: &DataType, value: &DataType, entry: &Entry) -> Result<Self> {
        match &entry.versions {
            None => VersionedEntries::plain(key, value),
            Some(versions) => VersionedEntries::of_texts(key, value, versions),
        }
        .map(Self)
    }

    /// The types of keys.
    pub(super) fn keys(&self) -> &TypedEntries {
        self.0.typed()
    }

    /// The type of values.
    pub(super) fn value_type(&self) -> &DataType {
        self.0.value_type()
    }

    /// Encodes keys, of which none may be null.
    pub(super) fn encode_keys(&self, keys: &ArrayRef) -> Result<EncodedKeys> {
        self.keys().encode_keys(keys)
    }

    /// The bytes in front of each value; see `Changes::version`.
    pub(super) fn version(&self) -> &[u8] {
        self.0.version()
    }

    /// Encodes values, without their version; of as many keys.
    pub(super) fn encode_values(&self, values: &ArrayRef, keys: usize) -> Result<EncodedValues> {
        self.keys().encode_values(values, keys)
    }

    /// The values of some bytes; a null where there are none.
    pub(super) fn decode_values<'a>(&self, values: impl Iterator<Item = Option<&'a [u8]>>) -> Result<ArrayRef> {
        self.0.decode_text(values)
    }
}
