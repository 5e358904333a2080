//! Credentials that change: returned by a function of the caller, supplied by it, or fetched by `object_store` from a
//! service.
//!
//! Owns: calling the caller's function and keeping its answer until shortly before it expires or until a store refuses
//! it; the supplied credentials in the store's form; reporting fetched secrets to the redactor; marking errors as
//! errors of credentials.
//! Does not own: the choice of a source (`connect`), the choice among supplied sets (`supplied`), the meaning of an
//! error (`diagnose`).
//!
//! Invariants:
//! 1. the function runs on its own thread, one call at a time; no I/O thread waits for it, and it is never joined;
//! 2. an answer that arrives after an abandoned attempt serves the next attempt, without another call;
//! 3. the redactor knows every fetched secret before it is sent.

use super::diagnose::{CredentialSource, CredentialsError};
use super::env_vars::{StoreKey, is_header_text, tidied};
use super::machine::Machine;
use super::redact::Redactor;
use super::threads::spawn;
use async_trait::async_trait;
use fastchangelog_format::clock::SharedClock;
use fastchangelog_format::error::{Error, ErrorKind, Result};
use object_store::CredentialProvider;
use object_store::aws::{AmazonS3ConfigKey, AwsCredential};
use object_store::azure::{AzureAccessKey, AzureConfigKey, AzureCredential, split_sas};
use object_store::gcp::{GcpCredential, GoogleConfigKey};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::oneshot;

pub use super::supplied::{Granted, SuppliedCredentials};

/// Credentials are renewed this long before they expire, or after half of their lifetime if that is later.
const MARGIN_MILLIS: u64 = 5 * 60 * 1000;
/// When the function failed, and its last answer is still valid: the time until the next call.
const PAUSE_MILLIS: u64 = 10 * 1000;

/// A function that gives credentials; it may take its time.
pub type Ask = Arc<dyn Fn() -> Result<Granted> + Send + Sync>;

/// A caller's source of credentials.
#[derive(Clone)]
pub struct Provider(ProviderKind);

#[derive(Clone)]
enum ProviderKind {
    Function { ask: Ask, clock: SharedClock },
    Supplied(Arc<SuppliedCredentials>),
}

impl Provider {
    /// Calls `ask`, and again before its answer expires by `clock`.
    pub fn new(ask: Ask, clock: SharedClock) -> Self {
        Self(ProviderKind::Function { ask, clock })
    }

    /// Uses supplied credentials.
    pub fn supplied(credentials: Arc<SuppliedCredentials>) -> Self {
        Self(ProviderKind::Supplied(credentials))
    }

    /// The credentials as a store takes them, and how others are had when it refuses them.
    pub(super) fn connect<T: Credential>(
        self,
        redactor: &Redactor,
    ) -> Result<(Arc<dyn CredentialProvider<Credential = T>>, Arc<dyn Renew>)> {
        let redactor = redactor.clone();
        Ok(match self.0 {
            ProviderKind::Function { ask, clock } => {
                let provided = Arc::new(FunctionProvider::<T>::new(ask, clock, redactor));
                (Arc::clone(&provided) as _, provided)
            }
            ProviderKind::Supplied(supplied) => {
                let supplied = Arc::new(SuppliedProvider::<T>::new(supplied, redactor)?);
                (Arc::clone(&supplied) as _, supplied)
            }
        })
    }
}

/// Credentials that may have a replacement when a store refuses them.
pub(super) trait Renew: Send + Sync + fmt::Debug {
    /// The number of the credentials in use.
    fn number(&self) -> u64;
    /// Reports that the store refused the credentials of this number. Returns true if the next attempt may get other credentials.
    fn refuse(&self, number: u64) -> bool;
}

/// The secret parts of a credential, and its construction from a function's answer.
pub(super) trait Credential: Sized + Send + Sync + fmt::Debug + 'static {
    fn secrets(&self) -> Vec<String>;
    /// The parts sent verbatim in headers; a client panics on characters that headers cannot hold.
    fn sent(&self) -> Vec<&str>;
    fn from_options(options: &BTreeMap<String, String>) -> Result<Self>;
}

impl Credential for AwsCredential {
    fn secrets(&self) -> Vec<String> {
        [Some(&self.key_id), Some(&self.secret_key), self.token.as_ref()].into_iter().flatten().cloned().collect()
    }

    fn sent(&self) -> Vec<&str> {
        [Some(&self.key_id), self.token.as_ref()].into_iter().flatten().map(String::as_str).collect()
    }

    fn from_options(options: &BTreeMap<String, String>) -> Result<Self> {
        use AmazonS3ConfigKey as Key;
        let [key_id, secret_key, token] = pick(options, [Key::AccessKeyId, Key::SecretAccessKey, Key::Token])?;
        match (key_id, secret_key) {
            (Some(key_id), Some(secret_key)) => Ok(Self { key_id, secret_key, token }),
            _ => Err(unusable("no access_key_id or no secret_access_key")),
        }
    }
}

impl Credential for AzureCredential {
    fn secrets(&self) -> Vec<String> {
        match self {
            // The caller's options and answers hold it as text.
            Self::AccessKey(_) => Vec::new(),
            Self::SASToken(pairs) => pairs.iter().filter(|(name, _)| name == "sig").map(|(_, v)| v.clone()).collect(),
            Self::BearerToken(token) => vec![token.clone()],
        }
    }

    fn sent(&self) -> Vec<&str> {
        if let Self::BearerToken(token) = self { vec![token] } else { Vec::new() }
    }

    fn from_options(options: &BTreeMap<String, String>) -> Result<Self> {
        use AzureConfigKey as Key;
        match pick(options, [Key::AccessKey, Key::SasKey, Key::Token])? {
            [Some(key), None, None] => AzureAccessKey::try_new(&key)
                .map(Self::AccessKey)
                .map_err(|_| unusable("an account_key that is not Base64")),
            [None, Some(sas), None] => {
                split_sas(&sas).map(Self::SASToken).map_err(|_| unusable("a malformed sas_token"))
            }
            [None, None, Some(token)] => Ok(Self::BearerToken(token)),
            _ => Err(unusable("not exactly one of account_key, sas_token and token")),
        }
    }
}

impl Credential for GcpCredential {
    fn secrets(&self) -> Vec<String> {
        vec![self.bearer.clone()]
    }

    fn sent(&self) -> Vec<&str> {
        vec![&self.bearer]
    }

    fn from_options(options: &BTreeMap<String, String>) -> Result<Self> {
        let [token] = pick(options, [GoogleConfigKey::BearerToken])?;
        token.map(|bearer| Self { bearer }).ok_or_else(|| unusable("no token"))
    }
}

fn unusable(what: &str) -> Error {
    Error::invalid(format!("the storage options or the credential provider gave {what}"))
        .with_remedy("correct what they give")
}

/// The values of the options `wanted`, without blanks around them; an option that is none of them is an error.
fn pick<K: StoreKey, const N: usize>(
    options: &BTreeMap<String, String>,
    wanted: [K; N],
) -> Result<[Option<String>; N]> {
    let mut picked = [const { None }; N];
    for (name, value) in options {
        let place = K::named(name).and_then(|key| wanted.iter().position(|other| *other == key));
        let place = place.ok_or_else(|| unusable(&format!("`{name}`, which is no credential of this store")))?;
        picked[place] = tidied::<K>(&wanted[place], name, value)?;
    }
    Ok(picked)
}

struct CachedCredential<T> {
    number: u64,
    credential: Arc<T>,
    ask_again_millis: Option<u64>,
    expires_at_millis: Option<u64>,
}

struct AnswerCache<T> {
    kept: Option<CachedCredential<T>>,
    pending: Option<oneshot::Receiver<Result<Granted>>>,
}

/// Credentials of the caller's function.
pub(super) struct FunctionProvider<T> {
    ask: Ask,
    clock: SharedClock,
    redactor: Redactor,
    answers: tokio::sync::Mutex<AnswerCache<T>>,
    /// The number of the kept answer.
    number: AtomicU64,
    /// The greatest number of an answer that a store refused.
    refused: AtomicU64,
}

impl<T> fmt::Debug for FunctionProvider<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FunctionProvider")
    }
}

impl<T: Credential> FunctionProvider<T> {
    pub(super) fn new(ask: Ask, clock: SharedClock, redactor: Redactor) -> Self {
        let answers = tokio::sync::Mutex::new(AnswerCache { kept: None, pending: None });
        Self { ask, clock, redactor, answers, number: AtomicU64::new(0), refused: AtomicU64::new(0) }
    }

    fn ask(&self) -> oneshot::Receiver<Result<Granted>> {
        let (sender, receiver) = oneshot::channel();
        let ask = Arc::clone(&self.ask);
        let work = move || drop(sender.send(ask()));
        match spawn("fcl-credentials", "the thread that asks for credentials", work) {
            Ok(_) => receiver,
            Err(error) => {
                let (sender, receiver) = oneshot::channel();
                let _ = sender.send(Err(error));
                receiver
            }
        }
    }

    fn keep(&self, granted: &Granted) -> Result<CachedCredential<T>> {
        self.redactor.learn(granted.options.values().map(|value| value.trim().to_owned()));
        let credential = Arc::new(T::from_options(&granted.options)?);
        let now = self.clock.now_millis();
        let ask_again_millis =
            granted.expires_at_millis.map(|end| end - MARGIN_MILLIS.min(end.saturating_sub(now) / 2));
        let number = self.number.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(CachedCredential { number, credential, ask_again_millis, expires_at_millis: granted.expires_at_millis })
    }
}

impl<T: Credential> Renew for FunctionProvider<T> {
    fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    fn refuse(&self, number: u64) -> bool {
        // An attempt that began before the first answer used that one.
        self.refused.fetch_max(number.max(1), Ordering::Relaxed);
        true
    }
}

#[async_trait]
impl<T: Credential> CredentialProvider for FunctionProvider<T> {
    type Credential = T;

    async fn get_credential(&self) -> object_store::Result<Arc<T>> {
        let mut answers = self.answers.lock().await;
        let AnswerCache { kept, pending } = &mut *answers;
        let now = || self.clock.now_millis();
        let refused = self.refused.load(Ordering::Relaxed);
        if kept.as_ref().is_some_and(|kept| kept.number <= refused) {
            *kept = None;
        }
        if let Some(kept) = kept
            && kept.ask_again_millis.is_none_or(|end| now() < end)
        {
            return Ok(Arc::clone(&kept.credential));
        }
        let answer = pending.get_or_insert_with(|| self.ask()).await;
        *pending = None;
        let granted = answer.unwrap_or_else(|_| Err(Error::retryable("the credential provider gave no answer")));
        let still_good = kept.as_ref().and_then(|kept| kept.expires_at_millis).filter(|end| now() < *end);
        match granted.and_then(|granted| self.keep(&granted)) {
            Ok(fresh) => Ok(Arc::clone(&kept.insert(fresh).credential)),
            Err(error) => match kept.as_mut().zip(still_good) {
                Some((kept, end)) => {
                    tracing::warn!(
                        cause = %self.redactor.clean(error.message()),
                        "cannot renew the credentials; using the old ones until they expire"
                    );
                    kept.ask_again_millis = Some(end.min(now() + PAUSE_MILLIS));
                    Ok(Arc::clone(&kept.credential))
                }
                None => Err(CredentialsError::new(CredentialSource::Function(error.kind()), error.message()).into()),
            },
        }
    }
}

/// Supplied credentials in the form of a store's credential.
pub(super) struct SuppliedProvider<T> {
    given: Arc<SuppliedCredentials>,
    redactor: Redactor,
    /// The number of the last set, and its form as a store's credential.
    last: Mutex<Option<(u64, Arc<T>)>>,
}

impl<T> fmt::Debug for SuppliedProvider<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SuppliedProvider")
    }
}

impl<T: Credential> SuppliedProvider<T> {
    /// Of `given`, which must be credentials of this store.
    fn new(given: Arc<SuppliedCredentials>, redactor: Redactor) -> Result<Self> {
        let this = Self { given, redactor, last: Mutex::new(None) };
        this.current()?;
        Ok(this)
    }

    /// The credential in use; none if all supplied sets have expired.
    fn current(&self) -> Result<Option<Arc<T>>> {
        let Some(set) = self.given.set() else { return Ok(None) };
        let mut last = self.last.lock();
        if let Some((number, credential)) = last.as_ref()
            && *number == set.number
        {
            return Ok(Some(Arc::clone(credential)));
        }
        self.redactor.learn(set.granted.options.values().map(|value| value.trim().to_owned()));
        let credential = Arc::new(T::from_options(&set.granted.options)?);
        *last = Some((set.number, Arc::clone(&credential)));
        Ok(Some(credential))
    }
}

impl<T: Credential> Renew for SuppliedProvider<T> {
    fn number(&self) -> u64 {
        self.given.number()
    }

    fn refuse(&self, number: u64) -> bool {
        self.given.refuse(number)
    }
}

#[async_trait]
impl<T: Credential> CredentialProvider for SuppliedProvider<T> {
    type Credential = T;

    async fn get_credential(&self) -> object_store::Result<Arc<T>> {
        let failed = |kind, text: &str| CredentialsError::new(CredentialSource::Supplied(kind), text);
        match self.current() {
            Ok(Some(credential)) => Ok(credential),
            Ok(None) => Err(failed(ErrorKind::Retryable, "the given ones have expired").into()),
            Err(error) => Err(failed(error.kind(), error.message()).into()),
        }
    }
}

/// Credentials of another source, observed for the redactor.
pub(super) struct ObservedProvider<T> {
    inner: Arc<dyn CredentialProvider<Credential = T>>,
    source: CredentialSource,
    /// The service of the machine, if that is the source.
    machine: Option<Machine>,
    redactor: Redactor,
    last: Mutex<Option<Arc<T>>>,
}

impl<T> fmt::Debug for ObservedProvider<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObservedProvider({:?})", self.source)
    }
}

impl<T: Credential> ObservedProvider<T> {
    /// The credentials of `inner`, which fetches them from `source`: from `machine`, if that is its own.
    pub(super) fn over(
        inner: Arc<dyn CredentialProvider<Credential = T>>,
        source: CredentialSource,
        machine: Option<Machine>,
        redactor: Redactor,
    ) -> Arc<Self> {
        Arc::new(Self { inner, source, machine, redactor, last: Mutex::new(None) })
    }
}

#[async_trait]
impl<T: Credential> CredentialProvider for ObservedProvider<T> {
    type Credential = T;

    async fn get_credential(&self) -> object_store::Result<Arc<T>> {
        if let (CredentialSource::Machine, Some(machine)) = (self.source, &self.machine)
            && !machine.exists().await
        {
            return Err(CredentialsError::new(CredentialSource::Machine, "no metadata service answers").into());
        }
        match self.inner.get_credential().await {
            Ok(credential) if !credential.sent().into_iter().all(is_header_text) => {
                let text = "the service gave a key or a token with a character that no key has";
                Err(CredentialsError::new(CredentialSource::Service, text).into())
            }
            Ok(credential) => {
                let mut last = self.last.lock();
                if !last.as_ref().is_some_and(|last| Arc::ptr_eq(last, &credential)) {
                    self.redactor.learn(credential.secrets());
                    *last = Some(Arc::clone(&credential));
                }
                Ok(credential)
            }
            Err(error) => {
                // A metadata service that answered once exists.
                let exists = self.last.lock().is_some();
                let origin = if self.source == CredentialSource::Machine && exists {
                    CredentialSource::Service
                } else {
                    self.source
                };
                Err(CredentialsError::fetching(origin, error).into())
            }
        }
    }
}

#[cfg(test)]
#[path = "credentials_tests.rs"]
mod tests;
