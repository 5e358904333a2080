//! What the door refuses, and the columns of replies.

use super::super::testing::{PUT, VALUE, open};
use super::StateCall;
use crate::shard::testing::World;
use arrow_array::{Array, ArrayRef, BinaryArray, UInt8Array};
use arrow_schema::DataType;
use fastchangelog_format::ErrorKind;
use std::slice;
use std::sync::Arc;

#[test]
fn a_call_with_other_columns_is_refused_without_a_change() {
    let mut world = World::new(&[]);
    let shard = world.shard(None);
    let mut session = open(&shard, None, 0).unwrap();
    let keys: ArrayRef = Arc::new(BinaryArray::from(vec![&b"key"[..]]));
    let ops: ArrayRef = Arc::new(UInt8Array::from(vec![PUT]));
    let put = StateCall::Write { state: VALUE.0, expires_at: None, subs: false, values: true };
    let get = StateCall::Get { state: VALUE.0 };
    for (call, columns) in [
        (&put, vec![ops.clone(), keys.clone()]),
        (&put, vec![keys.clone(), keys.clone(), keys.clone()]),
        (&get, vec![]),
        (&get, vec![ops.clone()]),
        (&StateCall::NextTimer, vec![keys.clone()]),
    ] {
        let error = session.call(call, &columns).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert!(error.message().contains(&format!("the call `{}` came with the columns (", call.name())), "{error}");
    }
    let reply = session.call(&get, slice::from_ref(&keys)).unwrap();
    assert!(reply.columns[0].is_null(0));
    session.call(&put, &[ops, keys.clone(), keys.clone()]).unwrap();
    let reply = session.call(&get, slice::from_ref(&keys)).unwrap();
    assert_eq!((&reply.columns[..], reply.cursor), (&[keys][..], None));
}

#[test]
fn the_columns_of_replies_are_those_of_the_interface() {
    let types = StateCall::Entries { state: 1, max_bytes: 9 }.reply_columns();
    let DataType::List(element) = &types[0].1 else { panic!("{types:?}") };
    assert!(matches!(element.data_type(), DataType::Struct(fields) if fields.len() == 2));
    assert_eq!(types[1].1, DataType::Boolean);
    let column: ArrayRef = Arc::new(BinaryArray::from(vec![&b"a"[..]]));
    let scan = StateCall::Scan { state: 1, after: None, max_bytes: 9 };
    let page = scan.reply_batch(vec![column; 3]).unwrap().unwrap();
    assert_eq!(page.schema().fields().iter().map(|f| f.name().as_str()).collect::<Vec<_>>(), ["key", "sub", "value"]);
}
