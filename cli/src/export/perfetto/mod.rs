//! Timelines as a trace for ui.perfetto.dev: one process for each rank, with rows for its memory,
//! its steps and phases, and its single events.
//!
//! The format is Perfetto's protobuf, not the JSON of Chrome: Perfetto no longer extends that, and
//! it has neither units nor nanoseconds. All times are Unix times, so a row of one rank
//! lies exactly above that of another only as far as the clocks of their nodes agree.

mod wire;

use std::collections::BTreeSet;

use prost::Message;

use self::wire::{
    Clock, ClockSnapshot, CounterDescriptor, DebugAnnotation, ProcessDescriptor, Trace,
    TracePacket, TrackDescriptor, TrackEvent,
};
use crate::export::timeline::{Instant, Timeline};

/// `BUILTIN_CLOCK_REALTIME` and `BUILTIN_CLOCK_BOOTTIME`: Unix time, and the clock of traces.
const CLOCKS: [u32; 2] = [1, 6];

/// `CounterDescriptor.UNIT_SIZE_BYTES`.
const BYTES: i32 = 3;

/// `TrackEvent.Type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
enum Kind {
    SliceBegin = 1,
    SliceEnd = 2,
    Instant = 3,
    Counter = 4,
}

/// The content of the file.
pub(crate) fn document(ranks: &[Timeline]) -> Vec<u8> {
    let mut trace = Writer { packets: vec![clocks(ranks)], sequence: 0, uuid: 0 };
    let numbers = process_numbers(ranks);
    for (rank, pid) in ranks.iter().zip(numbers) {
        trace.rank(rank, pid);
    }
    Trace { packet: trace.packets }.encode_to_vec()
}

/// Process ids, distinct within a trace. If ids of several nodes collide, or one is unknown, each
/// rank gets its number plus 1.
fn process_numbers(ranks: &[Timeline]) -> Vec<i32> {
    let distinct: BTreeSet<u32> = ranks.iter().map(|rank| rank.pid).collect();
    let is_usable = distinct.len() == ranks.len() && !distinct.contains(&0);
    let number = |rank: &Timeline| {
        let number = if is_usable { rank.pid } else { rank.rank.saturating_add(1) };
        i32::try_from(number).unwrap_or(i32::MAX)
    };
    ranks.iter().map(number).collect()
}

/// Says that the times of the trace are Unix times.
fn clocks(ranks: &[Timeline]) -> TracePacket {
    let first = |rank: &Timeline| {
        let points = rank.counters.iter().filter_map(|counter| counter.points.first());
        points.map(|(at_ns, _)| *at_ns).min()
    };
    let at_ns = time(ranks.iter().filter_map(first).min().unwrap_or(0));
    let clock = |clock_id| Clock { clock_id: Some(clock_id), timestamp: Some(at_ns) };
    TracePacket {
        timestamp: Some(at_ns),
        clock_snapshot: Some(ClockSnapshot { clocks: CLOCKS.map(clock).to_vec() }),
        trusted_packet_sequence_id: Some(1),
        ..TracePacket::default()
    }
}

fn time(wall_ns: i64) -> u64 {
    u64::try_from(wall_ns).unwrap_or(0)
}

/// Makes packets.
struct Writer {
    packets: Vec<TracePacket>,
    /// Sequence of the rank; packets of one sequence come from one writer.
    sequence: u32,
    /// Number of the last row.
    uuid: u64,
}

impl Writer {
    fn rank(&mut self, of: &Timeline, pid: i32) {
        self.sequence += 1;
        let process_name = match of.name.as_str() {
            "" => format!("rank {}", of.rank),
            name => format!("rank {} of {name}", of.rank),
        };
        let process = ProcessDescriptor { pid: Some(pid), process_name: Some(process_name) };
        let parent =
            self.row(TrackDescriptor { process: Some(process), ..TrackDescriptor::default() });
        let row = |name: &str| TrackDescriptor {
            name: Some(name.to_string()),
            parent_uuid: Some(parent),
            ..TrackDescriptor::default()
        };
        for counter in &of.counters {
            let unit = Some(CounterDescriptor { unit: Some(BYTES) });
            let uuid = self.row(TrackDescriptor { counter: unit, ..row(&counter.name) });
            for (at_ns, bytes) in &counter.points {
                let value = i64::try_from(*bytes).unwrap_or(i64::MAX);
                let event = TrackEvent { counter_value: Some(value), ..TrackEvent::default() };
                self.event(uuid, Kind::Counter, *at_ns, event);
            }
        }
        for track in &of.tracks {
            let uuid = self.row(row(&track.name));
            for slice in &track.slices {
                let begin = TrackEvent { name: Some(slice.name.clone()), ..TrackEvent::default() };
                self.event(uuid, Kind::SliceBegin, slice.start_ns, begin);
                self.event(uuid, Kind::SliceEnd, slice.end_ns, TrackEvent::default());
            }
        }
        if !of.events.is_empty() {
            let uuid = self.row(row("events"));
            for event in &of.events {
                self.event(uuid, Kind::Instant, event.at_ns, instant(event));
            }
        }
    }

    /// Adds a row; its number.
    fn row(&mut self, of: TrackDescriptor) -> u64 {
        self.uuid += 1;
        self.packets.push(TracePacket {
            trusted_packet_sequence_id: Some(self.sequence),
            track_descriptor: Some(TrackDescriptor { uuid: Some(self.uuid), ..of }),
            ..TracePacket::default()
        });
        self.uuid
    }

    fn event(&mut self, track: u64, kind: Kind, at_ns: i64, event: TrackEvent) {
        self.packets.push(TracePacket {
            timestamp: Some(time(at_ns)),
            trusted_packet_sequence_id: Some(self.sequence),
            track_event: Some(TrackEvent {
                r#type: Some(kind as i32),
                track_uuid: Some(track),
                ..event
            }),
            ..TracePacket::default()
        });
    }
}

fn instant(event: &Instant) -> TrackEvent {
    let fact = |&(name, number): &(&'static str, u64)| DebugAnnotation {
        name: Some(name.to_string()),
        uint_value: Some(number),
    };
    TrackEvent {
        name: Some(event.name.clone()),
        debug_annotations: event.facts.iter().map(fact).collect(),
        ..TrackEvent::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::timeline::of_snapshot;
    use crate::export::timeline::of_snapshot::tests::sample;

    fn two_ranks(pids: [u32; 2]) -> Vec<Timeline> {
        let timeline = of_snapshot::timeline(&sample());
        let of = |(rank, pid)| Timeline { rank, pid, ..timeline.clone() };
        (0..).zip(pids).map(of).collect()
    }

    fn decoded(ranks: &[Timeline]) -> Vec<TracePacket> {
        Trace::decode(document(ranks).as_slice()).expect("a trace").packet
    }

    #[test]
    fn every_rank_is_a_process() {
        let check = |pids, expected: [i32; 2]| {
            let packets = decoded(&two_ranks(pids));
            let rows = packets.iter().filter_map(|packet| packet.track_descriptor.as_ref());
            let processes = rows.filter_map(|row| row.process.as_ref());
            let shown: Vec<(Option<i32>, &str)> =
                processes.map(|of| (of.pid, of.process_name.as_deref().unwrap_or(""))).collect();
            let names = ["rank 0 of job <b>", "rank 1 of job <b>"];
            assert_eq!(shown, [(Some(expected[0]), names[0]), (Some(expected[1]), names[1])]);
        };
        check([70, 71], [70, 71]);
        check([70, 70], [1, 2]);
        check([70, 0], [1, 2]);
    }

    #[test]
    fn every_event_is_on_a_row_and_every_slice_ends() {
        let packets = decoded(&two_ranks([1, 2]));
        let rows: BTreeSet<u64> =
            packets.iter().filter_map(|packet| packet.track_descriptor.as_ref()?.uuid).collect();
        let events = packets.iter().filter_map(|packet| packet.track_event.as_ref());
        let mut open = 0;
        for event in events.clone() {
            assert!(event.track_uuid.is_some_and(|uuid| rows.contains(&uuid)), "{event:?}");
            match event.r#type {
                Some(1) => open += 1,
                Some(2) => open -= 1,
                _ => {}
            }
            assert!((0..=1).contains(&open), "{event:?}");
        }
        assert_eq!(open, 0);
        let of = |kind: Kind| events.clone().filter(|of| of.r#type == Some(kind as i32)).count();
        let [counters, slices, instants] = [Kind::Counter, Kind::SliceBegin, Kind::Instant].map(of);
        // A level before the first event of each counter, and one after each of its events.
        assert_eq!((counters, slices, instants), (2 * (4 + 2), 2 * 3, 2 * 3));
    }

    #[test]
    fn times_are_unix_times() {
        let timelines = two_ranks([1, 2]);
        let packets = decoded(&timelines);
        let snapshot = packets[0].clock_snapshot.as_ref().expect("clocks");
        let ids: Vec<Option<u32>> = snapshot.clocks.iter().map(|clock| clock.clock_id).collect();
        assert_eq!(ids, [Some(1), Some(6)]);
        let first = timelines[0].counters[1].points[0].0;
        assert!(snapshot.clocks.iter().all(|of| of.timestamp == Some(first as u64)));
        assert_eq!(document(&timelines), document(&timelines));
    }
}
