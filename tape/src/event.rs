//! One event, and how it lies in its slot.
//!
//! ```text
//! word 0  check     binds the ticket and words 1–7 together; when it fails there is no event
//! word 1  detail    what only some kinds have: see [`Event::detail`]
//! word 2  mono_ns
//! word 3  address
//! word 4  size
//! word 5  stack (low half), kind, device, owner (two bytes)
//! word 6  step (low half), birth step (high half)
//! word 7  birth_ns
//! ```
//!
//! The ticket (the event's position in the lane's history, from 1) is not stored: the reader of a
//! slot knows which one must be there, and the check tells whether it is. A free carries the size,
//! stack and birth of its block, so that a reader can put it back.

use crate::layout::sizes::SLOT_WORDS;

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr)]
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
    /// The deferred work is done: the block is free.
    FreeCompleted = 6,
    /// The allocator took a segment from the device.
    SegmentAlloc = 7,
    /// The allocator gave a segment back.
    SegmentFree = 8,
    /// The allocator mapped memory into an expandable segment.
    SegmentMap = 9,
    /// The allocator unmapped a part of an expandable segment.
    SegmentUnmap = 10,
    /// The program marked this point in time.
    Mark = 11,
    /// The program took a snapshot of PyTorch's own.
    Snapshot = 12,
}

/// An event of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Kind of the event.
    pub kind: Kind,
    /// Device it happened on.
    pub device: u8,
    /// Owner of the memory. Device lanes: index of its stream and pool; 0 is unknown.
    /// Host lanes: number of its [`Origin`](crate::snapshot::origin::Origin).
    pub owner: u16,
    /// Blocks and segments: bytes asked for, 0 unknown. `MallocFailed`: how long the failing call
    /// took, in nanoseconds. `Oom`: the device's free bytes, 0 unknown. `Mark`: id of its text.
    pub detail: u64,
    /// CLOCK_MONOTONIC.
    pub mono_ns: u64,
    /// Device address; 0 where there is none. `Oom`: bytes handed out at that time.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Id of the stack that took the block or segment, also where it is given back (0 where
    /// several took parts of a range that is unmapped); 0 is unknown.
    pub stack: u32,
    /// Steps finished at the time of the event.
    pub step: u32,
    /// Steps finished when the block was born (for an allocation: the same as `step`).
    pub birth_step: u32,
    /// CLOCK_MONOTONIC when the block was born. `Oom`: bytes held from the device.
    pub birth_ns: u64,
}

impl Event {
    /// The slot for this event at `ticket`.
    pub fn encode(&self, ticket: u64) -> [u64; SLOT_WORDS] {
        let mut slot = self.words();
        slot[0] = check(ticket, &slot);
        slot
    }

    /// The slot for this event but for its check.
    #[inline(always)]
    pub(crate) fn words(&self) -> [u64; SLOT_WORDS] {
        let what = what(self.kind, self.device, self.owner, self.stack);
        let steps = u64::from(self.step) | u64::from(self.birth_step) << 32;
        [0, self.detail, self.mono_ns, self.address, self.size, what, steps, self.birth_ns]
    }

    /// The event in a slot, if the slot holds the whole event of `ticket`.
    pub fn decode(slot: &[u64; SLOT_WORDS], ticket: u64) -> Option<Self> {
        let [stored, detail, mono_ns, address, size, what, steps, birth_ns] = *slot;
        if stored != check(ticket, slot) {
            return None;
        }
        Some(Self {
            kind: Kind::from_repr((what >> KIND_SHIFT) as u8)?,
            device: (what >> DEVICE_SHIFT) as u8,
            owner: (what >> OWNER_SHIFT) as u16,
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

    /// The event with its numbers in steps, which began at `steps_since_ns`: before that the
    /// process counted turns, and no step.
    pub(crate) fn in_steps(self, steps_since_ns: u64) -> Self {
        let at = |ns: u64, step: u32| if ns < steps_since_ns { 0 } else { step };
        let birth_step = at(self.birth_ns, self.birth_step);
        Self { step: at(self.mono_ns, self.step), birth_step, ..self }
    }
}

/// Where a slot's word 5 has the kind, the device and the owner; an entry of the live table has the
/// same word without a kind.
pub(crate) const KIND_SHIFT: u32 = 32;
pub(crate) const DEVICE_SHIFT: u32 = 40;
pub(crate) const OWNER_SHIFT: u32 = 48;

/// Word 5 of a slot.
#[inline(always)]
pub(crate) fn what(kind: Kind, device: u8, owner: u16, stack: u32) -> u64 {
    of_kind(kind)
        | u64::from(stack)
        | u64::from(device) << DEVICE_SHIFT
        | u64::from(owner) << OWNER_SHIFT
}

/// The kind's part of that word.
#[inline(always)]
pub(crate) const fn of_kind(kind: Kind) -> u64 {
    (kind as u64) << KIND_SHIFT
}

/// Binds a ticket and all words but the first together; never 0. Words that come from two events
/// pass with a chance of about 2⁻⁶⁴.
///
/// Two words at a time are multiplied and the halves of the product folded: each bit of either
/// changes all of it. One key for all keeps the code short, which is what counts where PyTorch's
/// own code has filled the instruction cache.
#[inline(always)]
pub(crate) fn check<const N: usize>(ticket: u64, words: &[u64; N]) -> u64 {
    let first = words.get(1).map_or(0, |word| fold(ticket ^ KEY, word ^ SEED));
    let pairs = words.get(2..).unwrap_or_default().as_chunks::<2>().0;
    pairs.iter().fold(first, |hash, [one, two]| fold(one ^ KEY, two ^ hash)) | 1
}

#[inline(always)]
fn fold(one: u64, two: u64) -> u64 {
    let product = u128::from(one) * u128::from(two);
    product as u64 ^ (product >> 64) as u64
}

/// The first digits of the square roots of 2 and 3: a product with 0 would bind nothing, and no
/// word of an event is likely to be one of these.
const KEY: u64 = 0x6a09_e667_f3bc_c909;
const SEED: u64 = 0xbb67_ae85_84ca_a73b;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_event() -> impl Strategy<Value = Event> {
        (any::<[u64; 5]>(), any::<[u32; 3]>(), 1u8..13, any::<u8>(), any::<u16>()).prop_map(
            |(words, [stack, step, birth_step], kind, device, owner)| {
                let [mono_ns, address, size, birth_ns, detail] = words;
                let kind = Kind::from_repr(kind).unwrap();
                Event {
                    kind,
                    device,
                    owner,
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
        fn a_written_event_is_read_back(event in any_event(), ticket in 1u64..) {
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

        /// Events that follow each other differ in little, and mostly in the same words.
        #[test]
        fn a_slot_of_two_events_that_are_nearly_the_same_is_neither(
            one in any_event(), apart in nearly(), mask in 1u8..255,
        ) {
            let [time, address, size, step, stack] = apart;
            let two = Event {
                mono_ns: one.mono_ns.wrapping_add(time),
                address: one.address.wrapping_add(address),
                size: one.size.wrapping_add(size),
                step: one.step.wrapping_add(step as u32),
                stack: one.stack ^ stack as u32,
                ..one
            };
            let (old, new) = (one.encode(77), two.encode(77 + 4096));
            let mixed = core::array::from_fn(|i| if mask >> i & 1 == 1 { old[i] } else { new[i] });
            if mixed != old {
                prop_assert_eq!(Event::decode(&mixed, 77), None);
            }
            if mixed != new {
                prop_assert_eq!(Event::decode(&mixed, 77 + 4096), None);
            }
        }

        #[test]
        fn no_bit_may_be_another(event in any_event(), word in 0..SLOT_WORDS, bit in 0u32..64) {
            let mut slot = event.encode(5);
            slot[word] ^= 1 << bit;
            prop_assert_eq!(Event::decode(&slot, 5), None);
            slot[word] ^= 1 << bit;
            prop_assert_eq!(Event::decode(&slot, 5 ^ 1 << bit), None, "another ticket");
        }
    }

    /// Small numbers, half of them 0, each in a place of its own.
    fn nearly() -> impl Strategy<Value = [u64; 5]> {
        let small = || prop_oneof![Just(0u64), 1u64..5, Just(512), (0u32..64).prop_map(|b| 1 << b)];
        [small(), small(), small(), small(), small()]
    }
}
