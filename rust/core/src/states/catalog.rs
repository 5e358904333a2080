//! The states that a program or a processor has declared.
//!
//! Owns: their names, numbers and types, and the text that keeps them in handles.
//! Does not own: encoding keys and values (`columns::typed`), which types of a processor's state may follow each other
//! (its worker).
//!
//! Invariants:
//! 1. a number, once given to a state, is that state's forever, with the same kind; of a program's state with the same types;
//! 2. the text of a processor's catalog is kept as it was declared, with parts that are not known here.

use fastchangelog_columns::aggregate::schema_difference;
use fastchangelog_columns::codec::hash_key;
use fastchangelog_format::error::{Error, ErrorKind, Result};
use fastchangelog_format::model::StateId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most states of one folder.
const MAX_STATES: usize = 1024;
/// Most bytes of a name: names are in each handle.
const MAX_NAME: usize = 256;

/// How values are encoded now; see `columns::typed`.
const ENCODING: u8 = 1;

/// One declared state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Declared {
    pub(crate) id: u16,
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) key: String,
    pub(crate) value: String,
    /// Its values, elements, map entries or aggregates end.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) ttl: bool,
    /// How its values are encoded.
    #[serde(default)]
    pub(crate) encoding: u8,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// The kinds of states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Value,
    List,
    Map,
    Timers,
    /// Its entries are values that are combined.
    Aggregating,
}

impl Kind {
    /// As catalogs name it.
    fn name(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::List => "list",
            Self::Map => "map",
            Self::Timers => "timers",
            Self::Aggregating => "aggregating",
        }
    }
}

/// A state as a program declares it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Declaration<'a> {
    pub(crate) name: &'a str,
    pub(crate) kind: Kind,
    pub(crate) key: &'a str,
    pub(crate) value: &'a str,
    /// What it holds ends.
    pub(crate) ttl: bool,
}

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
        let declared = Self::read(text).map_err(|e| Error::invalid(format!("the states of a processor: {e}")))?;
        for (id, was) in &stored.0 {
            let Some(is) = declared.0.get(id) else {
                return Err(Error::schema(format!(
                    "the state `{}`, which is stored, is not in the catalog any more; keep its entry",
                    was.name
                )));
            };
            let parts = [
                ("the name", was.name.clone(), is.name.clone()),
                ("the kind", format!("{:?}", was.kind), format!("{:?}", is.kind)),
                ("a time to live", was.ttl.to_string(), is.ttl.to_string()),
                ("the encoding", was.encoding.to_string(), is.encoding.to_string()),
            ];
            if let Some((what, was_text, is_text)) = parts.into_iter().find(|(_, was, is)| was != is) {
                return Err(Error::schema(format!(
                    "the state `{}` was stored with {what} `{}`, now it is `{}`; declare it as it was, or take \
                     another name",
                    was.name,
                    was_text.to_lowercase(),
                    is_text.to_lowercase()
                )));
            }
        }
        Ok(declared)
    }

    /// The states of a handle's schema text.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        Self::read(text).map_err(|_| {
            Error::schema("the stored state is not one of a stateful processor")
                .with_remedy("restore the query that wrote it, or start with a new checkpoint")
        })
    }

    fn read(text: &str) -> Result<Self, String> {
        let mut states = BTreeMap::new();
        for state in serde_json::from_str::<Vec<DeclaredState>>(text).map_err(|e| e.to_string())? {
            if usize::from(state.id) >= MAX_STATES {
                return Err(format!("`{}` has the number {}, of {MAX_STATES} at most", state.name, state.id));
            }
            if state.name.is_empty() || state.name.len() > MAX_NAME {
                return Err(format!("the name of a state has 1 to {MAX_NAME} bytes"));
            }
            let same = |other: &&DeclaredState| {
                other.id == state.id
                    || other.name == state.name
                    || other.kind == Kind::Timers && state.kind == other.kind
            };
            if let Some(other) = states.values().find(same) {
                return Err(format!(
                    "`{}` and `{}` have one number or name, or are both timers",
                    other.name, state.name
                ));
            }
            states.insert(state.id, state);
        }
        Ok(Self(states))
    }

    /// A declared state.
    pub(crate) fn state(&self, id: StateId) -> Result<&DeclaredState> {
        self.0.get(&id.0).ok_or_else(|| Error::invalid(format!("there is no state number {}", id.0)))
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

/// All declared states.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Catalog(Vec<Declared>);

impl Catalog {
    /// The catalog of a handle's schema text.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let catalog: Vec<Declared> = serde_json::from_str(text).map_err(|e| {
            Error::invalid(format!("the handle is not of an embedded state, but of a query: its schema is {e}"))
        })?;
        match catalog.iter().find(|state| state.encoding != ENCODING) {
            Some(Declared { name, encoding, .. }) => Err(Error::schema(format!(
                "the state `{name}` has values in encoding {encoding}, this version of fastchangelog knows {ENCODING}; \
                 use the version that wrote it"
            ))),
            None => Ok(Self(catalog)),
        }
    }

    /// The text for handles, and its fingerprint.
    pub(crate) fn text(&self) -> Result<(u64, String)> {
        let text = serde_json::to_string(&self.0).map_err(Error::internal)?;
        Ok((hash_key(text.as_bytes()), text))
    }

    /// The states of which the entries end, and their kinds.
    pub(crate) fn ending(&self) -> Vec<(StateId, Kind)> {
        self.0.iter().filter(|state| state.ttl).map(|state| (StateId(state.id), state.kind)).collect()
    }

    /// The number of a state, and whether it is new; declares it if need be and if `may_add`.
    pub(crate) fn declare(&mut self, declared: Declaration<'_>, may_add: bool) -> Result<(StateId, bool)> {
        let Declaration { name, kind, key, value, ttl } = declared;
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(Error::invalid(format!("the name of a state has 1 to {MAX_NAME} bytes")));
        }
        if let Some(known) = self.0.iter().find(|d| d.name == name) {
            for (what, was, is) in
                [("kind", known.kind.name(), kind.name()), ("key", &known.key, key), ("value", &known.value, value)]
            {
                if was != is {
                    // Of aggregates, the text is long and the difference is short.
                    if let Some(difference) =
                        schema_difference(was, is).filter(|_| kind == Kind::Aggregating && what == "value")
                    {
                        return Err(Error::schema(format!(
                            "the state `{name}` was declared otherwise: {difference}; declare it as it was, or take \
                             another name"
                        )));
                    }
                    return Err(Error::schema(format!(
                        "the state `{name}` was declared with {what} `{was}`, now with `{is}`; declare it as it was, or \
                         take another name"
                    )));
                }
            }
            return match (known.ttl, ttl) {
                (true, false) => Err(Error::schema(format!(
                    "the state `{name}` was declared with a ttl, so each entry says when it ends, now without one; give \
                     ttl= of any length, or take another name"
                ))),
                (false, true) => Err(Error::schema(format!(
                    "the state `{name}` was declared without a ttl, so its entries do not say when they end, now with \
                     one; leave ttl= out, or copy the entries to a state of another name"
                ))),
                _ => Ok((StateId(known.id), false)),
            };
        }
        if !may_add {
            let names: Vec<_> = self.0.iter().map(|d| d.name.as_str()).collect();
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("there is no state `{name}`; there are: {}", names.join(", ")),
            ));
        }
        let id = u16::try_from(self.0.len()).ok().filter(|_| self.0.len() < MAX_STATES).ok_or_else(|| {
            Error::invalid(format!("{MAX_STATES} states are declared"))
                .with_remedy("put what belongs together under one key")
        })?;
        let [name, key, value] = [name, key, value].map(str::to_owned);
        self.0.push(Declared { id, name, kind, key, value, ttl, encoding: ENCODING });
        Ok((StateId(id), true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declare(catalog: &mut Catalog, name: &str, value: &str, may_add: bool) -> Result<StateId> {
        let declared = Declaration { name, kind: Kind::Value, key: "string", value, ttl: false };
        catalog.declare(declared, may_add).map(|(id, _)| id)
    }

    #[test]
    fn a_ttl_is_a_layout() {
        let mut catalog = Catalog::default();
        let lasting = declare(&mut catalog, "a", "bigint", true).unwrap();
        let ending = |name| Declaration { name, kind: Kind::List, key: "string", value: "bigint", ttl: true };
        let (id, is_new) = catalog.declare(ending("b"), true).unwrap();
        assert!(is_new && id != lasting);
        let (_, text) = catalog.text().unwrap();
        assert_eq!(
            text,
            r#"[{"id":0,"name":"a","kind":"value","key":"string","value":"bigint","encoding":1},{"id":1,"name":"b","kind":"list","key":"string","value":"bigint","ttl":true,"encoding":1}]"#,
            "without a ttl it is as ever"
        );
        let mut again = Catalog::parse(&text).unwrap();
        assert_eq!(again.ending(), [(id, Kind::List)]);
        assert_eq!(again.declare(ending("b"), false).unwrap(), (id, false));
        let wrong =
            [Declaration { ttl: false, ..ending("b") }, Declaration { name: "a", kind: Kind::Value, ..ending("b") }];
        for (declared, said) in wrong.into_iter().zip(["give ttl=", "leave ttl= out"]) {
            let error = again.declare(declared, true).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::SchemaMismatch);
            assert!(error.message().contains(said), "{error}");
        }
    }

    #[test]
    fn a_number_stays_with_its_state() {
        let mut catalog = Catalog::default();
        let a = declare(&mut catalog, "a", "bigint", true).unwrap();
        let b = declare(&mut catalog, "b", "bigint", true).unwrap();
        assert_ne!(a, b);
        let (id, text) = catalog.text().unwrap();
        let mut again = Catalog::parse(&text).unwrap();
        assert_eq!(again.text().unwrap().0, id);
        assert_eq!(declare(&mut again, "b", "bigint", false).unwrap(), b);
        let error = declare(&mut again, "b", "string", true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SchemaMismatch);
        assert!(error.message().contains("`bigint`") && error.message().contains("`string`"), "{error}");
        let error = declare(&mut again, "c", "string", false).unwrap_err();
        assert!(error.message().contains("a, b"), "{error}");
        assert_eq!(again, catalog, "what was refused left nothing");
    }

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
            (r#""id":3"#, r#""id":4"#, "not in the catalog"),
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

    #[test]
    fn the_schema_of_a_query_is_told_apart() {
        assert_eq!(Catalog::parse("keys: k string").unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn values_in_another_encoding_are_not_guessed_at() {
        let mut catalog = Catalog::default();
        declare(&mut catalog, "names", "string", true).unwrap();
        let (_, text) = catalog.text().unwrap();
        for other in [text.replace(r#""encoding":1"#, r#""encoding":2"#), text.replace(r#","encoding":1"#, "")] {
            let error = Catalog::parse(&other).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::SchemaMismatch, "{other}");
            assert!(error.message().contains("`names`") && error.message().contains("version"), "{error}");
        }
    }
}
