//! Tables of whole stores, for questions about many jobs: Parquet files, which DuckDB, pandas and
//! Spark read.
//!
//! A table is a list of columns (`columns.rs`): name, kind, meaning, and the value of a record. The
//! schema of the file and docs/reference/tables.md are made of that list. `file.rs` writes a file;
//! only it knows the format. `publishing.rs` writes tables into the bucket of a cluster. There, the
//! rows of all shards fit together: ids are unique, and so are numbers of attempts, which name
//! their shard. Tables hold no tokens and no audit. The caller opens the stores.

mod columns;
#[cfg_attr(not(feature = "tables"), path = "no_file.rs")]
mod file;
#[cfg(feature = "cluster")]
pub mod publishing;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

use memtape_core::placement::JobsShard;

use crate::encoding::decode;
use crate::error::{During, Result};
use crate::handle::Store;
use crate::records::{ActionRecord, AttemptRecord, IncidentRecord, RankRecord, Record, SeriesKey};
use crate::tables::columns::{DeviceRow, StepRow};
use crate::tables::file::TableFile;

/// Records that are read at once.
const RECORDS_MAX: usize = 256;

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
    /// Series that the table of steps lacks, whole or in part, because it is full; at most.
    #[serde(skip)]
    pub series_left_out: u64,
}

/// Tables that are being written.
pub struct Tables<W: Write + Send> {
    attempts: TableFile<AttemptRecord, W>,
    ranks: TableFile<RankRecord, W>,
    devices: TableFile<DeviceRow, W>,
    steps: TableFile<StepRow, W>,
    incidents: TableFile<IncidentRecord, W>,
    actions: TableFile<ActionRecord, W>,
    series_left_out: u64,
}

impl Tables<File> {
    /// Begins tables in this folder.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn in_folder(folder: &Path) -> Result<Self> {
        let file = |table: &str| {
            let path = folder.join(format!("{table}.parquet"));
            File::create(&path).during(|| format!("{} cannot be written", path.display()))
        };
        Self::begin(file)
    }

    /// Ends the tables, makes them durable, and puts them from their folder into another one on the
    /// same file system, where they replace earlier ones.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn end_in(self, from: &Path, to: &Path) -> Result<TableRows> {
        let rows = self.end(|file| Ok(file.sync_all()?))?;
        for table in table_names() {
            let name = format!("{table}.parquet");
            let moved = std::fs::rename(from.join(&name), to.join(&name));
            moved.during(|| format!("{} cannot be written", to.join(&name).display()))?;
        }
        Ok(rows)
    }
}

impl<W: Write + Send> Tables<W> {
    /// Begins all tables, each in the file that `file` makes for its name.
    ///
    /// # Errors
    /// A file cannot be made or written.
    pub(crate) fn begin(mut file: impl FnMut(&'static str) -> Result<W>) -> Result<Self> {
        Ok(Self {
            attempts: begun(&mut file)?,
            ranks: begun(&mut file)?,
            devices: begun(&mut file)?,
            steps: begun(&mut file)?,
            incidents: begun(&mut file)?,
            actions: begun(&mut file)?,
            series_left_out: 0,
        })
    }

    /// Adds the rows of a store, which has the jobs of this shard. The table of steps takes no
    /// further rows when it has `steps_bytes_max`: the newest attempts come first, and of a group
    /// of series the newest rows. `pause` is called between pieces of work, and ends it with its
    /// error. Blocks.
    ///
    /// # Errors
    /// A file cannot be written, or the store cannot be read.
    pub fn add(
        &mut self,
        store: &Store,
        shard: JobsShard,
        steps_bytes_max: u64,
        pause: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        records(store, pause, |attempt| self.attempts.push(attempt, shard))?;
        let mut series: BTreeMap<Reverse<u32>, BTreeSet<SeriesKey>> = BTreeMap::new();
        records(store, pause, |rank: &RankRecord| {
            for device in DeviceRow::of_rank(rank) {
                let (serial, rank, device_number) =
                    (device.serial, device.rank, device.totals.device);
                let key = SeriesKey { serial, rank, device: device_number };
                series.entry(Reverse(serial)).or_default().insert(key);
                self.devices.push(&device, shard)?;
            }
            self.ranks.push(rank, shard)
        })?;
        let is_full = |steps: &TableFile<_, _>| steps.bytes() >= steps_bytes_max;
        for of_attempt in series.values() {
            if is_full(&self.steps) {
                self.series_left_out += of_attempt.len() as u64;
                continue;
            }
            let taken = store.sweep(of_attempt, pause, &mut |key, records| {
                if is_full(&self.steps) {
                    return Ok(ControlFlow::Break(()));
                }
                let SeriesKey { serial, rank, device } = key;
                for record in records {
                    self.steps.push(&StepRow { serial, rank, device, record: *record }, shard)?;
                }
                Ok(ControlFlow::Continue(()))
            })?;
            self.series_left_out += (of_attempt.len() - taken) as u64;
        }
        records(store, pause, |incident| self.incidents.push(incident, shard))?;
        records(store, pause, |action| self.actions.push(action, shard))
    }

    /// Ends the tables. `close` gets each file.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(crate) fn end(self, mut close: impl FnMut(W) -> Result<()>) -> Result<TableRows> {
        let series_left_out = self.series_left_out;
        Ok(TableRows {
            attempts: ended(self.attempts, &mut close)?,
            ranks: ended(self.ranks, &mut close)?,
            devices: ended(self.devices, &mut close)?,
            steps: ended(self.steps, &mut close)?,
            incidents: ended(self.incidents, &mut close)?,
            actions: ended(self.actions, &mut close)?,
            series_left_out,
        })
    }
}

/// Names of the tables, in the order in which they are written.
pub(crate) fn table_names() -> [&'static str; 6] {
    [
        AttemptRecord::TABLE,
        RankRecord::TABLE,
        DeviceRow::TABLE,
        StepRow::TABLE,
        IncidentRecord::TABLE,
        ActionRecord::TABLE,
    ]
}

fn begun<T: Row, W: Write + Send>(
    file: &mut impl FnMut(&'static str) -> Result<W>,
) -> Result<TableFile<T, W>> {
    TableFile::begin(file(T::TABLE)?)
}

fn ended<T: Row, W: Write + Send>(
    table: TableFile<T, W>,
    close: &mut impl FnMut(W) -> Result<()>,
) -> Result<u64> {
    let ended = table.end().and_then(|(rows, file)| close(file).map(|()| rows));
    ended.during(|| format!("the table {} cannot be written", T::TABLE))
}

/// Reads the records of a kind, a few at a time.
fn records<R: Record>(
    store: &Store,
    pause: &mut dyn FnMut() -> Result<()>,
    mut take: impl FnMut(&R) -> Result<()>,
) -> Result<()> {
    let (mut from, end) = (vec![R::KIND], [R::KIND + 1]);
    loop {
        let (mut read, mut last) = (Vec::new(), None);
        store.shared.catalogue.scan_range(&from, &end, |key, value| {
            read.push(value.to_vec());
            last = (read.len() == RECORDS_MAX).then(|| key.to_vec());
            last.is_none()
        })?;
        for record in read.iter().filter_map(|value| decode(value)) {
            take(&record)?;
        }
        let Some(last) = last else { return Ok(()) };
        from = [last, vec![0]].concat();
        pause()?;
    }
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
    /// The number of an attempt within its store, from 0 on; in the table, within the cluster.
    Attempt,
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
            Self::Count | Self::Attempt => "unsigned 64 bit",
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
