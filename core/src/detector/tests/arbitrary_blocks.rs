//! Arbitrary censuses and samples: whatever they say, nothing breaks and little is reported.

use super::blocks::{SECOND_NS, TESTED, frame, fresh_detector};
use super::*;
use crate::census::{Census, LineCensus, LineId};
use crate::snapshot::Held;

/// Ranks, devices and lines of the arbitrary inputs.
const RANKS: u8 = 4;
const DEVICES: u8 = 2;

/// Findings that may be open at once: one for each rank, device, layer and scope.
const OPEN_MAX: usize = RANKS as usize * DEVICES as usize * 16 * 3;

#[derive(Clone, Debug)]
enum Input {
    Sample(Sample),
    Census(u32, Census),
    Ends(u32),
}

impl Input {
    /// The same with steps near this one: what follows each other in steps is judged.
    fn near(self, newest: u64) -> Self {
        match self {
            Self::Sample(sample) => {
                let steps = sample.record.last_step - sample.record.first_step;
                Self::Sample(Sample {
                    record: StepRecord {
                        first_step: newest,
                        last_step: newest + steps,
                        ..sample.record
                    },
                    ..sample
                })
            }
            Self::Census(rank, census) => {
                let of = |line: LineCensus| LineCensus {
                    cohorts: line.cohorts.into_iter().map(|(at, of)| (at % newest, of)).collect(),
                    ..line
                };
                let lines = census.lines.into_iter().map(|(id, line)| (id, of(line))).collect();
                Self::Census(rank, Census { step: newest, lines, ..census })
            }
            Self::Ends(rank) => Self::Ends(rank),
        }
    }
}

/// Numbers below a bound, small ones and all of them alike.
fn number(bound: u64) -> impl Strategy<Value = u64> + Clone {
    prop_oneof![3 => 0..4_000_u64, 2 => 0..bound.min(1 << 32), 1 => 0..=bound, 1 => Just(bound)]
}

fn held(bound: u64) -> impl Strategy<Value = Held> {
    let large = prop_oneof![Just(32 * MIB), Just(GIB), number(bound)];
    (large, number(bound)).prop_map(|(bytes, count)| Held { bytes, count })
}

fn censuses(bound: u64) -> impl Strategy<Value = Census> {
    let cohorts = proptest::collection::btree_map(number(bound), held(bound), 0..12);
    let line = (any::<bool>(), cohorts).prop_map(|(is_users, cohorts)| LineCensus {
        frames: if is_users { [frame(TESTED)].into() } else { Vec::new() },
        cohorts,
    });
    let lines = proptest::collection::btree_map((0..4_u64).prop_map(LineId), line, 0..4);
    (0..DEVICES, number(bound), lines, held(bound))
        .prop_map(|(device, step, lines, other_lines)| Census { device, step, lines, other_lines })
}

fn inputs(bound: u64) -> impl Strategy<Value = Vec<Input>> {
    let bytes = [number(bound), number(bound), number(bound), number(bound)];
    let sample = (0..RANKS, 0..DEVICES, number(bound), 0..3_u64, bytes).prop_map(
        |(rank, device, first_step, steps, [floor, peak, size, blocks])| Sample {
            rank: u32::from(rank),
            device,
            device_bytes: size,
            record: StepRecord {
                first_step,
                last_step: first_step.saturating_add(steps),
                floor_allocated: floor,
                peak_allocated: peak,
                end_allocated: floor,
                floor_reserved: peak,
                peak_reserved: peak,
                end_reserved: size,
                blocks,
                ..StepRecord::default()
            },
        },
    );
    let rank = || (0..RANKS).prop_map(u32::from);
    let input = prop_oneof![
        8 => sample.prop_map(Input::Sample),
        8 => (rank(), censuses(bound)).prop_map(|(rank, census)| Input::Census(rank, census)),
        1 => rank().prop_map(Input::Ends),
    ];
    let near = (1..40_u64, proptest::collection::vec((input, any::<bool>()), 1..80));
    near.prop_map(|(steps, inputs)| {
        let near = |(number, (input, is_near)): (usize, (Input, bool))| {
            if is_near { input.near((number as u64 + 1) * steps) } else { input }
        };
        inputs.into_iter().enumerate().map(near).collect()
    })
}

/// Feeds them; the findings that are open at the end.
fn open_after(inputs: Vec<Input>) -> usize {
    let mut detector = fresh_detector(0);
    let mut open = alloc::collections::BTreeSet::new();
    for (number, input) in inputs.into_iter().enumerate() {
        let now_ns = number as u64 * 5 * SECOND_NS;
        match input {
            Input::Sample(sample) => detector.sample(now_ns, &sample),
            Input::Census(rank, census) => detector.census(now_ns, rank, &census),
            Input::Ends(rank) => detector.rank_ended(rank),
        }
        while let Some(finding) = detector.poll() {
            match finding {
                Finding::Opened(growth) => assert!(open.insert(growth.key()), "{growth:?}"),
                Finding::Updated(growth) => assert!(open.contains(&growth.key()), "{growth:?}"),
                Finding::Closed(growth) => assert!(open.remove(&growth.key()), "{growth:?}"),
            }
        }
    }
    open.len()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Also what the coordinator would not let through.
    #[test]
    fn arbitrary_censuses_are_harmless(inputs in inputs(u64::MAX)) {
        let open = open_after(inputs);
        prop_assert!(open <= OPEN_MAX, "{open} findings are open");
    }
}

/// A rank that goes on alone, in jumps, costs bounded memory, and its peers are still judged.
#[test]
fn a_rank_far_ahead_of_its_peers_is_not_counted() {
    let mut detector = fresh_detector(3);
    let mut sample = |rank, step| {
        let record = StepRecord { first_step: step, last_step: step + 15, ..Default::default() };
        let sample = Sample { rank, device: 0, device_bytes: 1 << 36, record };
        detector.sample(step * SECOND_NS, &sample);
        (detector.finished.len(), detector.next_block)
    };
    sample(1, 0);
    sample(2, 0);
    let counted = (1..20_000).map(|jump| sample(0, jump * 1024).0).max();
    assert_eq!(counted, Some(64 * 64));
    let swept = (1..200).map(|block| (sample(1, block * 16), sample(2, block * 16))).last();
    assert_eq!(swept.map(|(_, (_, next))| next), Some(200));
}
