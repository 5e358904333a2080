//! Failpoints: named places where a test can make the process fail.
//!
//! Owns: the registry and its text form `name=action[@n][;name=action…]`.
//! Does not own: where failpoints stand. `grep 'failpoints.hit("'` finds each risky line.
//!
//! Actions: `kill` (SIGKILL to this process), `error` (a retryable error), `store-error` (a permanent one),
//! `sleep(ms)`. `@n` = only the n-th hit (from 1); without it every hit. An empty registry costs one load.

use crate::error::{Error, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Kill,
    Error,
    StoreError,
    Sleep(u64),
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
            let action = match action {
                "kill" => Action::Kill,
                "error" => Action::Error,
                "store-error" => Action::StoreError,
                a => {
                    let ms = a.strip_prefix("sleep(").and_then(|a| a.strip_suffix(')')).ok_or_else(bad)?;
                    Action::Sleep(ms.parse().map_err(|_| bad())?)
                }
            };
            points.insert(name.to_owned(), Point { action, only, hits: 0 });
        }
        self.armed.store(!points.is_empty(), Ordering::Release);
        Ok(())
    }

    /// Removes all failpoints.
    pub fn clear(&self) {
        self.points.lock().clear();
        self.armed.store(false, Ordering::Release);
    }

    /// Runs the action of `name`, if one is set and due.
    pub fn hit(&self, name: &str) -> Result<()> {
        if !self.armed.load(Ordering::Acquire) {
            return Ok(());
        }
        let action = {
            let mut points = self.points.lock();
            let Some(point) = points.get_mut(name) else { return Ok(()) };
            point.hits += 1;
            if point.only.is_some_and(|n| n != point.hits) {
                return Ok(());
            }
            point.action
        };
        match action {
            Action::Kill => {
                let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
                Ok(())
            }
            Action::Error => Err(Error::retryable(format!("failpoint {name}"))),
            Action::StoreError => Err(Error::store(format!("failpoint {name}"))),
            Action::Sleep(ms) => {
                std::thread::sleep(Duration::from_millis(ms));
                Ok(())
            }
        }
    }
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
        points.clear();
        assert!(points.hit("b").is_ok());
    }

    #[test]
    fn malformed_text_is_refused() {
        assert!(Failpoints::parse("a=explode").is_err());
        assert!(Failpoints::parse("a").is_err());
    }
}
