//! The format version of a store's folder, and whether the folder is a store's.
//!
//! A folder of another version is refused. One version stands for all files of a store.

use std::io;
use std::sync::Arc;

use ring::rand::SecureRandom as _;
use serde::{Deserialize, Serialize};

use crate::blobs::local::FOLDER as BLOBS;
use crate::catalogue::FOLDER as CATALOGUE;
use crate::error::{During, Error, Result};
use crate::journal::{JOURNAL, PREVIOUS};
use crate::records::StepRecord;
use crate::steps::{log, segments};
use memtape_disk::clock;
use memtape_disk::files::{Disk, Entry, read_all, replace};

/// The version that this program writes, and the only one that it reads.
pub(crate) const VERSION: u32 = 8;

// Blocks and the log of steps hold these numbers and nothing else: other fields need a new version.
const _: () = assert!(StepRecord::NUMBERS == 14);

/// File that holds the version.
pub(crate) const NAME: &str = "FORMAT";

/// The file that a coordinator locks.
pub(crate) const LOCK: &str = "lock";

/// Lies in a folder while a store is restored into it.
pub(crate) const RESTORING: &str = "RESTORING";

/// Files that a first start may leave if it ends before the format file is written.
const BEFORE: [&str; 3] = ["FORMAT.new", LOCK, BLOBS];

/// A folder that file systems make; a folder without a store may have it.
const LOST_AND_FOUND: &str = "lost+found";

/// The file's contents: one line of JSON.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Format {
    pub(crate) version: u32,
    /// Time at which the folder got this version.
    #[serde(default)]
    pub(crate) made_wall_ns: i64,
    /// Tells stores apart that share a place for snapshots.
    #[serde(default)]
    pub(crate) id: String,
    /// URL of the snapshots, if not this folder.
    #[serde(default, rename = "bodies_url")]
    pub(crate) snapshots_url: Option<String>,
    /// True if an inventory was made: a missing one is lost.
    #[serde(default)]
    pub(crate) has_inventory: bool,
    /// Id of the store that a backup was made of, when this one was restored from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) restored_from: Option<String>,
    /// URL of the cluster that the store was moved to: no coordinator opens this folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) moved_to: Option<String>,
}

/// Kind of a folder: a store, or not.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Whose {
    /// There is a store, in any state.
    Ours,
    /// There is no store, and one may be made.
    Nobodys,
    /// There is no store, but an entry of this name.
    Foreign(String),
}

/// Tells whose a folder is.
pub(crate) fn whose(disk: &dyn Disk) -> io::Result<Whose> {
    let entries = disk.list("")?;
    // Files that tell that a folder is a store.
    let is_sign = |entry: &Entry| match entry.name.as_str() {
        NAME | RESTORING | JOURNAL | PREVIOUS => !entry.is_folder,
        CATALOGUE => entry.is_folder,
        _ => false,
    };
    if entries.iter().any(is_sign) {
        return Ok(Whose::Ours);
    }
    let is_foreign = |entry: &Entry| {
        let name = entry.name.as_str();
        !BEFORE.contains(&name) && name != LOST_AND_FOUND && !name.starts_with('.')
    };
    // A file system lists names in any order.
    let foreign = entries.into_iter().filter(is_foreign).map(|entry| entry.name).min();
    Ok(foreign.map_or(Whose::Nobodys, Whose::Foreign))
}

/// The damage of the format file; a store of another version is refused.
pub(crate) fn check_version(disk: &dyn Disk) -> Result<Option<&'static str>> {
    let folder = disk.folder().display();
    match read(disk) {
        Ok(Format { version: VERSION, .. }) => Ok(None),
        Ok(Format { version, .. }) => Err(Error::foreign(format!(
            "the data folder {folder} has format {version}, and this memtape reads format \
             {VERSION}: use the memtape that wrote it, or choose another folder"
        ))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some("is missing")),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(Some(DAMAGED)),
        Err(error) => Err(error).during(|| format!("the format of {folder} cannot be read")),
    }
}

const DAMAGED: &str = "makes no sense";

/// Refuses a folder in which a restore did not end.
pub(crate) fn is_restored(disk: &dyn Disk) -> Result<()> {
    let folder = disk.folder().display();
    match disk.open(RESTORING) {
        Ok(_) => Err(Error::foreign(format!(
            "a restore into {folder} did not end: remove what is in the folder, and restore again"
        ))),
        Err(_) => Ok(()),
    }
}

/// Refuses a folder whose store was moved to a cluster.
fn is_here(disk: &dyn Disk) -> Result<()> {
    let folder = disk.folder().display();
    match read(disk) {
        Ok(Format { moved_to: Some(url), .. }) => Err(Error::foreign(format!(
            "the store in {folder} was moved to {url}: start the coordinator with --cluster {url}"
        ))),
        _ => Ok(()),
    }
}

/// Makes the folder a store of this version; the catalogue must not be open.
pub(crate) fn settle(disk: &Arc<dyn Disk>) -> Result<()> {
    let shown = disk.folder().display();
    is_restored(&**disk)?;
    is_here(&**disk)?;
    if let Some(why) = check_version(&**disk)? {
        if why == DAMAGED {
            tracing::warn!("the store's file {NAME} was damaged and is written again");
        }
        write(&**disk, &new(&**disk))
            .during(|| format!("the data folder {shown} cannot be written"))?;
    }
    let is_made = (|| {
        disk.make_folder(segments::FOLDER)?;
        disk.make_folder(log::FOLDER)?;
        // Names that the process before made, and had no time to sync, are relied on from now on.
        disk.sync_folder(segments::FOLDER)?;
        disk.sync_folder(log::FOLDER)?;
        disk.sync_folder("")
    })();
    is_made.during(|| format!("the data folder {shown} cannot be written"))
}

fn new(disk: &dyn Disk) -> Format {
    let mut id = [0; 16];
    if !disk.is_simulated() {
        // Without random numbers the time serves.
        let _ = ring::rand::SystemRandom::new().fill(&mut id);
    }
    let made_wall_ns = clock::now().wall_ns;
    let hash = blake3::hash(&[id.as_slice(), &made_wall_ns.to_le_bytes()].concat()).to_hex();
    let id = hash[..32].to_string();
    let (snapshots_url, restored_from, moved_to) = (None, None, None);
    Format {
        version: VERSION,
        made_wall_ns,
        id,
        snapshots_url,
        has_inventory: false,
        restored_from,
        moved_to,
    }
}

/// Makes a folder into which files were restored a store of its own.
pub(crate) fn restored(
    disk: &dyn Disk,
    from: &str,
    snapshots_url: Option<String>,
) -> io::Result<()> {
    let restored_from = Some(from.to_string());
    write(disk, &Format { restored_from, snapshots_url, ..new(disk) })
}

/// First entry of a folder, without the files that file systems and shells leave.
pub(crate) fn first_in(disk: &dyn Disk) -> io::Result<Option<String>> {
    let mut names = disk.list("")?.into_iter().map(|entry| entry.name);
    Ok(names.find(|name| name != LOST_AND_FOUND && !name.starts_with('.')))
}

/// Writes down that there is an inventory.
pub(crate) fn set_has_inventory(disk: &dyn Disk) -> io::Result<()> {
    let format = read(disk)?;
    match format.has_inventory {
        true => Ok(()),
        false => write(disk, &Format { has_inventory: true, ..format }),
    }
}

/// Writes down where the store was moved to.
#[cfg(feature = "cluster")]
pub(crate) fn set_moved(disk: &dyn Disk, url: &str) -> io::Result<()> {
    let format = read(disk)?;
    write(disk, &Format { moved_to: Some(url.to_string()), ..format })
}

/// Writes down where snapshots go.
pub(crate) fn set_snapshots_url(disk: &dyn Disk, url: &str) -> io::Result<()> {
    let mut format = read(disk)?;
    if format.snapshots_url.as_deref() != Some(url) {
        format.snapshots_url = Some(url.to_string());
        write(disk, &format)?;
    }
    Ok(())
}

/// The whole file.
pub(crate) fn read(disk: &dyn Disk) -> io::Result<Format> {
    let damaged = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    serde_json::from_slice(&read_all(disk, NAME)?).map_err(damaged)
}

pub(crate) fn write(disk: &dyn Disk, format: &Format) -> io::Result<()> {
    let mut text = serde_json::to_vec(format).map_err(io::Error::other)?;
    text.push(b'\n');
    replace(disk, NAME, &text)
}
