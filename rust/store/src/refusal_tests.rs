//! Tests of refused requests over a real HTTP client: whatever was asked for, a refusal is one, and other credentials help.

use super::credentials::{Granted, Provider};
use super::failpoint::Failpoints;
use super::metrics::Metrics;
use super::tests::serve;
use super::*;
use fastchangelog_format::clock::ManualClock;

const REFUSED: [&str; 3] = [
    "HTTP/1.1 403 Forbidden\r\nContent-Length: 40\r\nConnection: close\r\n\r\n<Error><Code>AccessDenied</Code></Error>",
    "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
];
const LISTED: &str = "HTTP/1.1 200 OK\r\nContent-Length: 57\r\nConnection: close\r\n\r\n\
    <ListBucketResult><Name>bucket</Name></ListBucketResult> ";
const FOUND: &str = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nETag: \"e\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\
    Connection: close\r\n\r\nx";
const LOOKED_AT: &str = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nETag: \"e\"\r\n\
    Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nConnection: close\r\n\r\n";
const WRITTEN: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag: \"e\"\r\nConnection: close\r\n\r\n";
const DELETED: &str = "HTTP/1.1 200 OK\r\nContent-Length: 62\r\nConnection: close\r\n\r\n\
    <DeleteResult><Deleted><Key>s/a</Key></Deleted></DeleteResult>";
const NOT_DELETED: &str = "HTTP/1.1 200 OK\r\nContent-Length: 104\r\nConnection: close\r\n\r\n<DeleteResult><Error><Key>s/a</Key>\
    <Code>AccessDenied</Code><Message>no</Message></Error></DeleteResult>";

fn good(request: &str) -> &'static str {
    match request.split(' ').next().unwrap_or_default() {
        "HEAD" => LOOKED_AT,
        "PUT" => WRITTEN,
        "POST" => DELETED,
        _ if request.contains("list-type=2") => LISTED,
        _ => FOUND,
    }
}

/// A store whose provider gives the keys 0, 1, …; and how often it was asked.
fn connected(endpoint: &str, max_attempts: &str) -> (Store, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let ask = move || {
        let key = format!("KEY{}", counted.fetch_add(1, Ordering::SeqCst));
        let options = [("access_key_id".to_owned(), key), ("secret_access_key".to_owned(), "sesame-open\n".to_owned())];
        Ok(Granted { options: options.into(), expires_at_millis: None })
    };
    let provider = Provider::new(Arc::new(ask), ManualClock::at(0));
    let options = Options::from_map(&map(&[("max_attempts", max_attempts), ("retry_delay", "1ms")])).unwrap();
    let storage = map(&[("endpoint", endpoint), ("region", "x")]);
    let metrics = Arc::new(Metrics::default());
    let store = Store::open_with("s3://bucket/s", &storage, Some(provider), &options, metrics, Failpoints::none());
    (store.unwrap(), calls)
}

async fn ask(store: &Store, what: &str, file: &std::path::Path) -> Result<()> {
    match what {
        "list" => store.list("").await.map(drop),
        "survey" => store.survey("").await.map(drop),
        "get" => store.get_named("a").await.map(drop),
        "head" => store.exists("a").await.map(drop),
        "put" => store.put_new("log/a", vec![Bytes::from_static(b"x")]).await.map(drop),
        "overwrite" => store.put_overwrite("a", Bytes::from_static(b"x")).await,
        "delete" => store.delete("a").await,
        _ => store.put_file("sst/a", file, None).await.map(drop),
    }
}

const ALL: [&str; 8] = ["list", "survey", "get", "head", "put", "overwrite", "delete", "multipart"];

#[tokio::test]
async fn every_refusal_asks_for_other_credentials_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("large");
    std::fs::File::create(&file).unwrap().set_len(20 << 20).unwrap();
    for refused in REFUSED {
        for what in ALL {
            let (endpoint, served) = serve(move |_| refused);
            let (store, calls) = connected(&endpoint, "3");
            let error = ask(&store, what, &file).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{what}: {error}");
            assert!(!error.message().contains("sesame"), "{error}");
            let (calls, served) = (calls.load(Ordering::SeqCst), served.load(Ordering::SeqCst));
            if matches!(what, "put" | "multipart") {
                assert!((2..=3).contains(&calls), "{what}: {calls}, for the write and for the removal of its remains");
            } else {
                assert_eq!((calls, served), (2, 2), "{what}");
            }
        }
    }
}

#[tokio::test]
async fn a_request_that_is_refused_succeeds_with_the_next_credentials() {
    let folder = tempfile::tempdir().unwrap();
    for max_attempts in ["1", "3"] {
        for what in ALL.into_iter().filter(|what| *what != "multipart") {
            for refused in REFUSED {
                let (endpoint, _) = serve(move |text| if text.contains("KEY0") { refused } else { good(text) });
                let (store, calls) = connected(&endpoint, max_attempts);
                ask(&store, what, folder.path()).await.unwrap_or_else(|error| panic!("{what}: {error}"));
                ask(&store, what, folder.path()).await.unwrap();
                assert_eq!(calls.load(Ordering::SeqCst), 2, "{what}");
            }
        }
    }
}

#[tokio::test]
async fn a_removal_that_is_refused_in_the_answers_body_is_a_refusal() {
    let (endpoint, _) = serve(|text| if text.contains("KEY0") { NOT_DELETED } else { DELETED });
    let (store, calls) = connected(&endpoint, "1");
    store.delete("a").await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    let (endpoint, _) = serve(|_| NOT_DELETED);
    let (store, _) = connected(&endpoint, "1");
    assert_eq!(store.delete("a").await.unwrap_err().kind(), ErrorKind::PermissionDenied);
}
