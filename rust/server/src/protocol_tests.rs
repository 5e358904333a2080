//! Frames and hellos on plain byte slices.

use super::*;
use proptest::prelude::*;

#[test]
fn headers_round_trip() {
    let known: Vec<Kind> = (0..200).filter_map(Kind::from_u32).collect();
    assert!(known.len() == 19 && known.contains(&Kind::State) && known.contains(&Kind::StateRows));
    for kind in known {
        let header = Header { kind, request: 7, length: 12 };
        assert_eq!(Header::decode(&header.encode(), 1 << 20).unwrap(), header);
    }
}

#[test]
fn a_body_beyond_the_limit_says_what_must_fit() {
    let header = Header { kind: Kind::Merge, request: 1, length: 1 << 40 }.encode();
    let error = Header::decode(&header, 1 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("the limit is 1048576 bytes; one row with all its columns must fit"), "{error}");
    for kind in [Kind::State, Kind::StateChange, Kind::StateRows] {
        let error = check_length(kind, 1_001, 1_000).unwrap_err();
        assert!(error.message().contains("the limit is 1000 bytes; one key with its value must fit"), "{error}");
        check_length(kind, 1_000, 1_000).unwrap();
    }
    let header = Header { kind: Kind::Open, request: 1, length: 1 << 40 }.encode();
    assert!(Header::decode(&header, u64::MAX).is_err(), "texts have a bound of their own");
}

#[test]
fn unknown_kinds_are_refused() {
    let mut header = Header { kind: Kind::Ping, request: 1, length: 0 }.encode();
    header[0] = 77;
    assert!(Header::decode(&header, 1 << 20).unwrap_err().message().contains("77"));
}

#[test]
fn frames_and_bodies_round_trip() {
    let mut wire = Vec::new();
    write_frame(&mut wire, Kind::Merge, 3, b"payload").unwrap();
    write_frame(&mut wire, Kind::Ping, 4, b"").unwrap();
    let mut read = &wire[..];
    let mut header = [0; HEADER];
    read.read_exact(&mut header).unwrap();
    let header = Header::decode(&header, 100).unwrap();
    assert_eq!((header.kind, header.request), (Kind::Merge, 3));
    assert_eq!(read_body(&mut read, header.length).unwrap(), b"payload");
    assert_eq!(read.len(), HEADER);
    assert_eq!(read_body(&mut &b"short"[..], 6).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn the_same_version_is_welcome() {
    read_hello(&mut &hello()[..], "the peer").unwrap();
}

#[test]
fn another_version_names_both() {
    for wire in [hello_of(PROTOCOL_VERSION + 1, "9.9.9"), hello_of(PROTOCOL_VERSION, "9.9.9")] {
        let error = read_hello(&mut &wire[..], "the state server").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("two fastchangelog versions in one cluster"), "{error}");
        assert!(error.message().contains("9.9.9") && error.message().contains(crate::VERSION), "{error}");
    }
}

#[test]
fn a_foreign_hello_is_refused() {
    assert!(read_hello(&mut &b"GET / HTTP/1.1\r\n"[..], "the peer").unwrap_err().message().contains("protocol"));
    let mut huge = hello();
    huge[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(read_hello(&mut &huge[..], "the peer").is_err());
    assert!(read_hello(&mut &hello()[..10], "the peer").unwrap_err().is_retryable());
}

fn subject() -> impl Strategy<Value = Subject> {
    ("[^\\x00]{0,20}", 0..5).prop_map(|(name, number)| match number {
        0 => Subject::Object(name),
        1 => Subject::Path(name.into()),
        2 => Subject::Option(name),
        3 => Subject::State(name),
        _ => Subject::Column(name),
    })
}

fn causes() -> impl Strategy<Value = Vec<Cause>> {
    let system = prop::option::of(1..40i32);
    (prop::collection::vec("[a-z]{1,9} [0-9]{1,5}", 0..5), system).prop_map(|(texts, system)| {
        let text = |number: i32| io::Error::from_raw_os_error(number).to_string();
        let last = system.map(|number| Cause { text: text(number), os_error: Some(number) });
        texts.into_iter().map(|text| Cause { text, os_error: None }).chain(last).collect()
    })
}

proptest! {
    #[test]
    fn an_error_keeps_its_parts_across_the_socket(
        kind in prop::sample::select(ErrorKind::ALL.to_vec()),
        what in ".{0,40}",
        remedy in prop::option::of(".{0,40}"),
        subject in prop::option::of(subject()),
        causes in causes(),
    ) {
        let mut error = Error::new(kind, what).with_causes(causes.clone());
        if let Some(remedy) = &remedy {
            error = error.with_remedy(remedy);
        }
        if let Some(subject) = &subject {
            error = error.with_subject(subject.clone());
        }
        let back = decode_error(&encode_error(&error));
        prop_assert_eq!(back.kind(), kind);
        prop_assert_eq!(back.message(), error.message());
        prop_assert_eq!(back.remedy(), remedy.as_deref());
        prop_assert_eq!(back.subject(), subject.as_ref());
        prop_assert_eq!(&back.causes(), &causes);
        let number = causes.last().and_then(|cause| cause.os_error);
        prop_assert_eq!(back.source_as::<io::Error>().and_then(io::Error::raw_os_error), number);
    }
}

#[test]
fn an_error_that_cannot_be_read_is_internal() {
    for junk in [&b"junk"[..], b"{}", br#"{"kind":"store","message":"of an older version"}"#] {
        assert_eq!(decode_error(junk).kind(), ErrorKind::Internal);
    }
}
