//! The states that a program has declared.
//!
//! Owns: their names, numbers and types, and the text that keeps them in handles.
//! Does not own: encoding keys and values (`columns::typed`).
//!
//! Invariant: a number, once given to a state, is that state's forever, with the same types.

use fastchangelog_columns::aggregate::schema_difference;
use fastchangelog_columns::codec::hash_key;
use fastchangelog_format::error::{Error, ErrorKind, Result};
use fastchangelog_format::model::StateId;
use serde::{Deserialize, Serialize};

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
    pub(crate) kind: String,
    pub(crate) key: String,
    pub(crate) value: String,
    /// How its values are encoded.
    #[serde(default)]
    pub(crate) encoding: u8,
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

    /// The number of a state; declares it if need be and if `may_add`.
    pub(crate) fn declare(
        &mut self,
        name: &str,
        kind: &str,
        (key, value): (&str, &str),
        may_add: bool,
    ) -> Result<StateId> {
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(Error::invalid(format!("the name of a state has 1 to {MAX_NAME} bytes")));
        }
        if let Some(known) = self.0.iter().find(|d| d.name == name) {
            for (what, was, is) in
                [("kind", &*known.kind, kind), ("key", &known.key, key), ("value", &known.value, value)]
            {
                if was != is {
                    // Of aggregates, the text is long and the difference is short.
                    if let Some(difference) =
                        schema_difference(was, is).filter(|_| kind == "aggregating" && what == "value")
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
            return Ok(StateId(known.id));
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
        let texts = [name, kind, key, value].map(str::to_owned);
        let [name, kind, key, value] = texts;
        self.0.push(Declared { id, name, kind, key, value, encoding: ENCODING });
        Ok(StateId(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stays_with_its_state() {
        let mut catalog = Catalog::default();
        let a = catalog.declare("a", "value", ("string", "bigint"), true).unwrap();
        let b = catalog.declare("b", "value", ("string", "bigint"), true).unwrap();
        assert_ne!(a, b);
        let (id, text) = catalog.text().unwrap();
        let mut again = Catalog::parse(&text).unwrap();
        assert_eq!(again.text().unwrap().0, id);
        assert_eq!(again.declare("b", "value", ("string", "bigint"), false).unwrap(), b);
        let error = again.declare("b", "value", ("string", "string"), true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SchemaMismatch);
        assert!(error.message().contains("`bigint`") && error.message().contains("`string`"), "{error}");
        let error = again.declare("c", "value", ("string", "string"), false).unwrap_err();
        assert!(error.message().contains("a, b"), "{error}");
        assert_eq!(again, catalog, "what was refused left nothing");
    }

    #[test]
    fn a_querys_schema_is_told_apart() {
        assert_eq!(Catalog::parse("keys: k string").unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn values_in_another_encoding_are_not_guessed_at() {
        let mut catalog = Catalog::default();
        catalog.declare("names", "value", ("string", "string"), true).unwrap();
        let (_, text) = catalog.text().unwrap();
        for other in [text.replace(r#""encoding":1"#, r#""encoding":2"#), text.replace(r#","encoding":1"#, "")] {
            let error = Catalog::parse(&other).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::SchemaMismatch, "{other}");
            assert!(error.message().contains("`names`") && error.message().contains("version"), "{error}");
        }
    }
}
