//! The texts of one variable of a processor, whose values begin with one: after any batch, of all partitions.
//!
//! Owns: the check that the variable is such a one, the order of reading, which lets each file be read once.
//! Does not own: the meaning of the texts (the caller's), which batches count (the caller).

use crate::checkpoint::{Checkpoint, StateFiles};
use crate::operators::Operator;
use crate::state::{StateReader, StoreId, StoreVersion};
use crate::unsafe_row::UnsafeRow;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_store::transfer::blocking;
use futures::StreamExt;
use futures::stream;
use serde::Deserialize;
use std::path::Path;

/// Spark's name of the only store of a processor.
const STORE: &str = "default";
/// Partitions that are read at once.
const CONCURRENT: usize = 8;
/// In front of each row.
const ROW_VERSION: u8 = 0;

/// A reader of one variable, for batches in ascending order.
pub struct TextVariable {
    checkpoint: Checkpoint,
    name: String,
    readers: Vec<(StoreId, StateReader)>,
}

#[derive(Deserialize)]
struct Struct {
    fields: Vec<Field>,
}

#[derive(Deserialize)]
struct Field {
    name: String,
    r#type: serde_json::Value,
}

impl TextVariable {
    /// The variable `name` of `operator`, whose value is a struct that begins with a text of the same name. `scratch` is an
    /// empty folder of this machine.
    pub async fn open(
        checkpoint: &Checkpoint,
        files: &StateFiles,
        operator: &Operator,
        name: &str,
        batch: u64,
        scratch: &Path,
    ) -> Result<Self> {
        let families = checkpoint.families(files, operator.number, batch).await?;
        let family = families.iter().find(|family| family.name == name);
        let value = family.map(|family| family.value_type.as_str()).unwrap_or_default();
        let found: Option<Struct> = serde_json::from_str(value).ok();
        let is_text = |s: &Struct| matches!(&s.fields[..], [f, ..] if f.name == name && f.r#type == "string");
        if !found.as_ref().is_some_and(is_text) {
            let number = operator.number;
            return Err(Error::schema(format!(
                "operator {number} keeps {value} as `{name}`, which fastchangelog did not write"
            )));
        }
        let partitions = operator.stores.first().map_or(0, |store| store.num_partitions);
        let readers = (0..partitions).map(|partition| {
            let id = StoreId { operator: operator.number, partition, store: STORE.to_owned() };
            let reader = checkpoint.reader(files, &id, &scratch.join(partition.to_string()));
            (id, reader)
        });
        Ok(Self { checkpoint: checkpoint.clone(), name: name.to_owned(), readers: readers.collect() })
    }

    /// Partitions and texts after a batch; keys without a text are left out.
    pub async fn after(&mut self, batch: u64) -> Result<Vec<(u32, String)>> {
        let commit = self.checkpoint.commit(batch).await?;
        let commit = commit.ok_or_else(|| Error::not_found(format!("the batch {batch} has no commit any more")))?;
        let versions: Vec<StoreVersion> = self
            .readers
            .iter()
            .map(|(id, _)| Checkpoint::version_after(&commit, batch, id, 0))
            .collect::<Result<_>>()?;
        let loads: Vec<_> = std::mem::take(&mut self.readers)
            .into_iter()
            .zip(versions)
            .map(|((id, mut reader), version)| {
                let name = self.name.clone();
                async move {
                    let loaded = reader.load(&version).await;
                    blocking(move || {
                        let texts = loaded.and_then(|()| texts(&reader, &name));
                        (id, reader, texts)
                    })
                    .await
                }
            })
            .collect();
        let mut found = Vec::new();
        let mut failed = None;
        let mut done = stream::iter(loads).buffered(CONCURRENT);
        while let Some((id, reader, texts)) = done.next().await {
            match texts {
                Ok(texts) => found.extend(texts.into_iter().map(|text| (id.partition, text))),
                Err(error) => failed = failed.or(Some(error)),
            }
            self.readers.push((id, reader));
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(found),
        }
    }

    /// Evidence that Spark has removed the state after `batch`; none without any. Spark removes all files of a
    /// partition before a snapshot. Where one file was lost, older ones are still there.
    pub fn removed(&self, batch: u64) -> Option<String> {
        self.readers.iter().find_map(|(id, reader)| {
            let oldest = reader.oldest_kept().filter(|oldest| *oldest > batch + 1)?;
            let folder = id.folder();
            Some(format!("the oldest version in {folder} is {oldest}, the one after batch {}", oldest - 1))
        })
    }
}

fn texts(reader: &StateReader, name: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    reader.scan(Some(name), None, |_, value| {
        let row = value.split_first().filter(|(version, _)| **version == ROW_VERSION);
        // The first field is at the same place in each row of up to 64 fields.
        let row = row.and_then(|(_, row)| UnsafeRow::new(row, 1)).ok_or_else(|| damaged(name))?;
        if !row.is_null(0) {
            let text = row.bytes(0).and_then(|bytes| std::str::from_utf8(bytes).ok());
            found.push(text.ok_or_else(|| damaged(name))?.to_owned());
        }
        Ok(true)
    })?;
    Ok(found)
}

fn damaged(name: &str) -> Error {
    Error::corrupt(format_args!("a value of `{name}`"), 0, "it is not a row that begins with a text")
}
