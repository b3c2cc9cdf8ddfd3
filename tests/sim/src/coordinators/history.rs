//! What the coordinators did, and what must hold of it: the promises of docs/cluster.md.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use memtape_store::cluster::shard::{Epoch, Position, Shard, ShardError};

/// Kinds of rows that are shown when they are wrong.
const SHOWN_MAX: usize = 5;

/// First byte of the key of a batch's own row, and the key of the row that every batch changes.
pub(crate) const BATCH: u8 = b'b';
pub(crate) const NEWEST: &[u8] = b"n";

/// A batch: the epoch of its writer, and its number among those of this writer.
pub(crate) type BatchId = (u64, u64);

/// What all coordinators did.
#[derive(Debug, Default)]
pub(crate) struct History(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    written: BTreeMap<BatchId, Written>,
    taken: Vec<Taken>,
    acted: Vec<Act>,
    broken: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug)]
struct Written {
    begun_ns: u64,
    position: Option<Position>,
    acknowledged_ns: Option<u64>,
}

/// A shard was taken.
#[derive(Debug)]
struct Taken {
    epoch: u64,
    at_ns: u64,
    /// The rows at that time, if they could be read.
    rows: Option<Rows>,
}

/// An action was begun.
#[derive(Clone, Copy, Debug)]
struct Act {
    epoch: u64,
    /// When the proof of its ownership was begun.
    proof_ns: u64,
    at_ns: u64,
}

/// The rows of a shard.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Rows {
    batches: BTreeSet<BatchId>,
    newest: Option<BatchId>,
    /// Keys whose value is none of theirs.
    wrong: u64,
}

/// How often what happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub takes: u64,
    pub acknowledged: u64,
    pub acts: u64,
    /// Actions after a later owner had acknowledged something, which the proof was too old for.
    pub late_acts: u64,
}

impl Rows {
    /// Reads all rows of a shard.
    pub(crate) async fn read(shard: &Shard) -> Result<Self, ShardError> {
        let mut rows = Self::default();
        let visit = |key: &[u8], value: &Bytes| {
            let (of_key, of_value) = (key.get(1..).and_then(id), id(value));
            match (key.first(), of_value) {
                (Some(&BATCH), Some(batch)) if of_key == of_value => {
                    rows.batches.insert(batch);
                }
                _ if key == NEWEST && of_value.is_some() => rows.newest = of_value,
                _ => rows.wrong += 1,
            }
            ControlFlow::Continue(())
        };
        shard.scan(&[BATCH], &[NEWEST[0] + 1], visit).await?;
        Ok(rows)
    }

    /// The batches of owners before this epoch.
    fn before(&self, epoch: u64) -> BTreeSet<BatchId> {
        self.batches.range(..(epoch, 0)).copied().collect()
    }
}

/// The batch that a key or a value begins with.
fn id(bytes: &[u8]) -> Option<BatchId> {
    let (epoch, rest) = bytes.split_first_chunk()?;
    let (number, _) = rest.split_first_chunk()?;
    Some((u64::from_be_bytes(*epoch), u64::from_be_bytes(*number)))
}

impl History {
    pub(crate) fn breaks(&self, rule: &str) {
        self.lock().broken.insert(rule.to_string());
    }

    pub(crate) fn took(&self, Epoch(epoch): Epoch, at_ns: u64, rows: Option<Rows>) {
        self.lock().taken.push(Taken { epoch, at_ns, rows });
    }

    pub(crate) fn writes(&self, batch: BatchId, begun_ns: u64) {
        let written = Written { begun_ns, position: None, acknowledged_ns: None };
        self.lock().written.insert(batch, written);
    }

    pub(crate) fn wrote(&self, batch: BatchId, position: Position) {
        let mut known = self.lock();
        known.written.entry(batch).and_modify(|written| written.position = Some(position));
    }

    pub(crate) fn acknowledged(&self, batch: BatchId, at_ns: u64) {
        let mut known = self.lock();
        known.written.entry(batch).and_modify(|written| {
            written.acknowledged_ns.get_or_insert(at_ns);
        });
    }

    pub(crate) fn acted(&self, Epoch(epoch): Epoch, proof_ns: u64, at_ns: u64) {
        self.lock().acted.push(Act { epoch, proof_ns, at_ns });
    }

    /// Was a batch acknowledged that was begun after this time?
    pub(crate) fn has_acknowledged_since(&self, since_ns: u64) -> bool {
        let is_it =
            |written: &Written| written.begun_ns > since_ns && written.acknowledged_ns.is_some();
        self.lock().written.values().any(is_it)
    }

    pub(crate) fn totals(&self) -> Totals {
        let known = self.lock();
        let first = known.first_acknowledgements();
        let is_late =
            |act: &&Act| first.range(act.epoch + 1..).any(|(_, first_ns)| *first_ns < act.at_ns);
        let acknowledged = known.written.values().filter(|of| of.acknowledged_ns.is_some());
        Totals {
            takes: known.taken.len() as u64,
            acknowledged: acknowledged.count() as u64,
            acts: known.acted.len() as u64,
            late_acts: known.acted.iter().filter(is_late).count() as u64,
        }
    }

    /// What did not hold while it happened.
    pub(crate) fn broken(&self) -> Vec<String> {
        self.lock().broken.iter().cloned().collect()
    }

    /// Everything that did not hold, by the rows that an owner after all others reads at once and
    /// again after a while.
    pub(crate) fn check(&self, last: &Rows, again: &Rows) -> Vec<String> {
        let mut broken = self.broken();
        let known = self.lock();
        if last != again {
            broken.push("rows appeared after the last owner took the shard".into());
        }
        if last.wrong > 0 {
            broken.push(format!("{} rows have a wrong value", last.wrong));
        }
        if last.newest != last.batches.last().copied() {
            let newest = last.batches.last();
            broken.push(format!("the newest batch is {newest:?}, the row has {:?}", last.newest));
        }
        known.check_acknowledged(last, &mut broken);
        known.check_order(last, &mut broken);
        known.check_owners(last, &mut broken);
        known.check_actions(&mut broken);
        broken
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// When each epoch acknowledged something first.
    fn first_acknowledgements(&self) -> BTreeMap<u64, u64> {
        let mut first = BTreeMap::new();
        for ((epoch, _), written) in &self.written {
            if let Some(at_ns) = written.acknowledged_ns {
                let first_ns = first.entry(*epoch).or_insert(at_ns);
                *first_ns = at_ns.min(*first_ns);
            }
        }
        first
    }

    /// Every acknowledged batch is there.
    fn check_acknowledged(&self, last: &Rows, broken: &mut Vec<String>) {
        let acknowledged = self.written.iter().filter(|(_, of)| of.acknowledged_ns.is_some());
        let lost: Vec<_> =
            acknowledged.map(|(batch, _)| batch).filter(|of| !last.batches.contains(of)).collect();
        if !lost.is_empty() {
            let shown = &lost[..lost.len().min(SHOWN_MAX)];
            broken.push(format!("{} acknowledged batches are lost: {shown:?}", lost.len()));
        }
    }

    /// The batches of an epoch are there without gaps, in the order of their epochs and numbers.
    fn check_order(&self, last: &Rows, broken: &mut Vec<String>) {
        let mut before: Option<(BatchId, Position)> = None;
        for batch in &last.batches {
            let (epoch, number) = *batch;
            if number > 0 && !last.batches.contains(&(epoch, number - 1)) {
                broken.push(format!("batch {batch:?} is there without the one before"));
            }
            let Some(position) = self.written.get(batch).and_then(|of| of.position) else {
                continue;
            };
            if let Some((earlier, at)) = before.filter(|(_, at)| *at >= position) {
                broken.push(format!("{earlier:?} is at {at:?}, and {batch:?} at {position:?}"));
            }
            before = Some((*batch, position));
        }
    }

    /// No two owners have one epoch, and each found all that earlier ones made durable, ever.
    fn check_owners(&self, last: &Rows, broken: &mut Vec<String>) {
        let mut epochs = BTreeSet::new();
        for Taken { epoch, at_ns, rows } in &self.taken {
            if !epochs.insert(epoch) {
                broken.push(format!("two owners have epoch {epoch}"));
            }
            let Some(rows) = rows else { continue };
            let (found, durable) = (rows.before(*epoch), last.before(*epoch));
            if let Some(batch) = durable.difference(&found).next() {
                broken.push(format!("batch {batch:?} came after the first row of epoch {epoch}"));
            }
            if let Some(batch) = found.difference(&durable).next() {
                broken.push(format!("batch {batch:?} is gone, which epoch {epoch} had found"));
            }
            let earlier = self.written.range(..(*epoch, 0));
            let mut late = earlier.filter(|(_, of)| of.begun_ns > *at_ns);
            if let Some((batch, _)) = late.find(|(_, of)| of.acknowledged_ns.is_some()) {
                broken.push(format!("batch {batch:?} was begun after epoch {epoch} was taken"));
            }
        }
    }

    /// No later owner had acknowledged anything when the proof of an action was begun.
    fn check_actions(&self, broken: &mut Vec<String>) {
        let first = self.first_acknowledgements();
        for Act { epoch, proof_ns, .. } in &self.acted {
            let mut later = first.range(epoch + 1..).filter(|(_, first_ns)| *first_ns < proof_ns);
            if let Some((later, _)) = later.next() {
                broken.push(format!("epoch {epoch} acted after epoch {later} had acknowledged"));
            }
        }
    }
}
