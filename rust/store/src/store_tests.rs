//! Tests of the store: promises P2, P7, P9 and P10 under every fault, and the words of its errors.

use super::fault::{Fault, FaultStore, Operation};
use super::*;
use crate::failpoint::Failpoints;
use crate::metrics::Metrics;
use crate::scheme::StoreKind;
use object_store::memory::InMemory;
use proptest::prelude::*;
use std::io::{Read as _, Write as _};
use std::time::Duration;

fn options(pairs: &[(&str, &str)]) -> Options {
    Options::from_map(&pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()).unwrap()
}

fn over(inner: Arc<FaultStore>) -> (Store, SharedMetrics) {
    let metrics = SharedMetrics::default();
    let store = Store::from_object_store(
        inner,
        "root/q",
        "test://bucket/root/q",
        &options(&[("max_attempts", "3")]),
        Arc::clone(&metrics),
        Failpoints::none(),
    );
    (store, metrics)
}

pub(super) fn open(uri: &str, storage: &[(&str, &str)]) -> Result<Store> {
    let storage = storage.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let few = options(&[("max_attempts", "2"), ("retry_delay", "1ms"), ("request_timeout", "5s")]);
    Store::open(uri, &storage, &few, Arc::new(Metrics::default()), Failpoints::none())
}

fn paused() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

fn parts(bytes: &[u8]) -> Vec<Bytes> {
    bytes.chunks(7).map(Bytes::copy_from_slice).collect()
}

const CONTENT: &[u8] = b"what is acknowledged is there, and what is read is what was written";

#[tokio::test]
async fn what_is_put_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("a b/c");
    for uri in ["memory://what_is_put/x", at.to_str().unwrap()] {
        let store = open(uri, &[]).unwrap().child("query/op");
        let object = store.put_new(&log_name(), parts(CONTENT)).await.unwrap();
        assert_eq!((object.size, object.crc), (CONTENT.len() as u64, crc32c(CONTENT)));
        assert_eq!(store.get(&object).await.unwrap(), CONTENT);
        assert_eq!(store.get_range(&object, 5, 9).await.unwrap(), &CONTENT[5..14]);
        assert_eq!(store.get_range(&object, object.size, 0).await.unwrap().len(), 0);
        let listed = store.list("log").await.unwrap();
        assert_eq!((listed.len(), &listed[0].name, listed[0].size), (1, &object.name, object.size));
        assert_eq!(store.list("").await.unwrap(), listed);
        assert!(store.list("sst").await.unwrap().is_empty());
        assert!(store.exists(&object.name).await.unwrap());
        store.delete(&object.name).await.unwrap();
        store.delete(&object.name).await.unwrap();
        assert!(!store.exists(&object.name).await.unwrap());
        assert_eq!(store.get(&object).await.unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(store.get_named("meta").await.unwrap(), None);
        store.put_overwrite("meta", Bytes::from_static(b"1")).await.unwrap();
        store.put_overwrite("meta", Bytes::from_static(b"22")).await.unwrap();
        assert_eq!(store.get_named("meta").await.unwrap().unwrap(), "22");
        let empty = store.put_new(&log_name(), vec![]).await.unwrap();
        assert_eq!(store.get(&empty).await.unwrap().len(), 0);
        store.check().await.unwrap();
        assert!(store.list("probe").await.unwrap().is_empty());
    }
    assert!(open(at.to_str().unwrap(), &[]).unwrap().uri().ends_with("/a%20b/c"));
}

/// One put and one get with faults at two calls; the result must be an error or the exact bytes.
fn put_and_get_with(faults: &[(u64, Fault)]) {
    paused().block_on(async {
        let inner = FaultStore::in_memory();
        for (call, fault) in faults {
            inner.at(*call, *fault);
        }
        let (store, _) = over(Arc::clone(&inner));
        let name = log_name();
        match store.put_new(&name, parts(CONTENT)).await {
            Ok(object) => {
                if let Ok(bytes) = store.get(&object).await {
                    assert_eq!(bytes, CONTENT, "{faults:?}");
                }
                inner.heal();
                assert_eq!(store.get(&object).await.unwrap(), CONTENT, "acknowledged, so readable: {faults:?}");
                assert_eq!(
                    store.list("").await.unwrap().len(),
                    1,
                    "one object however many attempts (X-02): {faults:?}"
                );
            }
            Err(error) => assert!(error.message().contains(&name), "{error}"),
        }
    });
}

const ALL_FAULTS: [Fault; 8] = [
    Fault::FailBefore,
    Fault::FailAfter,
    Fault::Truncate,
    Fault::Flip,
    Fault::Hang,
    Fault::HangAfter,
    Fault::Denied,
    Fault::Throttled,
];

#[test]
fn p2_p10_hold_whichever_call_fails() {
    for first in 0..8 {
        for a in ALL_FAULTS {
            put_and_get_with(&[(first, a)]);
            for b in ALL_FAULTS {
                put_and_get_with(&[(first, a), (first + 1, b)]);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn p2_an_acknowledged_object_is_always_readable(seed: u64, per_mille in 1u64..700) {
        paused().block_on(async {
            let inner = FaultStore::in_memory();
            inner.seeded(seed, per_mille, &ALL_FAULTS);
            let (store, _) = over(Arc::clone(&inner));
            let mut acknowledged = Vec::new();
            for i in 0..12u8 {
                let content = vec![i; usize::from(i) * 5];
                if let Ok(object) = store.put_new(&log_name(), parts(&content)).await {
                    acknowledged.push((object, content));
                }
                if let Some((object, content)) = acknowledged.last() && let Ok(bytes) = store.get(object).await {
                    prop_assert_eq!(&bytes[..], &content[..]);
                }
            }
            inner.heal();
            for (object, content) in &acknowledged {
                let bytes = store.get(object).await.unwrap();
                prop_assert_eq!(&bytes[..], &content[..]);
            }
            Ok(())
        })?;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_looked_up_not_guessed() {
    let inner = FaultStore::in_memory();
    inner.at(0, Fault::FailAfter);
    let (store, metrics) = over(Arc::clone(&inner));
    let object = store.put_new("log/a", parts(CONTENT)).await.unwrap();
    assert_eq!(inner.calls_of(Operation::Put), 2);
    assert_eq!(inner.calls_of(Operation::Get), 1, "one look");
    assert_eq!((metrics.store_retries.get(), metrics.store_requests.get()), (1, 3));
    assert_eq!(store.get(&object).await.unwrap(), CONTENT);
}

#[tokio::test(start_paused = true)]
async fn a_foreign_object_is_never_acknowledged() {
    let inner = FaultStore::in_memory();
    let (store, _) = over(inner);
    for other in [&b"shorter"[..], &CONTENT.to_ascii_uppercase()[..]] {
        store.put_overwrite("log/a", Bytes::copy_from_slice(other)).await.unwrap();
        let error = store.put_new("log/a", parts(CONTENT)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Store, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_put_that_is_given_up_leaves_nothing() {
    let inner = FaultStore::in_memory();
    // Two lost puts, the second ending in a look that fails, then a last refusal.
    inner.at(0, Fault::FailAfter);
    inner.at(1, Fault::FailBefore);
    inner.at(2, Fault::FailBefore);
    let (store, metrics) = over(Arc::clone(&inner));
    let error = store.put_new("log/a", parts(CONTENT)).await.unwrap_err();
    assert!(error.is_retryable() && error.message().contains("max_attempts"), "{error}");
    assert!(error.message().contains("test://bucket/root/q") && error.message().contains("3 attempts"), "{error}");
    assert_eq!((metrics.store_failures.get(), metrics.store_retries.get()), (1, 2));
    assert!(store.list("").await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn every_attempt_has_a_time_limit() {
    let inner = FaultStore::in_memory();
    inner.always(Operation::Get, Fault::Hang);
    let (store, _) = over(Arc::clone(&inner));
    let object = store.put_new("log/a", parts(CONTENT)).await.unwrap();
    let start = tokio::time::Instant::now();
    let error = store.get(&object).await.unwrap_err();
    assert!(error.is_retryable() && error.message().contains("request_timeout"), "{error}");
    assert_eq!(inner.calls_of(Operation::Get), 3);
    // Three times 30 s, and two pauses of at most 100 and 200 ms: virtual time.
    let took = start.elapsed().as_secs_f64();
    assert!((90.0..90.4).contains(&took), "{took}");
}

#[tokio::test(start_paused = true)]
async fn permanent_errors_are_not_repeated() {
    let inner = FaultStore::in_memory();
    inner.always(Operation::Put, Fault::Denied);
    let (store, _) = over(Arc::clone(&inner));
    let error = store.check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert_eq!(inner.calls_of(Operation::Put), 1);
    assert!(error.message().contains("credentials"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn p9_damage_is_reported_with_name_and_offset() {
    let memory = Arc::new(InMemory::new());
    let inner = FaultStore::new(Arc::clone(&memory) as _);
    let (store, _) = over(Arc::clone(&inner));
    let object = store.put_new("log/a", parts(CONTENT)).await.unwrap();

    inner.next(Fault::Flip);
    assert_eq!(store.get(&object).await.unwrap(), CONTENT, "damage on the way is passing");

    store.put_overwrite("log/a", Bytes::from_static(&CONTENT[..10])).await.unwrap();
    for error in [store.get(&object).await.unwrap_err(), store.get_range(&object, 20, 5).await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("log/a at byte 10"), "{error}");
    }
    let mut wrong = CONTENT.to_vec();
    wrong[3] ^= 64;
    store.put_overwrite("log/a", wrong.into()).await.unwrap();
    let error = store.get(&object).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.message().contains("checksum"), "{error}");
    let error = store.get_range(&object, u64::MAX, 5).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "no overflow, no allocation");
}

#[tokio::test]
async fn files_go_up_and_come_down_in_parts() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    let content: Vec<u8> = (0..(20u32 << 20)).map(|i| (i ^ (i >> 11)) as u8).collect();
    std::fs::write(&source, &content).unwrap();
    for uri in ["memory://files_go_up", folder.path().join("bucket").to_str().unwrap()] {
        let store = open(uri, &[]).unwrap();
        let object = store.put_file(&sst_name(), &source, None).await.unwrap();
        assert_eq!((object.size, object.crc), (content.len() as u64, crc32c(&content)));
        let target = folder.path().join("target");
        store.get_to_file(&object, &target).await.unwrap();
        assert!(std::fs::read(&target).unwrap() == content);
        store.download_foreign(&object.name, object.size, &target).await.unwrap();
        assert!(std::fs::read(&target).unwrap() == content);
        let small = folder.path().join("small");
        std::fs::write(&small, CONTENT).unwrap();
        let object = store.put_file(&sst_name(), &small, None).await.unwrap();
        store.get_to_file(&object, &target).await.unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), CONTENT);
        let empty = store.put_new(&sst_name(), vec![]).await.unwrap();
        store.get_to_file(&empty, &target).await.unwrap();
        assert_eq!(std::fs::metadata(&target).unwrap().len(), 0);
        std::fs::remove_file(&target).unwrap();
    }
}

#[test]
fn an_upload_in_parts_survives_faults_or_fails_cleanly() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    let content: Vec<u8> = (0..(17u32 << 20)).map(|i| (i ^ (i >> 9)) as u8).collect();
    std::fs::write(&source, &content).unwrap();
    // Multipart start, three parts, complete, head: and the same again.
    for call in 0..7 {
        for fault in [Fault::FailBefore, Fault::FailAfter, Fault::Hang, Fault::HangAfter] {
            paused().block_on(async {
                let inner = FaultStore::in_memory();
                inner.at(call, fault);
                let (store, _) = over(Arc::clone(&inner));
                let object = store.put_file("sst/a", &source, None).await.unwrap();
                assert!(store.get(&object).await.unwrap() == content, "{call} {fault:?}");
            });
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_download_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    let inner = FaultStore::in_memory();
    let (store, _) = over(Arc::clone(&inner));
    let object = store.put_new("sst/a", vec![Bytes::from(vec![1; 9 << 20])]).await.unwrap();

    inner.always(Operation::Get, Fault::Truncate);
    assert!(store.get_to_file(&object, &target).await.unwrap_err().is_retryable());
    inner.heal();
    inner.always(Operation::Get, Fault::Flip);
    assert_eq!(store.get_to_file(&object, &target).await.unwrap_err().kind(), ErrorKind::Corrupt);
    inner.heal();
    let foreign = async |name: &str, size| store.download_foreign(name, size, &target).await.unwrap_err().into_inner();
    for size in [0, object.size - 1, object.size + 1] {
        assert_eq!(foreign(&object.name, size).await.kind(), ErrorKind::Corrupt, "{size}");
    }
    assert_eq!(foreign("SSTs/absent", 9 << 20).await.kind(), ErrorKind::NotFound);
    assert_eq!(foreign("SSTs/absent", 0).await.kind(), ErrorKind::NotFound);
    // Dropped half way.
    inner.hold();
    assert!(tokio::time::timeout(Duration::from_secs(1), store.get_to_file(&object, &target)).await.is_err());
    inner.release();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);

    let nowhere = folder.path().join("missing/target");
    assert!(matches!(store.download(&object, &nowhere).await, Err(DownloadError::Local(_))));
    store.get_to_file(&object, &target).await.unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn staged_files_of_killed_uploads_can_be_swept() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path().to_str().unwrap(), &[]).unwrap().child("q/op");
    store.put_new(&log_name(), parts(CONTENT)).await.unwrap();
    let left = format!("{}#1", log_name());
    std::fs::write(folder.path().join("q/op").join(&left), b"half").unwrap();
    assert!(store.list("log").await.unwrap().iter().any(|l| l.name == left));
    store.delete(&left).await.unwrap();
    assert_eq!(store.list("").await.unwrap().len(), 1);
}

#[tokio::test]
async fn failpoints_stand_around_the_put() {
    let failpoints = Failpoints::parse("store.before-put=error@1;store.after-put=store-error").unwrap();
    let inner = FaultStore::in_memory();
    let few = options(&[("retry_delay", "1ms")]);
    let store =
        Store::from_object_store(inner, "", "test://b", &few, SharedMetrics::default(), Arc::clone(&failpoints));
    let error = store.put_new("log/a", parts(CONTENT)).await.unwrap_err();
    assert!(error.message().contains("store.after-put"), "{error}");
    failpoints.clear();
    store.put_new("log/a", parts(CONTENT)).await.unwrap();
}

#[test]
fn uris_that_cannot_work_say_why() {
    let text = |uri: &str, storage: &[(&str, &str)]| open(uri, storage).unwrap_err().message().to_owned();
    for (uri, words) in [
        ("", "empty"),
        ("hdfs://namenode/state", "not supported; use file://, s3://, s3a://, gs://, gcs://, az://"),
        ("ftp:/x", "not supported"),
        ("file://data/state", "three slashes"),
        ("s3:///state", "names no bucket"),
        ("s3://key:secret@bucket/state", "password"),
        ("s3://secret@bucket/state", "user's name"),
        ("s3n://key:secret@bucket/state", "password"),
        ("s3n://key:secret/more@bucket/state", "not a URI"),
        ("s3://minio:9000/bucket", "has a port"),
        ("az://c/state?sig=secret", "query"),
    ] {
        let error = text(uri, &[]);
        assert!(error.contains(words), "{uri}: {error}");
        assert!(!error.contains("secret"), "{error}");
    }
    let error = text("s3://bucket/x", &[("secret_acces_key", "sesame-open"), ("region", "eu-central-1")]);
    assert!(error.contains("did you mean `secret_access_key`") && !error.contains("sesame"), "{error}");
    let error = text("memory://x", &[("regoin", "x")]);
    assert!(error.contains("did you mean `region`"), "{error}");
    for scheme in ["s3", "s3a"] {
        let storage = [("AWS_REGION", "eu-central-1"), ("access_key_id", "a"), ("secret_access_key", "b")];
        let store = open(&format!("{scheme}://bucket/a/b/"), &storage).unwrap();
        assert_eq!((store.uri(), store.prefix.as_str()), ("s3://bucket/a/b", "a/b"));
    }
    let store = open("abfss://c@acc.dfs.core.windows.net/a", &[("account_key", "c2VjcmV0")]).unwrap();
    assert_eq!(store.uri(), "abfss://c@acc.dfs.core.windows.net/a");
}

#[test]
fn each_scheme_of_the_table_connects_in_any_case() {
    let folder = tempfile::tempdir().unwrap();
    let storage = [("account_name", "a"), ("account_key", "c2VjcmV0")];
    for scheme in crate::schemes() {
        let (place, storage) = match crate::scheme::store_kind(scheme).unwrap() {
            StoreKind::Local => (folder.path().to_str().unwrap(), &[][..]),
            StoreKind::Azure => ("container/state", &storage[..]),
            _ => ("bucket/state", &[][..]),
        };
        open(&format!("{scheme}://{place}"), storage).unwrap();
        open(&format!("{}://{place}", scheme.to_uppercase()), storage).unwrap();
    }
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let error = open(file.join("state").to_str().unwrap(), &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("file/state"), "{error}");
}

#[tokio::test]
#[cfg_attr(not(target_os = "linux"), ignore = "/proc and /dev/full are those of Linux")]
async fn a_full_disk_and_a_read_only_folder_are_told_apart() {
    // /dev/full and /proc are the kernel's own: no rights of the user that runs the tests get around them.
    let error = open("/proc/fastchangelog", &[]).unwrap_err();
    assert!(error.message().contains("/proc/fastchangelog"), "{error}");
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap().write_all(b"x").unwrap_err();
    let diagnosis = diagnose::diagnose_io(&full);
    assert!(diagnosis.permanent == Some(ErrorKind::Store) && diagnosis.cause.contains("disk is full"));
}

/// Answers requests with what `answer` gives for their text, and counts them: the real HTTP client against known bytes.
pub(super) fn serve<A: Into<String>>(answer: impl Fn(&str) -> A + Send + 'static) -> (String, Arc<AtomicUsize>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let served = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&served);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            count.fetch_add(1, Ordering::SeqCst);
            let mut request = Vec::new();
            let mut buffer = [0; 4096];
            // Headers, then the body that they announce.
            loop {
                let n = stream.read(&mut buffer).unwrap_or(0);
                request.extend_from_slice(&buffer[..n]);
                let text = String::from_utf8_lossy(&request).to_lowercase();
                let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                let length =
                    head.split("content-length: ").nth(1).map_or(0, |l| l.lines().next().unwrap().parse().unwrap());
                if n == 0 || body.len() >= length {
                    break;
                }
            }
            let _ = stream.write_all(answer(&String::from_utf8_lossy(&request)).into().as_bytes());
        }
    });
    (format!("http://{address}"), served)
}

async fn s3_answers(response: &'static str) -> (Error, usize) {
    let (endpoint, served) = serve(move |_| response);
    let storage = [
        ("endpoint", endpoint.as_str()),
        ("access_key_id", "AKIDSECRET"),
        ("secret_access_key", "sesame-open"),
        ("region", "x"),
    ];
    let store = open("s3://bucket/state", &storage).unwrap();
    let error = store.exists("log/a").await.map(|_| ()).and(store.check().await).unwrap_err();
    for secret in ["AKIDSECRET", "sesame-open", "Signature"] {
        assert!(!error.message().contains(secret), "{error}");
        assert!(!format!("{error:?}").contains(secret), "nor does a cause hold it");
    }
    assert!(error.message().contains("s3://bucket/state"), "{error}");
    (error, served.load(Ordering::SeqCst))
}

#[tokio::test]
async fn the_words_of_a_real_http_client_are_understood() {
    let (error, served) = s3_answers("HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
    assert!(error.is_retryable(), "{error}");
    assert_eq!(served, 2 + 2 + 1, "two attempts of the look, two of the put, and the removal of its remains");

    let (error, _) = s3_answers(
        "HTTP/1.1 404 Not Found\r\nContent-Length: 65\r\nConnection: close\r\n\r\n\
         <Error><Code>NoSuchBucket</Code><Message>gone</Message></Error>  ",
    )
    .await;
    assert!(error.kind() == ErrorKind::Store && error.message().contains("bucket does not exist"), "{error}");

    let (error, _) = s3_answers(
        "HTTP/1.1 403 Forbidden\r\nContent-Length: 92\r\nConnection: close\r\n\r\n\
         <Error><Code>AccessDenied</Code><AWSAccessKeyId>AKIDSECRET</AWSAccessKeyId></Error>         ",
    )
    .await;
    assert!(error.kind() == ErrorKind::PermissionDenied, "{error}");
}

#[tokio::test]
async fn an_unreachable_store_is_named() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let endpoint = format!("http://127.0.0.1:{port}");
    let storage =
        [("endpoint", endpoint.as_str()), ("access_key_id", "a"), ("secret_access_key", "b"), ("region", "x")];
    let error = open("s3://bucket/state", &storage).unwrap().check().await.unwrap_err();
    assert!(error.is_retryable() && error.message().contains("can be reached"), "{error}");
}
