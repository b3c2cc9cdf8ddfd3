//! Step records in columns: a few hundred records of one series become one small value.
//!
//! Each column is written as differences to the record before, in a variable-length code; most
//! columns of a training job hardly change from step to step. zstd then compresses regular
//! patterns. Differences wrap around, so that any numbers at all come back as they were.

use std::cell::RefCell;
use std::io;

use zstd::bulk::{Compressor, Decompressor};

use crate::records::StepRecord;

/// Records in one block, at most. Even if nothing compresses, a block then stays below 128 KiB,
/// from where on sled keeps values in files of their own that it never syncs.
pub(crate) const ROWS_MAX: usize = 512;

/// Version of the layout, the first byte of a block.
const VERSION: u8 = 1;

/// Numbers of a row.
pub const COLUMNS: usize = StepRecord::NUMBERS;

/// Which columns are wanted.
pub type Columns = [bool; COLUMNS];

/// All columns.
pub const ALL_COLUMNS: Columns = [true; COLUMNS];

/// Columns of the largest possible block, unpacked: ten bytes a number.
const COLUMNS_BYTES_MAX: usize = ROWS_MAX * COLUMNS * 10 + 16;

/// zstd's own default.
const ZSTD_LEVEL: i32 = 3;

/// Packs at most [`ROWS_MAX`] records; further records are the caller's mistake and left out.
pub(crate) fn pack(rows: &[StepRecord]) -> Vec<u8> {
    let rows = &rows[..rows.len().min(ROWS_MAX)];
    let mut columns = Vec::with_capacity(rows.len() * COLUMNS * 2);
    put_number(&mut columns, rows.len() as u64);
    for column in 0..COLUMNS {
        let mut before = 0;
        for row in rows {
            let value = row.to_numbers()[column];
            let difference = value.wrapping_sub(before) as i64;
            put_number(&mut columns, zigzag(difference));
            before = value;
        }
    }
    let mut block = vec![VERSION];
    // Compressing a slice in memory cannot fail; the columns themselves would do if it did.
    match compress(&columns) {
        Ok(packed) => block.extend(packed),
        Err(_) => block = [vec![0], columns].concat(),
    }
    block
}

/// Takes a block apart; none when it is damaged.
pub(crate) fn unpack(block: &[u8]) -> Option<Vec<StepRecord>> {
    unpack_columns(block, &ALL_COLUMNS)
}

/// Takes these columns of a block; the numbers of the others are 0. None when it is damaged.
pub(crate) fn unpack_columns(block: &[u8], wanted: &Columns) -> Option<Vec<StepRecord>> {
    let columns = match block.split_first()? {
        (&VERSION, packed) => decompress(packed).ok()?,
        (0, columns) => columns.to_vec(),
        _ => return None,
    };
    let mut columns = columns.as_slice();
    let count = usize::try_from(take_number(&mut columns)?).ok().filter(|&n| n <= ROWS_MAX)?;
    let mut rows = vec![[0; COLUMNS]; count];
    let mut left = COLUMNS * count;
    for (column, _) in wanted.iter().enumerate().filter(|(_, is_wanted)| **is_wanted) {
        skip_numbers(&mut columns, left.checked_sub((COLUMNS - column) * count)?)?;
        left = (COLUMNS - column - 1) * count;
        let mut before = 0_u64;
        for row in &mut rows {
            let difference = unzigzag(take_number(&mut columns)?);
            before = before.wrapping_add(difference as u64);
            row[column] = before;
        }
    }
    skip_numbers(&mut columns, left)?;
    columns.is_empty().then(|| rows.into_iter().map(StepRecord::from_numbers).collect())
}

thread_local! {
    /// Kept, because making one costs more than a block: each has tables of its own.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

fn compress(columns: &[u8]) -> io::Result<Vec<u8>> {
    COMPRESSOR.with_borrow_mut(|kept| {
        let compressor = match kept.take() {
            Some(compressor) => compressor,
            None => Compressor::new(ZSTD_LEVEL)?,
        };
        kept.insert(compressor).compress(columns)
    })
}

fn decompress(packed: &[u8]) -> io::Result<Vec<u8>> {
    DECOMPRESSOR.with_borrow_mut(|kept| {
        let decompressor = match kept.take() {
            Some(decompressor) => decompressor,
            None => Decompressor::new()?,
        };
        kept.insert(decompressor).decompress(packed, COLUMNS_BYTES_MAX)
    })
}

/// Appends records, each as its differences to the previous one: larger than a block, and nearly
/// free.
pub fn put_rows(out: &mut Vec<u8>, rows: &[StepRecord]) {
    put_number(out, rows.len() as u64);
    let mut before = [0; COLUMNS];
    for row in rows {
        let values = row.to_numbers();
        for (value, before) in values.iter().zip(before) {
            put_number(out, zigzag(value.wrapping_sub(before) as i64));
        }
        before = values;
    }
}

/// Takes rows that [`put_rows`] appended from the front; none when they are damaged.
pub fn take_rows(bytes: &mut &[u8]) -> Option<Vec<StepRecord>> {
    let count = take_number(bytes)?;
    let mut before = [0_u64; COLUMNS];
    let mut rows = Vec::new();
    for _ in 0..count {
        for before in &mut before {
            *before = before.wrapping_add(unzigzag(take_number(bytes)?) as u64);
        }
        rows.push(StepRecord::from_numbers(before));
    }
    Some(rows)
}

/// Small numbers of either sign become small numbers.
fn zigzag(difference: i64) -> u64 {
    ((difference << 1) ^ (difference >> 63)) as u64
}

fn unzigzag(number: u64) -> i64 {
    ((number >> 1) as i64) ^ -((number & 1) as i64)
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Skips numbers: each ends with the first byte below 0x80.
fn skip_numbers(bytes: &mut &[u8], count: usize) -> Option<()> {
    let Some(last) = count.checked_sub(1) else { return Some(()) };
    let mut ends = bytes.iter().enumerate().filter(|(_, byte)| **byte < 0x80);
    let (at, _) = ends.nth(last)?;
    *bytes = bytes.get(at + 1..)?;
    Some(())
}

fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_row() -> impl Strategy<Value = StepRecord> {
        let number = prop_oneof![any::<u64>(), 0..1000_u64, Just(u64::MAX), Just(1_u64 << 34)];
        proptest::collection::vec(number, COLUMNS).prop_map(|numbers| {
            StepRecord::from_numbers(numbers.try_into().expect("the strategy says how many"))
        })
    }

    proptest! {
        #[test]
        fn any_rows_are_read_back(rows in proptest::collection::vec(any_row(), 0..60)) {
            let block = pack(&rows);
            prop_assert!(block.len() < 128 << 10);
            prop_assert_eq!(unpack(&block), Some(rows));
        }

        #[test]
        fn chosen_columns_are_those_of_the_whole_block(
            rows in proptest::collection::vec(any_row(), 0..60),
            wanted in proptest::collection::vec(any::<bool>(), COLUMNS),
        ) {
            let wanted: Columns = wanted.try_into().expect("the strategy says how many");
            let of = |row: &StepRecord| {
                let mut numbers = row.to_numbers();
                numbers.iter_mut().zip(wanted).for_each(|(of, wanted)| *of *= u64::from(wanted));
                StepRecord::from_numbers(numbers)
            };
            let expected: Vec<StepRecord> = rows.iter().map(of).collect();
            let block = pack(&rows);
            prop_assert_eq!(unpack_columns(&block, &wanted), Some(expected));
            for length in 0..block.len() {
                prop_assert_eq!(unpack_columns(&block[..length], &wanted), None);
            }
        }

        #[test]
        fn any_logged_rows_are_read_back(
            rows in proptest::collection::vec(any_row(), 0..6),
            rest in proptest::collection::vec(any::<u8>(), 0..9),
        ) {
            let mut bytes = Vec::new();
            put_rows(&mut bytes, &rows);
            let whole = bytes.len();
            bytes.extend(&rest);
            let mut left = bytes.as_slice();
            prop_assert_eq!(take_rows(&mut left), Some(rows));
            prop_assert_eq!(left, rest.as_slice());
            for length in 0..whole {
                prop_assert_eq!(take_rows(&mut &bytes[..length]), None);
            }
        }

        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = unpack(&bytes);
            let _ = take_rows(&mut bytes.as_slice());
            let _ = unpack_columns(&[vec![0], bytes.clone()].concat(), &[false; COLUMNS]);
            let _ = unpack(&[vec![0], bytes].concat());
        }

        #[test]
        fn a_cut_block_is_refused(rows in proptest::collection::vec(any_row(), 1..20)) {
            let block = pack(&rows);
            for length in 0..block.len() {
                prop_assert_eq!(unpack(&block[..length]), None);
            }
        }
    }

    #[test]
    fn the_worst_block_is_below_the_size_that_sled_does_not_sync() {
        let mut number = 0_u64;
        let mut any = || {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            number ^ (number >> 29)
        };
        let rows: Vec<StepRecord> = (0..ROWS_MAX)
            .map(|_| StepRecord::from_numbers([(); COLUMNS].map(|()| any())))
            .collect();
        let block = pack(&rows);
        assert!((48 << 10..128 << 10).contains(&block.len()), "{}", block.len());
        assert_eq!(unpack(&block), Some(rows));
    }

    #[test]
    fn a_bomb_is_refused() {
        let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 3).unwrap();
        assert_eq!(unpack(&[vec![VERSION], bomb].concat()), None);
    }

    #[test]
    fn a_typical_block_is_small() {
        let rows: Vec<StepRecord> = (0..ROWS_MAX as u64)
            .map(|step| StepRecord {
                first_step: step,
                last_step: step,
                end_wall_ns: (step * 250_000_000 + step * 7919 % 1_000_000) as i64,
                floor_allocated: 20 << 30,
                peak_allocated: (60 << 30) + (step % 3) * 512,
                end_allocated: 20 << 30,
                floor_reserved: 64 << 30,
                peak_reserved: 64 << 30,
                end_reserved: 64 << 30,
                blocks: 4321,
                allocs: step * 5000,
                frees: step * 5000,
                ..StepRecord::default()
            })
            .collect();
        let bytes_per_row = pack(&rows).len() / rows.len();
        assert!(bytes_per_row <= 8, "{bytes_per_row} bytes a record");
    }
}
