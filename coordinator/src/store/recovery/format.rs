//! The version of what lies in a store's folder, and the way from older ones.
//!
//! Version 3 has records that say their own version (`migration.rs`). Version 2 is the same but for
//! that, so only its `FORMAT` file is written again. Version 1 had no `FORMAT` file; it kept packed
//! steps in the catalogue alone, and their log in one file; since version 2 they are in files of
//! their own. Migrating version 1 writes the new files beside the
//! old ones, puts them in place with one rename, and only then says so and removes the old ones: a
//! crash at any point leaves a store of either version, whole.

use std::io;
use std::sync::Arc;

use ring::rand::SecureRandom as _;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::store::blobs::local::FOLDER as BLOBS;
use crate::store::catalogue::{Catalogue, STEPS_PREFIX};
use crate::store::disk::files::{Disk, Entry, read_all, write_synced};
use crate::store::disk::frames::{self, Frames};
use crate::store::error::{During, Error, Result};
use crate::store::migration;
use crate::store::steps::block::{ROWS_MAX, pack, unpack};
use crate::store::steps::log::{self, Rows};
use crate::store::steps::segments::{self, SERIES_BYTES, series_of, stretch};

/// What this program writes.
pub(crate) const VERSION: u32 = migration::FORMAT as u32;

/// The first version whose steps lie in files of their own.
const VERSION_OF_FILES: u32 = 2;

/// Where the version stands.
pub(crate) const NAME: &str = "FORMAT";

/// Where version 2 is made from version 1.
const ASIDE: &str = "steps.new";

/// The log of steps of version 1.
const OLD_LOG: &str = "steps.log";

/// What lies in a store's folder, of any version; and what is put aside in it.
const NAMES: [&str; 11] = [
    NAME,
    "FORMAT.new",
    "lock",
    JOURNAL,
    "journal.new",
    CATALOGUE,
    segments::FOLDER,
    ASIDE,
    log::FOLDER,
    OLD_LOG,
    BLOBS,
];
const ASIDES: [&str; 3] = ["journal.damaged-", "catalogue.damaged-", "catalogue.before-rebuild-"];

/// What a folder without a store may hold, too: file systems make it.
const LOST_AND_FOUND: &str = "lost+found";

/// Files that tell that a folder is a store.
const JOURNAL: &str = "journal";
const CATALOGUE: &str = "catalogue";

/// The file's contents: one line of JSON.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Format {
    pub(crate) version: u32,
    /// When the folder got this version.
    #[serde(default)]
    pub(crate) made_wall_ns: i64,
    /// Tells stores apart that share a place for bodies.
    #[serde(default)]
    pub(crate) id: String,
    /// Where bodies go, if not to this folder.
    #[serde(default)]
    pub(crate) bodies_url: Option<String>,
}

impl Format {
    /// True when steps lie in files of their own.
    pub(crate) fn has_files(&self) -> bool {
        self.version >= VERSION_OF_FILES
    }
}

/// What the file says.
#[derive(Debug)]
pub(crate) enum Found {
    Version(Format),
    /// It is there, and makes no sense.
    Damaged,
    Missing,
}

/// Reads the file.
pub(crate) fn find(disk: &dyn Disk) -> io::Result<Found> {
    match read_all(disk, NAME) {
        Ok(text) => Ok(match serde_json::from_slice::<Format>(&text) {
            Ok(format) => Found::Version(format),
            Err(_) => Found::Damaged,
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::Missing),
        Err(error) => Err(error),
    }
}

/// Whose a folder is.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Whose {
    /// There is a store, in whatever state.
    Ours,
    /// There is none, and there may be one.
    Nobodys,
    /// There is none, and something else, of this name.
    Foreign(String),
}

/// Tells whose a folder is.
pub(crate) fn whose(disk: &dyn Disk) -> io::Result<Whose> {
    let entries = disk.list("")?;
    let is_sign = |entry: &Entry| match entry.name.as_str() {
        NAME | JOURNAL => !entry.is_folder,
        CATALOGUE => entry.is_folder,
        _ => false,
    };
    if entries.iter().any(is_sign) {
        return Ok(Whose::Ours);
    }
    let is_known = |name: &str| {
        NAMES.contains(&name)
            || ASIDES.iter().any(|aside| name.starts_with(aside))
            || name == LOST_AND_FOUND
            || name.starts_with('.')
    };
    let foreign = entries.into_iter().find(|entry| !is_known(&entry.name));
    Ok(foreign.map_or(Whose::Nobodys, |entry| Whose::Foreign(entry.name)))
}

/// The error for a store that is too new.
pub(crate) fn too_new(disk: &dyn Disk, version: u32) -> Error {
    Error::TooNew { folder: disk.folder().to_path_buf(), version, known: VERSION }
}

/// Makes the folder one of this version; the catalogue must not be open. Says from which version
/// it was migrated.
pub(crate) fn settle(disk: &Arc<dyn Disk>) -> Result<Option<u32>> {
    let shown = disk.folder().display();
    let found = find(&**disk).during(|| format!("the format of {shown} cannot be read"))?;
    let names = disk.list("").during(|| format!("the data folder {shown} cannot be read"))?;
    let has = |name: &str| names.iter().any(|entry| entry.name == name);
    let mut migrated = None;
    match found {
        Found::Version(Format { version: VERSION, .. }) => {}
        Found::Version(newer) if newer.version > VERSION => {
            return Err(too_new(&**disk, newer.version));
        }
        // Records say their own versions: nothing else has to be written.
        Found::Version(old) if old.has_files() => {
            migrated = Some(old.version);
            write(&**disk, &Format { version: VERSION, ..old })
                .during(|| format!("the data folder {shown} cannot be written"))?;
        }
        Found::Version(old) => {
            let (folder, version) = (disk.folder().to_path_buf(), old.version);
            return Err(Error::NoSuchFormat { folder, version });
        }
        found => {
            if matches!(found, Found::Damaged) {
                tracing::warn!("the store's file {NAME} was damaged and is written again");
            }
            // The files of version 2 are put in place before it is said.
            if !has(segments::FOLDER) && (has("journal") || has("catalogue")) {
                migrate(disk).during(|| {
                    format!("the data folder {shown} cannot be brought to format {VERSION}")
                })?;
                migrated = Some(1);
            }
            write(&**disk, &new(&**disk))
                .during(|| format!("the data folder {shown} cannot be written"))?;
        }
    }
    let is_made = (|| {
        disk.make_folder(segments::FOLDER)?;
        disk.make_folder(log::FOLDER)?;
        if has(OLD_LOG) {
            disk.remove(OLD_LOG)?;
        }
        // Names that the process before made, and had no time to sync, are relied on from now on.
        disk.sync_folder(segments::FOLDER)?;
        disk.sync_folder(log::FOLDER)?;
        disk.sync_folder("")
    })();
    is_made.during(|| format!("the data folder {shown} cannot be written"))?;
    Ok(migrated)
}

fn new(disk: &dyn Disk) -> Format {
    let mut id = [0; 16];
    if !disk.is_simulated() {
        // Without random numbers the time serves.
        let _ = ring::rand::SystemRandom::new().fill(&mut id);
    }
    let made_wall_ns = clock::now().wall_ns;
    let hash = blake3::hash(&[id.as_slice(), &made_wall_ns.to_le_bytes()].concat()).to_hex();
    Format { version: VERSION, made_wall_ns, id: hash[..32].to_string(), bodies_url: None }
}

/// Writes down where bodies go.
pub(crate) fn set_bodies_url(disk: &dyn Disk, url: &str) -> io::Result<()> {
    let mut format = read(disk)?;
    if format.bodies_url.as_deref() != Some(url) {
        format.bodies_url = Some(url.to_string());
        write(disk, &format)?;
    }
    Ok(())
}

/// The whole file.
pub(crate) fn read(disk: &dyn Disk) -> io::Result<Format> {
    serde_json::from_slice(&read_all(disk, NAME)?).map_err(io::Error::other)
}

fn write(disk: &dyn Disk, format: &Format) -> io::Result<()> {
    let mut text = serde_json::to_vec(format).map_err(io::Error::other)?;
    text.push(b'\n');
    let aside = format!("{NAME}.new");
    write_synced(disk, &aside, &text)?;
    disk.rename(&aside, NAME)?;
    disk.sync_folder("")
}

fn migrate(disk: &Arc<dyn Disk>) -> Result<()> {
    tracing::info!("the store has format 1 and is brought to format {VERSION}");
    let now = clock::now();
    disk.make_folder(ASIDE)?;
    for entry in disk.list(ASIDE)? {
        disk.remove(&format!("{ASIDE}/{}", entry.name))?;
    }
    let mut files = Files { disk, open: None, next: 0 };
    // A catalogue that cannot be opened has lost its steps; records come from the journal.
    let (catalogue, _) = Catalogue::open(&**disk, "catalogue", now.wall_ns)?;
    let mut failed = Ok(());
    let scanned = catalogue.scan(&[STEPS_PREFIX], |key, block| {
        failed = old_entry(key, block).map_or(Ok(()), |entry| files.append(&entry));
        failed.is_ok()
    });
    failed?;
    if let Err(why) = scanned {
        tracing::error!("some step records of the past are lost: {why}");
    }
    let now_stretch = stretch(now.wall_ns);
    for (series, rows) in old_log(&**disk)? {
        for rows in rows.chunks(ROWS_MAX) {
            let block = pack(rows);
            files.append(&segments::Entry::Block {
                stretch: now_stretch,
                series,
                block: &block,
            })?;
        }
    }
    files.finish()?;
    disk.sync_folder(ASIDE)?;
    disk.rename(ASIDE, segments::FOLDER)?;
    disk.sync_folder("")?;
    Ok(())
}

/// A block of version 1: kind, stretch, series and first step were the key.
fn old_entry<'a>(key: &[u8], block: &'a [u8]) -> Option<segments::Entry<'a>> {
    let (_, rest) = key.split_first()?;
    let (stretch, rest) = rest.split_first_chunk()?;
    let (series, rest) = rest.split_at_checked(SERIES_BYTES)?;
    if rest.len() != 8 {
        return None;
    }
    let stretch = u32::from_be_bytes(*stretch);
    Some(segments::Entry::Block { stretch, series: series_of(series)?, block })
}

/// The log of version 1: a series, and a small block.
fn old_log(disk: &dyn Disk) -> io::Result<Rows> {
    let mut rows = Rows::new();
    let read = frames::read(disk, OLD_LOG, 0, |_, payload| {
        if let Some((key, block)) = payload.split_at_checked(SERIES_BYTES)
            && let (Some(key), Some(more)) = (series_of(key), unpack(block))
        {
            rows.entry(key).or_default().extend(more);
        }
    });
    match read {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(rows),
    }
}

/// The files that migration writes: of one hour each, as far as time runs forward.
struct Files<'a> {
    disk: &'a Arc<dyn Disk>,
    open: Option<(u32, Frames)>,
    next: u32,
}

impl Files<'_> {
    fn append(&mut self, entry: &segments::Entry<'_>) -> io::Result<()> {
        let segments::Entry::Block { stretch, .. } = *entry else { return Ok(()) };
        let is_over = self.open.as_ref().is_none_or(|(first, frames)| {
            !(*first..first.saturating_add(segments::SEGMENT_STRETCHES)).contains(&stretch)
                || frames.len_bytes() > segments::SEGMENT_BYTES_MAX
        });
        if is_over {
            self.finish()?;
            let name = segments::name(self.next).replacen(segments::FOLDER, ASIDE, 1);
            self.next += 1;
            self.open = Some((stretch, Frames::open(&**self.disk, &name, |_, _| {})?.0));
        }
        match &mut self.open {
            Some((_, frames)) => frames.append([entry.encode().as_slice()]),
            None => Ok(()),
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        self.open.take().map_or(Ok(()), |(_, frames)| frames.sync())
    }
}
