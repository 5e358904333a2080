//! Metrics in Prometheus' text exposition format, version 0.0.4.
//!
//! Owns: names in the text, labels and their escapes, the bound on shards.
//! Does not own: the values, and serving the text.
//!
//! A counter is `fastchangelog_<name>_total`, a gauge `fastchangelog_<name>`. A histogram is a summary: its quantiles
//! cover the newest values, its sum and count cover all.

use super::{Kind, Metrics, Row, ShardGauges, instruments::Instrument};
use std::fmt::Write;

/// The media type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Shards with series of their own; others are in the sums only.
const MAX_SHARDS: usize = 1000;

/// The gauges of a shard, and its labels.
#[derive(Debug, Clone)]
pub struct LabelledShard {
    /// Spark's id of the query; empty for an embedded state.
    pub query: String,
    /// The operator's name, or the embedded state's.
    pub operator: String,
    /// Number of the shard.
    pub shard: u32,
    /// Its values.
    pub gauges: ShardGauges,
}

/// The text of all metrics, and of the first thousand shards.
pub fn render(metrics: &Metrics, shards: &[LabelledShard]) -> String {
    let mut text = String::with_capacity(16 << 10);
    for (row, found) in metrics.rows() {
        let name = head(&mut text, row);
        match found {
            Instrument::Number(number) => line(&mut text, &name, "", number.get()),
            Instrument::Histogram(histogram) => {
                let found = histogram.get();
                let quantiles = [("0", found.min), ("0.5", found.p50), ("0.99", found.p99), ("1", found.max)];
                for (quantile, value) in quantiles.into_iter().filter(|_| found.count > 0) {
                    line(&mut text, &name, &format!("{{quantile=\"{quantile}\"}}"), value);
                }
                line(&mut text, &format!("{name}_sum"), "", found.total_sum);
                line(&mut text, &format!("{name}_count"), "", found.total_count);
            }
        }
    }
    let mut shards: Vec<&LabelledShard> = shards.iter().collect();
    shards.sort_by(|a, b| (&a.query, &a.operator, a.shard).cmp(&(&b.query, &b.operator, b.shard)));
    // One series per set of labels: a shard that replaces another one may be open beside it.
    shards.dedup_by(|a, b| (&a.query, &a.operator, a.shard) == (&b.query, &b.operator, b.shard));
    shards.truncate(MAX_SHARDS);
    let labelled: Vec<(String, Vec<u64>)> = shards.iter().map(|s| (labels(s), s.gauges.values())).collect();
    for (at, row) in ShardGauges::TABLE.iter().enumerate().filter(|_| !labelled.is_empty()) {
        let name = head(&mut text, row);
        labelled.iter().for_each(|(labels, values)| line(&mut text, &name, labels, values[at]));
    }
    text
}

/// The lines that explain a metric; gives its name in the text.
fn head(text: &mut String, row: &Row) -> String {
    let (kind, suffix) = match row.kind {
        Kind::Counter => ("counter", "_total"),
        Kind::Gauge => ("gauge", ""),
        Kind::Histogram => ("summary", ""),
    };
    let name = format!("fastchangelog_{}{suffix}", row.name);
    let help = row.meaning.trim().replace('\\', "\\\\").replace('\n', "\\n");
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    name
}

fn line(text: &mut String, name: &str, labels: &str, value: u64) {
    let _ = writeln!(text, "{name}{labels} {value}");
}

fn labels(shard: &LabelledShard) -> String {
    let (query, operator) = (escaped(&shard.query), escaped(&shard.operator));
    format!("{{query=\"{query}\",operator=\"{operator}\",shard=\"{}\"}}", shard.shard)
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(operator: &str, shard: u32) -> LabelledShard {
        let gauges = ShardGauges { shard_keys: 5, ..ShardGauges::default() };
        LabelledShard { query: "q".to_owned(), operator: operator.to_owned(), shard, gauges }
    }

    #[test]
    fn counters_gauges_and_summaries() {
        let metrics = Metrics::default();
        metrics.log_objects.add(3);
        metrics.in_flight_bytes.set(7);
        metrics.upload_bytes.record(10);
        metrics.upload_bytes.record(20);
        let text = render(&metrics, &[]);
        let lines = [
            "# HELP fastchangelog_log_objects_total Log objects uploaded.",
            "# TYPE fastchangelog_log_objects_total counter",
            "fastchangelog_log_objects_total 3",
            "# TYPE fastchangelog_in_flight_bytes gauge",
            "fastchangelog_in_flight_bytes 7",
            "# TYPE fastchangelog_upload_bytes summary",
            "fastchangelog_upload_bytes{quantile=\"0.5\"} 10",
            "fastchangelog_upload_bytes{quantile=\"1\"} 20",
            "fastchangelog_upload_bytes_sum 30",
            "fastchangelog_upload_bytes_count 2",
            "fastchangelog_upload_micros_count 0",
        ];
        lines.iter().for_each(|line| assert!(text.lines().any(|found| found == *line), "no {line} in\n{text}"));
        assert!(!text.contains("fastchangelog_upload_micros{") && !text.contains("shard_keys"), "{text}");
    }

    #[test]
    fn labels_are_escaped_and_each_shard_is_named_once() {
        let shards = [shard("a\"b\\c\nd", 1), shard("x", 2), shard("x", 2)];
        let text = render(&Metrics::default(), &shards);
        let found: Vec<&str> = text.lines().filter(|l| l.starts_with("fastchangelog_shard_keys{")).collect();
        let first = r#"fastchangelog_shard_keys{query="q",operator="a\"b\\c\nd",shard="1"} 5"#;
        assert_eq!(found, [first, r#"fastchangelog_shard_keys{query="q",operator="x",shard="2"} 5"#]);
    }

    #[test]
    fn the_number_of_series_is_bounded() {
        let shards: Vec<LabelledShard> = (0..2000).map(|n| shard("x", n)).collect();
        let text = render(&Metrics::default(), &shards);
        assert_eq!(text.lines().filter(|l| l.starts_with("fastchangelog_shard_keys{")).count(), MAX_SHARDS);
    }
}
