//! Addresses of folders: the prefix that a URI names, and how the address of a prefix is written.
//!
//! Owns: the scheme and the decoding of a URI, the escapes of an address, the secret parts of a URI.
//! Does not own: the table of schemes (`scheme`), the names of objects in a folder (`paths`).
//!
//! Invariants:
//! 1. the displayed address of a folder leads to that folder;
//! 2. a displayed address holds no user name, no password and no control character.

use super::redact::clean_url;
use super::scheme::{StoreKind, store_kind};
use fastchangelog_format::error::{Error, Result};
use object_store::path::Path as ObjectPath;
use std::fmt::Write as _;
use std::path::Path;
use url::Url;

/// The scheme, if there is one: `name://` or `file:`; anything else is a plain path.
pub(super) fn scheme_of(uri: &str) -> Option<&str> {
    let (scheme, rest) = uri.split_once(':')?;
    let named = scheme.len() > 1
        && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    (named && (rest.starts_with('/') || !scheme.contains('.'))).then_some(scheme)
}

/// The address as a message may show it: without credentials, with control characters escaped.
pub fn clean_uri(uri: &str) -> String {
    let uri = uri.trim();
    let bare = scheme_of(uri).filter(|scheme| !scheme.eq_ignore_ascii_case("file")).and_then(|scheme| {
        let rest = &uri[scheme.len() + 1..];
        let (_, place) = rest.rsplit_once('@').filter(|_| !rest.starts_with("//"))?;
        Some(format!("{scheme}:***@{place}"))
    });
    printable(&bare.unwrap_or_else(|| clean_url(uri)))
}

/// The text with control characters escaped, so that it stays one line and does nothing to a terminal.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// The folder that the path of `url` names inside a store.
pub(super) fn prefix_of(url: &Url, shown: &str) -> Result<String> {
    ObjectPath::from_url_path(url.path()).map(|p| p.as_ref().to_owned()).map_err(|e| {
        let why = printable(&e.to_string());
        Error::invalid(format!("{shown} has an unusable path: {why}"))
            .with_remedy("name a folder without empty parts, `.`, `..` and control characters")
            .with_source(e)
    })
}

/// A percent-encoded path, decoded to text.
pub(super) fn percent_decode(path: &str, shown: &str) -> Result<String> {
    decoded(path).ok_or_else(|| Error::invalid(format!("the path of {shown} is not UTF-8")))
}

fn decoded(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let hex = tail.get(..2).filter(|_| *first == b'%').and_then(|h| std::str::from_utf8(h).ok());
        match hex.and_then(|h| u8::from_str_radix(h, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// `base/prefix`, without a trailing slash.
pub(super) fn join(base: &str, prefix: &str) -> String {
    if prefix.is_empty() { base.to_owned() } else { format!("{base}/{prefix}") }
}

/// The address of the folder `prefix` under the address `base`.
pub(super) fn address(base: &str, prefix: &str) -> String {
    join(base, &escaped(prefix))
}

/// The address of a folder on disk.
pub(super) fn of_disk(path: &Path) -> String {
    let url = Url::from_file_path(path).map_or_else(|()| format!("file://{}", path.display()), |url| url.to_string());
    url.trim_end_matches('/').to_owned()
}

/// The path with those characters escaped that would mean something else in an address. Others stay, so that people can
/// read it.
fn escaped(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    let mut rest = path.chars().peekable();
    let mut first = true;
    while let Some(c) = rest.next() {
        // Blanks at either end of an address are treated as mistakes.
        let at_an_end = first || rest.peek().is_none_or(|next| *next == '/');
        if matches!(c, '%' | '?' | '#' | '\\') || c.is_control() || (c.is_whitespace() && at_an_end) {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                let _ = write!(text, "%{byte:02X}");
            }
        } else {
            text.push(c);
        }
        first = c == '/';
    }
    text
}

/// The address in the form that its folder displays; the same text if it leads nowhere.
pub fn shown_uri(uri: &str) -> String {
    let trimmed = uri.trim();
    let local = |path: &str| Some(of_disk(&std::path::absolute(path).ok()?));
    let shown = || {
        let Some(scheme) = scheme_of(trimmed) else { return local(trimmed) };
        let url = Url::parse(trimmed).ok()?;
        if url.query().is_some() || url.fragment().is_some() {
            return None;
        }
        let host = url.host_str().unwrap_or_default();
        let base = match store_kind(scheme) {
            Some(StoreKind::Local) => return local(&decoded(url.path())?),
            Some(StoreKind::S3) => format!("s3://{host}"),
            Some(StoreKind::Google) => format!("gs://{host}"),
            _ => url[..url::Position::BeforePath].to_owned(),
        };
        Some(address(&base, &prefix_of(&url, trimmed).ok()?))
    };
    shown().unwrap_or_else(|| trimmed.to_owned())
}

/// True if both are addresses of one folder: in `older`, a handle of an earlier release may have written the folder
/// without escapes.
pub(super) fn is_same(address: &str, older: &str) -> bool {
    address == older || decoded(address).is_some_and(|plain| plain == older)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_shown_leads_to_the_same_folder() {
        let names = [
            "plain",
            "with space",
            "100%",
            "per%20cent",
            "a?b",
            "a#b",
            "ä/ö",
            " a ",
            "a\u{a0}",
            "a\\b",
            "%2E%2E",
            "~x",
            "a*b",
            "semi;colon",
            "emoji-😀",
            "%25",
        ];
        for base in ["s3://bucket", "http://host:1"] {
            for name in names {
                let shown = address(base, name);
                let url = Url::parse(shown.trim()).unwrap();
                assert!(url.query().is_none() && url.fragment().is_none(), "{shown}");
                assert_eq!(prefix_of(&url, &shown).unwrap(), name, "{shown}");
            }
        }
        assert_eq!(address("s3://b", "with space/ä"), "s3://b/with space/ä", "as people write it");
        assert_eq!(address("s3://b", ""), "s3://b");
    }

    #[test]
    fn the_unescaped_address_of_an_older_handle_is_known() {
        assert!(is_same("s3://b/100%25", "s3://b/100%25") && is_same("s3://b/100%25", "s3://b/100%"));
        assert!(!is_same("s3://b/per cent", "s3://b/per%20cent"));
    }

    #[test]
    fn an_address_is_shown_as_its_folder_shows_it() {
        for (given, shown) in [
            ("s3a://b/with%20space/", "s3://b/with space"),
            ("s3://b/100%", "s3://b/100%25"),
            ("az://c/x", "az://c/x"),
            ("abfss://c@acc.dfs.core.windows.net/ä", "abfss://c@acc.dfs.core.windows.net/ä"),
            ("memory://log/", "memory://log"),
            ("/data/a b", "file:///data/a%20b"),
            ("file:///data/a%20b/", "file:///data/a%20b"),
            ("https://host:1/x/", "https://host:1/x"),
            ("s3://b/x?y", "s3://b/x?y"),
        ] {
            assert_eq!(shown_uri(given), shown);
            assert_eq!(shown_uri(shown), shown);
        }
    }

    #[test]
    fn no_secret_of_a_uri_is_shown() {
        for uri in [
            "s3n://AKIA:S3CRET@bucket/x",
            "s3n://AKIA:S3CRET/with/slash@bucket/x",
            "s3n://AKIA:1/S3CRET@bucket/x",
            "s3n://AKIA:S3CRET",
            "s3://S3CRET@bucket/x",
            "s3://AKIA:S3CRET@/x",
            "s3a:/AKIA:S3CRET@bucket/x",
            "s3:AKIA:S3CRET@bucket",
            "https://S3CRET@host/x",
            "https://me:S3CRET@host:80/x",
            "az://me:S3CRET@c/x?sig=S3CRET",
            "S3N://AKIA:a b S3CRET@bucket",
        ] {
            let shown = clean_uri(uri);
            assert!(!shown.contains("S3CRET"), "{uri}: {shown}");
            assert!(
                shown.to_lowercase().starts_with(uri.split(':').next().unwrap().to_lowercase().as_str()),
                "{shown}"
            );
        }
        for uri in [
            "s3://bucket/at@sign",
            "http://host:9000/a@b",
            "abfss://c@acc.dfs.core.windows.net/a",
            "/data/a:b@c",
            "file:///data/x@y",
            "file:/data/x@y",
            "http://[::1]:9000/x",
        ] {
            assert_eq!(clean_uri(uri), uri);
        }
        assert_eq!(clean_uri("s3://b/\u{1b}[2J"), "s3://b/\\u{1b}[2J");
    }
}
