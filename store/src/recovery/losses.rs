//! Losses: compares the files that the inventory expects with the existing files.
//!
//! A file that is gone or shorter than it was is a loss. Damage inside a file is found where the
//! file is read. Nothing is changed here.

use std::fmt;
use std::io;

use crate::inventory::{Expected, Loss, NAME, Part};
use crate::journal::JOURNAL;
use crate::steps::{log, segments};
use memtape_disk::files::Disk;

impl fmt::Display for Part {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Journal => formatter.write_str(JOURNAL),
            Self::Log(number) => formatter.write_str(&log::name(*number)),
            Self::Steps(number) => formatter.write_str(&segments::name(*number)),
            Self::Inventory => formatter.write_str(NAME),
        }
    }
}

impl Part {
    /// The kind of the file, as metrics name it.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Journal => JOURNAL,
            Self::Log(_) => log::FOLDER,
            Self::Steps(_) => segments::FOLDER,
            Self::Inventory => NAME,
        }
    }
}

impl Loss {
    /// Description of the loss, behind the name of the part.
    pub fn what(&self) -> String {
        let Self { durable, left, rows, .. } = self;
        let what_steps = match (left, rows) {
            (None, 0) => "the steps in it are lost".to_string(),
            (None, rows) => format!("{rows} steps are lost"),
            (Some(_), 0) => "the steps at its end are lost".to_string(),
            (Some(_), rows) => format!("some of its {rows} steps are lost"),
        };
        match (self.part, left) {
            (Part::Inventory, _) => {
                "is gone: whether other files are gone is not known".to_string()
            }
            (Part::Journal, _) => {
                let (left, lost) = (left.unwrap_or(0), self.changes());
                format!("ends at change {left} of {durable}: {lost} changes of records are lost")
            }
            (_, None) => format!("is gone: {what_steps}"),
            (_, Some(left)) => {
                format!("was cut from {durable} to {left} bytes: {what_steps}")
            }
        }
    }

    /// The loss of the inventory.
    pub(crate) fn of_inventory() -> Self {
        Self { part: Part::Inventory, durable: 0, left: None, rows: 0, found_wall_ns: 0 }
    }

    /// Changes of the journal that are lost.
    pub fn changes(&self) -> u64 {
        self.durable.saturating_sub(self.left.unwrap_or(0))
    }
}

/// Compares the files of steps with the inventory; the journal is compared when it is read.
pub(crate) fn find(disk: &dyn Disk, expected: &Expected) -> io::Result<Vec<Loss>> {
    let mut losses = Vec::new();
    for (&part, extent) in &expected.files {
        let left = length(disk, part)?;
        let is_lost = match left {
            // An empty file is no loss.
            None => extent.bytes > 0 && !is_aside(disk, part),
            Some(left) => left < extent.bytes,
        };
        if is_lost && part != Part::Journal {
            let (durable, rows) = (extent.bytes, extent.rows);
            losses.push(Loss { part, durable, left, rows, found_wall_ns: 0 });
        }
    }
    Ok(losses)
}

/// Is a loss that was found before still one? Its file may have been put back.
pub(crate) fn is_lost_still(disk: &dyn Disk, loss: &Loss) -> io::Result<bool> {
    match loss.part {
        Part::Journal | Part::Inventory => Ok(true),
        part => Ok(length(disk, part)?.is_none_or(|left| left < loss.durable)),
    }
}

/// Compares the journal with the inventory.
pub(crate) fn journal(expected: &Expected, left: u64) -> Option<Loss> {
    let (part, durable) = (Part::Journal, expected.extent(Part::Journal).bytes);
    let loss = Loss { part, durable, left: Some(left), rows: 0, found_wall_ns: 0 };
    (left < durable).then_some(loss)
}

fn length(disk: &dyn Disk, part: Part) -> io::Result<Option<u64>> {
    match disk.open(&part.to_string()).and_then(|file| file.len_bytes()) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Was a damaged file of steps replaced by its whole records, and kept under another name?
fn is_aside(disk: &dyn Disk, part: Part) -> bool {
    let name = part.to_string();
    let begin = name.rsplit('/').next().map(|name| format!("{name}.damaged-"));
    let entries = disk.list(segments::FOLDER).unwrap_or_default();
    begin.is_some_and(|begin| entries.iter().any(|entry| entry.name.starts_with(&begin)))
}
