//! Tests of the caller's function: how often it is asked, what is kept, and what it may return.

use super::*;
use fastchangelog_format::clock::{Clock, ManualClock};
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

const START: u64 = 1_800_000_000_000;

fn granted(pairs: &[(&str, &str)], expires_at_millis: Option<u64>) -> Granted {
    let options = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Granted { options, expires_at_millis }
}

/// A function whose n-th answer is for the key `n`, good for `millis`; it fails from the answer `fails_from` on.
fn rotating(
    clock: &Arc<ManualClock>,
    millis: Option<u64>,
    fails_from: usize,
) -> (FunctionProvider<AwsCredential>, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let (counted, time) = (Arc::clone(&calls), Arc::clone(clock));
    let ask = move || {
        let n = counted.fetch_add(1, Ordering::SeqCst);
        if n >= fails_from {
            return Err(Error::retryable("the vault is sealed"));
        }
        let pairs = [("access_key_id", n.to_string()), ("SECRET_ACCESS_KEY", "open-sesame".to_owned())];
        let pairs: Vec<_> = pairs.iter().map(|(k, v)| (*k, v.as_str())).collect();
        Ok(granted(&pairs, millis.map(|millis| time.now_millis() + millis)))
    };
    (FunctionProvider::new(Arc::new(ask), Arc::clone(clock) as SharedClock, Redactor::default()), calls)
}

async fn key(provided: &FunctionProvider<AwsCredential>) -> String {
    provided.get_credential().await.unwrap().key_id.clone()
}

#[tokio::test]
async fn keys_are_kept_until_shortly_before_their_end() {
    let clock = ManualClock::at(START);
    let (for_ever, calls) = rotating(&clock, None, usize::MAX);
    let (an_hour, _) = rotating(&clock, Some(3_600_000), usize::MAX);
    let (a_minute, _) = rotating(&clock, Some(60_000), usize::MAX);
    let (never, _) = rotating(&clock, Some(0), usize::MAX);
    for provided in [&for_ever, &an_hour, &a_minute, &never] {
        assert_eq!(key(provided).await, "0");
    }
    assert_eq!(key(&never).await, "1");
    clock.advance(Duration::from_millis(29_999));
    assert_eq!(key(&a_minute).await, "0");
    clock.advance(Duration::from_millis(1));
    assert_eq!(key(&a_minute).await, "1", "after half of its time");
    clock.advance(Duration::from_mins(54));
    assert_eq!(key(&an_hour).await, "0");
    clock.advance(Duration::from_secs(30));
    assert_eq!(key(&an_hour).await, "1", "five minutes before its end");
    clock.advance(Duration::from_hours(10_000));
    assert_eq!(key(&for_ever).await, "0");
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn keys_that_cannot_be_renewed_are_used_to_their_end() {
    let clock = ManualClock::at(START);
    let (provided, calls) = rotating(&clock, Some(60_000), 1);
    assert_eq!(key(&provided).await, "0");
    clock.advance(Duration::from_secs(30));
    for _ in 0..3 {
        assert_eq!(key(&provided).await, "0");
    }
    assert_eq!(calls.load(Ordering::SeqCst), 2, "not asked for each request");
    clock.advance(Duration::from_secs(29));
    assert_eq!(key(&provided).await, "0");
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    clock.advance(Duration::from_secs(1));
    let error = provided.get_credential().await.unwrap_err();
    assert!(error.to_string().contains("the vault is sealed"), "{error}");
}

#[tokio::test]
async fn an_answer_that_comes_late_is_used_by_the_next_attempt() {
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let ask = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        let _ = gate.lock().recv();
        Ok(granted(&[("access_key_id", "k"), ("secret_access_key", "s")], None))
    };
    let provided: FunctionProvider<AwsCredential> =
        FunctionProvider::new(Arc::new(ask), ManualClock::at(START), Redactor::default());
    for _ in 0..3 {
        let attempt = provided.get_credential();
        assert!(futures::FutureExt::now_or_never(attempt).is_none(), "given up");
    }
    open.send(()).unwrap();
    assert_eq!(key(&provided).await, "k");
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn what_is_given_is_known_to_the_redactor() {
    let redactor = Redactor::default();
    let ask = || Ok(granted(&[("account_key", "c2VzYW1lLW9wZW4=")], None));
    let provided: FunctionProvider<AzureCredential> =
        FunctionProvider::new(Arc::new(ask), ManualClock::at(START), redactor.clone());
    let watched = ObservedProvider::over(Arc::new(provided), CredentialSource::Service, None, redactor.clone());
    watched.get_credential().await.unwrap();
    assert_eq!(redactor.clean("key c2VzYW1lLW9wZW4="), "key ***");
    assert!(!format!("{watched:?}").contains("c2Vz"));
}

#[test]
fn answers_of_another_shape_are_refused_by_name() {
    fn refused<T: Credential>(pairs: &[(&str, &str)]) -> String {
        let error = T::from_options(&granted(pairs, None).options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        error.message().to_owned()
    }
    assert!(refused::<AwsCredential>(&[]).contains("access_key_id"));
    assert!(refused::<AwsCredential>(&[("access_key_id", "k")]).contains("secret_access_key"));
    let region = refused::<AwsCredential>(&[("access_key_id", "k"), ("region", "r")]);
    assert!(region.contains("`region`"), "{region}");
    assert!(refused::<AzureCredential>(&[("sas_token", "a=b"), ("token", "t")]).contains("exactly one"));
    let key = refused::<AzureCredential>(&[("account_key", "not-base-64!")]);
    assert!(!key.contains("not-base-64"), "{key}");
    assert!(refused::<GcpCredential>(&[]).contains("token"));
    let token = granted(&[("token", "t")], None).options;
    assert_eq!(GcpCredential::from_options(&token).unwrap().bearer, "t");
    assert!(matches!(AzureCredential::from_options(&token).unwrap(), AzureCredential::BearerToken(_)));
}

#[tokio::test]
async fn keys_that_a_store_refused_are_asked_for_again() {
    let clock = ManualClock::at(START);
    let (provided, calls) = rotating(&clock, Some(3_600_000), 2);
    let before = provided.number();
    assert_eq!(key(&provided).await, "0");
    assert!(provided.refuse(before), "an attempt that began before the first answer");
    assert_eq!(key(&provided).await, "1");
    assert!(provided.refuse(1), "a slower attempt with the keys of before");
    assert_eq!((key(&provided).await.as_str(), calls.load(Ordering::SeqCst)), ("1", 2), "newer ones are there");
    assert!(provided.refuse(provided.number()));
    let error = provided.get_credential().await.unwrap_err();
    assert!(error.to_string().contains("the vault is sealed"), "refused keys are not used for want of others: {error}");
}

fn supplied(
    clock: &Arc<ManualClock>,
    redactor: &Redactor,
) -> (Arc<SuppliedCredentials>, SuppliedProvider<AwsCredential>) {
    let pairs = [("access_key_id", "first"), ("secret_access_key", "open-sesame")];
    let shared = SuppliedCredentials::new(granted(&pairs, Some(START + 60_000)), Arc::clone(clock) as _);
    let supplied = SuppliedProvider::new(Arc::clone(&shared), redactor.clone()).unwrap();
    (shared, supplied)
}

#[tokio::test]
async fn new_credentials_are_used_at_once_and_redacted() {
    let (clock, redactor) = (ManualClock::at(START), Redactor::default());
    let (shared, supplied) = supplied(&clock, &redactor);
    let first = supplied.get_credential().await.unwrap();
    assert!(Arc::ptr_eq(&first, &supplied.get_credential().await.unwrap()), "made once");
    let pairs = [("access_key_id", "second"), ("secret_access_key", "open-barley"), ("token", "tick-tock")];
    shared.supply(granted(&pairs, Some(START + 120_000)));
    assert_eq!(supplied.get_credential().await.unwrap().key_id, "second");
    assert_eq!(redactor.clean("open-sesame open-barley tick-tock"), "*** *** ***");
    clock.advance(Duration::from_mins(2));
    let error = supplied.get_credential().await.unwrap_err();
    let diagnosis = super::super::diagnose::diagnose(&error);
    assert!(diagnosis.permanent.is_none() && diagnosis.cause.contains("have expired"), "{diagnosis:?}");
    assert!(diagnosis.advice.contains("expires_at"), "{diagnosis:?}");
}

#[test]
fn what_is_handed_in_is_checked_when_a_store_is_opened() {
    let pairs = [("access_key_id", "k")];
    let shared = SuppliedCredentials::new(granted(&pairs, None), ManualClock::at(START) as _);
    let error = Provider::supplied(shared).connect::<AwsCredential>(&Redactor::default()).unwrap_err();
    assert!(error.message().contains("secret_access_key"), "{error}");
}
