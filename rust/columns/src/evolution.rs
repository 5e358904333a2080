//! Values of an earlier type as values of a newer one.
//!
//! Owns: which changes of a value's type are allowed, the conversion of a column, the error that names every refused
//! change.
//! Does not own: encoded values (`versioned`), the earlier types of a state (its catalog).
//!
//! Fields of a struct are matched by their names: a new one is null, one that is gone is dropped, their order is free.
//! That holds at any depth, in elements of arrays and values of maps too. A type may become a wider one:
//!
//! ```text
//! tinyint → smallint → int → bigint → float → double
//! integer → decimal(p,s) that holds every value      decimal(p,s) → decimal(p+n,s+m), n ≥ m
//! string ⇄ binary                                    void → any
//! ```
//!
//! These are the promotions of Spark's Avro encoding, and those of decimals. Spark accepts other changes because two of
//! its types are one type of Avro: bigint to timestamp, int to tinyint. They change what a value means, or cut it off,
//! and are refused here.
//!
//! Invariants:
//! 1. nothing is lost but the digits of an integer that a float or double cannot hold;
//! 2. a column is converted to exactly the newer type, or refused before any value is read. One thing is known from
//!    values only: a null where the newer type has none.

use super::arrays::{conform, mismatch, same_values, type_text};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, GenericListArray, MapArray, OffsetSizeTrait, StructArray, new_null_array};
use arrow_cast::CastOptions;
use arrow_schema::{ArrowError, DataType, FieldRef, Fields};
use fastchangelog_format::{Error, Result};
use std::sync::Arc;

/// How values of one type become values of another.
#[derive(Debug)]
pub struct Evolution {
    from: DataType,
    to: DataType,
    step: Step,
}

#[derive(Debug)]
enum Step {
    /// The values are the same.
    Same,
    /// Wider values.
    Widen,
    /// There were no values.
    Null,
    /// Of each field, which earlier one it is; none for a new one.
    Struct(Vec<Option<(usize, Step)>>),
    /// The change of the elements of a list.
    List(Box<Step>),
    /// The change of the keys and the values of a map.
    Map(Box<[Step; 2]>),
}

impl Evolution {
    /// The conversion of values of type `from` to type `to`. The error, of kind `SchemaMismatch`, names each field that
    /// has changed in a way that is not allowed.
    pub fn new(from: &DataType, to: &DataType) -> Result<Self> {
        let mut refused = Vec::new();
        let step = step("", from, to, &mut refused);
        if refused.is_empty() {
            return Ok(Self { from: from.clone(), to: to.clone(), step });
        }
        Err(Error::schema(format!(
            "values of type {} cannot be read as {}: {}",
            type_text(from),
            type_text(to),
            refused.join("; ")
        ))
        .with_remedy("keep the type of such a field, or give the field another name"))
    }

    /// True if every value is the same as before.
    pub fn is_identity(&self) -> bool {
        matches!(self.step, Step::Same)
    }

    /// A column of the earlier type as one of the newer type.
    pub fn apply(&self, values: &ArrayRef) -> Result<ArrayRef> {
        if !same_values(values.data_type(), &self.from) {
            return Err(mismatch(values.data_type(), &self.from));
        }
        apply(&self.step, values, &self.to)
    }
}

fn step(path: &str, from: &DataType, to: &DataType, refused: &mut Vec<String>) -> Step {
    match (from, to) {
        _ if same_values(from, to) => Step::Same,
        (DataType::Null, _) => Step::Null,
        (DataType::Struct(old), DataType::Struct(new)) => fields_step(path, old, new, refused),
        (DataType::List(old), DataType::List(new)) | (DataType::LargeList(old), DataType::LargeList(new)) => {
            Step::List(Box::new(step(&joined(path, "element"), old.data_type(), new.data_type(), refused)))
        }
        (DataType::Map(old, _), DataType::Map(new, _)) => match (entry_types(old), entry_types(new)) {
            (Some(old), Some(new)) => {
                // Keys that were different must stay different: no float is wide enough for that.
                let keys = if is_exact(old[0], new[0]) {
                    step(&joined(path, "key"), old[0], new[0], refused)
                } else {
                    refuse(&joined(path, "key"), old[0], new[0], refused)
                };
                Step::Map(Box::new([keys, step(&joined(path, "value"), old[1], new[1], refused)]))
            }
            _ => refuse(path, from, to, refused),
        },
        _ if is_wider(from, to) => Step::Widen,
        _ => refuse(path, from, to, refused),
    }
}

fn fields_step(path: &str, old: &Fields, new: &Fields, refused: &mut Vec<String>) -> Step {
    for fields in [old, new] {
        for (i, field) in fields.iter().enumerate() {
            if fields[..i].iter().any(|other| other.name() == field.name()) {
                refused.push(format!("field `{}` is there twice", joined(path, field.name())));
            }
        }
    }
    let of_field = |field: &FieldRef, refused: &mut Vec<String>| {
        let path = joined(path, field.name());
        let Some((i, old)) = old.find(field.name()) else {
            if !field.is_nullable() {
                refused.push(format!("field `{path}` is new and must be nullable"));
            }
            return None;
        };
        Some((i, step(&path, old.data_type(), field.data_type(), refused)))
    };
    Step::Struct(new.iter().map(|field| of_field(field, refused)).collect())
}

fn refuse(path: &str, from: &DataType, to: &DataType, refused: &mut Vec<String>) -> Step {
    let what = if path.is_empty() { "the value".to_owned() } else { format!("field `{path}`") };
    refused.push(format!("{what} was {} and is now {}", type_text(from), type_text(to)));
    Step::Same
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn entry_types(entries: &FieldRef) -> Option<[&DataType; 2]> {
    match entries.data_type() {
        DataType::Struct(fields) if fields.len() == 2 => Some([fields[0].data_type(), fields[1].data_type()]),
        _ => None,
    }
}

/// Decimal digits that every value of an integer type fits into.
fn digits(data_type: &DataType) -> Option<i16> {
    Some(match data_type {
        DataType::Int8 => 3,
        DataType::Int16 => 5,
        DataType::Int32 => 10,
        DataType::Int64 => 19,
        _ => return None,
    })
}

fn is_wider(from: &DataType, to: &DataType) -> bool {
    match to {
        DataType::Float32 | DataType::Float64 if digits(from).is_some() => true,
        _ => is_exact(from, to),
    }
}

/// True if different values stay different.
fn is_exact(from: &DataType, to: &DataType) -> bool {
    match (from, to) {
        (DataType::Float32, DataType::Float64) => true,
        (a, b) if is_bytes(a) && is_bytes(b) => true,
        (DataType::Decimal128(p, s), DataType::Decimal128(q, t)) => {
            t >= s && i16::from(*q) - i16::from(*t) >= i16::from(*p) - i16::from(*s)
        }
        (integer, DataType::Decimal128(q, t)) => {
            *t >= 0 && digits(integer).is_some_and(|digits| digits <= i16::from(*q) - i16::from(*t))
        }
        (a, b) => same_values(a, b) || digits(a).zip(digits(b)).is_some_and(|(a, b)| a < b),
    }
}

fn is_bytes(data_type: &DataType) -> bool {
    use DataType::{Binary, BinaryView, LargeBinary, LargeUtf8, Utf8, Utf8View};
    matches!(data_type, Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView)
}

fn apply(step: &Step, values: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    Ok(match (step, to) {
        (Step::Same, _) => conform(values, to)?,
        (Step::Widen, _) => {
            let options = CastOptions { safe: false, ..CastOptions::default() };
            arrow_cast::cast_with_options(values, to, &options)?
        }
        (Step::Struct(steps), DataType::Struct(fields)) => {
            let found = values.as_struct();
            let column = |(step, field): (&Option<(usize, Step)>, &FieldRef)| match step {
                Some((i, step)) => apply(step, found.column(*i), field.data_type()),
                None => Ok(new_null_array(field.data_type(), values.len())),
            };
            let columns = steps.iter().zip(fields).map(column).collect::<Result<_>>()?;
            let nulls = found.nulls().cloned();
            let made = StructArray::try_new_with_length(fields.clone(), columns, nulls, values.len());
            Arc::new(made.map_err(unexpected_null)?)
        }
        (Step::List(step), DataType::List(field)) => list::<i32>(step, values, field)?,
        (Step::List(step), DataType::LargeList(field)) => list::<i64>(step, values, field)?,
        (Step::Map(steps), DataType::Map(entries, sorted)) => {
            let DataType::Struct(fields) = entries.data_type() else {
                return Err(Error::internal("a map of entries that are no struct"));
            };
            let map = values.as_map();
            let columns = [map.keys(), map.values()].into_iter().zip(steps.iter()).zip(fields);
            let columns = columns.map(|((column, step), field)| apply(step, column, field.data_type()));
            let columns = columns.collect::<Result<_>>()?;
            let made = StructArray::try_new_with_length(fields.clone(), columns, None, map.entries().len());
            let (offsets, nulls) = (map.offsets().clone(), map.nulls().cloned());
            let made = made.and_then(|made| MapArray::try_new(Arc::clone(entries), offsets, made, nulls, *sorted));
            Arc::new(made.map_err(unexpected_null)?)
        }
        (Step::Null, _) => new_null_array(to, values.len()),
        _ => return Err(Error::internal(format!("a conversion of another type than {}", type_text(to)))),
    })
}

fn list<O: OffsetSizeTrait>(step: &Step, values: &ArrayRef, field: &FieldRef) -> Result<ArrayRef> {
    let list = values.as_list::<O>();
    let elements = apply(step, list.values(), field.data_type())?;
    let (offsets, nulls) = (list.offsets().clone(), list.nulls().cloned());
    let made = GenericListArray::<O>::try_new(Arc::clone(field), offsets, elements, nulls);
    Ok(Arc::new(made.map_err(unexpected_null)?))
}

/// Arrow's message names the field.
fn unexpected_null(error: ArrowError) -> Error {
    Error::schema(format!("an earlier value has a null where the newer type allows none: {error}"))
        .with_remedy("declare the field nullable")
        .with_source(error)
}

#[cfg(test)]
#[path = "evolution_tests.rs"]
mod tests;
