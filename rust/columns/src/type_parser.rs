//! Types as texts that can be read back.
//!
//! Owns: both directions, for the types of values that a catalog keeps. Does not own: the names in errors and fingerprints
//! (`arrays::type_text`), which types may follow each other (`evolution`).
//!
//! The texts are those of Spark's DDL. A field's name that is not a plain identifier is in backticks, each backtick in it
//! doubled. A text says nothing about physical variants (large, view, dictionary) and the label of a time zone: it reads back
//! as the plain variant. Invariant: values of the type that is read back have the same bytes.

use super::arrays::type_text;
use arrow_schema::{DataType, Field, Fields, IntervalUnit, TimeUnit};
use fastchangelog_format::{Error, Result};
use std::sync::Arc;

/// The text of a type; see the module.
pub fn declared_text(data_type: &DataType) -> String {
    match data_type {
        DataType::Dictionary(_, values) => declared_text(values),
        DataType::List(field) | DataType::LargeList(field) => format!("array<{}>", declared_text(field.data_type())),
        DataType::Struct(fields) => {
            let field = |f: &Arc<Field>| format!("{}:{}", quoted(f.name()), declared_text(f.data_type()));
            format!("struct<{}>", fields.iter().map(field).collect::<Vec<_>>().join(","))
        }
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(kv) if kv.len() == 2 => {
                format!("map<{},{}>", declared_text(kv[0].data_type()), declared_text(kv[1].data_type()))
            }
            _ => type_text(data_type),
        },
        DataType::Time32(unit) => format!("time32[{unit:?}]"),
        other => type_text(other),
    }
}

/// The type of a text. Fails for texts of types that it does not know.
pub fn parse_type(text: &str) -> Result<DataType> {
    let mut parser = Parser { rest: text };
    let found = parser.read().filter(|_| parser.rest.is_empty());
    found.ok_or_else(|| {
        Error::schema(format!(
            "stored values have the unknown type `{text}`; upgrade fastchangelog to the release that wrote them"
        ))
    })
}

fn is_plain(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_alphabetic() || c == '_') && chars.all(|c| c.is_alphanumeric() || c == '_')
}

fn quoted(name: &str) -> String {
    if is_plain(name) { name.to_owned() } else { format!("`{}`", name.replace('`', "``")) }
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn read(&mut self) -> Option<DataType> {
        if self.take("array<") {
            let element = self.read()?;
            return self.take(">").then(|| DataType::List(Arc::new(Field::new("element", element, true))));
        }
        if self.take("map<") {
            let key = self.read()?;
            let value = self.take(",").then(|| self.read())??;
            let entries = vec![Field::new("key", key, false), Field::new("value", value, true)];
            let entries = Field::new("entries", DataType::Struct(entries.into()), false);
            return self.take(">").then(|| DataType::Map(Arc::new(entries), false));
        }
        if self.take("struct<") {
            let mut fields = Vec::new();
            while !self.take(">") {
                if !fields.is_empty() && !self.take(",") {
                    return None;
                }
                let name = self.name()?;
                fields.push(Field::new(name, self.read()?, true));
            }
            return Some(DataType::Struct(Fields::from(fields)));
        }
        let flat = self.word();
        Self::flat(flat)
    }

    fn take(&mut self, token: &str) -> bool {
        let after = self.rest.strip_prefix(token);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    /// The name of a field, and the colon after it.
    fn name(&mut self) -> Option<String> {
        if !self.take("`") {
            let (name, rest) = self.rest.split_once(':')?;
            self.rest = rest;
            return is_plain(name).then(|| name.to_owned());
        }
        let mut name = String::new();
        loop {
            let (part, rest) = self.rest.split_once('`')?;
            name.push_str(part);
            self.rest = rest;
            if !self.take("`") {
                return self.take(":").then_some(name);
            }
            name.push('`');
        }
    }

    /// The name of a type without parts, with its parentheses.
    fn word(&mut self) -> &'a str {
        let mut depth = 0;
        let end = self.rest.find(|c| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth == 0 && matches!(c, ',' | '>')
        });
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        word
    }

    fn flat(name: &str) -> Option<DataType> {
        let utc = || Some("UTC".into());
        Some(match name {
            "void" => DataType::Null,
            "boolean" => DataType::Boolean,
            "tinyint" => DataType::Int8,
            "smallint" => DataType::Int16,
            "int" => DataType::Int32,
            "bigint" => DataType::Int64,
            "float" => DataType::Float32,
            "double" => DataType::Float64,
            "string" => DataType::Utf8,
            "binary" => DataType::Binary,
            "date" => DataType::Date32,
            "timestamp" => DataType::Timestamp(TimeUnit::Microsecond, utc()),
            "timestamp_ntz" => DataType::Timestamp(TimeUnit::Microsecond, None),
            "time(ns)" => DataType::Time64(TimeUnit::Nanosecond),
            "time(us)" => DataType::Time64(TimeUnit::Microsecond),
            "interval day to second" => DataType::Duration(TimeUnit::Microsecond),
            "interval year to month" => DataType::Interval(IntervalUnit::YearMonth),
            "interval" => DataType::Interval(IntervalUnit::MonthDayNano),
            other => {
                if let Some(parts) = other.strip_prefix("decimal(").and_then(|parts| parts.strip_suffix(')')) {
                    let (precision, scale) = parts.split_once(',')?;
                    return Some(DataType::Decimal128(precision.parse().ok()?, scale.parse().ok()?));
                }
                let (name, unit) = other.strip_suffix(']')?.split_once('[')?;
                let unit = match unit {
                    "Second" => TimeUnit::Second,
                    "Millisecond" => TimeUnit::Millisecond,
                    "Nanosecond" => TimeUnit::Nanosecond,
                    _ => return None,
                };
                match name {
                    "timestamp" => DataType::Timestamp(unit, utc()),
                    "timestamp_ntz" => DataType::Timestamp(unit, None),
                    "time32" => DataType::Time32(unit),
                    _ => return None,
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrays::same_values;
    use crate::plain_values::{random_type, seeded};

    #[test]
    fn random_types_read_back() {
        let mut rng = seeded();
        for _ in 0..2_000 {
            let data_type = random_type(&mut rng, 4);
            let read = parse_type(&declared_text(&data_type)).unwrap();
            assert!(same_values(&read, &data_type), "{data_type}");
            assert_eq!(declared_text(&read), declared_text(&data_type));
        }
    }

    #[test]
    fn any_name_of_a_field_reads_back() {
        for name in ["", "a", "_1", "1", "a b", "a:b", "a`b", "`", "``", "a,b<c>", "Ünïcode", "a\nb"] {
            let fields = vec![Field::new(name, DataType::Int32, true), Field::new("last", DataType::Utf8, true)];
            let data_type = DataType::Struct(fields.into());
            assert_eq!(parse_type(&declared_text(&data_type)).unwrap(), data_type, "{name}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in
            ["", "heap", "array<int", "array<>", "map<int>", "struct<a int>", "struct<a:int,>", "int>", "decimal(1)"]
        {
            assert!(parse_type(text).unwrap_err().message().contains("unknown type"), "{text}");
        }
    }
}
