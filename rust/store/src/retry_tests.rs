//! Tests of refused credentials: when there are others, and how often they are tried.

use super::*;
use crate::failpoint::Failpoints;
use std::sync::atomic::AtomicUsize;

/// Credentials of which there are as many others as is said.
#[derive(Debug)]
struct Others(AtomicUsize);

impl Renew for Others {
    fn number(&self) -> u64 {
        100 - self.0.load(Ordering::SeqCst) as u64
    }

    fn refuse(&self, number: u64) -> bool {
        assert_eq!(number, self.number(), "the credentials of that attempt");
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
    }
}

fn refusal() -> Failure {
    Failure::Store(object_store::Error::PermissionDenied { path: "a".into(), source: "ExpiredToken".into() })
}

/// How many attempts a request takes that is refused `refusals` times, and its error if it fails.
fn attempts(others: usize, refusals: usize, fail: impl Fn() -> Failure) -> (usize, Option<Error>) {
    attempts_of("5", others, refusals, fail)
}

fn attempts_of(most: &str, others: usize, refusals: usize, fail: impl Fn() -> Failure) -> (usize, Option<Error>) {
    let options = [("retry_delay", "1ms"), ("max_attempts", most)];
    let options = options.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let options = Options::from_map(&options).unwrap();
    let requests = Requests::new(&options, SharedMetrics::default(), Failpoints::none(), Redactor::default(), 0)
        .renewed_by(Some(Arc::new(Others(AtomicUsize::new(others)))));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let call = RequestContext { verb: "read", name: "log/a", bytes: Some(0), uri: "s3://b/q" };
    let mut made = 0;
    let result = runtime.block_on(requests.run(call, |_| {
        made += 1;
        let result = if made <= refusals { Err(fail()) } else { Ok(()) };
        std::future::ready(result)
    }));
    (made, result.err())
}

#[test]
fn a_refusal_is_tried_again_once_with_other_credentials() {
    let (made, error) = attempts(9, 1, refusal);
    assert!(made == 2 && error.is_none(), "{error:?}");
    let (made, error) = attempts(9, 2, refusal);
    assert_eq!((made, error.unwrap().kind()), (2, ErrorKind::PermissionDenied), "new ones are refused, too");
}

#[test]
fn a_request_without_retries_tries_other_credentials() {
    let (made, error) = attempts_of("1", 9, 1, refusal);
    assert!(made == 2 && error.is_none(), "{error:?}");
    let (made, error) = attempts_of("1", 9, 2, refusal);
    assert_eq!((made, error.unwrap().kind()), (2, ErrorKind::PermissionDenied));
}

#[test]
fn a_refusal_is_final_when_there_are_no_others() {
    let (made, error) = attempts(0, 1, refusal);
    assert_eq!((made, error.unwrap().kind()), (1, ErrorKind::PermissionDenied));
}

#[test]
fn other_credentials_do_not_help_where_none_could_be_had() {
    let none = || {
        let origin = super::super::diagnose::CredentialSource::Function(ErrorKind::PermissionDenied);
        Failure::Store(super::super::diagnose::CredentialsError::new(origin, "the vault is sealed").into())
    };
    let (made, error) = attempts(9, 1, none);
    assert!(made == 1 && error.unwrap().message().contains("sealed"));
}

#[test]
fn enospc_and_eperm_reach_the_error_by_type() {
    for (number, kind) in [(28, ErrorKind::Store), (1, ErrorKind::PermissionDenied)] {
        let failed = || {
            let source = Box::new(std::io::Error::from_raw_os_error(number));
            Failure::Store(object_store::Error::Generic { store: "LocalFileSystem", source })
        };
        let (made, error) = attempts(0, 1, failed);
        let error = error.unwrap();
        assert_eq!((made, error.kind()), (1, kind), "{error}");
        assert_eq!(error.source_as::<std::io::Error>().unwrap().raw_os_error(), Some(number));
    }
}
