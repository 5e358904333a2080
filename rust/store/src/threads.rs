//! Starting threads, where the system may refuse one.
//!
//! Owns: the error of a thread that cannot be started, which names the limit; the check whether threads can be started;
//! and the runtime of requests.
//! Does not own: the work of the threads.
//!
//! tokio panics, or lets work wait forever, if it cannot start a thread. So a runtime is made only when its threads can
//! be started. It keeps one thread for blocking work, and starts others when the system allows.

use crate::platform;
use fastchangelog_format::error::{Error, Result};
use rustix::process::{Resource, getrlimit};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use tokio::runtime::Runtime;

/// Threads of a runtime on which its tasks run.
const WORKERS: usize = 2;
/// How long a thread for work that blocks lives without work, and how often one is given some, so that it lives on.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const KEEP_BUSY: Duration = Duration::from_secs(4);
/// The stack of a thread that C++ code starts, on most systems.
const STACK: usize = 8 << 20;
/// How long a new thread may take until it runs.
const PATIENCE: Duration = Duration::from_secs(10);

/// Starts a thread; `what` it is, as in `the thread that opens a state`.
pub fn spawn<T: Send + 'static>(
    name: &str,
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).spawn(work).map_err(|e| refused(what, &e))
}

/// The error of threads that could not be started.
pub fn refused(what: &str, error: &io::Error) -> Error {
    let refused = Error::io(format_args!("cannot start {what}"), error);
    // Else it is another limit, which the error names: each thread of a runtime has files, too.
    if error.kind() == io::ErrorKind::WouldBlock { refused.with_remedy(remedy()) } else { refused }
}

/// The limit behind a refused thread, which the system does not report.
fn remedy() -> String {
    let threads = getrlimit(Resource::Nproc).current;
    let threads = threads.map_or_else(String::new, |limit| format!(", which is {limit} for all processes of the user"));
    let memory = getrlimit(Resource::As).current;
    let memory = memory.map_or_else(String::new, |limit| {
        format!(", or the limit of address space (ulimit -v), which is {} KiB", limit >> 10)
    });
    format!("raise the limit of threads (ulimit -u{threads}; in a container: pids.max){memory}")
}

/// An error unless this many more threads can be started now. For libraries that end the process if they cannot.
pub fn check_room(threads: usize, what: &str) -> Result<()> {
    let hold = Arc::new(Mutex::new(()));
    let held = hold.lock().unwrap_or_else(PoisonError::into_inner);
    let mut started = Vec::with_capacity(threads);
    let mut outcome = Ok(());
    for _ in 0..threads {
        let hold = Arc::clone(&hold);
        let builder = Builder::new().name("fcl-probe".to_owned()).stack_size(STACK);
        match builder.spawn(move || drop(hold.lock())) {
            Ok(thread) => started.push(thread),
            Err(error) => {
                outcome = Err(refused(what, &error));
                break;
            }
        }
    }
    drop(held);
    for thread in started {
        let _ = thread.join();
    }
    outcome
}

/// The calling thread gives way to others.
pub fn lower_priority() {
    platform::lower_priority();
}

/// The threads that wait for stores, and on which callers' tasks run.
pub fn start_io_threads() -> Result<Runtime> {
    const WHAT: &str = "the I/O threads";
    check_room(WORKERS + 1, WHAT)?;
    let build = || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_name("fastchangelog-io")
            .thread_keep_alive(KEEP_ALIVE)
            .enable_all()
            .build()
            .map_err(|e| refused(WHAT, &e))?;
        keep_one_for_blocking_work(&runtime)?;
        Ok(runtime)
    };
    // Another process of the user may have taken the room.
    catch_unwind(AssertUnwindSafe(build)).unwrap_or_else(|_| Err(refused(WHAT, &io::ErrorKind::WouldBlock.into())))
}

fn keep_one_for_blocking_work(runtime: &Runtime) -> Result<()> {
    let first = runtime.spawn_blocking(|| ());
    let (sender, started) = std::sync::mpsc::channel();
    runtime.spawn(async move {
        let _ = first.await;
        let _ = sender.send(());
        loop {
            tokio::time::sleep(KEEP_BUSY).await;
            let _ = tokio::task::spawn_blocking(|| ()).await;
        }
    });
    started.recv_timeout(PATIENCE).map_err(|_| refused("the I/O threads", &io::ErrorKind::WouldBlock.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastchangelog_format::error::ErrorKind;

    #[test]
    fn a_refused_thread_names_the_limit() {
        let error = refused("the thread of x", &io::ErrorKind::WouldBlock.into());
        assert_eq!(error.kind(), ErrorKind::Retryable);
        let remedy = error.remedy().unwrap();
        assert!(remedy.contains("ulimit -u") && remedy.contains("pids.max"), "{remedy}");
        let files = refused("the thread of x", &io::Error::from_raw_os_error(24));
        assert!(files.remedy().unwrap().contains("ulimit -n"), "{files}");
    }

    #[test]
    fn there_is_room_for_some_threads() {
        check_room(3, "threads").unwrap();
        check_room(0, "threads").unwrap();
    }

    #[test]
    fn a_runtime_has_a_thread_for_blocking_work_from_the_start() {
        let runtime = start_io_threads().unwrap();
        assert_eq!(runtime.block_on(async { tokio::task::spawn_blocking(|| 1).await }).unwrap(), 1);
    }
}
