//! What an error of the store means: worth another attempt or not, and in which words.
//!
//! Owns: the classification of `object_store` errors, and the cleaning of their texts.
//! Does not own: the attempts (`retry`).
//!
//! Invariants:
//! 1. no text that leaves here holds a credential: known secrets, queries of URLs and passwords in URLs are removed;
//! 2. an error of unknown origin is worth another attempt; only what is known to be permanent is permanent.

use crate::error::ErrorKind;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

/// Longest cause that is put into a message.
const MAX_CAUSE: usize = 500;
/// Fetched secrets that are remembered: those of the last ten credentials or so; older ones have ended.
const MAX_LEARNED: usize = 32;

/// What to do about a failed attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Diagnosis {
    /// The kind, if further attempts are useless; none = try again.
    pub(super) permanent: Option<ErrorKind>,
    /// What happened; may hold credentials until a [`Redactor`] has cleaned it.
    pub(super) cause: String,
    /// What the reader can do.
    pub(super) advice: &'static str,
}

impl Diagnosis {
    fn again(cause: impl Into<String>) -> Self {
        Self {
            permanent: None,
            cause: cause.into(),
            advice: "check that the store can be reached; the options `max_attempts`, `retry_delay` and \
                     `request_timeout` govern the attempts",
        }
    }

    fn never(kind: ErrorKind, cause: impl Into<String>, advice: &'static str) -> Self {
        Self { permanent: Some(kind), cause: cause.into(), advice }
    }
}

/// The source that failed to provide credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CredentialSource {
    /// The caller's function, which said what kind of error it is.
    Function(ErrorKind),
    /// Supplied by the caller; the kind of error.
    Supplied(ErrorKind),
    /// The machine's metadata service, which need not exist.
    Machine,
    /// A service that the options or the environment name.
    Service,
}

/// Credentials could not be fetched.
#[derive(Debug)]
pub(super) struct CredentialsError {
    pub(super) source: CredentialSource,
    pub(super) text: String,
}

impl std::fmt::Display for CredentialsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl StdError for CredentialsError {}

impl From<CredentialsError> for object_store::Error {
    fn from(error: CredentialsError) -> Self {
        Self::Generic { store: "credentials", source: Box::new(error) }
    }
}

const FIX_RIGHTS: &str = "check the credentials and that they may read, write, list and delete in this folder";
const FIX_NO_CREDENTIALS: &str = "set credentials in `storage_options` or in the environment of the executors";
const FIX_SOURCE: &str = "correct the source of the credentials that the storage options or the environment name";
const FIX_PROVIDER: &str = "see why the `credential_provider` failed";
const FIX_SUPPLIED: &str = "let the `credential_provider` say in `expires_at` when its credentials end, and give ones that \
                          last longer than the time between two batches";
const FIX_FOLDER_RIGHTS: &str =
    "give the user that runs the executors the right to write there, or choose another folder";
const FIX_SPACE: &str = "free space there or choose another location for the state";
const FIX_READ_ONLY: &str = "the file system is mounted read-only: choose another location for the state";
const FIX_BUCKET: &str = "create the bucket (container) or correct its name in the URI";
const FIX_MISSING: &str = "it was deleted, or the URI points to another folder than the one it was written to";
const FIX_REGION: &str =
    "set the storage option `region` to the bucket's region, and `endpoint` for other stores than AWS";
const FIX_OPTIONS: &str = "correct the storage options or the URI";
const FIX_PATH: &str = "correct the path in the URI";

/// Diagnoses an error of `object_store`.
pub(super) fn diagnose(error: &object_store::Error) -> Diagnosis {
    use object_store::Error as E;
    let text = error.to_string();
    if let Some(failed) = credentials_error(error) {
        return diagnose_credentials(failed);
    }
    match error {
        E::NotFound { .. } if is_bucket_missing(&text) => {
            Diagnosis::never(ErrorKind::Store, "the bucket does not exist", FIX_BUCKET)
        }
        E::NotFound { .. } => Diagnosis::never(ErrorKind::NotFound, "it does not exist", FIX_MISSING),
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => Diagnosis::never(
            ErrorKind::PermissionDenied,
            format!("permission denied: {}", source_text(error)),
            FIX_RIGHTS,
        ),
        E::NotSupported { .. } | E::NotImplemented { .. } | E::UnknownConfigurationKey { .. } => {
            Diagnosis::never(ErrorKind::Store, text, FIX_OPTIONS)
        }
        E::InvalidPath { .. } => Diagnosis::never(ErrorKind::InvalidArgument, text, FIX_PATH),
        // For a create-only put the caller looks at the object itself; elsewhere this is a passing conflict.
        E::AlreadyExists { .. } | E::Precondition { .. } | E::NotModified { .. } | E::JoinError { .. } => {
            Diagnosis::again(text)
        }
        // Generic, and whatever a later version adds.
        _ => match io_error(error) {
            Some(io) => diagnose_io(io),
            None => diagnose_http(&text, source_text(error)),
        },
    }
}

/// True if the store itself refused the credentials, or what they may do; other credentials may help.
pub(super) fn is_refusal(error: &object_store::Error, diagnosis: &Diagnosis) -> bool {
    diagnosis.permanent == Some(ErrorKind::PermissionDenied) && credentials_error(error).is_none()
}

fn is_bucket_missing(text: &str) -> bool {
    ["NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist", "FilesystemNotFound"]
        .iter()
        .any(|t| text.contains(t))
}

/// Diagnoses an error of a file system.
pub(super) fn diagnose_io(error: &io::Error) -> Diagnosis {
    use io::ErrorKind as K;
    let text = error.to_string();
    match error.kind() {
        K::PermissionDenied => Diagnosis::never(ErrorKind::PermissionDenied, text, FIX_FOLDER_RIGHTS),
        K::NotFound => Diagnosis::never(ErrorKind::NotFound, text, FIX_MISSING),
        K::StorageFull | K::QuotaExceeded => {
            Diagnosis::never(ErrorKind::Store, format!("the disk is full: {text}"), FIX_SPACE)
        }
        K::ReadOnlyFilesystem => Diagnosis::never(ErrorKind::PermissionDenied, text, FIX_READ_ONLY),
        K::NotADirectory | K::IsADirectory | K::InvalidFilename => {
            Diagnosis::never(ErrorKind::InvalidArgument, text, FIX_PATH)
        }
        K::FileTooLarge => Diagnosis::never(ErrorKind::Store, text, FIX_SPACE),
        _ => Diagnosis::again(text),
    }
}

fn diagnose_http(text: &str, cause: String) -> Diagnosis {
    if text.contains("redirect without LOCATION") {
        return Diagnosis::never(ErrorKind::Store, "the bucket is in another region", FIX_REGION);
    }
    match http_status(text) {
        Some(400) if ["ExpiredToken", "InvalidToken", "InvalidAccessKeyId"].iter().any(|t| text.contains(t)) => {
            Diagnosis::never(ErrorKind::PermissionDenied, cause, FIX_RIGHTS)
        }
        // Broken on the way, not refused.
        Some(400)
            if ["RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContent", "Md5Mismatch"]
                .iter()
                .any(|t| text.contains(t)) =>
        {
            Diagnosis::again(cause)
        }
        Some(408 | 425 | 429 | 500..) => Diagnosis::again(cause),
        Some(301 | 307 | 308) => Diagnosis::never(ErrorKind::Store, cause, FIX_REGION),
        Some(300..500) => Diagnosis::never(ErrorKind::Store, cause, FIX_OPTIONS),
        // No status: the connection failed or broke.
        _ => Diagnosis::again(cause),
    }
}

fn credentials_error(error: &object_store::Error) -> Option<&CredentialsError> {
    let mut current: Option<&(dyn StdError + 'static)> = error.source();
    while let Some(next) = current {
        if let Some(found) = next.downcast_ref() {
            return Some(found);
        }
        current = next.source();
    }
    None
}

fn diagnose_credentials(failed: &CredentialsError) -> Diagnosis {
    let text = failed.text.as_str();
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let status = http_status(text);
    let cause = format!("credentials could not be fetched: {text}");
    match failed.source {
        CredentialSource::Function(ErrorKind::Retryable) => Diagnosis { permanent: None, cause, advice: FIX_PROVIDER },
        CredentialSource::Function(kind) => Diagnosis::never(kind, cause, FIX_PROVIDER),
        CredentialSource::Supplied(ErrorKind::Retryable) => Diagnosis { permanent: None, cause, advice: FIX_SUPPLIED },
        CredentialSource::Supplied(kind) => Diagnosis::never(kind, cause, FIX_OPTIONS),
        // Busy, as the services of Amazon, Azure and Google say it.
        _ if matches!(status, Some(408 | 425 | 429 | 500..)) || has(&["Throttl", "IDPCommunicationError"]) => {
            Diagnosis::again(cause)
        }
        CredentialSource::Machine => Diagnosis::never(
            ErrorKind::PermissionDenied,
            "no credentials were found (not in the storage options, not in the environment, in no profile, and no \
             metadata service gives some)",
            FIX_NO_CREDENTIALS,
        ),
        CredentialSource::Service if status.is_some() => {
            Diagnosis::never(ErrorKind::PermissionDenied, format!("permission denied: {cause}"), FIX_SOURCE)
        }
        CredentialSource::Service if has(&["token file", "No such file"]) => {
            Diagnosis::never(ErrorKind::PermissionDenied, cause, FIX_SOURCE)
        }
        CredentialSource::Service => Diagnosis::again(cause),
    }
}

/// The status in the text of an HTTP error: `object_store` doesn't give it in another way.
fn http_status(text: &str) -> Option<u16> {
    let rest = text.split_once("status code: ")?.1;
    rest.get(..3)?.parse().ok()
}

fn io_error(error: &object_store::Error) -> Option<&io::Error> {
    let mut current: &(dyn StdError + 'static) = error;
    // Errors of sockets are also I/O errors, far down: only those of files count.
    let file = matches!(error, object_store::Error::Generic { store: "LocalFileSystem", .. });
    while let Some(next) = current.source() {
        if file && let Some(io) = next.downcast_ref::<io::Error>() {
            return Some(io);
        }
        current = next;
    }
    None
}

/// The text of the innermost errors that add something, outermost first.
pub(super) fn source_text(error: &object_store::Error) -> String {
    let mut text = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    let mut current = error.source().and_then(StdError::source);
    while let Some(next) = current {
        let more = next.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        current = next.source();
    }
    text
}

/// Takes credentials out of texts. Clones share what they know.
#[derive(Default, Clone)]
pub(super) struct Redactor {
    /// ProviderKind at the start, the longest first.
    secrets: Arc<[String]>,
    /// Fetched meanwhile, the newest last.
    learned: Arc<Mutex<VecDeque<String>>>,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Redactor({} secrets)", self.secrets.len() + self.learned.lock().len())
    }
}

/// Shorter values than any credential, such as `true`, would only garble texts.
fn is_long_enough(secret: &str) -> bool {
    secret.len() >= 6
}

impl Redactor {
    /// Removes `secrets` wherever they occur.
    pub(super) fn new(secrets: impl IntoIterator<Item = String>) -> Self {
        let mut secrets: Vec<String> = secrets.into_iter().filter(|secret| is_long_enough(secret)).collect();
        secrets.sort_by_key(|s| std::cmp::Reverse(s.len()));
        Self { secrets: secrets.into(), learned: Arc::default() }
    }

    /// Removes `secrets` from now on, too.
    pub(super) fn learn(&self, secrets: impl IntoIterator<Item = String>) {
        let mut learned = self.learned.lock();
        for secret in secrets.into_iter().filter(|secret| is_long_enough(secret)) {
            if self.secrets.contains(&secret) || learned.contains(&secret) {
                continue;
            }
            if learned.len() == MAX_LEARNED {
                learned.pop_front();
            }
            learned.push_back(secret);
        }
    }

    /// `text` on one line, short, and without credentials.
    pub(super) fn clean(&self, text: &str) -> String {
        let mut text = summarize_xml(text);
        for secret in self.secrets.iter().chain(self.learned.lock().iter()) {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), "***");
            }
        }
        let mut out = String::with_capacity(text.len());
        for word in text.split_whitespace() {
            if !out.is_empty() {
                out.push(' ');
            }
            out.push_str(&clean_url(word));
        }
        if out.len() > MAX_CAUSE {
            let cut = (0..=MAX_CAUSE).rev().find(|i| out.is_char_boundary(*i)).unwrap_or(0);
            out.truncate(cut);
            out.push('…');
        }
        out
    }
}

/// The word with the query and the password of a URL in it removed.
pub(super) fn clean_url(word: &str) -> String {
    let Some((scheme, rest)) = word.split_once("://") else { return word.to_owned() };
    let (rest, query) = match rest.split_once('?') {
        Some((rest, query)) => {
            let tail: String = query.chars().rev().take_while(|c| !c.is_alphanumeric()).collect();
            (rest, format!("?***{}", tail.chars().rev().collect::<String>()))
        }
        None => (rest, String::new()),
    };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = match host.rsplit_once('@') {
        Some((user, host)) if user.contains(':') => format!("***@{host}"),
        _ => host.to_owned(),
    };
    format!("{scheme}://{host}{path}{query}")
}

/// An XML error body shortened to its code and message: the rest may repeat parts of the signed request.
fn summarize_xml(text: &str) -> String {
    let Some(start) = text.find("<?xml").or_else(|| text.find("<Error")) else { return text.to_owned() };
    let field = |name: &str| {
        let after = text.split_once(&format!("<{name}>"))?.1;
        Some(after.split_once(&format!("</{name}>"))?.0)
    };
    let mut out = text[..start].to_owned();
    for name in ["Code", "Message"] {
        if let Some(value) = field(name) {
            out.push_str(value);
            out.push(' ');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(text: &str) -> object_store::Error {
        object_store::Error::Generic { store: "S3", source: text.into() }
    }

    #[test]
    fn statuses_decide() {
        let status = |n: &str| diagnose(&generic(&format!("Server returned non-2xx status code: {n}: body"))).permanent;
        for again in ["500 Internal Server Error", "503 Service Unavailable", "429 Too Many Requests", "408 x"] {
            assert_eq!(status(again), None, "{again}");
        }
        assert_eq!(status("405 Method Not Allowed"), Some(ErrorKind::Store));
        assert_eq!(status("400 Bad Request: ExpiredToken"), Some(ErrorKind::PermissionDenied));
        assert_eq!(status("400 Bad Request: RequestTimeout"), None);
        assert_eq!(diagnose(&generic("connection reset by peer")).permanent, None);
    }

    #[test]
    fn file_errors_are_told_apart() {
        let kind = |k: io::ErrorKind| diagnose_io(&io::Error::from(k));
        assert_eq!(kind(io::ErrorKind::PermissionDenied).permanent, Some(ErrorKind::PermissionDenied));
        assert_eq!(kind(io::ErrorKind::ReadOnlyFilesystem).permanent, Some(ErrorKind::PermissionDenied));
        assert!(kind(io::ErrorKind::StorageFull).cause.contains("disk is full"));
        assert_eq!(kind(io::ErrorKind::Interrupted).permanent, None);
    }

    #[test]
    fn a_missing_bucket_is_not_a_missing_object() {
        let missing = |text: &str| object_store::Error::NotFound { path: "a".into(), source: text.into() };
        assert_eq!(diagnose(&missing("<Code>NoSuchBucket</Code>")).permanent, Some(ErrorKind::Store));
        assert_eq!(diagnose(&missing("<Code>NoSuchKey</Code>")).permanent, Some(ErrorKind::NotFound));
    }

    #[test]
    fn credentials_that_are_missing_or_refused_are_told_from_a_bad_moment() {
        let kind = |source, text: &str| {
            let error: object_store::Error = CredentialsError { source, text: text.to_owned() }.into();
            diagnose(&object_store::Error::Generic { store: "S3", source: Box::new(error) }).permanent
        };
        let denied = Some(ErrorKind::PermissionDenied);
        assert_eq!(kind(CredentialSource::Machine, "error sending request"), denied);
        assert_eq!(kind(CredentialSource::Machine, "status code: 404 Not Found"), denied);
        assert_eq!(kind(CredentialSource::Machine, "status code: 503 Service Unavailable"), None);
        assert_eq!(kind(CredentialSource::Service, "error sending request"), None);
        assert_eq!(kind(CredentialSource::Service, "status code: 403 Forbidden: AccessDenied"), denied);
        assert_eq!(kind(CredentialSource::Service, "status code: 400 Bad Request: ExpiredTokenException"), denied);
        assert_eq!(kind(CredentialSource::Service, "status code: 400 Bad Request: Throttling"), None);
        assert_eq!(kind(CredentialSource::Service, "Failed to read token file '/x': No such file"), denied);
        assert_eq!(kind(CredentialSource::Function(ErrorKind::Retryable), "sealed"), None);
        assert_eq!(kind(CredentialSource::Function(ErrorKind::InvalidArgument), "x"), Some(ErrorKind::InvalidArgument));
    }

    #[test]
    fn what_is_learned_is_removed_by_all_clones() {
        let redactor = Redactor::new(["given-secret".to_owned()]);
        let clone = redactor.clone();
        clone
            .learn((0..100).map(|n| format!("fetched-{n}-secret")).chain(["given-secret".to_owned(), "on".to_owned()]));
        assert_eq!(redactor.clean("given-secret fetched-99-secret on"), "*** *** on");
        assert_eq!(format!("{redactor:?}"), format!("Redactor({} secrets)", MAX_LEARNED + 1));
    }

    #[test]
    fn credentials_never_leave() {
        let redactor = Redactor::new(["hunter2hunter2".to_owned(), "true".to_owned()]);
        let text = redactor.clean(
            "PUT https://acc.blob.core.windows.net/c/x?sv=1&sig=abc%2F (hunter2hunter2) true\n <?xml?><Error><Code>Denied</Code>\
             <AWSAccessKeyId>AKIA123</AWSAccessKeyId><Message>no way</Message></Error>",
        );
        assert!(text.contains("c/x?***") && text.contains("Denied no way") && text.contains("true"), "{text}");
        for secret in ["sig=", "hunter2", "AKIA123"] {
            assert!(!text.contains(secret), "{text}");
        }
        assert_eq!(clean_url("http://me:pw@host/p"), "http://***@host/p");
        assert_eq!(clean_url("abfss://container@account/p"), "abfss://container@account/p");
        assert!(Redactor::default().clean(&"é".repeat(2000)).len() < 600);
    }
}
