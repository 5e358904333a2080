//! Limits of the process and of the machine, as errors of the operating system name them.
//!
//! Owns: the error numbers that mean such a limit, and the remedy for each.
//! Does not own: reading the limits (`store::threads`), errors without a number (`store::diagnose`).

use std::io;

/// The same numbers on all systems that the library runs on.
const ENOMEM: i32 = 12;
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

/// Open files of the process.
pub const OPEN_FILES: &str = "raise the limit of open files (ulimit -n), or lower the option `store_concurrency`";
/// Open files of all processes.
pub const OPEN_FILES_OF_ALL: &str = "the machine has too many open files: raise its limit (fs.file-max)";
/// Memory, or the space of addresses.
pub const MEMORY: &str =
    "raise the limit of memory (ulimit -v, or that of the container), or lower the option `memory_budget`";

/// The remedy for an error that reports a limit; none for other errors.
pub fn remedy_of_limit(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        EMFILE => Some(OPEN_FILES),
        ENFILE => Some(OPEN_FILES_OF_ALL),
        ENOMEM => Some(MEMORY),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn an_error_of_a_limit_names_it_and_the_option() {
        let limits = [(EMFILE, "ulimit -n", "store_concurrency"), (ENOMEM, "ulimit -v", "memory_budget")];
        for (number, limit, option) in limits {
            let io = io::Error::from_raw_os_error(number);
            let error = Error::io("cannot make x", &io);
            assert!(error.is_retryable() && error.remedy().is_some_and(|r| r.contains(limit)), "{error}");
            assert!(error.message().contains(option), "{error}");
        }
        assert_eq!(Error::io("x", &io::ErrorKind::Interrupted.into()).remedy(), None);
    }
}
