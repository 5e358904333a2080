//! Between the answer of a checkpoint and its application to the live version.

use super::tests::{World, keys, rows, world};
use super::*;
use arrow_array::{ArrayRef, Int64Array};

/// A thread that reaches the failpoint waits there.
struct Meeting {
    folder: tempfile::TempDir,
    point: &'static str,
}

impl Meeting {
    fn at(world: &World, point: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(point), "wait").unwrap();
        world.failpoints.set(&format!("*=meet({})", folder.path().display())).unwrap();
        Self { folder, point }
    }

    fn end(&self) {
        std::fs::write(self.folder.path().join(format!("{}.go", self.point)), "").unwrap();
    }
}

/// Neither the caller, nor readers of changed keys, nor further changes wait for the local disk.
#[test]
fn a_checkpoint_answers_when_durable_not_when_applied() {
    let world = world(&[]);
    let s = world.open();
    s.put("a", Some(1));
    assert!(s.state.metrics().uncheckpointed_bytes.get() > 0);
    let meeting = Meeting::at(&world, "promote.before");
    let handle = s.state.checkpoint().unwrap();
    assert_eq!((s.state.newest(), s.state.metrics().uncheckpointed_bytes.get()), (Some(handle), 0));
    assert_eq!(s.get("a"), Some(1), "out of the frozen layer");
    s.put("a", Some(2));
    s.put("b", Some(2));
    assert_eq!((s.get("a"), s.state.metrics().checkpoints.get()), (Some(2), 1));
    meeting.end();
    assert_eq!(s.state.replay_debt().segments, 1, "a query of the live version waits for it");
    s.state.checkpoint().unwrap();
    assert_eq!(world.open().contents(), rows(&[("a", 2), ("b", 2)]));
}

#[test]
fn a_change_without_memory_waits_for_a_running_checkpoint() {
    let world = world(&[("memory_budget", "16MiB")]);
    let s = world.open();
    let many: Vec<String> = (0..20_000).map(|i| format!("key {i}")).collect();
    let batch = keys(&many.iter().map(String::as_str).collect::<Vec<_>>());
    let values: ArrayRef = Arc::new(Int64Array::from(vec![7; many.len()]));
    s.table.put(&batch, &values).unwrap();
    let more: Vec<String> = many.iter().map(|key| format!("{key} and more")).collect();
    let more = keys(&more.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(s.state.metrics().uncheckpointed_bytes.get() > 0);
    // Until the checkpoint is applied its memory is held.
    let meeting = Meeting::at(&world, "promote.before");
    s.state.checkpoint().unwrap();
    assert_eq!(s.state.metrics().uncheckpointed_bytes.get(), 0);
    // A call that begins below the bound may take more.
    s.table.put(&more, &values).unwrap();
    let begun = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !begun.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            meeting.end();
        });
        begun.store(true, Ordering::Release);
        s.put("one more", Some(1));
    });
    assert_eq!(s.state.metrics().checkpoints.get(), 1);
    assert_eq!(s.get("one more"), Some(1));
}

#[test]
fn a_change_that_waits_hears_signals() {
    let world = world(&[]);
    let asked = Arc::new(AtomicBool::new(false));
    let own = Arc::clone(&asked);
    let interrupt = move || {
        own.store(true, Ordering::Release);
        Err(Error::closed("interrupted"))
    };
    let s = world.open_with(|request| request.attend = Some(Arc::new(interrupt)));
    s.state.core.limit_changes(1);
    s.put("a", Some(1));
    let meeting = Meeting::at(&world, "promote.before");
    s.state.checkpoint().unwrap();
    let error = s.table.put(&keys(&["b"]), &(Arc::new(Int64Array::from(vec![2])) as ArrayRef)).unwrap_err();
    assert!(error.message().contains("interrupted") && asked.load(Ordering::Acquire), "{error}");
    meeting.end();
    s.state.replay_debt();
    assert_eq!(s.contents(), rows(&[("a", 1)]));
}
