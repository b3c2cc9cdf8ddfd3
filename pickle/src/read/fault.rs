//! Why a pickle was not read: one line, with the byte at which reading stopped.

use thiserror::Error;

/// A refused pickle, with the offset of the refusal.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("byte {offset}: {fault}")]
pub struct ReadError {
    /// Bytes of the file before the opcode that is to blame.
    pub offset: u64,
    /// The fault of the pickle.
    pub fault: Fault,
}

/// Faults of a pickle.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// The file is something else.
    #[error(
        "not a pickle of protocol 2 to 5 (it begins with {0:#04x}, not 0x80): give the file that \
         torch.cuda.memory._dump_snapshot wrote, as .pickle or .pickle.gz"
    )]
    NoPickle(u8),
    /// A pickle of a protocol that is not known.
    #[error("pickle protocol {0} is not known: write the snapshot with protocol 2 to 5")]
    Protocol(u8),
    /// The opcode runs code.
    #[error(
        "opcode {0} can run code, which no memory snapshot needs: do not load this file with \
         Python unless you trust it"
    )]
    Code(&'static str),
    /// The opcode takes data from elsewhere.
    #[error("opcode {0} takes data from outside of the file: pickle without buffer_callback")]
    OutOfBand(&'static str),
    /// The opcode belongs to protocol 0.
    #[error("opcode {0} belongs to protocol 0 or 1: write the snapshot with protocol 2 to 5")]
    OldText(&'static str),
    /// No opcode at all.
    #[error("no opcode has the byte {0:#04x}: the file is damaged")]
    NoOpcode(u8),
    /// PROTO or FRAME where it cannot be.
    #[error("opcode {0} in the middle of something: the file is damaged")]
    Misplaced(&'static str),
    /// The file ends too early.
    #[error("the file ends before the pickle does: copy it again")]
    Truncated,
    /// Too few values for an opcode, or a mark between them.
    #[error("opcode {0} finds too few values: the file is damaged")]
    TooFew(&'static str),
    /// No mark for an opcode.
    #[error("opcode {0} finds no mark: the file is damaged")]
    NoMark(&'static str),
    /// The value to fill is not of the kind that the opcode fills.
    #[error("opcode {0} finds a value of another kind: the file is damaged")]
    WrongKind(&'static str),
    /// A dictionary gets a key without a value.
    #[error("opcode {0} finds a key without a value: the file is damaged")]
    Odd(&'static str),
    /// A number in the memo that nothing was stored under.
    #[error("nothing is stored under memo number {0}: the file is damaged")]
    NoMemo(u64),
    /// A memo number that is larger than the file so far.
    #[error("memo number {0} comes before as many values: the file is damaged")]
    MemoNumber(u64),
    /// A count below zero, or no decimal number in a line.
    #[error("opcode {0} has an operand that makes no sense: the file is damaged")]
    Operand(&'static str),
    /// More values at the end than the one result.
    #[error("{0} values are left over at the end: the file is damaged")]
    LeftOver(u64),
    /// A limit was reached.
    #[error("more than {max} {what}: beyond the reader's limit {name}")]
    Limit {
        /// Name of the items that are too many.
        what: &'static str,
        /// Maximum number of the items.
        max: u64,
        /// The field of [`super::Limits`].
        name: &'static str,
    },
    /// A pickle, but no memory snapshot.
    #[error(
        "not a memory snapshot but {0}: give what torch.cuda.memory._snapshot or \
         torch.cuda.memory_snapshot returned"
    )]
    NoSnapshot(&'static str),
    /// A record or a list that stands in the snapshot twice, or not in the order of the file.
    #[error(
        "a {0} stands in the snapshot twice, or out of order: write it with PyTorch's own dump"
    )]
    Twice(&'static str),
}
