//! A seeded history of allocations, which a child writes to its tape and a test replays.

use std::collections::BTreeMap;

/// Set for the child: the seed of the history to write.
pub const SEED: &str = "MEMTAPE_KILLED_SEED";

/// Set for the child: microseconds that it sleeps after each step.
pub const STEP_US: &str = "MEMTAPE_KILLED_STEP_US";

/// Address → size and birth step.
pub type State = BTreeMap<u64, (u64, u64)>;

/// One operation of a history.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// A block is handed out.
    Alloc {
        /// Where.
        address: u64,
        /// Bytes.
        size: u64,
    },
    /// A block is taken back.
    Free {
        /// Where.
        address: u64,
    },
    /// A step ends.
    Step,
}

/// The history of a seed, one operation after the other, without end.
#[derive(Debug)]
pub struct History {
    rng: fastrand::Rng,
    /// Live blocks after the last operation.
    pub live: State,
    /// Bytes of these.
    pub allocated: u64,
    step: u64,
}

impl History {
    /// The history of this seed, before its first operation.
    pub fn new(seed: u64) -> Self {
        Self { rng: fastrand::Rng::with_seed(seed), live: State::new(), allocated: 0, step: 0 }
    }

    /// The next operation, already done to [`Self::live`].
    pub fn step_on(&mut self) -> Op {
        let random = self.rng.u64(..);
        let address = 0x7f00_0000_0000 + (random >> 20 & 0x3ff) * 512;
        if random.is_multiple_of(50) {
            self.step += 1;
            return Op::Step;
        }
        match self.live.get(&address) {
            Some(&(size, _)) => {
                self.live.remove(&address);
                self.allocated -= size;
                Op::Free { address }
            }
            None => {
                let size = 512 * (1 + (random >> 40 & 0xff));
                self.live.insert(address, (size, self.step));
                self.allocated += size;
                Op::Alloc { address, size }
            }
        }
    }
}
