//! Checkpoints that Spark wrote, read as Spark's own source reads them.
//!
//! Owns: the comparison with what Spark read (`checkpoints/*/expected.json`), and damage to every file.
//! Does not own: live queries, which the tests of Python compare on each version of Spark.
//!
//! `processor-*` are queries of this library's operator, by version of Spark; `aggregate-*` are Spark's own
//! aggregations; `states-*` have every kind of state of Spark's own processors. Spark cannot read what 4.0 wrote under
//! format 2, so the test for `processor-4.0` compares with nothing; `states-4.0` is of format 1.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod stored_rows;

use fastchangelog_format::config::Options;
use fastchangelog_format::error::{Error, ErrorKind, Result};
use fastchangelog_spark::{Checkpoint, Log, Operator, StoreId, TextVariable, count};
use fastchangelog_store::Store;
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::metrics::SharedMetrics;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

/// Partitions and rows, by batch.
type Rows = BTreeMap<u64, Vec<(u32, String)>>;

const ALL: [&str; 10] = [
    "processor-4.0",
    "processor-4.1",
    "processor-4.2",
    "processor-4.3",
    "aggregate-hdfs",
    "aggregate-format-1",
    "aggregate-format-2",
    "states-4.0",
    "states-4.1",
    "states-4.3",
];

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints").join(name)
}

fn copied(name: &str) -> TempDir {
    let to = tempfile::tempdir().unwrap();
    copy(&golden(name), to.path());
    to
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            fs::create_dir_all(&target).unwrap();
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

fn opened(folder: &Path) -> Checkpoint {
    let uri = folder.to_str().unwrap();
    let points = Failpoints::parse("").unwrap();
    let metrics = SharedMetrics::default();
    Checkpoint::new(Store::open(uri, &BTreeMap::new(), &Options::default(), metrics, points).unwrap())
}

/// All rows of the checkpoint's batches, in the order `order` gives them.
async fn rows(folder: &Path, order: impl Fn(&mut Vec<u64>)) -> Result<Rows> {
    let checkpoint = opened(folder);
    let mut batches: Vec<u64> = checkpoint.batches(Log::Commits).await?.into_keys().collect();
    let newest = *batches.last().expect("a batch");
    order(&mut batches);
    let files = checkpoint.state_files().await?;
    let operators = checkpoint.operators(&files, newest).await?;
    let operator = operators.first().ok_or_else(|| Error::not_found("no operator"))?;
    let scratch = tempfile::tempdir().unwrap();
    let mut found = Rows::new();
    let families = checkpoint.families(&files, operator.number, newest).await?;
    if families.iter().any(|family| family.name == "kept") {
        batches.retain(|batch| *batch + 2 >= newest); // of others the state was removed
        for batch in batches {
            let scratch = scratch.path().join(batch.to_string());
            let read = stored_rows::states(&checkpoint, operator, &families, batch, &scratch).await?;
            found.insert(batch, read);
        }
    } else if operator.name.starts_with("transformWithState") {
        let mut variable = TextVariable::open(&checkpoint, &files, operator, "handle", newest, scratch.path()).await?;
        for batch in batches {
            found.insert(batch, variable.after(batch).await?);
        }
    } else {
        for batch in batches {
            found.insert(batch, aggregates(&checkpoint, operator, batch, scratch.path()).await?);
        }
    }
    for rows in found.values_mut() {
        rows.sort();
    }
    Ok(found)
}

/// Key, count and sum of each row of an aggregation.
async fn aggregates(at: &Checkpoint, operator: &Operator, batch: u64, scratch: &Path) -> Result<Vec<(u32, String)>> {
    let mut found = Vec::new();
    for partition in 0..operator.stores[0].num_partitions {
        let scratch = scratch.join(format!("{batch}-{partition}"));
        let reader = at.state(&StoreId::only(operator.number, partition), batch, &scratch).await?;
        let rows = stored_rows::aggregate(&reader)?;
        assert_eq!(count(&reader, None)?, rows.len() as u64);
        found.extend(rows.into_iter().map(|row| (partition, row)));
    }
    Ok(found)
}

fn expected(name: &str) -> Option<Rows> {
    let text = fs::read(golden(name).join("expected.json")).ok()?;
    Some(serde_json::from_slice(&text).unwrap())
}

#[test]
fn each_version_and_provider_is_read_as_spark_reads_it() {
    for name in ALL {
        let ascending = runtime().block_on(rows(&golden(name), |_| ())).unwrap();
        let descending = runtime().block_on(rows(&golden(name), |batches| batches.reverse())).unwrap();
        assert_eq!(ascending, descending, "{name}: in any order");
        match expected(name) {
            Some(expected) => assert_eq!(ascending, expected, "{name}"),
            None => assert!(ascending.values().all(|rows| rows.len() == 2), "{name}: a handle for each partition"),
        }
    }
}

#[test]
fn p9_no_damage_to_any_file_changes_what_is_read() {
    // The files of 4.0 and 4.1 have the forms that the others have.
    for name in ALL.into_iter().filter(|name| !matches!(*name, "states-4.0" | "states-4.1")) {
        let whole = runtime().block_on(rows(&golden(name), |_| ())).unwrap();
        let original = golden(name);
        for file in files(&original) {
            let inside = file.strip_prefix(&original).unwrap().to_owned();
            // Spark protects the texts by nothing: a damaged number of partitions is another number.
            let is_text = !inside.starts_with("state") || inside.to_str().unwrap().contains("_metadata");
            let bytes = fs::read(&file).unwrap();
            let middle = bytes.len() / 2;
            let mut damages = vec![("truncated", bytes[..middle].to_vec()), ("emptied", Vec::new())];
            if !is_text {
                for at in [0, middle, bytes.len().saturating_sub(9)] {
                    let mut flipped = bytes.clone();
                    flipped[at] ^= 0x10;
                    damages.push(("flipped", flipped));
                }
            }
            for (damage, damaged) in damages {
                let copy = copied(name);
                fs::write(copy.path().join(&inside), damaged).unwrap();
                if let Ok(read) = runtime().block_on(rows(copy.path(), |_| ())) {
                    assert_eq!(read, whole, "{name}: {} {damage}", inside.display());
                }
            }
        }
    }
}

#[test]
fn p9_a_missing_file_is_an_error_that_names_the_state() {
    for name in ALL {
        let original = golden(name);
        let mut failed = 0;
        for file in files(&original.join("state")) {
            let copy = copied(name);
            fs::remove_file(copy.path().join(file.strip_prefix(&original).unwrap())).unwrap();
            let whole = expected(name);
            match runtime().block_on(rows(copy.path(), |_| ())) {
                Ok(read) => assert!(whole.is_none_or(|whole| whole == read), "{name}: {}", file.display()),
                Err(error) => {
                    failed += 1;
                    assert!(error.message().contains("state/0") || error.kind() == ErrorKind::NotFound, "{error}");
                }
            }
        }
        assert!(failed > 4, "{name}: files that are needed");
    }
}

#[test]
fn files_of_attempts_that_did_not_commit_are_not_read() {
    let (name, whole) = ("processor-4.3", expected("processor-4.3").unwrap());
    let copy = copied(name);
    let folder = copy.path().join("state/0/0");
    for (from, to) in [("10_", "11_abandoned.zip"), ("12_", "12_abandoned.changelog"), ("11_", "13.changelog")] {
        let of_version = |p: &&PathBuf| p.file_name().unwrap().to_str().unwrap().starts_with(from);
        let source = files(&folder).iter().find(of_version).unwrap().clone();
        fs::copy(source, folder.join(to)).unwrap();
    }
    fs::write(folder.join("notes.txt"), "a note").unwrap();
    assert_eq!(runtime().block_on(rows(copy.path(), |_| ())).unwrap(), whole);
}

#[test]
fn a_batch_that_spark_has_removed_is_told_with_evidence() {
    let checkpoint = opened(&golden("processor-4.3"));
    let scratch = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let files = checkpoint.state_files().await.unwrap();
        let operators = checkpoint.operators(&files, 11).await.unwrap();
        let opening = TextVariable::open(&checkpoint, &files, &operators[0], "handle", 11, scratch.path());
        let variable = opening.await.unwrap();
        assert!(variable.removed(3).unwrap().contains("state/0/0 is 10"));
        assert_eq!(variable.removed(9), None);
        let other = TextVariable::open(&checkpoint, &files, &operators[0], "other", 11, scratch.path()).await;
        assert_eq!(other.err().unwrap().kind(), ErrorKind::SchemaMismatch);
    });
}

#[test]
fn p7_a_large_file_is_read_over_the_scratch_folder() {
    let copy = copied("aggregate-hdfs");
    let (id, folder) = (StoreId::only(0, 0), copy.path().join("state/0/0"));
    // A snapshot of the newest version, which does not compress, in the place of older ones.
    let mut rng = StdRng::seed_from_u64(7);
    let value: Vec<u8> = (0..1000).map(|_| rng.random()).collect();
    let mut content = Vec::new();
    let rows = 12_000_u32;
    for row in 0..rows {
        for bytes in [&row.to_be_bytes()[..], &value] {
            content.extend((bytes.len() as u32).to_be_bytes());
            content.extend(bytes.iter().map(|byte| byte ^ rng.random::<u8>()));
        }
    }
    content.extend((-1_i32).to_be_bytes());
    let file = zstd::encode_all(&content[..], 1).unwrap();
    assert!(file.len() > 9 << 20, "{} bytes", file.len());
    fs::write(folder.join("12.snapshot"), &file).unwrap();

    let checkpoint = opened(copy.path());
    runtime().block_on(async {
        let scratch = tempfile::tempdir().unwrap();
        let reader = checkpoint.state(&id, 11, scratch.path()).await.unwrap();
        assert_eq!(count(&reader, None).unwrap(), u64::from(rows));
        assert!(files(scratch.path()).iter().all(|path| !path.ends_with("12.snapshot")), "the copy is removed");
        drop(reader);

        let listed = checkpoint.state_files().await.unwrap();
        let commit = checkpoint.commit(11).await.unwrap().unwrap();
        let version = Checkpoint::version_after(&commit, 11, &id, 0).unwrap();
        let halves = content.split_at(content.len() / 2);
        let again = [halves.0, halves.1].map(|half| zstd::encode_all(half, 1).unwrap()).concat();
        assert_ne!(again.len(), file.len());
        fs::write(folder.join("12.snapshot"), again).unwrap();
        let mut reader = checkpoint.reader(&listed, &id, scratch.path());
        reader.load(&version).await.unwrap();
        assert_eq!(count(&reader, None).unwrap(), u64::from(rows), "written again since the listing");
        drop(reader);
        fs::write(folder.join("12.snapshot"), &file[..8 << 20]).unwrap();
        let error = checkpoint.reader(&listed, &id, scratch.path()).load(&version).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        fs::remove_file(folder.join("12.snapshot")).unwrap();
        let error = checkpoint.reader(&listed, &id, scratch.path()).load(&version).await.unwrap_err();
        assert!(error.kind() == ErrorKind::NotFound && error.message().contains("vanished"), "{error}");
    });
}
