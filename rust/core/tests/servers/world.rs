//! What a story plays in: servers, a driver as Spark's is, a bucket, and a plain map beside the state.
//!
//! Owns: what each step does, and what must hold after it.
//! Does not own: which steps there are (`story`), what handles reach (`bucket`).
//!
//! After each step: every object that a retained handle leads to is there. After each batch: its results are those of the
//! map. At the end: every retained version is restored where nothing is; and at each server snapshots come again that cut the
//! log off.

use crate::bucket::{Bucket, GRACE};
use crate::common::{Key, Model, Row, collect, spec, split};
use crate::story::{Attempt, Fate, KEYS, Step, Story};
use fastchangelog_core::engine::{
    Engine, EngineConfig, MaterializeRun, OpenRequest, Operator, Session, format_handle, parse_handle,
};
use fastchangelog_format::clock::{Clock, ManualClock};
use fastchangelog_format::config::Options;
use fastchangelog_format::model::ShardHandle;
use fastchangelog_format::{Error, ErrorKind};
use fastchangelog_store::failpoint::Failpoints;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// What went wrong.
pub type Played<T = ()> = Result<T, String>;

/// Attempts that a server may fail after local files were lost or failpoints were set.
const EXCUSES: usize = 12;
/// Batches in which a server must have cut the log off, at the end; and one whose local disk has failed.
const ROUNDS: usize = 4;
const ROUNDS_AFTER_FAILURES: usize = 5;

struct Server {
    local: tempfile::TempDir,
    engine: Arc<Engine>,
    /// Materializations in progress, by shard; true when the long part is over.
    runs: BTreeMap<String, (MaterializeRun, bool)>,
    /// Something was done to it that makes attempts fail.
    shaky: bool,
}

/// An execution that stands still.
struct Stuck {
    server: usize,
    session: Session,
    /// What its results must be, if it has any.
    expected: Model,
}

/// A batch that Spark committed.
#[derive(Clone, Default)]
struct Committed {
    handles: Vec<Option<ShardHandle>>,
    model: Model,
}

pub struct World<'a> {
    story: &'a Story,
    clock: Arc<ManualClock>,
    // Before the servers: it is dropped first.
    stuck: Vec<Stuck>,
    servers: Vec<Server>,
    bucket: Bucket,
    spec: String,
    /// The batches that the checkpoint retains; the last is the newest.
    retained: Vec<Committed>,
    batch: i64,
    checked: BTreeSet<String>,
}

impl Server {
    fn start(local: tempfile::TempDir, clock: &Arc<ManualClock>) -> Self {
        let config = EngineConfig {
            local_dir: local.path().to_owned(),
            options: Options { memory_budget: 64 << 20, ..Options::default() },
            clock: Arc::clone(clock) as _,
            metrics: Arc::default(),
            failpoints: Failpoints::none(),
        };
        Self { engine: Engine::start(config).unwrap(), local, runs: BTreeMap::new(), shaky: false }
    }
}

/// All of a story.
pub fn play(story: &Story) -> Played {
    let mut world = World::of(story);
    for (i, step) in story.steps.iter().enumerate() {
        let told = world.step(step).and_then(|()| world.check());
        told.map_err(|error| format!("step {i}: {error}"))?;
    }
    world.end().map_err(|error| format!("at the end: {error}"))
}

impl<'a> World<'a> {
    fn of(story: &'a Story) -> Self {
        let clock = ManualClock::at(1_000_000_000);
        let first = Committed { handles: vec![None; story.shards as usize], model: Model::new() };
        Self {
            stuck: Vec::new(),
            servers: (0..story.servers).map(|_| Server::start(tempfile::tempdir().unwrap(), &clock)).collect(),
            bucket: Bucket::new(&clock, "query/default"),
            clock,
            spec: spec(true),
            retained: vec![first],
            batch: 0,
            checked: BTreeSet::new(),
            story,
        }
    }

    fn newest(&self) -> &Committed {
        self.retained.last().expect("one batch is always retained")
    }

    fn handles(&self) -> Vec<ShardHandle> {
        self.retained.iter().flat_map(|batch| batch.handles.iter().flatten().cloned()).collect()
    }

    fn key(&self, key: u32) -> Key {
        (key > 0).then(|| format!("k{key}{}", "=".repeat(self.story.padding)))
    }

    fn step(&mut self, step: &Step) -> Played {
        match step {
            Step::Batch { rows, attempts, keep, pause } => self.run_batch(rows, attempts, *keep, *pause)?,
            Step::Begin(server) => self.begin(*server)?,
            Step::Run(server) => self.run(*server)?,
            Step::Complete(server) => self.complete(*server)?,
            Step::Abort(server) => {
                let runs = std::mem::take(&mut self.servers[*server].runs);
                runs.into_values().for_each(|(run, _)| run.abort("a step"));
            }
            Step::Materialize(server) => {
                self.begin(*server)?;
                self.run(*server)?;
                self.complete(*server)?;
            }
            Step::Wake => self.wake()?,
            Step::CloseIdle(server) => {
                self.clock.advance(Duration::from_mins(11));
                self.servers[*server].engine.close_idle();
            }
            Step::Die { server, wipe } => self.die(*server, *wipe),
            Step::LoseFiles(server) => {
                let server = &mut self.servers[*server];
                let _ = std::fs::remove_dir_all(server.local.path().join("shards"));
                server.shaky = true;
            }
            Step::Fail { server, point } => {
                let server = &mut self.servers[*server];
                server.engine.failpoints().set(&format!("{point}=error@1")).unwrap();
                server.shaky = true;
            }
            Step::Advance(minutes) => self.clock.advance(Duration::from_mins(*minutes)),
            Step::Sweep => self.bucket.sweep(&self.handles(), None),
            Step::Retire(n) => drop(self.retained.drain(..(*n).min(self.retained.len() - 1))),
            Step::RollBack(n) => {
                self.retained.truncate(self.retained.len().saturating_sub(*n).max(1));
                let newest = self.newest().handles.iter().flatten().map(|handle| handle.batch.0).max();
                self.batch = newest.map_or(0, |batch| batch + 1);
            }
            Step::Restore(n) => {
                let batch = self.retained[n % self.retained.len()].clone();
                self.restore(&batch)?;
            }
        }
        Ok(())
    }

    /// Every object that a retained handle leads to is there.
    fn check(&mut self) -> Played {
        let listed = self.bucket.listed();
        for handle in self.handles() {
            for object in self.bucket.closure(&handle) {
                if !listed.contains(&object.name) {
                    return Err(format!(
                        "the handle of batch {} names {}, which is not there",
                        handle.batch.0, object.name
                    ));
                }
                if self.checked.insert(object.name.clone()) {
                    self.bucket.get(&object).map_err(|error| format!("batch {}: {error}", handle.batch.0))?;
                }
            }
        }
        Ok(())
    }

    // Batches

    fn request(&self, shard: u32, handle: Option<&ShardHandle>, batch: i64) -> OpenRequest {
        let fixed = [("persist_delay", "1ms"), ("retry_delay", "1ms"), ("max_attempts", "2")];
        let options = fixed.iter().chain(&self.story.options);
        OpenRequest {
            root: self.bucket.root.clone(),
            query_id: "query".into(),
            name: "default".into(),
            shard,
            shards: self.story.shards,
            batch,
            handle: handle.map(format_handle),
            operator: Operator::Aggregate,
            spec: self.spec.clone(),
            ephemeral: false,
            options: options.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            storage_options: BTreeMap::new(),
            credentials_expire_at: None,
        }
    }

    /// Repeats what fails at a server to which something was done.
    fn excused<T>(
        &self,
        server: usize,
        what: &str,
        mut attempt: impl FnMut() -> fastchangelog_format::Result<T>,
    ) -> Played<T> {
        for _ in 0..EXCUSES {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(error) if !self.servers[server].shaky => return Err(format!("{what} at server {server}: {error}")),
                Err(_) => {}
            }
        }
        attempt().map_err(|error| format!("{what} at server {server}, again and again: {error}"))
    }

    /// A session of a shard on top of the newest batch, with its payloads merged.
    fn open(&self, server: usize, shard: u32, payloads: &[(u32, Vec<u8>)]) -> fastchangelog_format::Result<Session> {
        let handle = self.newest().handles[shard as usize].as_ref();
        let mut session = self.servers[server].engine.open(&self.request(shard, handle, self.batch))?;
        payloads.iter().filter(|(s, _)| *s == shard).try_for_each(|(_, payload)| session.merge(payload))?;
        Ok(session)
    }

    fn run_batch(&mut self, rows: &[(u32, i64)], attempts: &[Vec<Attempt>], keep: usize, pause: Option<u64>) -> Played {
        let since = self.clock.now_millis();
        let rows: Vec<Row> = rows.iter().map(|(key, amount)| (self.key(*key), *amount)).collect();
        let mut model = self.newest().model.clone();
        let mut changed = Model::new();
        for (key, amount) in &rows {
            let entry = model.entry(key.clone()).or_insert((0, 0, i64::MIN));
            *entry = (entry.0 + 1, entry.1 + amount, entry.2.max(*amount));
            changed.insert(key.clone(), *entry);
        }
        let payloads = split(&self.spec, self.story.shards, &rows);
        let (mut handles, mut seen) = (Vec::new(), 0);
        for (shard, attempts) in (0..).zip(attempts) {
            let mut finished = Vec::new();
            for Attempt { server, fate } in attempts.iter().copied() {
                let what = format!("an execution of batch {} of shard {shard}", self.batch);
                if matches!(fate, Fate::Opened | Fate::Stuck) {
                    let session = self.excused(server, &what, || self.open(server, shard, &payloads))?;
                    if fate == Fate::Stuck {
                        self.stuck.push(Stuck { server, session, expected: changed.clone() });
                    }
                    continue;
                }
                let (session, found) = self.excused(server, &what, || {
                    let mut session = self.open(server, shard, &payloads)?;
                    let mut found = Model::new();
                    session.finish()?.try_for_each(|batch| batch.map(|batch| collect(&batch, &mut found)))?;
                    Ok((session, found))
                })?;
                compare(&found, &changed).map_err(|error| format!("{what} at server {server}: {error}"))?;
                if fate == Fate::Committed {
                    finished.push((server, session, found.len()));
                }
            }
            if let Some(minutes) = pause {
                self.clock.advance(Duration::from_mins(minutes));
                self.bucket.listed();
                self.bucket.sweep(&self.handles(), Some(since));
                self.check()?;
            }
            let mut committed = Vec::new();
            for (server, mut session, keys) in finished {
                match session.commit() {
                    Ok(commit) => committed.push((commit.handle, keys)),
                    Err(_) if self.servers[server].shaky => {}
                    Err(error) => {
                        return Err(format!("the commit of batch {} at server {server}: {error}", self.batch));
                    }
                }
            }
            if committed.is_empty() {
                // The failure of a commit that was arranged; Spark tries again.
                let server = attempts.last().map_or(0, |attempt| attempt.server);
                committed.push(self.excused(server, "one more execution", || {
                    let mut session = self.open(server, shard, &payloads)?;
                    let mut found = Model::new();
                    session.finish()?.try_for_each(|batch| batch.map(|batch| collect(&batch, &mut found)))?;
                    Ok((session.commit()?.handle, found.len()))
                })?);
            }
            let (handle, keys) = committed.swap_remove(keep % committed.len());
            let handle = handle.ok_or("a commit without a handle")?;
            if parse_handle(&format_handle(&handle)).ok().as_ref() != Some(&handle) {
                return Err(format!("a handle of batch {} changes when it is written and read", self.batch));
            }
            seen += keys;
            handles.push(Some(handle));
        }
        if seen != changed.len() {
            return Err(format!("batch {} changed {} keys, and answered {seen}", self.batch, changed.len()));
        }
        self.retained.push(Committed { handles, model });
        self.batch += 1;
        Ok(())
    }

    /// What stood still longest goes on: its results are right, or it is told to try again.
    fn wake(&mut self) -> Played {
        if self.stuck.is_empty() {
            return Ok(());
        }
        let Stuck { server, mut session, expected } = self.stuck.remove(0);
        let shaky = self.servers[server].shaky;
        let mut found = Model::new();
        let finished = session
            .finish()
            .and_then(|mut results| results.try_for_each(|batch| batch.map(|batch| collect(&batch, &mut found))));
        match finished.and_then(|()| session.commit()) {
            Ok(_) => {
                compare(&found, &expected).map_err(|error| format!("an old execution at server {server}: {error}"))
            }
            Err(error) if error.kind() == ErrorKind::Retryable || shaky => Ok(()),
            Err(error) => Err(format!("an old execution at server {server}: {error}")),
        }
    }

    // Servers

    fn die(&mut self, server: usize, wipe: bool) {
        self.stuck.retain(|stuck| stuck.server != server);
        let fresh = Server::start(tempfile::tempdir().unwrap(), &self.clock);
        let Server { local, engine, runs, .. } = std::mem::replace(&mut self.servers[server], fresh);
        drop((runs, engine));
        if !wipe {
            self.servers[server] = Server::start(local, &self.clock);
        }
    }

    fn begin(&mut self, server: usize) -> Played {
        let server = &mut self.servers[server];
        for status in server.engine.shards() {
            let begun = server.engine.begin_materialize(&status.id).map_err(|error| format!("a begin: {error}"))?;
            if let Some(run) = begun
                && server.runs.insert(status.id, (run, false)).is_some()
            {
                return Err("two materializations of one shard were begun".into());
            }
        }
        Ok(())
    }

    fn run(&mut self, server: usize) -> Played {
        let Server { runs, shaky, .. } = &mut self.servers[server];
        for (id, (run, ran)) in std::mem::take(runs) {
            match if ran { Ok(()) } else { run.run() } {
                Ok(()) => drop(runs.insert(id, (run, true))),
                // Its state was replaced, something was done to the server, or the clock jumped beyond what sweeps wait.
                Err(error) if error.kind() == ErrorKind::Closed || *shaky || is_late(&error) => {
                    run.abort(error.message());
                }
                Err(error) => return Err(format!("a materialization at server {server}: {error}")),
            }
        }
        Ok(())
    }

    fn complete(&mut self, server: usize) -> Played {
        let Server { runs, shaky, .. } = &mut self.servers[server];
        let over: Vec<String> = runs.iter().filter(|(_, (_, ran))| *ran).map(|(id, _)| id.clone()).collect();
        for (run, _) in over.into_iter().filter_map(|id| runs.remove(&id)) {
            match run.complete() {
                Ok(()) => {}
                Err(_) if *shaky => {}
                Err(error) => return Err(format!("the end of a materialization at server {server}: {error}")),
            }
        }
        Ok(())
    }

    // What must hold

    /// The state of a batch, restored where nothing is, by a batch that touches every key once.
    fn restore(&self, batch: &Committed) -> Played {
        let fresh = Server::start(tempfile::tempdir().unwrap(), &self.clock);
        let keys: Vec<Row> = batch.model.keys().map(|key| (key.clone(), 0)).collect();
        let payloads = split(&self.spec, self.story.shards, &keys);
        let mut found = Model::new();
        for (shard, handle) in (0..).zip(&batch.handles) {
            let next = handle.as_ref().map_or(0, |handle| handle.batch.0 + 1);
            let mut restored = || {
                let mut session = fresh.engine.open(&self.request(shard, handle.as_ref(), next))?;
                for (_, payload) in payloads.iter().filter(|(s, _)| *s == shard) {
                    session.merge(payload)?;
                }
                session.finish()?.try_for_each(|batch| batch.map(|batch| collect(&batch, &mut found)))
            };
            restored().map_err(|error| format!("a restore of batch {}: {error}", next - 1))?;
        }
        let expected =
            |(key, (n, total, best)): (&Key, &(i64, i64, i64))| (key.clone(), (n + 1, *total, (*best).max(0)));
        let expected: Model = batch.model.iter().map(expected).collect();
        if found.len() != expected.len() {
            return Err(format!("{} keys were restored, {} are there", found.len(), expected.len()));
        }
        compare(&found, &expected).map_err(|error| format!("a restore: {error}"))
    }

    fn end(&mut self) -> Played {
        self.stuck.clear();
        for server in 0..self.servers.len() {
            self.servers[server].engine.failpoints().clear();
            self.run(server)?;
            self.complete(server)?;
        }
        let rows: Vec<(u32, i64)> = (0..KEYS).map(|key| (key, 1)).collect();
        for server in 0..self.servers.len() {
            let rounds = if self.servers[server].shaky { ROUNDS_AFTER_FAILURES } else { ROUNDS };
            for _ in 0..rounds {
                // The others follow, by a replay where they can, and go on from snapshots that are not theirs.
                let lost = (0..self.servers.len()).filter(|other| *other != server);
                let lost = lost.map(|server| Attempt { server, fate: Fate::Opened });
                let attempts: Vec<Attempt> = lost.chain([Attempt { server, fate: Fate::Committed }]).collect();
                self.run_batch(&rows, &vec![attempts; self.story.shards as usize], 0, None)?;
                self.step(&Step::Materialize(server))?;
                self.step(&Step::Retire(self.retained.len() - 2))?;
                self.step(&Step::Advance(GRACE))?;
                self.step(&Step::Sweep)?;
                self.check()?;
            }
            for handle in self.newest().handles.iter().flatten() {
                let behind = handle.segments.len() + usize::from(handle.indexed.is_some()) * rounds;
                if behind >= rounds {
                    return Err(format!(
                        "server {server} made {rounds} batches and materialized after each, but shard {} has {behind} change sets after its snapshot",
                        handle.shard
                    ));
                }
            }
        }
        for batch in self.retained.iter().rev().take(3).chain(self.retained.first()) {
            self.restore(batch)?;
        }
        Ok(())
    }
}

/// Every key that was found has its value.
fn compare(found: &Model, expected: &Model) -> Played {
    match found.iter().find(|(key, value)| expected.get(*key) != Some(value)) {
        None => Ok(()),
        Some((key, value)) => {
            let key_text: String = key.as_deref().unwrap_or("null").chars().take(8).collect();
            Err(format!("key {key_text} has {value:?}, expected is {:?}", expected.get(key)))
        }
    }
}

fn is_late(error: &Error) -> bool {
    error.kind() == ErrorKind::Retryable && error.message().contains("`sweep_grace`")
}
