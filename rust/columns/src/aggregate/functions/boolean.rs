//! `bool_and`, `bool_or`.
//!
//! Owns: their names. They are the least and the greatest boolean (`extreme`).

use super::extreme;
use crate::aggregate::accumulator::{Bound, Call};

pub(super) fn bool_and(call: &Call<'_>) -> Option<Bound> {
    extreme::bind(false, call.types[0])
}

pub(super) fn bool_or(call: &Call<'_>) -> Option<Bound> {
    extreme::bind(true, call.types[0])
}
