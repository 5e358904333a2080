//! The states of an open embedded state.
//!
//! Owns: their declaration. Does not own: what each of them does (its own module), which declarations fit (`catalog`).

use super::codec::ValueTypes;
use super::{AggregatingState, EmbeddedState, ListState, MapState, TimerState, ValueState};
use arrow_schema::DataType;
use fastchangelog_columns::aggregate::NamedCall;
use fastchangelog_format::error::Result;
use std::time::Duration;

impl EmbeddedState {
    /// A state of single values by key. Its types are kept: later the key's must be the same, the value's may evolve (see
    /// `columns::evolution`), and a `ttl` must be given again or not at all: how long a value lives after it was set.
    pub fn value_state(
        &self,
        name: &str,
        key: &DataType,
        value: &DataType,
        ttl: Option<Duration>,
    ) -> Result<ValueState> {
        ValueState::declare(&self.core, name, ValueTypes { key, value, ttl })
    }

    /// A state of maps by key, with entries by map key; `ttl`: of each entry.
    pub fn map_state(
        &self,
        name: &str,
        (key, map_key): (&DataType, &DataType),
        value: &DataType,
        ttl: Option<Duration>,
    ) -> Result<MapState> {
        MapState::declare(&self.core, name, ValueTypes { key, value, ttl }, map_key)
    }

    /// A state of lists by key, with elements of the type `value`; `ttl`: of each element.
    pub fn list_state(&self, name: &str, key: &DataType, value: &DataType, ttl: Option<Duration>) -> Result<ListState> {
        ListState::declare(&self.core, name, ValueTypes { key, value, ttl })
    }

    /// A state of aggregates by key, of rows of the type `rows`; `ansi`: an overflow is an error; `ttl`: how long an aggregate is
    /// there after the last row was added.
    pub fn aggregating_state(
        &self,
        name: &str,
        (key, rows): (&DataType, &DataType),
        calls: &[NamedCall],
        ansi: bool,
        ttl: Option<Duration>,
    ) -> Result<AggregatingState> {
        AggregatingState::declare(&self.core, name, (key, rows), calls, ansi, ttl)
    }

    /// A state of timers: times by key, in order.
    pub fn timers(&self, name: &str, key: &DataType) -> Result<TimerState> {
        TimerState::declare(&self.core, name, key)
    }
}
