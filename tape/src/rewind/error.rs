//! [`RewindError`]: why the state of a rank cannot be had.

/// Why a state cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RewindError {
    /// The events back to that step are overwritten.
    #[error("step {step} is no longer on the tape: the oldest it covers is {oldest}")]
    NotCovered {
        /// The step asked for.
        step: u64,
        /// The oldest available step; 0 when there is none.
        oldest: u64,
    },
    /// The rank has not finished that step.
    #[error("step {step} is not finished: the rank has finished {reached}")]
    NotReached {
        /// The step asked for.
        step: u64,
        /// The last finished one.
        reached: u64,
    },
    /// No request ever failed, or the event is overwritten.
    #[error("no out-of-memory error is on the tape")]
    NoOom,
    /// Events in the middle are missing or torn, again and again.
    #[error("the tape is damaged: an event between the step and the present is not whole")]
    Damaged,
    /// The reader gives the tape less memory than its state takes.
    #[error(
        "the state of the rank takes more than the {bytes_max} bytes of memory that are left for it"
    )]
    TooLarge {
        /// Memory that the rewind was given, in bytes.
        bytes_max: u64,
    },
}
