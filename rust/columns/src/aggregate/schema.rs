//! A readable description of a plan's row layout, and its fingerprint.
//!
//! Owns: the readable description of a plan's rows, its fingerprint, and the difference of two descriptions.
//! Does not own: the refusal of a state with another fingerprint (`shard`), the equality of types (`type_texts`).

use super::spec::AggCall;
use super::type_texts::same_values;
use super::windows::Windows;
use crate::arrays::type_text;
use crate::codec::hash_key;
use arrow_schema::{DataType, Fields};
use serde::{Deserialize, Serialize};

/// Version of the row layout and of the key encoding.
const LAYOUT: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Description {
    layout: u32,
    keys: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    windows: Option<Windows>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    session_windows: bool,
    aggregates: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Part {
    identity: String,
    #[serde(rename = "fn")]
    function: String,
    types: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ansi: Option<bool>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    ignore_nulls: bool,
}

impl Description {
    /// Describes keys and calls; `functions` has the name of each call's function, and whether ANSI mode matters to it.
    pub(super) fn new(
        keys: &Fields,
        (windows, session_windows): (Option<Windows>, bool),
        calls: &[AggCall],
        input: &[DataType],
        functions: &[(&str, bool)],
    ) -> Self {
        let mut aggregates: Vec<_> = calls
            .iter()
            .zip(functions)
            .map(|(call, (name, depends_on_ansi))| Part {
                identity: call.identity.clone(),
                function: (*name).to_owned(),
                types: call.args.iter().map(|i| type_text(&input[*i])).collect(),
                ansi: depends_on_ansi.then_some(call.ansi),
                ignore_nulls: call.ignore_nulls,
            })
            .collect();
        // Stable, as is the placement of slots: calls of one identity keep their order.
        aggregates.sort_by(|a, b| a.identity.cmp(&b.identity));
        let keys = keys.iter().map(|f| type_text(f.data_type())).collect();
        Self { layout: LAYOUT, keys, windows, session_windows, aggregates }
    }

    pub(super) fn text(&self) -> String {
        // Plain strings and numbers always have a JSON form.
        serde_json::to_string(self).unwrap_or_default()
    }

    pub(super) fn id(&self) -> u64 {
        hash_key(self.text().as_bytes())
    }
}

/// True if ANSI mode is all that differs between two texts of [`super::AggPlan::schema`]: the rows have the same bytes.
pub fn differ_in_ansi_alone(old: &str, new: &str) -> bool {
    let (Some(mut old), Some(mut new)) = (parse(old), parse(new)) else {
        return false;
    };
    let differ = !changes(&old, &new).is_empty();
    for part in old.aggregates.iter_mut().chain(&mut new.aggregates) {
        part.ansi = None;
    }
    differ && changes(&old, &new).is_empty()
}

/// Says in one sentence what changed from `old` to `new`, two texts of [`super::AggPlan::schema`]; none when nothing
/// did: names inside of types may differ.
pub fn schema_difference(old: &str, new: &str) -> Option<String> {
    if old == new {
        return None;
    }
    let (Some(old), Some(new)) = (parse(old), parse(new)) else {
        return Some("the description of the stored state is not readable by this version of fastchangelog".into());
    };
    Some(changes(&old, &new).join("; ")).filter(|said| !said.is_empty())
}

fn parse(text: &str) -> Option<Description> {
    serde_json::from_str(text).ok()
}

fn changes(old: &Description, new: &Description) -> Vec<String> {
    let mut changes = Vec::new();
    if old.layout != new.layout {
        changes.push(format!("the layout of the stored rows changed from {} to {}", old.layout, new.layout));
    }
    if !same_types(&old.keys, &new.keys) {
        changes.push(format!("key types changed from ({}) to ({})", old.keys.join(", "), new.keys.join(", ")));
    }
    if old.windows != new.windows {
        changes.push(format!("windows changed from {} to {}", windows_text(old.windows), windows_text(new.windows)));
    }
    if old.session_windows != new.session_windows {
        let kind = |merged| if merged { "session windows" } else { "groups of equal keys" };
        changes.push(format!("{} became {}", kind(old.session_windows), kind(new.session_windows)));
    }
    let aggregates = aggregate_changes(&old.aggregates, &new.aggregates);
    if !aggregates.is_empty() {
        changes.push(format!("aggregates changed: {}", aggregates.join(", ")));
    }
    changes
}

fn same_types(old: &[String], new: &[String]) -> bool {
    old.len() == new.len() && old.iter().zip(new).all(|(old, new)| same_values(old, new))
}

fn aggregate_changes(old: &[Part], new: &[Part]) -> Vec<String> {
    let find = |parts: &[Part], identity: &str| parts.iter().find(|p| p.identity == identity).cloned();
    let count = |parts: &[Part], identity: &str| parts.iter().filter(|p| p.identity == identity).count();
    let mut changes = Vec::new();
    for part in old {
        let name = format!("`{}`", part.identity);
        match find(new, &part.identity) {
            None => changes.push(format!("{name} was removed")),
            Some(other) if !same_types(&part.types, &other.types) => changes.push(format!(
                "the column of {name} changed from {} to {}",
                part.types.join(", "),
                other.types.join(", ")
            )),
            Some(other) if other.ansi != part.ansi => changes.push(format!(
                "{name} ran with ANSI mode {} and now runs with it {}",
                on_off(part.ansi),
                on_off(other.ansi)
            )),
            Some(other) if other.ignore_nulls != part.ignore_nulls => {
                changes.push(format!("{name} changed whether it ignores nulls"));
            }
            Some(other) if other.function != part.function => {
                changes.push(format!("{name} changed from {} to {}", part.function, other.function));
            }
            Some(_) if count(old, &part.identity) != count(new, &part.identity) => {
                changes.push(format!("the number of {name} changed"));
            }
            Some(_) => {}
        }
    }
    changes.extend(new.iter().filter(|p| find(old, &p.identity).is_none()).map(|p| format!("`{}` added", p.identity)));
    changes.dedup();
    changes
}

fn windows_text(windows: Option<Windows>) -> String {
    windows.map_or("none".into(), |Windows { size, slide, start }| {
        format!("(length {size} µs, slide {slide} µs, start {start} µs)")
    })
}

fn on_off(ansi: Option<bool>) -> &'static str {
    if ansi.unwrap_or_default() { "on" } else { "off" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(identity: &str, types: &[&str]) -> Part {
        Part {
            identity: identity.into(),
            function: "sum".into(),
            types: types.iter().map(|t| (*t).to_owned()).collect(),
            ansi: Some(true),
            ignore_nulls: false,
        }
    }

    fn description(keys: &[&str], aggregates: Vec<Part>) -> String {
        let keys = keys.iter().map(|k| (*k).to_owned()).collect();
        Description { layout: LAYOUT, keys, windows: None, session_windows: false, aggregates }.text()
    }

    #[test]
    fn differences_are_said_in_one_sentence() {
        let old = description(&["bigint"], vec![part("count(1)", &[]), part("sum(price)", &["int"])]);
        let new = description(&["bigint"], vec![part("avg(price)", &["int"]), part("count(1)", &[])]);
        assert_eq!(
            schema_difference(&old, &new).unwrap(),
            "aggregates changed: `sum(price)` was removed, `avg(price)` added"
        );
        assert_eq!(schema_difference(&old, &old), None);
        let new = description(&["string", "int"], vec![part("count(1)", &[]), part("sum(price)", &["bigint"])]);
        assert_eq!(
            schema_difference(&old, &new).unwrap(),
            "key types changed from (bigint) to (string, int); aggregates changed: the column of `sum(price)` changed from int to bigint"
        );
        let mut off = part("sum(price)", &["int"]);
        off.ansi = Some(false);
        let new = description(&["bigint"], vec![part("count(1)", &[]), off]);
        assert!(schema_difference(&old, &new).unwrap().contains("ANSI mode on and now runs with it off"));
        let sum = |ansi| description(&["bigint"], vec![Part { ansi: Some(ansi), ..part("sum(price)", &["int"]) }]);
        assert!(differ_in_ansi_alone(&sum(true), &sum(false)));
        assert!(!differ_in_ansi_alone(&sum(true), &sum(true)));
        assert!(!differ_in_ansi_alone(&old, &sum(false)), "an aggregate was removed, too");
        let keyed = |key| description(&[key], vec![part("max_by(s, t)", &["struct<a:int>", "int"])]);
        let (was, now) = ("struct<a:string,b:int>", "struct<x:string,b:int>");
        assert_eq!(schema_difference(&keyed(was), &keyed(now)), None, "the same bytes under other names");
        let said = schema_difference(&keyed(was), &keyed("struct<b:string,a:int>")).unwrap();
        assert!(said.starts_with("key types changed from (struct<a:string,b:int>) to"), "{said}");
        assert!(schema_difference("?", &new).unwrap().contains("not readable"));
    }
}
