//! When to materialize: a pure decision, with the log's size as a parameter.
//!
//! Owns: the decision (bytes, ratio, number of change sets, time of a replay), the speed of a replay.
//! Does not own: time (`schedule`), what a materialization is (`shard::materialize`).

use fastchangelog_format::config::Options;
use fastchangelog_format::error::Result;
use std::collections::BTreeMap;
use std::time::Duration;

/// Bytes of log below which the ratio is ignored: their replay takes milliseconds, and a state of ten keys would
/// otherwise be materialized with every batch.
const MIN_RATIO_BYTES: u64 = 1 << 20;

/// Assumed bytes per second of a replay until this process has replayed enough to measure it.
const ASSUMED_SPEED: f64 = 20e6;

/// Bytes that must have been replayed before the measured speed is used.
const MIN_MEASURED_BYTES: u64 = 8 << 20;

/// Bytes per second that a process replays, if it has replayed so much in that time.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
pub fn replay_speed(replayed_bytes: u64, micros: u64) -> f64 {
    if replayed_bytes >= MIN_MEASURED_BYTES && micros > 0 {
        replayed_bytes as f64 * 1e6 / micros as f64
    } else {
        ASSUMED_SPEED
    }
}

/// The log since the last snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Progress {
    /// Bytes of log.
    pub log_bytes: u64,
    /// Bytes of keys and values.
    pub state_bytes: u64,
    /// Change sets of the log.
    pub segments: u64,
    /// Estimated seconds to replay them.
    pub replay_seconds: f64,
}

/// The `materialization_…` options of a query. Their largest values are never reached.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Time from the end of one run to the start of the next.
    pub interval: Duration,
    /// Bytes of log since the snapshot.
    pub log_bytes: u64,
    /// Bytes of log for each byte of state; 0 = no bound.
    pub log_ratio: f64,
    /// Change sets since the snapshot; 0 = no bound.
    pub segments: u64,
    /// Estimated time of a replay.
    pub replay_time: Duration,
    /// Failures in a row that are tolerated; one more fails the job.
    pub max_failures: u64,
}

impl Policy {
    /// The policy of these options; missing ones have their default.
    pub fn from_texts(texts: &BTreeMap<String, String>) -> Result<Self> {
        let options = Options::from_map(texts)?;
        Ok(Self {
            interval: options.materialization_interval,
            log_bytes: options.materialization_log_bytes,
            log_ratio: options.materialization_log_ratio,
            segments: options.materialization_segments as u64,
            replay_time: options.materialization_replay_time,
            max_failures: options.materialization_max_failures as u64,
        })
    }

    /// True when the log alone requires a run, whatever the time.
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn wants(&self, progress: &Progress) -> bool {
        let by_ratio = || {
            self.log_ratio > 0.0
                && progress.log_bytes >= MIN_RATIO_BYTES
                && progress.log_bytes as f64 >= self.log_ratio * progress.state_bytes as f64
        };
        progress.log_bytes >= self.log_bytes
            || (self.segments > 0 && progress.segments >= self.segments)
            || progress.replay_seconds >= self.replay_time.as_secs_f64()
            || by_ratio()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(texts: &[(&str, &str)]) -> Policy {
        let text = |(name, value): &(&str, &str)| (format!("materialization_{name}"), (*value).to_owned());
        Policy::from_texts(&texts.iter().map(text).collect()).unwrap()
    }

    #[test]
    fn a_policy_from_options() {
        let texts = [("interval", "30s"), ("log_bytes", "1MiB"), ("log_ratio", "2"), ("max_failures", "0")];
        let (interval, replay_time) = (Duration::from_secs(30), Duration::from_mins(1));
        let expected =
            Policy { interval, log_bytes: 1 << 20, log_ratio: 2.0, segments: 0, replay_time, max_failures: 0 };
        let rest = [("segments", "0"), ("replay_time", "1 minute")];
        assert_eq!(policy(&[&texts[..], &rest[..]].concat()), expected);
        let (interval, replay_time) = (Duration::from_mins(10), Duration::from_secs(30));
        let (log_bytes, log_ratio) = (256 << 20, 4.0);
        let expected = Policy { interval, log_bytes, log_ratio, segments: 1000, replay_time, max_failures: 3 };
        assert_eq!(policy(&[]), expected);
        assert!(Policy::from_texts(&BTreeMap::from([("materialization_interval".into(), "10".into())])).is_err());
    }

    #[test]
    fn a16_x27_the_log_starts_a_run_by_bytes_and_by_ratio() {
        let policy = policy(&[("log_bytes", "8MiB"), ("log_ratio", "4")]);
        let wants = |log_bytes, state_bytes| policy.wants(&Progress { log_bytes, state_bytes, ..Progress::default() });
        assert!(!wants((8 << 20) - 1, 1 << 30) && wants(8 << 20, 1 << 30));
        assert!(!wants(100, 1), "a tiny log is not worth a snapshot, whatever the ratio");
        assert!(wants(4 << 20, 1 << 20) && !wants((4 << 20) - 1, 1 << 20));
    }

    #[test]
    fn change_sets_and_the_time_of_a_replay_start_a_run() {
        let segments = |segments| Progress { segments, ..Progress::default() };
        let replay = |replay_seconds| Progress { replay_seconds, ..Progress::default() };
        let five = policy(&[("segments", "5")]);
        assert!(!five.wants(&segments(4)) && five.wants(&segments(5)));
        let short = policy(&[("replay_time", "2s")]);
        assert!(!short.wants(&replay(1.9)) && short.wants(&replay(2.0)));
        let never = policy(&[("segments", "0"), ("log_ratio", "0"), ("replay_time", "36500 days")]);
        assert!(!never.wants(&Progress { log_bytes: 4 << 20, ..segments(1_000_000) }));
        assert!(!never.wants(&replay(1e6)));
    }

    #[test]
    fn the_speed_is_measured_once_enough_was_replayed() {
        assert_eq!(replay_speed(100 << 20, 2_000_000).to_bits(), f64::from(50 << 20).to_bits());
        for (bytes, micros) in [((8 << 20) - 1, 1), (8 << 20, 0)] {
            assert_eq!(replay_speed(bytes, micros).to_bits(), 20e6_f64.to_bits());
        }
    }
}
