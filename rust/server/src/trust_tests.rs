//! Sockets in the place of the state server's get no byte.

use super::*;
use std::fs::{Permissions, set_permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use tempfile::TempDir;

fn listening(mode: u32) -> (TempDir, PathBuf, UnixListener) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
    (folder, socket, listener)
}

/// No connection waits at the listener.
fn assert_untouched(listener: &UnixListener) {
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn a_private_folder_with_this_users_socket_is_trusted() {
    for mode in [0o700, 0o755] {
        let (_folder, socket, listener) = listening(mode);
        drop(connect(&socket).unwrap().unwrap());
        let mut sent = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut sent).unwrap();
        assert!(sent.is_empty());
    }
}

#[test]
fn a_folder_that_others_can_change_is_refused_first() {
    for mode in [0o777, 0o720, 0o702, 0o1777] {
        let (_folder, socket, listener) = listening(mode);
        let error = connect(&socket).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(error.message().contains("can be changed by other users"), "{error}");
        assert_untouched(&listener);
    }
}

#[test]
fn a_link_to_a_folder_and_a_file_as_a_socket_are_refused() {
    let (folder, socket, listener) = listening(0o700);
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(folder.path(), &link).unwrap();
    let error = connect(&link.join("s")).unwrap_err();
    assert!(error.message().contains("is not a folder"), "{error}");
    let to_socket = folder.path().join("t");
    std::os::unix::fs::symlink(&socket, &to_socket).unwrap();
    assert!(connect(&to_socket).unwrap_err().message().contains("is not a socket"));
    assert_untouched(&listener);
}

#[test]
fn what_is_not_there_or_does_not_listen_is_no_refusal() {
    let (folder, socket, listener) = listening(0o700);
    let missing = connect(&folder.path().join("none")).unwrap().unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    drop(listener);
    assert_eq!(connect(&socket).unwrap().unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn another_users_folder_socket_or_process_is_refused() {
    let (folder, socket, _listener) = listening(0o700);
    let own = geteuid();
    let other = Uid::from_raw(own.as_raw() + 1);
    let text = format!("belongs to user {}, this is user {}", own.as_raw(), other.as_raw());
    assert_eq!(folder_objection(&std::fs::symlink_metadata(folder.path()).unwrap(), other), Some(text.clone()));
    assert_eq!(socket_objection(&std::fs::symlink_metadata(socket).unwrap(), other), Some(text));
    assert_eq!(peer_objection(own, own), None);
    assert!(peer_objection(other, own).unwrap().contains("runs as user"));
    assert!(peer_objection(Uid::ROOT, Uid::from_raw(1)).is_some(), "another's server, even if it is root's");
}
