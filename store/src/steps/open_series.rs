//! Records of a series that are not packed yet, in parts that readers share.

use std::sync::Arc;

use crate::records::StepRecord;
use crate::steps::block::ROWS_MAX;

/// Records in parts of about a block each. A clone shares the parts: it copies no record, and
/// sees none that comes later.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenSeries(Vec<Arc<Vec<StepRecord>>>);

impl OpenSeries {
    /// Adds records. A part that a reader has stays as it is.
    pub(crate) fn extend(&mut self, more: Vec<StepRecord>) {
        let last = self.0.last_mut().and_then(Arc::get_mut);
        match last.filter(|last| last.len() + more.len() <= ROWS_MAX) {
            Some(last) => last.extend(more),
            None => self.0.push(Arc::new(more)),
        }
    }

    /// Number of records.
    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|part| part.len()).sum()
    }

    /// The parts, in order.
    pub(crate) fn parts(&self) -> impl DoubleEndedIterator<Item = &[StepRecord]> {
        self.0.iter().map(|part| part.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(steps: std::ops::Range<u64>) -> Vec<StepRecord> {
        steps.map(|first_step| StepRecord { first_step, ..StepRecord::default() }).collect()
    }

    #[test]
    fn a_reader_shares_the_records_and_sees_none_that_come_later() {
        let mut series = OpenSeries::default();
        (0..1000).for_each(|step| series.extend(rows(step..step + 1)));
        assert_eq!(series.0.len(), 1000_usize.div_ceil(ROWS_MAX));
        let read = series.clone();
        assert!(read.0.iter().zip(&series.0).all(|(read, part)| Arc::ptr_eq(read, part)));
        (1000..1010).for_each(|step| series.extend(rows(step..step + 1)));
        assert_eq!((read.len(), series.len()), (1000, 1010));
        assert!(read.parts().flatten().eq(&rows(0..1000)));
        assert!(series.parts().flatten().eq(&rows(0..1010)));
    }
}
