//! Tests of `local`: its invariants, and that it reads like `object_store`'s own files.

use super::*;
use object_store::ObjectStoreExt;
use proptest::prelude::*;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn name(name: &str) -> ObjectPath {
    ObjectPath::from(name)
}

async fn put(files: &LocalFiles, at: &str, pieces: Vec<Bytes>, mode: PutMode) -> Result<PutResult> {
    files.put_opts(&name(at), PutPayload::from_iter(pieces), PutOptions::from(mode)).await
}

fn found(folder: &Path) -> Vec<String> {
    let listed = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = listed.collect();
    names.sort();
    names
}

#[tokio::test]
async fn invariant_1_a_name_is_never_replaced_under_create() {
    let folder = folder();
    let files = LocalFiles::open(folder.path(), false).unwrap();
    put(&files, "log/a", vec!["first".into()], PutMode::Create).await.unwrap();
    let again = put(&files, "log/a", vec!["second".into()], PutMode::Create).await.unwrap_err();
    assert!(matches!(again, Error::AlreadyExists { .. }), "{again:?}");
    assert_eq!(files.get(&name("log/a")).await.unwrap().bytes().await.unwrap(), "first");
    put(&files, "log/a", vec!["third".into()], PutMode::Overwrite).await.unwrap();
    assert_eq!(files.get(&name("log/a")).await.unwrap().bytes().await.unwrap(), "third");
    assert_eq!(found(&folder.path().join("log")), ["a"]);
}

#[tokio::test]
async fn invariant_2_a_put_that_fails_leaves_no_staged_file() {
    let folder = folder();
    let files = LocalFiles::open(folder.path(), false).unwrap();
    // A folder has the name: neither a link nor a rename can take it.
    std::fs::create_dir_all(folder.path().join("log/a/b")).unwrap();
    for mode in [PutMode::Create, PutMode::Overwrite] {
        put(&files, "log/a", vec![vec![7; 2 << 20].into()], mode).await.unwrap_err();
        assert_eq!(found(&folder.path().join("log")), ["a"]);
    }
    // A leftover of a killed process is not taken over.
    std::fs::write(folder.path().join("log/c#1"), "half").unwrap();
    put(&files, "log/c", vec!["whole".into()], PutMode::Create).await.unwrap();
    assert_eq!(found(&folder.path().join("log")), ["a", "c", "c#1"]);
}

#[tokio::test]
async fn invariant_3_synced_puts_make_their_folders() {
    let folder = folder();
    let files = LocalFiles::open(folder.path(), true).unwrap();
    put(&files, "x/y/z/a", vec!["deep".into()], PutMode::Create).await.unwrap();
    assert_eq!(std::fs::read(folder.path().join("x/y/z/a")).unwrap(), b"deep");
    std::fs::write(folder.path().join("file"), "").unwrap();
    let below = put(&files, "file/a", vec!["no".into()], PutMode::Create).await.unwrap_err();
    assert!(matches!(below, Error::Generic { store: "LocalFileSystem", .. }), "{below:?}");
    assert!(below.to_string().contains("file/a"), "{below}");
}

#[test]
fn invariant_4_a_put_leaves_the_staged_file_of_another() {
    let folder = folder();
    let writing = || Writing {
        target: folder.path().join("note"),
        pieces: Vec::new(),
        size: 0,
        create: false,
        sync: false,
        reserve: false,
    };
    let (first, second) = (writing(), writing());
    let (file, mut staged) = first.stage().unwrap();
    first.publish(&file, &mut staged).unwrap();
    // The name of the staged file is free again, and the second put takes it before the first one ends.
    let (other, mut others) = second.stage().unwrap();
    assert_eq!(staged.path, others.path);
    drop(staged);
    second.publish(&other, &mut others).unwrap();
    drop(others);
    assert_eq!(found(folder.path()), ["note"]);
}

#[tokio::test]
async fn a_folder_that_cannot_be_made_ends_the_put() {
    let folder = folder();
    let files = LocalFiles::open(folder.path(), false).unwrap();
    std::os::unix::fs::symlink(folder.path().join("nowhere"), folder.path().join("log")).unwrap();
    let lost = put(&files, "log/a", vec!["lost".into()], PutMode::Create).await.unwrap_err();
    assert!(lost.to_string().contains("log"), "{lost}");
}

#[tokio::test]
async fn more_pieces_than_one_call_takes() {
    let folder = folder();
    let files = LocalFiles::open(folder.path(), false).unwrap();
    let pieces: Vec<Bytes> = (0..5_000u32).map(|i| Bytes::from(vec![(i % 251) as u8; (i % 700) as usize])).collect();
    let expected = pieces.concat();
    assert!(expected.len() > WORTH_RESERVING);
    put(&files, "many", pieces, PutMode::Create).await.unwrap();
    assert!(std::fs::read(folder.path().join("many")).unwrap() == expected);
    assert_eq!(files.head(&name("many")).await.unwrap().size, expected.len() as u64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn what_is_read_is_what_was_put(
        sizes in proptest::collection::vec(0usize..90_000, 0..40), seed: u8, sync: bool, create: bool
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let folder = folder();
            let files = LocalFiles::open(folder.path(), sync).unwrap();
            let pieces: Vec<Bytes> =
                sizes.iter().enumerate().map(|(i, size)| vec![seed.wrapping_add(i as u8); *size].into()).collect();
            let expected = pieces.concat();
            let mode = if create { PutMode::Create } else { PutMode::Overwrite };
            put(&files, "log/ab", pieces, mode).await.unwrap();
            assert!(files.get(&name("log/ab")).await.unwrap().bytes().await.unwrap() == expected);
            assert_eq!(found(&folder.path().join("log")), ["ab"]);
        });
    }
}

#[test]
fn a_look_tells_what_a_read_would() {
    let folder = folder();
    let runtime = crate::start_io_threads().unwrap();
    runtime.block_on(async {
        let files = LocalFiles::open(folder.path(), false).unwrap();
        // On a runtime of many threads, one of these sizes is written in place.
        for size in [0, 5, WRITTEN_HERE + 1, WRITTEN_IN_PLACE + 1] {
            let at = format!("log/{size}");
            put(&files, &at, vec![vec![7; size].into()], PutMode::Create).await.unwrap();
            let (looked, read) = (files.head(&name(&at)).await.unwrap(), files.get(&name(&at)).await.unwrap().meta);
            assert_eq!(
                (looked.size, looked.last_modified, looked.location),
                (size as u64, read.last_modified, name(&at))
            );
        }
        for missing in ["log/none", "none/at/all", "log"] {
            let error = files.head(&name(missing)).await.unwrap_err();
            assert!(matches!(error, Error::NotFound { .. }), "{missing}: {error:?}");
        }
    });
}
