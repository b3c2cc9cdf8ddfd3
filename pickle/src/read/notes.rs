//! Counts what a snapshot lacks and what was skipped in it.
//!
//! It runs once, over finished records, and changes none.

use alloc::string::String;
use alloc::vec::Vec;

use crate::read::fold::Tally;
use crate::read::torch::{
    Action, Annotation, Block, Count, Event, Frame, Missing, NOTHING, Record, Segment,
    TorchSnapshot,
};
use crate::read::value::{Heap, Value, View};

/// Characters of a key that are shown.
const KEY_CHARACTERS_MAX: usize = 256;

/// What was counted while records were made, with the keys that the top has too much.
pub(super) fn counts(heap: &Heap, tally: &Tally, of_snapshot: &[Value]) -> Vec<Count> {
    let key = |number: u32| match number {
        NOTHING => String::from("?"),
        number => heap.text(number).chars().take(KEY_CHARACTERS_MAX).collect(),
    };
    let keys = of_snapshot.iter().map(|value| match value.view() {
        View::Text(number) => key(number),
        _ => key(NOTHING),
    });
    let keys = keys.map(|key| Count { record: Record::Snapshot, key, count: 1 });
    let counted = tally.counts.iter();
    let counted =
        counted.map(|(&(record, number), &count)| Count { record, key: key(number), count });
    keys.chain(counted).collect()
}

/// Which keys the records lack, with those that the top lacks.
pub(super) fn missing(snapshot: &TorchSnapshot, of_snapshot: &[&'static str]) -> Vec<Missing> {
    let one = |key: &&'static str| Missing { record: Record::Snapshot, key, count: 1, of: 1 };
    let mut found: Vec<Missing> = of_snapshot.iter().map(one).collect();
    of_segments(snapshot, &mut found);
    let mut list = List { found: &mut found, record: Record::Block };
    let blocks = &snapshot.blocks;
    let checks: [Check<Block>; 5] = [
        ("address", &|block| block.address().is_none()),
        ("size", &|block| block.bytes().is_none()),
        ("requested_size", &|block| block.requested_bytes().is_none()),
        ("state", &|block| block.state.is_none()),
        ("frames", &|block| block.stack().is_none()),
    ];
    list.add(blocks.iter().copied(), &checks);
    of_events(snapshot, &mut found);
    let mut list = List { found: &mut found, record: Record::Annotation };
    let checks: [Check<Annotation>; 4] = [
        ("name", &|annotation| annotation.name == NOTHING),
        ("stage", &|annotation| annotation.stage.is_none()),
        ("time_us", &|annotation| annotation.time_us().is_none()),
        ("device", &|annotation| annotation.device().is_none()),
    ];
    list.add(snapshot.annotations.iter().copied(), &checks);
    let mut list = List { found: &mut found, record: Record::Frame };
    let frames = (0..snapshot.frame_count() as u32).map(|number| snapshot.frame(number));
    let checks: [Check<Frame<'_>>; 3] = [
        ("name", &|frame| frame.name.is_none()),
        ("filename", &|frame| frame.file.is_none()),
        ("line", &|frame| frame.line.is_none()),
    ];
    list.add(frames, &checks);
    found
}

/// A key, and whether a record lacks it.
type Check<'a, T> = (&'static str, &'a dyn Fn(&T) -> bool);

/// Where missing keys of one kind of record are written down.
struct List<'a> {
    found: &'a mut Vec<Missing>,
    record: Record,
}

impl List<'_> {
    fn add<T>(
        &mut self,
        records: impl ExactSizeIterator<Item = T> + Clone,
        checks: &[Check<'_, T>],
    ) {
        for (key, lacks) in checks {
            let count = records.clone().filter(|record| lacks(record)).count() as u64;
            if count > 0 {
                let of = records.len() as u64;
                self.found.push(Missing { record: self.record, key, count, of });
            }
        }
    }
}

fn of_segments(snapshot: &TorchSnapshot, found: &mut Vec<Missing>) {
    let checks: [Check<Segment>; 12] = [
        ("device", &|segment| segment.device.is_none()),
        ("address", &|segment| segment.address.is_none()),
        ("total_size", &|segment| segment.total_bytes.is_none()),
        ("allocated_size", &|segment| segment.allocated_bytes.is_none()),
        ("active_size", &|segment| segment.active_bytes.is_none()),
        ("requested_size", &|segment| segment.requested_bytes.is_none()),
        ("stream", &|segment| segment.stream.is_none()),
        ("segment_type", &|segment| segment.is_small.is_none()),
        ("segment_pool_id", &|segment| segment.pool.is_none()),
        ("is_expandable", &|segment| segment.is_expandable.is_none()),
        ("frames", &|segment| segment.stack.is_none()),
        ("blocks", &|segment| segment.blocks.is_none()),
    ];
    List { found, record: Record::Segment }.add(snapshot.segments.iter().copied(), &checks);
}

fn of_events(snapshot: &TorchSnapshot, found: &mut Vec<Missing>) {
    let is_oom = |event: &Event| event.action == Action::Oom;
    let checks: [Check<Event>; 10] = [
        ("action", &|event| event.action == Action::Unknown),
        ("addr", &|event| event.address().is_none() && !is_oom(event)),
        ("device_free", &|event| event.device_free_bytes().is_none() && is_oom(event)),
        ("size", &|event| event.bytes().is_none()),
        ("stream", &|event| snapshot.stream_of(event).is_none()),
        ("pool_id", &|event| snapshot.pool_of(event).is_none()),
        ("time_us", &|event| event.time_us().is_none()),
        ("frames", &|event| event.stack().is_none()),
        ("compile_context", &|event| event.compile_context == NOTHING),
        ("user_metadata", &|event| event.user_metadata == NOTHING),
    ];
    List { found, record: Record::Event }.add(snapshot.events.iter().copied(), &checks);
}
