use super::*;
use fastchangelog_format::config::Options;
use fastchangelog_format::model::{BatchId, InstanceId, KeyGroupRange, VersionId};
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::fault::{Fault, FaultStore, Operation};
use std::sync::Arc;
use std::time::Duration;

struct World {
    inner: Arc<FaultStore>,
    store: Store,
}

fn world() -> World {
    let inner = FaultStore::in_memory();
    let options = Options { max_attempts: 1, retry_delay: Duration::from_millis(1), ..Options::default() };
    let store = Store::from_object_store(
        Arc::clone(&inner) as _,
        "root",
        "test://bucket",
        &options,
        Arc::default(),
        Failpoints::none(),
    );
    World { inner, store }
}

impl World {
    async fn writer(&self) -> Chain {
        let found = find(&self.store).await.unwrap();
        let handle = found.newest.as_ref().and_then(|head| head.handle.clone());
        Chain::take_over(self.store.clone(), Failpoints::none(), &found, handle).await.unwrap().unwrap()
    }

    async fn numbers(&self) -> Vec<u64> {
        let mut numbers: Vec<u64> =
            self.store.list(HEADS).await.unwrap().iter().map(|l| head_number(&l.name).unwrap()).collect();
        numbers.sort_unstable();
        numbers
    }
}

fn handle(version: u128) -> ShardHandle {
    ShardHandle {
        instance: InstanceId(1),
        version: VersionId(version),
        parent: None,
        batch: BatchId(0),
        shard: 0,
        shards: 1,
        max_parallelism: 1,
        key_groups: KeyGroupRange { start: 0, end: 1 },
        hash_id: 1,
        schema_id: 0,
        schema: String::new(),
        watermark: None,
        state_keys: 0,
        state_bytes: 0,
        snapshot: None,
        indexed: None,
        segments: Vec::new(),
    }
}

fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

#[tokio::test]
async fn invariant_3_the_older_of_two_writers_is_fenced_for_good() {
    let world = world();
    let mut old = world.writer().await;
    old.publish(None).await.unwrap();
    let mut new = world.writer().await;
    assert_eq!((old.epoch(), new.epoch()), (1, 2));
    assert_eq!(kind(old.check().await), ErrorKind::Fenced);
    assert_eq!(kind(old.publish(None).await), ErrorKind::Fenced);
    new.publish(None).await.unwrap();
    assert_eq!(kind(old.publish(None).await), ErrorKind::Fenced, "once fenced, always fenced");
    new.check().await.unwrap();
    assert_eq!(world.numbers().await, [1, 2, 3, 4]);
    let mut newest = world.writer().await;
    assert_eq!(kind(new.publish(None).await), ErrorKind::Fenced, "also if it does not look first");
    newest.check().await.unwrap();
    assert_eq!(world.numbers().await, [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn invariant_2_a_writer_that_slept_past_a_removal_is_fenced() {
    let world = world();
    let mut asleep = world.writer().await;
    let mut new = world.writer().await;
    for _ in 0..3 * KEPT {
        new.publish(None).await.unwrap();
        new.prune().await;
    }
    let numbers = world.numbers().await;
    assert_eq!(numbers.len() as u64, KEPT);
    assert!(numbers[0] > 2, "the number after the sleeper's is free again");
    assert_eq!(kind(asleep.publish(None).await), ErrorKind::Fenced);
    assert_eq!(world.numbers().await, numbers, "it leaves nothing");
}

#[tokio::test]
async fn invariant_1_heads_go_upwards_and_a_failed_removal_is_retried() {
    let world = world();
    let mut chain = world.writer().await;
    for _ in 0..KEPT + 2 {
        chain.publish(None).await.unwrap();
    }
    world.inner.next(Fault::FailBefore);
    chain.prune().await;
    assert_eq!(world.numbers().await[0], 1, "nothing after the one that stayed");
    chain.prune().await;
    let numbers = world.numbers().await;
    assert_eq!(numbers, (numbers[0]..numbers[0] + KEPT).collect::<Vec<_>>());
    // The next writer goes on where this one stopped.
    assert_eq!(world.writer().await.lowest, numbers[0]);
}

#[tokio::test]
async fn a_head_whose_answer_was_lost_is_ours() {
    let world = world();
    let mut chain = world.writer().await;
    for (again, expected) in [(1, vec![1, 2]), (3, vec![1, 2, 3, 4])] {
        let first = again / 2 + 1;
        world.inner.next(Fault::FailAfter);
        assert_eq!(kind(chain.publish(Some(handle(first))).await), ErrorKind::Retryable);
        assert!(chain.is_uncertain());
        // The same handle is the same head; another one comes after it.
        chain.publish(Some(handle(again))).await.unwrap();
        assert!(!chain.is_uncertain());
        assert_eq!(world.numbers().await, expected);
        assert_eq!(find(&world.store).await.unwrap().newest.unwrap().handle, Some(handle(again)));
    }
}

#[tokio::test]
async fn of_two_that_open_at_once_one_looks_again() {
    let world = world();
    let found = find(&world.store).await.unwrap();
    let take = || Chain::take_over(world.store.clone(), Failpoints::none(), &found, None);
    assert!(take().await.unwrap().is_some());
    assert!(take().await.unwrap().is_none());
}

#[tokio::test]
async fn p9_a_damaged_head_is_reported_with_its_name() {
    let world = world();
    world.writer().await;
    let name = head_name(1);
    let good = world.store.get_named(&name).await.unwrap().unwrap();
    for i in 0..good.len() {
        let mut bad = good.to_vec();
        bad[i] ^= 1;
        world.store.put_overwrite(&name, bad.into()).await.unwrap();
        let error = find(&world.store).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {i}: {error}");
        assert!(error.message().contains(&name), "{error}");
    }
    world.store.put_overwrite(&head_name(2), good).await.unwrap();
    assert_eq!(kind(find(&world.store).await), ErrorKind::Corrupt, "a head under another number");
    assert_eq!(world.inner.calls_of(Operation::Delete), 0);
}
