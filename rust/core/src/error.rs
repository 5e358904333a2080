//! Errors: rich inside, few outside.
//!
//! Owns: the one error type of the core and its mapping to the public kinds.
//! Does not own: retry decisions (`store::retry` makes them from [`Error::is_retryable`]) and the Python classes.

use std::fmt;

/// Result with the core's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

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
    /// Stored bytes are not what was written.
    Corrupt,
    /// A named object or state does not exist.
    NotFound,
    /// The stored schema and the asked-for one differ.
    SchemaMismatch,
    /// A bug in fastchangelog.
    Internal,
}

impl ErrorKind {
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
        match name {
            "retryable" => Self::Retryable,
            "store" => Self::Store,
            "permission_denied" => Self::PermissionDenied,
            "closed" => Self::Closed,
            "fenced" => Self::Fenced,
            "invalid_argument" => Self::InvalidArgument,
            "corrupt" => Self::Corrupt,
            "not_found" => Self::NotFound,
            "schema_mismatch" => Self::SchemaMismatch,
            _ => Self::Internal,
        }
    }
}

/// What went wrong, to which object, and what to do about it.
///
/// The message is one line, complete in itself: it is what a user reads at the end of a Spark traceback.
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    /// An error of `kind` whose `message` says what happened, to what, and what to do.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
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

    /// See [`ErrorKind::Internal`]. Asks the reader to report it.
    pub fn internal(message: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Internal, format!("internal error: {message}; please report it with the server's log"))
    }

    /// Bytes that are not what was written: names the object and the byte offset in it (P9).
    pub fn corrupt(object: impl fmt::Display, offset: u64, what: impl fmt::Display) -> Self {
        Self::new(
            ErrorKind::Corrupt,
            format!(
                "corrupt data in {object} at byte {offset}: {what}; restore this object from a backup or restart from an older checkpoint"
            ),
        )
    }

    /// A bound was reached (P7): names the bound and the option that moves it.
    pub fn limit(what: impl fmt::Display, option: &str) -> Self {
        Self::new(ErrorKind::Retryable, format!("{what}; raise the option `{option}` if this is expected"))
    }

    /// An I/O error on the local disk.
    pub fn io(what: impl fmt::Display, error: &std::io::Error) -> Self {
        let kind = match error.kind() {
            std::io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Retryable,
        };
        Self::new(kind, format!("{what}: {error}"))
    }

    /// The public kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The one-line message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// True when a new attempt can help.
    pub fn is_retryable(&self) -> bool {
        self.kind == ErrorKind::Retryable
    }

    /// The same error with `context` put before its message.
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.message = format!("{context}: {}", self.message);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<arrow_schema::ArrowError> for Error {
    fn from(error: arrow_schema::ArrowError) -> Self {
        Self::invalid(format!("Arrow: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_stable_names() {
        for kind in [
            ErrorKind::Retryable,
            ErrorKind::Store,
            ErrorKind::PermissionDenied,
            ErrorKind::Closed,
            ErrorKind::Fenced,
            ErrorKind::InvalidArgument,
            ErrorKind::Corrupt,
            ErrorKind::NotFound,
            ErrorKind::SchemaMismatch,
            ErrorKind::Internal,
        ] {
            assert_eq!(ErrorKind::from_name(kind.name()), kind);
        }
    }

    #[test]
    fn corrupt_names_object_and_offset() {
        let text = Error::corrupt("log/ab", 17, "checksum").to_string();
        assert!(text.contains("log/ab") && text.contains("17") && text.contains("checksum"));
    }
}
