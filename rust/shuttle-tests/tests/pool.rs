//! `block_pool` under schedules of all kinds.

use bytes::Bytes;
use fastchangelog_shuttle_tests::block_pool::BlockPool;
use fastchangelog_shuttle_tests::explore;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;
use shuttle::thread;
use std::collections::BTreeSet;
use std::sync::Arc;

const PIECE: usize = 16 << 10;
/// Space for two of the returned blocks.
const LIMIT: usize = 2 * PIECE;

#[test]
fn no_block_has_two_users_and_the_bound_holds() {
    explore(20_000, || {
        let pool = BlockPool::new(LIMIT as u64);
        let held: Arc<Mutex<BTreeSet<usize>>> = Arc::default();
        let work = |pool: BlockPool, held: Arc<Mutex<BTreeSet<usize>>>| {
            for _ in 0..3 {
                let mut memory = pool.take(PIECE);
                let place = memory.as_ptr() as usize;
                assert!(held.lock().unwrap().insert(place), "a block in use is given out again");
                assert!(memory.is_empty() && pool.bytes() <= LIMIT);
                memory.extend_from_slice(&[7; 100]);
                if thread_rng().gen_bool(0.5) {
                    let (one, other): (Bytes, Bytes) = (pool.lend(memory), Bytes::new());
                    let clone = one.clone();
                    drop((one, other));
                    thread::yield_now();
                    assert_eq!(&clone[..], [7; 100], "a reader holds it");
                    held.lock().unwrap().remove(&place);
                    drop(clone);
                } else {
                    held.lock().unwrap().remove(&place);
                    pool.give(memory);
                }
                assert!(pool.bytes() <= LIMIT, "{} bytes are kept", pool.bytes());
            }
        };
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (pool, held) = (pool.clone(), Arc::clone(&held));
                thread::spawn(move || work(pool, held))
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        // All that came back can be taken: the count and the pieces agree.
        let kept = pool.bytes() / PIECE;
        let taken: Vec<_> = (0..kept).map(|_| pool.take(PIECE)).collect();
        assert!(kept > 0 && pool.bytes() == 0 && taken.len() == kept);
    });
}
