//! Diagnoses of made-up ranks whose culprit is known.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::*;
use crate::detector::{Growth, Layer, Scope};
use crate::paging::PAGE_CONFIDENCE_PPM;
use crate::snapshot::{Block, DeviceSnapshot, Frame, RankSnapshot, StackUse};

const MIB: u64 = 1 << 20;

/// A rank in the making: stacks by name, blocks by birth.
struct Maker {
    snapshot: RankSnapshot,
    device: DeviceSnapshot,
}

impl Maker {
    fn new(rank: u32, step: u64, before_step: u64) -> Self {
        let mut snapshot = RankSnapshot {
            step,
            before_step,
            frames: [Frame::default()].to_vec(),
            stacks: [Vec::new()].to_vec(),
            ..RankSnapshot::default()
        };
        snapshot.identity.rank = rank;
        // Stack numbers differ from rank to rank.
        snapshot.stacks.extend((0..rank).map(|_| Vec::new()));
        let device = DeviceSnapshot { device: rank as u8, complete: true, ..Default::default() };
        Self { snapshot, device }
    }

    /// A stack of `file:line:function` frames, innermost first.
    fn stack(&mut self, frames: &[&str]) -> u32 {
        let mut indexes = Vec::new();
        for text in frames {
            let mut parts = text.split(':');
            let frame = Frame {
                file: parts.next().unwrap_or_default().to_string(),
                line: parts.next().and_then(|line| line.parse().ok()).unwrap_or(0),
                function: parts.next().unwrap_or_default().to_string(),
            };
            indexes.push(self.snapshot.frames.len() as u32);
            self.snapshot.frames.push(frame);
        }
        self.snapshot.stacks.push(indexes);
        self.snapshot.stacks.len() as u32 - 1
    }

    /// One block for each birth; those of before T0 are in the earlier state.
    fn blocks(&mut self, stack: u32, size: u64, births: impl Iterator<Item = u64>) {
        let mut before = StackUse { stack, ..StackUse::default() };
        for birth_step in births {
            let address = self.device.blocks.len() as u64 * 4096;
            self.device.blocks.push(Block { address, size, stack, birth_step, ..Block::default() });
            self.device.allocated += size;
            if birth_step < self.snapshot.before_step {
                before.bytes += size;
                before.blocks += 1;
            }
        }
        if before.blocks > 0 {
            self.device.before.push(before);
        }
    }

    fn done(mut self) -> RankSnapshot {
        self.snapshot.devices.push(self.device);
        self.snapshot
    }
}

/// A healthy rank: weights, and gradients that are born again in each step.
fn healthy(rank: u32, step: u64, before_step: u64) -> Maker {
    let mut maker = Maker::new(rank, step, before_step);
    let weights = maker
        .stack(&["/opt/site-packages/torch/nn/linear.py:90:__init__", "/app/model.py:12:__init__"]);
    maker.blocks(weights, 64 * MIB, [0; 20].into_iter());
    let gradients = maker.stack(&["::backward"]);
    maker.blocks(gradients, 64 * MIB, [step - 1; 20].into_iter());
    if before_step > 0 {
        maker.device.before.push(StackUse { stack: gradients, bytes: 1280 * MIB, blocks: 20 });
    }
    maker
}

const LOSS: [&str; 3] = [
    "/opt/lib/python3.12/site-packages/torch/tensor.py:7:clone",
    "/app/train.py:36:train_step",
    "/app/train.py:80:main",
];

fn growth(rank: u32) -> Growth {
    Growth {
        rank,
        device: rank as u8,
        onset_step: 120,
        detected_step: 200,
        last_step: 376,
        bytes_per_step: 3 * MIB / 2,
        grown_bytes: 120 * MIB,
        steps_to_oom: Some(4_137),
        peers: 3,
        ..Growth::default()
    }
}

/// The suspect is rank 2 at step 376; `before_step` 0 means without an earlier state.
fn with_leak(before_step: u64, leaking: u64) -> (RankSnapshot, Vec<RankSnapshot>) {
    let mut suspect = healthy(2, 376, before_step);
    let stack = suspect.stack(&LOSS);
    suspect.blocks(stack, leaking, 120..376);
    let peers = [0, 1, 3].map(|rank| healthy(rank, 376, before_step).done()).to_vec();
    (suspect.done(), peers)
}

fn diagnosed(growth: &Growth, suspect: &RankSnapshot, peers: &[RankSnapshot]) -> Diagnosis {
    diagnose(growth, suspect, &peers.iter().collect::<Vec<_>>())
}

#[test]
fn a_leak_is_named_with_and_without_an_earlier_state() {
    for before_step in [0, 120, 200] {
        let (suspect, peers) = with_leak(before_step, 3 * MIB / 2);
        let diagnosis = diagnosed(&growth(2), &suspect, &peers);
        assert_eq!(diagnosis.class, Class::Leak, "{diagnosis:?}");
        let culprit = diagnosis.culprit.as_ref().expect("a leak has a culprit");
        assert_eq!((culprit.file.as_str(), culprit.line), ("/app/train.py", 36));
        assert_eq!((diagnosis.stack.len(), diagnosis.allocation_steps), (3, 256));
        assert!(diagnosed(&growth(2), &suspect, &peers[..2]).has_less_evidence_than(&diagnosis));
        assert!(!diagnosis.has_less_evidence_than(&diagnosis));
        assert!(diagnosis.explained_ppm > 990_000, "{diagnosis:?}");
        assert_eq!(
            diagnosis.sentence,
            "rank 2 keeps 1.5 MiB more each step since step 121, allocated at train.py:36 in \
             train_step; its 3 peers are flat; out of memory in about 4,100 steps"
        );
    }
    let (suspect, peers) = with_leak(120, 3 * MIB / 2);
    let diagnosis = diagnosed(&growth(2), &suspect, &peers);
    assert_eq!(
        diagnosis.evidence,
        [
            "blocks from train.py:36 in train_step grew by 384 MiB from step 120 to step 376",
            "the same stacks grew by 0 B on the median of 3 peers",
            "its 256 live blocks were allocated in 256 distinct steps, 121 to 376",
            "this line explains 100 % of the growth",
        ]
    );
    assert_eq!(diagnosis.against, Vec::<String>::new());
}

/// The detector dates a growth to within some steps; the blocks that are kept, to the step.
#[test]
fn a_leak_begins_with_the_step_of_its_first_block() {
    let (suspect, peers) = with_leak(200, 3 * MIB / 2);
    for (dated, detected, expected) in
        [(112, 200, 121), (121, 200, 121), (130, 200, 121), (10, 200, 10), (300, 320, 300)]
    {
        let seen = Growth { onset_step: dated, detected_step: detected, ..growth(2) };
        let sentence = diagnosed(&seen, &suspect, &peers).sentence;
        assert!(sentence.contains(&format!("since step {expected},")), "{dated}: {sentence}");
    }
    // Not after the step at which it was seen, and not where a collector gives back what is old.
    let growths = [
        Growth { onset_step: 112, detected_step: 118, ..growth(2) },
        Growth { onset_step: 112, give_backs: 1, ..growth(2) },
    ];
    for seen in growths {
        let sentence = diagnosed(&seen, &suspect, &peers).sentence;
        assert!(sentence.contains("since step 112,"), "{sentence}");
    }
}

#[test]
fn a_retained_graph_is_ranked_by_line() {
    let mut suspect = healthy(2, 376, 120);
    for operation in 0..30 {
        let inner = format!("/x/site-packages/torch/nn/ops.py:{operation}:forward");
        let stack = suspect.stack(&[&inner, "/app/model.py:29:forward", "/app/train.py:50:main"]);
        suspect.blocks(stack, MIB / 32, 120..376);
    }
    let other = suspect.stack(&["/app/model.py:31:head"]);
    suspect.blocks(other, MIB / 4, 120..376);
    let peers: Vec<RankSnapshot> = [0, 1, 3].map(|rank| healthy(rank, 376, 120).done()).to_vec();
    let diagnosis = diagnosed(&growth(2), &suspect.done(), &peers);
    assert_eq!(diagnosis.class, Class::Leak);
    assert_eq!(diagnosis.culprit.expect("named").line, 29);
    let lines: Vec<(u32, u32)> =
        diagnosis.suspects.iter().map(|suspect| (suspect.frame.line, suspect.stacks)).collect();
    assert_eq!(lines, [(29, 30), (31, 1)]);
}

#[test]
fn what_peers_keep_too_is_not_the_culprit() {
    let cached = |maker: &mut Maker| {
        let stack = maker.stack(&["/app/cache.py:5:put"]);
        maker.blocks(stack, 4 * MIB, 120..376);
    };
    let (mut suspect, mut peers) = (healthy(2, 376, 120), Vec::new());
    cached(&mut suspect);
    let stack = suspect.stack(&LOSS);
    suspect.blocks(stack, 3 * MIB / 2, 120..376);
    for rank in [0, 1, 3] {
        let mut peer = healthy(rank, 376, 120);
        cached(&mut peer);
        peers.push(peer.done());
    }
    let suspect = suspect.done();
    let diagnosis = diagnosed(&growth(2), &suspect, &peers);
    assert_eq!(diagnosis.culprit.expect("named").line, 36);
    assert!(diagnosis.sentence.contains("beyond the 4 MiB each step of its median peer"));
    // When all ranks grow, the common growth is what is to be explained.
    let all = Growth { scope: Scope::AllRanks, ..growth(2) };
    let diagnosis = diagnosed(&all, &suspect, &peers);
    assert_eq!(diagnosis.culprit.expect("named").line, 5);
    assert!(diagnosis.sentence.starts_with("most ranks keep more each step since step 121"));
}

#[test]
fn classes_are_told_apart() {
    let check = |growth: &Growth, suspect: RankSnapshot, peers: &[RankSnapshot], class: Class| {
        let diagnosis = diagnosed(growth, &suspect, peers);
        assert_eq!(diagnosis.class, class, "{diagnosis:?}");
        assert!(!diagnosis.advice.is_empty());
        diagnosis
    };
    let peers: Vec<RankSnapshot> = [0, 1, 3].map(|rank| healthy(rank, 376, 120).done()).to_vec();
    // A few large buffers of few steps: the job wants more.
    let mut larger = healthy(2, 376, 120);
    let stack = larger.stack(&["/app/data.py:9:pad"]);
    larger.blocks(stack, 192 * MIB, [200, 300].into_iter());
    let diagnosis = check(&growth(2), larger.done(), &peers, Class::Pressure);
    assert_eq!(diagnosis.culprit.expect("named").line, 9);
    // Reserved grows, tensors do not.
    let reserved = Growth { layer: Layer::Reserved, ..growth(2) };
    let diagnosis = check(&reserved, healthy(2, 376, 120).done(), &peers, Class::Fragmentation);
    assert_eq!(diagnosis.culprit, None);
    assert!(diagnosis.sentence.contains("reserves 1.5 MiB more each step"));
    // Stacks are not recorded.
    let mut nameless = healthy(2, 376, 120);
    nameless.blocks(0, 3 * MIB / 2, 120..376);
    let diagnosis = check(&growth(2), nameless.done(), &peers, Class::Unknown);
    assert!(diagnosis.against.contains(&"384 MiB of the growth have no stack".to_string()));
    // Nothing grew.
    check(&growth(2), healthy(2, 376, 120).done(), &peers, Class::Unknown);
    check(&growth(2), RankSnapshot::default(), &[], Class::Unknown);
}

/// A queue from which fewer blocks go than come: all that is alive is young.
#[test]
fn a_queue_that_grows_is_a_leak_and_a_full_one_is_none() {
    // Two blocks of each of the last 46 steps; `before` of them were there before.
    let queue = |before: u64, seen_bytes: u64| {
        let mut suspect = healthy(2, 376, 120);
        let stack = suspect.stack(&LOSS);
        suspect.blocks(stack, MIB, (330..376).chain(330..376));
        let before = StackUse { stack, bytes: before * MIB, blocks: before };
        suspect.device.before.push(before);
        let peers = [0, 1, 3].map(|rank| healthy(rank, 376, 120).done());
        let growth = Growth { bytes_per_step: seen_bytes / 256, ..growth(2) };
        diagnosed(&growth, &suspect.done(), &peers)
    };
    let grown = queue(4, 92 * MIB);
    assert_eq!(
        (grown.class, grown.histogram.course),
        (Class::Leak, AgeProfile::Backlog),
        "{grown:?}"
    );
    assert!(grown.evidence.iter().any(|said| said.contains("fewer go than come")), "{grown:?}");
    assert!(grown.pages());
    for (before, seen_bytes, why) in [
        (90, 92 * MIB, "it was as long before"),
        (4, 300 * MIB, "it filled, and something else grew"),
    ] {
        assert_ne!(queue(before, seen_bytes).class, Class::Leak, "{why}");
    }
}

#[test]
fn what_is_older_than_the_growth_is_not_the_culprit() {
    for before_step in [0, 1] {
        let (mut suspect, _) = with_leak(before_step, 3 * MIB / 2);
        let mut maker = Maker { device: suspect.devices.remove(0), snapshot: suspect };
        let state = maker.stack(&["/app/optimizer.py:44:lazy_state"]);
        maker.blocks(state, 1024 * MIB, [5; 8].into_iter());
        let diagnosis = diagnosed(&growth(2), &maker.done(), &[]);
        assert_eq!(diagnosis.class, Class::Leak, "{diagnosis:?}");
        assert_eq!(diagnosis.culprit.expect("named").line, 36);
    }
}

/// A transfer on a side stream: its buffers are taken back, though that stream still uses them.
#[test]
fn what_was_taken_back_is_not_kept() {
    for before_step in [0, 120] {
        let mut suspect = healthy(2, 376, before_step);
        let stack = suspect.stack(&LOSS);
        suspect.blocks(stack, 3 * MIB / 2, 120..376);
        for block in suspect.device.blocks.iter_mut().filter(|block| block.stack == stack) {
            block.pending = true;
        }
        let peers = [0, 1, 3].map(|rank| healthy(rank, 376, before_step).done());
        let diagnosis = diagnosed(&growth(2), &suspect.done(), &peers);
        assert_eq!((diagnosis.class, diagnosis.suspects.len()), (Class::Unknown, 0));
    }
}

#[test]
fn doubts_are_said() {
    let (mut suspect, mut peers) = with_leak(0, 3 * MIB / 2);
    suspect.devices[0].complete = false;
    peers[0].step = 377;
    let diagnosis = diagnosed(&growth(2), &suspect, &peers);
    assert_eq!(
        diagnosis.against,
        [
            "one peer is shown at another step and was left out",
            "there is no earlier state: growth is told from the birth of blocks",
            "the tape's table of live blocks was full: some blocks are missing",
        ]
    );
    assert!(diagnosis.sentence.contains("the 2 peers that were compared are flat"));
    let alone = diagnosed(&growth(2), &suspect, &[]);
    assert_eq!((alone.class, alone.culprit.expect("named").line), (Class::Leak, 36));
}

#[test]
fn the_first_sentence_needs_no_snapshot() {
    let check =
        |growth: Growth, expected: &str| assert_eq!(first_sentence(&growth, true), expected);
    check(
        growth(2),
        "rank 2 keeps 1.5 MiB more each step since step 120; the median of its 3 peers is flat; \
         out of memory in about 4,100 steps",
    );
    check(
        Growth { peers: 0, steps_to_oom: None, ..growth(0) },
        "rank 0 keeps 1.5 MiB more each step since step 120",
    );
    let over = first_sentence(&Growth { last_step: 900, ..growth(2) }, false);
    let expected = "rank 2 kept 1.5 MiB more each step from step 120 to about step 900; the \
                    median of its 3 peers was flat";
    assert_eq!(over, expected);
}

/// A leak that is sure, of all ranks, a thousand steps old and far from the end.
fn old_leak() -> Diagnosis {
    let (suspect, peers) = with_leak(120, 3 * MIB / 2);
    let all = Growth { scope: Scope::AllRanks, last_step: 1_120, ..growth(2) };
    let all = Growth { steps_to_oom: Some(50_000), ..all };
    Diagnosis { culprit: None, confidence_ppm: 1_000_000, ..diagnosed(&all, &suspect, &peers) }
}

#[test]
fn what_is_sure_or_ends_soon_pages() {
    assert!(old_leak().pages());
    assert!(!Diagnosis { confidence_ppm: PAGE_CONFIDENCE_PPM - 1, ..old_leak() }.pages());
    let needed = Diagnosis { class: Class::Pressure, ..old_leak() };
    assert!(!needed.pages());
    let mut soon = Diagnosis { ends_soon: true, ..needed };
    assert!(soon.pages());
    soon.histogram.course = AgeProfile::Once;
    assert!(!soon.pages(), "it has what it needs");
}

#[test]
fn one_cause_is_reported_once() {
    let culprit =
        |line: u32| Some(Frame { file: "/app/t.py".to_string(), line, ..Frame::default() });
    let of = |class, line: Option<u32>| Diagnosis {
        class,
        culprit: line.and_then(culprit),
        ..old_leak()
    };
    let here = of(Class::Leak, Some(3));
    assert!(here.has_cause_of(&of(Class::Leak, Some(3))));
    assert!(!here.has_cause_of(&of(Class::Leak, Some(4))));
    assert!(!here.has_cause_of(&of(Class::Fragmentation, Some(3))));
    let unknown = of(Class::Leak, None);
    assert!(!unknown.has_cause_of(&unknown), "of no line nothing follows");
    let (library, pools) = (of(Class::NonTorch, None), of(Class::CompilePools, Some(3)));
    assert!(library.has_cause_of(&pools) && pools.has_cause_of(&library));
    assert!(library.comes_with(&pools) && !pools.comes_with(&library));
    assert!(!of(Class::NonTorch, Some(9)).has_cause_of(&pools));
}
