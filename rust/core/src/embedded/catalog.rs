//! The states that a program has declared in an embedded state.
//!
//! Owns: their names, numbers and types, and the text that keeps them in handles.
//! Does not own: which types of values may follow each other (`columns::evolution`), the catalog of a processor
//! (`kinds::catalog`).
//!
//! Values of encoding 2 have the version of their type in front, and the catalog keeps all versions. Values of encoding 1 have
//! none: they are those of states that an earlier release has made, of timers and of accumulators, and have one type for ever.
//!
//! Invariants:
//! 1. a number, once given to a state, is that state's forever, with the same kind, key and map key;
//! 2. a version, once given to a type of values, is that type's forever;
//! 3. a declaration that is refused leaves nothing.

use crate::kinds::Kind;
use crate::kinds::catalog::{MAX_NAME, MAX_STATES};
use fastchangelog_columns::aggregate::schema_difference;
use fastchangelog_columns::codec::hash_key;
use fastchangelog_format::error::{Error, ErrorKind, Result};
use fastchangelog_format::model::StateId;
use serde::{Deserialize, Serialize};

/// Values as they are; values with their version in front.
const PLAIN: u8 = 1;
const VERSIONED: u8 = 2;

/// A state as a program declares it, with its types as texts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Declaration<'a> {
    pub(super) name: &'a str,
    pub(super) kind: Kind,
    pub(super) key: &'a str,
    /// Of a map.
    pub(super) map_key: Option<&'a str>,
    /// The type of a value, a list's element or a map entry's value.
    pub(super) value: &'a str,
    /// Entries expire.
    pub(super) ttl: bool,
}

impl Declaration<'_> {
    /// The type of all that a key has, as catalogs of encoding 1 say it.
    fn whole_value(&self) -> String {
        let value = self.value;
        match (self.kind, self.map_key) {
            (Kind::List, _) => format!("array<{value}>"),
            (_, Some(map_key)) => format!("map<{map_key},{value}>"),
            _ => value.to_owned(),
        }
    }

    fn encoding(&self) -> u8 {
        if matches!(self.kind, Kind::Timers | Kind::Aggregating) { PLAIN } else { VERSIONED }
    }
}

/// One declared state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Declared {
    id: u16,
    name: String,
    kind: Kind,
    key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    map_key: Option<String>,
    /// The type that values are written in.
    value: String,
    #[serde(default, skip_serializing_if = "is_false")]
    ttl: bool,
    /// How its values are encoded.
    #[serde(default)]
    encoding: u8,
    /// All types that values were ever written in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    versions: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// A state of a catalog, as it is declared now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: StateId,
    pub(super) is_new: bool,
    /// The types that values were ever written in, by version, the declared one among them; none: values have no version.
    pub(super) versions: Option<Vec<String>>,
}

/// All declared states.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Catalog {
    states: Vec<Declared>,
    /// The states that this program has declared since it opened: their types stay.
    in_use: Vec<u16>,
}

impl Catalog {
    /// The catalog of a handle's schema text.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let states: Vec<Declared> = serde_json::from_str(text).map_err(|e| {
            Error::invalid(format!("the handle belongs to a query, not to an embedded state: its schema is {e}"))
        })?;
        match states.iter().find(|state| ![PLAIN, VERSIONED].contains(&state.encoding)) {
            Some(Declared { name, encoding, .. }) => Err(Error::schema(format!(
                "the state `{name}` has values in encoding {encoding}, but this version of fastchangelog knows up to \
                 {VERSIONED}; use the version that wrote it"
            ))),
            None => Ok(Self { states, in_use: Vec::new() }),
        }
    }

    /// The text for handles, and its fingerprint.
    pub(super) fn text(&self) -> Result<(u64, String)> {
        let text = serde_json::to_string(&self.states).map_err(Error::internal)?;
        Ok((hash_key(text.as_bytes()), text))
    }

    /// The states with expiring entries, and their kinds.
    pub(super) fn ending(&self) -> Vec<(StateId, Kind)> {
        self.states.iter().filter(|state| state.ttl).map(|state| (StateId(state.id), state.kind)).collect()
    }

    /// Declares a state, which is added if there is none of its name and `may_change`. `make` makes what reads its values;
    /// when it fails, the declaration is refused.
    pub(super) fn declare<T>(
        &mut self,
        declared: Declaration<'_>,
        may_change: bool,
        make: impl FnOnce(&Entry) -> Result<T>,
    ) -> Result<(Entry, T)> {
        let Some(known) = self.states.iter().position(|state| state.name == declared.name) else {
            return self.add(declared, may_change, make);
        };
        let known = &mut self.states[known];
        let (id, value) = (StateId(known.id), declared.value);
        known.check(declared)?;
        if known.encoding == PLAIN {
            let entry = Entry { id, is_new: false, versions: None };
            return make(&entry).map(|made| (entry, made));
        }
        if known.value != value && self.in_use.contains(&known.id) {
            return Err(known.otherwise("value", &known.value, value).with_remedy(
                "one open state has one type of values; open the state again to change it, or take another name",
            ));
        }
        let mut versions = known.versions.clone();
        if !versions.iter().any(|version| version == value) {
            versions.push(value.to_owned());
        }
        let entry = Entry { id, is_new: false, versions: Some(versions) };
        let made = make(&entry).map_err(|error| {
            error.context(format_args!(
                "the state `{}` was declared with value `{}`, now with `{value}`",
                known.name, known.value
            ))
        })?;
        if may_change {
            value.clone_into(&mut known.value);
            known.versions = entry.versions.clone().unwrap_or_default();
        }
        self.in_use.push(id.0);
        Ok((entry, made))
    }

    fn add<T>(
        &mut self,
        declared: Declaration<'_>,
        may_change: bool,
        make: impl FnOnce(&Entry) -> Result<T>,
    ) -> Result<(Entry, T)> {
        let Declaration { name, kind, key, map_key, value, ttl } = declared;
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(Error::invalid(format!("the name of a state must have 1 to {MAX_NAME} bytes")));
        }
        if !may_change {
            let names: Vec<_> = self.states.iter().map(|d| d.name.as_str()).collect();
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("there is no state `{name}`; there are: {}", names.join(", ")),
            ));
        }
        let id = u16::try_from(self.states.len()).ok().filter(|_| self.states.len() < MAX_STATES).ok_or_else(|| {
            Error::invalid(format!("the open state already has {MAX_STATES} states, the limit"))
                .with_remedy("put what belongs together under one key")
        })?;
        let encoding = declared.encoding();
        let versions = if encoding == VERSIONED { vec![value.to_owned()] } else { Vec::new() };
        let entry =
            Entry { id: StateId(id), is_new: true, versions: (encoding == VERSIONED).then(|| versions.clone()) };
        let made = make(&entry)?;
        let map_key = map_key.map(str::to_owned);
        let [name, key, value] = [name, key, value].map(str::to_owned);
        self.states.push(Declared { id, name, kind, key, map_key, value, ttl, encoding, versions });
        self.in_use.push(id);
        Ok((entry, made))
    }
}

impl Declared {
    /// Refuses a declaration of other entries: all but the type of values of encoding 2.
    fn check(&self, declared: Declaration<'_>) -> Result<()> {
        let Declaration { kind, key, map_key, ttl, .. } = declared;
        for (what, was, is) in [
            ("kind", self.kind.name(), kind.name()),
            ("key", &*self.key, key),
            ("map key", self.map_key.as_deref().unwrap_or_default(), map_key.unwrap_or_default()),
        ] {
            if was != is && (what != "map key" || self.encoding == VERSIONED) {
                return Err(self.otherwise(what, was, is).with_remedy("declare it as it was, or take another name"));
            }
        }
        let whole = declared.whole_value();
        if self.encoding == PLAIN && self.value != whole {
            // Of aggregates, the text is long and the difference is short.
            let difference = schema_difference(&self.value, &whole).filter(|_| kind == Kind::Aggregating);
            let error = difference.map_or_else(
                || self.otherwise("value", &self.value, &whole),
                |difference| Error::schema(format!("the state `{}` was declared differently: {difference}", self.name)),
            );
            return Err(error.with_remedy("declare it as it was, or take another name"));
        }
        let name = &self.name;
        match (self.ttl, ttl) {
            (true, false) => Err(Error::schema(format!(
                "the state `{name}` was declared with a ttl, so its entries carry their expiry, but is now declared \
                 without one"
            ))
            .with_remedy("give ttl= of any length, or take another name")),
            (false, true) => Err(Error::schema(format!(
                "the state `{name}` was declared without a ttl, so its entries carry no expiry, but is now declared \
                 with one"
            ))
            .with_remedy("leave ttl= out, or copy the entries to a state of another name")),
            _ => Ok(()),
        }
    }

    fn otherwise(&self, what: &str, was: &str, is: &str) -> Error {
        Error::schema(format!("the state `{}` was declared with {what} `{was}`, now with `{is}`", self.name))
    }
}

#[cfg(test)]
#[path = "catalog_tests.rs"]
mod tests;
