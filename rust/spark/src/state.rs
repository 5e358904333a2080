//! The state of one partition of an operator, at any version that its files still give.
//!
//! Owns: which files make up a version, for both providers and both checkpoint formats; the database in which they are
//! put together.
//! Does not own: the content of these files (`snapshots`, `changes`), which versions a query needs (the caller).
//!
//! A version is the newest snapshot at or before it, and the changes after that. Format 2 names each version with the
//! id of the commit that wrote it, and a changelog has the ids before its own: the lineage. Files of other ids belong to
//! attempts that did not commit.
//!
//! Everything is put together in a RocksDB database of the scratch folder, also for the HDFS-backed provider, which
//! itself keeps a state in memory. A reader that goes on to a later version applies the changes in between. Large files
//! of changes are read from a copy in the scratch folder, so that no state needs memory by its size.

use crate::changes::{Change, Changes, LineageItem};
use crate::compression::Content;
use crate::snapshots::{SharedFile, unpack};
use bytes::{Buf, Bytes};
use fastchangelog_format::error::{Error, ErrorKind, Result};
use fastchangelog_state::foreign::ForeignDatabase;
use fastchangelog_state::rocks::is_of_rocksdb;
use fastchangelog_store::Store;
use fastchangelog_store::transfer::{DownloadError, blocking};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Spark's name of the only store of an operator that has one.
const DEFAULT_STORE: &str = "default";
/// Files of changes up to this size are read at once; larger ones go over the scratch folder.
const IN_MEMORY: u64 = 4 << 20;
/// Bytes that are read at once from the scratch folder.
const READ_AHEAD: usize = 256 << 10;

/// Spark's two kinds of state stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provider {
    /// RocksDB: zips, tables, changelogs.
    RocksDb,
    /// The HDFS-backed one: snapshots and deltas.
    Hdfs,
}

impl Provider {
    fn snapshot_suffix(self) -> &'static str {
        match self {
            Self::RocksDb => "zip",
            Self::Hdfs => "snapshot",
        }
    }

    fn changes_suffix(self) -> &'static str {
        match self {
            Self::RocksDb => "changelog",
            Self::Hdfs => "delta",
        }
    }
}

/// A store of a partition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoreId {
    /// Spark's number of the operator.
    pub operator: u64,
    /// The partition.
    pub partition: u32,
    /// `default`, or the name of one store of a join.
    pub store: String,
}

impl StoreId {
    /// The only store of an operator that has one.
    pub fn only(operator: u64, partition: u32) -> Self {
        Self { operator, partition, store: DEFAULT_STORE.to_owned() }
    }

    /// Its folder in the checkpoint.
    pub fn folder(&self) -> String {
        let partition = format!("state/{}/{}", self.operator, self.partition);
        if self.store == DEFAULT_STORE { partition } else { format!("{partition}/{}", self.store) }
    }
}

/// A version of a store: the one after batch `n` has the number `n + 1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreVersion {
    /// The number.
    pub number: u64,
    /// The id of the commit that wrote it; none in format 1.
    pub id: Option<String>,
}

impl StoreVersion {
    fn file(&self, suffix: &str) -> String {
        match &self.id {
            Some(id) => format!("{}_{id}.{suffix}", self.number),
            None => format!("{}.{suffix}", self.number),
        }
    }
}

/// Reads versions of one store.
pub struct StateReader {
    store: Store,
    folder: String,
    /// The names and sizes of the files in the folder, without those of `SSTs` and `logs`.
    files: BTreeMap<String, u64>,
    provider: Provider,
    scratch: PathBuf,
    loaded: Option<Loaded>,
    /// Counts the databases, for names of folders.
    databases: usize,
}

struct Loaded {
    version: StoreVersion,
    dir: PathBuf,
    db: ForeignDatabase,
    families: BTreeMap<String, u16>,
}

impl StateReader {
    /// A reader of the store `id` in the checkpoint `store`. `listed` are the names and sizes of all files below the
    /// operator's folder, in the checkpoint; `scratch` is an empty folder of this machine, which the caller removes.
    pub fn new<'a>(
        store: Store,
        id: &StoreId,
        listed: impl IntoIterator<Item = (&'a str, u64)>,
        scratch: &Path,
    ) -> Self {
        let folder = id.folder();
        let files: BTreeMap<String, u64> = listed
            .into_iter()
            .filter_map(|(name, size)| Some((name.strip_prefix(&folder)?.strip_prefix('/')?, size)))
            .filter(|(name, _)| !name.contains('/'))
            .map(|(name, size)| (name.to_owned(), size))
            .collect();
        let is_hdfs = files.keys().any(|name| name.ends_with(".delta") || name.ends_with(".snapshot"));
        let provider = if is_hdfs { Provider::Hdfs } else { Provider::RocksDb };
        Self { store, folder, files, provider, scratch: scratch.to_owned(), loaded: None, databases: 0 }
    }

    /// The store's provider, by its files.
    pub fn provider(&self) -> Provider {
        self.provider
    }

    /// The oldest version whose state can be put together if it and the later ones are kept: the number of the oldest
    /// snapshot, if no older change is there. Tells that Spark removed what was before.
    pub fn oldest_kept(&self) -> Option<u64> {
        let numbers = |suffix: &'static str| self.files.keys().filter_map(move |name| number_of(name, suffix));
        let snapshot = numbers(self.provider.snapshot_suffix()).min()?;
        let change = numbers(self.provider.changes_suffix()).min();
        (change.is_none_or(|change| change >= snapshot)).then_some(snapshot)
    }

    /// Goes to a version.
    pub async fn load(&mut self, version: &StoreVersion) -> Result<()> {
        if self.loaded.as_ref().is_some_and(|loaded| loaded.version == *version) {
            return Ok(());
        }
        let (base, steps) = self.plan(version).await?;
        let loaded = match (base, self.loaded.take()) {
            (Base::Loaded, Some(loaded)) => loaded,
            (base, old) => {
                if let Some(old) = old {
                    blocking(move || old.remove()).await;
                }
                self.open(base).await?
            }
        };
        self.loaded = Some(self.apply(loaded, steps, version).await?);
        Ok(())
    }

    /// The database to begin with, and the changes to apply, oldest first.
    async fn plan(&self, version: &StoreVersion) -> Result<(Base, Vec<StoreVersion>)> {
        let mut steps = Vec::new();
        let older = match &version.id {
            Some(_) => self.lineage(version).await?,
            None => self.after_snapshot(version.number),
        };
        let mut next = version.number;
        for at in older.iter().chain([version]).rev() {
            if at.number == 0 {
                break;
            }
            if at.number != next {
                let what = format!("{} follows version {} with a gap", next + 1, at.number);
                return Err(self.missing(version, &what));
            }
            if self.loaded.as_ref().is_some_and(|loaded| loaded.version == *at) {
                return Ok((Base::Loaded, reversed(steps)));
            }
            if self.files.contains_key(&at.file(self.provider.snapshot_suffix())) {
                return Ok((Base::Snapshot(at.clone()), reversed(steps)));
            }
            let changes = at.file(self.provider.changes_suffix());
            if !self.files.contains_key(&changes) {
                return Err(self.missing(version, &format!("{}/{changes} is not there", self.shown())));
            }
            steps.push(at.clone());
            next = at.number - 1;
        }
        if next > 0 {
            return Err(self.missing(version, &format!("no snapshot is at or before version {}", next + 1)));
        }
        Ok((Base::Empty, reversed(steps)))
    }

    /// The versions of format 1 before one, from the newest snapshot on.
    fn after_snapshot(&self, number: u64) -> Vec<StoreVersion> {
        let is_snapshot = |n: &u64| self.files.contains_key(&format!("{n}.{}", self.provider.snapshot_suffix()));
        let numbers = self.files.keys().filter_map(|name| number_of(name, self.provider.snapshot_suffix()));
        let first = numbers.filter(|n| *n < number).filter(is_snapshot).max().unwrap_or(1);
        (first..number).map(|number| StoreVersion { number, id: None }).collect()
    }

    /// The versions before one, from the snapshot on that its changelog names; none if it is a snapshot itself.
    async fn lineage(&self, version: &StoreVersion) -> Result<Vec<StoreVersion>> {
        if self.files.contains_key(&version.file(self.provider.snapshot_suffix())) {
            return Ok(Vec::new());
        }
        let name = version.file(self.provider.changes_suffix());
        if !self.files.contains_key(&name) {
            return Err(self.missing(version, &format!("{}/{name} is not there", self.shown())));
        }
        let file = self.opened(&name).await?;
        let shown = self.address(&name);
        let items = blocking(move || Changes::changelog(&shown, file).map(|changes| changes.lineage)).await?;
        let versions =
            items.into_iter().map(|LineageItem { version, id }| StoreVersion { number: version, id: Some(id) });
        Ok(versions.collect())
    }

    async fn open(&mut self, base: Base) -> Result<Loaded> {
        let dir = self.scratch.join(self.databases.to_string());
        self.databases += 1;
        std::fs::create_dir_all(dir.join("archive")).map_err(|e| Error::io_at("cannot make", &dir, &e))?;
        let zero = StoreVersion { number: 0, id: None };
        let (version, families) = match (base, self.provider) {
            (Base::Snapshot(version), Provider::RocksDb) => {
                let name = version.file(Provider::RocksDb.snapshot_suffix());
                let (file, shown, into) = (self.read(&name).await?, self.address(&name), dir.clone());
                let metadata = blocking(move || unpack(&shown, file, &into)).await?;
                for shared in metadata.files() {
                    self.fetch(&shared, &dir).await?;
                }
                (version, metadata.column_family_mapping.unwrap_or_default())
            }
            (Base::Snapshot(version), Provider::Hdfs) => {
                let name = version.file(Provider::Hdfs.snapshot_suffix());
                let (file, shown, into) = (self.opened(&name).await?, self.address(&name), dir.clone());
                let db = blocking(move || {
                    let db = ForeignDatabase::open(&into, true)?;
                    apply(&db, Changes::delta(&shown, file)?)?;
                    Ok::<_, Error>(db)
                });
                return Ok(Loaded { version, db: db.await?, dir, families: BTreeMap::new() });
            }
            (Base::Empty | Base::Loaded, _) => (zero, BTreeMap::new()),
        };
        let (into, create) = (dir.clone(), version.number == 0);
        let db = blocking(move || ForeignDatabase::open(&into, create)).await;
        let db = db.map_err(|e| self.damaged(&version, &e))?;
        Ok(Loaded { version, dir, db, families })
    }

    async fn apply(&self, mut loaded: Loaded, steps: Vec<StoreVersion>, last: &StoreVersion) -> Result<Loaded> {
        let provider = self.provider;
        for step in steps {
            let name = step.file(provider.changes_suffix());
            let (file, shown) = (self.opened(&name).await?, self.address(&name));
            loaded = blocking(move || {
                let changes = match provider {
                    Provider::RocksDb => Changes::changelog(&shown, file)?,
                    Provider::Hdfs => Changes::delta(&shown, file)?,
                };
                apply(&loaded.db, changes)?;
                Ok::<_, Error>(loaded)
            })
            .await?;
        }
        loaded.version = last.clone();
        Ok(loaded)
    }

    /// Downloads a table or a log of a snapshot.
    async fn fetch(&self, file: &SharedFile, dir: &Path) -> Result<()> {
        self.download(&file.remote, file.size, &dir.join(&file.local)).await
    }

    /// A file of changes, which is in memory only if it is small.
    async fn opened(&self, name: &str) -> Result<Content> {
        let size = self.files.get(name).copied().unwrap_or_default();
        if size <= IN_MEMORY {
            return Ok(Box::new(self.read(name).await?.reader()));
        }
        std::fs::create_dir_all(&self.scratch).map_err(|e| Error::io_at("cannot make", &self.scratch, &e))?;
        let path = self.scratch.join(name);
        match self.download(name, size, &path).await {
            Ok(()) => {}
            // Written again since the listing, as by another attempt of its task: the content shows whether it is whole.
            Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(Box::new(self.read(name).await?.reader())),
            Err(error) => return Err(error),
        }
        let file = File::open(&path).map_err(|e| Error::io_at("cannot read", &path, &e))?;
        // What is open can be read to its end.
        let _ = std::fs::remove_file(&path);
        Ok(Box::new(BufReader::with_capacity(READ_AHEAD, file)))
    }

    async fn download(&self, name: &str, size: u64, path: &Path) -> Result<()> {
        match self.store.download_foreign(&format!("{}/{name}", self.folder), size, path).await {
            Err(DownloadError::Store(error)) if error.kind() == ErrorKind::NotFound => Err(self.gone(name)),
            downloaded => downloaded.map_err(DownloadError::into_inner),
        }
    }

    async fn read(&self, name: &str) -> Result<Bytes> {
        let found = self.store.get_named(&format!("{}/{name}", self.folder)).await?;
        found.ok_or_else(|| self.gone(name))
    }

    fn gone(&self, name: &str) -> Error {
        Error::not_found(format!("{} vanished while the checkpoint was read", self.address(name)))
    }

    fn shown(&self) -> String {
        format!("{}/{}", self.store.uri(), self.folder)
    }

    /// The name of a column family of the loaded version, for errors.
    pub(crate) fn shown_family(&self, family: Option<&str>) -> String {
        let version = self.loaded.as_ref().map_or(0, |loaded| loaded.version.number);
        let family = family.map(|name| format!(", state `{name}`")).unwrap_or_default();
        format!("{}, version {version}{family}", self.shown())
    }

    fn address(&self, name: &str) -> String {
        format!("{}/{name}", self.shown())
    }

    fn missing(&self, version: &StoreVersion, what: &str) -> Error {
        Error::not_found(format!("the version {} of {} cannot be put together: {what}", version.number, self.shown()))
            .with_remedy("Spark has removed it, or the checkpoint was copied in part: choose a later batch")
    }

    /// An error of RocksDB about files that came from the checkpoint.
    fn damaged(&self, version: &StoreVersion, error: &Error) -> Error {
        if error.kind() != ErrorKind::Corrupt {
            return error.clone();
        }
        Error::corrupt(self.address(&version.file(self.provider.snapshot_suffix())), 0, error.what())
    }

    /// Calls `visit` with key and value of the loaded version, in the order of the keys, after the key `after` if there
    /// is one, until it returns false: of the column family `family`, or of a store without families. Keys are without
    /// the family's id, and both have their version byte.
    pub fn scan(
        &self,
        family: Option<&str>,
        after: Option<&[u8]>,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<bool>,
    ) -> Result<()> {
        let Some(loaded) = &self.loaded else { return Ok(()) };
        let prefix = match family {
            None => Vec::new(),
            Some(name) => match loaded.families.get(name) {
                Some(id) => id.to_le_bytes().to_vec(),
                None => return Ok(()),
            },
        };
        let after = after.map(|after| [&prefix, after].concat());
        let scanned = loaded.db.scan(&prefix, after.as_deref(), |key, value| visit(&key[prefix.len()..], value));
        scanned.map_err(|e| if is_of_rocksdb(&e) { self.damaged(&loaded.version, &e) } else { e })
    }
}

impl Drop for StateReader {
    fn drop(&mut self) {
        if let Some(loaded) = self.loaded.take() {
            loaded.remove();
        }
    }
}

impl Loaded {
    /// Closes the database and removes its files. A folder that cannot be removed goes with the scratch folder.
    fn remove(self) {
        drop(self.db);
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// The database that a version begins with.
enum Base {
    /// The one that is open.
    Loaded,
    Snapshot(StoreVersion),
    Empty,
}

fn reversed(mut steps: Vec<StoreVersion>) -> Vec<StoreVersion> {
    steps.reverse();
    steps
}

fn apply(db: &ForeignDatabase, mut changes: Changes) -> Result<()> {
    let mut writer = db.writer();
    while let Some(change) = changes.next()? {
        match change {
            Change::Put(key, value) => writer.put(key, value)?,
            Change::Delete(key) => writer.delete(key)?,
            Change::Merge(key, value) => writer.merge(key, value)?,
        }
    }
    writer.finish()
}

/// The version's number in the name of a file with this suffix.
fn number_of(name: &str, suffix: &str) -> Option<u64> {
    let stem = name.strip_suffix(suffix)?.strip_suffix('.')?;
    stem.split_once('_').map_or(stem, |(number, _)| number).parse().ok()
}
