use super::*;

#[test]
fn the_words_of_a_limit_have_the_remedy_of_its_number() {
    for number in [12, 23, 24] {
        let io = io::Error::from_raw_os_error(number);
        assert_eq!(remedy_of_limit_in(&format!("IO error: {io}")), remedy_of_limit(&io), "{io}");
    }
    assert_eq!(remedy_of_limit_in(&"IO error: No space left on device"), None);
}

fn generic(text: &str) -> object_store::Error {
    object_store::Error::Generic { store: "S3", source: text.into() }
}

#[test]
fn statuses_decide() {
    let status = |n: &str| diagnose(&generic(&format!("Server returned non-2xx status code: {n}: body"))).permanent;
    for again in ["500 Internal Server Error", "503 Service Unavailable", "429 Too Many Requests", "408 x"] {
        assert_eq!(status(again), None, "{again}");
    }
    assert_eq!(status("405 Method Not Allowed"), Some(ErrorKind::Store));
    for refused in ["401 Unauthorized", "403 Forbidden: <Code>AccessDenied</Code>"] {
        assert_eq!(status(refused), Some(ErrorKind::PermissionDenied), "{refused}: as listings have it");
    }
    let removal = |code: &str| diagnose(&generic(&format!("DeleteObjects request failed for key a: x (code: {code})")));
    assert_eq!(removal("AccessDenied").permanent, Some(ErrorKind::PermissionDenied));
    assert_eq!(removal("InternalError").permanent, None);
    let completion = |code: &str| diagnose(&generic(&format!("Server returned error response: <Code>{code}</Code>")));
    assert_eq!(completion("AccessDenied").permanent, Some(ErrorKind::PermissionDenied));
    assert_eq!(completion("InternalError").permanent, None);
    assert_eq!(status("400 Bad Request: ExpiredToken"), Some(ErrorKind::PermissionDenied));
    assert_eq!(status("400 Bad Request: RequestTimeout"), None);
    assert_eq!(diagnose(&generic("connection reset by peer")).permanent, None);
}

#[test]
fn file_errors_are_told_apart() {
    let kind = |k: io::ErrorKind| diagnose_io(&io::Error::from(k));
    assert_eq!(kind(io::ErrorKind::PermissionDenied).permanent, Some(ErrorKind::PermissionDenied));
    assert_eq!(kind(io::ErrorKind::ReadOnlyFilesystem).permanent, Some(ErrorKind::PermissionDenied));
    assert!(kind(io::ErrorKind::StorageFull).cause.contains("disk is full"));
    assert_eq!(kind(io::ErrorKind::Interrupted).permanent, None);
}

#[test]
fn a_missing_bucket_is_not_a_missing_object() {
    let missing = |body: &str| {
        let source = format!("Server returned non-2xx status code: 404 Not Found: {body}").into();
        diagnose(&object_store::Error::NotFound { path: "a".into(), source }).permanent
    };
    assert_eq!(missing("<Error><Code>NoSuchBucket</Code></Error>"), Some(ErrorKind::Store));
    assert_eq!(missing(r#"{"error":{"code":"FilesystemNotFound"}}"#), Some(ErrorKind::Store));
    assert_eq!(missing("<Error><Code>NoSuchKey</Code><Key>NoSuchBucket</Key></Error>"), Some(ErrorKind::NotFound));
}

#[derive(Debug, thiserror::Error)]
#[error("cannot publish /x: {source}")]
struct OfFile {
    source: io::Error,
}

fn of_file(number: i32) -> object_store::Error {
    let source = OfFile { source: io::Error::from_raw_os_error(number) };
    object_store::Error::Generic { store: LOCAL, source: Box::new(source) }
}

#[test]
fn missing_hard_links_are_known_by_the_errors_number() {
    for number in [1, 95, 38] {
        assert!(cannot_create_only(&of_file(number)), "EPERM, ENOTSUP, ENOSYS: {number}");
    }
    // EACCES is another refusal of the same kind; EXDEV and ENOSPC hold the digit 1 or 8 in their text.
    for number in [13, 18, 28, 11] {
        assert!(!cannot_create_only(&of_file(number)), "{number}");
    }
    assert!(!cannot_create_only(&generic("the key `code: 1, Unsupported`")), "a name decides nothing");
    assert!(cannot_create_only(&generic("Server returned non-2xx status code: 501 Not Implemented: ")));
    assert!(!cannot_create_only(&generic("Server returned non-2xx status code: 500 x: 501 NotImplemented")));
}

#[test]
fn a_full_disk_is_known_by_the_number_of_the_error() {
    let full = diagnose(&of_file(28));
    assert!(full.permanent == Some(ErrorKind::Store) && full.advice.contains("free space"), "{full:?}");
    assert_eq!(diagnose(&generic("os error 28")).permanent, None, "a text decides nothing");
}

#[test]
fn a_range_beyond_the_end_is_known_by_its_status() {
    let beyond = |text: &str| is_beyond_the_end(&generic(text));
    assert!(beyond("Server returned non-2xx status code: 416 Range Not Satisfiable: "));
    for other in [
        "Server returned non-2xx status code: 500 Internal Server Error: <Key>416</Key>",
        "Error performing GET http://host/416/InvalidRange in 416ms",
        "Server returned non-2xx status code: 400 Bad Request: InvalidRange StartTooLarge",
    ] {
        assert!(!beyond(other), "{other}");
    }
    assert!(!is_beyond_the_end(&of_file(5)), "EIO says nothing about the size");
}

#[test]
fn the_answer_of_a_store_stands_at_the_start_of_a_link() {
    let answer = |text: &str| HttpAnswer::of(&generic(text)).map(|answer| (answer.status, answer.body));
    let text = "Server returned non-2xx status code: 403 Forbidden: <Code>X</Code>: y";
    assert_eq!(answer(text), Some((403, "<Code>X</Code>: y".to_owned())));
    assert_eq!(answer("a key named Server returned non-2xx status code: 403 Forbidden: "), None);
    assert_eq!(answer("Server returned non-2xx status code: ?"), None);
}

#[test]
fn bad_credentials_are_told_from_a_bad_moment() {
    let permanent = |failed: CredentialsError| {
        let error: object_store::Error = failed.into();
        diagnose(&object_store::Error::Generic { store: "S3", source: Box::new(error) }).permanent
    };
    let kind = |origin, text: &str| permanent(CredentialsError::fetching(origin, generic(text)));
    let answered = |origin, rest: &str| kind(origin, &format!("Server returned non-2xx status code: {rest}"));
    let denied = Some(ErrorKind::PermissionDenied);
    let absent = CredentialsError::new(CredentialSource::Machine, "no metadata service answers");
    assert_eq!(permanent(absent), denied);
    assert_eq!(kind(CredentialSource::Machine, "error sending request"), None, "it is there: a bad moment");
    assert_eq!(answered(CredentialSource::Machine, "404 Not Found: "), denied);
    assert_eq!(answered(CredentialSource::Machine, "503 Service Unavailable: "), None);
    assert_eq!(kind(CredentialSource::Service, "error sending request"), None);
    assert_eq!(answered(CredentialSource::Service, "403 Forbidden: AccessDenied"), denied);
    assert_eq!(answered(CredentialSource::Service, "400 Bad Request: ExpiredTokenException"), denied);
    assert_eq!(answered(CredentialSource::Service, "400 Bad Request: Throttling"), None);
    assert_eq!(kind(CredentialSource::Service, "Failed to read token file '/x': No such file"), denied);
    let function = |kind| permanent(CredentialsError::new(CredentialSource::Function(kind), "sealed"));
    assert_eq!(function(ErrorKind::Retryable), None);
    assert_eq!(function(ErrorKind::InvalidArgument), Some(ErrorKind::InvalidArgument));
}

#[test]
fn a_refused_checksum_header_is_named_with_the_option() {
    let answer = |rest: &str| diagnose(&generic(&format!("Server returned non-2xx status code: {rest}")));
    for (rest, header) in [
        (
            "400 Bad Request: <Error><Code>InvalidArgument</Code><Message>Unsupported header 'x-amz-checksum-sha256' \
             received for this API call.</Message></Error>",
            "x-amz-checksum-sha256",
        ),
        (
            "501 Not Implemented: <Error><Code>NotImplemented</Code><Header>X-Amz-Checksum-Crc64nvme</Header></Error>",
            "x-amz-checksum-crc64nvme",
        ),
        ("415 Unsupported Media Type: x-amz-sdk-checksum-algorithm?", "x-amz-sdk-checksum-algorithm"),
    ] {
        let refused = answer(rest);
        assert_eq!(refused.permanent, Some(ErrorKind::Store), "{refused:?}");
        assert!(refused.cause.starts_with(&format!("the store refuses the header `{header}`: ")), "{refused:?}");
        assert!(refused.advice.contains("`checksum_algorithm` to `none`"), "{refused:?}");
    }
    for unnamed in [
        "501 Not Implemented: <Error><Code>NotImplemented</Code></Error>",
        "400 Bad Request: <Error><Code>InvalidRequest</Code></Error>",
    ] {
        let refused = answer(unnamed);
        assert!(refused.permanent.is_some() && refused.advice.contains("`checksum_algorithm`"), "{refused:?}");
    }
    let broken = answer("400 Bad Request: <Code>BadDigest</Code> x-amz-checksum-sha256 differs");
    assert_eq!(broken.permanent, None, "on the way, not refused");
    assert_eq!(answer("503 Slow Down: x-amz-checksum-sha256").permanent, None);
    let of_another = object_store::Error::Generic {
        store: "HTTP",
        source: "Server returned non-2xx status code: 501 Not Implemented: ".into(),
    };
    assert!(!diagnose(&of_another).advice.contains("checksum"), "only S3 has the header");
}

#[test]
fn a_refused_condition_is_told_from_a_refused_checksum() {
    let refuses = |rest: &str| cannot_create_only(&generic(&format!("Server returned non-2xx status code: {rest}")));
    assert!(refuses("400 Bad Request: <Code>InvalidArgument</Code> If-None-Match"));
    assert!(refuses("501 Not Implemented: <Header>If-None-Match</Header>"));
    assert!(!refuses("501 Not Implemented: <Header>x-amz-checksum-sha256</Header>"));
    assert!(!refuses("400 Bad Request: <Code>InvalidArgument</Code>"));
}

#[test]
fn a_certificate_that_is_not_trusted_is_no_riddle() {
    let untrusted = diagnose(&generic("error sending request: invalid peer certificate: UnknownIssuer"));
    assert!(untrusted.permanent.is_none() && untrusted.advice.contains("SSL_CERT_FILE"), "{untrusted:?}");
}
