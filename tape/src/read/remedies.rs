//! Remedies that a tape's process offers, and its replies.

use crate::layout::header;
use crate::layout::states::StepSource;
use crate::mailbox::{Instruction, Offers, Reply, next_number};
use crate::read::source::Source;
use crate::read::tape::{Tape, believable};

impl<S: Source> Tape<S> {
    /// Remedies that the job offers on the rank.
    pub fn offered(&self) -> Offers {
        Offers::from_word(self.word(header::OFFERED))
    }

    /// True where PyTorch's optimizer hook ends the steps: only there instructions are read.
    pub fn reads_instructions(&self) -> bool {
        self.word(header::STEP_SOURCE) == StepSource::OptimizerHook as u64
    }

    /// Finished steps, or turns, as of now.
    pub fn finished(&self) -> u64 {
        believable(self.word(header::STEP))
    }

    /// The instruction in the mailbox, whether the rank has replied to it or not.
    pub fn instruction(&self) -> Option<Instruction> {
        Instruction::from_word(self.word(header::MAILBOX))
    }

    /// A number for the next instruction.
    pub fn next_number(&self) -> u8 {
        next_number(self.word(header::MAILBOX), self.word(header::REPLY))
    }

    /// The rank's reply to the last instruction, and the nanoseconds that carrying it out took.
    pub fn reply(&self) -> Option<(Reply, u64)> {
        let reply = Reply::from_word(self.word(header::REPLY))?;
        Some((reply, believable(self.word(header::REPLY_TOOK_NS))))
    }
}
