//! Data that the agent keeps on disk while no coordinator is connected, and delivers later.
//!
//! There are three kinds: step records, before the tape overwrites them; facts, which are
//! announcements and ends of ranks; and agent-initiated captures, each a file of its own. Step
//! records and facts share one row of rising numbers and are delivered in its order; a capture
//! comes when everything before it was sent. Entries are delivered once acknowledged. The cursor, a
//! file that is replaced as a whole, holds the last delivered number; entries up to it are deleted.
//! A cursor that is too old only delivers twice what the coordinator knows.
//!
//! The spool has a bound, of which each user has an equal part: a user's data beyond it is dropped,
//! and no data of another user. Where a bound is reached, or the disk is full, step records are
//! dropped first, then snapshots of captures, facts last, the oldest of each kind first; each drop
//! is counted by kind. This file knows no coordinator and reads no clock.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use memtape_core::identity::accounts::Accounts;
use memtape_core::limits::{SPOOL_CAPTURES_MAX, SPOOL_RANKS_MAX};
use memtape_core::sharing::Amounts;
use memtape_disk::files::{self, Disk, Held};
use memtape_disk::frames;

use crate::link::wire::{self, AgentCapture, Outgoing, RankDown, RankReport, RankUp, Report};
use crate::node::accounts::{self, Account};

mod delivery;
mod dividing;
mod logs;
#[cfg(test)]
mod tests;

use delivery::{Cursor, open_captures};
pub(crate) use dividing::{divide, jobs_of, shards_with_records, spool_of};
pub(crate) use logs::Entry;
use logs::{Logs, name_of};

/// Most bytes in one segment of step records or facts; less where the bound is small.
const SEGMENT_BYTES_MAX: u64 = 4 << 20;

/// At least this many segments fit into the bound, so that one drop does not lose all.
const SEGMENTS_MIN: u64 = 8;

/// Time between two syncs of step records, and between two writes of the cursor.
const SYNC_EVERY_NS: u64 = 10_000_000_000;
const CURSOR_EVERY_NS: u64 = 1_000_000_000;

const STEPS: &str = "steps";
const FACTS: &str = "facts";
const CAPTURE: &str = "capture";
const CURSOR: &str = "cursor";

/// Version of all files here. Entries of another one are not read, and their files are deleted.
const FORMAT: u64 = 2;

/// Locked by the agent that uses the folder.
const LOCK: &str = "lock";

/// Numbers of entries dropped since the spool was made, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// Step records.
    pub(crate) steps: u64,
    /// Snapshots of agent-initiated captures.
    pub(crate) snapshots: u64,
    /// Announcements and ends of ranks, announcements of agent-initiated captures.
    pub(crate) facts: u64,
}

/// The spool.
#[derive(Debug)]
pub(crate) struct Spool {
    disk: Arc<dyn Disk>,
    /// Keeps other agents out.
    _lock: Box<dyn Held>,
    bytes_max: u64,
    /// Accounts that share the spool.
    accounts: Accounts,
    steps: Logs,
    facts: Logs,
    captures: BTreeMap<u64, KeptCapture>,
    /// The number of the next entry.
    next: u64,
    /// Everything up to this number is the coordinator's.
    delivered: u64,
    /// Everything up to this number was sent on the present stream.
    sent: u64,
    /// Reports in flight, each with the entries that its acknowledgement covers.
    in_flight: VecDeque<(u64, u64)>,
    /// Announcements that are kept, by tape.
    ups: BTreeMap<String, RankUp>,
    /// Tapes whose ends are kept, and whether their exit status is.
    downs: BTreeMap<String, bool>,
    /// The newest step kept of each device.
    newest: BTreeMap<(String, u8), u64>,
    /// Steps of each tape that could not be kept, by its newest kept report.
    missed: BTreeMap<String, u64>,
    dropped: Dropped,
    cursor_ns: u64,
    is_cursor_due: bool,
    synced_ns: u64,
    /// True if a failing disk was logged.
    is_failing: bool,
    /// True if tapes may have kept records that were lost, until `take_has_lost` is called.
    has_lost: bool,
    /// True while the entries of another spool are copied here. Nothing is dropped for them, since
    /// the other spool still has them all, and they may fill the bound once more.
    is_target: bool,
}

/// Kinds of entries, the least valuable first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Steps,
    Snapshots,
    Facts,
}

/// An agent-initiated capture on disk.
#[derive(Debug)]
struct KeptCapture {
    /// Name of the capture's file.
    name: String,
    /// Account of the tape's user.
    account: Account,
    capture: AgentCapture,
    up: RankUp,
    /// Bytes of the file before the snapshot, and of all of it.
    head_bytes: u64,
    bytes: u64,
    /// The report of the present stream that its announcement goes with.
    sent_with: Option<u64>,
    has_arrived: bool,
}

/// The next entry to send.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Next {
    /// The end of a rank.
    Down(u64, RankDown),
    /// Step records; up to this number they are all there.
    Steps(u64, Vec<RankReport>),
}

impl Spool {
    /// Opens a spool, or makes one. `accounts` share it.
    /// Fails with the errors of the disk, when another process has it, and when a newer version has
    /// written it.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        bytes_max: u64,
        accounts: Accounts,
    ) -> io::Result<Self> {
        disk.make_folder("")?;
        let lock = disk.lock(LOCK).map_err(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => io::Error::other("another agent uses it"),
            _ => error,
        })?;
        let cursor = Cursor::open(&*disk)?;
        let segment_bytes_max = SEGMENT_BYTES_MAX.min(bytes_max / SEGMENTS_MIN);
        let mut ups = BTreeMap::new();
        let mut downs = BTreeMap::new();
        let mut newest = BTreeMap::new();
        let mut missed = BTreeMap::new();
        let delivered = cursor.delivered;
        let account = |tape_id: &str| accounts::of_tape(tape_id, |uid| accounts.of(uid));
        let facts = Logs::open(&disk, FACTS, segment_bytes_max, |entry| {
            let kept = wire::kept(&entry.payload)?;
            let of = account(fact_tape_id(&kept)?);
            match kept {
                Outgoing::RankUp(up) if entry.number > delivered => {
                    ups.insert(up.tape_id.clone(), up);
                }
                Outgoing::RankDown(down) if entry.number > delivered => {
                    downs.insert(down.tape_id, down.exit_status.is_some());
                }
                _ => {}
            }
            Some(of)
        })?;
        let steps = Logs::open(&disk, STEPS, segment_bytes_max, |entry| {
            let Some(Outgoing::Report(report)) = wire::kept(&entry.payload) else { return None };
            note_newest(&mut newest, &mut missed, &report.ranks);
            Some(account(&report.ranks.first()?.tape_id))
        })?;
        let captures = open_captures(&*disk, account)?;
        let newest_capture = captures.keys().next_back().copied().unwrap_or(0);
        let last = facts.last().max(steps.last()).max(newest_capture).max(cursor.next);
        let spool = Self {
            next: last.max(delivered) + 1,
            sent: delivered,
            in_flight: VecDeque::new(),
            dropped: cursor.dropped,
            cursor_ns: 0,
            is_cursor_due: true,
            synced_ns: 0,
            is_failing: false,
            has_lost: false,
            is_target: false,
            disk,
            _lock: lock,
            bytes_max,
            accounts,
            steps,
            facts,
            captures,
            delivered,
            ups,
            downs,
            newest,
            missed,
        };
        if !spool.is_empty() {
            let bytes = spool.bytes();
            tracing::info!(bytes, "the spool holds what no coordinator has taken yet");
        }
        Ok(spool)
    }

    /// Sets the most bytes of the spool; what exceeds them makes room for what comes.
    pub(crate) fn limit(&mut self, bytes_max: u64) {
        self.bytes_max = bytes_max;
    }

    /// True when all is delivered.
    pub(crate) fn is_empty(&self) -> bool {
        self.captures.is_empty() && self.last() <= self.delivered
    }

    /// Bytes on the disk.
    pub(crate) fn bytes(&self) -> u64 {
        self.amounts().sum()
    }

    /// Bytes on the disk, by user.
    fn amounts(&self) -> Amounts<Account> {
        let mut amounts = self.steps.amounts();
        let captures = self.captures.values().map(|each| (each.account, each.bytes));
        self.facts.amounts().iter().chain(captures).for_each(|(of, bytes)| amounts.add(of, bytes));
        amounts
    }

    /// Account of a tape's user.
    fn account(&self, tape_id: &str) -> Account {
        accounts::of_tape(tape_id, |uid| self.accounts.of(uid))
    }

    /// Numbers of dropped entries.
    pub(crate) fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// Ranks with kept entries.
    pub(crate) fn ups(&self) -> impl Iterator<Item = &RankUp> {
        let of_captures = self.captures.values().map(|each| &each.up);
        self.ups.values().chain(of_captures.filter(|up| !self.ups.contains_key(&up.tape_id)))
    }

    /// The agent-initiated captures that are kept, oldest first.
    pub(crate) fn captures(&self) -> impl Iterator<Item = &AgentCapture> {
        self.captures.values().map(|each| &each.capture)
    }

    /// True when a rank's announcement is kept.
    pub(crate) fn knows(&self, tape_id: &str) -> bool {
        self.ups.contains_key(tape_id)
    }

    /// True when a rank's end is kept; with its exit status where it `has_status`.
    pub(crate) fn is_down(&self, tape_id: &str, has_status: bool) -> bool {
        self.downs.get(tape_id).is_some_and(|is_known| *is_known || !has_status)
    }

    /// The newest step kept of a device; 0 without any.
    pub(crate) fn newest_step(&self, tape_id: &str, device: u8) -> u64 {
        self.newest.get(&(tape_id.to_string(), device)).copied().unwrap_or(0)
    }

    /// True when step records of a tape are kept.
    pub(crate) fn has_steps(&self, tape_id: &str) -> bool {
        let of_tape = (tape_id.to_string(), 0)..=(tape_id.to_string(), u8::MAX);
        self.newest.range(of_tape).next().is_some()
    }

    /// Steps of a tape that were overwritten before they could be kept.
    pub(crate) fn missed(&self, tape_id: &str) -> u64 {
        self.missed.get(tape_id).copied().unwrap_or(0)
    }

    /// Keeps a rank's announcement, before anything else about it; false when it is not kept.
    pub(crate) fn add_up(&mut self, up: &RankUp) -> bool {
        if self.knows(&up.tape_id) {
            return true;
        }
        let account = self.account(&up.tape_id);
        // Half of it is for others.
        let of_user = self.ups.keys().filter(|known| self.account(known) == account).count();
        let is_kept = self.ups.len() < SPOOL_RANKS_MAX
            && of_user < SPOOL_RANKS_MAX / 2
            && self.add_fact(account, wire::encode(Outgoing::RankUp(up.clone())));
        if is_kept {
            self.ups.insert(up.tape_id.clone(), up.clone());
        }
        is_kept
    }

    /// Keeps a rank's end; false when it is not kept: the tape still shows it.
    pub(crate) fn add_down(&mut self, tape_id: &str, message: Outgoing) -> bool {
        let has_status = matches!(&message, Outgoing::RankDown(down) if down.exit_status.is_some());
        let is_kept = self.add_fact(self.account(tape_id), wire::encode(message));
        if is_kept {
            self.downs.insert(tape_id.to_string(), has_status);
        }
        is_kept
    }

    /// Keeps step records of one user's tapes. Returns false when they exceed the bound: the tapes
    /// still have them.
    pub(crate) fn add_steps(&mut self, ranks: &[RankReport]) -> bool {
        let account = ranks.first().map_or(0, |rank| self.account(&rank.tape_id));
        let items = ranks.iter().map(|rank| rank.steps.len()).sum::<usize>();
        let report = Report { ranks: ranks.to_vec(), ..Report::default() };
        let payload = wire::encode(Outgoing::Report(report));
        let number = self.take_number();
        let entry = Entry { number, items: u32::try_from(items).unwrap_or(u32::MAX), payload };
        let bytes = entry.disk_bytes();
        let result =
            self.write((account, bytes), Kind::Steps, |spool| spool.steps.append(account, &entry));
        let is_kept = self.note(result);
        if is_kept {
            note_newest(&mut self.newest, &mut self.missed, ranks);
        }
        is_kept
    }

    /// Keeps an agent-initiated capture, with its snapshot where the snapshot fits.
    pub(crate) fn add_capture(
        &mut self,
        up: RankUp,
        mut capture: AgentCapture,
        snapshot: Option<&[u8]>,
    ) {
        let number = self.take_number();
        while self.captures.len() >= SPOOL_CAPTURES_MAX {
            let of_users: Amounts<Account> =
                self.captures.values().map(|each| (each.account, 1)).collect();
            let most = of_users.most().map(|(account, _)| account);
            if !most.is_some_and(|account| self.drop_capture(account)) {
                break;
            }
        }
        if let Some(snapshot) = snapshot {
            // Half of the bound at most: it would take the room of everything else.
            let fits = snapshot.len() as u64 <= self.bytes_max / 2;
            if fits && self.write_capture(number, &up, &capture, snapshot, Kind::Snapshots) {
                return;
            }
            self.count_dropped(Kind::Snapshots, 1);
            wire::drop_snapshot(&mut capture);
        }
        if !self.write_capture(number, &up, &capture, &[], Kind::Facts) {
            self.count_dropped(Kind::Facts, 1);
        }
    }

    fn write_capture(
        &mut self,
        number: u64,
        up: &RankUp,
        capture: &AgentCapture,
        snapshot: &[u8],
        kind: Kind,
    ) -> bool {
        let mut bytes = head(number, up, capture);
        let head_bytes = bytes.len() as u64;
        bytes.extend_from_slice(snapshot);
        let name = name_of(CAPTURE, number);
        let account = self.account(&up.tape_id);
        let result = self.write((account, bytes.len() as u64), kind, |spool| {
            files::replace(&*spool.disk, &name, &bytes)
        });
        if !self.note(result) {
            return false;
        }
        let kept = KeptCapture {
            name,
            account,
            capture: capture.clone(),
            up: up.clone(),
            head_bytes,
            bytes: bytes.len() as u64,
            sent_with: None,
            has_arrived: false,
        };
        self.captures.insert(number, kept);
        true
    }

    fn add_fact(&mut self, account: Account, payload: Vec<u8>) -> bool {
        let entry = Entry { number: self.take_number(), items: 1, payload };
        let result = self.write((account, entry.disk_bytes()), Kind::Facts, |spool| {
            spool.facts.append(account, &entry)
        });
        let result = result.and_then(|()| self.facts.sync());
        self.note(result)
    }

    /// Writes this many bytes of a user. While they do not fit, drops entries worth no more than
    /// `kind`.
    fn write(
        &mut self,
        (account, bytes): (Account, u64),
        kind: Kind,
        mut write: impl FnMut(&mut Self) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut result = Err(io::Error::from(io::ErrorKind::StorageFull));
        while self.make_room((account, bytes), kind) {
            result = write(self);
            if !result.as_ref().is_err_and(is_full) {
                break;
            }
            let most = self.amounts().most().map_or(account, |(most, _)| most);
            if !self.drop_one(most, kind) && !self.drop_one(account, kind) {
                break;
            }
        }
        result
    }

    /// Drops entries until this many bytes fit: the user's own, worth no more than `kind`, if the
    /// user would exceed an equal part of the bound; else entries of the user who has most. Returns
    /// false when the bytes never fit.
    fn make_room(&mut self, (account, bytes): (Account, u64), kind: Kind) -> bool {
        let bytes_max = self.bytes_max.saturating_mul(1 + u64::from(self.is_target));
        loop {
            let amounts = self.amounts();
            let is_full = amounts.sum().saturating_add(bytes) > bytes_max;
            let most = amounts.most().map(|(most, _)| most).filter(|_| is_full);
            let has_dropped = match most {
                _ if !amounts.admits(account, bytes, bytes_max) => self.drop_one(account, kind),
                None => return !is_full,
                Some(most) if most == account => self.drop_one(account, kind),
                Some(most) => self.drop_one(most, Kind::Facts),
            };
            if !has_dropped {
                return false;
            }
        }
    }

    /// Drops a user's oldest entry worth no more than `kind`; false when there is none, or while
    /// another spool is copied here.
    fn drop_one(&mut self, account: Account, kind: Kind) -> bool {
        if self.is_target {
            return false;
        }
        let steps = self.steps.drop_oldest(account, self.delivered);
        if let Some(steps) = steps {
            self.count_dropped(Kind::Steps, steps);
            // The newest of a silent rank may be among them, and still on its tape.
            self.has_lost |= steps > 0;
            tracing::warn!(
                steps,
                user = account,
                "the spool is full: the oldest step records of a user are dropped"
            );
            return true;
        }
        if kind >= Kind::Snapshots && self.drop_snapshot(account) {
            return true;
        }
        kind >= Kind::Facts && (self.drop_facts(account) || self.drop_capture(account))
    }

    /// Drops the snapshot of a user's oldest capture that has one, and keeps its announcement.
    fn drop_snapshot(&mut self, account: Account) -> bool {
        let has_one = |each: &KeptCapture| each.account == account && each.bytes > each.head_bytes;
        let found = self.captures.iter().find(|(_, each)| has_one(each));
        let Some(number) = found.map(|(number, _)| *number) else { return false };
        let Some(mut each) = self.captures.remove(&number) else { return false };
        self.count_dropped(Kind::Snapshots, 1);
        tracing::warn!(
            capture = each.capture.answer.as_ref().map(|answer| answer.capture_id.as_str()),
            "the spool is full: the snapshot of an agent-initiated capture is dropped"
        );
        wire::drop_snapshot(&mut each.capture);
        let head = head(number, &each.up, &each.capture);
        let name = &each.name;
        let mut replaced = files::replace(&*self.disk, name, &head);
        if replaced.is_err() {
            // A full disk may have no room for the short one beside the long one.
            let _ = self.disk.remove(name);
            replaced = files::replace(&*self.disk, name, &head);
        }
        if replaced.is_ok() {
            (each.head_bytes, each.bytes) = (head.len() as u64, head.len() as u64);
            (each.sent_with, each.has_arrived) = (None, false);
            self.captures.insert(number, each);
        } else {
            self.count_dropped(Kind::Facts, 1);
        }
        true
    }

    fn drop_facts(&mut self, account: Account) -> bool {
        let facts = self.facts.drop_oldest(account, self.delivered);
        let Some(facts) = facts else { return false };
        self.count_dropped(Kind::Facts, facts);
        tracing::warn!(facts, "the spool is full: its oldest facts about ranks are dropped");
        true
    }

    /// Drops a user's oldest agent-initiated capture.
    fn drop_capture(&mut self, account: Account) -> bool {
        let oldest = self.captures.iter().find(|(_, each)| each.account == account);
        let number = oldest.map(|(number, _)| *number);
        let Some(each) = number.and_then(|number| self.captures.remove(&number)) else {
            return false;
        };
        self.count_dropped(Kind::Facts, 1);
        self.count_dropped(Kind::Snapshots, u64::from(each.bytes > each.head_bytes));
        tracing::warn!("the spool is full: its oldest agent-initiated capture is dropped");
        let _ = self.disk.remove(&each.name); // it comes again after a restart
        true
    }

    fn count_dropped(&mut self, kind: Kind, count: u64) {
        match kind {
            Kind::Steps => self.dropped.steps += count,
            Kind::Snapshots => self.dropped.snapshots += count,
            Kind::Facts => self.dropped.facts += count,
        }
        self.is_cursor_due = true;
    }
}

/// The tape that a fact is about.
fn fact_tape_id(kept: &Outgoing) -> Option<&str> {
    match kept {
        Outgoing::RankUp(up) => Some(&up.tape_id),
        Outgoing::RankDown(down) => Some(&down.tape_id),
        _ => None,
    }
}

/// Records before the snapshot in a capture's file.
fn head(number: u64, up: &RankUp, capture: &AgentCapture) -> Vec<u8> {
    let up = wire::encode(Outgoing::RankUp(up.clone()));
    let entry = |payload| frames::encode(&Entry { number, items: 0, payload }.encode());
    [entry(up), entry(wire::encode(Outgoing::AgentCapture(capture.clone())))].concat()
}

/// Notes the newest steps of these ranks, and the number of steps missed before them.
fn note_newest(
    newest: &mut BTreeMap<(String, u8), u64>,
    missed: &mut BTreeMap<String, u64>,
    ranks: &[RankReport],
) {
    for rank in ranks {
        missed.insert(rank.tape_id.clone(), rank.steps_missed);
        for (device, last_step) in wire::steps_of(rank) {
            let known = newest.entry((rank.tape_id.clone(), device)).or_default();
            *known = last_step.max(*known);
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
