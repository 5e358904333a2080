//! A query's checkpoint: its logs, its operators, and what one variable of a processor holds after each batch.
//!
//! Owns: where each file is, and which file counts at a batch.
//! Does not own: the content of files (`logs`, `operators`, `schemas`), how a state is put together (`state`).

use crate::logs::{self, Commit, Log, Offset};
use crate::operators::{Operator, operator};
use crate::schemas::{ColumnFamily, families};
use crate::state::{StateReader, StoreId, StoreVersion};
use fastchangelog_format::error::{Error, Result};
use fastchangelog_store::Store;
use std::collections::BTreeMap;

const STATE: &str = "state";
/// The settings of a query that change the form of its state, and their only values that are read.
const FORMS: [(&str, &str); 2] = [
    ("spark.sql.streaming.stateStore.rowChecksum.enabled", "false"),
    ("spark.sql.streaming.stateStore.encodingFormat", "unsaferow"),
];

/// The checkpoint in a folder.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    store: Store,
}

/// The names and sizes of all files below `state`, at one moment.
#[derive(Debug, Clone, Default)]
pub struct StateFiles(BTreeMap<String, u64>);

impl Checkpoint {
    /// The checkpoint in the folder `store`.
    pub fn new(store: Store) -> Self {
        Self { store }
    }

    /// The batches of a log, and when each entry was written, in milliseconds since the epoch.
    pub async fn batches(&self, log: Log) -> Result<BTreeMap<u64, u64>> {
        let listed = self.store.list(log.folder()).await?;
        let batch = |name: &str| name.strip_prefix(log.folder())?.strip_prefix('/')?.parse().ok();
        Ok(listed.iter().filter_map(|l| Some((batch(&l.name)?, l.modified_millis))).collect())
    }

    /// The entry of a committed batch; none if it is not there.
    pub async fn commit(&self, batch: u64) -> Result<Option<Commit>> {
        let name = format!("{}/{batch}", Log::Commits.folder());
        let bytes = self.store.get_named(&name).await?;
        bytes.map(|bytes| logs::commit(&self.address(&name), &bytes)).transpose()
    }

    /// The entry of a planned batch; none if it is not there.
    pub async fn offset(&self, batch: u64) -> Result<Option<Offset>> {
        let name = format!("{}/{batch}", Log::Offsets.folder());
        let bytes = self.store.get_named(&name).await?;
        bytes.map(|bytes| logs::offset(&self.address(&name), &bytes)).transpose()
    }

    /// A file of the checkpoint; none if it is not there.
    pub async fn read(&self, name: &str) -> Result<Option<bytes::Bytes>> {
        self.store.get_named(name).await
    }

    /// Lists the files of all states.
    pub async fn state_files(&self) -> Result<StateFiles> {
        self.listed(STATE).await
    }

    /// The stateful operators at a batch, by number.
    pub async fn operators(&self, files: &StateFiles, batch: u64) -> Result<Vec<Operator>> {
        let mut chosen: BTreeMap<u64, (i64, &str)> = BTreeMap::new();
        for name in files.0.keys() {
            let Some((number, rest)) = split_operator(name) else { continue };
            let since = match rest.strip_prefix("_metadata/") {
                Some("metadata") => -1,
                Some(rest) => match rest.strip_prefix("v2/").and_then(|batch| batch.parse().ok()) {
                    Some(since) => since,
                    None => continue,
                },
                None => continue,
            };
            let is_newer = chosen.get(&number).is_none_or(|(older, _)| *older < since);
            if is_newer && since <= i64::try_from(batch).unwrap_or(i64::MAX) {
                chosen.insert(number, (since, name));
            }
        }
        let mut found = Vec::new();
        for (_, name) in chosen.into_values() {
            let bytes = self.required(name).await?;
            found.push(operator(&self.address(name), &bytes)?);
        }
        Ok(found)
    }

    /// The column families of an operator at a batch.
    pub async fn families(&self, files: &StateFiles, number: u64, batch: u64) -> Result<Vec<ColumnFamily>> {
        let folder = format!("{STATE}/{number}/");
        let since = |rest: &str| match rest.strip_prefix("_stateSchema/default/") {
            Some(rest) => rest.split_once('_')?.0.parse::<i64>().ok(),
            None => (rest == "0/_metadata/schema").then_some(-1),
        };
        let named = files.0.keys().filter_map(|name| Some((since(name.strip_prefix(&folder)?)?, name)));
        let newest = named.filter(|(since, _)| *since <= i64::try_from(batch).unwrap_or(i64::MAX)).max();
        match newest {
            Some((_, name)) => families(&self.address(name), &self.required(name).await?),
            None => Err(Error::not_found(format!(
                "{} has no schema of operator {number} at batch {batch}: was it copied in part?",
                self.store.uri()
            ))),
        }
    }

    /// The version of a store after a batch.
    pub fn version_after(commit: &Commit, batch: u64, id: &StoreId, index: usize) -> Result<StoreVersion> {
        let number = batch + 1;
        let Some(ids) = &commit.state_unique_ids else { return Ok(StoreVersion { number, id: None }) };
        let stores = ids.get(&id.operator).and_then(|partitions| partitions.get(id.partition as usize));
        match stores.and_then(|stores| stores.get(index)).and_then(Option::as_ref) {
            Some(unique) => Ok(StoreVersion { number, id: Some(unique.clone()) }),
            None => Err(Error::store(format!(
                "the commit of batch {batch} has no id of {}: is it a commit of this query?",
                id.folder()
            ))),
        }
    }

    /// A reader of one store of an operator.
    pub fn reader(&self, files: &StateFiles, id: &StoreId, scratch: &std::path::Path) -> StateReader {
        StateReader::new(self.store.clone(), id, files.0.iter().map(|(name, size)| (name.as_str(), *size)), scratch)
    }

    /// The state of an operator's only store after a batch. `scratch` as for [`StateReader::new`].
    pub async fn state(&self, id: &StoreId, batch: u64, scratch: &std::path::Path) -> Result<StateReader> {
        let commit = self.commit(batch).await?;
        let commit = commit.ok_or_else(|| Error::not_found(format!("the batch {batch} has no commit any more")))?;
        let files = self.listed(&id.folder()).await?;
        let mut reader = self.reader(&files, id, scratch);
        reader.load(&Self::version_after(&commit, batch, id, 0)?).await?;
        Ok(reader)
    }

    /// Why the state of a batch cannot be read here; none if it can.
    pub async fn unreadable_form(&self, batch: u64) -> Result<Option<String>> {
        let Some(offset) = self.offset(batch).await? else { return Ok(None) };
        let odd = FORMS.iter().find_map(|(key, value)| {
            let set = offset.conf.get(*key).filter(|set| set.as_str() != *value)?;
            Some(format!("its query was started with {key}={set}"))
        });
        Ok(odd)
    }

    async fn listed(&self, folder: &str) -> Result<StateFiles> {
        Ok(StateFiles(self.store.list(folder).await?.into_iter().map(|l| (l.name, l.size)).collect()))
    }

    async fn required(&self, name: &str) -> Result<bytes::Bytes> {
        let found = self.store.get_named(name).await?;
        found.ok_or_else(|| Error::not_found(format!("{} vanished while it was read", self.address(name))))
    }

    fn address(&self, name: &str) -> String {
        format!("{}/{name}", self.store.uri())
    }
}

/// An operator's number and what follows, from a name below the checkpoint.
fn split_operator(name: &str) -> Option<(u64, &str)> {
    let (number, rest) = name.strip_prefix(STATE)?.strip_prefix('/')?.split_once('/')?;
    Some((number.parse().ok()?, rest))
}
