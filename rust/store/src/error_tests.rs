//! Tests of the parts of the store's errors: subject, causes by type, and the bound of reads by name.

use super::tests::{open, serve};
use super::*;
use fastchangelog_format::MAX_NOTE;
use std::error::Error as _;

const BEYOND: &str = "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const BROKEN: &str = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const TEN_BYTES: &str = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nLast-Modified: Tue, 01 Jan 2030 00:00:00 GMT\r\n\
                         ETag: \"x\"\r\nConnection: close\r\n\r\n";

fn s3(endpoint: &str) -> Store {
    let storage = [
        ("endpoint", endpoint),
        ("access_key_id", "AKIDSECRET"),
        ("secret_access_key", "sesame-open"),
        ("region", "x"),
    ];
    open("s3://bucket/state", &storage).unwrap()
}

fn object(name: &str) -> ObjectRef {
    ObjectRef { name: name.to_owned(), size: 50, crc: 0 }
}

#[tokio::test]
async fn a_416_is_found_by_its_status_and_not_in_a_name() {
    let (endpoint, _) = serve(|request| if request.starts_with("HEAD") { TEN_BYTES } else { BEYOND });
    let error = s3(&endpoint).get_range(&object("log/a"), 20, 5).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains("log/a at byte 10"), "{error}");

    let (endpoint, served) = serve(|_| BROKEN);
    let error = s3(&endpoint).get_range(&object("log/416"), 20, 5).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert_eq!(served.load(Ordering::SeqCst), 2, "two attempts, and no look at the size");
}

#[tokio::test]
async fn an_error_has_its_object_its_remedy_and_its_causes() {
    let (endpoint, _) = serve(|_| BROKEN);
    let error = s3(&endpoint).get_range(&object("log/a"), 20, 5).await.unwrap_err();
    assert_eq!(error.subject(), Some(&Subject::Object("s3://bucket/state/log/a".to_owned())));
    assert!(error.remedy().unwrap().contains("`max_attempts`"), "{error}");
    let causes: Vec<String> = error.causes().into_iter().map(|cause| cause.text).collect();
    assert_eq!(causes.len(), 2, "{causes:?}");
    assert!(causes[0].starts_with("Error performing GET http://"), "{causes:?}");
    assert_eq!(causes[1], "Server returned non-2xx status code: 500 Internal Server Error:");
    assert!(error.source().is_some());
}

#[tokio::test]
async fn an_error_of_the_network_ends_in_that_of_the_system() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = s3(&format!("http://127.0.0.1:{port}")).get_range(&object("log/a"), 20, 5).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert_eq!(error.source_as::<std::io::Error>().unwrap().kind(), std::io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn an_error_of_the_disk_has_its_number() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path().join("state").to_str().unwrap(), &[]).unwrap();
    // A file where the folder of the object should be: ENOTDIR.
    std::fs::write(folder.path().join("state/log"), b"").unwrap();
    let error = store.put_new("log/a", vec![Bytes::from_static(b"x")]).await.unwrap_err();
    assert_eq!(error.source_as::<std::io::Error>().unwrap().raw_os_error(), Some(20), "{error}");
}

#[tokio::test]
async fn p7_a_read_by_name_has_a_bound() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path().to_str().unwrap(), &[]).unwrap();
    std::fs::create_dir(folder.path().join("head")).unwrap();
    let head = head_name(7);
    for (name, limit) in
        [(FOLDER_META, MAX_NOTE), (head.as_str(), 64 << 20), (SAVEPOINT, 1 << 30), (SWEEP_MARK, 1 << 30)]
    {
        // Sparse: it has a size, and takes no space.
        let file = std::fs::File::create(folder.path().join(name)).unwrap();
        file.set_len(limit + 1).unwrap();
        let error = store.get_named(name).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}");
        let full = format!("{}/{name}", store.uri());
        for part in [full.clone(), format!("{} bytes", limit + 1), format!("at most {limit}")] {
            assert!(error.message().contains(&part), "{part} is not in: {error}");
        }
        assert_eq!(error.subject(), Some(&Subject::Object(full)));
    }
    let error = store.claim(&head, Bytes::from_static(b"mine")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");

    std::fs::File::create(folder.path().join(FOLDER_META)).unwrap().set_len(MAX_NOTE).unwrap();
    assert_eq!(store.get_named(FOLDER_META).await.unwrap().unwrap().len() as u64, MAX_NOTE, "the bound itself is read");
}
