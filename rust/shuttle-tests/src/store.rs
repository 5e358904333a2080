//! A store in memory that can be watched and can fail.
//!
//! Owns: what the tried-out files call of the real store, and the checks that only a store can make: what is asked for
//! twice, what is deleted too early.
//! Does not own: retries, limits, the real stores.

use crate::sync::Mutex;
use bytes::Bytes;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::ObjectRef;
use shuttle::rand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

pub use fastchangelog_store::{ChecksummedBytes, DownloadError, LocalCopies, log_name};

/// A store in memory. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Of so many requests, about one fails; 0: none does.
    fails_one_in: u32,
    /// Of so many puts, about one is never answered; 0: none.
    hangs_one_in: u32,
    state: Mutex<State>,
}

/// What the store holds and has seen.
#[derive(Debug, Default)]
pub struct State {
    /// Its objects.
    pub objects: BTreeMap<String, Bytes>,
    /// Bytes of puts in progress.
    pub uploading: u64,
    /// The most of them at one moment.
    pub most_uploading: u64,
    /// Downloads in progress.
    pub downloading: BTreeSet<String>,
    /// Downloads that began.
    pub downloads: usize,
    /// Downloads that failed.
    pub failed: usize,
    /// Names that were deleted.
    pub deleted: Vec<String>,
}

impl Store {
    /// A store, of whose requests one in `fails_one_in` fails; 0: none.
    pub fn new(fails_one_in: u32) -> Self {
        Self::with(fails_one_in, 0)
    }

    /// The same; and of puts one in `hangs_one_in` is never answered.
    pub fn with(fails_one_in: u32, hangs_one_in: u32) -> Self {
        Self(Arc::new(Inner { fails_one_in, hangs_one_in, state: Mutex::default() }))
    }

    /// Looks at the store.
    pub fn look<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.0.state.lock())
    }

    fn fails(&self) -> bool {
        one_in(self.0.fails_one_in)
    }

    /// The store's name.
    pub fn uri(&self) -> &'static str {
        "model://"
    }

    /// It is no folder.
    pub fn is_local_file(&self) -> bool {
        false
    }

    /// Puts a log object; a store that is never slow needs no second attempt.
    pub async fn put_log(
        &self,
        object: ChecksummedBytes,
        _closed: &tokio::sync::watch::Receiver<bool>,
    ) -> Result<ObjectRef> {
        self.put_checksummed(&log_name(), object).await
    }

    /// Puts an object.
    pub async fn put_checksummed(&self, name: &str, object: ChecksummedBytes) -> Result<ObjectRef> {
        let _uploading = Uploading::new(self, object.size);
        shuttle::future::yield_now().await;
        if one_in(self.0.hangs_one_in) {
            std::future::pending::<()>().await;
        }
        if self.fails() {
            return Err(Error::store("the model store refuses"));
        }
        let known = self.look(|state| state.objects.insert(name.to_owned(), object.parts.concat().into()));
        assert!(known.is_none(), "{name} is written twice");
        shuttle::future::yield_now().await;
        Ok(ObjectRef { name: name.to_owned(), size: object.size, crc: object.crc })
    }

    /// Deletes an object.
    pub async fn delete(&self, name: &str) -> Result<()> {
        shuttle::future::yield_now().await;
        self.look(|state| {
            assert!(state.objects.remove(name).is_some(), "{name} is deleted twice");
            state.deleted.push(name.to_owned());
        });
        Ok(())
    }

    /// Downloads an object to the file `path`, which appears whole.
    pub async fn download(&self, object: &ObjectRef, path: &Path) -> Result<(), DownloadError> {
        self.look(|state| {
            state.downloads += 1;
            assert!(state.downloading.insert(object.name.clone()), "{} is downloaded twice at a time", object.name);
        });
        shuttle::future::yield_now().await;
        let fails = self.fails();
        let bytes = self.look(|state| state.objects.get(&object.name).filter(|_| !fails).cloned());
        let result = bytes.map(|bytes| {
            let publish = || {
                let temp = transfer::TempFile::create(path)?;
                std::io::Write::write_all(&mut &temp.file, &bytes)?;
                temp.publish(path)
            };
            publish().expect("the local disk works");
        });
        self.look(|state| {
            state.downloading.remove(&object.name);
            state.failed += usize::from(result.is_none());
        });
        shuttle::future::yield_now().await;
        result.ok_or_else(|| DownloadError::Store(Error::store("the model store refuses")))
    }
}

fn one_in(n: u32) -> bool {
    n > 0 && shuttle::rand::thread_rng().gen_ratio(1, n)
}

/// A put in progress, until it ends or is abandoned.
struct Uploading<'a>(&'a Store, u64);

impl<'a> Uploading<'a> {
    fn new(store: &'a Store, bytes: u64) -> Self {
        store.look(|state| {
            state.uploading += bytes;
            state.most_uploading = state.most_uploading.max(state.uploading);
        });
        Self(store, bytes)
    }
}

impl Drop for Uploading<'_> {
    fn drop(&mut self) {
        self.0.look(|state| state.uploading -= self.1);
    }
}

/// Files on the real disk, with choices of the scheduler between the steps.
pub mod transfer {
    use std::fs::File;
    use std::path::{Path, PathBuf};

    /// Ending of files that are being written.
    pub const TEMP_SUFFIX: &str = ".part";

    /// Runs `work` where it may block.
    pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        shuttle::future::yield_now().await;
        let result = work();
        shuttle::future::yield_now().await;
        result
    }

    /// A file that is removed unless it is published.
    #[derive(Debug)]
    pub struct TempFile {
        /// To write to.
        pub file: File,
        path: PathBuf,
    }

    impl TempFile {
        /// A new file beside `target`.
        pub fn create(target: &Path) -> std::io::Result<Self> {
            let number: u64 = shuttle::rand::Rng::r#gen(&mut shuttle::rand::thread_rng());
            let name = target.file_name().unwrap_or_default().to_string_lossy();
            let path = target.with_file_name(format!(".{name}.{number:016x}{TEMP_SUFFIX}"));
            let file = File::options().write(true).create_new(true).open(&path)?;
            Ok(Self { file, path })
        }

        /// Gives the file its name, replacing another.
        pub fn publish(self, target: &Path) -> std::io::Result<()> {
            // Often at once, sometimes after everything else.
            for _ in 0..[0, 0, 1, 50][shuttle::rand::Rng::gen_range(&mut shuttle::rand::thread_rng(), 0..4)] {
                shuttle::thread::yield_now();
            }
            std::fs::rename(&self.path, target)?;
            shuttle::thread::yield_now();
            Ok(())
        }
    }

    impl Drop for TempFile {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
