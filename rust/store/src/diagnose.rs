//! Diagnosis of a store's errors: whether to retry, and the message.
//!
//! Owns: the classification of `object_store` errors; and every decision by the text of an error, where a library gives
//! nothing else (`tests/test_error_texts.py` refuses one elsewhere).
//! Does not own: the attempts (`retry`), the removal of credentials (`redact`).
//!
//! Invariants:
//! 1. an error of unknown origin is retried; only errors known to be permanent are not;
//! 2. types decide where they exist. `object_store` has private types for HTTP errors: their text is parsed only at its
//!    fixed start and at their place in the chain of sources, so that no object name or body is mistaken for it.

use super::redact::xml_field;
use fastchangelog_format::error::{Error, ErrorKind, limits, links, remedy_of_limit};
use rustix::io::Errno;
use std::error::Error as StdError;
use std::io;

/// The decision about a failed attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Diagnosis {
    /// The kind, if further attempts are useless; none = try again.
    pub(super) permanent: Option<ErrorKind>,
    /// The description; may hold credentials until a [`Redactor`] removes them.
    pub(super) cause: String,
    /// The remedy.
    pub(super) advice: &'static str,
}

impl Diagnosis {
    fn again(cause: impl Into<String>) -> Self {
        Self {
            permanent: None,
            cause: cause.into(),
            advice: "check that the store can be reached; the options `max_attempts` and `request_timeout` \
                     govern the attempts",
        }
    }

    fn never(kind: ErrorKind, cause: impl Into<String>, advice: &'static str) -> Self {
        Self { permanent: Some(kind), cause: cause.into(), advice }
    }
}

/// The source that failed to provide credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CredentialSource {
    /// The caller's function, which gave the kind of the error.
    Function(ErrorKind),
    /// Supplied by the caller; the kind of error.
    Supplied(ErrorKind),
    /// The machine's metadata service, which need not exist: without an error from the fetching library, it does not.
    Machine,
    /// A service that the options or the environment name.
    Service,
}

/// Credentials could not be fetched.
#[derive(Debug)]
pub(super) struct CredentialsError {
    pub(super) origin: CredentialSource,
    pub(super) text: String,
    /// The error of the library that fetches them.
    pub(super) said: Option<object_store::Error>,
}

impl CredentialsError {
    /// Of a source of ours, whose error is `text`.
    pub(super) fn new(origin: CredentialSource, text: impl Into<String>) -> Self {
        Self { origin, text: text.into(), said: None }
    }

    /// Of a source that `object_store` asks.
    pub(super) fn fetching(origin: CredentialSource, error: object_store::Error) -> Self {
        Self { origin, text: source_text(&error), said: Some(error) }
    }
}

impl std::fmt::Display for CredentialsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl StdError for CredentialsError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.said.as_ref().map(|said| said as _)
    }
}

impl From<CredentialsError> for object_store::Error {
    fn from(error: CredentialsError) -> Self {
        Self::Generic { store: "credentials", source: Box::new(error) }
    }
}

/// The name of files in errors of `object_store`.
const LOCAL: &str = "LocalFileSystem";

const FIX_RIGHTS: &str = "check the credentials and that they may read, write, list and delete in this folder";
const FIX_NO_CREDENTIALS: &str = "set credentials in `storage_options` or in the environment of the executors";
const NO_CREDENTIALS: &str =
    "no credentials were found: not in the storage options, not in the environment, in no profile";
const FIX_SOURCE: &str = "correct the source of the credentials that the storage options or the environment name";
const FIX_PROVIDER: &str = "find out why the `credential_provider` failed";
const FIX_SUPPLIED: &str = "let the `credential_provider` return `expires_at`, and credentials that last longer than \
    the time between two batches";
const FIX_FOLDER_RIGHTS: &str =
    "give the user that runs the executors the right to write there, or choose another folder";
const FIX_SPACE: &str = "free space there or choose another location for the state";
const FIX_READ_ONLY: &str = "the file system is mounted read-only: choose another location for the state";
const FIX_BUCKET: &str = "create the bucket (container) or correct its name in the URI";
const FIX_MISSING: &str = "it was deleted, or the URI points to another folder than the one it was written to";
const FIX_REGION: &str =
    "set the storage option `region` to the bucket's region, and `endpoint` for other stores than AWS";
const FIX_OPTIONS: &str = "correct the storage options or the URI";
const FIX_CHECKSUM: &str = "set the storage option `checksum_algorithm` to `none`, which leaves the header out";
const FIX_PERHAPS_CHECKSUM: &str = "correct the storage options or the URI; if the store refuses the header \
    `x-amz-checksum-sha256`, as some that are not Amazon's do, set the storage option `checksum_algorithm` to `none`, \
    which leaves it out";
const FIX_NOT_IMPLEMENTED: &str = "upgrade the store or the gateway in front of it, or use another one";
const FIX_CERTIFICATE: &str = "install the certificate of the authority that signed the store's certificate, or name \
    it in SSL_CERT_FILE or SSL_CERT_DIR";
const FIX_PATH: &str = "correct the path in the URI";

/// Diagnoses an error of `object_store`.
pub(super) fn diagnose(error: &object_store::Error) -> Diagnosis {
    use object_store::Error as E;
    let text = error.to_string();
    if let Some(failed) = credentials_error(error) {
        return diagnose_credentials(failed);
    }
    // Of a file or of a socket.
    let mut causes = links(Some(error)).filter_map(|link| link.downcast_ref::<io::Error>());
    if let Some(advice) = causes.find_map(remedy_of_limit) {
        return Diagnosis { permanent: None, cause: source_text(error), advice };
    }
    match error {
        E::NotFound { .. } if HttpAnswer::of(error).is_some_and(|answer| answer.says(BUCKET_MISSING)) => {
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
        // Generic, and variants that a later version adds.
        _ => match file_error(error) {
            Some(io) => diagnose_io(io),
            None => diagnose_http(error),
        },
    }
}

/// True if the store itself refused the credentials or their rights; other credentials may help.
pub(super) fn is_refusal(error: &object_store::Error, diagnosis: &Diagnosis) -> bool {
    diagnosis.permanent == Some(ErrorKind::PermissionDenied) && credentials_error(error).is_none()
}

/// True for a store that does not know the condition "only if it does not exist", and for a file system without hard
/// links.
pub(super) fn cannot_create_only(error: &object_store::Error) -> bool {
    use object_store::Error as E;
    match error {
        E::NotImplemented { .. } | E::NotSupported { .. } => true,
        E::Generic { .. } => match file_error(error) {
            Some(io) => {
                let number = io.raw_os_error().map(Errno::from_raw_os_error);
                io.kind() == io::ErrorKind::Unsupported
                    || matches!(number, Some(Errno::PERM | Errno::NOTSUP | Errno::NOSYS))
            }
            None => HttpAnswer::of(error).is_some_and(|answer| answer.refuses_condition()),
        },
        _ => false,
    }
}

/// True for a range that may start after the object's end: an HTTP store says so, files and memory refuse ranges for no
/// other reason than their bounds. The caller asks for the object's size.
pub(super) fn is_beyond_the_end(error: &object_store::Error) -> bool {
    match error {
        object_store::Error::Generic { store: LOCAL | "InMemory", .. } => file_error(error).is_none(),
        object_store::Error::Generic { .. } => HttpAnswer::of(error).is_some_and(|answer| answer.status == 416),
        _ => false,
    }
}

/// True for a client that was not built because the machine has no certificates of authorities.
pub(super) fn says_no_certificates(error: &object_store::Error) -> bool {
    links(Some(error)).any(|link| link.to_string().contains("No CA certificates were loaded"))
}

/// True for an error of RocksDB about a file that does not exist. Its Rust API gives the kind `IOError` for all errors
/// of files, and a text.
pub fn says_no_such_file(error: &dyn std::fmt::Display) -> bool {
    error.to_string().contains("No such file")
}

/// The remedy for a RocksDB error that reports a limit of the process. RocksDB gives the system's text, but no number.
pub fn remedy_of_limit_in(error: &dyn std::fmt::Display) -> Option<&'static str> {
    let text = error.to_string();
    let known = [
        ("Too many open files in system", limits::OPEN_FILES_OF_ALL),
        ("Too many open files", limits::OPEN_FILES),
        ("Cannot allocate memory", limits::MEMORY),
    ];
    known.into_iter().find(|(words, _)| text.contains(words)).map(|(_, remedy)| remedy)
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
        _ => match remedy_of_limit(error) {
            Some(advice) => Diagnosis { permanent: None, cause: text, advice },
            None => Diagnosis::again(text),
        },
    }
}

/// The error of a file, with its remedy: `what` could not be done. Errors that may pass have the kind `else_kind`.
pub(super) fn disk_error(what: impl std::fmt::Display, error: &io::Error, else_kind: ErrorKind) -> Error {
    let diagnosis = diagnose_io(error);
    Error::new(diagnosis.permanent.unwrap_or(else_kind), format!("{what}: {}", diagnosis.cause))
        .with_remedy(diagnosis.advice)
        .with_io_source(error)
}

fn diagnose_http(error: &object_store::Error) -> Diagnosis {
    let cause = source_text(error);
    if links(Some(error)).any(|link| link.to_string().starts_with("Received redirect without LOCATION")) {
        return Diagnosis::never(ErrorKind::Store, "the bucket is in another region", FIX_REGION);
    }
    let refused =
        |cause| Diagnosis::never(ErrorKind::PermissionDenied, format!("permission denied: {cause}"), FIX_RIGHTS);
    if let Some(code) = links(Some(error)).find_map(code_of_removal) {
        return if REFUSALS.contains(&code.as_str()) { refused(cause) } else { Diagnosis::again(cause) };
    }
    // Without an answer the connection failed or broke.
    let Some(answer) = HttpAnswer::of(error) else {
        let untrusted = links(Some(error)).any(|link| link.to_string().contains("invalid peer certificate"));
        return if untrusted {
            Diagnosis { permanent: None, cause, advice: FIX_CERTIFICATE }
        } else {
            Diagnosis::again(cause)
        };
    };
    let s3 = matches!(error, object_store::Error::Generic { store: "S3", .. });
    let checksum_header = answer.checksum_header();
    match answer.status {
        401 | 403 => refused(cause),
        // A success that turns out to be a failure while the body is written, as completions of uploads in parts do.
        200..300 if answer.says(REFUSALS) => refused(cause),
        400 if answer.says(&["ExpiredToken", "InvalidToken", "InvalidAccessKeyId"]) => {
            Diagnosis::never(ErrorKind::PermissionDenied, cause, FIX_RIGHTS)
        }
        // Broken on the way, not refused.
        400 if answer.says(&["RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContent", "Md5Mismatch"]) => {
            Diagnosis::again(cause)
        }
        408 | 425 | 429 => Diagnosis::again(cause),
        400..=499 | 501 if checksum_header.is_some() => {
            let header = checksum_header.unwrap_or_default();
            Diagnosis::never(
                ErrorKind::Store,
                format!("the store refuses the header `{header}`: {cause}"),
                FIX_CHECKSUM,
            )
        }
        400 if s3 && answer.says(HEADER_REFUSED) => Diagnosis::never(ErrorKind::Store, cause, FIX_PERHAPS_CHECKSUM),
        501 if s3 => Diagnosis::never(ErrorKind::Store, cause, FIX_PERHAPS_CHECKSUM),
        501 => Diagnosis::never(ErrorKind::Store, cause, FIX_NOT_IMPLEMENTED),
        301 | 307 | 308 => Diagnosis::never(ErrorKind::Store, cause, FIX_REGION),
        300..=499 => Diagnosis::never(ErrorKind::Store, cause, FIX_OPTIONS),
        _ => Diagnosis::again(cause),
    }
}

/// Codes of stores for a bucket that does not exist.
const BUCKET_MISSING: &[&str] =
    &["NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist", "FilesystemNotFound"];

/// Codes of stores for a header that they do not know, or do not want.
const HEADER_REFUSED: &[&str] =
    &["InvalidArgument", "InvalidRequest", "NotImplemented", "Unsupported", "UnknownHeader"];

/// Codes of stores for requests that they refuse to these credentials.
const REFUSALS: &[&str] = &[
    "AccessDenied",
    "AllAccessDisabled",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
];

/// The store's code for one object, in the error of a request that removes several: its type is private in
/// `object_store`.
fn code_of_removal(error: &(dyn StdError + 'static)) -> Option<String> {
    let text = error.to_string();
    let (_, code) = text.strip_prefix("DeleteObjects request failed for key ")?.rsplit_once("(code: ")?;
    Some(code.trim_end_matches(')').to_owned())
}

/// The answer of an HTTP store.
#[derive(Debug, PartialEq, Eq)]
struct HttpAnswer {
    status: u16,
    body: String,
}

impl HttpAnswer {
    /// The answer in the chain of `error`: the type that has it is private in `object_store`, its text has a fixed
    /// start.
    fn of(error: &(dyn StdError + 'static)) -> Option<Self> {
        links(Some(error)).find_map(|link| {
            let text = link.to_string();
            if let Some(body) = text.strip_prefix("Server returned error response: ") {
                return Some(Self { status: 200, body: body.to_owned() });
            }
            let rest = text.strip_prefix("Server returned non-2xx status code: ")?;
            let status = rest.get(..3)?.parse().ok()?;
            let body = rest.split_once(": ").map_or("", |(_, body)| body);
            Some(Self { status, body: body.to_owned() })
        })
    }

    /// The header with the checksum of the content, if the answer names it.
    fn checksum_header(&self) -> Option<String> {
        let body = self.body.to_ascii_lowercase();
        let start = ["x-amz-checksum-", "x-amz-sdk-checksum-"].iter().find_map(|name| body.find(name))?;
        let of_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
        Some(body[start..].chars().take_while(|c| of_name(*c)).collect())
    }

    /// True if the store does not know the condition that a name is free, as far as it says.
    fn refuses_condition(&self) -> bool {
        let names_it = self.body.to_ascii_lowercase().contains("if-none-match");
        match self.status {
            501 => names_it || self.checksum_header().is_none(),
            400 | 405 | 422 => names_it,
            _ => false,
        }
    }

    /// True if the store gave one of `codes`: in the field of an XML body, else anywhere in the body (JSON, plain
    /// text).
    fn says(&self, codes: &[&str]) -> bool {
        let code = xml_field(&self.body, "Code").unwrap_or(&self.body);
        codes.iter().any(|known| code.contains(known))
    }
}

fn credentials_error(error: &object_store::Error) -> Option<&CredentialsError> {
    links(Some(error)).find_map(|link| link.downcast_ref())
}

fn diagnose_credentials(failed: &CredentialsError) -> Diagnosis {
    let text = failed.text.as_str();
    let answer = HttpAnswer::of(failed);
    let status = answer.as_ref().map(|answer| answer.status);
    let cause = format!("cannot fetch credentials: {text}");
    match failed.origin {
        CredentialSource::Function(ErrorKind::Retryable) => Diagnosis { permanent: None, cause, advice: FIX_PROVIDER },
        CredentialSource::Function(kind) => Diagnosis::never(kind, cause, FIX_PROVIDER),
        CredentialSource::Supplied(ErrorKind::Retryable) => Diagnosis { permanent: None, cause, advice: FIX_SUPPLIED },
        CredentialSource::Supplied(kind) => Diagnosis::never(kind, cause, FIX_OPTIONS),
        // Busy, as the services of Amazon, Azure and Google say it.
        _ if matches!(status, Some(408 | 425 | 429 | 500..))
            || answer.is_some_and(|answer| answer.says(&["Throttl", "IDPCommunicationError"])) =>
        {
            Diagnosis::again(cause)
        }
        // The service exists, but broke the connection or sent an unusable answer.
        CredentialSource::Machine if failed.said.is_some() && status.is_none() => Diagnosis {
            permanent: None,
            cause: format!("{NO_CREDENTIALS}, and the machine's metadata service fails: {text}"),
            advice: FIX_NO_CREDENTIALS,
        },
        CredentialSource::Machine => Diagnosis::never(
            ErrorKind::PermissionDenied,
            format!("{NO_CREDENTIALS}, and no metadata service provides any"),
            FIX_NO_CREDENTIALS,
        ),
        CredentialSource::Service if status.is_some() => {
            Diagnosis::never(ErrorKind::PermissionDenied, format!("permission denied: {cause}"), FIX_SOURCE)
        }
        // The source of AWS makes a text of the file's error.
        CredentialSource::Service if text.contains("token file") || text.contains("No such file") => {
            Diagnosis::never(ErrorKind::PermissionDenied, cause, FIX_SOURCE)
        }
        CredentialSource::Service => Diagnosis::again(cause),
    }
}

/// The error of a file. Errors of sockets are I/O errors too, far down: those do not count.
fn file_error(error: &object_store::Error) -> Option<&io::Error> {
    match error {
        object_store::Error::Generic { store: LOCAL, .. } => links(Some(error)).find_map(|link| link.downcast_ref()),
        _ => None,
    }
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

#[cfg(test)]
#[path = "diagnose_tests.rs"]
mod tests;
