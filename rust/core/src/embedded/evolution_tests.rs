//! Types of values that change between two opens of a state.

use super::tests::{keys, lists, world};
use super::*;
use crate::shard::savepoint::SavepointForm;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int32Type, Int64Type};
use arrow_array::{Array, ArrayRef, Int32Array, Int64Array, StringArray, StructArray};
use arrow_schema::{DataType, Field, Fields};
use fastchangelog_columns::typed::KeyRange;

fn ints(values: &[i32]) -> ArrayRef {
    Arc::new(Int32Array::from(values.to_vec()))
}

fn longs(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn fields(fields: &[(&str, DataType)]) -> Fields {
    fields.iter().map(|(name, data_type)| Field::new(*name, data_type.clone(), true)).collect()
}

/// Reopens as it was after a checkpoint: from the log, from a snapshot, from a savepoint in each form.
#[derive(Clone, Copy, Debug)]
enum Way {
    Log,
    Snapshot,
    Savepoint(SavepointForm),
}

#[test]
fn values_of_every_kind_follow_their_type() {
    for way in
        [Way::Log, Way::Snapshot, Way::Savepoint(SavepointForm::Canonical), Way::Savepoint(SavepointForm::Native)]
    {
        let world = world(&[]);
        let mut other = None;
        let (text, int, long) = (DataType::Utf8, DataType::Int32, DataType::Int64);
        let s = world.open().state;
        s.value_state("v", &text, &int, None).unwrap().put(&keys(&["a", "b"]), &ints(&[1, 2])).unwrap();
        s.map_state("m", (&text, &int), &int, None).unwrap().put(&keys(&["a"]), &ints(&[7]), &ints(&[3])).unwrap();
        let list = s.list_state("l", &text, &int, Some(Duration::from_secs(9))).unwrap();
        list.append(&keys(&["a"]), &ints(&[4])).unwrap();
        let handle = s.checkpoint().unwrap();
        let request: Box<dyn FnOnce(&mut OpenEmbedded)> = match way {
            Way::Log => Box::new(|_| ()),
            Way::Snapshot => {
                s.core.wait_applied();
                let run = s.core.shard().begin_materialize().unwrap().unwrap();
                run.run().unwrap();
                run.complete().unwrap();
                s.checkpoint().unwrap();
                Box::new(|_| ())
            }
            Way::Savepoint(form) => {
                let (scratch, to) = (tempfile::tempdir().unwrap(), world.root().child("savepoint"));
                s.savepoint(&handle, form, &to, scratch.path(), &|| Ok(())).unwrap();
                Box::new(|request| request.savepoint = Some(to))
            }
        };
        drop(s);
        if matches!(way, Way::Savepoint(_)) {
            other = Some(super::tests::world(&[]));
        }
        let world = other.as_ref().unwrap_or(&world);
        let s = world.open_with(request).state;
        let v = s.value_state("v", &text, &long, None).unwrap();
        let m = s.map_state("m", (&text, &int), &DataType::Float64, None).unwrap();
        let l = s.list_state("l", &text, &long, Some(Duration::from_secs(9))).unwrap();
        v.put(&keys(&["b", "c"]), &longs(&[20, 1 << 40])).unwrap();
        l.append(&keys(&["a"]), &longs(&[5])).unwrap();
        let check = |v: &ValueState, m: &MapState, l: &ListState| {
            let values = v.get(&keys(&["a", "b", "c", "d"])).unwrap();
            assert_eq!(
                values.as_primitive::<Int64Type>().iter().collect::<Vec<_>>(),
                [Some(1), Some(20), Some(1 << 40), None]
            );
            let scanned: Vec<_> = v.scan(KeyRange::default(), 2).map(|batch| batch.unwrap().column(1).len()).collect();
            assert_eq!(scanned, [2, 1], "{way:?}");
            let entries = m.get(&keys(&["a"]), &ints(&[7])).unwrap();
            assert_eq!(entries.as_primitive::<Float64Type>().values(), &[3.0]);
            let lists = l.get(&keys(&["a"])).unwrap();
            assert_eq!(lists.as_list::<i32>().value(0).as_primitive::<Int64Type>().values(), &[4, 5]);
        };
        check(&v, &m, &l);
        s.checkpoint().unwrap();
        drop((v, m, l, s));
        let s = world.open().state;
        let v = s.value_state("v", &text, &long, None).unwrap();
        let m = s.map_state("m", (&text, &int), &DataType::Float64, None).unwrap();
        check(&v, &m, &s.list_state("l", &text, &long, Some(Duration::from_secs(9))).unwrap());
    }
}

#[test]
fn fields_come_and_go_and_old_types_are_used_again() {
    let world = world(&[]);
    let was = DataType::Struct(fields(&[("n", DataType::Int32), ("gone", DataType::Utf8)]));
    let is = DataType::Struct(fields(&[("new `one`", DataType::Utf8), ("n", DataType::Int32)]));
    let put = |s: &EmbeddedState, data_type: &DataType, key: &str, columns: Vec<ArrayRef>| {
        let DataType::Struct(fields) = data_type else { unreachable!() };
        let rows: ArrayRef = Arc::new(StructArray::try_new(fields.clone(), columns, None).unwrap());
        let v = s.value_state("v", &DataType::Utf8, data_type, None).unwrap();
        v.put(&keys(&[key]), &rows).unwrap();
        s.checkpoint().unwrap();
        v
    };
    let text = |text: &str| Arc::new(StringArray::from(vec![text])) as ArrayRef;
    for round in 0..3 {
        put(&world.open().state, &was, "old", vec![ints(&[1]), text("x")]);
        let s = world.open().state;
        let v = put(&s, &is, "new", vec![text("ü"), ints(&[2])]);
        let found = v.get(&keys(&["old", "new"])).unwrap();
        let columns = found.as_struct().columns();
        assert_eq!(columns[0].as_string::<i32>().iter().collect::<Vec<_>>(), [None, Some("ü")]);
        assert_eq!(columns[1].as_primitive::<Int32Type>().values(), &[1, 2]);
        let (_, catalog) = s.core.catalog_text().unwrap();
        assert_eq!(
            catalog.matches("struct<").count(),
            3,
            "round {round}: two versions and the current type: {catalog}"
        );
    }
}

#[test]
fn a_type_that_cannot_follow_is_refused_and_nothing_changes() {
    let world = world(&[]);
    let s = world.open().state;
    s.value_state("v", &DataType::Utf8, &DataType::Int64, None).unwrap().put(&keys(&["a"]), &longs(&[1])).unwrap();
    let error = s.value_state("v", &DataType::Utf8, &DataType::Float64, None).err().unwrap();
    assert!(error.to_string().contains("open the state again"), "one open state has one type: {error}");
    s.checkpoint().unwrap();
    drop(s);
    let s = world.open().state;
    let error = s.value_state("v", &DataType::Utf8, &DataType::Utf8, None).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::SchemaMismatch);
    assert!(error.message().contains("`bigint`") && error.message().contains("`string`"), "{error}");
    let v = s.value_state("v", &DataType::Utf8, &DataType::Int64, None).unwrap();
    assert_eq!(v.get(&keys(&["a"])).unwrap().as_primitive::<Int64Type>().values(), &[1]);
}

#[test]
fn a_reader_may_read_another_type() {
    let world = world(&[]);
    let s = world.open().state;
    s.list_state("l", &DataType::Utf8, &DataType::Utf8, None)
        .unwrap()
        .put(&keys(&["a"]), &lists(&[Some(vec!["1".into()])]))
        .unwrap();
    s.value_state("v", &DataType::Utf8, &DataType::Int32, None).unwrap().put(&keys(&["a"]), &ints(&[1])).unwrap();
    let handle = s.checkpoint().unwrap();
    let reader = world.open_with(|request| request.read_only = true).state;
    let v = reader.value_state("v", &DataType::Utf8, &DataType::Int64, None).unwrap();
    assert_eq!(v.get(&keys(&["a"])).unwrap().as_primitive::<Int64Type>().values(), &[1]);
    assert_eq!(reader.core.catalog_text().unwrap().1, handle.schema);
}

/// The bytes of a state as the first release wrote it: no version in front of values.
#[test]
fn values_of_encoding_1_are_read_and_written_as_they_are() {
    let world = world(&[]);
    let s = world.open().state;
    let old = r#"[{"id":0,"name":"v","kind":"value","key":"string","value":"int","encoding":1},{"id":1,"name":"l","kind":"list","key":"string","value":"array<string>","encoding":1},{"id":2,"name":"m","kind":"map","key":"string","value":"map<int,string>","encoding":1}]"#;
    s.core.set_catalog(catalog::Catalog::parse(old).unwrap());
    let (text, int) = (DataType::Utf8, DataType::Int32);
    let open = |s: &EmbeddedState| {
        (
            s.value_state("v", &text, &int, None).unwrap(),
            s.list_state("l", &text, &text, None).unwrap(),
            s.map_state("m", (&text, &int), &text, None).unwrap(),
        )
    };
    let (v, l, m) = open(&s);
    v.put(&keys(&["a"]), &ints(&[258])).unwrap();
    l.append(&keys(&["a"]), &keys(&["x"])).unwrap();
    m.put(&keys(&["a"]), &ints(&[1]), &keys(&["y"])).unwrap();
    let handle = s.checkpoint().unwrap();
    assert_eq!(handle.schema, old);
    let mut values: Vec<_> = world.values(&handle);
    values.sort();
    assert_eq!(values, [&b"\x01\x00\x01x"[..], b"\x01\x80\x00\x01\x02", b"y"], "as ever");
    drop((v, l, m, s));
    let s = world.open().state;
    let (v, l, m) = open(&s);
    assert_eq!(v.get(&keys(&["a"])).unwrap().as_ref(), ints(&[258]).as_ref());
    assert_eq!(l.get(&keys(&["a"])).unwrap().as_list::<i32>().value(0).as_ref(), keys(&["x"]).as_ref());
    assert_eq!(m.get(&keys(&["a"]), &ints(&[1])).unwrap().as_ref(), keys(&["y"]).as_ref());
    drop((v, l, m, s));
    let s = world.open().state;
    assert!(s.value_state("v", &text, &DataType::Int64, None).is_err(), "they have one type for ever");
}
