//! One event, and how it lies in its slot.
//!
//! ```text
//! word 0  check     binds the ticket and words 1–7 together; when it fails there is no event
//! word 1  detail    what only some kinds have: see [`Event::detail`]
//! word 2  mono_ns
//! word 3  address
//! word 4  size
//! word 5  stack (low half), kind, device, place (two bytes)
//! word 6  step (low half), birth step (high half)
//! word 7  birth_ns
//! ```
//!
//! The ticket (the event's position in the lane's history, from 1) is not stored: whoever reads a
//! slot knows which one must be there, and the check tells whether it is. A free carries what its
//! block was (size, stack, birth), so that a reader can put it back.

use super::layout::SLOT_WORDS;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A block was handed out (host lane: memory was taken by something else than the allocator).
    Alloc = 1,
    /// A block was taken back and is free (host lane: memory was returned).
    Free = 2,
    /// A request failed for good.
    Oom = 3,
    /// `cudaMalloc`, or another function that takes memory, failed.
    MallocFailed = 4,
    /// A block was taken back, but work on another stream still uses it.
    FreeDeferred = 5,
    /// That work is done: the block is free.
    FreeCompleted = 6,
    /// The allocator took a segment from the device.
    SegmentAlloc = 7,
    /// The allocator gave a segment back.
    SegmentFree = 8,
    /// The allocator mapped memory into an expandable segment.
    SegmentMap = 9,
    /// The allocator unmapped a part of an expandable segment.
    SegmentUnmap = 10,
    /// The program marked this moment.
    Mark = 11,
    /// The program took a snapshot of PyTorch's own.
    Snapshot = 12,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Alloc,
            2 => Self::Free,
            3 => Self::Oom,
            4 => Self::MallocFailed,
            5 => Self::FreeDeferred,
            6 => Self::FreeCompleted,
            7 => Self::SegmentAlloc,
            8 => Self::SegmentFree,
            9 => Self::SegmentMap,
            10 => Self::SegmentUnmap,
            11 => Self::Mark,
            12 => Self::Snapshot,
            _ => return None,
        })
    }
}

/// One event of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: Kind,
    /// Device it happened on.
    pub device: u8,
    /// Device lanes: index of the stream and pool in the tape's places; 0 is unknown.
    /// Host lane: the [`super::layout::Origin`].
    pub place: u16,
    /// Blocks and segments: bytes asked for, 0 unknown. `MallocFailed`: how long the failing call
    /// took, in nanoseconds. `Oom`: the device's free bytes, 0 unknown. `Mark`: atom of its text.
    pub detail: u64,
    /// CLOCK_MONOTONIC.
    pub mono_ns: u64,
    /// Device address; 0 where there is none. `Oom`: bytes handed out at that moment.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Atom of the stack that took the block or segment, also where it is given back (0 where
    /// several took parts of a range that is unmapped); 0 is unknown.
    pub stack: u32,
    /// Steps finished when it happened.
    pub step: u32,
    /// Steps finished when the block was born (for an allocation: the same as `step`).
    pub birth_step: u32,
    /// CLOCK_MONOTONIC when the block was born. `Oom`: bytes held from the device.
    pub birth_ns: u64,
}

impl Event {
    /// The slot for this event at `ticket`.
    #[inline]
    pub fn encode(&self, ticket: u64) -> [u64; SLOT_WORDS] {
        let what = u64::from(self.stack)
            | (self.kind as u64) << 32
            | u64::from(self.device) << 40
            | u64::from(self.place) << 48;
        let steps = u64::from(self.step) | u64::from(self.birth_step) << 32;
        let mut slot =
            [0, self.detail, self.mono_ns, self.address, self.size, what, steps, self.birth_ns];
        slot[0] = check_slot(&slot, ticket);
        slot
    }

    /// The event in a slot, if the slot holds exactly the one of `ticket`, whole.
    pub fn decode(slot: &[u64; SLOT_WORDS], ticket: u64) -> Option<Self> {
        let [stored, detail, mono_ns, address, size, what, steps, birth_ns] = *slot;
        if stored != check_slot(slot, ticket) {
            return None;
        }
        Some(Self {
            kind: Kind::from_byte((what >> 32) as u8)?,
            device: (what >> 40) as u8,
            place: (what >> 48) as u16,
            detail,
            mono_ns,
            address,
            size,
            stack: what as u32,
            step: steps as u32,
            birth_step: (steps >> 32) as u32,
            birth_ns,
        })
    }
}

#[inline]
fn check_slot(slot: &[u64; SLOT_WORDS], ticket: u64) -> u64 {
    let [_, detail, mono_ns, address, size, what, steps, birth_ns] = *slot;
    // Written out: this runs for every event, and a loop over iterators is not unrolled.
    let sum = spread(ticket, 1)
        .wrapping_add(spread(mono_ns, 2))
        .wrapping_add(spread(address, 3))
        .wrapping_add(spread(size, 4))
        .wrapping_add(spread(what, 5))
        .wrapping_add(spread(steps, 6))
        .wrapping_add(spread(birth_ns, 7))
        .wrapping_add(spread(detail, 8));
    finish(sum)
}

/// Binds words together: a sum of products with odd constants, so that the multiplications run
/// side by side and a slot that mixes two events passes with a chance of about 2⁻⁶⁴.
pub(super) fn check<const N: usize>(words: &[u64; N]) -> u64 {
    let each = words.iter().enumerate().skip(1);
    finish(each.fold(0, |sum: u64, (index, &word)| sum.wrapping_add(spread(word, index))))
}

/// One product. The high half is folded in first: a product keeps changes of high bits out of low
/// ones.
#[inline(always)]
fn spread(word: u64, index: usize) -> u64 {
    (word ^ word >> 32).wrapping_mul(ODD[index % ODD.len()])
}

#[inline(always)]
fn finish(sum: u64) -> u64 {
    sum ^ sum >> 29 | 1
}

/// The first digits of square roots of primes.
const ODD: [u64; 16] = [
    0,
    0x6a09_e667_f3bc_c909,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
    0x510e_527f_ade6_82d1,
    0x9b05_688c_2b3e_6c1f,
    0x1f83_d9ab_fb41_bd6b,
    0x5be0_cd19_137e_2179,
    0xcbbb_9d5d_c105_9ed9,
    0x629a_292a_367c_d507,
    0x9159_015a_3070_dd17,
    0x152f_ecd8_f70e_5939,
    0x6733_2667_ffc0_0b31,
    0x8eb4_4a87_6858_1511,
    0xdb0c_2e0d_64f9_8fa7,
];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_event() -> impl Strategy<Value = Event> {
        (any::<[u64; 5]>(), any::<[u32; 3]>(), 1u8..13, any::<u8>(), any::<u16>()).prop_map(
            |(words, [stack, step, birth_step], kind, device, place)| {
                let [mono_ns, address, size, birth_ns, detail] = words;
                let kind = Kind::from_byte(kind).unwrap();
                Event {
                    kind,
                    device,
                    place,
                    detail,
                    mono_ns,
                    address,
                    size,
                    stack,
                    step,
                    birth_step,
                    birth_ns,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(event in any_event(), ticket in 1u64..) {
            prop_assert_eq!(Event::decode(&event.encode(ticket), ticket), Some(event));
        }

        #[test]
        fn a_slot_of_two_events_is_neither(
            one in any_event(), two in any_event(), ticket in 1u64..1 << 40, mask in 1u8..255,
        ) {
            prop_assume!(one != two);
            let (old, new) = (one.encode(ticket), two.encode(ticket + 4096));
            let mixed = core::array::from_fn(|i| if mask >> i & 1 == 1 { old[i] } else { new[i] });
            if mixed != old {
                prop_assert_eq!(Event::decode(&mixed, ticket), None);
            }
            if mixed != new {
                prop_assert_eq!(Event::decode(&mixed, ticket + 4096), None);
            }
        }

        #[test]
        fn any_words_are_refused_or_whole(slot in any::<[u64; 8]>(), ticket in any::<u64>()) {
            if let Some(event) = Event::decode(&slot, ticket) {
                prop_assert_eq!(event.encode(ticket)[1..5].to_vec(), slot[1..5].to_vec());
            }
        }
    }
}
