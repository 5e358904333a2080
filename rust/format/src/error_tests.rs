use super::*;
use arrow_schema::ArrowError;

#[test]
fn kinds_have_stable_names() {
    for kind in ErrorKind::ALL {
        assert_eq!(ErrorKind::from_name(kind.name()), kind);
    }
    assert_eq!(ErrorKind::from_name("from the future"), ErrorKind::Internal);
}

#[test]
fn corrupt_names_object_and_offset() {
    let error = Error::corrupt("log/ab", 17, "checksum");
    assert_eq!(error.what(), "corrupt data in log/ab at byte 17: checksum");
    assert_eq!(error.subject(), Some(&Subject::Object("log/ab".to_owned())));
}

#[test]
fn invariant_1_the_message_is_what_happened_and_then_the_remedy() {
    let error = Error::limit("5 MiB are in flight", "max_in_flight");
    assert_eq!(error.to_string(), "5 MiB are in flight; raise the option `max_in_flight` if this is expected");
    assert_eq!(error.remedy(), Some("raise the option `max_in_flight` if this is expected"));

    let error = error.context("shard 3").with_remedy("or wait");
    assert_eq!(error.what(), "shard 3: 5 MiB are in flight");
    assert_eq!(error.remedy(), Some("raise the option `max_in_flight` if this is expected; or wait"));
    assert_eq!(error.message(), format!("{}; {}", error.what(), error.remedy().unwrap()));

    let plain = Error::invalid("a; b");
    assert_eq!((plain.what(), plain.remedy()), ("a; b", None), "only what is known apart is a remedy");
}

#[test]
fn errors_of_one_moment_are_told_together() {
    let first =
        Error::not_found("a is missing").with_remedy("look").with_subject(Subject::Object("s3://b/a".to_owned()));
    let other = Error::store("b is refused").with_remedy("ask");
    let both = first.clone().and(other.clone());
    assert_eq!(both.message(), "a is missing; look; and b is refused; ask");
    assert_eq!((both.kind(), both.remedy()), (ErrorKind::NotFound, Some("ask")));
    assert_eq!(both.subject(), first.subject());
    assert!(first.says_the_same(&first.clone()) && !first.says_the_same(&other));
}

#[test]
fn the_chain_of_sources_is_kept_and_each_link_says_what_it_adds() {
    let disk = io::Error::from_raw_os_error(28);
    let error = Error::io_at("cannot write", Path::new("/x/y"), &disk).context("shard 3");
    assert_eq!(error.source_as::<io::Error>().unwrap().raw_os_error(), Some(28));
    assert!(error.subject().unwrap().is_path_in(Path::new("/x")));
    assert!(!error.subject().unwrap().is_path_in(Path::new("/x/yy")));

    // An error of ours between others.
    let inner = error.clone();
    let outer = Error::retryable(format!("the upload failed: {inner}")).with_source(inner);
    let texts: Vec<_> = outer.causes().into_iter().map(|cause| (cause.text, cause.os_error)).collect();
    assert_eq!(texts, [("shard 3: cannot write /x/y".to_owned(), None), (disk.to_string(), Some(28))]);

    // A copy has the same sources.
    assert_eq!(outer.clone().causes(), outer.causes());
    assert!(Error::invalid("alone").causes().is_empty());
}

#[test]
fn an_io_error_without_a_number_keeps_kind_and_text() {
    let cut = io::Error::new(io::ErrorKind::UnexpectedEof, "3 of 9 bytes");
    let error = Error::io("reading", &cut);
    let kept = error.source_as::<io::Error>().unwrap();
    assert_eq!((kept.kind(), kept.to_string()), (cut.kind(), cut.to_string()));
}

#[test]
fn a_long_chain_is_cut() {
    let deep = (0..100).fold(Error::store("0"), |error, n| Error::store(format!("{n}")).with_source(error));
    assert_eq!(deep.causes().len(), 8);
    let long = Error::store("x").with_source(Error::store("é".repeat(10_000)));
    assert!(long.causes()[0].text.len() < 1100);
}

#[test]
fn an_arrow_memory_error_is_not_an_invalid_argument() {
    let error = Error::from(ArrowError::MemoryError("64 GiB refused".to_owned()));
    assert_eq!(error.kind(), ErrorKind::Retryable);
    assert!(error.message().contains("64 GiB refused") && error.remedy().unwrap().contains("memory"), "{error}");
    assert!(matches!(error.source_as::<ArrowError>(), Some(ArrowError::MemoryError(_))));
}

#[test]
fn arrow_errors_are_mapped_by_variant() {
    let kind = |error: ArrowError| Error::from(error).kind();
    let denied = || io::Error::from_raw_os_error(13);
    assert_eq!(kind(ArrowError::IoError("x".to_owned(), denied())), ErrorKind::PermissionDenied);
    assert_eq!(kind(ArrowError::SchemaError("x".to_owned())), ErrorKind::SchemaMismatch);
    assert_eq!(kind(ArrowError::ComputeError("x".to_owned())), ErrorKind::Internal);
    for given in [ArrowError::InvalidArgumentError("x".to_owned()), ArrowError::CastError("x".to_owned())] {
        assert_eq!(kind(given), ErrorKind::InvalidArgument);
    }
    assert_eq!(kind(ArrowError::OffsetOverflowError(1)), ErrorKind::InvalidArgument);

    let ours = Error::closed("it was closed").with_remedy("open it");
    let through = Error::from(ArrowError::ExternalError(Box::new(ours.clone())));
    assert!(through.says_the_same(&ours) && through.remedy() == ours.remedy());
    let io = Error::from(ArrowError::ExternalError(Box::new(denied())));
    assert_eq!(io.source_as::<io::Error>().unwrap().raw_os_error(), Some(13));
    let foreign = Error::from(ArrowError::ExternalError("a plug-in".into()));
    assert_eq!((foreign.kind(), foreign.causes()[0].text.as_str()), (ErrorKind::Internal, "a plug-in"));
}

#[test]
fn an_internal_error_names_no_log_that_need_not_exist() {
    let error = Error::internal("two ends");
    assert_eq!(error.message(), "internal error: two ends; please report it");
    assert!(!error.message().contains("log"), "an embedded state has none");
}

#[test]
fn a_subject_knows_its_folder() {
    let object = Subject::Object("s3://b/state/log/1".to_owned());
    assert!(
        object.is_object_in("s3://b/state") && !object.is_object_in("s3://b/sta") && !object.is_object_in("s3://c")
    );
    assert!(!Subject::State("s3://b/state/x".to_owned()).is_object_in("s3://b/state"));
}
