//! A table as a Parquet file, written in groups of rows.

use std::io::{self, Write};
use std::mem::take;
use std::sync::Arc;

use memtape_core::placement::JobsShard;
use parquet::basic::{Compression, ZstdLevel};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;

use crate::error::{Error, Result};
use crate::tables::{Column, Kind, Row, Value};

/// Rows of a group.
const GROUP_ROWS_MAX: u64 = 1 << 16;

/// Times are in microseconds: Spark reads no others, and DuckDB compares others with no `now()`.
const NS_PER_UNIT: i64 = 1000;

/// The file of a table.
pub(crate) struct TableFile<T, W: Write + Send> {
    writer: SerializedFileWriter<W>,
    /// With the values of the group that is not written yet.
    columns: Vec<(Column<T>, Values)>,
    group_rows: u64,
    rows: u64,
}

/// Values of a column, by their types; nulls only in the last list.
#[derive(Default)]
struct Values {
    numbers: Vec<i64>,
    texts: Vec<ByteArray>,
    flags: Vec<bool>,
    is_there: Vec<i16>,
}

impl<T: Row, W: Write + Send> TableFile<T, W> {
    /// Begins a table.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn begin(file: W) -> Result<Self> {
        let columns = T::columns();
        let schema = Arc::new(parse_message_type(&schema(T::TABLE, &columns)).map_err(error)?);
        let level = ZstdLevel::try_new(1).map_err(error)?;
        let properties = WriterProperties::builder().set_compression(Compression::ZSTD(level));
        let writer = SerializedFileWriter::new(file, schema, Arc::new(properties.build()));
        let columns = columns.into_iter().map(|column| (column, Values::default())).collect();
        Ok(Self { writer: writer.map_err(error)?, columns, group_rows: 0, rows: 0 })
    }

    /// Adds a row of this shard.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn push(&mut self, row: &T, shard: JobsShard) -> Result<()> {
        for (Column { kind, value, .. }, values) in &mut self.columns {
            values.push(*kind, value(row), shard);
        }
        self.group_rows += 1;
        if self.group_rows >= GROUP_ROWS_MAX { self.write_group().map_err(error) } else { Ok(()) }
    }

    /// Bytes that were written so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.writer.bytes_written() as u64
    }

    /// Ends the table; the number of its rows, and the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn end(mut self) -> Result<(u64, W)> {
        self.write_group().map_err(error)?;
        Ok((self.rows, self.writer.into_inner().map_err(error)?))
    }

    fn write_group(&mut self) -> parquet::errors::Result<()> {
        let rows = take(&mut self.group_rows);
        if rows == 0 {
            return Ok(());
        }
        let mut writer = self.writer.next_row_group()?;
        for (_, values) in &mut self.columns {
            if let Some(mut column) = writer.next_column()? {
                take(values).write(&mut column)?;
                column.close()?;
            }
        }
        writer.close()?;
        self.rows += rows;
        Ok(())
    }
}

impl Values {
    fn push(&mut self, kind: Kind, value: Value, shard: JobsShard) {
        let value = match (kind, value) {
            // No time of a record is 1970: a 0 stands for one that is not known.
            (Kind::Time, Value::Number(Some(0))) => Value::Number(None),
            (Kind::Time, Value::Number(Some(ns))) => Value::from(ns.div_euclid(NS_PER_UNIT)),
            // As in ids of incidents, the remainder is the shard.
            (Kind::Attempt, Value::Number(Some(serial))) => {
                Value::from(serial * i64::from(shard.shards) + i64::from(shard.shard))
            }
            (_, value) => value,
        };
        self.is_there.push(i16::from(!matches!(value, Value::Number(None) | Value::Text(None))));
        match value {
            Value::Number(number) => self.numbers.extend(number),
            Value::Text(text) => self.texts.extend(text.map(|text| text.into_bytes().into())),
            Value::Flag(flag) => self.flags.push(flag),
        }
    }

    fn write(self, column: &mut SerializedColumnWriter<'_>) -> parquet::errors::Result<()> {
        let Self { numbers, texts, flags, is_there } = self;
        let is_there = Some(is_there.as_slice());
        match column.untyped() {
            ColumnWriter::Int64ColumnWriter(writer) => writer.write_batch(&numbers, is_there, None),
            ColumnWriter::ByteArrayColumnWriter(writer) => {
                writer.write_batch(&texts, is_there, None)
            }
            ColumnWriter::BoolColumnWriter(writer) => writer.write_batch(&flags, is_there, None),
            _ => Ok(0),
        }?;
        Ok(())
    }
}

/// The schema of a table, as the library reads it.
fn schema<T>(table: &str, columns: &[Column<T>]) -> String {
    let column = |Column { name, kind, .. }: &Column<T>| match kind {
        Kind::Count | Kind::Attempt => format!("OPTIONAL INT64 {name} (INTEGER(64,false));"),
        Kind::Number => format!("OPTIONAL INT64 {name};"),
        Kind::Time => format!("OPTIONAL INT64 {name} (TIMESTAMP(MICROS,true));"),
        Kind::Text => format!("OPTIONAL BYTE_ARRAY {name} (STRING);"),
        Kind::Flag => format!("OPTIONAL BOOLEAN {name};"),
    };
    let columns: Vec<String> = columns.iter().map(column).collect();
    format!("message {table} {{ {} }}", columns.join(" "))
}

fn error(error: ParquetError) -> Error {
    match error {
        ParquetError::External(cause) => match cause.downcast::<io::Error>() {
            Ok(cause) => Error::from(*cause),
            Err(cause) => Error::io(cause.to_string()),
        },
        error => Error::io(error.to_string()),
    }
}
