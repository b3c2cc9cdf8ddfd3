//! The words by which an agent asks a rank for a remedy, and the rank replies.
//!
//! The agent writes one word, [`header::MAILBOX`](super::layout::header::MAILBOX); the recorder's
//! optimizer hook reads it after each step and writes
//! [`header::REPLY`](super::layout::header::REPLY). Both words have the same shape:
//!
//! ```text
//! check (8 bits) | number (8) | remedy or status (8) | step (40)
//! ```
//!
//! The two processes share no lock, and the agent's write need not be atomic. So the check binds
//! the other 56 bits: a word that is half written, or that another program wrote, is no
//! instruction. The job's offers are in [`header::OFFERED`](super::layout::header::OFFERED).

/// Largest step that fits into a word.
pub const STEP_MAX: u64 = (1 << 40) - 1;

crate::names! {
    /// A remedy that a rank can carry out inside its process.
    #[derive(strum::FromRepr)]
    #[repr(u8)]
    pub enum Remedy in "snake_case" {
        /// Python's garbage collection.
        Gc = 1,
        /// `torch.cuda.empty_cache()`.
        EmptyCache = 2,
        /// The function that the program registered for checkpoints.
        Checkpoint = 3,
    }
}

crate::names! {
    /// An offer that a job can make for its ranks.
    #[repr(u64)]
    pub enum Offer in "kebab-case" {
        /// [`Remedy::Gc`].
        Gc = 1,
        /// [`Remedy::EmptyCache`].
        EmptyCache = 2,
        /// [`Remedy::Checkpoint`].
        Checkpoint = 4,
        /// A signal to the process.
        Signal = 8,
    }
}

/// All offers of a job for a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offers(u64);

/// Outcome of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr, strum::VariantArray)]
#[repr(u8)]
pub enum ReplyStatus {
    /// The remedy was carried out, at exactly its step.
    Done = 1,
    /// The instruction's step had passed: nothing was done.
    Late = 2,
    /// The remedy was begun and failed.
    Failed = 3,
    /// The job does not offer the remedy: nothing was done.
    NotOffered = 4,
}

/// A remedy for a rank, after exactly this number of steps have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Number of the instruction, from 1; differs from the previous one.
    number: u8,
    remedy: Remedy,
    step: u64,
}

/// The rank's reply to an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    number: u8,
    status: ReplyStatus,
    step: u64,
}

/// The hook's decision about an instruction after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// The instruction's step has not ended yet.
    NotYet,
    /// The instruction is carried out now.
    Now,
    /// The instruction's step has passed.
    Late,
}

impl Remedy {
    /// Offer of a job that the remedy needs.
    pub fn offer(self) -> Offer {
        match self {
            Self::Gc => Offer::Gc,
            Self::EmptyCache => Offer::EmptyCache,
            Self::Checkpoint => Offer::Checkpoint,
        }
    }
}

impl Offer {
    /// Every one.
    pub fn all() -> &'static [Self] {
        <Self as strum::VariantArray>::VARIANTS
    }
}

impl Offers {
    /// The offers of a tape; bits of a later version are left out.
    pub fn from_word(word: u64) -> Self {
        Offer::all().iter().filter(|offer| word & **offer as u64 != 0).copied().collect()
    }

    /// The offers in a text such as `gc,empty-cache`; names that are not known are left out.
    pub fn from_names(names: &str) -> Self {
        names.split(',').filter_map(|name| name.trim().parse::<Offer>().ok()).collect()
    }

    /// Offers as the word [`header::OFFERED`](super::layout::header::OFFERED).
    pub fn word(self) -> u64 {
        self.0
    }

    /// True when the offer is among them.
    pub fn has(self, offer: Offer) -> bool {
        self.0 & offer as u64 != 0
    }

    /// Offers that both have.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// All offers without this one.
    #[must_use]
    pub fn without(self, offer: Offer) -> Self {
        Self(self.0 & !(offer as u64))
    }

    /// Each offer.
    pub fn iter(self) -> impl Iterator<Item = Offer> {
        Offer::all().iter().copied().filter(move |offer| self.has(*offer))
    }
}

impl FromIterator<Offer> for Offers {
    fn from_iter<T: IntoIterator<Item = Offer>>(offers: T) -> Self {
        Self(offers.into_iter().fold(0, |word, offer| word | offer as u64))
    }
}

impl Instruction {
    /// An instruction; none without a number, or for a step that does not fit into a word.
    pub fn new(number: u8, remedy: Remedy, step: u64) -> Option<Self> {
        (number > 0 && step <= STEP_MAX).then_some(Self { number, remedy, step })
    }

    /// The instruction in a word; none where the word is empty, torn or of a later version.
    pub fn from_word(word: u64) -> Option<Self> {
        let (number, kind, step) = unpack(word)?;
        Self::new(number, Remedy::from_repr(kind)?, step)
    }

    /// The instruction as the word [`header::MAILBOX`](super::layout::header::MAILBOX).
    pub fn word(self) -> u64 {
        pack(self.number, self.remedy as u8, self.step)
    }

    /// Number of the instruction.
    pub fn number(self) -> u8 {
        self.number
    }

    /// The remedy.
    pub fn remedy(self) -> Remedy {
        self.remedy
    }

    /// The step after which the remedy is carried out.
    pub fn step(self) -> u64 {
        self.step
    }

    /// Decides about the instruction when this many steps have ended.
    pub fn due(self, steps: u64) -> Due {
        match steps.cmp(&self.step) {
            core::cmp::Ordering::Less => Due::NotYet,
            core::cmp::Ordering::Equal => Due::Now,
            core::cmp::Ordering::Greater => Due::Late,
        }
    }

    /// The rank's reply to the instruction, when this many steps have ended.
    pub fn reply(self, status: ReplyStatus, steps: u64) -> Reply {
        Reply { number: self.number, status, step: steps.min(STEP_MAX) }
    }
}

impl Reply {
    /// The reply in a word; none where the word is empty, torn or of a later version.
    pub fn from_word(word: u64) -> Option<Self> {
        let (number, kind, step) = unpack(word)?;
        Some(Self { number, status: ReplyStatus::from_repr(kind)?, step })
    }

    /// The reply as the word [`header::REPLY`](super::layout::header::REPLY).
    pub fn word(self) -> u64 {
        pack(self.number, self.status as u8, self.step)
    }

    /// Number of the instruction.
    pub fn number(self) -> u8 {
        self.number
    }

    /// Outcome of the instruction.
    pub fn status(self) -> ReplyStatus {
        self.status
    }

    /// Steps finished then.
    pub fn step(self) -> u64 {
        self.step
    }
}

/// A number for an instruction: not that of the word in the mailbox, nor of the last reply.
pub fn next_number(mailbox: u64, reply: u64) -> u8 {
    let taken = [mailbox, reply].map(|word| (word >> 48) as u8);
    let first = taken[0].max(taken[1]).wrapping_add(1).max(1);
    // Of three numbers in a row two can be taken.
    let mut numbers = (first..=u8::MAX).chain(1..=3);
    numbers.find(|number| !taken.contains(number)).unwrap_or(1)
}

fn pack(number: u8, kind: u8, step: u64) -> u64 {
    let content = u64::from(number) << 48 | u64::from(kind) << 40 | (step & STEP_MAX);
    u64::from(check(content)) << 56 | content
}

/// Number, kind and step of a word whose check fits.
fn unpack(word: u64) -> Option<(u8, u8, u64)> {
    let content = word & (u64::MAX >> 8);
    let number = (content >> 48) as u8;
    (number > 0 && check(content) == (word >> 56) as u8).then_some((
        number,
        (content >> 40) as u8,
        content & STEP_MAX,
    ))
}

/// CRC-8 with the polynomial 0x07, begun with ones: at this length it finds every change of up to
/// three bits, and every change within eight neighbouring bits.
fn check(content: u64) -> u8 {
    let bytes = content.to_be_bytes();
    bytes.iter().skip(1).fold(0xff, |crc: u8, byte| TABLE[usize::from(crc ^ byte)])
}

/// The check's table, by byte.
const TABLE: [u8; 256] = table();

const fn table() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u8, 0);
        while bit < 8 {
            crc = if crc & 0x80 == 0 { crc << 1 } else { crc << 1 ^ 0x07 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

#[cfg(test)]
#[path = "mailbox_tests.rs"]
mod tests;
