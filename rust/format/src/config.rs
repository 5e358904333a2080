//! Options: one table of names, types, defaults and meanings.
//!
//! Owns: parsing of text values (sizes, durations), the nearest-name hint, the defaults, and which options are public.
//! Does not own: the source of options (Python gathers Spark conf and keyword arguments).

use crate::error::{Error, Result, Subject};
use std::collections::BTreeMap;
use std::time::Duration;

/// Compression of change sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Bytes as they are.
    None,
    /// LZ4 block format.
    Lz4,
    /// Zstandard, level 1.
    Zstd,
}

/// When a restored shard serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restoring {
    /// When its hot tier is loaded.
    Eager,
    /// When its files are on the local disk.
    Lazy,
}

/// Who sweeps a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sweeping {
    /// The query itself, or the program that has the state open.
    Auto,
    /// Only the command.
    Off,
}

/// The scope in which an option has an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The state server as a whole: the first query that starts one chooses the value.
    Process,
    /// The state of a query.
    Query,
    /// An embedded state.
    Embedded,
    /// A plain changelog.
    Changelog,
}

/// One option.
#[derive(Debug, Clone, Copy)]
pub struct OptionRow {
    /// The name that users write.
    pub name: &'static str,
    /// The default, as a text.
    pub default: &'static str,
    /// What it does.
    pub meaning: &'static str,
    /// False for tuning that tests set: accepted and validated, but neither documented nor suggested, and free to change.
    pub is_public: bool,
    /// The scopes that it affects, with their own defaults where these differ.
    pub scopes: &'static [(Scope, Option<&'static str>)],
}

impl OptionRow {
    /// The default in this scope; none if the option has no effect on it.
    fn default_in(&self, scope: Scope) -> Option<&'static str> {
        self.scopes.iter().find(|(of, _)| *of == scope).map(|(_, own)| own.unwrap_or(self.default))
    }
}

macro_rules! options {
    ($($(#[doc = $doc:literal])* $name:ident: $type:ident = $default:literal
        in [$($scope:ident $(= $own:literal)?),+] $($audience:ident)?),* $(,)?) => {
        /// Every setting. `options=` and `spark.fastchangelog.<name>` use these names.
        #[derive(Debug, Clone, PartialEq)]
        pub struct Options { $($(#[doc = $doc])* pub $name: options!(@type $type),)* }

        impl Default for Options {
            fn default() -> Self {
                Self { $($name: parse::$type(stringify!($name), $default).expect("a default parses"),)* }
            }
        }

        impl Options {
            /// Every option, in order of declaration.
            pub const TABLE: &'static [OptionRow] = &[$(OptionRow {
                name: stringify!($name),
                default: $default,
                meaning: concat!($($doc),*),
                is_public: options!(@public $($audience)?),
                scopes: &[$((options!(@scope $scope), options!(@own $($own)?)),)+],
            },)*];

            fn set(&mut self, name: &str, value: &str) -> Result<bool> {
                match name {
                    $(stringify!($name) => { self.$name = parse::$type(name, value)?; Ok(true) })*
                    _ => Ok(false),
                }
            }
        }
    };
    (@type size) => { u64 };
    (@type count) => { usize };
    (@type duration) => { Duration };
    (@type ratio) => { f64 };
    (@type flag) => { bool };
    (@type text) => { String };
    (@type compression) => { Option<Compression> };
    (@type restoring) => { Restoring };
    (@type sweeping) => { Sweeping };
    (@scope process) => { Scope::Process };
    (@scope query) => { Scope::Query };
    (@scope embedded) => { Scope::Embedded };
    (@scope changelog) => { Scope::Changelog };
    (@public) => { true };
    (@public tuning) => { false };
    (@own) => { None };
    (@own $own:literal) => { Some($own) };
}

options! {
    /// Memory of one state server for hot tier, overlays, RocksDB and buffers together. In Spark, if not set, it follows from the executor's memory overhead, its container or its machine.
    memory_budget: size = "1GiB" in [process, query, embedded],
    /// Compression of change sets: zstd, lz4 or none. auto: lz4 on a local disk, zstd in a remote store, where bytes
    /// cost more.
    compression: compression = "auto" in [query, embedded, changelog],
    /// How long a commit waits for other open sessions to share its log object.
    persist_delay: duration = "500ms" in [query, changelog = "10ms"],
    /// A batch of change sets is uploaded at once when it reaches this size.
    persist_size_threshold: size = "16MiB" in [query, embedded, changelog = "10MiB"] tuning,
    /// A writer of a plain changelog uploads its active change set once it reaches this size, without waiting for a
    /// checkpoint.
    preemptive_persist_threshold: size = "5MiB" in [changelog],
    /// Log objects uploaded at the same time.
    upload_threads: count = "4" in [query, embedded, changelog = "5"] tuning,
    /// Objects larger than twice this are uploaded in parts of this size, four at the same time; 5MiB to 1GiB.
    upload_part_size: size = "8MiB" in [query, embedded, changelog] tuning,
    /// A log object's upload that takes more than twice as long as this percentile of the latest ones of its size gets a second attempt beside it, under another name; 0 = never. Never for `file://`.
    hedge_percentile: count = "95" in [query, embedded, changelog] tuning,
    /// No upload gets a second attempt beside it before this time has passed.
    hedge_delay: duration = "200ms" in [query, embedded, changelog] tuning,
    /// Bytes of second attempts per byte of log objects, at most.
    hedge_ratio: ratio = "0.1" in [query, embedded, changelog] tuning,
    /// Bytes of change sets that may wait for upload before commits block.
    max_in_flight: size = "256MiB" in [query, embedded, changelog = "100MiB"],
    /// Requests to the store at the same time.
    store_concurrency: count = "32" in [query, embedded, changelog],
    /// A single request to the store is abandoned after this time and tried again.
    request_timeout: duration = "30s" in [query, embedded, changelog],
    /// Attempts of one request to the store.
    max_attempts: count = "6" in [query, embedded, changelog],
    /// First pause between attempts; doubles each time, with jitter.
    retry_delay: duration = "100ms" in [query, embedded, changelog] tuning,
    /// Sync `file://` objects to disk before they count as durable.
    file_sync: flag = "true" in [query, embedded, changelog],
    /// Keep a local copy of uploaded objects for recovery on the same machine (never for `file://`).
    local_recovery: flag = "true" in [query, embedded, changelog] tuning,
    /// Bytes of local copies and downloads kept on the executor's disk.
    cache_size: size = "10GiB" in [process, query, embedded, changelog],
    /// When a restored shard serves its first batch. eager: when its state is in the hot tier, if it fits there. lazy: when its files are on the local disk; the hot tier is loaded after the batch, in the background.
    restore: restoring = "eager" in [query, embedded],
    /// Segments named in a handle before older ones move to an index object.
    max_handle_segments: count = "32" in [query, embedded] tuning,
    /// Time between materializations of a shard.
    materialization_interval: duration = "10m" in [query, embedded],
    /// Materialize when the log since the snapshot exceeds this many bytes.
    materialization_log_bytes: size = "256MiB" in [query, embedded],
    /// Materialize when the log since the snapshot exceeds this multiple of the state's size.
    materialization_log_ratio: ratio = "4.0" in [query, embedded],
    /// Materialize when the log since the snapshot has this many change sets: each is a request of a restore, and a handle names them all; 0 = no bound.
    materialization_segments: count = "1000" in [query, embedded] tuning,
    /// Materialize when replaying the log since the snapshot would take about this long, at the speed that this server last replayed with.
    materialization_replay_time: duration = "30s" in [query, embedded] tuning,
    /// Failures in a row that a materialization may have before the job fails.
    materialization_max_failures: count = "3" in [query, embedded] tuning,
    /// Snapshots share what earlier ones have uploaded; false = each snapshot uploads every file again and shares none. May change at any restart.
    incremental: flag = "true" in [query, embedded] tuning,
    /// The shortest grace period of a sweep of this state. A server counts on no object in the bucket that it last knew to be needed longer ago than half of this, and abandons a snapshot whose upload takes longer. The state's folder keeps the longest value that was ever set, and a sweep obeys it; at least 1m.
    sweep_grace: duration = "1d" in [query],
    /// Who deletes objects that no checkpoint needs. auto: the query itself, or the program that has the embedded state open, in the background. off: only `fastchangelog sweep`.
    sweep: sweeping = "auto" in [query, embedded],
    /// Time between two background sweeps of a state; at least 1s.
    sweep_interval: duration = "1h" in [query, embedded],
    /// The query's checkpoint location, for its background sweeps. Only Spark Connect needs it: it does not show the location.
    checkpoint_location: text = "" in [query],
    /// RocksDB files of a snapshot smaller than this share an object, up to 16MiB together; 0 = none does.
    snapshot_pack_below: size = "1MiB" in [query, embedded] tuning,
    /// Bytes per second that uploads of snapshots may take in one state server; 0 = no bound. Log objects and all reads are never held back.
    background_bandwidth: size = "0" in [process, query, embedded],
    /// Files of snapshots that one state server uploads at the same time, of all shards together; always fewer than `store_concurrency`.
    background_transfers: count = "4" in [process, query, embedded] tuning,
    /// Number of key groups; 0 = from the number of partitions, as Flink does. Fixed at the first start of a state.
    max_parallelism: count = "0" in [query],
    /// The savepoint whose state a query with a new checkpoint begins with; empty = with nothing. Shards that have a state already don't read it.
    start_from: text = "" in [query],
    /// Prepared versions kept in memory per shard.
    max_prepared_versions: count = "8" in [query] tuning,
    /// Memory of one session for the keys of its batch; what is more is spilled to the executor's local disk. 0 = a share of half of `memory_budget`, which all open sessions divide.
    session_memory: size = "0" in [query, embedded],
    /// Bytes of a payload row that split sends through the shuffle.
    payload_size: size = "4MiB" in [query] tuning,
    /// Memory of one Python worker for the input rows of a batch that a processor gets; what is more is sorted in parts on the executor's local disk; at least 1MiB. The rows that the processor works on come on top.
    worker_memory: size = "256MiB" in [query],
    /// Rows of one result batch, which ends at 32 MiB in any case.
    result_batch_rows: count = "65536" in [query] tuning,
    /// Port of 127.0.0.1 at which the state server, or the process of an embedded state or a plain changelog, answers `GET /metrics` in Prometheus' text format; 0 = none.
    metrics_port: count = "0" in [process, query, embedded, changelog],
}

impl Options {
    /// The options with an effect on `scope`.
    fn of(scope: Scope) -> impl Iterator<Item = &'static OptionRow> {
        Self::TABLE.iter().filter(move |row| row.default_in(scope).is_some())
    }

    /// The process options for which `asked` differs from these options, which are in force.
    pub fn overruled(&self, asked: &BTreeMap<String, String>) -> Result<Vec<&'static str>> {
        let mut names = Vec::new();
        for row in Self::of(Scope::Process) {
            if let Some(value) = asked.get(row.name) {
                let mut wanted = self.clone();
                wanted.set(row.name, value)?;
                if wanted != *self {
                    names.push(row.name);
                }
            }
        }
        Ok(names)
    }
}

mod parse {
    use super::{Compression, Duration, Error, Restoring, Result, Sweeping};

    fn bad(name: &str, value: &str, want: &str) -> Error {
        super::refused(name, format!("option `{name}` = `{value}` is not {want}"))
    }

    fn split(value: &str) -> (&str, &str) {
        let value = value.trim();
        let end = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
        (&value[..end], value[end..].trim())
    }

    pub fn size(name: &str, value: &str) -> Result<u64> {
        let (number, unit) = split(value);
        let unit: u64 = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" | "kib" => 1 << 10,
            "m" | "mb" | "mib" => 1 << 20,
            "g" | "gb" | "gib" => 1 << 30,
            "t" | "tb" | "tib" => 1 << 40,
            _ => return Err(bad(name, value, "a size such as 1048576, \"5MiB\" or \"1GiB\"")),
        };
        let number: u64 =
            number.parse().map_err(|_| bad(name, value, "a size such as 1048576, \"5MiB\" or \"1GiB\""))?;
        number.checked_mul(unit).ok_or_else(|| bad(name, value, "a size below 16 EiB"))
    }

    pub fn count(name: &str, value: &str) -> Result<usize> {
        value.trim().parse().map_err(|_| bad(name, value, "a whole number"))
    }

    pub fn ratio(name: &str, value: &str) -> Result<f64> {
        value
            .trim()
            .parse()
            .ok()
            .filter(|v: &f64| v.is_finite() && *v >= 0.0)
            .ok_or_else(|| bad(name, value, "a number, 0 or more"))
    }

    pub fn flag(name: &str, value: &str) -> Result<bool> {
        match value.trim().to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Ok(true),
            "false" | "0" | "no" | "off" => Ok(false),
            _ => Err(bad(name, value, "true or false")),
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "one signature for all types")]
    pub fn text(_: &str, value: &str) -> Result<String> {
        Ok(value.trim().to_owned())
    }

    pub fn compression(name: &str, value: &str) -> Result<Option<Compression>> {
        match value.trim().to_ascii_lowercase().as_str() {
            "auto" => Ok(None),
            "none" => Ok(Some(Compression::None)),
            "lz4" => Ok(Some(Compression::Lz4)),
            "zstd" => Ok(Some(Compression::Zstd)),
            _ => Err(bad(name, value, "auto, zstd, lz4 or none")),
        }
    }

    pub fn restoring(name: &str, value: &str) -> Result<Restoring> {
        match value.trim().to_ascii_lowercase().as_str() {
            "eager" => Ok(Restoring::Eager),
            "lazy" => Ok(Restoring::Lazy),
            _ => Err(bad(name, value, "eager or lazy")),
        }
    }

    pub fn sweeping(name: &str, value: &str) -> Result<Sweeping> {
        match value.trim().to_ascii_lowercase().as_str() {
            "auto" => Ok(Sweeping::Auto),
            "off" => Ok(Sweeping::Off),
            _ => Err(bad(name, value, "auto or off")),
        }
    }

    /// Short forms (`10s`, `5m`) and Spark's interval strings (`10 minutes`); a bare number is refused.
    pub fn duration(name: &str, value: &str) -> Result<Duration> {
        let (number, unit) = split(value);
        let number: f64 =
            number.parse().map_err(|_| bad(name, value, "a duration such as \"10s\" or \"5 minutes\""))?;
        let millis = match unit.to_ascii_lowercase().trim_end_matches('s') {
            "m" if unit.eq_ignore_ascii_case("ms") => 1.0,
            "milli" | "millisecond" => 1.0,
            "" if unit.eq_ignore_ascii_case("s") => 1e3,
            "sec" | "second" => 1e3,
            "m" | "min" | "minute" => 6e4,
            "h" | "hour" => 3.6e6,
            "d" | "day" => 8.64e7,
            _ => return Err(bad(name, value, "a duration with a unit, such as \"10s\", \"5m\" or \"10 minutes\"")),
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "digits only: never negative")]
        Ok(Duration::from_millis((number * millis) as u64))
    }
}

impl Options {
    /// The compression of change sets in a store that is remote, or is not.
    pub fn compression_in(&self, remote: bool) -> Compression {
        self.compression.unwrap_or(if remote { Compression::Zstd } else { Compression::Lz4 })
    }

    /// The options of a map of texts. An unknown name is an error that gives the nearest public one.
    pub fn from_map(map: &BTreeMap<String, String>) -> Result<Self> {
        let mut this = Self::default();
        for (name, value) in map {
            if !this.set(name, value)? {
                return Err(unknown(name, Self::TABLE.iter()));
            }
        }
        this.validated()
    }

    /// The options of a plain changelog from a map of texts. A checkpoint there waits for its tail alone, not for a wave of
    /// tasks, so some defaults differ: their figures are Flink's.
    pub fn for_changelog(map: &BTreeMap<String, String>) -> Result<Self> {
        let mut this = Self::default();
        for row in Self::TABLE {
            if let Some(default) = row.default_in(Scope::Changelog) {
                this.set(row.name, default)?;
            }
        }
        for (name, value) in map {
            match Self::TABLE.iter().find(|row| row.name == name) {
                Some(row) if row.default_in(Scope::Changelog).is_some() => drop(this.set(name, value)?),
                Some(_) => {
                    let what = format!("option `{name}` is of keyed state and has no effect on a changelog storage");
                    return Err(refused(name, what).with_remedy("leave it out"));
                }
                None => return Err(unknown(name, Self::of(Scope::Changelog))),
            }
        }
        this.validated()
    }

    /// The options of an embedded state from a map of texts.
    pub fn for_local(map: &BTreeMap<String, String>) -> Result<Self> {
        let foreign = |row: &&OptionRow| row.default_in(Scope::Embedded).is_none() && map.contains_key(row.name);
        match Self::TABLE.iter().find(foreign) {
            Some(OptionRow { name, .. }) => {
                let of = "of a query's state or of a plain changelog, and has no effect on an embedded state";
                Err(refused(name, format!("option `{name}` is {of}")).with_remedy("leave it out"))
            }
            None => Self::from_map(map),
        }
    }

    fn validated(self) -> Result<Self> {
        if self.persist_size_threshold > self.max_in_flight {
            return Err(refused(
                "persist_size_threshold",
                "option `persist_size_threshold` must not exceed `max_in_flight`",
            ));
        }
        // S3 refuses smaller parts. Larger parts gain nothing, and a retry repeats a whole part.
        if !(5 << 20..=1 << 30).contains(&self.upload_part_size) {
            return Err(refused("upload_part_size", "option `upload_part_size` must be from 5MiB to 1GiB"));
        }
        if self.sweep_grace < Duration::from_mins(1) {
            return Err(refused("sweep_grace", "option `sweep_grace` must be at least 1m"));
        }
        if self.sweep_interval < Duration::from_secs(1) {
            return Err(refused("sweep_interval", "option `sweep_interval` must be at least 1s"));
        }
        if self.worker_memory < 1 << 20 {
            return Err(refused("worker_memory", "option `worker_memory` must be at least 1MiB"));
        }
        if self.hedge_percentile > 99 {
            return Err(refused("hedge_percentile", "option `hedge_percentile` must be from 1 to 99, or 0 for never"));
        }
        if self.metrics_port > usize::from(u16::MAX) {
            return Err(refused("metrics_port", "option `metrics_port` must be a port from 1 to 65535, or 0 for none"));
        }
        Ok(self)
    }

    /// The port of the option `metrics_port`; none for 0.
    pub fn metrics_port(&self) -> Option<u16> {
        u16::try_from(self.metrics_port).ok().filter(|port| *port > 0)
    }
}

fn unknown(name: &str, known: impl Iterator<Item = &'static OptionRow>) -> Error {
    let public = known.filter(|row| row.is_public).map(|row| row.name);
    let hint = nearest(name, public).map_or_else(String::new, |n| format!("; did you mean `{n}`?"));
    refused(name, format!("unknown option `{name}`{hint}"))
}

fn refused(name: &str, message: impl Into<String>) -> Error {
    Error::invalid(message).with_subject(Subject::Option(name.to_owned()))
}

/// A duration from its text, as the option `name` would read it.
pub fn parse_duration(name: &str, value: &str) -> Result<Duration> {
    parse::duration(name, value)
}

/// A number of bytes from its text, as the option `name` would read it.
pub fn parse_size(name: &str, value: &str) -> Result<u64> {
    parse::size(name, value)
}

/// The `known` name closest to `name`; none if all differ too much.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known.map(|k| (distance(name, k), k)).min().filter(|(d, k)| *d <= k.len() / 2).map(|(_, k)| k)
}

fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let next = (diagonal + usize::from(ca != *cb)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], next);
        }
    }
    row[b.len()]
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
