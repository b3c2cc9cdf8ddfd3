//! A table as a Parquet file, written in groups of rows.

use std::fs::File;
use std::io;
use std::mem::take;
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::column::writer::ColumnWriter;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;

use crate::error::{Error, Result};
use crate::tables::{Column, Kind, Row, Value};

/// Rows of a group.
const GROUP_ROWS_MAX: usize = 1 << 16;

/// Times are in microseconds: Spark reads no others, and DuckDB compares others with no `now()`.
const NS_PER_UNIT: i64 = 1000;

/// The file of a table.
pub(crate) struct TableFile<T> {
    writer: SerializedFileWriter<File>,
    columns: Vec<Column<T>>,
    /// Rows of the group that is not written yet.
    group: Vec<T>,
    rows: u64,
}

impl<T: Row> TableFile<T> {
    /// Begins a table.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn begin(file: File) -> Result<Self> {
        let columns = T::columns();
        let schema = Arc::new(parse_message_type(&schema(T::TABLE, &columns)).map_err(error)?);
        let level = ZstdLevel::try_new(1).map_err(error)?;
        let properties = WriterProperties::builder().set_compression(Compression::ZSTD(level));
        let writer = SerializedFileWriter::new(file, schema, Arc::new(properties.build()));
        Ok(Self { writer: writer.map_err(error)?, columns, group: Vec::new(), rows: 0 })
    }

    /// Adds a row.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn push(&mut self, row: T) -> Result<()> {
        self.group.push(row);
        if self.group.len() >= GROUP_ROWS_MAX { self.write_group().map_err(error) } else { Ok(()) }
    }

    /// Ends the table, makes it durable, and returns the number of its rows.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn end(mut self) -> Result<u64> {
        self.write_group().map_err(error)?;
        self.writer.into_inner().map_err(error)?.sync_all()?;
        Ok(self.rows)
    }

    fn write_group(&mut self) -> parquet::errors::Result<()> {
        let group = take(&mut self.group);
        if group.is_empty() {
            return Ok(());
        }
        let mut writer = self.writer.next_row_group()?;
        for Column { kind, value, .. } in &self.columns {
            if let Some(mut column) = writer.next_column()? {
                write_column(&mut column, *kind, group.iter().map(value))?;
                column.close()?;
            }
        }
        writer.close()?;
        self.rows += group.len() as u64;
        Ok(())
    }
}

/// Writes the values of a column.
fn write_column(
    column: &mut SerializedColumnWriter<'_>,
    kind: Kind,
    values: impl Iterator<Item = Value>,
) -> parquet::errors::Result<()> {
    let (mut numbers, mut texts, mut flags, mut is_there) = (vec![], vec![], vec![], vec![]);
    for value in values {
        // No time of a record is 1970: a 0 stands for one that is not known.
        let is_known = kind != Kind::Time || value != Value::Number(Some(0));
        let value = if is_known { value } else { Value::Number(None) };
        is_there.push(i16::from(!matches!(value, Value::Number(None) | Value::Text(None))));
        match value {
            Value::Number(ns) if kind == Kind::Time => {
                numbers.extend(ns.map(|ns| ns.div_euclid(NS_PER_UNIT)));
            }
            Value::Number(number) => numbers.extend(number),
            Value::Text(text) => texts.extend(text.map(|text| text.into_bytes().into())),
            Value::Flag(flag) => flags.push(flag),
        }
    }
    let is_there = Some(is_there.as_slice());
    match column.untyped() {
        ColumnWriter::Int64ColumnWriter(writer) => writer.write_batch(&numbers, is_there, None),
        ColumnWriter::ByteArrayColumnWriter(writer) => writer.write_batch(&texts, is_there, None),
        ColumnWriter::BoolColumnWriter(writer) => writer.write_batch(&flags, is_there, None),
        _ => Ok(0),
    }?;
    Ok(())
}

/// The schema of a table, as the library reads it.
fn schema<T>(table: &str, columns: &[Column<T>]) -> String {
    let column = |Column { name, kind, .. }: &Column<T>| match kind {
        Kind::Count => format!("OPTIONAL INT64 {name} (INTEGER(64,false));"),
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
