//! Requests and replies, and rows that are too many for one message.

use super::*;
use arrow_array::{Array, BinaryArray, UInt8Array};
use fastchangelog_format::ErrorKind;
use proptest::prelude::*;
use std::sync::Arc;

const GET: StateCall = StateCall::Get { state: 1 };

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..12)
}

fn calls() -> impl Strategy<Value = StateCall> {
    let page = || (any::<u16>(), prop::option::of(bytes()), any::<u64>());
    prop_oneof![
        (".{0,30}", any::<i64>()).prop_map(|(catalog, now)| StateCall::Declare { catalog, now }),
        any::<u16>().prop_map(|state| StateCall::Get { state }),
        (any::<u16>(), any::<u64>()).prop_map(|(state, max_bytes)| StateCall::Entries { state, max_bytes }),
        (page(), bytes()).prop_map(|((state, after, max_bytes), key)| StateCall::Page { state, key, after, max_bytes }),
        (any::<u16>(), prop::option::of(bytes())).prop_map(|(state, key)| StateCall::GetEntries { state, key }),
        (any::<i64>(), prop::option::of((any::<i64>(), bytes())), any::<u64>())
            .prop_map(|(until, after, limit)| StateCall::DueTimers { until, after, limit }),
        Just(StateCall::TimersOf),
        Just(StateCall::NextTimer),
        page().prop_map(|(state, after, max_bytes)| StateCall::Scan { state, after, max_bytes }),
        (any::<u16>(), prop::option::of(any::<i64>()), any::<bool>(), any::<bool>())
            .prop_map(|(state, expires_at, subs, values)| StateCall::Write { state, expires_at, subs, values }),
        any::<u16>().prop_map(|state| StateCall::ClearAll { state }),
    ]
}

fn column(data_type: &DataType) -> ArrayRef {
    match data_type {
        DataType::UInt8 => Arc::new(UInt8Array::from(vec![1, 2])),
        _ => Arc::new(BinaryArray::from(vec![Some(&b"a\xff"[..]), None])),
    }
}

proptest! {
    #[test]
    fn calls_round_trip(call in calls()) {
        let columns: Vec<ArrayRef> = call.columns().iter().map(|(_, data_type)| column(data_type)).collect();
        let rows = call.batch(columns.clone()).unwrap();
        let body = encode(&call, rows.as_ref()).unwrap();
        let kind = if call.is_change() { Kind::StateChange } else { Kind::State };
        prop_assert_eq!(decode_call(kind, body).unwrap(), (call, columns));
    }

    #[test]
    fn parts_round_trip(more: bool, cursor in prop::option::of(bytes()), more_pages: bool, time: Option<i64>) {
        let part = StatePart { more, cursor, more_pages, time };
        prop_assert_eq!(StatePart::decode(part.encode(None).unwrap(), &[]).unwrap(), (part, vec![]));
    }

    /// Every row arrives once, in order, within the bound; as many messages as needed and no second one without need.
    #[test]
    fn rows_are_cut_to_fit(
        values in prop::collection::vec(prop::option::of(prop::collection::vec(any::<u8>(), 0..300)), 0..60),
        max in 2_000..20_000_u64,
    ) {
        let all: BinaryArray = values.iter().map(Option::as_deref).collect();
        let rows = GET.reply_batch(vec![Arc::new(all)]).unwrap().unwrap();
        let encode = |rows: Option<&RecordBatch>, last: bool| StatePart { more: !last, ..StatePart::default() }.encode(rows);
        let whole = encode(Some(&rows), true).unwrap().len() as u64;
        let bodies: Vec<_> = Pieces::new(Kind::StateRows, max, Some(rows), encode).collect::<Result<_>>().unwrap();
        prop_assert!(bodies.iter().all(|body| body.len() as u64 <= max));
        prop_assert!((bodies.len() == 1) == (whole <= max));
        let mut found = Vec::new();
        let last = bodies.len() - 1;
        for (i, body) in bodies.into_iter().enumerate() {
            let (part, columns) = StatePart::decode(body, &GET.reply_columns()).unwrap();
            prop_assert_eq!(part.more, i < last);
            let column = columns[0].as_any().downcast_ref::<BinaryArray>().unwrap();
            found.extend(column.iter().map(|value| value.map(<[u8]>::to_vec)));
        }
        prop_assert_eq!(found, values);
    }
}

#[test]
fn a_row_that_fits_no_message_says_what_must_fit() {
    let rows = GET.reply_batch(vec![Arc::new(BinaryArray::from(vec![&[7; 5_000][..], b"small"]))]).unwrap();
    let mut bodies = Pieces::new(Kind::StateRows, 2_000, rows, |rows, _| StatePart::default().encode(rows));
    let error = bodies.next().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("the limit is 2000 bytes; one key with its value must fit"), "{error}");
}

#[test]
fn a_call_in_a_frame_of_another_kind_is_malformed() {
    let get = encode(&GET, None).unwrap();
    let error = decode_call(Kind::StateChange, get.clone()).unwrap_err();
    assert!(error.message().contains("the call `get` in a frame of the kind StateChange"), "{error}");
    assert!(decode_call(Kind::State, get).unwrap_err().message().contains("cut off"), "its keys are missing");
    let clear = encode(&StateCall::ClearAll { state: 1 }, None).unwrap();
    assert!(decode_call(Kind::State, clear.clone()).is_err());
    assert!(decode_call(Kind::StateChange, clear).is_ok());
}
