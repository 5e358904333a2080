use super::*;
use crate::failpoint::Failpoints;
use crate::fault::{Fault, FaultStore};
use async_trait::async_trait;
use fastchangelog_format::config::Options;
use fastchangelog_format::error::ErrorKind;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error as StoreError, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};
use std::sync::Arc;
use std::time::Duration;

/// A store that knows no conditions.
#[derive(Debug)]
struct Unconditional(Arc<FaultStore>);

impl std::fmt::Display for Unconditional {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Unconditional({})", self.0)
    }
}

#[async_trait]
impl ObjectStore for Unconditional {
    async fn put_opts(&self, at: &Path, payload: PutPayload, opts: PutOptions) -> StoreResult<PutResult> {
        if opts.mode == PutMode::Create {
            return Err(StoreError::NotImplemented { operation: "create".into(), implementer: "test".into() });
        }
        self.0.put_opts(at, payload, opts).await
    }

    async fn put_multipart_opts(&self, at: &Path, opts: PutMultipartOptions) -> StoreResult<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(at, opts).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> StoreResult<GetResult> {
        self.0.get_opts(at, options).await
    }

    fn delete_stream(&self, at: BoxStream<'static, StoreResult<Path>>) -> BoxStream<'static, StoreResult<Path>> {
        self.0.delete_stream(at)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.0.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.0.copy_opts(from, to, options).await
    }
}

fn over(inner: Arc<dyn ObjectStore>) -> Store {
    let options = Options { max_attempts: 2, retry_delay: Duration::from_millis(1), ..Options::default() };
    Store::from_object_store(inner, "root", "test://root", &options, Arc::default(), Failpoints::none())
}

#[tokio::test(start_paused = true)]
async fn a_name_goes_to_the_first_claim() {
    let store = over(FaultStore::in_memory());
    let (a, b) = (Bytes::from_static(b"a"), Bytes::from_static(b"b"));
    assert_eq!(store.claim("head/1", a.clone()).await.unwrap(), Claim::Ours);
    assert_eq!(store.claim("head/1", b).await.unwrap(), Claim::Taken(a.clone()));
    assert_eq!(store.get_named("head/1").await.unwrap(), Some(a), "and stays what it was");
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_answer_was_lost_is_known_again() {
    let bucket = FaultStore::in_memory();
    let store = over(Arc::clone(&bucket) as _);
    for fault in [Fault::FailBefore, Fault::FailAfter] {
        let name = format!("head/{fault:?}");
        bucket.next(fault);
        assert_eq!(store.claim(&name, Bytes::from_static(b"a")).await.unwrap(), Claim::Ours, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_without_conditions_is_refused_and_not_written() {
    let bucket = FaultStore::in_memory();
    let store = over(Arc::new(Unconditional(Arc::clone(&bucket))));
    let error = store.claim("head/1", Bytes::from_static(b"a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("test://root"), "{error}");
    assert_eq!(bucket.calls(), 0);
    // Names of one's own are written all the same.
    store.put_new("log/1", vec![Bytes::from_static(b"a")]).await.unwrap();
}
