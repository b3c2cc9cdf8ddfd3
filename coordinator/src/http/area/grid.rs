//! Values of an account of many ranks in columns of steps, as they come, and what a screen shows of
//! them.
//!
//! All steps with the same quotient by 2^n are one column; n grows where there are too many
//! columns. Each rank has one value for each column, whatever is shown: the median of a column is
//! that of all ranks. The order of the values makes no difference, nor does one that comes twice.

use std::num::NonZeroU64;

use memtape_core::account::{Account, Value};
use memtape_proto::api::AreaRow;

/// Least columns: with fewer, steps that are far apart would have none.
pub(super) const COLUMNS_MIN: usize = 2;

/// Largest number in a cell: seven bytes of an answer, with its comma.
const CELL_MAX: u64 = 999_999;

/// A value, where it is known.
type Kept = Option<NonZeroU64>;

#[derive(Debug)]
pub(super) struct Grid {
    account: Account,
    columns_max: usize,
    /// Steps of a column, as a power of two.
    shift: u32,
    /// The first and the last column that have values.
    columns: Option<(u64, u64)>,
    /// Of each rank `columns_max` values, each one more than it is. A column is at its number
    /// modulo `columns_max`.
    kept: Vec<Kept>,
}

/// What a screen shows of a grid.
#[derive(Debug, Default)]
pub(super) struct Shown {
    pub(super) base: u64,
    pub(super) scale: u64,
    pub(super) first_step: u64,
    pub(super) steps_per_column: u64,
    pub(super) medians: Vec<Option<u32>>,
    pub(super) rows: Vec<AreaRow>,
}

impl Grid {
    /// Of no values yet. `columns_max` is [`COLUMNS_MIN`] at least.
    pub(super) fn new(account: Account, ranks: usize, columns_max: usize) -> Self {
        let columns_max = columns_max.max(COLUMNS_MIN);
        let kept = vec![None; ranks * columns_max];
        Self { account, columns_max, shift: 0, columns: None, kept }
    }

    /// Bytes of a grid.
    pub(super) fn bytes(ranks: usize, columns_max: usize) -> usize {
        ranks * columns_max * size_of::<Kept>()
    }

    /// Adds a value of the rank with this index; returns the number of its columns.
    pub(super) fn add(&mut self, rank: usize, of: Value) -> u64 {
        let (first, last) = self.reach(of.first_step, of.last_step);
        let kept = NonZeroU64::MIN.saturating_add(of.value);
        let ring = rank * self.columns_max;
        for column in first..=last {
            let at = ring + self.index(column);
            if let Some(known) = self.kept.get_mut(at) {
                *known = merged(self.account, *known, Some(kept));
            }
        }
        last - first + 1
    }

    /// The columns of these steps, after making them columns of the grid.
    fn reach(&mut self, first_step: u64, last_step: u64) -> (u64, u64) {
        let (first, last) = (first_step >> self.shift, last_step >> self.shift);
        let (low, high) = self.columns.unwrap_or((first, last));
        if self.columns.is_some() && low <= first && last <= high {
            return (first, last);
        }
        let (low, high) = (low.min(first), high.max(last));
        let fits = |by: u32| (high >> by) - (low >> by) < self.columns_max as u64;
        // By 63, two columns are left.
        let by = (0..u64::BITS - 1).find(|&by| fits(by)).unwrap_or(u64::BITS - 1);
        if by > 0 {
            self.fold(by);
        }
        self.columns = Some((low >> by, high >> by));
        (first >> by, last >> by)
    }

    /// Makes one column of 2^`by`.
    fn fold(&mut self, by: u32) {
        self.shift += by;
        let Some((low, high)) = self.columns else { return };
        let columns_max = self.columns_max as u64;
        let index_of = |column: u64| (column % columns_max) as usize;
        let mut folded: Vec<Kept> = vec![None; self.columns_max];
        for ring in self.kept.chunks_mut(self.columns_max) {
            folded.fill(None);
            for column in low..=high {
                let of = &mut folded[index_of(column >> by)];
                *of = merged(self.account, *of, ring[index_of(column)]);
            }
            ring.copy_from_slice(&folded);
        }
    }

    fn index(&self, column: u64) -> usize {
        (column % self.columns_max as u64) as usize
    }

    /// The value of a rank in a column.
    fn value(&self, rank: usize, column: u64) -> Option<u64> {
        let kept = self.kept.get(rank * self.columns_max + self.index(column));
        kept.copied().flatten().map(|kept| kept.get() - 1)
    }

    /// What is shown of these ranks, in rows of `ranks_per_row` neighbours. A cell is the highest
    /// value of its ranks.
    pub(super) fn shown(&self, ranks: &[u32], ranks_per_row: usize) -> Shown {
        let Some((low, high)) = self.columns else {
            return Shown { scale: 1, ..self.rows(ranks, ranks_per_row, 0..0, |_| None) };
        };
        let mut of_ranks: Vec<u64> = Vec::with_capacity(ranks.len());
        let medians: Vec<Option<u64>> = (low..=high)
            .map(|column| {
                of_ranks.clear();
                // Ranks whose report of the newest steps is still to come stand where they were.
                let before = column.checked_sub(1).filter(|&of| column == high && of >= low);
                let value =
                    |rank: usize| self.value(rank, column).or_else(|| self.value(rank, before?));
                of_ranks.extend((0..ranks.len()).filter_map(value));
                lower_median(&mut of_ranks)
            })
            .collect();
        let all = || self.kept.iter().flatten().map(|kept| kept.get() - 1);
        let base = all().min().unwrap_or(0);
        let span = all().max().unwrap_or(0) - base;
        let scale = (0..u64::BITS).find(|&by| span >> by <= CELL_MAX).unwrap_or(0);
        let shown = |value: Option<u64>| {
            value.map(|value| u32::try_from((value - base) >> scale).unwrap_or(u32::MAX))
        };
        Shown {
            base,
            scale: 1 << scale,
            first_step: low << self.shift,
            steps_per_column: 1 << self.shift,
            medians: medians.into_iter().map(shown).collect(),
            ..self.rows(ranks, ranks_per_row, low..high + 1, shown)
        }
    }

    fn rows(
        &self,
        ranks: &[u32],
        ranks_per_row: usize,
        columns: std::ops::Range<u64>,
        shown: impl Fn(Option<u64>) -> Option<u32>,
    ) -> Shown {
        let row = |(number, of): (usize, &[u32])| {
            let (mut cells, mut extreme) = (Vec::with_capacity(self.columns_max), None);
            for column in columns.clone() {
                let mut highest = None;
                for (index, rank) in of.iter().enumerate() {
                    let value = self.value(number * ranks_per_row + index, column);
                    highest = highest.max(value);
                    if value > extreme.map(|(value, _)| value) {
                        extreme = value.map(|value| (value, *rank));
                    }
                }
                cells.push(shown(highest));
            }
            AreaRow {
                first_rank: of.first().copied().unwrap_or(0),
                last_rank: of.last().copied().unwrap_or(0),
                extreme_rank: extreme.map(|(_, rank)| rank),
                cells,
            }
        };
        let rows = ranks.chunks(ranks_per_row.max(1)).enumerate().map(row).collect();
        Shown { rows, ..Shown::default() }
    }
}

/// What is known of steps of one rank, by two values of them.
fn merged(account: Account, one: Kept, other: Kept) -> Kept {
    match (one, other) {
        // One more than the value on both sides: the order is that of the values.
        (Some(one), Some(other)) => NonZeroU64::new(account.of_both(one.get(), other.get())),
        _ => one.or(other),
    }
}

fn lower_median(values: &mut [u64]) -> Option<u64> {
    let middle = values.len().checked_sub(1)? / 2;
    Some(*values.select_nth_unstable(middle).1)
}
