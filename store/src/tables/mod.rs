//! Tables of a whole store, for questions about many jobs: Parquet files, which DuckDB, pandas and
//! Spark read.
//!
//! A table is a list of columns (`columns.rs`): name, kind, meaning, and the value of a record. The
//! schema of the file and docs/reference/tables.md are made of that list. `file.rs` writes a file;
//! only it knows the format. Tables hold no tokens and no audit. The caller opens the store.

mod columns;
#[cfg_attr(not(feature = "tables"), path = "no_file.rs")]
mod file;

use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;

use crate::encoding::Loaded;
use crate::error::{During, Error, Result};
use crate::handle::Store;
use crate::records::{ActionRecord, AttemptRecord, IncidentRecord, RankRecord, SeriesKey};
use crate::tables::columns::{DeviceRow, StepRow};
use crate::tables::file::TableFile;

/// Rows of each table that were written.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, serde::Serialize)]
pub struct TableRows {
    /// Rows of `attempts.parquet`.
    pub attempts: u64,
    /// Rows of `ranks.parquet`.
    pub ranks: u64,
    /// Rows of `devices.parquet`.
    pub devices: u64,
    /// Rows of `steps.parquet`.
    pub steps: u64,
    /// Rows of `incidents.parquet`.
    pub incidents: u64,
    /// Rows of `actions.parquet`.
    pub actions: u64,
}

/// Writes the tables of a store into a folder that is there. A table is written in the folder
/// `aside`, which no other call uses and lies on the same file system; it replaces that of an
/// earlier call when it is durable. Takes memory for the longest series: 112 bytes a record.
/// Blocks.
///
/// # Errors
/// A file cannot be written, or the steps of the store cannot be read.
pub fn write_tables(
    store: &Store,
    loaded: &Loaded,
    aside: &Path,
    folder: &Path,
) -> Result<TableRows> {
    let devices = || loaded.ranks.iter().flat_map(DeviceRow::of_rank);
    let to = (aside, folder);
    Ok(TableRows {
        attempts: table(to, loaded.attempts.iter().cloned())?,
        ranks: table(to, loaded.ranks.iter().cloned())?,
        devices: table(to, devices())?,
        steps: steps(store, devices(), to)?,
        incidents: table(to, loaded.incidents.iter().cloned())?,
        actions: table(to, loaded.actions.iter().cloned())?,
    })
}

/// The page that documents the columns of all tables.
pub fn tables_page() -> String {
    let mut page = String::from(
        "# Tables\n\nMade from the columns in `store/src/tables/columns.rs` by a test; do not edit \
         this file.\n`memtape store export --parquet DIR` writes these tables: \
         [Questions about many jobs](../fleet.md).\nTimes are UTC, in microseconds. A value that \
         is not known is null.\n",
    );
    add_columns::<AttemptRecord>(&mut page);
    add_columns::<RankRecord>(&mut page);
    add_columns::<DeviceRow>(&mut page);
    add_columns::<StepRow>(&mut page);
    add_columns::<IncidentRecord>(&mut page);
    add_columns::<ActionRecord>(&mut page);
    page
}

fn add_columns<T: Row>(page: &mut String) {
    let _ =
        write!(page, "\n## {}.parquet\n\n| column | kind | meaning |\n|---|---|---|\n", T::TABLE);
    for Column { name, kind, meaning, .. } in T::columns() {
        let (kind, meaning) = (kind.name(), meaning.trim().trim_end_matches('.'));
        let _ = writeln!(page, "| `{name}` | {kind} | {meaning} |");
    }
}

/// The folder in which a table is written, and the one in which it belongs.
type Folders<'a> = (&'a Path, &'a Path);

fn table<T: Row>(to: Folders<'_>, rows: impl Iterator<Item = T>) -> Result<u64> {
    write(to, |file| {
        for row in rows {
            file.push(row)?;
        }
        Ok(())
    })
}

fn steps(store: &Store, devices: impl Iterator<Item = DeviceRow>, to: Folders<'_>) -> Result<u64> {
    write(to, |file| {
        for DeviceRow { serial, rank, totals, .. } in devices {
            let device = totals.device;
            for record in store.series(SeriesKey { serial, rank, device })? {
                file.push(StepRow { serial, rank, device, record })?;
            }
        }
        Ok(())
    })
}

/// Writes a table aside, and puts it into its folder when it is durable. Returns the number of its
/// rows.
fn write<T: Row>(
    to: Folders<'_>,
    fill: impl FnOnce(&mut TableFile<T>) -> Result<()>,
) -> Result<u64> {
    let name = format!("{}.parquet", T::TABLE);
    let (aside, path) = (to.0.join(&name), to.1.join(&name));
    let written = || {
        let mut file = TableFile::begin(File::create(&aside)?)?;
        fill(&mut file)?;
        let rows = file.end()?;
        std::fs::rename(&aside, &path)?;
        Ok::<_, Error>(rows)
    };
    written().during(|| format!("{} cannot be written", path.display()))
}

/// A record that is a row of a table.
pub(crate) trait Row: Sized + 'static {
    /// Name of the table.
    const TABLE: &'static str;

    /// Its columns, in order.
    fn columns() -> Vec<Column<Self>>;
}

/// A column of a table.
pub(crate) struct Column<T> {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// What it is, with the unit.
    pub(crate) meaning: &'static str,
    #[cfg_attr(not(feature = "tables"), expect(dead_code, reason = "only files have values"))]
    pub(crate) value: fn(&T) -> Value,
}

/// Kind of the values of a column.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// A number from 0 on.
    Count,
    /// A whole number.
    Number,
    /// Unix time; values in nanoseconds.
    Time,
    Text,
    /// True or false.
    Flag,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Count => "unsigned 64 bit",
            Self::Number => "signed 64 bit",
            Self::Time => "time",
            Self::Text => "text",
            Self::Flag => "true or false",
        }
    }
}

/// A value of a row; none where it is not known.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Number(Option<i64>),
    Text(Option<String>),
    Flag(bool),
}
