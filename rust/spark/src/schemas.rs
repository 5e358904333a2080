//! The schemas of a store's rows, as `_stateSchema` and `_metadata/schema` hold them.
//!
//! Owns: versions 1 to 3 of that file.
//! Does not own: Spark's types in JSON, which are handed on as text.

use crate::java::DataInput;
use fastchangelog_format::error::Result;

/// The name under which Spark keeps the only family of a store without families.
const DEFAULT_FAMILY: &str = "default";

/// A column family of a store: a state variable of a processor, or the whole store of another operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnFamily {
    /// Its name.
    pub name: String,
    /// The key's type, in Spark's JSON.
    pub key_type: String,
    /// The value's type, in Spark's JSON.
    pub value_type: String,
    /// How keys are encoded, in Spark's JSON; empty in versions that did not say.
    pub key_encoder: String,
}

/// The families in a schema file.
pub(crate) fn families(name: &str, file: &[u8]) -> Result<Vec<ColumnFamily>> {
    let mut input = DataInput::new(name, file);
    let version = input.utf()?;
    let only = |key_type, value_type| {
        vec![ColumnFamily { name: DEFAULT_FAMILY.to_owned(), key_type, value_type, key_encoder: String::new() }]
    };
    match version.as_str() {
        "v1" => Ok(only(input.utf()?, input.utf()?)),
        "v2" => Ok(only(input.utf_parts()?, input.utf_parts()?)),
        "v3" => third(&mut input),
        _ => Err(input.corrupt(format_args!("a schema of the unknown version {version:?}"))),
    }
}

fn third(input: &mut DataInput<&[u8]>) -> Result<Vec<ColumnFamily>> {
    let count = input.int()?;
    let mut found = Vec::new();
    for _ in 0..count {
        let name = input.utf()?;
        let _key_schema_id = input.short()?;
        let key_type = input.utf_parts()?;
        let _value_schema_id = input.short()?;
        let value_type = input.utf_parts()?;
        let key_encoder = input.utf_parts()?;
        let _user_key_encoder = input.utf_parts()?;
        found.push(ColumnFamily { name, key_type, value_type, key_encoder });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utf(text: &str) -> Vec<u8> {
        [&(text.len() as u16).to_be_bytes(), text.as_bytes()].concat()
    }

    fn parts(text: &str) -> Vec<u8> {
        [vec![0, 0, 0, 1], utf(text)].concat()
    }

    #[test]
    fn every_version_is_read() {
        let first = [utf("v1"), utf("K"), utf("V")].concat();
        let second = [utf("v2"), parts("K"), parts("V")].concat();
        for file in [first, second] {
            let found = families("schema", &file).unwrap();
            assert_eq!((found[0].key_type.as_str(), found[0].value_type.as_str()), ("K", "V"));
        }
        let family =
            |name| [utf(name), vec![0, 0], parts("K"), vec![0, 1], parts("V"), parts("E"), parts("{}")].concat();
        let third = [utf("v3"), vec![0, 0, 0, 2], family("a"), family("b")].concat();
        let found = families("schema", &third).unwrap();
        assert_eq!(found.iter().map(|f| f.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(found[1].key_encoder, "E");
        for cut in 0..third.len() {
            assert!(families("schema", &third[..cut]).is_err());
        }
        assert!(families("schema", &utf("v4")).is_err());
    }
}
