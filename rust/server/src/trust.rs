//! Whether a socket is this user's own: requests hold the credentials of the bucket, and answers are taken for state.
//!
//! Owns: the check of the socket's folder, of the socket, and of the process that listens at it.
//! Does not own: the folder's path and rights (`fastchangelog.server.paths`), the user of a client (`server`).
//!
//! Folder and socket are checked before the connection is made, the process before the first byte is sent. The process
//! decides: a folder may be exchanged between check and connection, the user of the listening process may not.

use crate::platform::peer_user;
use fastchangelog_format::error::Subject;
use fastchangelog_format::{Error, ErrorKind, Result};
use rustix::process::{Uid, geteuid};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Write rights of the group and of all others.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Connects to a socket that belongs to this user, in a folder that only this user can change.
///
/// The outer error refuses; the inner one is that of a socket that is not there, or at which no process listens.
pub(crate) fn connect(socket: &Path) -> Result<io::Result<UnixStream>> {
    let folder = socket.parent().unwrap_or(Path::new("/"));
    let own = geteuid();
    match checked(folder, own, folder_objection).and_then(|()| checked(socket, own, socket_objection)) {
        Err(Objection::None(error)) => return Ok(Err(error)),
        Err(Objection::Foreign(text)) => return Err(refused(socket, &text)),
        Ok(()) => {}
    }
    let stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(error) => return Ok(Err(error)),
    };
    let peer = peer_user(&stream).map_err(|e| Error::io_at("cannot read the user of the server at", socket, &e))?;
    peer_objection(peer, own).map_or(Ok(Ok(stream)), |text| Err(refused(socket, &text)))
}

enum Objection {
    /// It cannot be looked at, or is not there.
    None(io::Error),
    Foreign(String),
}

fn checked(
    path: &Path,
    own: Uid,
    objection: impl Fn(&Metadata, Uid) -> Option<String>,
) -> std::result::Result<(), Objection> {
    let found = std::fs::symlink_metadata(path).map_err(Objection::None)?;
    objection(&found, own).map_or(Ok(()), |text| Err(Objection::Foreign(format!("{} {text}", path.display()))))
}

fn folder_objection(found: &Metadata, own: Uid) -> Option<String> {
    if !found.is_dir() {
        return Some("is not a folder".to_owned());
    }
    owner_objection(found.uid(), own).or_else(|| {
        (found.mode() & WRITABLE_BY_OTHERS != 0)
            .then(|| format!("can be changed by other users (mode {:o})", found.mode() & 0o7777))
    })
}

fn socket_objection(found: &Metadata, own: Uid) -> Option<String> {
    if found.file_type().is_socket() { owner_objection(found.uid(), own) } else { Some("is not a socket".to_owned()) }
}

fn owner_objection(owner: u32, own: Uid) -> Option<String> {
    (owner != own.as_raw()).then(|| format!("belongs to user {owner}, this is user {}", own.as_raw()))
}

fn peer_objection(peer: Uid, own: Uid) -> Option<String> {
    (peer != own).then(|| format!("the process at it runs as user {}, this is user {}", peer.as_raw(), own.as_raw()))
}

fn refused(socket: &Path, text: &str) -> Error {
    Error::new(
        ErrorKind::PermissionDenied,
        format!("the socket {} does not belong to this user's state server: {text}", socket.display()),
    )
    .with_subject(Subject::Path(socket.to_owned()))
    .with_remedy("nothing was sent; remove the folder, or set XDG_RUNTIME_DIR to a private one")
}

#[cfg(test)]
#[cfg(all(target_os = "linux", not(fastchangelog_portable)))]
#[path = "trust_tests.rs"]
mod tests;
