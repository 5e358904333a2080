//! Tests of shared folders: on disk, and in the answers of S3.

use super::super::tests::{open, serve};
use super::*;
use std::ffi::OsStr;
use std::os::unix::fs::{PermissionsExt, symlink};

fn names(found: &Survey) -> Vec<&str> {
    let mut names: Vec<_> = found.objects.iter().map(|object| object.name.as_str()).collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn odd_names_of_others_are_set_aside_and_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for name in ["x\u{1}y", "\u{1b}[2J", "a\nb", "ours", "a*b", "a%2Fb", "a\\b", "~x", "a#b", "a?b", "ä b"] {
        std::fs::create_dir(root.join(name)).unwrap();
        std::fs::write(root.join(name).join("file"), b"1").unwrap();
    }
    std::fs::write(root.join(OsStr::from_bytes(b"bytes\xff")), b"1").unwrap();
    symlink("/nonexistent", root.join("dangling")).unwrap();
    symlink("itself", root.join("itself")).unwrap();
    symlink(".", root.join("ours/again")).unwrap();
    let store = open(root.to_str().unwrap(), &[]).unwrap();
    let found = store.survey("").await.unwrap();
    let usable = ["a#b", "a%2Fb", "a*b", "a?b", "a\\b", "ours", "~x", "ä b"];
    assert_eq!(names(&found), usable.map(|name| format!("{name}/file")));
    let foreign: Vec<_> = found.foreign.keys().map(String::as_str).collect();
    assert_eq!(foreign, ["\\u{1b}[2J", "a\\nb", "bytes\\xff", "itself", "x\\u{1}y"]);
    // Each usable folder can be worked in, under the name that the listing shows and under the address of that.
    for name in usable {
        let there = store.folder(name).unwrap();
        assert_eq!(there.list("").await.unwrap().len(), 1, "{name}");
        there.put_overwrite("file", "22".into()).await.unwrap();
        assert_eq!(there.get_named("file").await.unwrap().unwrap(), "22", "{name}");
        let again = open(there.uri(), &[]).unwrap();
        assert_eq!(again.get_named("file").await.unwrap().unwrap(), "22", "{}", there.uri());
        assert_eq!(again.uri(), there.uri());
        there.delete("file").await.unwrap();
        assert!(again.list("").await.unwrap().is_empty(), "{name}");
    }
    assert!(store.folder("x\u{1}y").is_err());
}

#[tokio::test]
async fn an_unreadable_folder_fails_the_listing_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    std::fs::create_dir_all(root.join("ours/head")).unwrap();
    std::fs::write(root.join("ours/head/1"), b"1").unwrap();
    std::fs::create_dir(root.join("lost+found")).unwrap();
    std::fs::set_permissions(root.join("lost+found"), std::fs::Permissions::from_mode(0o000)).unwrap();
    if std::fs::read_dir(root.join("lost+found")).is_ok() {
        return; // root reads everything
    }
    let store = open(root.to_str().unwrap(), &[]).unwrap();
    let found = store.survey("").await.unwrap();
    assert_eq!(names(&found), ["ours/head/1"]);
    assert!(found.foreign["lost+found"].contains("cannot be read"), "{found:?}");
    let error = store.list("").await.unwrap_err();
    assert!(error.message().contains("`lost+found`") && error.message().contains("right"), "{error}");
    assert!(store.survey("lost+found").await.is_err(), "what was asked for must be read");
    assert_eq!(store.list("ours").await.unwrap().len(), 1);
}

fn entry(name: &str, size: u64) -> String {
    format!(
        "<Contents><Key>{name}</Key><LastModified>2026-01-01T00:00:00Z</LastModified><Size>{size}</Size></Contents>"
    )
}

#[test]
fn names_that_no_request_can_have_are_taken_out_of_a_page() {
    let ours = [entry("s/log/a", 1), entry("s/a&amp;b/c", 0)].concat();
    let page = |more: &str| {
        format!("<ListBucketResult><Name>b</Name>{more}<IsTruncated>false</IsTruncated></ListBucketResult>")
    };
    assert_eq!(without_odd_names(&page(&ours), &S3), None);
    let odd = ["s/x//y/z", "s/x//w", "s/&#x1;b/c", "s/a\u{1}b", "s/../up", "s/./here", "s/full/", "/s/root"];
    let odd: String = odd.iter().map(|name| entry(name, 1)).collect();
    let markers = [entry("s/", 0), entry("s/log/", 0)].concat();
    let (kept, taken) = without_odd_names(&page(&[&markers, &ours, &odd[..]].concat()), &S3).unwrap();
    assert_eq!(kept, page(&ours));
    let shown = ["s/x//", "s/x//", "s/\\u{1}b/", "s/a\\u{1}b", "s/../", "s/./", "s/full/", "/"].map(str::to_owned);
    assert_eq!(taken, shown, "up to the part that is odd");
    let blob = |name: &str| {
        format!("<Blob><Name>{name}</Name><Properties><Content-Length>0</Content-Length></Properties></Blob>")
    };
    let page = |more: String| format!("<EnumerationResults><Blobs>{more}</Blobs><NextMarker /></EnumerationResults>");
    let (kept, taken) = without_odd_names(&page([blob("s/"), blob("s/a"), blob("s//b")].concat()), &AZURE).unwrap();
    assert_eq!((kept, taken), (page(blob("s/a")), vec!["s//".to_owned()]));
}

#[tokio::test]
async fn one_odd_name_does_not_end_the_listing_of_a_bucket() {
    let body = ["s/", "s/log/a", "s/x//y", "s/b&#27;[2J"].map(|name| entry(name, 0)).concat();
    let body = format!("<ListBucketResult>{body}<IsTruncated>false</IsTruncated></ListBucketResult>");
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
    let answer: &'static str = answer.leak();
    let (endpoint, _) = serve(move |_| answer);
    let storage =
        [("endpoint", endpoint.as_str()), ("access_key_id", "a"), ("secret_access_key", "b"), ("region", "x")];
    let store = open("s3://bucket/s", &storage).unwrap();
    let found = store.survey("").await.unwrap();
    assert_eq!(names(&found), ["log/a"]);
    assert_eq!(found.foreign.keys().collect::<Vec<_>>(), ["b\\u{1b}[2J", "x//"]);
    assert_eq!(store.list("").await.unwrap(), found.objects);
}
