//! The figures of a rank over its steps: which there are, where each is kept, and its values in
//! step records. The words are those of the detector's layers, so what grows is asked for by the
//! word of its growth.

mod durations;

use alloc::vec::Vec;

use strum::VariantArray as _;

use crate::tape::StepRecord;
use durations::Durations;

crate::tape::names! {
    /// A figure of a rank over its steps.
    #[derive(Default)]
    pub enum Account in "snake_case" {
        /// Bytes in tensors: the per-step minimum.
        #[default]
        Allocated,
        /// Bytes in tensors at the peak of each step.
        Peak,
        /// Bytes that the allocator holds from the device, at the highest in each step.
        Reserved,
        /// Live blocks at the end of each step.
        Blocks,
        /// Time from the end of one step to the end of the next.
        StepTime,
        /// Pending frees: bytes of freed blocks that other streams still use.
        Deferred,
        /// Bytes of the device that the process holds beside PyTorch's allocator.
        NonTorch,
        /// Bytes of the device that other processes hold.
        Other,
        /// Anonymous memory of the process on the host.
        Host,
        /// Pinned memory of the process on the host.
        Pinned,
        /// Shared memory of the process on the host.
        Shared,
        /// Memory of the processes that the rank has started.
        Workers,
    }
}

crate::tape::names! {
    /// What values count.
    #[derive(Default)]
    pub enum Unit in "snake_case" {
        /// Bytes.
        #[default]
        Bytes,
        /// Blocks of the allocator.
        Blocks,
        /// Nanoseconds.
        Nanoseconds,
        /// Ranks, of a trait; of no account.
        Ranks,
    }
}

crate::tape::names! {
    /// Where the values of an account are kept.
    pub enum Source in "snake_case" {
        /// In the store, each step, as long as steps are kept.
        StepRecords,
        /// In the memory of the coordinator, since its start: of each block of 16, 64 or 256 steps
        /// the lowest reading.
        Readings,
    }
}

/// A value of an account that held in these steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// First step.
    pub first_step: u64,
    /// Last step.
    pub last_step: u64,
    /// The value, in the account's unit.
    pub value: u64,
}

impl Account {
    /// All accounts.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::VARIANTS.iter().copied()
    }

    /// What its values count.
    pub fn unit(self) -> Unit {
        match self {
            Self::Blocks => Unit::Blocks,
            Self::StepTime => Unit::Nanoseconds,
            _ => Unit::Bytes,
        }
    }

    /// Where its values are kept.
    pub fn source(self) -> Source {
        match self {
            Self::Allocated | Self::Peak | Self::Reserved | Self::Blocks | Self::StepTime => {
                Source::StepRecords
            }
            Self::Deferred | Self::NonTorch | Self::Other => Source::Readings,
            Self::Host | Self::Pinned | Self::Shared | Self::Workers => Source::Readings,
        }
    }

    /// Is it memory of the host? Else it is of a device.
    pub fn is_host(self) -> bool {
        matches!(self, Self::Host | Self::Pinned | Self::Shared | Self::Workers)
    }

    /// The value of a record; none where the record alone does not have it.
    pub fn of(self, record: &StepRecord) -> Option<u64> {
        match self {
            Self::Allocated => Some(record.floor_allocated),
            Self::Peak => Some(record.peak_allocated),
            Self::Reserved => Some(record.peak_reserved.max(record.end_reserved)),
            Self::Blocks => Some(record.blocks),
            Self::StepTime => None,
            Self::Deferred | Self::NonTorch | Self::Other => None,
            Self::Host | Self::Pinned | Self::Shared | Self::Workers => None,
        }
    }

    /// Marks the numbers of a record that change the account's values.
    pub fn columns(self) -> [bool; StepRecord::NUMBERS] {
        let before = StepRecord { first_step: 1, last_step: 1, ..StepRecord::default() };
        let record = StepRecord { first_step: 2, last_step: 4, ..before };
        let values_with = |record: StepRecord| {
            let (mut values, mut all) = (Values::new(self), Vec::new());
            values.take(&[before, record], &mut |of| all.push(of));
            values.end(&mut |of| all.push(of));
            all
        };
        let values = values_with(record);
        core::array::from_fn(|number| {
            let mut numbers = record.to_numbers();
            numbers[number] += 1 << 20;
            values_with(StepRecord::from_numbers(numbers)) != values
        })
    }

    /// The value of neighbouring steps of one rank, by two of their values: the lower of the
    /// per-step minimum, of everything else the higher.
    pub fn of_both(self, one: u64, other: u64) -> u64 {
        match self {
            Self::Allocated => one.min(other),
            _ => one.max(other),
        }
    }
}

/// The value of an account over many steps: the mean of step times, of everything else the highest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overall {
    highest: u64,
    sum: u128,
    steps: u128,
}

impl Overall {
    /// Adds a value that held in its steps. One that comes twice counts twice in a mean.
    pub fn add(&mut self, of: Value) {
        let steps = u128::from(of.last_step.saturating_sub(of.first_step)) + 1;
        self.highest = self.highest.max(of.value);
        self.sum = self.sum.saturating_add(u128::from(of.value).saturating_mul(steps));
        self.steps = self.steps.saturating_add(steps);
    }

    /// The value; none where none was added.
    pub fn value(&self, account: Account) -> Option<u64> {
        let mean = self.sum.checked_div(self.steps)?;
        Some(match account {
            Account::StepTime => u64::try_from(mean).unwrap_or(u64::MAX),
            _ => self.highest,
        })
    }
}

/// Values of an account in the records of one series, which come in parts.
#[derive(Clone, Debug)]
pub struct Values {
    account: Account,
    durations: Durations,
}

impl Values {
    /// Of no records yet.
    pub fn new(account: Account) -> Self {
        Self { account, durations: Durations::default() }
    }

    /// Hands over the values of further records, each part in the order in which it was reported.
    /// Parts may come in any order, and twice.
    pub fn take(&mut self, records: &[StepRecord], found: &mut dyn FnMut(Value)) {
        if self.account == Account::StepTime {
            return self.durations.take(records, found);
        }
        for record in records {
            let StepRecord { first_step, last_step, .. } = *record;
            let value = self.account.of(record);
            if let Some(value) = value {
                found(Value { first_step: first_step.min(last_step), last_step, value });
            }
        }
    }

    /// Hands over the values that are known when all parts have come.
    pub fn end(&mut self, found: &mut dyn FnMut(Value)) {
        self.durations.end(found);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NUMBERS: usize = StepRecord::NUMBERS;

    fn values(account: Account, records: &[StepRecord]) -> Vec<Value> {
        let (mut values, mut all) = (Values::new(account), Vec::new());
        values.take(records, &mut |of| all.push(of));
        values.end(&mut |of| all.push(of));
        all
    }

    proptest! {
        #[test]
        fn the_columns_of_an_account_are_all_that_it_needs(
            records in prop::collection::vec(prop::array::uniform14(0_u64..1 << 40), 0..20),
        ) {
            let whole: Vec<_> = records.iter().map(|of| StepRecord::from_numbers(*of)).collect();
            for account in Account::all() {
                let columns = account.columns();
                let only = |of: &[u64; NUMBERS]| {
                    let number = |at: usize| if columns[at] { of[at] } else { 0 };
                    StepRecord::from_numbers(core::array::from_fn(number))
                };
                let cut: Vec<_> = records.iter().map(only).collect();
                prop_assert_eq!(values(account, &cut), values(account, &whole), "{:?}", account);
            }
        }
    }

    #[test]
    fn an_account_needs_few_columns() {
        let count = |account: Account| account.columns().iter().filter(|wanted| **wanted).count();
        let counts: Vec<usize> = Account::all().map(count).collect();
        // Readings are in no record.
        assert_eq!(counts, [3, 3, 4, 3, 3, 0, 0, 0, 0, 0, 0, 0]);
    }
}
