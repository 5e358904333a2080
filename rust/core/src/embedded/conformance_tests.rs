//! An embedded state as a host of states: what every host must do.
//!
//! Every run prints its seed; `FASTCHANGELOG_SEED=<n>` replays it.

use super::catalog::Declaration;
use super::lifetime::Lifetime;
use super::member::Member;
use super::tests::world;
use super::*;
use crate::kinds::page::{At, Keys, OfKey, Page, PageBounds, Rows};
use crate::kinds::testing::*;
use crate::kinds::timers::{self, DueRange};
use crate::kinds::write::{Bytes as Column, Changes, Ops};
use crate::kinds::{Kind, map, value};
use arrow_array::builder::{Int64Builder, ListBuilder};
use arrow_array::{Array, ArrayRef, BinaryArray, ListArray};
use fastchangelog_format::model::StateId;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::atomic::Ordering as Atomic;

const TTL: i64 = 20;

/// The states of the shared catalog.
struct Members(Vec<Member>);

fn declared(state: &EmbeddedState) -> Members {
    let states: Vec<serde_json::Value> = serde_json::from_str(CATALOG).unwrap();
    let declare = |entry: &serde_json::Value| {
        let kind: Kind = serde_json::from_value(entry["kind"].clone()).unwrap();
        let ttl = entry["ttl"].as_bool().unwrap_or(false);
        let map_key = (kind == Kind::Map).then_some("binary");
        let name = entry["name"].as_str().unwrap();
        let declared = Declaration { name, kind, key: "binary", map_key, value: "binary", ttl };
        let lifetime = Lifetime::of(ttl.then(|| Duration::from_millis(TTL.unsigned_abs()))).unwrap();
        Member::declare(&state.core, declared, lifetime, |_| Ok(())).unwrap().0
    };
    Members(states.iter().map(declare).collect())
}

impl Members {
    fn of(&self, state: StateId) -> &Member {
        &self.0[usize::from(state.0)]
    }

    fn write(&self, write: &Write) -> Result<()> {
        let ops: Vec<u8> = write.rows.iter().map(|row| row.0).collect();
        let keys = binary(write.rows.iter().map(|row| &row.1));
        let subs = optional(write.rows.iter().map(|row| row.2.clone()));
        let values = optional(write.rows.iter().map(|row| row.3.clone()));
        let changes = Changes {
            ops: Ops::Each(&ops),
            subs: Some(Column::Column(&subs)),
            values: Some(Column::Column(&values)),
            ..Changes::of_keys(PUT, Column::Column(&keys))
        };
        self.of(write.state).write(changes)
    }
}

impl Host for Members {
    fn get(&mut self, state: StateId, keys: &BinaryArray) -> Result<BinaryArray> {
        let found =
            self.of(state).read(|view, state| value::look_up(view, state, GROUPS, Column::Column(keys), usize::MAX))?;
        Ok(found.to_column())
    }

    fn get_entries(&mut self, state: StateId, keys: &BinaryArray, subs: &BinaryArray) -> Result<BinaryArray> {
        let found = self.of(state).read(|view, state| {
            map::look_up(view, state, GROUPS, (Column::Column(keys), Column::Column(subs)), usize::MAX)
        })?;
        Ok(found.to_column())
    }

    fn entries(&mut self, state: StateId, key: &Bytes, max_bytes: usize) -> Result<Entries> {
        let (member, keys) = (self.of(state), binary([key]));
        let (state, rules) = (member.now()?, member.kind.rules());
        let bounds = PageBounds { of_key: max_bytes, all: usize::MAX };
        let (page, mut more) = member.core.view(true, |view| {
            let mut page = Page::default();
            let pages = rules.add_first_pages(Keys { view, state, groups: GROUPS, bytes: &keys }, bounds, &mut page)?;
            Ok((page.finish(), pages[0].1))
        })?;
        let mut found = entries_of(&(Arc::new(page) as ArrayRef));
        let mut after = match found.last() {
            Some((Some(sub), _)) => Some(sub.clone()),
            _ => Some((found.len() as u64).to_be_bytes().to_vec()),
        };
        while more {
            let (page, end) = member.core.view(true, |view| {
                let mut page = Page::default();
                let end =
                    rules.add_page(OfKey { view, state, group: GROUP, key }, after.as_deref(), max_bytes, &mut page)?;
                Ok((page.finish(), end))
            })?;
            found.extend(entries_of(&(Arc::new(page) as ArrayRef)));
            (more, after) = (end.is_some(), end);
        }
        Ok(found)
    }

    fn rows(&mut self, state: StateId, max_bytes: usize) -> Result<StateRows> {
        let (member, mut found, mut at) = (self.of(state), Vec::new(), Some(At::Start));
        let state = member.now()?;
        while let Some(from) = at.take() {
            let mut from = Some(from);
            let (page, end) = member.core.view(true, |view| {
                let mut rows = Rows::new(max_bytes);
                let end = rows.add(view, state, GROUP, from.take().unwrap())?;
                Ok((rows.finish()?, end))
            })?;
            let keys = bytes(page.column(0)).into_iter().flatten();
            let rest = bytes(page.column(1)).into_iter().zip(bytes(page.column(2)));
            found.extend(keys.zip(rest).map(|(key, (sub, value))| (key, sub, value)));
            at = end;
        }
        Ok(found)
    }

    fn due(&mut self, until: i64, limit: usize) -> Result<Vec<(i64, Bytes)>> {
        let (member, to) = (self.of(TIMERS), timers::end_of_due(until));
        let (mut found, mut after) = (Vec::new(), None::<Bytes>);
        loop {
            let range = DueRange { after: after.as_deref(), to: &to, limit };
            let page = member
                .core
                .view(true, |view| timers::due(view, member.id, &[GROUP], range, &mut member.core.hints()))?;
            found.extend(timers::split(&page.timers)?.into_iter().map(|(time, key)| (time, key.to_vec())));
            after = page.timers.keys().last().map(|entry| entry[1..].to_vec());
            if !page.more {
                return Ok(found);
            }
        }
    }

    fn next_timer(&mut self) -> Result<Option<i64>> {
        let Member { core, id, .. } = self.of(TIMERS);
        let first = core.view(true, |view| {
            let (first, groups) = timers::known_first(&core.hints(), *id, std::iter::once(GROUP));
            timers::find_first(view, *id, first, &groups, &mut core.hints())
        })?;
        Ok(first.as_deref().and_then(timers::time_of_timer))
    }

    fn timers_of(&mut self, keys: &BinaryArray) -> Result<ListArray> {
        let mut lists = ListBuilder::new(Int64Builder::new());
        let member = self.of(TIMERS);
        for i in 0..keys.len() {
            let times =
                member.core.view(true, |view| timers::times_of(view, &mut None, member.place(), keys.value(i)))?;
            lists.values().append_slice(&times);
            lists.append(true);
        }
        Ok(lists.finish())
    }
}

#[test]
fn an_embedded_state_is_what_plain_maps_would_be() {
    for seed in crate::shard::testing::seeds(6) {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let changes = rng.random_bool(0.5).then(|| rng.random_range(0..4_000));
        let world = super::tests::World { changes, ..world(&[("max_handle_segments", "4")]) };
        let mut state = world.open().state;
        let mut members = declared(&state);
        let (mut model, mut committed, names) = (Model::default(), Model::default(), names(0..7));
        for step in 0..80 {
            let now = world.now.fetch_add(rng.random_range(0..6), Atomic::SeqCst);
            let now = now.max(world.now.load(Atomic::SeqCst));
            let mut made = random_write(&mut rng, &names, now, 300);
            made.ends = made.ends.map(|_| now + TTL);
            members.write(&made).unwrap();
            model.apply(&made);
            match rng.random_range(0..10) {
                0 | 1 => {
                    state.checkpoint().unwrap();
                    committed = model.clone();
                }
                2 => {
                    drop((members, state));
                    state = world.open().state;
                    members = declared(&state);
                    model = committed.clone();
                }
                _ => {}
            }
            if rng.random_bool(0.3) {
                assert_is(&mut members, &model, now, &names, &mut rng, &format!("seed {seed}, step {step}"));
            }
        }
    }
}

#[test]
fn a_refused_write_changes_nothing() {
    let world = world(&[]);
    let state = world.open().state;
    let mut members = declared(&state);
    let row = |op, sub: Option<&[u8]>, value: Option<&[u8]>| {
        (op, key("k"), sub.map(<[u8]>::to_vec), value.map(<[u8]>::to_vec))
    };
    for (state, wrong, said) in [
        (VALUE, row(PUT, None, None), "no value"),
        (VALUE, row(APPEND, None, Some(b"v")), "not one of this kind"),
        (LIST, row(APPEND, None, None), "no value"),
        (LIST, row(DELETE, None, None), "not one of this kind"),
        (MAP, row(PUT, None, Some(b"v")), "no map key"),
        (MAP, row(PUT, Some(b"s"), None), "no value"),
        (TIMERS, row(PUT, Some(b"1234567"), None), "eight bytes"),
    ] {
        let right = match state {
            LIST => row(APPEND, None, Some(b"v")),
            MAP => row(PUT, Some(b"s"), Some(b"v")),
            TIMERS => row(PUT, Some(b"12345678"), None),
            _ => row(PUT, None, Some(b"v")),
        };
        let error = members.write(&Write { state, rows: vec![right, wrong], ends: None }).unwrap_err();
        assert!(error.message().contains("change 1") && error.message().contains(said), "{error}");
    }
    let mut rng = StdRng::seed_from_u64(1);
    assert_is(&mut members, &Model::default(), 0, &names(0..3), &mut rng, "nothing was written");
}
