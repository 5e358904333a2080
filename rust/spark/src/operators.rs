//! The stateful operators of a query, as `state/OPERATOR/_metadata` describes them.
//!
//! Owns: both versions of that file.
//! Does not own: schemas (`schemas`), the choice of a file (`checkpoint`).

use crate::logs::{foreign, parsed};
use fastchangelog_format::error::Result;
use serde::Deserialize;

/// A stateful operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operator {
    /// Spark's number.
    pub number: u64,
    /// Spark's name, such as `stateStoreSave`.
    pub name: String,
    /// Its stores; a join has several.
    pub stores: Vec<StateStoreInfo>,
    /// What a `transformWithState` says of itself, as JSON; empty for others.
    pub properties: String,
}

/// A store of an operator.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StateStoreInfo {
    /// `default`, or the name of one store of a join.
    pub store_name: String,
    /// The partitions, and so the tasks, of the operator.
    pub num_partitions: u32,
    /// Columns of the key by which the store may be searched.
    #[serde(default)]
    pub num_cols_prefix_key: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    operator_info: OperatorInfo,
    state_store_info: Vec<StateStoreInfo>,
    #[serde(default)]
    operator_properties_json: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OperatorInfo {
    operator_id: u64,
    operator_name: String,
}

/// The description in a file.
pub(crate) fn operator(name: &str, bytes: &[u8]) -> Result<Operator> {
    let line = bytes.iter().position(|b| *b == b'\n').unwrap_or(bytes.len());
    if !matches!(&bytes[..line], b"v1" | b"v2") {
        return Err(foreign(name, "it has no version of Spark 4"));
    }
    let found: Written = parsed(name, &bytes[(line + 1).min(bytes.len())..])?;
    Ok(Operator {
        number: found.operator_info.operator_id,
        name: found.operator_info.operator_name,
        stores: found.state_store_info,
        properties: found.operator_properties_json,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_read() {
        let v1 = br#"v1
{"operatorInfo":{"operatorId":0,"operatorName":"stateStoreSave"},"stateStoreInfo":[{"storeName":"default","numColsPrefixKey":0,"numPartitions":2}]}"#;
        let found = operator("metadata", v1).unwrap();
        assert_eq!((found.number, found.name.as_str(), found.properties.as_str()), (0, "stateStoreSave", ""));
        assert_eq!(found.stores[0].num_partitions, 2);
        let v2 = br#"v2
{"operatorInfo":{"operatorId":1,"operatorName":"transformWithStateExec"},"stateStoreInfo":[],"operatorPropertiesJson":"{}"}"#;
        assert_eq!(operator("0", v2).unwrap().properties, "{}");
    }

    #[test]
    fn p9_foreign_files_are_errors() {
        for text in [&b""[..], b"v1", b"v3\n{}", b"v1\n{}"] {
            assert!(operator("state/0/_metadata/metadata", text).is_err());
        }
    }
}
