//! What a rank has kept: the live memory of a capture by line and by stack, beside that of peers,
//! at the end of a step, at a peak, or when a request failed.

use memtape_core::limits::{KEPT_LINES_MAX, KEPT_STACKS_MAX};
use memtape_core::snapshot::frames::telling_frame;
use memtape_core::snapshot::{Frame, Held, RankSnapshot, allocation_step};
use memtape_core::stacks::{ComparedStacks, HeldAt, LineRow, StackRow};
use memtape_core::tape::layout::Clock;
use serde::{Deserialize, Serialize};

use super::name::Named;

/// Which rank of a capture, when, and in which steps its memory was allocated.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeptQuery {
    /// The rank.
    pub rank: u32,
    /// When: without it the time that explains an incident of this rank with this capture, where
    /// the capture shows it, else the end of its step. Steps are chosen at the end of the step
    /// alone.
    #[cfg_attr(
        feature = "schema",
        schemars(schema_with = "memtape_core::tape::schema::words::<HeldAt>")
    )]
    #[serde(default)]
    pub at: Option<HeldAt>,
    /// First step, counted from 1; without one from the start of the process.
    pub from: Option<u64>,
    /// Last step, at most that of the capture; without one all later steps too.
    pub to: Option<u64>,
    /// Id of another capture: the rank is compared with itself there, in place of its peers.
    pub baseline: Option<String>,
}

/// The memory of one rank that was allocated in steps `from` to `to` and is alive at the end of
/// `step`, or all that was alive at another time (`at`). Blocks that are pending free are not in
/// it: the program has freed them. A block belongs to the step in which it was allocated; step 1
/// also has the blocks that are older than the first step, and those whose step is not known.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Kept {
    /// Id of the capture.
    pub capture: String,
    /// Name of the job.
    pub job: String,
    /// Number of the attempt.
    pub attempt: u32,
    /// The rank.
    pub rank: u32,
    /// When the memory is alive: at a peak that of the primary device alone, and at a failed
    /// request that of the device that was asked.
    pub at: Named<HeldAt>,
    /// The step at whose end the memory is alive; of a rank whose snapshot is within a step, the
    /// step before it. Of a peak and of a failed request the step that has it.
    pub step: u64,
    /// What all numbers of steps here count.
    pub clock: Named<Clock>,
    /// First step of the range; null where none was asked for.
    pub from: Option<u64>,
    /// Last step of the range; null where none was asked for.
    pub to: Option<u64>,
    /// Bytes of the rank: the sum over `lines` and `other_lines`, and over `stacks` and
    /// `other_stacks`.
    pub bytes: u64,
    /// The same in blocks.
    pub blocks: u64,
    /// Live bytes of the rank in no recorded block, because its tape was full. Their steps are not
    /// known: they are in no other number here. Without a range they and `bytes` are all that the
    /// allocator has handed out. At a peak, such bytes at the end of the step; at a failed request,
    /// the bytes of stacks that hold little or are not known.
    pub unrecorded_bytes: u64,
    /// The request of the rank that failed for good after the end of the step of the capture; null
    /// where none did.
    pub failed: Option<FailedMemory>,
    /// Id of the capture that the rank was compared with in place of peers: then every number of a
    /// median peer is that of the rank there.
    pub baseline: Option<String>,
    /// The ranks that were compared, of the same role and at the same step, in order: at most 15,
    /// those with the nearest numbers. At a peak and at a failed request, each at its own peak.
    pub peers: Vec<u32>,
    /// Ranks of the same role whose numbers are farther: they were not compared.
    pub peers_left_out: u32,
    /// Ranks of the same role with near numbers that could not be compared.
    pub missing_peers: Vec<MissingPeer>,
    /// Bytes of the median peer; null without peers.
    pub peer_bytes: Option<u64>,
    /// The lines that hold most beyond the median peer first; at most 64.
    pub lines: Vec<KeptLine>,
    /// The lines that are not in the list.
    pub other_lines: KeptRest,
    /// The frames of the stacks.
    pub frames: Vec<Frame>,
    /// The stacks that hold most first, on the rank or on the median peer; at most 1,024.
    pub stacks: Vec<KeptStack>,
    /// The stacks that are not in the list.
    pub other_stacks: KeptRest,
}

/// A request for memory that failed for good, and the memory of its device then.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct FailedMemory {
    /// Device index in the process.
    pub device: u8,
    /// The step in which it failed.
    pub step: u64,
    /// Unix time of the failure in nanoseconds.
    pub wall_ns: i64,
    /// Bytes asked for, rounded as the allocator rounds.
    pub asked_bytes: u64,
    /// The line that asked; empty where it is not known.
    pub frame: Frame,
    /// Bytes handed out to tensors.
    pub allocated_bytes: u64,
    /// Bytes that the allocator held from the device.
    pub reserved_bytes: u64,
    /// Free bytes of the device by the driver; null where unknown.
    pub device_free_bytes: Option<u64>,
}

impl FailedMemory {
    /// The failed request of a snapshot, where it has one.
    pub fn of(snapshot: &RankSnapshot) -> Option<Self> {
        let failed = snapshot.failed_request.as_ref()?;
        let frames: Vec<&Frame> = snapshot.frames_of(failed.stack).collect();
        Some(Self {
            device: failed.device,
            step: allocation_step(failed.step),
            wall_ns: failed.wall_ns,
            asked_bytes: failed.bytes,
            frame: telling_frame(&frames).cloned().unwrap_or_default(),
            allocated_bytes: failed.allocated,
            reserved_bytes: failed.reserved,
            device_free_bytes: failed.device_free,
        })
    }
}

/// A rank of the same role that was not compared.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct MissingPeer {
    /// The rank.
    pub rank: u32,
    /// The reason.
    pub why: String,
}

/// One line of code: the innermost frame of the user's own code, as an incident names it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct KeptLine {
    /// The line; empty for memory without a stack.
    pub frame: Frame,
    /// Bytes of the rank.
    pub bytes: u64,
    /// The same in blocks.
    pub blocks: u64,
    /// Bytes of the median peer by this line; null without peers.
    pub peer_bytes: Option<u64>,
    /// First step in which these blocks of the rank were allocated; null where it has none.
    pub first_step: Option<u64>,
    /// Last step in which they were allocated.
    pub last_step: Option<u64>,
}

/// One stack of one device.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct KeptStack {
    /// Device index in the process; null where the rank uses one device only.
    pub device: Option<u8>,
    /// Indexes into `frames`, outermost first; none for memory without a stack.
    pub frames: Vec<u32>,
    /// Bytes of the rank.
    pub bytes: u64,
    /// The same in blocks.
    pub blocks: u64,
    /// Bytes of the median peer by this stack; null without peers.
    pub peer_bytes: Option<u64>,
}

/// What is not in a list.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct KeptRest {
    /// How many are not in it. Stacks that the answer had no memory for count as one line each.
    pub count: u64,
    /// Bytes of the rank.
    pub bytes: u64,
    /// The same in blocks.
    pub blocks: u64,
}

impl KeptRest {
    fn of((count, held): (u64, Held)) -> Self {
        Self { count, bytes: held.bytes, blocks: held.count }
    }

    fn add(&mut self, held: Held) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(held.bytes);
        self.blocks = self.blocks.saturating_add(held.count);
    }
}

impl Kept {
    /// The amounts, lines and stacks of a comparison with peers; the other fields are empty.
    pub fn of(compared: &ComparedStacks) -> Self {
        let (own, rest) = (compared.own(), KeptRest::of(compared.rest()));
        let mut kept = Self {
            bytes: own.bytes,
            blocks: own.count,
            unrecorded_bytes: compared.unrecorded_bytes(),
            peer_bytes: compared.other_bytes(),
            other_lines: rest,
            other_stacks: rest,
            ..Self::default()
        };
        let has_peers = compared.others() > 0;
        kept.add_lines(compared.lines(), has_peers);
        kept.add_stacks(compared.stacks(), has_peers);
        kept
    }

    fn add_lines(&mut self, lines: Vec<LineRow<'_>>, has_peers: bool) {
        for LineRow { frame, own, other_bytes } in lines {
            if self.lines.len() == KEPT_LINES_MAX {
                self.other_lines.add(own.held);
                continue;
            }
            self.lines.push(KeptLine {
                frame: frame.cloned().unwrap_or_default(),
                bytes: own.held.bytes,
                blocks: own.held.count,
                peer_bytes: has_peers.then_some(other_bytes),
                first_step: own.steps.map(|(first, _)| first),
                last_step: own.steps.map(|(_, last)| last),
            });
        }
    }

    fn add_stacks(&mut self, mut stacks: Vec<StackRow<'_>>, has_peers: bool) {
        stacks.sort_by_key(|row| std::cmp::Reverse(row.own.held.bytes.max(row.other_bytes)));
        let listed = stacks.len().min(KEPT_STACKS_MAX);
        stacks.drain(listed..).for_each(|row| self.other_stacks.add(row.own.held));
        let mut indexes = std::collections::BTreeMap::new();
        for StackRow { device, frames, own, other_bytes } in stacks {
            let index = |frame| {
                *indexes.entry(frame).or_insert_with(|| {
                    self.frames.push(Frame::clone(frame));
                    u32::try_from(self.frames.len() - 1).unwrap_or(u32::MAX)
                })
            };
            self.stacks.push(KeptStack {
                device,
                frames: frames.into_iter().map(index).collect(),
                bytes: own.held.bytes,
                blocks: own.held.count,
                peer_bytes: has_peers.then_some(other_bytes),
            });
        }
    }
}
