//! What the query of a story does with its state, and a plain model beside it.
//!
//! Owns: what a story needs of a kind of session.
//! Does not own: aggregates (`aggregates`), stateful processors (`processors`), servers and batches (`world`).

use crate::story::Story;
use fastchangelog_core::engine::{Engine, OpenRequest, Operator};
use fastchangelog_format::Error;
use fastchangelog_format::model::ShardHandle;
use std::sync::Arc;

/// Why an execution came to nothing.
#[derive(Debug)]
pub enum Trouble {
    /// A server said so.
    Failed(Error),
    /// It is not what the model has.
    Wrong(String),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Failed(error) => error.fmt(f),
            Self::Wrong(text) => f.write_str(text),
        }
    }
}

/// A kind of session.
pub trait Work {
    const OPERATOR: Operator;
    /// What the state of all shards is.
    type Model: Clone;
    /// One batch of all shards: its input, and what its executions must find.
    type Batch;
    type Session;

    fn of(story: &Story) -> Self;

    /// What a request says is computed.
    fn spec(&self) -> String;

    /// The state before the first batch.
    fn nothing(&self) -> Self::Model;

    /// The batch of these rows at a time, and the state after it.
    fn batch(&self, before: &Self::Model, rows: &[(u32, i64)], now: i64) -> (Self::Batch, Self::Model);

    /// A batch that reads all of a state.
    fn reading(&self, state: &Self::Model, now: i64) -> Self::Batch;

    /// Rows after which nothing of the state lasts; none if such a state does not become empty.
    fn last_rows() -> Option<Vec<(u32, i64)>>;

    /// Keys that the executions of all shards answer for.
    fn answers(batch: &Self::Batch) -> usize;

    /// A session that has got its shard's input.
    fn open(&self, engine: &Arc<Engine>, request: &OpenRequest, batch: &Self::Batch) -> Result<Self::Session, Trouble>;

    /// Computes and compares the results. Returns how many keys they answer for.
    fn finish(&self, session: &mut Self::Session, batch: &Self::Batch) -> Result<usize, Trouble>;

    fn commit(&self, session: &mut Self::Session, batch: &Self::Batch) -> Result<ShardHandle, Trouble>;
}
