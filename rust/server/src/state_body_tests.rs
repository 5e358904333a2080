//! Bodies of random texts and columns, and bodies that no peer of ours sends.

use super::*;
use arrow_array::cast::AsArray;
use arrow_array::{Array, BinaryArray, BooleanArray, DictionaryArray, Int64Array, ListArray, StructArray};
use arrow_buffer::OffsetBuffer;
use arrow_ipc::CompressionType;
use arrow_ipc::writer::IpcWriteOptions;
use arrow_schema::{Field, Schema};
use fastchangelog_format::ErrorKind;
use proptest::prelude::*;
use std::sync::Arc;

type Value = Option<Vec<u8>>;

fn nullable(name: &str, data_type: DataType) -> Field {
    Field::new(name, data_type, true)
}

fn binary(values: &[Value]) -> ArrayRef {
    Arc::new(values.iter().map(Option::as_deref).collect::<BinaryArray>())
}

/// Columns of every type that a session sends.
fn batch(values: &[Value], lengths: &[usize]) -> RecordBatch {
    let taken: usize = lengths.iter().sum();
    let fields = vec![nullable("sub", DataType::Binary), nullable("value", DataType::Binary)];
    let cycle: Vec<Value> = values.iter().cycle().take(taken).cloned().collect();
    let entries: ArrayRef = Arc::new(StructArray::new(fields.into(), vec![binary(&cycle), binary(&cycle)], None));
    let field = Arc::new(nullable("element", entries.data_type().clone()));
    let lists = ListArray::new(field, OffsetBuffer::from_lengths(lengths.iter().copied()), entries, None);
    let numbers = values.iter().map(|value| value.as_ref().map(|value| value.len() as i64)).collect::<Int64Array>();
    let flags = values.iter().map(|value| value.as_ref().map(Vec::is_empty)).collect::<BooleanArray>();
    let columns: Vec<ArrayRef> = vec![binary(values), Arc::new(lists), Arc::new(numbers), Arc::new(flags)];
    let fields: Vec<Field> = columns.iter().map(|column| nullable("c", column.data_type().clone())).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

fn types(batch: &RecordBatch) -> Vec<DataType> {
    batch.columns().iter().map(|column| column.data_type().clone()).collect()
}

fn rows() -> impl Strategy<Value = RecordBatch> {
    let row = (prop::option::of(prop::collection::vec(any::<u8>(), 0..20)), 0..4_usize);
    prop::collection::vec(row, 0..20).prop_map(|rows| {
        let (values, lengths): (Vec<Value>, Vec<usize>) = rows.into_iter().unzip();
        batch(&values, &lengths)
    })
}

fn decode(body: Vec<u8>, types: &[DataType]) -> Result<(String, Vec<ArrayRef>)> {
    let (text, at) = decode_text(&body)?;
    Ok((text, decode_columns(body, at, types)?))
}

proptest! {
    #[test]
    fn bodies_round_trip(text in ".{0,40}", rows in rows(), at in 0..20_usize) {
        let rows = rows.slice(at.min(rows.num_rows()), rows.num_rows().saturating_sub(at));
        let body = encode(&text, Some(&rows)).unwrap();
        let (found, columns) = decode(body, &types(&rows)).unwrap();
        prop_assert_eq!(found, text);
        prop_assert_eq!(&columns, rows.columns());
    }

    /// Invariant 1.
    #[test]
    fn damaged_bodies_are_errors_or_whole_columns(
        rows in rows(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
        more in prop::collection::vec(any::<u8>(), 0..9),
    ) {
        let mut body = encode(&"text", Some(&rows)).unwrap();
        for (at, byte) in damage {
            let at = at.index(body.len());
            body[at] = byte;
        }
        if let Some(cut) = cut {
            body.truncate(cut.index(body.len()));
        }
        body.extend(more);
        match decode(body, &types(&rows)) {
            Ok((_, columns)) => {
                for column in columns {
                    prop_assert!(column.to_data().validate_full().is_ok());
                }
            }
            Err(error) => {
                prop_assert_eq!(error.kind(), ErrorKind::Internal);
                prop_assert!(error.message().contains("a malformed message"), "{}", error);
            }
        }
    }

    #[test]
    fn bytes_that_are_no_body_are_errors(body in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(decode(body, &[DataType::Binary]).is_err());
    }
}

#[test]
fn columns_are_read_in_place() {
    let rows = batch(&[Some(b"value".to_vec()), None], &[1, 0]);
    let body = encode(&"text", Some(&rows)).unwrap();
    let range = body.as_ptr_range();
    let (_, columns) = decode(body, &types(&rows)).unwrap();
    assert!(range.contains(&columns[0].as_binary::<i32>().value_data().as_ptr()));
}

/// A text without spaces behind it, as another writer would send it.
#[test]
fn columns_that_are_not_aligned_are_read_too() {
    let rows = batch(&[Some(b"value".to_vec()), None], &[1, 0]);
    let body = encode(&"", Some(&rows)).unwrap();
    let (_, at) = decode_text::<String>(&body).unwrap();
    for spaces in 0..9 {
        let mut moved = u32::try_from(2 + spaces).unwrap().to_le_bytes().to_vec();
        moved.extend_from_slice(b"\"\"");
        moved.extend(std::iter::repeat_n(b' ', spaces));
        moved.extend_from_slice(&body[at..]);
        assert_eq!(decode(moved, &types(&rows)).unwrap().1, rows.columns(), "{spaces}");
    }
}

#[test]
fn a_text_beyond_its_body_is_refused() {
    for body in [&b""[..], b"\x01\0\0", b"\x03\0\0\0\"\"", b"\xff\xff\xff\xff\"\"", b"\x02\0\0\0{}"] {
        let error = decode_text::<String>(body).unwrap_err();
        assert!(error.message().contains("a malformed message"), "{body:?}: {error}");
    }
}

fn refusal(body: Vec<u8>, types: &[DataType]) -> String {
    decode(body, types).unwrap_err().message().to_owned()
}

#[test]
fn only_the_columns_that_are_asked_for_are_read() {
    let rows = batch(&[Some(b"value".to_vec())], &[1]);
    let body = encode(&"text", Some(&rows)).unwrap();
    assert!(refusal(body.clone(), &[]).contains("not asked for"));
    assert!(refusal(body.clone(), &[DataType::Binary]).contains("its columns are (Binary, List"));
    let mut swapped = types(&rows);
    swapped.swap(2, 3);
    assert!(refusal(body, &swapped).contains("its columns are"));
    assert!(refusal(encode(&"text", None).unwrap(), &types(&rows)).contains("cut off"));
}

/// Writes a stream that `encode` does not write.
fn foreign(options: IpcWriteOptions, batches: &[RecordBatch]) -> Vec<u8> {
    let mut body = encode(&"", None).unwrap();
    let mut writer = StreamWriter::try_new_with_options(&mut body, &batches[0].schema(), options).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.finish().unwrap();
    drop(writer);
    body
}

#[test]
fn invariant_2_what_is_not_a_slice_of_the_body_is_refused() {
    let rows = batch(&[Some(vec![7; 10_000])], &[1]);
    let compressed = IpcWriteOptions::default().try_with_compression(Some(CompressionType::LZ4_FRAME)).unwrap();
    assert!(refusal(foreign(compressed, std::slice::from_ref(&rows)), &types(&rows)).contains("compressed"));
    let two = foreign(IpcWriteOptions::default(), &[rows.clone(), rows.clone()]);
    assert!(refusal(two, &types(&rows)).contains("more after its batch"));
    let words: DictionaryArray<arrow_array::types::Int8Type> = ["a", "b"].into_iter().collect();
    let field = nullable("c", words.data_type().clone());
    let coded = RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![Arc::new(words)]).unwrap();
    let refused = refusal(foreign(IpcWriteOptions::default(), std::slice::from_ref(&coded)), &types(&coded));
    assert!(refused.contains("no batch after its schema"), "{refused}");
}
