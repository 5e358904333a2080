//! Listings of shared folders: names that no request can carry are set aside.
//!
//! Owns: listings, the walk over a local folder, the filter of remote listings, the test whether a name's form is
//! foreign.
//! Does not own: requests and their attempts (`Store`), the test whether a usable name belongs to this library
//! (`paths`).
//!
//! `object_store` fails a whole listing if it meets one unusual name: control characters, empty parts, `.` and `..`.
//! The filter removes such names from a store's answers first. Consoles and file systems over S3 mark a folder by an
//! empty object whose name ends with a slash; these are ignored.

use super::address::{address, printable};
use super::redact::xml_field;
use super::retry::Failure;
use super::{Listed, Store};
use async_trait::async_trait;
use fastchangelog_format::error::{Error, Result};
use futures::StreamExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpResponseBody, HttpService, ReqwestConnector,
};
use object_store::path::Path as ObjectPath;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

const ODD_NAME: &str = "no object of a state has such a name";
const UNREADABLE: &str = "it cannot be read";

/// The content of a folder.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Survey {
    /// All objects with usable names, in no particular order.
    pub objects: Vec<Listed>,
    /// Entries that no request can read or name: the name with escapes, and the reason.
    pub foreign: BTreeMap<String, String>,
}

tokio::task_local! {
    /// Names removed from the listing that this task reads.
    static TAKEN_OUT: RefCell<BTreeMap<String, String>>;
}

impl Store {
    /// All objects whose names start with the folder `prefix` (empty: all), in no particular order. Names that no
    /// object of ours can have are left out; what cannot be read is an error ([`Store::survey`] tells both apart).
    ///
    /// On `file://` that includes staged files of uploads that never ended, such as `log/<hex>#1`.
    pub async fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        let folder = prefix.trim_end_matches('/');
        if self.inner.local.is_some() {
            return self.walk_whole(folder).await;
        }
        let path = if folder.is_empty() && self.prefix.is_empty() { None } else { Some(self.path(folder)?) };
        let limit = self.inner.requests.limits.timeout;
        self.inner
            .requests
            .run(self.call("list", prefix, None), |_| async {
                let mut found = Vec::new();
                let mut stream = self.inner.store.list(path.as_ref());
                // A listing may be long, so the limit is on the time to its next page.
                loop {
                    let next = tokio::time::timeout(limit, stream.next()).await;
                    match next.map_err(|_| Failure::Again(format!("no answer within {limit:?}")))? {
                        None => return Ok(found),
                        Some(meta) => found.extend(self.listed(&meta?)),
                    }
                }
            })
            .await
    }

    /// True if an object is anywhere in this folder, other than hidden ones: those with `.` or `_` at the start of their
    /// name or of a folder's.
    pub async fn has_visible_objects(&self) -> Result<bool> {
        if let Some(root) = self.inner.local.clone() {
            let folder = root.join(&self.below_root);
            let found =
                tokio::task::spawn_blocking(move || has_visible_files(folder)).await.map_err(Error::internal)?;
            return found.map_err(|e| unreadable(&self.uri, &e));
        }
        let path = if self.prefix.is_empty() { None } else { Some(self.path("")?) };
        let limit = self.inner.requests.limits.timeout;
        self.inner
            .requests
            .run(self.call("list", "", None), |_| async {
                let mut stream = self.inner.store.list(path.as_ref());
                loop {
                    let next = tokio::time::timeout(limit, stream.next()).await;
                    match next.map_err(|_| Failure::Again(format!("no answer within {limit:?}")))? {
                        None => return Ok(false),
                        Some(meta) => {
                            let listed = self.listed(&meta?);
                            if listed.is_some_and(|l| !l.name.split('/').any(is_hidden)) {
                                return Ok(true);
                            }
                        }
                    }
                }
            })
            .await
    }

    fn listed(&self, meta: &object_store::ObjectMeta) -> Option<Listed> {
        let name = meta.location.as_ref().strip_prefix(self.prefix.as_str())?.trim_start_matches('/');
        let modified_millis = u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or(0);
        Some(Listed { name: name.to_owned(), size: meta.size, modified_millis })
    }

    /// All objects in the folder `prefix`, and its other entries: [`Store::list`] for a shared folder. An unreadable
    /// entry is no error, unless it is the folder itself.
    pub async fn survey(&self, prefix: &str) -> Result<Survey> {
        let folder = prefix.trim_end_matches('/');
        if self.inner.local.is_some() {
            return Ok(self.walk(folder).await?.found);
        }
        let taken_out = RefCell::default();
        let (listed, taken_out) = TAKEN_OUT
            .scope(taken_out, async {
                let listed = self.list(prefix).await;
                (listed, TAKEN_OUT.with(RefCell::take))
            })
            .await;
        let inside = |name: &str| Some(name.strip_prefix(self.prefix.as_str())?.trim_start_matches('/').to_owned());
        let foreign = taken_out.into_iter().filter_map(|(name, why)| Some((inside(&name)?, why))).collect();
        Ok(Survey { objects: listed?, foreign })
    }

    /// The files under a folder of this one, on disk.
    async fn walk(&self, folder: &str) -> Result<Walked> {
        let root = self.inner.local.clone().unwrap_or_default();
        let (base, from) = (root.join(&self.below_root), folder.to_owned());
        let walked = tokio::task::spawn_blocking(move || walk(&base, &from)).await.map_err(Error::internal)?;
        walked.map_err(|e| unreadable(&address(&self.uri, folder), &e))
    }

    /// The same, all of them: something under it that cannot be read is an error.
    pub(super) async fn walk_whole(&self, folder: &str) -> Result<Vec<Listed>> {
        let Walked { found, unread } = self.walk(folder).await?;
        match unread {
            Some((name, e)) => Err(unreadable(&format!("`{name}` in {}", self.uri), &e)),
            None => Ok(found.objects),
        }
    }
}

/// True for the name of a file or folder that Spark's readers leave out.
fn is_hidden(name: &str) -> bool {
    name.starts_with(['.', '_'])
}

/// True if a file is anywhere below a folder, other than hidden ones; false if the folder is not there.
fn has_visible_files(folder: PathBuf) -> io::Result<bool> {
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        let entries = match std::fs::read_dir(&folder) {
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            if is_hidden(&entry.file_name().to_string_lossy()) {
                continue;
            }
            if !entry.file_type()?.is_dir() {
                return Ok(true);
            }
            folders.push(entry.path());
        }
    }
    Ok(false)
}

fn unreadable(place: &str, error: &io::Error) -> Error {
    let failed = Error::io(format_args!("cannot list {place}"), error);
    match error.kind() {
        ErrorKind::PermissionDenied => {
            failed.with_remedy("give the user of this process the right to read it, or move it elsewhere")
        }
        _ => failed,
    }
}

/// The result of a walk, and the first folder or file that it could not read.
#[derive(Default)]
struct Walked {
    found: Survey,
    unread: Option<(String, io::Error)>,
}

/// Every file under `base/folder`, by its name relative to `base`. Only `folder` itself must be readable.
fn walk(base: &Path, folder: &str) -> io::Result<Walked> {
    let mut walked = Walked::default();
    let start = base.join(folder);
    let mut folders = vec![(start.clone(), Vec::new())];
    while let Some((next, mut above)) = folders.pop() {
        let at_start = next == start;
        let seen = std::fs::metadata(&next).map(|meta| (meta.dev(), meta.ino()));
        let read = seen.and_then(|place| std::fs::read_dir(&next).map(|entries| (place, entries)));
        let (place, entries) = match read {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => continue,
            Err(e) if at_start => return Err(e),
            Err(e) => {
                walked.unread(base, &next, e);
                continue;
            }
            Ok(read) => read,
        };
        // A link to a folder above would be followed forever.
        if above.contains(&place) {
            continue;
        }
        above.push(place);
        for entry in entries {
            let path = match entry {
                Ok(entry) => entry.path(),
                Err(e) if at_start => return Err(e),
                Err(e) => {
                    walked.unread(base, &next, e);
                    break;
                }
            };
            let meta = match std::fs::metadata(&path) {
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                Err(e) => {
                    walked.unread(base, &path, e);
                    continue;
                }
                Ok(meta) => meta,
            };
            let Some(name) = usable(base, &path) else {
                walked.found.foreign.insert(shown(base, &path), ODD_NAME.to_owned());
                continue;
            };
            if meta.is_dir() {
                folders.push((path, above.clone()));
                continue;
            }
            let modified = meta.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
            let modified_millis = u64::try_from(modified.as_millis()).unwrap_or(u64::MAX);
            walked.found.objects.push(Listed { name, size: meta.len(), modified_millis });
        }
    }
    Ok(walked)
}

impl Walked {
    fn unread(&mut self, base: &Path, path: &Path, error: io::Error) {
        let name = shown(base, path);
        self.found.foreign.insert(name.clone(), format!("{UNREADABLE}: {error}"));
        self.unread.get_or_insert((name, error));
    }
}

/// The name of a file relative to `base`, if a request can name it.
fn usable(base: &Path, path: &Path) -> Option<String> {
    let name = path.strip_prefix(base).ok()?.to_str()?;
    ObjectPath::parse(name).is_ok().then(|| name.to_owned())
}

/// The name of a file relative to `base`, whatever its bytes, with escapes.
fn shown(base: &Path, path: &Path) -> String {
    let name = path.strip_prefix(base).unwrap_or(path).as_os_str().as_bytes();
    let mut shown = String::new();
    for part in name.utf8_chunks() {
        shown.push_str(&printable(part.valid()));
        shown.extend(part.invalid().iter().flat_map(|byte| std::ascii::escape_default(*byte)).map(char::from));
    }
    shown
}

/// Connects clients that take odd names out of listings.
#[derive(Debug, Default)]
pub(super) struct FilteredListings(ReqwestConnector);

impl HttpConnector for FilteredListings {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Filter(self.0.connect(options)?)))
    }
}

#[derive(Debug)]
struct Filter(HttpClient);

/// The elements of a listing's page: of an object, of its name and of its size.
struct Form {
    query: &'static str,
    start: &'static str,
    end: &'static str,
    name: &'static str,
    size: &'static str,
}

/// Those of S3, as which Google's are asked for, too.
const S3: Form = Form { query: "list-type=2", start: "<Contents>", end: "</Contents>", name: "Key", size: "Size" };
const AZURE: Form = Form { query: "comp=list", start: "<Blob>", end: "</Blob>", name: "Name", size: "Content-Length" };

#[async_trait]
impl HttpService for Filter {
    async fn call(&self, request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let asks = |form: &&Form| request.uri().query().is_some_and(|q| q.split('&').any(|part| part == form.query));
        let form = [&S3, &AZURE].into_iter().find(asks);
        let response = self.0.execute(request).await?;
        let Some(form) = form.filter(|_| response.status().is_success()) else { return Ok(response) };
        let (parts, body) = response.into_parts();
        let bytes = body.bytes().await?;
        let body = match std::str::from_utf8(&bytes).ok().and_then(|page| without_odd_names(page, form)) {
            Some((kept, odd)) => {
                // Only a survey needs them.
                let _ = TAKEN_OUT.try_with(|taken_out| {
                    taken_out.borrow_mut().extend(odd.into_iter().map(|name| (name, ODD_NAME.to_owned())));
                });
                HttpResponseBody::from(kept)
            }
            None => HttpResponseBody::from(bytes),
        };
        Ok(HttpResponse::from_parts(parts, body))
    }
}

/// A page of a listing without the names that no request can carry, and these names with escapes; none if the page has
/// no such name.
fn without_odd_names(page: &str, form: &Form) -> Option<(String, Vec<String>)> {
    let (mut kept, mut odd) = (String::new(), Vec::new());
    let (mut rest, mut changed) = (page, false);
    while let Some(start) = rest.find(form.start) {
        let Some(length) = rest[start..].find(form.end) else { break };
        let end = start + length + form.end.len();
        let entry = &rest[start..end];
        let name = xml_field(entry, form.name).map(unescaped).unwrap_or_default();
        let is_marker = name.ends_with('/') && xml_field(entry, form.size).map(str::trim) == Some("0");
        let is_odd = name.starts_with('/') || name.ends_with('/') || ObjectPath::parse(&name).is_err();
        if is_odd && !is_marker {
            odd.push(printable(up_to_odd_part(&name)));
        }
        changed |= is_odd;
        kept.push_str(&rest[..if is_odd { start } else { end }]);
        rest = &rest[end..];
    }
    kept.push_str(rest);
    changed.then_some((kept, odd))
}

/// The name up to its first unusual part: entries below it have the same owner.
fn up_to_odd_part(name: &str) -> &str {
    let mut end = 0;
    for part in name.split_inclusive('/') {
        end += part.len();
        let part = part.strip_suffix('/').unwrap_or(part);
        if part.is_empty() || ObjectPath::parse(part).is_err() {
            break;
        }
    }
    &name[..end]
}

/// An XML text, unescaped.
fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        out.push_str(before);
        let named = after.split_once(';').and_then(|(name, left)| {
            let number = |digits: &str, radix| u32::from_str_radix(digits, radix).ok().and_then(char::from_u32);
            let c = match name {
                "amp" => Some('&'),
                "lt" => Some('<'),
                "gt" => Some('>'),
                "quot" => Some('"'),
                "apos" => Some('\''),
                _ => match name.strip_prefix("#x") {
                    Some(digits) => number(digits, 16),
                    None => name.strip_prefix('#').and_then(|digits| number(digits, 10)),
                },
            };
            Some((c?, left))
        });
        match named {
            Some((c, left)) => {
                out.push(c);
                rest = left;
            }
            None => {
                out.push('&');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
#[path = "listing_tests.rs"]
mod tests;
