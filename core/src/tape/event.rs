//! One event, and how it lies in its slot.
//!
//! ```text
//! word 0  check     binds words 1–7 together; a slot whose check fails is not an event
//! word 1  ticket    position in the lane's history, from 1
//! word 2  mono_ns
//! word 3  address
//! word 4  size
//! word 5  stack (low half), kind, device
//! word 6  step (low half), birth step (high half)
//! word 7  birth_ns
//! ```
//!
//! A free carries what its block was (size, stack, birth), so that a reader can put it back.

use super::layout::SLOT_WORDS;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A block was handed out (host lane: a segment was taken from the device).
    Alloc = 1,
    /// A block was taken back (host lane: a segment was returned).
    Free = 2,
    /// A request failed for good.
    Oom = 3,
    /// `cudaMalloc` failed.
    MallocFailed = 4,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Alloc,
            2 => Self::Free,
            3 => Self::Oom,
            4 => Self::MallocFailed,
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
    /// CLOCK_MONOTONIC.
    pub mono_ns: u64,
    /// Device address; 0 where there is none.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Atom of the stack that allocated the block (for a free: that block's); 0 is unknown.
    pub stack: u32,
    /// Steps finished when it happened.
    pub step: u32,
    /// Steps finished when the block was born (for an allocation: the same as `step`).
    pub birth_step: u32,
    /// CLOCK_MONOTONIC when the block was born.
    pub birth_ns: u64,
}

impl Event {
    /// The slot for this event at `ticket`.
    #[inline]
    pub fn encode(&self, ticket: u64) -> [u64; SLOT_WORDS] {
        let mut slot = [
            0,
            ticket,
            self.mono_ns,
            self.address,
            self.size,
            u64::from(self.stack) | (self.kind as u64) << 32 | u64::from(self.device) << 40,
            u64::from(self.step) | u64::from(self.birth_step) << 32,
            self.birth_ns,
        ];
        slot[0] = check(&slot);
        slot
    }

    /// The event in a slot, if the slot holds exactly the one of `ticket`, whole.
    pub fn decode(slot: &[u64; SLOT_WORDS], ticket: u64) -> Option<Self> {
        let [stored, seen, mono_ns, address, size, what, steps, birth_ns] = *slot;
        if seen != ticket || stored != check(slot) {
            return None;
        }
        Some(Self {
            kind: Kind::from_byte((what >> 32) as u8)?,
            device: (what >> 40) as u8,
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

/// Binds the words of a slot: a sum of products with odd constants, so that the multiplications
/// run side by side and a slot that mixes two events passes with a chance of about 2⁻⁶⁴.
/// The constants are the first digits of square roots of primes.
#[inline]
pub(super) fn check<const N: usize>(words: &[u64; N]) -> u64 {
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
    let mut sum: u64 = 0;
    for (word, odd) in words.iter().zip(ODD).skip(1) {
        // The high half is folded in first: a product keeps changes of high bits out of low ones.
        sum = sum.wrapping_add((word ^ word >> 32).wrapping_mul(odd));
    }
    sum ^ sum >> 29 | 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_event() -> impl Strategy<Value = Event> {
        (any::<[u64; 4]>(), any::<[u32; 3]>(), 1u8..5, any::<u8>()).prop_map(
            |([mono_ns, address, size, birth_ns], [stack, step, birth_step], kind, device)| Event {
                kind: Kind::from_byte(kind).unwrap(),
                device,
                mono_ns,
                address,
                size,
                stack,
                step,
                birth_step,
                birth_ns,
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
