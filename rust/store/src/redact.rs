//! Texts without credentials.
//!
//! Owns: the known secrets, and their removal from texts and causes.
//! Does not own: the texts that leave the store, the meaning of an error (`diagnose`).
//!
//! Invariant: no text that leaves here holds a credential: known secrets, queries of URLs and passwords in URLs are
//! removed.

use fastchangelog_format::error::Cause;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Longest cause that is put into a message.
const MAX_CAUSE: usize = 500;
/// Number of fetched secrets to remember: about the last ten credentials; older ones have expired.
const MAX_LEARNED: usize = 32;

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

    /// The causes with clean texts.
    pub(super) fn clean_causes(&self, causes: Vec<Cause>) -> Vec<Cause> {
        causes.into_iter().map(|cause| Cause { text: self.clean(&cause.text), ..cause }).collect()
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

/// Schemes in whose addresses a container stands before the account, as a user before a host elsewhere.
const WITH_CONTAINER: &[&str] = &["abfs", "abfss", "adl", "az", "azure", "wasb", "wasbs"];

/// The word with the query, the user's name and the password of a URL in it removed.
///
/// Secrets of old Hadoop addresses may hold slashes: where something other than a port follows the colon, all up to the
/// last `@` is one.
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
    let ends_with = |known: &&str| scheme.to_ascii_lowercase().ends_with(*known);
    let port = host
        .rsplit_once(':')
        .filter(|_| !host.ends_with(']'))
        .map(|(_, port)| port.trim_end_matches(|c: char| !c.is_alphanumeric()));
    let has_odd_port = port.is_some_and(|port| port.bytes().any(|b| !b.is_ascii_digit()));
    let is_web = ["http", "https"].iter().any(ends_with);
    let shown = match host.rsplit_once('@') {
        Some((user, host)) if user.contains(':') || !WITH_CONTAINER.iter().any(ends_with) => {
            format!("***@{host}{path}")
        }
        None if has_odd_port || (port.is_some() && !is_web && path.contains('@')) => {
            path.rsplit_once('@').map_or_else(|| "***".to_owned(), |(_, place)| format!("***@{place}"))
        }
        Some(_) | None => rest.to_owned(),
    };
    format!("{scheme}://{shown}{query}")
}

/// An XML error body shortened to its code and message: the rest may repeat parts of the signed request.
fn summarize_xml(text: &str) -> String {
    let Some(start) = text.find("<?xml").or_else(|| text.find("<Error")) else { return text.to_owned() };
    let mut out = text[..start].to_owned();
    for name in ["Code", "Message"] {
        if let Some(value) = xml_field(text, name) {
            out.push_str(value);
            out.push(' ');
        }
    }
    out
}

/// The text of the first element `name`.
pub(super) fn xml_field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let after = text.split_once(&format!("<{name}>"))?.1;
    Some(after.split_once(&format!("</{name}>"))?.0)
}

#[cfg(test)]
#[path = "redact_tests.rs"]
mod tests;
