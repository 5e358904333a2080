//! Failpoints: named places where a test can make the process fail.
//!
//! Owns: the registry and its text form `name=action[@n][;name=action…]`.
//! Does not own: the places of failpoints. `grep 'failpoints.hit("'` finds each risky line.
//!
//! Actions: `kill` (SIGKILL to this process), `error` (a retryable error), `store-error` (a permanent one),
//! `sleep(ms)`. `@n` = only the n-th hit (from 1); without it every hit. An empty registry costs one load.
//!
//! `*=meet(folder)` lets another process choose while this one runs: the first thread to reach point `p` while the file
//! `folder/p` exists takes it by renaming it to `p.reached`, then runs the action that the file holds; `wait` (or
//! nothing) waits until `p.go` exists, a minute at most. So a test can hold any process at any step, and kill another.

use fastchangelog_format::error::{Error, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often, and how long, a held process looks for its release.
const LOOK: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_mins(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Kill,
    Error,
    StoreError,
    Sleep(u64),
}

impl Action {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "kill" => Self::Kill,
            "error" => Self::Error,
            "store-error" => Self::StoreError,
            other => Self::Sleep(argument(other, "sleep")?.parse().ok()?),
        })
    }

    fn run(self, name: &str) -> Result<()> {
        match self {
            Self::Kill => {
                let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
                Ok(())
            }
            Self::Error => Err(Error::retryable(format!("failpoint {name}"))),
            Self::StoreError => Err(Error::store(format!("failpoint {name}"))),
            Self::Sleep(ms) => {
                std::thread::sleep(Duration::from_millis(ms));
                Ok(())
            }
        }
    }
}

/// `x` of `name(x)`.
fn argument<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.strip_prefix(name)?.strip_prefix('(')?.strip_suffix(')')
}

#[derive(Debug)]
struct Point {
    action: Action,
    only: Option<u64>,
    hits: u64,
}

/// The registry, passed to every stage.
#[derive(Debug, Default)]
pub struct Failpoints {
    armed: AtomicBool,
    points: Mutex<HashMap<String, Point>>,
    /// The folder of `*=meet(folder)`.
    meeting: Mutex<Option<PathBuf>>,
}

/// A registry that can be shared.
pub type SharedFailpoints = Arc<Failpoints>;

impl Failpoints {
    /// No failpoint is set.
    pub fn none() -> SharedFailpoints {
        Arc::new(Self::default())
    }

    /// Parses the text form; an empty text sets nothing.
    pub fn parse(text: &str) -> Result<SharedFailpoints> {
        let this = Self::default();
        this.set(text)?;
        Ok(Arc::new(this))
    }

    /// Adds or replaces failpoints from the text form.
    pub fn set(&self, text: &str) -> Result<()> {
        let mut points = self.points.lock();
        for item in text.split(';').map(str::trim).filter(|s| !s.is_empty()) {
            let bad = || Error::invalid(format!("failpoint `{item}` is not name=action[@n]"));
            let (name, rest) = item.split_once('=').ok_or_else(bad)?;
            let (action, only) = match rest.split_once('@') {
                Some((a, n)) => (a, Some(n.parse::<u64>().map_err(|_| bad())?)),
                None => (rest, None),
            };
            if let ("*", Some(folder), None) = (name, argument(action, "meet"), only) {
                *self.meeting.lock() = Some(PathBuf::from(folder));
                continue;
            }
            let action = Action::parse(action).ok_or_else(bad)?;
            points.insert(name.to_owned(), Point { action, only, hits: 0 });
        }
        self.armed.store(!points.is_empty() || self.meeting.lock().is_some(), Ordering::Release);
        Ok(())
    }

    /// Removes all failpoints.
    pub fn clear(&self) {
        self.points.lock().clear();
        *self.meeting.lock() = None;
        self.armed.store(false, Ordering::Release);
    }

    /// How often `name` was reached since it was set.
    pub fn hits(&self, name: &str) -> u64 {
        self.points.lock().get(name).map_or(0, |point| point.hits)
    }

    /// Runs the action of `name`, if one is set and due.
    pub fn hit(&self, name: &str) -> Result<()> {
        if !self.armed.load(Ordering::Acquire) {
            return Ok(());
        }
        if let Some(action) = self.due(name) {
            action.run(name)?;
        }
        let folder = self.meeting.lock().clone();
        folder.map_or(Ok(()), |folder| meet(&folder, name))
    }

    fn due(&self, name: &str) -> Option<Action> {
        let mut points = self.points.lock();
        let point = points.get_mut(name)?;
        point.hits += 1;
        (point.only.is_none_or(|n| n == point.hits)).then_some(point.action)
    }
}

/// Takes the file of this point, if it exists, and runs its action.
fn meet(folder: &Path, name: &str) -> Result<()> {
    let reached = folder.join(format!("{name}.reached"));
    if std::fs::rename(folder.join(name), &reached).is_err() {
        return Ok(());
    }
    let text = std::fs::read_to_string(&reached).unwrap_or_default();
    if let Some(action) = Action::parse(text.trim()) {
        return action.run(name);
    }
    let (released, since) = (folder.join(format!("{name}.go")), Instant::now());
    while !released.exists() && since.elapsed() < PATIENCE {
        std::thread::sleep(LOOK);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nth_hit_only() {
        let points = Failpoints::parse("a=error@2; b=store-error").unwrap();
        assert!(points.hit("a").is_ok());
        assert!(points.hit("a").unwrap_err().is_retryable());
        assert!(points.hit("a").is_ok());
        assert!(points.hit("b").is_err() && points.hit("c").is_ok());
        assert_eq!(["a", "b", "c"].map(|name| points.hits(name)), [3, 1, 0]);
        points.clear();
        assert!(points.hit("b").is_ok());
    }

    #[test]
    fn another_process_may_choose_the_point_and_the_action() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let points = Failpoints::parse(&format!("*=meet({})", folder.path().display())).unwrap();
        assert!(points.hit("a").is_ok());
        std::fs::write(at("a"), "error").unwrap();
        assert!(points.hit("b").is_ok());
        assert!(points.hit("a").unwrap_err().is_retryable());
        assert!(points.hit("a").is_ok(), "taken once");
        assert!(at("a.reached").exists());
        std::fs::write(at("b"), "wait").unwrap();
        std::thread::scope(|scope| {
            let held = scope.spawn(|| points.hit("b"));
            while !at("b.reached").exists() {
                std::thread::yield_now();
            }
            assert!(!held.is_finished());
            std::fs::write(at("b.go"), "").unwrap();
            assert!(held.join().unwrap().is_ok());
        });
        points.clear();
        std::fs::write(at("c"), "error").unwrap();
        assert!(points.hit("c").is_ok());
    }

    #[test]
    fn malformed_text_is_refused() {
        assert!(Failpoints::parse("a=explode").is_err());
        assert!(Failpoints::parse("a").is_err());
    }
}
