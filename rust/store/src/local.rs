//! Objects as files of this machine, written in few system calls.
//!
//! Owns: writing an object from memory to a file (staged, one vectored write, synced on request, published
//! create-only), and an object's metadata. `object_store` does the rest.
//! Does not own: names, attempts, the meaning of an error (`diagnose`).
//!
//! `object_store` writes the pieces of a payload one by one, and the file system looks for blocks in each call. One
//! call for all pieces, into reserved space, takes less than half the time.
//!
//! Invariants:
//! 1. a name appears with all its bytes or not at all, and never replaces another under [`PutMode::Create`];
//! 2. a put that fails leaves no staged file;
//! 3. with `sync`, bytes and name are on disk when a put returns, folders made for it included;
//! 4. a put touches no staged file but its own, so that puts of one name at the same time all succeed.

use super::platform::{in_memory, reserve};
use super::space::WORTH_RESERVING;
use super::transfer::{blocking, in_place};
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{
    Attributes, CopyOptions, Error, Extensions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Payloads up to these sizes are written by the calling thread, when no sync is needed: a copy into the page cache is
/// faster than waking another thread. For those of the second size others take over what that thread had to do.
const WRITTEN_HERE: usize = 64 << 10;
const WRITTEN_IN_PLACE: usize = 4 << 20;
/// Most pieces of one vectored write (IOV_MAX).
const MAX_PIECES: usize = 1024;

/// The failed file operation and its path.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {}: {source}", path.display())]
struct Refused {
    what: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// The folder of a `file://` store.
#[derive(Debug)]
pub(super) struct LocalFiles {
    files: LocalFileSystem,
    sync: bool,
    /// False where files are in memory: there is nothing to reserve.
    reserves: bool,
}

impl LocalFiles {
    pub(super) fn open(folder: &Path, sync: bool) -> Result<Self> {
        let files = LocalFileSystem::new_with_prefix(folder)?.with_fsync(sync).with_automatic_cleanup(false);
        Ok(Self { files, sync, reserves: !in_memory(folder) })
    }

    /// The metadata of an object. On the calling thread: it takes microseconds.
    fn look(&self, location: &ObjectPath) -> Result<GetResult> {
        let path = self.files.path_to_filesystem(location)?;
        let found = match std::fs::metadata(&path) {
            Ok(found) if found.is_dir() => Err(ErrorKind::NotFound.into()),
            other => other,
        };
        let (size, modified) =
            found.and_then(|found| Ok((found.len(), found.modified()?))).map_err(|e| match e.kind() {
                ErrorKind::NotFound => Error::NotFound { path: path.display().to_string(), source: Box::new(e) },
                _ => refused("look at", &path, e),
            })?;
        let location = location.clone();
        let meta = ObjectMeta { location, last_modified: modified.into(), size, e_tag: None, version: None };
        Ok(GetResult {
            payload: GetResultPayload::Stream(futures::stream::empty().boxed()),
            meta,
            range: 0..size,
            attributes: Attributes::default(),
            extensions: Extensions::default(),
        })
    }
}

fn refused(what: &'static str, path: &Path, source: io::Error) -> Error {
    let exists = source.kind() == ErrorKind::AlreadyExists;
    let source = Box::new(Refused { what, path: path.to_owned(), source });
    if exists {
        Error::AlreadyExists { path: path.display().to_string(), source }
    } else {
        Error::Generic { store: "LocalFileSystem", source }
    }
}

/// One object that is being written to a file.
struct Writing {
    target: PathBuf,
    pieces: Vec<Bytes>,
    size: usize,
    create: bool,
    sync: bool,
    reserve: bool,
}

impl Writing {
    fn run(&self) -> Result<()> {
        let (mut file, mut staged) = self.stage()?;
        let done = self.write(&mut file, &staged.path).and_then(|()| self.publish(&file, &mut staged));
        // Published by a link, or failed: either way it is not needed (invariant 2).
        drop(staged);
        done?;
        if self.sync { sync_folder(&self.target) } else { Ok(()) }
    }

    fn stage(&self) -> Result<(File, Staged)> {
        let mut number = 1u32;
        loop {
            let mut name = self.target.clone().into_os_string();
            name.push(format!("#{number}"));
            let staged = PathBuf::from(name);
            match File::options().write(true).create_new(true).open(&staged) {
                Ok(file) => return Ok((file, Staged { path: staged, renamed: false })),
                Err(e) if e.kind() == ErrorKind::AlreadyExists && number < u32::MAX => number += 1,
                Err(e) if e.kind() == ErrorKind::NotFound => make_folder(&self.target, self.sync)?,
                Err(e) => return Err(refused("make", &staged, e)),
            }
        }
    }

    fn write(&self, file: &mut File, staged: &Path) -> Result<()> {
        if self.reserve {
            reserve(file, self.size).map_err(|e| refused("reserve space for", staged, e))?;
        }
        write_all(file, &self.pieces).map_err(|e| refused("write", staged, e))?;
        let found = file.metadata().map_err(|e| refused("look at", staged, e))?.len();
        if found != self.size as u64 {
            let cut = io::Error::new(ErrorKind::WriteZero, format!("{found} of {} bytes are there", self.size));
            return Err(refused("write", staged, cut));
        }
        Ok(())
    }

    fn publish(&self, file: &File, staged: &mut Staged) -> Result<()> {
        if self.sync {
            file.sync_all().map_err(|e| refused("sync to disk", &staged.path, e))?;
        }
        let publish = |e| refused("publish", &self.target, e);
        if self.create {
            std::fs::hard_link(&staged.path, &self.target).map_err(publish)
        } else {
            std::fs::rename(&staged.path, &self.target).map_err(publish)?;
            staged.renamed = true;
            Ok(())
        }
    }
}

/// A staged file, removed on drop unless it was renamed: by then its name may belong to another writer's file
/// (invariant 4).
struct Staged {
    path: PathBuf,
    renamed: bool,
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.renamed {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn write_all(file: &mut File, pieces: &[Bytes]) -> io::Result<()> {
    for pieces in pieces.chunks(MAX_PIECES) {
        let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let mut left = &mut slices[..];
        while !left.is_empty() {
            match file.write_vectored(left) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut left, written),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
    Ok(())
}

/// Makes the folder of `target`, from the first missing one on.
fn make_folder(target: &Path, sync: bool) -> Result<()> {
    let missing: Vec<&Path> = target.ancestors().skip(1).take_while(|folder| !folder.exists()).collect();
    for folder in missing.into_iter().rev() {
        match std::fs::create_dir(folder) {
            // Another put was faster. Anything but a folder (such as a dangling link) would be tried forever.
            Err(e) if e.kind() == ErrorKind::AlreadyExists && folder.is_dir() => {}
            made => made.map_err(|e| refused("make the folder", folder, e))?,
        }
        if sync {
            sync_folder(folder)?;
        }
    }
    Ok(())
}

/// Brings the entry of `path` in its folder to disk.
fn sync_folder(path: &Path) -> Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|e| refused("sync to disk", folder, e))
}

#[async_trait]
impl ObjectStore for LocalFiles {
    async fn put_opts(&self, location: &ObjectPath, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        if matches!(opts.mode, PutMode::Update(_)) || !opts.attributes.is_empty() {
            return self.files.put_opts(location, payload, opts).await;
        }
        let size = payload.content_length();
        let writing = Writing {
            target: self.files.path_to_filesystem(location)?,
            pieces: payload.into_iter().filter(|piece| !piece.is_empty()).collect(),
            size,
            create: opts.mode == PutMode::Create,
            sync: self.sync,
            reserve: self.reserves && size >= WORTH_RESERVING,
        };
        if self.sync || size > WRITTEN_IN_PLACE {
            blocking(move || writing.run()).await?;
        } else if size <= WRITTEN_HERE {
            writing.run()?;
        } else {
            in_place(move || writing.run()).await?;
        }
        Ok(PutResult { e_tag: None, version: None, extensions: Extensions::default() })
    }

    async fn put_multipart_opts(
        &self,
        location: &ObjectPath,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.files.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        let unconditional = options.if_match.is_none()
            && options.if_none_match.is_none()
            && options.if_modified_since.is_none()
            && options.if_unmodified_since.is_none();
        if options.head && options.range.is_none() && unconditional {
            return self.look(location);
        }
        self.files.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &ObjectPath, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.files.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<ObjectPath>>,
    ) -> BoxStream<'static, Result<ObjectPath>> {
        self.files.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.files.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> Result<ListResult> {
        self.files.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &ObjectPath, to: &ObjectPath, options: CopyOptions) -> Result<()> {
        self.files.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &ObjectPath, to: &ObjectPath, options: RenameOptions) -> Result<()> {
        self.files.rename_opts(from, to, options).await
    }
}

impl std::fmt::Display for LocalFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.files.fmt(f)
    }
}

#[cfg(test)]
#[path = "local_tests.rs"]
mod tests;
