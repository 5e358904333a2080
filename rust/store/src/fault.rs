//! A store that fails on demand: for tests.
//!
//! Owns: an `object_store` wrapper that numbers its calls and breaks those that a script or a seed names.
//! Does not own: the expected behaviour; tests state it.

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result, UploadPart,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The fault of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails and did nothing.
    FailBefore,
    /// It took effect, but its answer is lost.
    FailAfter,
    /// A read gives only half of its bytes; other calls fail.
    Truncate,
    /// A read gives a wrong byte; other calls fail.
    Flip,
    /// It takes so long and then succeeds.
    Delay(Duration),
    /// It never answers and does nothing.
    Hang,
    /// It took effect, but never answers.
    HangAfter,
    /// The store says 403.
    Denied,
    /// The store says 503.
    Throttled,
}

/// The calls of an object store that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Put of a whole object.
    Put,
    /// Any step of a put in parts.
    Multipart,
    /// Get or head.
    Get,
    /// Delete of one object.
    Delete,
    /// A listing.
    List,
}

#[derive(Debug, Default)]
struct Script {
    calls: Vec<(Operation, String)>,
    at: HashMap<u64, Fault>,
    always: Vec<(Operation, Fault)>,
    seeded: Option<Seeded>,
}

#[derive(Debug)]
struct Seeded {
    state: u64,
    per_mille: u64,
    faults: Vec<Fault>,
    /// None = all.
    on: Option<Operation>,
}

#[derive(Debug)]
struct Shared {
    script: Mutex<Script>,
    gate: watch::Sender<bool>,
}

/// An object store around another that fails as told. Calls are numbered from 0 in the order in which they start.
#[derive(Debug)]
pub struct FaultStore {
    inner: Arc<dyn ObjectStore>,
    shared: Arc<Shared>,
}

impl FaultStore {
    /// Wraps `inner`; without faults until told.
    pub fn new(inner: Arc<dyn ObjectStore>) -> Arc<Self> {
        let shared = Shared { script: Mutex::default(), gate: watch::channel(true).0 };
        Arc::new(Self { inner, shared: Arc::new(shared) })
    }

    /// Around an empty store in memory.
    pub fn in_memory() -> Arc<Self> {
        Self::new(Arc::new(object_store::memory::InMemory::new()))
    }

    /// RequestContext number `call` (from 0) meets `fault`.
    pub fn at(&self, call: u64, fault: Fault) {
        self.shared.script.lock().at.insert(call, fault);
    }

    /// The next call meets `fault`.
    pub fn next(&self, fault: Fault) {
        let mut script = self.shared.script.lock();
        let call = script.calls.len() as u64;
        script.at.insert(call, fault);
    }

    /// Every call of `operation` meets `fault`.
    pub fn always(&self, operation: Operation, fault: Fault) {
        self.shared.script.lock().always.push((operation, fault));
    }

    /// From now on each call meets one of `faults` with a chance of `per_mille` in 1000, as `seed` has it.
    pub fn seeded(&self, seed: u64, per_mille: u64, faults: &[Fault]) {
        self.shared.script.lock().seeded = Some(Seeded { state: seed, per_mille, faults: faults.to_vec(), on: None });
    }

    /// The same for calls of `operation` only.
    pub fn seeded_on(&self, operation: Operation, seed: u64, per_mille: u64, faults: &[Fault]) {
        let seeded = Seeded { state: seed, per_mille, faults: faults.to_vec(), on: Some(operation) };
        self.shared.script.lock().seeded = Some(seeded);
    }

    /// No more faults; calls are counted on.
    pub fn heal(&self) {
        let mut script = self.shared.script.lock();
        script.at.clear();
        script.always.clear();
        script.seeded = None;
    }

    /// Holds every call back until [`FaultStore::release`].
    pub fn hold(&self) {
        self.shared.gate.send_replace(false);
    }

    /// Lets held calls go.
    pub fn release(&self) {
        self.shared.gate.send_replace(true);
    }

    /// Number of calls so far.
    pub fn calls(&self) -> u64 {
        self.shared.script.lock().calls.len() as u64
    }

    /// Number of calls of `operation` so far.
    pub fn calls_of(&self, operation: Operation) -> usize {
        self.shared.script.lock().calls.iter().filter(|(o, _)| *o == operation).count()
    }

    /// The calls in order, each with the object's path.
    pub fn log(&self) -> Vec<(Operation, String)> {
        self.shared.script.lock().calls.clone()
    }
}

fn broken(text: &'static str) -> Error {
    Error::Generic { store: "fault", source: text.into() }
}

impl Shared {
    async fn enter(&self, operation: Operation, path: &Path) -> Option<Fault> {
        let fault = self.script.lock().draw(operation, path);
        // The sender lives as long as `self`.
        let _ = self.gate.subscribe().wait_for(|open| *open).await;
        fault
    }

    /// Runs `call` as `fault` wants it; `Truncate` and `Flip` are left to the caller.
    async fn run<T>(&self, fault: Option<Fault>, path: &Path, call: impl Future<Output = Result<T>>) -> Result<T> {
        match fault {
            None | Some(Fault::Truncate | Fault::Flip) => call.await,
            Some(Fault::FailBefore) => Err(broken("injected: connection refused")),
            Some(Fault::Throttled) => Err(broken("Server returned non-2xx status code: 503 Slow Down: injected")),
            Some(Fault::Denied) => {
                Err(Error::PermissionDenied { path: path.to_string(), source: "injected: 403 Forbidden".into() })
            }
            Some(Fault::FailAfter) => {
                call.await?;
                Err(broken("injected: connection reset by peer"))
            }
            Some(Fault::Delay(time)) => {
                tokio::time::sleep(time).await;
                call.await
            }
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::HangAfter) => {
                call.await?;
                std::future::pending().await
            }
        }
    }

    async fn write<T>(&self, operation: Operation, path: &Path, call: impl Future<Output = Result<T>>) -> Result<T> {
        let fault = match self.enter(operation, path).await {
            Some(Fault::Truncate | Fault::Flip) => Some(Fault::FailBefore),
            fault => fault,
        };
        self.run(fault, path, call).await
    }
}

impl Script {
    fn draw(&mut self, operation: Operation, path: &Path) -> Option<Fault> {
        let number = self.calls.len() as u64;
        self.calls.push((operation, path.to_string()));
        let always = self.always.iter().find(|(o, _)| *o == operation).map(|(_, f)| *f);
        let seeded = self.seeded.as_mut().filter(|seeded| seeded.on.is_none_or(|o| o == operation));
        self.at.get(&number).copied().or(always).or_else(|| seeded.and_then(Seeded::draw))
    }
}

impl Seeded {
    fn draw(&mut self) -> Option<Fault> {
        // Knuth's 64-bit congruential generator; the high bits are good enough for coin flips.
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let draw = self.state >> 33;
        let pick = usize::try_from(draw / 1000).unwrap_or(0) % self.faults.len().max(1);
        (draw % 1000 < self.per_mille).then(|| self.faults.get(pick).copied()).flatten()
    }
}

impl std::fmt::Display for FaultStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FaultStore({})", self.inner)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for FaultStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.shared.write(Operation::Put, location, self.inner.put_opts(location, payload, opts)).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        let start = self.inner.put_multipart_opts(location, opts);
        let inner = self.shared.write(Operation::Multipart, location, start).await?;
        Ok(Box::new(FaultUpload { inner, shared: Arc::clone(&self.shared), path: location.clone() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let fault = self.shared.enter(Operation::Get, location).await;
        let result = self.shared.run(fault, location, self.inner.get_opts(location, options)).await?;
        if !matches!(fault, Some(Fault::Truncate | Fault::Flip)) {
            return Ok(result);
        }
        let (meta, range, attributes) = (result.meta.clone(), result.range.clone(), result.attributes.clone());
        let mut bytes = result.bytes().await?.to_vec();
        match fault {
            Some(Fault::Truncate) => bytes.truncate(bytes.len() / 2),
            _ => {
                if let Some(byte) = bytes.last_mut() {
                    *byte ^= 1;
                }
            }
        }
        let payload = GetResultPayload::Stream(stream::once(async move { Ok(Bytes::from(bytes)) }).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions: object_store::Extensions::default() })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.shared.write(Operation::Get, location, self.inner.get_ranges(location, ranges)).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (inner, shared) = (Arc::clone(&self.inner), Arc::clone(&self.shared));
        locations
            .then(move |location| {
                let (inner, shared) = (Arc::clone(&inner), Arc::clone(&shared));
                async move {
                    let location = location?;
                    let one = stream::once(futures::future::ok(location.clone())).boxed();
                    let delete =
                        async { inner.delete_stream(one).next().await.unwrap_or_else(|| Ok(location.clone())) };
                    shared.write(Operation::Delete, &location, delete).await
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let found = self.inner.list(prefix);
        self.listing(prefix, found)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        let found = self.inner.list_with_offset(prefix, offset);
        self.listing(prefix, found)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let path = prefix.cloned().unwrap_or_default();
        self.shared.write(Operation::List, &path, self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.shared.write(Operation::Put, to, self.inner.copy_opts(from, to, options)).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.shared.write(Operation::Put, to, self.inner.rename_opts(from, to, options)).await
    }
}

impl FaultStore {
    fn listing(
        &self,
        prefix: Option<&Path>,
        found: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let shared = Arc::clone(&self.shared);
        let path = prefix.cloned().unwrap_or_default();
        stream::once(async move { shared.write(Operation::List, &path, async { Ok(found) }).await })
            .flat_map(|found| found.unwrap_or_else(|e| stream::once(futures::future::err(e)).boxed()))
            .boxed()
    }
}

#[derive(Debug)]
struct FaultUpload {
    inner: Box<dyn MultipartUpload>,
    shared: Arc<Shared>,
    path: Path,
}

#[async_trait]
impl MultipartUpload for FaultUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let part = self.inner.put_part(data);
        let (shared, path) = (Arc::clone(&self.shared), self.path.clone());
        Box::pin(async move { shared.write(Operation::Multipart, &path, part).await })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.shared.write(Operation::Multipart, &self.path, self.inner.complete()).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.shared.write(Operation::Multipart, &self.path, self.inner.abort()).await
    }
}
