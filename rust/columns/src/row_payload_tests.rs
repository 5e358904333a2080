use super::*;
use crate::row_gather::key_column;
use crate::row_test_data::{batch, rng, schema, types};
use arrow_array::{Int64Array, ListArray, NullArray};
use arrow_buffer::OffsetBuffer;
use arrow_ipc::CompressionType;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::IpcWriteOptions;
use arrow_schema::UnionFields;
use fastchangelog_format::ErrorKind;

fn encoder(format: RowFormat) -> RowEncoder {
    RowEncoder::new(Arc::new(format)).unwrap()
}

fn numbers() -> RowFormat {
    RowFormat::new(1, &Schema::new(vec![Field::new("n", DataType::Int64, true)])).unwrap()
}

fn block(values: Vec<i64>) -> RowBlock {
    let keys: Vec<_> = values.iter().map(|value| value.to_be_bytes()).collect();
    let keys = key_column(keys.iter().map(<[u8; 8]>::as_slice)).unwrap();
    RowBlock { columns: vec![Arc::new(Int64Array::from(values))], keys }
}

/// The payload with a right checksum.
fn sealed(mut payload: Vec<u8>) -> Vec<u8> {
    let end = payload.len() - 4;
    let crc = crc32c(&payload[..end - 4]);
    payload[end..].copy_from_slice(&crc.to_le_bytes());
    payload
}

#[test]
fn rows_of_every_type_come_back_and_arrow_reads_them_too() {
    let (mut rng, types) = (rng(), types());
    let schema = schema(&types);
    let format = RowFormat::new(0, &schema).unwrap();
    let mut encoder = encoder(RowFormat::new(0, &schema).unwrap());
    for rows in [0, 1, 200] {
        let batch = batch(&mut rng, &types, 0..rows);
        let columns = format.columns(&batch).unwrap();
        let names: Vec<_> = (0..rows).map(|row| format!("key {row}")).collect();
        let keys = key_column(names.iter().map(String::as_bytes)).unwrap();
        let payload = encoder.payload(RowBlock { columns: columns.clone(), keys: keys.clone() }).unwrap();
        let read = format.read(&payload).unwrap();
        assert_eq!((&read.columns, &read.keys), (&columns, &keys));
        let mut reader = StreamReader::try_new(payload.as_slice(), None).unwrap();
        let arrows = reader.next().unwrap().unwrap();
        assert_eq!(arrows.columns()[..=types.len()], columns);
        assert!(reader.next().is_none());
        let message = encoder.message(RowBlock { columns: columns.clone(), keys: keys.clone() }).unwrap();
        let read = format.decode(&Buffer::from(message.as_slice())).unwrap();
        assert_eq!((&read.columns, &read.keys), (&columns, &keys));
    }
}

#[test]
fn p9_damage_is_reported_with_its_offset() {
    let format = numbers();
    let payload = encoder(numbers()).payload(block((0..20).collect())).unwrap();
    format.read(&payload).unwrap();
    for at in 0..payload.len() {
        let mut bad = payload.clone();
        bad[at] ^= 0x10;
        let error = format.read(&bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("a payload of rows at byte "), "{error}");
        let cut = format.read(&payload[..at]).unwrap_err();
        assert_eq!(cut.kind(), ErrorKind::Corrupt, "cut at {at}");
    }
    let end = format!("at byte {}", payload.len() - TRAILER);
    let mut bad = payload.clone();
    bad[payload.len() - 1] ^= 1;
    assert!(format.read(&bad).unwrap_err().message().contains(&end));
}

#[test]
fn p9_a_message_with_a_right_checksum_is_valid_or_refused() {
    let format = numbers();
    let payload = encoder(numbers()).payload(block((0..20).collect())).unwrap();
    let head = format.head.len();
    for at in 0..payload.len() - TRAILER {
        for flip in [0x01, 0x80, 0xff] {
            let mut bad = payload.clone();
            bad[at] ^= flip;
            match format.read(&sealed(bad)) {
                Ok(block) => {
                    assert!(block.columns[0].to_data().validate_full().is_ok());
                    assert_eq!(block.columns[0].len(), block.rows());
                }
                Err(error) if at < head => assert_eq!(error.kind(), ErrorKind::SchemaMismatch),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
            }
        }
    }
}

#[test]
fn what_was_made_for_other_columns_is_refused_by_name() {
    let payload = encoder(numbers()).payload(block(vec![1])).unwrap();
    for (name, data_type) in [("m", DataType::Int64), ("n", DataType::Int32)] {
        let other = RowFormat::new(1, &Schema::new(vec![Field::new(name, data_type, true)])).unwrap();
        let error = other.read(&payload).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SchemaMismatch);
        assert!(error.message().contains(&format!("({name})")), "{error}");
    }
    // The metadata of a schema, beside names and types, differs between processes.
    let metadata = HashMap::from([("a".to_owned(), "b".to_owned()), ("c".to_owned(), "d".to_owned())]);
    let field = Field::new("n", DataType::Int64, false).with_metadata(metadata.clone());
    let same = RowFormat::new(1, &Schema::new(vec![field]).with_metadata(metadata)).unwrap();
    assert_eq!(same.read(&payload).unwrap().rows(), 1);
}

#[test]
fn a_compressed_batch_is_refused_before_its_lengths_are_read() {
    let format = numbers();
    let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::LZ4_FRAME)).unwrap();
    let mut out = Vec::new();
    let mut writer = StreamWriter::try_new_with_options(&mut out, &format.wire, options).unwrap();
    let block = block(vec![7; 1000]);
    let columns = vec![Arc::clone(&block.columns[0]), Arc::new(block.keys) as ArrayRef];
    writer.write(&RecordBatch::try_new(Arc::clone(&format.wire), columns).unwrap()).unwrap();
    writer.finish().unwrap();
    drop(writer);
    out.extend_from_slice(b"FCR1\0\0\0\0");
    let error = format.read(&sealed(out)).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.message().contains("compressed"), "{error}");
}

#[test]
fn lists_of_nothing_claim_no_memory() {
    let voids = DataType::List(Arc::new(Field::new("element", DataType::Null, true)));
    let input = Schema::new(vec![Field::new("v", voids, true)]);
    let rows = |elements: usize| {
        let of = Arc::new(Field::new("element", DataType::Null, true));
        let lists =
            ListArray::new(of, OffsetBuffer::from_lengths([elements]), Arc::new(NullArray::new(elements)), None);
        RowBlock { columns: vec![Arc::new(lists)], keys: key_column([&b""[..]].into_iter()).unwrap() }
    };
    let format = RowFormat::new(0, &input).unwrap();
    let mut encoder = encoder(RowFormat::new(0, &input).unwrap());
    let most = encoder.payload(rows(MOST_WEIGHTLESS)).unwrap();
    assert_eq!(format.read(&most).unwrap().rows(), 1);
    let error = encoder.payload(rows(MOST_WEIGHTLESS + 1)).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidArgument && error.message().contains("without a width"), "{error}");
    let message = encoder.message(rows(1 << 30)).unwrap();
    let error = format.decode(&Buffer::from(message.as_slice())).unwrap_err();
    assert!(error.contains("without a width"), "{error}");
}

#[test]
fn types_that_no_column_of_spark_has_are_refused_by_name() {
    let union = UnionFields::try_new([0], [Field::new("a", DataType::Int8, true)]).unwrap();
    let dictionary = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
    let inner = Arc::new(Field::new("element", DataType::Utf8View, true));
    for data_type in [
        DataType::Union(union, arrow_schema::UnionMode::Dense),
        dictionary,
        DataType::Utf8View,
        DataType::BinaryView,
        DataType::List(inner),
    ] {
        let error = RowFormat::new(0, &Schema::new(vec![Field::new("odd", data_type, true)])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("column `odd`"), "{error}");
        assert_eq!(error.subject(), Some(&Subject::Column("odd".into())));
    }
    assert!(RowFormat::new(2, numbers().declared()).unwrap_err().message().contains("1 columns"));
}

#[test]
fn batches_of_other_columns_are_refused_by_name() {
    let format = numbers();
    let batch = |column: ArrayRef| RecordBatch::try_from_iter_with_nullable([("x", column, true)]).unwrap();
    let texts = batch(Arc::new(arrow_array::StringArray::from(vec!["a"])));
    assert!(
        format.check(&texts.schema()).unwrap_err().message().contains("column `n` has the type string, but bigint")
    );
    let error = format.columns(&texts).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidArgument && error.message().contains("column `n`"), "{error}");
    let none = RecordBatch::new_empty(Arc::new(Schema::empty()));
    assert!(format.columns(&none).unwrap_err().message().contains("0 columns"));
    assert!(format.check(&none.schema()).unwrap_err().message().contains("0 columns"));
    format.check(&batch(Arc::new(Int64Array::from(vec![1]))).schema()).unwrap();
}
