//! Step records of each tape that the coordinator acknowledged, and reports in flight.
//!
//! The tape itself is the buffer: nothing is kept here but step numbers. Each device of a tape has
//! a mark up to which its records were *acknowledged* and one up to which they were *sent* on the
//! present stream. A new stream starts again from the acknowledged mark, so that no record is lost
//! with a stream, and none is sent twice on one. The number of reports in flight is bounded; beyond
//! it nothing is sent, and the tape keeps later records.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use memtape_core::limits::REPORTS_IN_FLIGHT_MAX;

use crate::tapes::quota::TapeKey;

/// Progress of all tapes.
#[derive(Debug, Default)]
pub(crate) struct Deliveries {
    cursors: BTreeMap<(TapeKey, u8), Cursor>,
    in_flight: VecDeque<InFlight>,
    reports_sent: u64,
    /// Devices that are sent from the tape again, because their kept records were lost. Records
    /// that the tape no longer has were counted as lost by the spool.
    resending: BTreeSet<(TapeKey, u8)>,
    downs_sent: BTreeMap<TapeKey, u64>,
    downs_acked: BTreeSet<TapeKey>,
}

/// Records of one device in one report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The tape of the records.
    pub(crate) tape: TapeKey,
    /// The device of the records.
    pub(crate) device: u8,
    /// The last step it carries.
    pub(crate) last_step: u64,
    /// Steps before its first that were overwritten before they were read.
    pub(crate) missed: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    acked_step: u64,
    sent_step: u64,
    acked_missed: u64,
    sent_missed: u64,
}

#[derive(Debug)]
struct InFlight {
    number: u64,
    marks: Vec<Mark>,
}

impl Deliveries {
    /// Starts a new stream: records that were sent and not acknowledged are due again.
    pub(crate) fn start_stream(&mut self) {
        self.in_flight.clear();
        self.downs_sent.clear();
        self.reports_sent = 0;
        for cursor in self.cursors.values_mut() {
            cursor.sent_step = cursor.acked_step;
            cursor.sent_missed = cursor.acked_missed;
        }
    }

    /// The step after which records of a device are still to be sent.
    pub(crate) fn sent_step(&self, tape: TapeKey, device: u8) -> u64 {
        self.cursors.get(&(tape, device)).map_or(0, |cursor| cursor.sent_step)
    }

    /// Steps of a tape that were overwritten before they were read, all devices together.
    pub(crate) fn missed(&self, tape: TapeKey) -> u64 {
        let of_tape = self.cursors.range((tape, 0)..=(tape, u8::MAX));
        of_tape.fold(0, |sum, (_, cursor)| sum.saturating_add(cursor.sent_missed))
    }

    /// False while too many reports are on their way.
    pub(crate) fn may_send(&self) -> bool {
        self.in_flight.len() < REPORTS_IN_FLIGHT_MAX
    }

    /// The number of the next report.
    pub(crate) fn next_number(&self) -> u64 {
        self.reports_sent + 1
    }

    /// Report [`Self::next_number`] was sent with these records.
    pub(crate) fn report_sent(&mut self, marks: Vec<Mark>) {
        self.reports_sent += 1;
        for mark in &marks {
            self.resending.remove(&(mark.tape, mark.device));
            let cursor = self.cursors.entry((mark.tape, mark.device)).or_default();
            cursor.sent_step = cursor.sent_step.max(mark.last_step);
            cursor.sent_missed = cursor.sent_missed.saturating_add(mark.missed);
        }
        self.in_flight.push_back(InFlight { number: self.reports_sent, marks });
    }

    /// Notes records that the spool keeps: they are never sent from the tape.
    pub(crate) fn kept(&mut self, marks: &[Mark]) {
        for mark in marks {
            let cursor = self.cursors.entry((mark.tape, mark.device)).or_default();
            cursor.acked_step = cursor.acked_step.max(mark.last_step);
            cursor.sent_step = cursor.sent_step.max(mark.last_step);
            cursor.acked_missed = cursor.acked_missed.saturating_add(mark.missed);
            cursor.sent_missed = cursor.sent_missed.saturating_add(mark.missed);
        }
    }

    /// Something that was kept elsewhere is lost: the tapes may still have it.
    pub(crate) fn distrust_kept(&mut self) {
        for (key, cursor) in &mut self.cursors {
            (cursor.acked_step, cursor.sent_step) = (0, 0);
            self.resending.insert(*key);
        }
    }

    /// Starts over for a coordinator with another store, which lacks all acknowledged records.
    pub(crate) fn begin_again(&mut self) {
        self.distrust_kept();
        self.downs_acked.clear();
    }

    /// True when steps that a device's tape has no longer are not to be counted again.
    pub(crate) fn is_resending(&self, tape: TapeKey, device: u8) -> bool {
        self.resending.contains(&(tape, device))
    }

    /// Reports up to this number have arrived; answers the part of it that can be true. Said twice
    /// or of the future, it changes nothing.
    pub(crate) fn acked(&mut self, number: u64) -> u64 {
        let number = number.min(self.reports_sent);
        while let Some(report) = self.in_flight.pop_front_if(|report| report.number <= number) {
            for mark in report.marks {
                let Some(cursor) = self.cursors.get_mut(&(mark.tape, mark.device)) else {
                    continue;
                };
                cursor.acked_step = cursor.acked_step.max(mark.last_step);
                cursor.acked_missed = cursor.acked_missed.saturating_add(mark.missed);
            }
        }
        let arrived = self.downs_sent.iter().filter(|(_, report)| **report <= number);
        self.downs_acked.extend(arrived.map(|(tape, _)| *tape));
        number
    }

    /// Notes that the end of a tape's process was sent on this stream.
    pub(crate) fn down_sent(&mut self, tape: TapeKey) {
        // Messages arrive in order: the next report's acknowledgement speaks for this one too.
        self.downs_sent.insert(tape, self.next_number());
    }

    /// True when the end of a tape's process was sent on this stream.
    pub(crate) fn is_down_sent(&self, tape: TapeKey) -> bool {
        self.downs_sent.contains_key(&tape)
    }

    /// True when the coordinator has everything about a dead tape's process.
    pub(crate) fn is_settled(&self, tape: TapeKey) -> bool {
        self.downs_acked.contains(&tape)
    }

    /// Notes that the process is alive after all, or that more is known of its end: that has to be
    /// sent again.
    pub(crate) fn send_end_again(&mut self, tape: TapeKey) {
        self.downs_sent.remove(&tape);
        self.downs_acked.remove(&tape);
    }

    /// Resets a tape that counted turns and now counts steps: its steps begin with 1.
    pub(crate) fn restart(&mut self, tape: TapeKey) {
        self.cursors.retain(|(key, _), _| *key != tape);
        self.in_flight.iter_mut().for_each(|report| report.marks.retain(|mark| mark.tape != tape));
    }

    /// Forgets a tape that is gone for good.
    pub(crate) fn forget(&mut self, tape: TapeKey) {
        self.cursors.retain(|(key, _), _| *key != tape);
        self.resending.retain(|(key, _)| *key != tape);
        self.send_end_again(tape);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAPE: TapeKey = TapeKey(1);

    enum Do {
        Send(u64, u64),
        Down,
        Ack(u64),
        NewStream,
    }

    /// After the script: the step sent up to, the steps missed, settled or not.
    fn check(script: &[Do], expected: (u64, u64, bool)) {
        let mut deliveries = Deliveries::default();
        for line in script {
            match *line {
                Do::Send(last_step, missed) => {
                    deliveries.report_sent(vec![Mark { tape: TAPE, device: 0, last_step, missed }]);
                }
                Do::Down => deliveries.down_sent(TAPE),
                Do::Ack(number) => assert!(deliveries.acked(number) <= number),
                Do::NewStream => deliveries.start_stream(),
            }
        }
        let found =
            (deliveries.sent_step(TAPE, 0), deliveries.missed(TAPE), deliveries.is_settled(TAPE));
        assert_eq!(found, expected);
    }

    #[test]
    fn a_new_stream_starts_at_the_acknowledged_step() {
        use Do::{Ack, Down, NewStream, Send};
        check(&[], (0, 0, false));
        check(&[Send(5, 0)], (5, 0, false));
        check(&[Send(5, 2), NewStream], (0, 0, false));
        check(&[Send(5, 2), Ack(1), Send(9, 1), NewStream], (5, 2, false));
        check(&[Send(5, 0), Send(9, 0), Ack(2), NewStream], (9, 0, false));
        check(&[Send(5, 0), Ack(7), Send(9, 0), NewStream], (5, 0, false));
        // A late acknowledgement of the old stream is not one of the new stream.
        check(&[Send(5, 0), NewStream, Ack(1)], (0, 0, false));
        check(&[Send(5, 0), Ack(1), Ack(1), Ack(0), NewStream], (5, 0, false));
        check(&[Send(5, 0), Down, Ack(1)], (5, 0, false));
        check(&[Send(5, 0), Down, Send(5, 0), Ack(2)], (5, 0, true));
        check(&[Send(5, 0), Down, NewStream, Send(5, 0), Ack(1)], (5, 0, false));
        check(&[Down, Send(5, 0), Ack(1), NewStream], (5, 0, true));
    }

    #[test]
    fn another_store_gets_everything_again() {
        let mut deliveries = Deliveries::default();
        let mark = Mark { tape: TAPE, device: 0, last_step: 5, missed: 2 };
        deliveries.down_sent(TAPE);
        deliveries.report_sent(vec![mark]);
        deliveries.acked(1);
        assert!(deliveries.is_settled(TAPE) && deliveries.sent_step(TAPE, 0) == 5);
        deliveries.begin_again();
        deliveries.start_stream();
        assert!(!deliveries.is_settled(TAPE) && deliveries.sent_step(TAPE, 0) == 0);
        // What the tape had no longer was counted.
        assert!(deliveries.is_resending(TAPE, 0) && deliveries.missed(TAPE) == 2);
    }

    #[test]
    fn reports_on_their_way_are_bounded() {
        let mut deliveries = Deliveries::default();
        while deliveries.may_send() {
            deliveries.report_sent(Vec::new());
        }
        assert_eq!(deliveries.next_number(), REPORTS_IN_FLIGHT_MAX as u64 + 1);
        deliveries.acked(1);
        assert!(deliveries.may_send());
    }

    #[test]
    fn a_forgotten_tape_has_no_cursors() {
        let mut deliveries = Deliveries::default();
        deliveries.report_sent(vec![Mark { tape: TAPE, device: 3, last_step: 8, missed: 1 }]);
        deliveries.forget(TAPE);
        deliveries.acked(1);
        assert_eq!((deliveries.sent_step(TAPE, 3), deliveries.missed(TAPE)), (0, 0));
    }
}
