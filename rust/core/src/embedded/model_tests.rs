//! Random histories of an embedded state against a plain map.
//!
//! Every run prints its seed; `FASTCHANGELOG_SEED=<n>` replays it.

use super::tests::{Opened, World, keys, world};
use super::*;
use arrow_array::{ArrayRef, Int64Array};
use fastchangelog_columns::typed::KeyRange;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;

type Model = BTreeMap<String, i64>;

struct History {
    world: World,
    opened: Option<Opened>,
    model: Model,
    /// What the newest checkpoint holds, and the older ones with their handles.
    committed: Model,
    checkpoints: Vec<(ShardHandle, Model)>,
}

fn key(rng: &mut StdRng) -> String {
    // Few letters and lengths around the blocks of the encoding, so that keys meet and are prefixes of each other.
    let length = [0, 1, 2, 7, 8, 9, 33][rng.random_range(0..7)];
    (0..length).map(|_| ['a', 'b', 'ü'][rng.random_range(0..3)]).collect()
}

impl History {
    fn state(&self) -> &Opened {
        self.opened.as_ref().unwrap()
    }

    fn put(&mut self, rng: &mut StdRng) {
        let rows: Vec<(String, Option<i64>)> = (0..rng.random_range(1..30))
            .map(|_| (key(rng), rng.random_bool(0.8).then(|| rng.random_range(0..5))))
            .collect();
        let names: Vec<&str> = rows.iter().map(|(k, _)| k.as_str()).collect();
        let values: ArrayRef = Arc::new(Int64Array::from(rows.iter().map(|(_, v)| *v).collect::<Vec<_>>()));
        self.state().table.put(&keys(&names), &values).unwrap();
        for (key, value) in rows {
            self.model.remove(&key);
            self.model.extend(value.map(|value| (key, value)));
        }
    }

    fn delete(&mut self, rng: &mut StdRng) {
        let names: Vec<String> = (0..rng.random_range(1..10)).map(|_| key(rng)).collect();
        self.state().table.delete(&keys(&names.iter().map(String::as_str).collect::<Vec<_>>())).unwrap();
        self.model.retain(|key, _| !names.contains(key));
    }

    fn check(&self, rng: &mut StdRng) {
        let state = self.state();
        for _ in 0..10 {
            let name = key(rng);
            assert_eq!(state.get(&name), self.model.get(&name).copied(), "get {name:?}");
        }
        let rows = rng.random_range(1..8);
        let all: Vec<(String, i64)> = self.model.clone().into_iter().collect();
        assert_eq!(state.all(KeyRange::default(), rows), all, "scan");
        let (from, to) = (key(rng), key(rng));
        let bound = |name: &str| state.table.types().bound(&keys(&[name])).unwrap();
        let range = KeyRange { from: bound(&from), to: Some(bound(&to)) };
        let part: Vec<_> = all.iter().filter(|(k, _)| *k >= from && *k < to).cloned().collect();
        assert_eq!(state.all(range, rows), part, "scan {from:?}..{to:?}");
        let range = state.table.types().beginning_with(&keys(&[&from])).unwrap();
        let part: Vec<_> = all.iter().filter(|(k, _)| k.starts_with(&from)).cloned().collect();
        assert_eq!(state.all(range, rows), part, "scan of {from:?}…");
    }

    fn checkpoint(&mut self) {
        let handle = self.state().state.checkpoint().unwrap();
        assert_eq!(handle.state_keys, self.model.len() as u64);
        self.committed = self.model.clone();
        self.checkpoints.push((handle, self.model.clone()));
    }

    /// A checkpoint that fails somewhere, before it is published.
    fn failed_checkpoint(&mut self, rng: &mut StdRng) {
        let points = ["local.before-seal", "write.before-upload", "session.durable", "local.before-head"];
        let point = points[rng.random_range(0..points.len())];
        self.world.failpoints.set(&format!("{point}=error")).unwrap();
        let failed = self.state().state.checkpoint();
        self.world.failpoints.clear();
        // Without a change there is nothing that could fail.
        assert!(failed.is_err() || self.model == self.committed, "{point}");
    }

    /// The end of a process: closed or just gone, the state of the last checkpoint is what is found.
    fn reopen(&mut self, rng: &mut StdRng) {
        let opened = self.opened.take().unwrap();
        let (gone, closes) = (rng.random_bool(0.5), rng.random_bool(0.5));
        if closes {
            opened.state.close();
        }
        if gone {
            // The old one still lives while the new one opens, as a zombie.
            self.opened = Some(self.world.open());
            if !closes {
                let zombie = opened.state.checkpoint().unwrap_err();
                assert_eq!(zombie.kind(), ErrorKind::Fenced, "{zombie}");
            }
        } else {
            drop(opened);
            self.opened = Some(self.world.open());
        }
        self.model = self.committed.clone();
    }

    fn go_back(&mut self, rng: &mut StdRng) {
        let Some(at) = self.checkpoints.len().checked_sub(rng.random_range(1..5)) else { return };
        let (handle, model) = self.checkpoints[at].clone();
        self.opened = None;
        self.opened = Some(self.world.open_with(|request| request.handle = Some(handle)));
        (self.model, self.committed) = (model.clone(), model);
    }

    fn materialize(&self) {
        let core = &self.state().state.core;
        if let Some(run) = core.shard().begin_materialize().unwrap() {
            run.run().unwrap();
            run.complete().unwrap();
        }
    }
}

#[test]
fn s_a_state_in_process_is_what_a_map_would_be() {
    for seed in crate::shard::testing::seeds(4) {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let world = world(&[("max_handle_segments", "4"), ("max_attempts", "1")]);
        let opened = Some(world.open());
        let mut history =
            History { world, opened, model: Model::new(), committed: Model::new(), checkpoints: Vec::new() };
        for _ in 0..80 {
            match rng.random_range(0..20) {
                0..8 => history.put(&mut rng),
                8..10 => history.delete(&mut rng),
                10..14 => history.checkpoint(),
                14 | 15 => history.failed_checkpoint(&mut rng),
                16 | 17 => history.reopen(&mut rng),
                18 => history.go_back(&mut rng),
                _ => history.materialize(),
            }
            history.check(&mut rng);
        }
    }
}
