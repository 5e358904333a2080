use super::*;

fn one(name: &str, value: &str) -> Result<Options> {
    Options::from_map(&BTreeMap::from([(name.to_owned(), value.to_owned())]))
}

#[test]
fn compression_follows_the_place_unless_it_is_named() {
    let found = |value: &str| [true, false].map(|remote| one("compression", value).unwrap().compression_in(remote));
    assert_eq!(found("auto"), [Compression::Zstd, Compression::Lz4]);
    assert_eq!(Options::default().compression_in(true), Compression::Zstd);
    for (name, compression) in [("none", Compression::None), ("LZ4", Compression::Lz4), ("zstd", Compression::Zstd)] {
        assert_eq!(found(name), [compression; 2]);
    }
    let refused = one("compression", "gzip").unwrap_err().to_string();
    assert!(refused.contains("auto, zstd, lz4 or none"), "{refused}");
}

#[test]
fn p06_overruled_are_options_of_the_process_with_another_value() {
    let in_force = one("memory_budget", "256MiB").unwrap();
    let asked = |pairs: &[(&str, &str)]| {
        let map = pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        in_force.overruled(&map).unwrap()
    };
    assert_eq!(asked(&[]), [""; 0], "what is not asked for is not overruled");
    assert_eq!(asked(&[("memory_budget", "268435456"), ("compression", "lz4")]), [""; 0]);
    assert_eq!(asked(&[("memory_budget", "1GiB"), ("cache_size", "9")]), ["memory_budget", "cache_size"]);
}

#[test]
fn each_option_has_an_effect_and_its_default_parses() {
    for row in Options::TABLE {
        assert!(row.scopes.iter().any(|(scope, _)| *scope != Scope::Process), "{}", row.name);
        for (scope, own) in row.scopes {
            let default = own.unwrap_or(row.default);
            assert_eq!(row.default_in(*scope), Some(default));
            assert!(one(row.name, default).is_ok(), "{}", row.name);
        }
    }
    let changelog = Options::for_changelog(&BTreeMap::new()).unwrap();
    assert_eq!(changelog.persist_delay, Duration::from_millis(10));
    assert_eq!(changelog.upload_part_size, Options::default().upload_part_size);
}

#[test]
fn a_state_in_process_refuses_what_has_no_effect_on_it() {
    let ask = |name: &str, value: &str| Options::for_local(&BTreeMap::from([(name.to_owned(), value.to_owned())]));
    let foreign = Options::TABLE.iter().filter(|row| row.default_in(Scope::Embedded).is_none());
    let names: Vec<_> = foreign.map(|row| row.name).collect();
    assert!(names.contains(&"start_from") && names.contains(&"preemptive_persist_threshold"), "{names:?}");
    for name in names {
        assert!(ask(name, "1").unwrap_err().message().contains(name));
    }
    assert_eq!(ask("memory_budget", "2MiB").unwrap().memory_budget, 2 << 20);
    assert!(ask("memory_bugdet", "2MiB").unwrap_err().message().contains("memory_budget"));
}

#[test]
fn sizes_and_durations() {
    assert_eq!(one("memory_budget", "256MiB").unwrap().memory_budget, 256 << 20);
    assert_eq!(one("memory_budget", "1024").unwrap().memory_budget, 1024);
    for (text, millis) in [
        ("50ms", 50),
        ("10s", 10_000),
        ("5m", 300_000),
        ("10 minutes", 600_000),
        ("1h", 3_600_000),
        ("2 days", 172_800_000),
        ("1 second", 1000),
    ] {
        assert_eq!(one("persist_delay", text).unwrap().persist_delay, Duration::from_millis(millis), "{text}");
    }
    assert!(one("persist_delay", "10").is_err());
    assert!(one("memory_budget", "lots").is_err());
}

#[test]
fn a_grace_period_below_a_minute_is_refused() {
    assert_eq!(one("sweep_grace", "1m").unwrap().sweep_grace, Duration::from_mins(1));
    assert!(one("sweep_grace", "59s").unwrap_err().message().contains("`sweep_grace` must be at least 1m"));
}

#[test]
fn memory_of_a_worker_below_a_megabyte_is_refused() {
    assert_eq!(one("worker_memory", "1MiB").unwrap().worker_memory, 1 << 20);
    assert!(one("worker_memory", "1000KiB").unwrap_err().message().contains("`worker_memory` must be at least 1MiB"));
}

#[test]
fn who_sweeps_and_how_often_is_checked() {
    assert_eq!(Options::default().sweep, Sweeping::Auto);
    assert_eq!(one("sweep", "OFF").unwrap().sweep, Sweeping::Off);
    assert!(one("sweep", "on").unwrap_err().message().contains("auto or off"));
    assert!(one("sweep_interval", "999ms").unwrap_err().message().contains("`sweep_interval` must be at least 1s"));
}

#[test]
fn unknown_names_give_the_nearest() {
    let text = one("memory_budgets", "1").unwrap_err().to_string();
    assert!(text.contains("`memory_budget`"), "{text}");
}

/// A user cannot choose among more options.
const MOST_PUBLIC: usize = 24;

#[test]
fn few_options_are_public() {
    let public: Vec<_> = Options::TABLE.iter().filter(|row| row.is_public).map(|row| row.name).collect();
    assert!(
        public.len() <= MOST_PUBLIC,
        "{} options; mark a new one as `tuning`, or an old one: {public:?}",
        public.len()
    );
}

#[test]
fn tuning_is_accepted_and_checked_but_never_suggested() {
    let tuning: Vec<_> = Options::TABLE.iter().filter(|row| !row.is_public).collect();
    assert!(tuning.iter().any(|row| row.name == "hedge_percentile"));
    assert_eq!(one("hedge_percentile", "0").unwrap().hedge_percentile, 0);
    assert!(one("hedge_percentile", "100").unwrap_err().message().contains("`hedge_percentile` must be"));
    let suggests = |error: Error| error.message().split_once("did you mean").map(|(_, hint)| hint.to_owned());
    for OptionRow { name, .. } in tuning {
        let misspelled = BTreeMap::from([(format!("{name}s"), "1".to_owned())]);
        for refused in [Options::from_map(&misspelled), Options::for_changelog(&misspelled)] {
            let hint = suggests(refused.unwrap_err()).unwrap_or_default();
            assert!(!hint.contains(&format!("`{name}`")), "{name}: {hint}");
        }
    }
}
