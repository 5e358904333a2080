//! Aggregates by key: sessions of them, and a plain map.
//!
//! Owns: what a row does, and that results are those of the map.
//! Does not own: when sessions are opened, and where (`world`).

use crate::common::{Key, Model, Row, collect, spec, split};
use crate::story::Story;
use crate::work::{Trouble, Work};
use fastchangelog_core::engine::{Engine, OpenRequest, Operator, Session};
use fastchangelog_format::Error;
use fastchangelog_format::model::ShardHandle;
use std::sync::Arc;

pub struct Aggregates {
    shards: u32,
    padding: usize,
    spec: String,
}

pub struct Batch {
    payloads: Vec<(u32, Vec<u8>)>,
    /// The changed keys.
    expected: Model,
}

impl Aggregates {
    fn key(&self, key: u32) -> Key {
        (key > 0).then(|| format!("k{key}{}", "=".repeat(self.padding)))
    }
}

impl Work for Aggregates {
    const OPERATOR: Operator = Operator::Aggregate;
    type Model = Model;
    type Batch = Batch;
    type Session = Session;

    fn of(story: &Story) -> Self {
        Self { shards: story.shards, padding: story.padding, spec: spec(true) }
    }

    fn spec(&self) -> String {
        self.spec.clone()
    }

    fn nothing(&self) -> Model {
        Model::new()
    }

    fn batch(&self, before: &Model, rows: &[(u32, i64)], _: i64) -> (Batch, Model) {
        let rows: Vec<Row> = rows.iter().map(|(key, amount)| (self.key(*key), *amount)).collect();
        let (mut model, mut expected) = (before.clone(), Model::new());
        for (key, amount) in &rows {
            let entry = model.entry(key.clone()).or_insert((0, 0, i64::MIN));
            *entry = (entry.0 + 1, entry.1 + amount, entry.2.max(*amount));
            expected.insert(key.clone(), *entry);
        }
        (Batch { payloads: split(&self.spec, self.shards, &rows), expected }, model)
    }

    /// It touches every key once.
    fn reading(&self, state: &Model, _: i64) -> Batch {
        let rows: Vec<Row> = state.keys().map(|key| (key.clone(), 0)).collect();
        let expected =
            |(key, (n, total, best)): (&Key, &(i64, i64, i64))| (key.clone(), (n + 1, *total, (*best).max(0)));
        Batch { payloads: split(&self.spec, self.shards, &rows), expected: state.iter().map(expected).collect() }
    }

    fn last_rows() -> Option<Vec<(u32, i64)>> {
        None
    }

    fn answers(batch: &Batch) -> usize {
        batch.expected.len()
    }

    fn open(&self, engine: &Arc<Engine>, request: &OpenRequest, batch: &Batch) -> Result<Session, Trouble> {
        let mut session = engine.open(request)?;
        for (_, payload) in batch.payloads.iter().filter(|(shard, _)| *shard == request.shard) {
            session.merge(payload)?;
        }
        Ok(session)
    }

    fn finish(&self, session: &mut Session, batch: &Batch) -> Result<usize, Trouble> {
        let mut found = Model::new();
        session.finish()?.try_for_each(|batch| batch.map(|batch| collect(&batch, &mut found)))?;
        match found.iter().find(|(key, value)| batch.expected.get(*key) != Some(value)) {
            None => Ok(found.len()),
            Some((key, value)) => {
                let key_text: String = key.as_deref().unwrap_or("null").chars().take(8).collect();
                let expected = batch.expected.get(key);
                Err(Trouble::Wrong(format!("key {key_text} has {value:?}, expected is {expected:?}")))
            }
        }
    }

    fn commit(&self, session: &mut Session, _: &Batch) -> Result<ShardHandle, Trouble> {
        Ok(session.commit()?.handle.ok_or_else(|| Error::internal("a commit without a handle"))?)
    }
}
