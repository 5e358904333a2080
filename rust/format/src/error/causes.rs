//! The chain of causes behind an error, as plain data.
//!
//! Owns: walking a chain of sources, the text that each link adds, and rebuilding a chain from plain data.
//! Does not own: which sources an error has, and the removal of credentials (`store::redact`).

use super::Error;
use serde::{Deserialize, Serialize};
use std::error::Error as StdError;
use std::sync::Arc;
use std::{fmt, io};

/// Links of a chain that are shown.
const MAX_CAUSES: usize = 8;
/// Longest text of one.
const MAX_TEXT: usize = 1000;

/// One cause: its text, without the text of the next cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// What it says, on one line.
    pub text: String,
    /// The number of the operating system's error, for one. Such a cause is the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_error: Option<i32>,
}

/// A cause reduced to its text.
#[derive(Debug)]
struct Link {
    text: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl StdError for Link {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// `first`, its source, and so on.
pub fn links<'a>(first: Option<&'a (dyn StdError + 'static)>) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(first, |&link| link.source())
}

/// The chain that begins with `first`.
pub(super) fn causes_of(first: Option<&(dyn StdError + 'static)>) -> Vec<Cause> {
    let chain: Vec<_> = links(first).take(MAX_CAUSES).collect();
    let mut causes = Vec::with_capacity(chain.len());
    for (n, link) in chain.iter().enumerate() {
        let os_error = link.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        let text = text_of(*link);
        let below = chain.get(n + 1).map(|next| text_of(*next)).unwrap_or_default();
        // Most libraries repeat their source at the end of their own text.
        let own = match text.strip_suffix(below.as_str()) {
            Some(own) if !below.is_empty() && !link.is::<Link>() => own.trim_end_matches([' ', ':', '-']),
            _ => &text,
        };
        if !own.is_empty() {
            causes.push(Cause { text: own.to_owned(), os_error });
        }
    }
    causes
}

impl Cause {
    /// The causes of an error of a library, the nearest first.
    pub fn behind(error: &(dyn StdError + 'static)) -> Vec<Self> {
        causes_of(error.source())
    }
}

/// On one line. An error of ours without its remedy, which stands at the end.
fn text_of(link: &(dyn StdError + 'static)) -> String {
    let text = link.downcast_ref::<Error>().map_or_else(|| link.to_string(), |ours| ours.what().to_owned());
    let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.len() > MAX_TEXT {
        let cut = (0..=MAX_TEXT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(cut);
        text.push('…');
    }
    text
}

/// A chain that says what `causes` say, and has an [`io::Error`] at its end where they say so.
pub(super) fn chain_of(causes: Vec<Cause>) -> Option<Arc<dyn StdError + Send + Sync>> {
    let mut chain: Option<Arc<dyn StdError + Send + Sync>> = None;
    for Cause { text, os_error } in causes.into_iter().rev() {
        chain = Some(match (os_error, chain) {
            (Some(number), None) => Arc::new(io::Error::from_raw_os_error(number)),
            (_, source) => Arc::new(Link { text, source }),
        });
    }
    chain
}

/// The same I/O error: those of the operating system by their number, others by kind and text.
pub(super) fn io_copy(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}
