//! What the door refuses.

use super::super::testing::{PUT, VALUE, open};
use super::StateCall;
use crate::shard::testing::World;
use arrow_array::{Array, ArrayRef, BinaryArray, UInt8Array};
use fastchangelog_format::ErrorKind;
use std::slice;
use std::sync::Arc;

#[test]
fn a_call_with_other_columns_than_it_lists_is_refused_and_changes_nothing() {
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
