//! The states that a processor has declared.
//!
//! Owns: names and numbers of states in a processor's catalog.
//! Does not own: the catalog of an embedded state (`embedded::catalog`), encoding keys and values (`columns`), which types of a
//! processor's state may follow each other (its worker).
//!
//! Invariants:
//! 1. a number, once given to a state, is that state's forever, with the same kind;
//! 2. the text of the catalog is kept as it was declared, with parts that are not known here.

use super::Kind;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::StateId;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Most states of one folder.
pub(crate) const MAX_STATES: usize = 1024;
/// Most bytes of a name: names are in each handle.
pub(crate) const MAX_NAME: usize = 256;

/// One declared state of a processor: what the layout of its entries depends on.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct DeclaredState {
    pub(crate) id: u16,
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// Its values, elements or map entries end.
    #[serde(default)]
    pub(crate) ttl: bool,
    #[serde(default)]
    pub(crate) encoding: u8,
}

/// The states of a processor, by number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ProcessorCatalog(BTreeMap<u16, DeclaredState>);

impl ProcessorCatalog {
    /// The states of a declared text, which must have all that is `stored` as it is.
    pub(crate) fn declare(text: &str, stored: &Self) -> Result<Self> {
        let declared =
            Self::read(text).map_err(|e| Error::invalid(format!("the catalog of a processor cannot be read: {e}")))?;
        for (id, was) in &stored.0 {
            let Some(is) = declared.0.get(id) else {
                return Err(Error::schema(format!(
                    "the catalog lacks the state `{}`, which is stored; keep its entry",
                    was.name
                )));
            };
            let parts = [
                ("the name", was.name.clone(), is.name.clone()),
                ("the kind", was.kind.name().to_owned(), is.kind.name().to_owned()),
                ("a time to live", was.ttl.to_string(), is.ttl.to_string()),
                ("the encoding", was.encoding.to_string(), is.encoding.to_string()),
            ];
            if let Some((what, was_text, is_text)) = parts.into_iter().find(|(_, was, is)| was != is) {
                return Err(Error::schema(format!(
                    "the state `{}` was stored with {what} `{}`, but now it is `{}`; declare it as it was, or take \
                     another name",
                    was.name, was_text, is_text
                )));
            }
        }
        Ok(declared)
    }

    /// The states of a handle's schema text.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        Self::read(text).map_err(|_| {
            Error::schema("no stateful processor wrote the stored state")
                .with_remedy("restore the query that wrote it, or start with a new checkpoint")
        })
    }

    fn read(text: &str) -> Result<Self, String> {
        let mut states = BTreeMap::new();
        for state in serde_json::from_str::<Vec<DeclaredState>>(text).map_err(|e| e.to_string())? {
            if usize::from(state.id) >= MAX_STATES {
                return Err(format!(
                    "`{}` has the number {}, but numbers are below {MAX_STATES}",
                    state.name, state.id
                ));
            }
            if state.name.is_empty() || state.name.len() > MAX_NAME {
                return Err(format!("the name of a state must have 1 to {MAX_NAME} bytes"));
            }
            let same = |other: &&DeclaredState| {
                other.id == state.id
                    || other.name == state.name
                    || other.kind == Kind::Timers && state.kind == other.kind
            };
            if let Some(other) = states.values().find(same) {
                return Err(format!(
                    "`{}` and `{}` share a number or a name, or both are timers",
                    other.name, state.name
                ));
            }
            states.insert(state.id, state);
        }
        Ok(Self(states))
    }

    /// A declared state.
    pub(crate) fn state(&self, id: StateId) -> Result<&DeclaredState> {
        self.0.get(&id.0).ok_or_else(|| Error::invalid(format!("no declared state has the number {}", id.0)))
    }

    /// All of them, in the order of their numbers.
    pub(crate) fn states(&self) -> impl Iterator<Item = &DeclaredState> {
        self.0.values()
    }

    /// The state of timers.
    pub(crate) fn timers(&self) -> Option<StateId> {
        self.0.values().find(|state| state.kind == Kind::Timers).map(|state| StateId(state.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastchangelog_format::ErrorKind;

    const STORED: &str = r#"[{"id":0,"name":"seen","kind":"value","key":"string","value":"int","encoding":1,"ttl":true,
        "versions":["int"]},{"id":3,"name":"$timers","kind":"timers"}]"#;

    #[test]
    fn invariant_1_a_processors_states_stay_what_they_are() {
        let stored = ProcessorCatalog::parse(STORED).unwrap();
        assert_eq!(stored.timers(), Some(StateId(3)));
        assert_eq!((stored.states().count(), stored.state(StateId(0)).unwrap().ttl), (2, true));
        assert!(stored.state(StateId(1)).is_err());
        let more = STORED.replace("]}", r#","bigint"]},{"id":1,"name":"log","kind":"list","encoding":1}"#);
        assert_eq!(
            ProcessorCatalog::declare(&more, &stored).unwrap().states().count(),
            3,
            "versions and states are added"
        );
        for (was, is, what) in [
            ("seen", "saw", "name"),
            (r#""kind":"value""#, r#""kind":"map""#, "kind"),
            (r#""ttl":true"#, r#""ttl":false"#, "time to live"),
            (r#""encoding":1"#, r#""encoding":2"#, "encoding"),
            (r#""id":3"#, r#""id":4"#, "the catalog lacks"),
        ] {
            let error = ProcessorCatalog::declare(&STORED.replace(was, is), &stored).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::SchemaMismatch, "{error}");
            assert!(error.message().contains(what), "{what}: {error}");
            assert!(error.message().contains("`seen`") || error.message().contains("`$timers`"), "{error}");
        }
    }

    #[test]
    fn a_processors_catalog_that_cannot_be_is_refused() {
        let none = ProcessorCatalog::default();
        for bad in [
            "{}",
            "keys: k string",
            r#"[{"id":0,"name":"a","kind":"heap"}]"#,
            r#"[{"id":1024,"name":"a","kind":"value"}]"#,
            r#"[{"id":0,"name":"","kind":"value"}]"#,
            r#"[{"id":0,"name":"a","kind":"value"},{"id":0,"name":"b","kind":"value"}]"#,
            r#"[{"id":0,"name":"a","kind":"value"},{"id":1,"name":"a","kind":"value"}]"#,
            r#"[{"id":0,"name":"a","kind":"timers"},{"id":1,"name":"b","kind":"timers"}]"#,
        ] {
            assert_eq!(ProcessorCatalog::declare(bad, &none).unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad}");
            assert_eq!(ProcessorCatalog::parse(bad).unwrap_err().kind(), ErrorKind::SchemaMismatch, "{bad}");
        }
    }
}
