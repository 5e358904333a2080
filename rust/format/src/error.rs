//! Errors: rich inside, few outside.
//!
//! Owns: the one error type of all crates, its parts, and the mapping from other libraries' errors.
//! Does not own: retry decisions (`store::retry` makes them from [`Error::is_retryable`]), the meaning of an object
//! store's errors (`store::diagnose`), the chain of causes as plain data (`causes`), the Python classes.

mod causes;
pub mod limits;

pub use causes::{Cause, links};
pub use limits::remedy_of_limit;

use serde::{Deserialize, Serialize};
use std::error::Error as StdError;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io};

/// Result with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Separates the description of an error from its remedy.
const BEFORE_REMEDY: &str = "; ";

/// The public kinds: what a caller can do about an error. One Python class each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Trying again, as a new attempt, can help.
    Retryable,
    /// The object store refused or failed for good.
    Store,
    /// Credentials or rights are missing.
    PermissionDenied,
    /// The object was closed before the call.
    Closed,
    /// A newer writer has taken over.
    Fenced,
    /// The caller passed something that can never work.
    InvalidArgument,
    /// Stored bytes differ from the written ones.
    Corrupt,
    /// A named object or state does not exist.
    NotFound,
    /// The stored schema and the asked-for one differ.
    SchemaMismatch,
    /// A bug in fastchangelog.
    Internal,
}

impl ErrorKind {
    /// All kinds.
    pub const ALL: [Self; 10] = [
        Self::Retryable,
        Self::Store,
        Self::PermissionDenied,
        Self::Closed,
        Self::Fenced,
        Self::InvalidArgument,
        Self::Corrupt,
        Self::NotFound,
        Self::SchemaMismatch,
        Self::Internal,
    ];

    /// Stable name, used in the protocol between client and server.
    pub fn name(self) -> &'static str {
        match self {
            Self::Retryable => "retryable",
            Self::Store => "store",
            Self::PermissionDenied => "permission_denied",
            Self::Closed => "closed",
            Self::Fenced => "fenced",
            Self::InvalidArgument => "invalid_argument",
            Self::Corrupt => "corrupt",
            Self::NotFound => "not_found",
            Self::SchemaMismatch => "schema_mismatch",
            Self::Internal => "internal",
        }
    }

    /// The inverse of [`ErrorKind::name`]; an unknown name is `Internal`.
    pub fn from_name(name: &str) -> Self {
        Self::ALL.into_iter().find(|kind| kind.name() == name).unwrap_or(Self::Internal)
    }
}

/// What an error is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "type", content = "name", rename_all = "snake_case")]
pub enum Subject {
    /// An object of a store: its URI, or its name where the folder is not known.
    Object(String),
    /// A file or a folder of the local disk.
    Path(#[serde(serialize_with = "as_text")] PathBuf),
    /// An option.
    Option(String),
    /// A state, by its folder's URI or its name.
    State(String),
    /// A column.
    Column(String),
}

fn as_text<S: serde::Serializer>(path: &Path, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

impl Subject {
    /// What it is, in a word.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Object(_) => "object",
            Self::Path(_) => "path",
            Self::Option(_) => "option",
            Self::State(_) => "state",
            Self::Column(_) => "column",
        }
    }

    /// True for an object below the folder `uri` of a store.
    pub fn is_object_in(&self, uri: &str) -> bool {
        match self {
            Self::Object(name) => name.strip_prefix(uri).is_some_and(|rest| rest.starts_with('/')),
            _ => false,
        }
    }

    /// True for the folder `dir` of the local disk and what is in it.
    pub fn is_path_in(&self, dir: &Path) -> bool {
        matches!(self, Self::Path(path) if path.starts_with(dir))
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Object(name) | Self::Option(name) | Self::State(name) | Self::Column(name) => f.write_str(name),
        }
    }
}

/// What went wrong, to which object, what to do about it, and why.
///
/// Invariants:
/// 1. the message is one line, complete in itself, with cause and remedy: it is what a user reads at the end of a Spark
///    traceback, and all that some logs keep;
/// 2. no text of the error or of its sources holds a credential: a source that may hold one is not attached
///    (the causes of requests to a store are attached as cleaned texts);
/// 3. nothing decides by the message: kind, subject and sources have types.
#[derive(Debug, Clone)]
pub struct Error(Box<Parts>);

#[derive(Debug, Clone)]
struct Parts {
    kind: ErrorKind,
    message: String,
    /// Offset of the remedy in the message; none if the message has no separate remedy.
    remedy: Option<usize>,
    subject: Option<Subject>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind` whose `message` says what happened, to what, and what to do.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Parts { kind, message: message.into(), remedy: None, subject: None, source: None }))
    }

    /// See [`ErrorKind::Retryable`].
    pub fn retryable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Retryable, message)
    }

    /// See [`ErrorKind::Store`].
    pub fn store(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Store, message)
    }

    /// See [`ErrorKind::InvalidArgument`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    /// See [`ErrorKind::NotFound`].
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    /// See [`ErrorKind::Closed`].
    pub fn closed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Closed, message)
    }

    /// See [`ErrorKind::SchemaMismatch`].
    pub fn schema(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::SchemaMismatch, message)
    }

    /// See [`ErrorKind::Internal`]. Asks the reader to report it; the core does not know whether there is a log, so the
    /// client of a state server names its.
    pub fn internal(message: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Internal, format!("internal error: {message}")).with_remedy("please report it")
    }

    /// Bytes that differ from the written ones: names the object and the byte offset in it (P9).
    pub fn corrupt(object: impl fmt::Display, offset: u64, what: impl fmt::Display) -> Self {
        let object = object.to_string();
        Self::new(ErrorKind::Corrupt, format!("corrupt data in {object} at byte {offset}: {what}"))
            .with_subject(Subject::Object(object))
            .with_remedy("restore this object from a backup or restart from an older checkpoint")
    }

    /// A bound was reached (P7): names the bound and the option that moves it.
    pub fn limit(what: impl fmt::Display, option: &str) -> Self {
        Self::retryable(what.to_string())
            .with_subject(Subject::Option(option.to_owned()))
            .with_remedy(format!("raise the option `{option}` if this is expected"))
    }

    /// An I/O error of this machine. One that is a limit says so.
    pub fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Retryable,
        };
        let made = Self::new(kind, format!("{what}: {error}")).with_io_source(error);
        match remedy_of_limit(error) {
            Some(remedy) => made.with_remedy(remedy),
            None => made,
        }
    }

    /// An I/O error of the local file or folder `path`; `what` names the failed action, as in `cannot make`.
    pub fn io_at(what: &str, path: &Path, error: &io::Error) -> Self {
        Self::io(format_args!("{what} {}", path.display()), error).with_subject(Subject::Path(path.to_owned()))
    }

    /// The same error, about `subject`.
    #[must_use]
    pub fn with_subject(mut self, subject: Subject) -> Self {
        self.0.subject = Some(subject);
        self
    }

    /// The same error with `remedy` at the end of its message. A second remedy follows the first.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl fmt::Display) -> Self {
        let parts = &mut *self.0;
        parts.message.push_str(BEFORE_REMEDY);
        parts.remedy.get_or_insert(parts.message.len());
        parts.message.push_str(&remedy.to_string());
        self
    }

    /// The same error, caused by `source`, whose text is known to hold no credential. The message names the cause
    /// already: it is not changed.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// [`Error::with_source`] of an I/O error: its number, or its kind and text, are kept.
    #[must_use]
    pub fn with_io_source(self, source: &io::Error) -> Self {
        self.with_source(causes::io_copy(source))
    }

    /// The same error with the chain of `causes`, the nearest first, as its source.
    #[must_use]
    pub fn with_causes(mut self, causes: impl IntoIterator<Item = Cause>) -> Self {
        self.0.source = causes::chain_of(causes.into_iter().collect());
        self
    }

    /// The public kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The one-line message: what happened, and the remedy.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// What happened: the message without the remedy.
    pub fn what(&self) -> &str {
        let end = self.0.remedy.map_or(self.0.message.len(), |at| at - BEFORE_REMEDY.len());
        &self.0.message[..end]
    }

    /// The remedy, if the message has a separate one.
    pub fn remedy(&self) -> Option<&str> {
        self.0.remedy.map(|at| &self.0.message[at..])
    }

    /// The subject of the error, if known.
    pub fn subject(&self) -> Option<&Subject> {
        self.0.subject.as_ref()
    }

    /// The chain of causes, the nearest first, each with what it adds to the next one: plain data.
    pub fn causes(&self) -> Vec<Cause> {
        causes::causes_of(self.source())
    }

    /// The first source of type `T` in the chain.
    pub fn source_as<T: StdError + 'static>(&self) -> Option<&T> {
        links(self.source()).find_map(|link| link.downcast_ref())
    }

    /// True when a new attempt can help.
    pub fn is_retryable(&self) -> bool {
        self.kind() == ErrorKind::Retryable
    }

    /// True if a reader learns nothing from `other` that this error does not say.
    pub fn says_the_same(&self, other: &Self) -> bool {
        self.kind() == other.kind() && self.message() == other.message()
    }

    /// This error, whose message also tells of `other`, which happened at the same time. Kind, subject and source stay;
    /// the remedy is the one at the message's end.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let mut both = other.preceded_by(&format!("{self}; and "));
        (both.0.kind, both.0.subject, both.0.source) = (self.0.kind, self.0.subject, self.0.source);
        both
    }

    /// The same error with `context` put before its message.
    #[must_use]
    pub fn context(self, context: impl fmt::Display) -> Self {
        self.preceded_by(&format!("{context}: "))
    }

    fn preceded_by(mut self, text: &str) -> Self {
        self.0.message.insert_str(0, text);
        self.0.remedy = self.0.remedy.map(|at| at + text.len());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

impl From<arrow_schema::ArrowError> for Error {
    /// Arrow's errors about values, types and bytes concern the caller's argument. Memory, I/O,
    /// schemas, and operations on values that were checked before are not.
    fn from(error: arrow_schema::ArrowError) -> Self {
        use arrow_schema::ArrowError as E;
        let what = format!("Arrow: {error}");
        match error {
            // An error of our own that went through Arrow.
            E::ExternalError(inner) => match inner.downcast::<Self>() {
                Ok(ours) => *ours,
                Err(inner) => match inner.downcast::<io::Error>() {
                    Ok(io) => Self::io("Arrow", &io),
                    Err(inner) => {
                        let mut internal = Self::internal(what);
                        internal.0.source = Some(Arc::from(inner));
                        internal
                    }
                },
            },
            E::IoError(_, io) => Self::io("Arrow", &io),
            E::MemoryError(_) => Self::retryable(what)
                .with_remedy("give the process more memory or lower `memory_budget`")
                .with_source(error),
            E::SchemaError(_) => Self::schema(what).with_source(error),
            E::ComputeError(_) => Self::internal(what).with_source(error),
            E::OffsetOverflowError(_) | E::DictionaryKeyOverflowError | E::RunEndIndexOverflowError => {
                Self::invalid(what).with_remedy("use smaller batches").with_source(error)
            }
            E::NotYetImplemented(_)
            | E::CastError(_)
            | E::ParseError(_)
            | E::DivideByZero
            | E::ArithmeticOverflow(_)
            | E::CsvError(_)
            | E::JsonError(_)
            | E::AvroError(_)
            | E::IpcError(_)
            | E::InvalidArgumentError(_)
            | E::ParquetError(_)
            | E::CDataInterface(_) => Self::invalid(what).with_source(error),
        }
    }
}

#[cfg(test)]
#[path = "error_tests.rs"]
mod tests;
