//! Properties of rows on their way to a processor, whatever they contain.
//!
//! Owns: payloads of invented bytes, and the way of columns through split and grouping.
//! Does not own: the source of columns (`columns`), the forging of checksums (`forge`).
//!
//! 1. A payload is refused as damaged or as one of another schema, or it is read; nothing panics, and what is allocated
//!    is bounded by its bytes.
//! 2. What was read is grouped: each row that is not late is in exactly one chunk, keys ascend, and columns are valid.
//! 3. Its rows can be split and grouped again; then each row is under the key that it has.

use crate::forge::{FACTOR, GROUND, both, fix_row_payload, peak_of, quietly};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Fields, Schema, TimeUnit};
use fastchangelog_columns::codec::KeyCodec;
use fastchangelog_columns::row_chunks::RowChunk;
use fastchangelog_columns::row_groups::RowGrouper;
use fastchangelog_columns::row_split::RowSplitter;
use fastchangelog_format::{ErrorKind, Result};
use std::path::Path;
use std::sync::Arc;

/// The column of event times in [`columns`].
const TIMES: usize = 1;

/// The columns of payloads: a string, which is the key, a time, and one of each kind of nested type.
pub fn columns() -> Schema {
    let field = |name: &str, data_type: DataType| Field::new(name, data_type, true);
    let list = |of: DataType| DataType::List(Arc::new(field("element", of)));
    let pair = Fields::from(vec![field("a", DataType::Boolean), field("b", DataType::Decimal128(20, 2))]);
    let entry = Fields::from(vec![Field::new("key", DataType::Int16, false), field("value", DataType::Utf8)]);
    let entries = Arc::new(Field::new("entries", DataType::Struct(entry), false));
    Schema::new(vec![
        field("k", DataType::Utf8),
        field("at", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))),
        field("list", list(list(DataType::Utf8))),
        field("pair", DataType::Struct(pair)),
        field("map", DataType::Map(entries, false)),
        field("two", DataType::FixedSizeList(Arc::new(field("element", DataType::Float32)), 2)),
        field("void", DataType::Null),
    ])
}

/// All chunks of some payloads, which fit into memory.
fn chunks(grouper: &mut RowGrouper) -> Result<Vec<RowChunk>> {
    grouper.finish(7, 1 << 12)?.collect()
}

fn check(chunks: &[RowChunk]) -> usize {
    let mut last: Option<(&[u8], bool)> = None;
    let mut rows = 0;
    for chunk in chunks {
        rows += chunk.rows.num_rows();
        assert_eq!(chunk.keys.len() + 1, chunk.offsets.len());
        assert!(
            chunk.offsets.is_sorted() && chunk.offsets.last().copied() == i64::try_from(chunk.rows.num_rows()).ok()
        );
        for (i, key) in chunk.keys.iter().flatten().enumerate() {
            let continues = i == 0 && chunk.continues;
            assert!(last.is_none_or(|(before, more)| more == continues && (before < key || more && before == key)));
            last = Some((key, chunk.more && i + 1 == chunk.keys.len()));
        }
        for column in chunk.rows.columns() {
            assert!(column.to_data().validate_full().is_ok(), "a chunk has a column that is not valid");
        }
    }
    rows
}

/// A payload of rows of [`columns`]; true where it is taken.
pub fn row_payload(bytes: &[u8]) -> bool {
    both(bytes, fix_row_payload, |bytes| {
        let grouper = RowGrouper::new(1, &columns(), usize::MAX, Path::new("/nowhere"), Some((TIMES, 0)));
        let mut grouper = grouper.unwrap_or_else(|error| panic!("the columns are refused: {error}"));
        let (result, peak) = quietly(|| {
            peak_of(|| {
                grouper.push(bytes)?;
                chunks(&mut grouper)
            })
        });
        let bound = GROUND + FACTOR * bytes.len() as u64;
        assert!(peak.cast_unsigned() <= bound, "{peak} bytes allocated for {} bytes", bytes.len());
        let found = match result {
            Ok(found) => found,
            Err(error) => {
                let kind = matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::SchemaMismatch);
                assert!(kind && error.message().contains("a payload of rows"), "{error}");
                return None;
            }
        };
        let rows = check(&found);
        assert_eq!(rows as u64, grouper.input_rows() - grouper.late_rows());
        let again = found.into_iter().map(|chunk| chunk.rows);
        let again = split_and_group(1, &columns(), again).unwrap_or_else(|e| panic!("what was read is refused: {e}"));
        assert_eq!(again, rows);
        Some(())
    })
}

/// How many rows come out of split and grouping, each under its key.
fn split_and_group(keys: usize, schema: &Schema, batches: impl Iterator<Item = RecordBatch>) -> Result<usize> {
    let codec = KeyCodec::new(&schema.fields().iter().take(keys).cloned().collect())?;
    let mut splitter = RowSplitter::new(keys, schema, 2, 128, 1 << 10)?;
    splitter.check(schema)?;
    let mut payloads = Vec::new();
    for batch in batches {
        payloads.extend(splitter.push(&batch)?);
    }
    payloads.extend(splitter.finish()?);
    let mut rows = 0;
    for shard in 0..2 {
        let mut grouper = RowGrouper::new(keys, schema, usize::MAX, Path::new("/nowhere"), None)?;
        for (_, payload) in payloads.iter().filter(|(of, _)| *of == shard) {
            grouper.push(payload).unwrap_or_else(|error| panic!("a payload is refused: {error}"));
        }
        let chunks = chunks(&mut grouper)?;
        rows += check(&chunks);
        for chunk in &chunks {
            let own = codec.encode(&chunk.rows.columns()[..keys], chunk.rows.num_rows())?;
            for (key, pair) in chunk.keys.iter().flatten().zip(chunk.offsets.windows(2)) {
                assert!((pair[0]..pair[1]).all(|row| own.key(row as usize) == key), "a row under another key");
            }
        }
    }
    Ok(rows)
}

/// How many rows of an imported column, which is the key if it can be, come out of split and grouping.
pub(crate) fn regrouped(declared: &DataType, column: &ArrayRef) -> Result<usize> {
    let schema = Schema::new(vec![Field::new("k", declared.clone(), true)]);
    let keys = usize::from(KeyCodec::new(schema.fields()).is_ok());
    let batch = RecordBatch::try_from_iter_with_nullable([("k", Arc::clone(column), true)])?;
    split_and_group(keys, &schema, std::iter::once(batch))
}
