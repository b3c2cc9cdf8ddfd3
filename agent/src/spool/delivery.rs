//! Delivery from the spool: the next entry, acknowledgements, deletion of delivered entries.

use std::collections::BTreeMap;
use std::io;

use bytes::Bytes;
use memtape_disk::files::{self, Disk};
use memtape_disk::frames;

use super::logs::{Entry, kind_and_number};
use super::{
    CAPTURE, CURSOR, CURSOR_EVERY_NS, Dropped, FORMAT, KeptCapture, Kind, Next, SYNC_EVERY_NS,
    Spool,
};
use crate::link::upload::EncodedSnapshot;
use crate::link::wire::{self, CaptureAnswer, Outgoing, RankReport};
use crate::node::accounts::Account;

/// Most bytes of an agent-initiated capture's file before its snapshot.
const CAPTURE_HEAD_BYTES_MAX: usize = 256 << 10;

/// The state of the spool that is in no other file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    pub(super) delivered: u64,
    pub(super) next: u64,
    pub(super) dropped: Dropped,
}

impl Spool {
    /// Starts a new stream: entries that were sent and not acknowledged are due again.
    pub(crate) fn start_stream(&mut self) {
        self.sent = self.delivered;
        self.in_flight.clear();
        for each in self.captures.values_mut() {
            each.sent_with = None;
        }
    }

    /// True while not everything was sent on this stream.
    pub(crate) fn has_unsent(&self) -> bool {
        self.last() > self.sent
    }

    /// The next entry to send on this stream: an end, or step records, at most `records_max`
    /// together.
    pub(crate) fn next(&mut self, records_max: usize) -> Option<Next> {
        let mut packed: Vec<RankReport> = Vec::new();
        let (mut at, mut records) = (self.sent, 0);
        while let Some((number, items, kept)) = self.entry_after(at) {
            match kept {
                Some(Outgoing::RankDown(down)) if packed.is_empty() => {
                    return Some(Next::Down(number, down));
                }
                Some(Outgoing::Report(report))
                    if packed.is_empty() || records + items <= records_max =>
                {
                    (at, records) = (number, records + items);
                    merge(&mut packed, report.ranks);
                }
                Some(Outgoing::RankDown(_) | Outgoing::Report(_)) => break,
                // Announced before everything else; or written by a newer version.
                _ => at = number,
            }
        }
        if at == self.sent {
            // What could not be read is no longer there to be sent.
            self.sent = self.sent.max(self.last());
            return None;
        }
        Some(Next::Steps(at, packed))
    }

    fn entry_after(&mut self, number: u64) -> Option<(u64, usize, Option<Outgoing>)> {
        let found = loop {
            let (step, fact) = (self.steps.next_number(number), self.facts.next_number(number));
            let Some(first) = [step, fact].into_iter().flatten().min() else { break None };
            let logs = if step == Some(first) { &mut self.steps } else { &mut self.facts };
            // After an entry that is lost, the first one may be of the other kind.
            if let Some(entry) = logs.read_next(number) {
                break Some((entry.number, entry.items as usize, wire::kept(&entry.payload)));
            }
        };
        let (steps, facts) = (self.steps.take_lost(), self.facts.take_lost());
        self.dropped.steps += steps;
        self.dropped.facts += facts;
        self.is_cursor_due |= steps + facts > 0;
        self.has_lost |= steps > 0;
        found
    }

    /// True once after step records that were kept were lost.
    pub(crate) fn take_has_lost(&mut self) -> bool {
        std::mem::take(&mut self.has_lost)
    }

    /// Notes that entries up to this number were sent with, or before, this report.
    pub(crate) fn sent_with(&mut self, number: u64, report: u64) {
        self.sent = self.sent.max(number);
        self.in_flight.push_back((report, self.sent));
    }

    /// Announcements of captures that are to be sent on this stream now, with their numbers.
    pub(crate) fn captures_to_announce(&mut self) -> Vec<(u64, Outgoing)> {
        // In order: not before what is older than they are.
        let next = self.entry_after(self.sent).map_or(u64::MAX, |(number, ..)| number);
        let due = self
            .captures
            .range(..next)
            .filter(|(_, each)| each.sent_with.is_none() && !each.has_arrived);
        due.map(|(number, each)| (*number, Outgoing::AgentCapture(each.capture.clone()))).collect()
    }

    /// Notes that a capture was announced; the acknowledgement of this report covers it.
    pub(crate) fn capture_sent(&mut self, number: u64, report: u64) {
        if let Some(each) = self.captures.get_mut(&number) {
            each.sent_with = Some(report);
        }
    }

    /// Reports up to this number have arrived.
    pub(crate) fn acked(&mut self, report: u64) {
        let before = self.delivered;
        while let Some((_, number)) = self.in_flight.pop_front_if(|(sent, _)| *sent <= report) {
            self.delivered = self.delivered.max(number);
        }
        self.is_cursor_due |= self.delivered > before;
        let mut stored = Vec::new();
        for (number, each) in &mut self.captures {
            each.has_arrived |= each.sent_with.is_some_and(|sent| sent <= report);
            if each.has_arrived && each.bytes == each.head_bytes {
                stored.push(*number);
            }
        }
        stored.into_iter().for_each(|number| self.forget_capture(number));
    }

    /// The oldest agent-initiated capture whose announcement has arrived, and whose snapshot has
    /// not.
    pub(crate) fn next_upload(&self) -> Option<(u64, &CaptureAnswer)> {
        let (number, each) = self.captures.iter().find(|(_, each)| each.has_arrived)?;
        Some((*number, each.capture.answer.as_ref()?))
    }

    /// Snapshot of a kept capture; none when the disk has lost or damaged it. The capture is then
    /// announced again without a snapshot.
    pub(crate) fn capture_snapshot(&mut self, number: u64) -> Option<EncodedSnapshot> {
        let each = self.captures.get(&number)?;
        let length = usize::try_from(each.bytes - each.head_bytes).ok()?;
        let bytes = read(&*self.disk, &each.name, each.head_bytes, length).unwrap_or_default();
        let hash = blake3::hash(&bytes);
        let answer = each.capture.answer.as_ref()?;
        if answer.snapshot_hash == hash.as_bytes() {
            return Some(EncodedSnapshot { bytes: Bytes::from(bytes), hash });
        }
        tracing::warn!(capture = answer.capture_id, "the spool has lost a snapshot");
        self.count_dropped(Kind::Snapshots, 1);
        let each = self.captures.get_mut(&number)?;
        wire::drop_snapshot(&mut each.capture);
        (each.bytes, each.sent_with, each.has_arrived) = (each.head_bytes, None, false);
        None
    }

    /// Deletes an agent-initiated capture that is stored, or not wanted.
    pub(crate) fn forget_capture(&mut self, number: u64) {
        let Some(each) = self.captures.remove(&number) else { return };
        if let Err(error) = self.disk.remove(&each.name) {
            tracing::warn!("an agent-initiated capture that is stored cannot be deleted: {error}");
        }
    }

    /// Drops a capture whose snapshot was refused for good.
    pub(crate) fn capture_refused(&mut self, number: u64) {
        self.count_dropped(Kind::Snapshots, 1);
        self.forget_capture(number);
    }

    /// Syncs due files, and deletes delivered ones.
    pub(crate) fn pass_time(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.synced_ns) >= SYNC_EVERY_NS {
            self.synced_ns = now_ns;
            let synced = self.steps.sync();
            self.note(synced);
        }
        if self.is_cursor_due && now_ns.saturating_sub(self.cursor_ns) >= CURSOR_EVERY_NS {
            self.cursor_ns = now_ns;
            let cursor =
                Cursor { delivered: self.delivered, next: self.next, dropped: self.dropped };
            let written = files::replace(&*self.disk, CURSOR, &cursor.encode());
            if self.note(written) {
                self.is_cursor_due = false;
                self.forget_delivered();
            }
        }
    }

    /// Deletes what lies before the cursor.
    fn forget_delivered(&mut self) {
        self.steps.forget(self.delivered);
        self.facts.forget(self.delivered);
        if self.last() <= self.delivered {
            self.ups.clear();
            self.downs.clear();
            self.newest.clear();
            self.missed.clear();
        }
    }

    /// Logs once that the disk fails, and once that it works again; true when it did not.
    pub(super) fn note(&mut self, result: io::Result<()>) -> bool {
        match result {
            Ok(()) => {
                if std::mem::take(&mut self.is_failing) {
                    tracing::info!("the spool's disk can be written again");
                }
                true
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::warn!(
                        "the spool cannot be written ({error}): what the tapes do not hold until \
                         the coordinator is back is lost"
                    );
                }
                false
            }
        }
    }

    /// Number of the newest entry of both logs.
    pub(super) fn last(&self) -> u64 {
        self.steps.last().max(self.facts.last())
    }

    pub(super) fn take_number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }
}

impl Cursor {
    /// Opens the cursor of a spool, and removes the remains of an unfinished write.
    pub(super) fn open(disk: &dyn Disk) -> io::Result<Self> {
        for file in disk.list("")?.iter().filter(|file| file.name.ends_with(files::ASIDE)) {
            disk.remove(&file.name)?;
        }
        match files::read_all(disk, CURSOR) {
            Ok(bytes) => Self::decode(&bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    pub(super) fn encode(self) -> Vec<u8> {
        let Dropped { steps, snapshots, facts } = self.dropped;
        let words = [FORMAT, self.delivered, self.next, steps, snapshots, facts];
        frames::encode(&words.map(u64::to_le_bytes).concat())
    }

    /// Decodes a cursor. A damaged cursor counts as none: kept entries are then delivered again.
    pub(super) fn decode(bytes: &[u8]) -> io::Result<Self> {
        let payload = frames::decode(bytes).ok().flatten().map_or(&[][..], |(payload, _)| payload);
        let words: Vec<u64> =
            payload.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        match words[..] {
            [FORMAT, delivered, next, steps, snapshots, facts, ..] => {
                Ok(Self { delivered, next, dropped: Dropped { steps, snapshots, facts } })
            }
            [format, ..] => {
                let why = format!("it has format {format}, this agent knows {FORMAT}");
                Err(io::Error::other(why))
            }
            [] => {
                tracing::warn!("the spool's cursor is damaged: what is there is delivered again");
                Ok(Self::default())
            }
        }
    }
}

/// The agent-initiated captures on the disk.
pub(super) fn open_captures(
    disk: &dyn Disk,
    account: impl Fn(&str) -> Account,
) -> io::Result<BTreeMap<u64, KeptCapture>> {
    let mut captures = BTreeMap::new();
    for files::Entry { name, bytes, .. } in disk.list("")? {
        let Some((CAPTURE, number)) = kind_and_number(&name) else { continue };
        let length = usize::try_from(bytes).unwrap_or(usize::MAX).min(CAPTURE_HEAD_BYTES_MAX);
        let head = read(disk, &name, 0, length)?;
        let mut rest = head.as_slice();
        let mut kept = || {
            let (record, behind) = frames::decode(rest).ok()??;
            rest = behind;
            wire::kept(&Entry::decode(record)?.payload)
        };
        let (Some(Outgoing::RankUp(up)), Some(Outgoing::AgentCapture(capture))) = (kept(), kept())
        else {
            tracing::warn!("{name} in the spool is damaged: it is deleted");
            disk.remove(&name)?;
            continue;
        };
        let head_bytes = (head.len() - rest.len()) as u64;
        let kept = KeptCapture {
            name,
            account: account(&up.tape_id),
            capture,
            up,
            head_bytes,
            bytes,
            sent_with: None,
            has_arrived: false,
        };
        captures.insert(number, kept);
    }
    Ok(captures)
}

fn read(disk: &dyn Disk, name: &str, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    disk.open(name)?.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

/// Merges ranks into the ranks of one report.
fn merge(packed: &mut Vec<RankReport>, ranks: Vec<RankReport>) {
    for rank in ranks {
        match packed.iter_mut().find(|known| known.tape_id == rank.tape_id) {
            Some(known) => wire::update(known, rank),
            None => packed.push(rank),
        }
    }
}
