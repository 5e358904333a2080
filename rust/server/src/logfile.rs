//! The server's log: JSON lines in a file that never grows beyond its bound.
//!
//! Owns: appending, rotation (`server.log` → `server.log.1`), and the tracing subscriber that writes to it.
//! Does not own: the content of the log. Nothing here ever fails the caller: a full disk loses lines, not batches.

use fastchangelog_format::clock::SharedClock;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// A log file holds at most this much; with its one predecessor, twice as much is on disk.
pub const MAX_LOG_BYTES: u64 = 8 << 20;

/// An append-only file that starts again when it is full. Clones share it.
#[derive(Clone)]
pub struct LogFile {
    inner: Arc<Mutex<Inner>>,
    clock: SharedClock,
}

impl Debug for LogFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.lock().fmt(f)
    }
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    file: File,
    written: u64,
    max_bytes: u64,
    owns_stdio: bool,
}

impl LogFile {
    /// Opens `path` for appending, readable by its owner only. With `owns_stdio`, the process's standard output and
    /// error follow the file when it rotates, so that panics and foreign output land in the same place.
    pub fn open(path: &Path, max_bytes: u64, owns_stdio: bool, clock: SharedClock) -> io::Result<Self> {
        let file = append(path)?;
        let written = file.metadata()?.len();
        let mut inner = Inner { path: path.to_owned(), file, written, max_bytes, owns_stdio };
        inner.redirect();
        Ok(Self { inner: Arc::new(Mutex::new(inner)), clock })
    }

    /// Writes one event with `fields` (a JSON object).
    pub fn event(&self, level: &str, name: &str, fields: Value) {
        let mut line = Map::new();
        line.insert("time_ms".to_owned(), json!(self.clock.now_millis()));
        line.insert("level".to_owned(), json!(level));
        line.insert("event".to_owned(), json!(name));
        if let Value::Object(fields) = fields {
            line.extend(fields);
        }
        let mut text = Value::Object(line).to_string();
        text.push('\n');
        self.inner.lock().append(text.as_bytes());
    }

    /// Sends this process's tracing events here, from `level` up: the message becomes the event's name. Only the first
    /// call in a process counts.
    pub fn subscribe(&self, level: &str) {
        let filter = tracing_subscriber::EnvFilter::try_new(level).unwrap_or_else(|_| "info".into());
        let _ = tracing_subscriber::registry().with(filter).with(Events(self.clone())).try_init();
    }
}

/// Gives tracing's events the shape of all other lines.
struct Events(LogFile);

impl<S: Subscriber> Layer<S> for Events {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields(Map::new());
        event.record(&mut fields);
        fields.0.insert("target".to_owned(), json!(event.metadata().target()));
        let name = fields.0.remove("message");
        let name = name.as_ref().and_then(Value::as_str).unwrap_or(event.metadata().name());
        self.0.event(event.metadata().level().as_str(), name, Value::Object(fields.0));
    }
}

struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), json!(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), json!(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), json!(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), json!(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), json!(value));
    }
}

impl Inner {
    fn append(&mut self, line: &[u8]) {
        if self.written > 0 && self.written + line.len() as u64 > self.max_bytes {
            self.rotate();
        }
        if self.file.write_all(line).is_ok() {
            self.written += line.len() as u64;
        }
    }

    fn rotate(&mut self) {
        let mut old = self.path.clone().into_os_string();
        old.push(".1");
        let moved = std::fs::rename(&self.path, old).is_ok();
        match append(&self.path) {
            Ok(file) => {
                self.file = file;
                self.redirect();
            }
            Err(_) if moved => {}
            Err(_) => return,
        }
        self.written = 0;
    }

    fn redirect(&mut self) {
        if self.owns_stdio {
            let _ = rustix::stdio::dup2_stdout(&self.file);
            let _ = rustix::stdio::dup2_stderr(&self.file);
        }
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastchangelog_format::clock::ManualClock;

    #[test]
    fn lines_are_json_and_the_size_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("server.log");
        let log = LogFile::open(&path, 4096, false, ManualClock::at(17)).unwrap();
        for i in 0..500 {
            log.event("INFO", "session", json!({"batch": i, "text": "two\nlines"}));
        }
        let (new, old) = (
            std::fs::read_to_string(&path).unwrap(),
            std::fs::read_to_string(dir.path().join("server.log.1")).unwrap(),
        );
        assert!(new.len() <= 4096 && old.len() <= 4096, "{} {}", new.len(), old.len());
        let last: Value = serde_json::from_str(new.lines().last().unwrap()).unwrap();
        assert_eq!((last["batch"].as_i64(), last["event"].as_str()), (Some(499), Some("session")));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn events_of_the_core_have_the_shape_of_all_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("server.log");
        let log = LogFile::open(&path, 4096, false, ManualClock::at(17)).unwrap();
        let subscriber = tracing_subscriber::registry().with(Events(log));
        tracing::subscriber::with_default(subscriber, || tracing::warn!(shard = 3u64, why = %"x", "closed: idle"));
        let line: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!((line["event"].as_str(), line["level"].as_str()), (Some("closed: idle"), Some("WARN")));
        assert_eq!((line["shard"].as_u64(), line["why"].as_str()), (Some(3), Some("x")));
        assert_eq!(line["time_ms"], 17);
    }
}
