//! Moves the store of a folder into a cluster of its own: files into the shard, snapshots into the
//! bucket. All of it is then read back and compared by BLAKE3; only then is the folder marked.
//!
//! Until that ends, the cluster's identity names the store, and no coordinator works there. A
//! second call goes on where one was stopped: files are appended to, and snapshots that are there
//! are left. The store keeps its id, its tokens and its inventory; its index is built again. The
//! folder keeps all its files. A move begins only where the journal is there, and where the
//! settings lead to the prefix of the store's own snapshots.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use memtape_disk::files::{Disk, folder_of, remove_if_there};
use memtape_disk::real::RealDisk;
use tokio::runtime::Handle;

use crate::backup::manifest::DATA_BYTES;
use crate::blobs::environment;
use crate::blobs::local::{self as blobs, Blobs};
use crate::blobs::remote::{OWNER, Remote};
use crate::bucket::Bucket;
use crate::cluster::checking;
use crate::cluster::disk::ShardDisk;
use crate::cluster::identity::{begin_move, end_move};
use crate::cluster::proof::process_name;
use crate::cluster::shard::{Shard, ShardError, ShardId};
use crate::encoding::load;
use crate::error::{During, Error, Kind, Result};
use crate::inventory;
use crate::journal::{self, JOURNAL, PREVIOUS};
use crate::records::snapshot_of;
use crate::recovery::format::{self, Format, Whose};
use crate::recovery::opening;
use crate::reports::{MissingSnapshots, StoreMove};
use crate::steps::{log, segments};

/// The one shard, as long as jobs are not divided.
const SHARD: ShardId = ShardId(0);

/// Time for taking the shard, and for giving it up.
const SHARD_TIME: Duration = Duration::from_secs(120);

/// Times that something is copied that differs when it is read back.
const COPIES_MAX: usize = 2;

/// Missing snapshots that the line about them names.
const NAMED_MAX: usize = 3;

/// Moves a store that no coordinator has open into the bucket, by the `AWS_…` variables. Blocks,
/// and not on an async loop.
///
/// # Errors
/// One line that says what to do. What was copied stays there for the next call.
pub fn move_store(
    folder: &Path,
    url: &str,
    missing: MissingSnapshots,
    runtime: &Handle,
) -> Result<StoreMove> {
    move_with(folder, (url, environment()), missing, runtime)
}

/// As [`move_store`], with these `AWS_…` variables.
pub(crate) fn move_with(
    folder: &Path,
    (url, settings): (&str, Vec<(String, String)>),
    missing: MissingSnapshots,
    runtime: &Handle,
) -> Result<StoreMove> {
    let bucket = Bucket::with_few_retries(url, settings.clone())?;
    let from: Arc<dyn Disk> = Arc::new(RealDisk::new(folder));
    if !matches!(format::whose(&*from), Ok(Whose::Ours)) {
        return Err(Error::missing("store", folder));
    }
    let _lock = from.lock(format::LOCK).map_err(|error| opening::in_use(&*from, error))?;
    let format = movable(&*from, bucket.url())?;
    if format.moved_to.is_some() {
        // All was compared: the last step may be left.
        runtime.block_on(end_move(&bucket, &format.id))?;
        return Ok(StoreMove::default());
    }
    let source = runtime.block_on(source(&from, &format, settings.clone()))?;
    let needed = needed(&*from)?;
    runtime.block_on(begin_move(&bucket, &process_name(), &format.id))?;
    let snapshots_url = SHARD.snapshots_url(&bucket);
    let target = Remote::connect(&snapshots_url, (&format.id, None), settings);
    let target = runtime.block_on(target)?;
    let (from, bucket, format) = (&from, &bucket, &format);
    let moving = Moving { from, bucket, format, source, target, needed, runtime };
    let moved = moving.copy_until_same()?;
    if missing == MissingSnapshots::Refuse && !moved.missing.is_empty() {
        let (needed, lost) = (moving.needed.len(), moved.missing.len());
        let first = moved.missing[..lost.min(NAMED_MAX)].join("; ");
        return Err(Error::new(
            Kind::Gone,
            format!(
                "of {needed} snapshots in {} {lost} cannot be moved ({first}): put them back and \
                 move again, or leave them out with --without-missing; all else is copied",
                folder.display()
            ),
        ));
    }
    format::set_moved(&**from, bucket.url())
        .during(|| format!("the store is in {url}, and {} cannot be marked", folder.display()))?;
    runtime.block_on(end_move(bucket, &format.id))?;
    Ok(moved)
}

/// The format of a folder that can be moved to this URL.
fn movable(disk: &dyn Disk, url: &str) -> Result<Format> {
    let folder = disk.folder().display();
    format::is_restored(disk)?;
    if let Some(why) = format::check_version(disk)? {
        let name = format::NAME;
        return Err(Error::new(
            Kind::Damaged,
            format!("the file {name} in {folder} {why}: memtape store rebuild writes it again"),
        ));
    }
    let format = format::read(disk).during(|| format!("the format of {folder} cannot be read"))?;
    match &format.moved_to {
        Some(other) if other != url => {
            Err(Error::foreign(format!("the store in {folder} was moved to {other}")))
        }
        _ => Ok(format),
    }
}

/// The snapshots of the store, wherever they are.
///
/// # Errors
/// They are in a bucket, and these settings lead to another one: all of them would be missing.
async fn source(
    from: &Arc<dyn Disk>,
    format: &Format,
    settings: Vec<(String, String)>,
) -> Result<Blobs> {
    let source = Blobs::new(from);
    let Some(url) = &format.snapshots_url else { return Ok(source) };
    let bucket = Bucket::with_few_retries(url, settings)?;
    let remote = Remote::at(bucket.clone());
    let owner = remote.owner().await.map_err(|error| bucket.refused(error))?;
    // A restored store refers to those of the other one.
    let is_other = |id: String| id != format.id && Some(id) != format.restored_from;
    if owner.is_none_or(is_other) {
        return Err(Error::foreign(format!(
            "the snapshots of the store in {} are in {url}, and the object {OWNER} there is \
             missing or names another store: check AWS_ENDPOINT_URL, by which both snapshots and \
             cluster must be reached",
            from.folder().display()
        )));
    }
    source.move_to(remote);
    Ok(source)
}

/// Snapshots that captures refer to, by the journal.
fn needed(from: &dyn Disk) -> Result<BTreeSet<[u8; 32]>> {
    let shown = from.folder().display();
    let read = journal::read_both(from);
    let contents = read.during(|| format!("the journal in {shown} cannot be read"))?;
    let contents = contents.ok_or_else(|| {
        Error::new(
            Kind::Damaged,
            format!(
                "the journal in {shown} is gone: put it back from a copy, or run memtape store \
                 rebuild to go on without it"
            ),
        )
    })?;
    let parts = load(&contents.live).parts;
    Ok(parts.iter().filter_map(snapshot_of).map(|hash| *hash.as_bytes()).collect())
}

/// A move in progress.
struct Moving<'a> {
    from: &'a Arc<dyn Disk>,
    bucket: &'a Bucket,
    format: &'a Format,
    /// Snapshots of the store, wherever they are.
    source: Blobs,
    /// Snapshots in the bucket.
    target: Remote,
    /// Snapshots that captures refer to.
    needed: BTreeSet<[u8; 32]>,
    runtime: &'a Handle,
}

/// What is to be copied, or to be copied again.
#[derive(Debug, Default)]
struct Differing {
    files: Vec<String>,
    snapshots: BTreeSet<[u8; 32]>,
}

impl Moving<'_> {
    /// Copies all, and compares it.
    fn copy_until_same(&self) -> Result<StoreMove> {
        let mut copied_bytes = 0;
        let mut again = Differing::default();
        for _ in 0..COPIES_MAX {
            copied_bytes += self.copy_files(&again.files)?;
            let (bytes, missing) = self.runtime.block_on(self.copy_snapshots(&again.snapshots))?;
            copied_bytes += bytes;
            let (same, differing) = self.compare(&missing)?;
            if differing.files.is_empty() && differing.snapshots.is_empty() {
                let missing = missing.into_iter().map(|(_, why)| why).collect();
                return Ok(StoreMove { copied_bytes, missing, ..same });
            }
            again = differing;
        }
        let first = again.snapshots.first().map(|hash| blake3::Hash::from_bytes(*hash));
        let first = again.files.first().cloned().or(first.map(blobs::name)).unwrap_or_default();
        Err(Error::new(
            Kind::Damaged,
            format!(
                "{first} was copied to {} twice, and is read with other bytes: check the bucket, \
                 and move again",
                self.bucket.url()
            ),
        ))
    }

    /// Copies the files into the shard, those of `again` from their beginning; the bytes.
    fn copy_files(&self, again: &[String]) -> Result<u64> {
        let url = self.bucket.url();
        let unowned =
            |why: ShardError| Error::io(format!("the shard in {url} is not owned: {why}"));
        let taken = Shard::take(self.bucket, SHARD, None, SHARD_TIME);
        let shard = Arc::new(self.runtime.block_on(taken).map_err(unowned)?);
        let to = ShardDisk::open(shard.clone(), self.runtime.clone());
        let copied = to.and_then(|to| self.copy_files_to(&to, again));
        let bytes = copied.during(|| format!("the files cannot be copied to {url}"))?;
        let shard = Arc::into_inner(shard).ok_or(ShardError::Closed).map_err(unowned)?;
        self.runtime.block_on(shard.close(SHARD_TIME)).map_err(unowned)?;
        Ok(bytes)
    }

    fn copy_files_to(&self, to: &dyn Disk, again: &[String]) -> io::Result<u64> {
        let names = files(&**self.from)?;
        let is_stale = |name: &String| again.contains(name) || !names.contains(name);
        for name in files(to)?.iter().filter(|name| is_stale(name)) {
            remove_if_there(to, name)?;
        }
        let mut bytes = 0;
        for name in &names {
            bytes += copy_file(&**self.from, to, name)?;
        }
        // Last: without it the shard holds no store.
        let snapshots_url = Some(SHARD.snapshots_url(self.bucket));
        format::write(to, &Format { snapshots_url, ..self.format.clone() })?;
        Ok(bytes)
    }

    /// Copies the snapshots that are not there, and those of `again`; the bytes, and those that the
    /// store has lost.
    async fn copy_snapshots(
        &self,
        again: &BTreeSet<[u8; 32]>,
    ) -> Result<(u64, Vec<([u8; 32], String)>)> {
        let there: BTreeSet<_> =
            self.target.list().await?.into_iter().map(|hash| *hash.as_bytes()).collect();
        let (mut bytes, mut missing) = (0, Vec::new());
        for key in self.needed.iter().filter(|key| !there.contains(*key) || again.contains(*key)) {
            let hash = blake3::Hash::from_bytes(*key);
            match self.source.get(hash).await {
                Ok(snapshot) => {
                    bytes += snapshot.len() as u64;
                    self.target.put(hash, snapshot).await?;
                }
                Err(why) if matches!(why.kind, Kind::Gone | Kind::Damaged) => {
                    missing.push((*key, format!("{}: {why}", blobs::name(hash))));
                }
                Err(why) => return Err(why),
            }
        }
        Ok((bytes, missing))
    }

    /// Reads all back from the bucket, and compares it with the folder.
    fn compare(&self, missing: &[([u8; 32], String)]) -> Result<(StoreMove, Differing)> {
        let view = checking::read(self.bucket, SHARD, self.runtime)?;
        let (mut same, mut differing) = (StoreMove::default(), Differing::default());
        let names = files(&**self.from)?;
        for name in &names {
            let expected = hash_of(&**self.from, name)?;
            match hash_of(&view, name) {
                Ok(found) if found == expected => {
                    same.files += 1;
                    same.bytes += found.0;
                }
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
                _ => differing.files.push(name.clone()),
            }
        }
        differing.files.extend(files(&view)?.into_iter().filter(|name| !names.contains(name)));
        if format::read(&view).is_ok_and(|found| found.id == self.format.id) {
            same.files += 1;
        } else {
            differing.files.push(format::NAME.to_string());
        }
        for key in &self.needed {
            let hash = blake3::Hash::from_bytes(*key);
            match self.runtime.block_on(self.target.hash_of(hash))? {
                Some((bytes, found)) if found == hash => {
                    same.snapshots += 1;
                    same.bytes += bytes;
                }
                // A copy of an earlier call may be damaged.
                _ if missing.iter().any(|(lost, _)| lost == key) => {}
                _ => {
                    differing.snapshots.insert(*key);
                }
            }
        }
        Ok((same, differing))
    }
}

/// Names of the files that make a store, but for the format and the index.
fn files(disk: &dyn Disk) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for name in [JOURNAL, PREVIOUS, inventory::NAME] {
        match disk.open(name) {
            Ok(_) => names.push(name.to_string()),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    let numbered = |listed: io::Result<Vec<String>>| match listed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        listed => listed,
    };
    names.extend(numbered(log::list(disk).map(|of| of.into_keys().map(log::name).collect()))?);
    names.extend(numbered(
        segments::list(disk).map(|of| of.into_keys().map(segments::name).collect()),
    )?);
    Ok(names)
}

/// Copies what the target does not have yet; the bytes.
fn copy_file(from: &dyn Disk, to: &dyn Disk, name: &str) -> io::Result<u64> {
    let source = from.open(name)?;
    let bytes = source.len_bytes()?;
    to.make_folder(folder_of(name))?;
    let target = to.make(name)?;
    if target.len_bytes()? > bytes {
        target.set_len(0)?;
    }
    let begun = target.len_bytes()?;
    let (mut buffer, mut offset) = (vec![0; DATA_BYTES], begun);
    while offset < bytes {
        let length = usize::try_from(bytes - offset).unwrap_or(DATA_BYTES).min(DATA_BYTES);
        source.read_exact_at(&mut buffer[..length], offset)?;
        target.write_all_at(&buffer[..length], offset)?;
        offset += length as u64;
    }
    target.sync()?;
    Ok(bytes - begun)
}

/// Length and hash of a file.
fn hash_of(disk: &dyn Disk, name: &str) -> io::Result<(u64, blake3::Hash)> {
    let file = disk.open(name)?;
    let bytes = file.len_bytes()?;
    let (mut hasher, mut buffer, mut offset) = (blake3::Hasher::new(), vec![0; DATA_BYTES], 0);
    while offset < bytes {
        let length = usize::try_from(bytes - offset).unwrap_or(DATA_BYTES).min(DATA_BYTES);
        file.read_exact_at(&mut buffer[..length], offset)?;
        hasher.update(&buffer[..length]);
        offset += length as u64;
    }
    Ok((bytes, hasher.finalize()))
}
