use super::*;
use crate::row_test_data::{column, rng, types};
use crate::strings::binary_type;
use arrow_array::types::Int32Type;
use arrow_array::{Int32Array, ListArray, NullArray, StructArray};
use arrow_schema::{Field, Fields};
use rand::RngExt;
use std::sync::Arc;

#[test]
fn rows_of_many_blocks_are_gathered_in_the_order_asked_for() {
    let block = |values: &[i32]| vec![Arc::new(Int32Array::from(values.to_vec())) as ArrayRef];
    let blocks = [block(&[0, 1, 2]), block(&[10]), block(&[20, 21])];
    let places = [(2, 1), (0, 0), (2, 0), (2, 1), (0, 2)].map(|(block, row)| Place { block, row });
    let columns = gather(&places, |number| blocks[number as usize].as_slice()).unwrap();
    assert_eq!(columns[0].as_primitive::<Int32Type>().values().as_ref(), [21, 0, 20, 21, 2]);
    let none: [ArrayRef; 0] = [];
    assert!(gather(&places, |_| &none).unwrap().is_empty(), "rows without columns");
    let keys = key_column([&b"a"[..], b"", b"\xff\0"].into_iter()).unwrap();
    assert_eq!(keys.iter().map(Option::unwrap).collect::<Vec<_>>(), [&b"a"[..], b"", b"\xff\0"]);
}

#[test]
fn sizes_are_known_for_every_type_and_add_up() {
    let mut rng = rng();
    let types: Vec<DataType> = types().iter().map(binary_type).collect();
    let columns: Vec<ArrayRef> = types.iter().map(|of| column(&mut rng, of, 90, true)).collect();
    for (data_type, column) in types.iter().zip(&columns) {
        let sizes = RowSizes::new([data_type].into_iter());
        let of = |rows| sizes.of(std::slice::from_ref(column), rows);
        assert_eq!((0..90).map(|row| of(row..row + 1)).sum::<usize>(), of(0..90), "{data_type}");
        let (from, to) = (rng.random_range(0..40), rng.random_range(50..90));
        let sliced = [column.slice(from, to - from)];
        assert_eq!(sizes.of(&sliced, 3..8), of(from + 3..from + 8), "{data_type}");
        // Without validity and the first offset, which take less than a bit and than a byte of a row.
        let data = column.slice(0, 90).to_data().get_slice_memory_size().unwrap();
        assert!(of(0..90) + 90 / 2 + 16 >= data, "{data_type}: {} of {data}", of(0..90));
    }
    let sizes = RowSizes::new(types.iter());
    let apart = |i: usize| RowSizes::new([&types[i]].into_iter()).of(&columns[i..=i], 7..19);
    assert_eq!(sizes.of(&columns, 7..19), (0..types.len()).map(apart).sum::<usize>());
    let of = |data_type: DataType| RowSizes::new([&data_type].into_iter()).fixed;
    assert_eq!([DataType::Int64, DataType::Boolean, DataType::FixedSizeBinary(5)].map(of), [8, 1, 5]);
}

#[test]
fn elements_without_bytes_are_counted_and_weigh_something() {
    let lists = |values: ArrayRef, lengths: &[usize]| -> ArrayRef {
        let of = Arc::new(Field::new("element", values.data_type().clone(), true));
        Arc::new(ListArray::new(of, OffsetBuffer::from_lengths(lengths.iter().copied()), values, None))
    };
    let voids = || lists(Arc::new(NullArray::new(7)), &[3, 0, 4]);
    let empty: ArrayRef = Arc::new(StructArray::new_empty_fields(5, None));
    let nested = lists(voids(), &[1, 2]);
    let fields = Fields::from(vec![Field::new("a", voids().data_type().clone(), true)]);
    let inside: ArrayRef = Arc::new(StructArray::new(fields, vec![voids()], None));
    let numbers = lists(Arc::new(Int32Array::from(vec![1; 9])), &[9]);
    let cases = [(voids(), 7), (lists(empty, &[5]), 5), (nested, 7), (inside, 7), (numbers, 0)];
    for (array, count) in cases {
        assert_eq!(weightless_elements(array.as_ref()), count, "{}", array.data_type());
    }
    let sizes = RowSizes::new([voids().data_type()].into_iter());
    assert!(sizes.of(&[voids()], 0..3) >= 7 * WEIGHTLESS);
}
