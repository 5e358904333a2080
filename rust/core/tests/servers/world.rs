//! What a story plays in: servers, a driver as Spark's is, a bucket, and a plain model beside the state.
//!
//! Owns: what each step does, and what must hold after it.
//! Does not own: which steps there are (`story`), what handles reach (`bucket`), what sessions compute (`work`).
//!
//! After each step: every object that a retained handle leads to is there. After each batch: its results are those of the
//! model. At the end: every retained version is restored where nothing is; at each server snapshots come again that cut the
//! log off; and of a state in which nothing lasts nothing is left.

use crate::bucket::{Bucket, GRACE};
use crate::story::{Attempt, Fate, KEYS, Step, Story};
use crate::work::{Trouble, Work};
use fastchangelog_core::engine::{Engine, EngineConfig, MaterializeRun, OpenRequest, format_handle, parse_handle};
use fastchangelog_format::clock::{Clock, ManualClock};
use fastchangelog_format::config::Options;
use fastchangelog_format::model::ShardHandle;
use fastchangelog_format::{Error, ErrorKind};
use fastchangelog_store::failpoint::Failpoints;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// What went wrong.
pub type Played<T = ()> = Result<T, String>;

/// Attempts that a server may fail after local files were lost or failpoints were set.
const EXCUSES: usize = 12;
/// Batches in which a server must have cut the log off, at the end; and one whose local disk has failed.
const ROUNDS: usize = 4;
const ROUNDS_AFTER_FAILURES: usize = 5;
/// Minutes after which all that ends has ended, and batches in which it must be gone.
const LIFETIME: u64 = 2000;
const LAST_BATCHES: usize = 30;

pub struct Server {
    /// Materializations in progress, by shard; true when the long part is over.
    runs: BTreeMap<String, (MaterializeRun, bool)>,
    pub engine: Arc<Engine>,
    // After the engine: RocksDB waits for seconds if it is closed without its folder.
    local: tempfile::TempDir,
    /// Something was done to it that makes attempts fail.
    shaky: bool,
}

/// An execution that stands still.
struct Stuck<W: Work> {
    server: usize,
    session: W::Session,
    batch: Rc<W::Batch>,
}

/// A batch that Spark committed.
#[derive(Clone)]
pub struct Committed<M> {
    pub handles: Vec<Option<ShardHandle>>,
    pub model: M,
}

struct World<'a, W: Work> {
    story: &'a Story,
    work: W,
    clock: Arc<ManualClock>,
    // Before the servers: it is dropped first.
    stuck: Vec<Stuck<W>>,
    servers: Vec<Server>,
    bucket: Bucket,
    /// The batches that the checkpoint retains; the last is the newest.
    retained: Vec<Committed<W::Model>>,
    batch: i64,
    checked: BTreeSet<String>,
}

impl Server {
    pub fn start(local: tempfile::TempDir, clock: &Arc<ManualClock>) -> Self {
        let config = EngineConfig {
            local_dir: local.path().to_owned(),
            options: Options { memory_budget: 64 << 20, ..Options::default() },
            clock: Arc::clone(clock) as _,
            metrics: Arc::default(),
            failpoints: Failpoints::none(),
        };
        Self { engine: Engine::start(config).unwrap(), local, runs: BTreeMap::new(), shaky: false }
    }

    /// Ends; its local folder is left.
    pub fn stopped(self) -> tempfile::TempDir {
        let Self { local, engine, runs, .. } = self;
        drop((runs, engine));
        local
    }
}

/// What a batch of a story's query asks a server for.
pub fn request<W: Work>(
    story: &Story,
    work: &W,
    root: &str,
    shard: u32,
    handle: Option<&ShardHandle>,
    batch: i64,
) -> OpenRequest {
    let fixed = [("persist_delay", "1ms"), ("retry_delay", "1ms"), ("max_attempts", "2")];
    let options = fixed.iter().chain(&story.options);
    OpenRequest {
        root: root.to_owned(),
        query_id: "query".into(),
        name: "default".into(),
        shard,
        shards: story.shards,
        batch,
        handle: handle.map(format_handle),
        operator: W::OPERATOR,
        spec: work.spec(),
        watermarks: None,
        ephemeral: false,
        options: options.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        storage_options: BTreeMap::new(),
        checkpoint: None,
        credentials_expire_at: None,
    }
}

/// All of a story.
pub fn play<W: Work>(story: &Story) -> Played {
    let mut world = World::<W>::of(story);
    for (i, step) in story.steps.iter().enumerate() {
        let told = world.step(step).and_then(|()| world.check());
        told.map_err(|error| format!("step {i}: {error}"))?;
    }
    world.end().map_err(|error| format!("at the end: {error}"))
}

impl<'a, W: Work> World<'a, W> {
    fn of(story: &'a Story) -> Self {
        let clock = ManualClock::at(1_000_000_000);
        let work = W::of(story);
        let first = Committed { handles: vec![None; story.shards as usize], model: work.nothing() };
        Self {
            stuck: Vec::new(),
            servers: (0..story.servers).map(|_| Server::start(tempfile::tempdir().unwrap(), &clock)).collect(),
            bucket: Bucket::new(&clock, "query/default"),
            clock,
            work,
            retained: vec![first],
            batch: 0,
            checked: BTreeSet::new(),
            story,
        }
    }

    fn newest(&self) -> &Committed<W::Model> {
        self.retained.last().expect("one batch is always retained")
    }

    fn handles(&self) -> Vec<ShardHandle> {
        self.retained.iter().flat_map(|batch| batch.handles.iter().flatten().cloned()).collect()
    }

    fn now(&self) -> i64 {
        i64::try_from(self.clock.now_millis()).unwrap()
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
        request(self.story, &self.work, &self.bucket.root, shard, handle, batch)
    }

    /// Repeats what fails at a server to which something was done.
    fn excused<T>(&self, server: usize, what: &str, mut attempt: impl FnMut() -> Result<T, Trouble>) -> Played<T> {
        let mut left = EXCUSES;
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(Trouble::Failed(_)) if self.servers[server].shaky && left > 0 => left -= 1,
                Err(trouble) => return Err(format!("{what} at server {server}: {trouble}")),
            }
        }
    }

    /// A session of a shard on top of the newest batch, with its input.
    fn open(&self, server: usize, shard: u32, batch: &W::Batch) -> Result<W::Session, Trouble> {
        let handle = self.newest().handles[shard as usize].as_ref();
        self.work.open(&self.servers[server].engine, &self.request(shard, handle, self.batch), batch)
    }

    /// The same with its results, and how many keys these are for.
    fn execute(&self, server: usize, shard: u32, batch: &W::Batch) -> Result<(W::Session, usize), Trouble> {
        let mut session = self.open(server, shard, batch)?;
        let answers = self.work.finish(&mut session, batch)?;
        Ok((session, answers))
    }

    fn run_batch(&mut self, rows: &[(u32, i64)], attempts: &[Vec<Attempt>], keep: usize, pause: Option<u64>) -> Played {
        let since = self.clock.now_millis();
        let (batch, model) = self.work.batch(&self.newest().model, rows, self.now());
        let batch = Rc::new(batch);
        let (mut handles, mut seen) = (Vec::new(), 0);
        for (shard, attempts) in (0..).zip(attempts) {
            let mut finished = Vec::new();
            for Attempt { server, fate } in attempts.iter().copied() {
                let what = format!("an execution of batch {} of shard {shard}", self.batch);
                if matches!(fate, Fate::Opened | Fate::Stuck) {
                    let session = self.excused(server, &what, || self.open(server, shard, &batch))?;
                    if fate == Fate::Stuck {
                        self.stuck.push(Stuck { server, session, batch: Rc::clone(&batch) });
                    }
                    continue;
                }
                let (session, answers) = self.excused(server, &what, || self.execute(server, shard, &batch))?;
                if fate == Fate::Committed {
                    finished.push((server, session, answers));
                }
            }
            if let Some(minutes) = pause {
                self.clock.advance(Duration::from_mins(minutes));
                self.bucket.listed();
                self.bucket.sweep(&self.handles(), Some(since));
                self.check()?;
            }
            let mut committed = Vec::new();
            for (server, mut session, answers) in finished {
                match self.work.commit(&mut session, &batch) {
                    Ok(handle) => committed.push((handle, answers)),
                    Err(Trouble::Failed(_)) if self.servers[server].shaky => {}
                    Err(trouble) => {
                        return Err(format!("the commit of batch {} at server {server}: {trouble}", self.batch));
                    }
                }
            }
            if committed.is_empty() {
                // The failure of a commit that was arranged; Spark tries again.
                let server = attempts.last().map_or(0, |attempt| attempt.server);
                committed.push(self.excused(server, "one more execution", || {
                    let (mut session, answers) = self.execute(server, shard, &batch)?;
                    Ok((self.work.commit(&mut session, &batch)?, answers))
                })?);
            }
            let (handle, answers) = committed.swap_remove(keep % committed.len());
            if parse_handle(&format_handle(&handle)).ok().as_ref() != Some(&handle) {
                return Err(format!("a handle of batch {} changes when it is written and read", self.batch));
            }
            seen += answers;
            handles.push(Some(handle));
        }
        if seen != W::answers(&batch) {
            let expected = W::answers(&batch);
            return Err(format!("batch {} answers for {seen} keys, expected is {expected}", self.batch));
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
        let Stuck { server, mut session, batch } = self.stuck.remove(0);
        let shaky = self.servers[server].shaky;
        let finished = self.work.finish(&mut session, &batch);
        match finished.and_then(|_| self.work.commit(&mut session, &batch)) {
            Ok(_) => Ok(()),
            Err(Trouble::Failed(error)) if error.kind() == ErrorKind::Retryable || shaky => Ok(()),
            Err(trouble) => Err(format!("an old execution at server {server}: {trouble}")),
        }
    }

    // Servers

    fn die(&mut self, server: usize, wipe: bool) {
        self.stuck.retain(|stuck| stuck.server != server);
        let fresh = Server::start(tempfile::tempdir().unwrap(), &self.clock);
        let local = std::mem::replace(&mut self.servers[server], fresh).stopped();
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

    /// The state of a batch, restored where nothing is, by a batch that reads all of it.
    fn restore(&self, committed: &Committed<W::Model>) -> Played {
        let fresh = Server::start(tempfile::tempdir().unwrap(), &self.clock);
        let (batch, mut seen) = (self.work.reading(&committed.model, self.now()), 0);
        for (shard, handle) in (0..).zip(&committed.handles) {
            let next = handle.as_ref().map_or(0, |handle| handle.batch.0 + 1);
            let request = self.request(shard, handle.as_ref(), next);
            let opened = self.work.open(&fresh.engine, &request, &batch);
            let read = opened.and_then(|mut session| self.work.finish(&mut session, &batch));
            seen += read.map_err(|trouble| format!("a restore of batch {}: {trouble}", next - 1))?;
        }
        let expected = W::answers(&batch);
        if seen == expected { Ok(()) } else { Err(format!("{seen} keys were restored, {expected} are there")) }
    }

    fn end(&mut self) -> Played {
        self.stuck.clear();
        for server in 0..self.servers.len() {
            self.servers[server].engine.failpoints().clear();
            self.run(server)?;
            self.complete(server)?;
        }
        let mut turn = 0;
        for server in 0..self.servers.len() {
            let rounds = if self.servers[server].shaky { ROUNDS_AFTER_FAILURES } else { ROUNDS };
            for _ in 0..rounds {
                // The others follow, by a replay where they can, and go on from snapshots that are not theirs.
                let lost = (0..self.servers.len()).filter(|other| *other != server);
                let lost = lost.map(|server| Attempt { server, fate: Fate::Opened });
                let attempts: Vec<Attempt> = lost.chain([Attempt { server, fate: Fate::Committed }]).collect();
                turn += 1;
                let rows: Vec<(u32, i64)> = (0..KEYS).map(|key| (key, i64::from(turn * KEYS + key))).collect();
                self.run_batch(&rows, &vec![attempts; self.story.shards as usize], 0, None)?;
                self.step(&Step::Materialize(server))?;
                self.step(&Step::Retire(self.retained.len() - 2))?;
                self.step(&Step::Advance(GRACE))?;
                self.step(&Step::Sweep)?;
                self.check()?;
            }
            for handle in self.newest().handles.iter().flatten() {
                let behind = self.bucket.replayed(handle);
                if behind >= rounds {
                    return Err(format!(
                        "server {server} made {rounds} batches and materialized after each, but shard {} has {behind} versions after its snapshot",
                        handle.shard
                    ));
                }
            }
        }
        for batch in self.retained.iter().rev().take(3).chain(self.retained.first()) {
            self.restore(batch)?;
        }
        W::last_rows().map_or(Ok(()), |rows| self.become_empty(&rows))
    }

    /// After some rows all is removed once it has ended, whichever server has a batch.
    fn become_empty(&mut self, rows: &[(u32, i64)]) -> Played {
        for (i, rows) in std::iter::once(rows).chain(std::iter::repeat_n(&[][..], LAST_BATCHES)).enumerate() {
            let attempts = vec![Attempt { server: i % self.servers.len(), fate: Fate::Committed }];
            self.run_batch(rows, &vec![attempts; self.story.shards as usize], 0, None)?;
            if i == 0 {
                self.step(&Step::Advance(LIFETIME))?;
            } else if self
                .newest()
                .handles
                .iter()
                .flatten()
                .all(|handle| (handle.state_keys, handle.state_bytes) == (0, 0))
            {
                return Ok(());
            }
        }
        let left = self.newest().handles.iter().flatten().map(|handle| (handle.state_keys, handle.state_bytes));
        Err(format!("keys and bytes are left where nothing lasts: {:?}", left.collect::<Vec<_>>()))
    }
}

fn is_late(error: &Error) -> bool {
    error.kind() == ErrorKind::Retryable && error.message().contains("`sweep_grace`")
}
